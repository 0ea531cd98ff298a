// SPDX-License-Identifier: Apache-2.0
// A rule is the first bytes of a kind of file, or a function that looks closer. The first one that
// holds is the answer; those that are certain come first.
#include "graph/onnx/onnx_hint.h"

#include <string.h>

#define HINT_LOOK 65536 // bytes at either end that are looked at

#define EXPORT "in Python, torch.onnx.export(model, (x,), \"model.onnx\") makes an ONNX file"

typedef struct hint_magic {
    size_t at;
    const char *bytes;
    size_t n;
    const char *says;
} hint_magic;

#define MAGIC(at, text, says)                                                                      \
    {                                                                                              \
        at, text, sizeof(text) - 1, says                                                           \
    }

static const hint_magic hint_magics[] = {
    MAGIC(0, "\x93NUMPY",
          "a NumPy array, which is data: `hearth infer NAME --input x=FILE.npy` takes it"),
    MAGIC(
        0, "\x89HDF\r\n\x1a\n",
        "an HDF5 file, of Keras perhaps; in Python, tf2onnx.convert.from_keras makes an ONNX file"),
    MAGIC(4, "TFL3",
          "a TensorFlow Lite model; python -m tf2onnx.convert --tflite FILE --output model.onnx "
          "makes an ONNX file"),
    MAGIC(4, "ORTM",
          "a model in onnxruntime's own format; import the ONNX file that it was made from"),
    MAGIC(0, "GGUF", "GGUF, weights of llama.cpp; export the model that they come from to ONNX"),
    MAGIC(0, "GGML", "GGML, weights of llama.cpp; export the model that they come from to ONNX"),
    MAGIC(0, "ftrt", "a TensorRT engine; import the ONNX file that it was built from"),
    MAGIC(0, "ptrt", "a TensorRT engine; import the ONNX file that it was built from"),
    MAGIC(0, "version https://git-lfs.",
          "a Git LFS pointer instead of the model; `git lfs pull` fetches it"),
    MAGIC(0, "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9", "a PyTorch file; " EXPORT),
    MAGIC(0, "\x1f\x8b", "a gzip file; unpack it, and import the ONNX file in it"),
    MAGIC(0,
          "\xfd"
          "7zXZ",
          "an xz file; unpack it, and import the ONNX file in it"),
    MAGIC(0, "BZh", "a bzip2 file; unpack it, and import the ONNX file in it"),
    MAGIC(0, "\x28\xb5\x2f\xfd", "a zstd file; unpack it, and import the ONNX file in it"),
    MAGIC(0, "7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it, and import the ONNX file in it"),
    MAGIC(0, "Rar!", "a RAR archive; unpack it, and import the ONNX file in it"),
    MAGIC(257, "ustar", "a tar archive; unpack it, and import the ONNX file in it"),
    MAGIC(0, "\x89PNG", "a picture"),
    MAGIC(0, "\xff\xd8\xff", "a picture"),
    MAGIC(0, "%PDF", "a PDF document"),
    MAGIC(0,
          "\x7f"
          "ELF",
          "a program or a library"),
};

static hth_span hint_head(hth_span span)
{
    return (hth_span){span.data, span.bytes < HINT_LOOK ? span.bytes : HINT_LOOK};
}

static hth_span hint_tail(hth_span span)
{
    size_t n = span.bytes < HINT_LOOK ? span.bytes : HINT_LOOK;
    return (hth_span){span.data + (span.bytes - n), n};
}

static bool hint_has(hth_span span, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i + n <= span.bytes; i++) {
        if (memcmp(span.data + i, text, n) == 0) {
            return true;
        }
    }
    return false;
}

static bool hint_begins(hth_span span, size_t at, const char *bytes, size_t n)
{
    return span.bytes >= at + n && memcmp(span.data + at, bytes, n) == 0;
}

// hint_zip: names of files are in front of each, and all at the end.
static const char *hint_zip(hth_span span)
{
    hth_span head = hint_head(span), tail = hint_tail(span);
    if (!hint_begins(span, 0, "PK\x03\x04", 4) && !hint_begins(span, 0, "PK\x05\x06", 4)) {
        return NULL;
    }
    if (hint_has(tail, "constants.pkl") || hint_has(head, "constants.pkl")) {
        return "a TorchScript file; in Python, torch.onnx.export of the model that it was made "
               "from makes an ONNX file";
    }
    if (hint_has(tail, "data.pkl") || hint_has(head, "data.pkl")) {
        return "a PyTorch file; " EXPORT;
    }
    if (hint_has(tail, ".npy") || hint_has(head, ".npy")) {
        return "a NumPy archive, which is data and no model";
    }
    if (hint_has(tail, "model.weights.h5")) {
        return "a Keras model; in Python, tf2onnx.convert.from_keras makes an ONNX file";
    }
    return "a zip archive; unpack it, and import the ONNX file in it";
}

static const char *hint_safetensors(hth_span span)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0 && span.bytes > 8; i--) {
        n = n << 8 | span.data[i];
    }
    return span.bytes > 9 && n >= 2 && n <= span.bytes - 8 && span.data[8] == '{'
               ? "a safetensors file, which has weights and no graph; load them into the "
                 "model; " EXPORT
               : NULL;
}

