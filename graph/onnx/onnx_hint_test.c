// SPDX-License-Identifier: Apache-2.0
// What is said of files that are no models, by whole imports; what ONNX files are, and damaged
// ones, is not taken for anything else.
#include "graph/onnx/onnx.h"
#include "graph/onnx/onnx_hint.h"

#include "base/test.h"

#include <string.h>

#define BYTES(text, says)                                                                          \
    {                                                                                              \
        text, sizeof(text) - 1, says                                                               \
    }

static void test_kinds(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } cases[] = {
        BYTES("", "an empty file"),
        BYTES("\x93NUMPY\x01\x00v\x00{'descr'", "a NumPy array"),
        BYTES("PK\x03\x04............m/data.pklPK\x01\x02 m/data.pkl", "torch.onnx.export"),
        BYTES("PK\x03\x04....m/data.pkl m/constants.pkl", "a TorchScript file"),
        BYTES("PK\x03\x04....x.npyPK\x01\x02x.npy", "a NumPy archive"),
        BYTES("PK\x03\x04....config.jsonPK\x01\x02model.weights.h5", "a Keras model"),
        BYTES("PK\x03\x04....m.onnx", "a zip archive; unpack it"),
        BYTES("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", "a PyTorch file"),
        BYTES("\x80\x04\x95\x10\x00\x00", "a pickle of Python"),
        BYTES("\x02\0\0\0\0\0\0\0{}", "a safetensors file"),
        BYTES("\x89HDF\r\n\x1a\n\0\0\0\0", "tf2onnx.convert.from_keras"),
        BYTES("\x1c\0\0\0TFL3\0\0\0\0", "--tflite"),
        BYTES("\x20\0\0\0ORTM\0\0\0\0", "onnxruntime's own format"),
        BYTES("GGUF\x03\0\0\0", "llama.cpp"),
        BYTES("ftrt\0\0\0\0", "a TensorRT engine"),
        BYTES("\x1f\x8b\x08\0\0", "a gzip file"),
        BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:a\n", "git lfs pull"),
        BYTES("\n <!DOCTYPE HTML><head>", "an HTML page"),
        BYTES("<html lang=en>", "an HTML page"),
        BYTES("<?xml version=\"1.0\"?>\n<net name=\"m\">", "an OpenVINO model"),
        BYTES("{\"a\": 1}\n", "text"),
        BYTES("\x08\x01\x12\x09\x0a\x07\x22\x05serve", "--saved-model"),
        BYTES("\x0a\x10\x0a\x01x\x12\x0bPlaceholder", "--graphdef"),
        BYTES("\x89PNG\r\n\x1a\n", "a picture"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_onnx_file *f;
        assert_err(hth_onnx_open_bytes(cases[i].bytes, cases[i].n, NULL, &f), HTH_ECORRUPT,
                   cases[i].says);
        assert_null(f);
        assert_non_null(strstr(hth_err_detail(), "not an ONNX model, but "));
    }
}

// A model that is cut short is damaged, and nothing else.
static void test_onnx(void **state)
{
    static char bytes[4096];
    FILE *in = fopen("tests/data/digits/digits.onnx", "rb");
    assert_non_null(in);
    size_t n = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    for (size_t cut = 1; cut < n; cut += 7) {
        hth_span s = {(const uint8_t *)bytes, cut};
        assert_null(hth_onnx_hint(s));
    }
    for (size_t cut = 1; cut < 40; cut++) { // a page that looks like something and is cut anywhere
        static const char *const what[] = {"PK\x03\x04", "\x80\x02", "\x0a\x7f\x0a\x01",
                                           "\x08\x01"};
        for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
            hth_onnx_file *f;
            memset(bytes, 0, sizeof bytes);
            memcpy(bytes, what[i], strlen(what[i]));
            assert_int_not_equal(hth_onnx_open_bytes(bytes, cut, NULL, &f), HTH_OK);
        }
    }
}

static void test_operators(void **state)
{
    static const struct {
        const char *domain, *op, *says;
    } cases[] = {
        {"com.microsoft", "QLinearAdd", "QuantFormat.QDQ"},
        {"com.microsoft", "MatMulNBits", "in floating point"},
        {"com.microsoft", "FusedConv", "as it was before that"},
        {"com.microsoft.nchwc", "Conv", "as it was before that"},
        {"com.ms.internal.nhwc", "Conv", "as it was before that"},
        {"ai.onnx.ml", "TreeEnsembleClassifier", "classical"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *says = hth_onnx_hint_operator(cases[i].domain, cases[i].op);
        assert_non_null(says);
        assert_non_null(strstr(says, cases[i].says));
    }
    assert_null(hth_onnx_hint_operator("ai.onnx", "QLinearConv"));
    assert_null(hth_onnx_hint_operator("acme", "QLinearConv"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_onnx),
                                       cmocka_unit_test(test_operators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