// hint_pickle: protocols 2 to 5 begin so, and end with a dot.
static const char *hint_pickle(hth_span span)
{
    return span.bytes > 2 && span.data[0] == 0x80 && span.data[1] >= 2 && span.data[1] <= 5
               ? "a pickle of Python; of a PyTorch model, " EXPORT
               : NULL;
}

// hint_graph_def: a frozen graph of TensorFlow is a row of nodes, field 1; an ONNX model begins
// with a number there.
static const char *hint_graph_def(hth_span span)
{
    hth_wire_field node, field;
    bool name = false, op = false;
    if (hth_wire_next(&span, &node) <= 0 || node.number != 1 || node.type != HTH_WIRE_BYTES) {
        return NULL;
    }
    while (hth_wire_next(&node.payload, &field) > 0) {
        name = name || (field.number == 1 && field.type == HTH_WIRE_BYTES);
        op = op || (field.number == 2 && field.type == HTH_WIRE_BYTES && field.payload.bytes > 0);
    }
    return name && op ? "a frozen graph of TensorFlow; python -m tf2onnx.convert --graphdef FILE "
                        "--inputs .. --outputs .. --output model.onnx makes an ONNX file"
                      : NULL;
}

// hint_saved_model: a version, then graphs, whose first field has the tags.
static const char *hint_saved_model(hth_span span)
{
    hth_wire_field version, graph, info;
    bool saved = hth_wire_next(&span, &version) > 0 && version.number == 1 &&
                 version.type == HTH_WIRE_VARINT && version.value == 1 &&
                 hth_wire_next(&span, &graph) > 0 && graph.number == 2 &&
                 graph.type == HTH_WIRE_BYTES && hth_wire_next(&graph.payload, &info) > 0 &&
                 info.number == 1 && info.type == HTH_WIRE_BYTES;
    return saved ? "a SavedModel of TensorFlow; python -m tf2onnx.convert --saved-model FOLDER "
                   "--output model.onnx makes an ONNX file"
                 : NULL;
}

static bool hint_begins_text(hth_span span, const char *text) // without case
{
    size_t n = strlen(text), i = 0;
    while (i < n && i < span.bytes && (span.data[i] | 0x20) == (text[i] | 0x20)) {
        i++;
    }
    return i == n;
}

static const char *hint_text(hth_span span)
{
    hth_span head = hint_head(span), rest = head;
    while (rest.bytes > 0 && (*rest.data <= ' ' || *rest.data >= 0xef)) { // a byte order mark, too
        rest.data++;
        rest.bytes--;
    }
    if (hint_begins_text(rest, "<!doctype html") || hint_begins_text(rest, "<html")) {
        return "an HTML page instead of the model, perhaps from a failed download";
    }
    for (size_t i = 0; i < head.bytes; i++) {
        bool text = head.data[i] >= ' ' || (head.data[i] >= 9 && head.data[i] <= 13);
        if (!text || head.data[i] == 0x7f) {
            return NULL;
        }
    }
    return hint_has(head, "<net ") ? "an OpenVINO model; import the ONNX file that it was made from"
                                   : "text";
}

const char *hth_onnx_hint(hth_span file)
{
    static const char *(*const closer[])(hth_span) = {hint_zip,       hint_safetensors, hint_pickle,
                                                      hint_graph_def, hint_saved_model, hint_text};
    if (file.bytes == 0) {
        return "an empty file";
    }
    for (size_t i = 0; i < sizeof hint_magics / sizeof *hint_magics; i++) {
        const hint_magic *m = &hint_magics[i];
        if (hint_begins(file, m->at, m->bytes, m->n)) {
            return m->says;
        }
    }
    for (size_t i = 0; i < sizeof closer / sizeof *closer; i++) {
        const char *says = closer[i](file);
        if (says != NULL) {
            return says;
        }
    }
    return NULL;
}

const char *hth_onnx_hint_operator(const char *domain, const char *op)
{
    static const char *const quantized[] = {
        "Integer",     "QLinear",         "QAttention", "QGemm",
        "MatMulNBits", "DynamicQuantize", "MatMulFpQ4", "GatherBlockQuantized"};
    bool microsoft =
        strncmp(domain, "com.microsoft", 13) == 0 || strncmp(domain, "com.ms.", 7) == 0;
    for (size_t i = 0; i < sizeof quantized / sizeof *quantized && microsoft; i++) {
        if (strstr(op, quantized[i]) != NULL) {
            bool of_qdq = strstr(op, "QLinear") != NULL || strcmp(op, "QGemm") == 0;
            return of_qdq ? "quantize with QuantFormat.QDQ, which makes operators of ONNX"
                          : "the model is quantized in onnxruntime's own form; import the one "
                            "in floating point";
        }
    }
    if (microsoft) {
        return "onnxruntime's optimizer makes it; import the model as it was before that";
    }
    return strcmp(domain, "ai.onnx.ml") == 0
               ? "trees, linear and other classical models are not supported"
               : NULL;
}
