// SPDX-License-Identifier: Apache-2.0
// Values over HTTP, compared bit by bit: JSON and binary data in both directions, raw binary, large
// bodies, compressed ones, classes.
#include "server/http/http_infer.h"
#include "tests/rig/http_rig.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <zlib.h>

// Every finite float comes back with the same bits through JSON in both directions, and through
// binary data; so do infinities through binary in, JSON out.
static void test_values(void **state)
{
    enum { N = 4000 };
    static float x[N];
    uint32_t seed = 1;
    char json[256];
    for (int i = 0; i < N; i++) {
        do {
            seed = seed * 1664525u + 1013904223u;
            memcpy(&x[i], &seed, sizeof seed);
        } while (!isfinite(x[i]));
    }
    x[0] = -0.0f;
    x[1] = 16777216.0f;
    x[2] = 0.1f;
    snprintf(json, sizeof json,
             "{\"id\":\"a "
             "\\\"b\\\"\",\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%d],\"datatype\":\"FP32\","
             "\"parameters\":{\"binary_data_size\":%d}}]}",
             N, 4 * N);
    reply r = post(port_of(state), "/v2/models/ident/infer", json, x, sizeof x);
    expect_200(&r);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    json_t *data = json_object_get(json_array_get(json_object_get(doc, "outputs"), 0), "data");
    assert_string_equal(json_string_value(json_object_get(doc, "id")), "a \"b\"");
    assert_int_equal(json_array_size(data), N);
    for (size_t i = 0; i < N; i++) {
        float y = (float)json_number_value(json_array_get(data, i));
        assert_memory_equal(&y, &x[i], sizeof y);
    }
    char *text = json_dumps(data, 0);
    char *back = malloc(strlen(text) + 256);
    sprintf(back,
            "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%d],\"datatype\":\"FP32\",\"data\":%s}],"
            "\"parameters\":{\"binary_data_output\":true}}",
            N, text);
    reply b = post(port_of(state), "/v2/models/ident/infer", back, NULL, 0);
    expect_200(&b);
    size_t head = strtoull(header(&b, "Inference-Header-Content-Length"), NULL, 10);
    assert_int_equal(b.bytes - head, sizeof x);
    assert_memory_equal(b.body + head, x, sizeof x);
    free(back);
    free(text);
    json_decref(doc);
    reply_free(&b);
    reply_free(&r);
}

static void test_large(void **state)
{
    size_t n = 3000000, bytes_in = 4 * n;
    char json[256];
    float *x = malloc(bytes_in);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)i;
    }
    snprintf(
        json, sizeof json,
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%zu],\"datatype\":\"FP32\",\"parameters\":{"
        "\"binary_data_size\":%zu}}],\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{"
        "\"binary_data\":true}}]}",
        n, bytes_in);
    for (int round = 0; round < 3; round++) {
        reply r = post(port_of(state), "/v2/models/ident/infer", json, x, bytes_in);
        expect_200(&r);
        size_t head = strtoull(header(&r, "Inference-Header-Content-Length"), NULL, 10);
        assert_int_equal(r.bytes, head + bytes_in);
        assert_memory_equal(r.body + head, x, bytes_in);
        reply_free(&r);
    }
    free(x);
}

static void test_integers(void **state)
{
    static const char *const one[][3] = {
        {"u64", "UINT64", "[0,18446744073709551615,9223372036854775808]"},
        {"i64", "INT64", "[-9223372036854775808,9223372036854775807,-1]"},
        {"i8", "INT8", "[-128,127,0]"},
        {"u8", "UINT8", "[255,0,1]"},
        {"bool", "BOOL", "[true,false,true]"}};
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        char path[64], json[256];
        snprintf(path, sizeof path, "/v2/models/%s/infer", one[i][0]);
        snprintf(
            json, sizeof json,
            "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[3],\"datatype\":\"%s\",\"data\":%s}]}",
            one[i][1], one[i][2]);
        reply r = post(port_of(state), path, json, NULL, 0);
        expect_200(&r);
        if (strstr(r.body, one[i][2]) == NULL) {
            fail_msg("%s came back as %s", one[i][2], r.body);
        }
        reply_free(&r);
    }
}

// Raw binary: the body is the input, all outputs are binary; a class per row of a batch.
static void test_raw_and_classes(void **state)
{
    static const float x[6] = {1, 9, 9, -3, NAN, -2};
    static const char q[] = "POST /v2/models/batch/infer HTTP/1.1\r\nHost: x\r\n"
                            "Inference-Header-Content-Length: 0\r\nContent-Length: 12\r\n\r\n";
    int fd = dial(port_of(state));
    push(fd, q, sizeof q - 1);
    push(fd, x, 12);
    reply r = pull(fd, true);
    close(fd);
    expect_200(&r);
    assert_non_null(strstr(r.body, "\"shape\":[1,3]"));
    assert_memory_equal(r.body + r.bytes - 12, x, 12);
    reply_free(&r);
    r = post(
        port_of(state), "/v2/models/batch/infer",
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[2,3],\"datatype\":\"FP32\",\"parameters\":"
        "{\"binary_data_size\":24}}],\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{"
        "\"classification\":2}}]}",
        x, sizeof x);
    expect_200(&r);
    assert_non_null(strstr(r.body,
                           "\"datatype\":\"BYTES\",\"shape\":[2,2],\"data\":["
                           "\"9.000000:1\",\"9.000000:2\",\"-2.000000:2\",\"-3.000000:0\"]"));
    reply_free(&r);
}

// classes_say asks for every class of N elements with long texts, and tells whether the answer is
// as it should be.
static bool classes_say(void **state, bool fp64, bool binary, int status, const char *words)
{
    enum { N = 4000 };
    static double x[N];
    char json[300];
    for (int i = 0; i < N; i++) {
        float least = -FLT_MAX;
        if (fp64) {
            x[i] = -DBL_MAX;
        } else {
            memcpy((char *)x + 4 * i, &least, 4);
        }
    }
    size_t n = fp64 ? 8 * N : 4 * N;
    snprintf(json, sizeof json,
             "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%d],\"datatype\":\"%s\",\"parameters\":{"
             "\"binary_data_size\":%zu}}],\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{"
             "\"classification\":%d,\"binary_data\":%s}}]}",
             N, fp64 ? "FP64" : "FP32", n, N, binary ? "true" : "false");
    reply r =
        post(port_of(state), fp64 ? "/v2/models/fp64/infer" : "/v2/models/ident/infer", json, x, n);
    bool as = r.status == status && strstr(r.body, words) != NULL;
    if (!as) {
        print_message("# %s%s: status %d, %zu bytes: %.100s\n", fp64 ? "FP64" : "FP32",
                      binary ? " as binary data" : "", r.status, r.bytes, r.body);
    }
    reply_free(&r);
    return as;
}

// A class may be a line of text for a few bytes: it is within limits.message_bytes as it is
// written, and counted as what it may become before it is.
static void test_classes_bounded(void **state)
{
    static const char few[] =
        "the answer with its classes is more than 128.0 KiB (limits.message_bytes)";
    static const char counted[] = "the server holds too much for its clients";
    bool as = true;
    for (int i = 0; i < 4; i++) {
        as &= classes_say(state, i / 2, i % 2, 200, "\"shape\":[4000]");
    }
    assert_ok(hth_setting_set("limits.message_bytes", "128KiB"));
    for (int i = 0; i < 4; i++) {
        as &= classes_say(state, i / 2, i % 2, 400, few);
    }
    assert_ok(hth_setting_set("limits.message_bytes", "128MiB"));
    assert_ok(hth_setting_set("http.buffered_bytes", "1MiB"));
    for (int i = 0; i < 4; i++) {
        as &= classes_say(state, i / 2, i % 2, i < 2 ? 200 : 503, i < 2 ? "[4000]" : counted);
    }
    assert_ok(hth_setting_set("http.buffered_bytes", "4GiB"));
    assert_true(as);
}

// classify writes the two largest of each of two rows of three.
static void classify(bool binary, hth_text *out)
{
    float x[6] = {1, 9, 9, -3, NAN, -2};
    const hth_tensor t = {.dtype = HTH_DT_F32, .shape = {2, {2, 3}}, .data = x, .bytes = sizeof x};
    hth_shape classes = hth_infer_classes(&t, true, 2);
    assert_int_equal(hth_infer_classes(&t, false, 9).dim[0], 6);
    hth_infer_classify(&t, &classes, binary, out);
}

// What is canceled, or may be no longer, ends.
static void test_classes_end(void **state)
{
    static const char bytes[] = "\12\0\0\0"
                                "9.000000:1"
                                "\12\0\0\0"
                                "9.000000:2"
                                "\13\0\0\0"
                                "-2.000000:2"
                                "\13\0\0\0"
                                "-3.000000:0";
    static const char json[] = "[\"9.000000:1\",\"9.000000:2\",\"-2.000000:2\",\"-3.000000:0\"]";
    atomic_int canceled = 0;
    for (int binary = 0; binary < 2; binary++) {
        hth_text whole = {.canceled = &canceled}, ended = {.canceled = &canceled},
                 few = {.most = 20};
        atomic_store(&canceled, 0);
        classify(binary, &whole);
        assert_false(whole.failed);
        assert_int_equal(whole.n, (binary ? sizeof bytes : sizeof json) - 1);
        assert_memory_equal(whole.p, binary ? bytes : json, whole.n);
        classify(binary, &few);
        assert_true(few.failed && few.over && few.n <= 20);
        atomic_store(&canceled, 1);
        classify(binary, &ended);
        assert_true(ended.failed && !ended.over && ended.n <= 1);
        hth_text_fini(&whole);
        hth_text_fini(&ended);
        hth_text_fini(&few);
    }
}

// generate_says posts a flat request and compares the whole answer.
static void generate_says(void **state, const char *path, const char *json, int status,
                          const char *want)
{
    reply r = post(port_of(state), path, json, NULL, 0);
    if (r.status != status || strstr(r.body, want) == NULL) {
        fail_msg("%s: status %d: %.*s", json, r.status, (int)r.bytes, r.body);
    }
    reply_free(&r);
}

static void test_generate(void **state)
{
    static const char one[] = "/v2/models/ident/generate", two[] = "/v2/models/two/generate",
                      batch[] = "/v2/models/batch/versions/1/generate";
    generate_says(state, one, "{\"INPUT0\":[1, 2.5,-3]}", 200,
                  "{\"model_name\":\"ident\",\"model_version\":\"1\",\"OUTPUT0\":[1.0,2.5,-3.0]}");
    generate_says(
        state, one, " {\"id\":\"q\",\"INPUT0\" : 7 , \"t\":0.5,\"parameters\":{\"a\":1}}", 200,
        "{\"id\":\"q\",\"model_name\":\"ident\",\"model_version\":\"1\",\"OUTPUT0\":7.0}");
    generate_says(state, batch, "{\"INPUT0\":[1,2,3,4,5,6]}", 200, "[1.0,2.0,3.0,4.0,5.0,6.0]");
    generate_says(state, "/v2/models/u64/generate", "{\"INPUT0\":18446744073709551615}", 200,
                  ":18446744073709551615}");
    generate_says(state, "/v2/models/bool/generate", "{\"INPUT0\":true}", 200, ":true}");
    generate_says(state, one, "{\"INPUT0\":[]}", 200, "\"OUTPUT0\":[]}");
    generate_says(state, batch, "{\"INPUT0\":[1,2,3,4]}", 400, "to tensor with proper shape");
    generate_says(state, two, "{\"INPUT0\":[1]}", 400, "input");
    generate_says(state, one, "{\"INPUT0\":[1],\"p\":[1]}", 400, "invalid type");
    generate_says(state, one, "{\"INPUT0\":[1],\"p\":{}}", 400, "invalid type");
    generate_says(state, one, "{\"INPUT0\":[1],\"p\":1x}", 400, "invalid type");
    generate_says(state, one, "{\"INPUT0\":[1,x]}", 400, "INPUT0");
    generate_says(state, one, "{\"INPUT0\":\"1\"}", 400, "neither a number");
    generate_says(state, one, "{\"INPUT0\":[1]", 400, "Failed to parse");
    generate_says(state, one, "[1]", 400, "");
    generate_says(state, one, "", 400, "no body");
    generate_says(state, one, "{\"INPUT0\":[1],\"parameters\":{\"timeout\":-1}}", 400, "timeout");
    generate_says(state, "/v2/models/i8/generate", "{\"INPUT0\":300}", 400, "not an INT8");
    generate_says(state, "/v2/models/fp16/generate", "{\"INPUT0\":1}", 400, "FP16");
    generate_says(state, "/v2/models/none/generate", "{\"INPUT0\":1}", 404, "unknown model");
}

// What is no element is quoted as far as it goes, and no further.
static void test_quoted(void **state)
{
    static const struct {
        const char *model, *datatype, *data, *words;
    } bad[] = {
        {"ident", "FP32", "[NaN]", ": 'NaN' is not a number"},
        {"ident", "FP32", "[1, NaN , 2]", ": 'NaN' is not a number"},
        {"ident", "FP32", "[1,-Infinity,2]", ": '-Infinity' is not a number"},
        {"ident", "FP32", "[1,true\t]", ": 'true' is not a number"},
        {"ident", "FP32", "[1,\"a, ]\",3]", ": '\\\"a, ]\\\"' is not a number"},
        {"ident", "FP32", "[1,]", ": ']' is not a number"},
        {"ident", "FP32", "[1,[2],3]", ": '[' is not a number"},
        {"ident", "FP32", "[01,2]", ": '01' is not a number"},
        {"ident", "FP32", "[abcdefghijklmnopqrstuvwxyz]", ": 'abcdefghijklmnopqrstuvwx..' is"},
        {"ident", "FP32", "[abcdefghijklmnopqrstuvw\u00e9f]", ": 'abcdefghijklmnopqrstuvw..' is"},
        {"ident", "FP32",
         "[\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"
         "\x80\x80"
         "\x80\x80\x80]",
         ": '?????????????????????..' is not a number"},
        {"i8", "INT8", "[ 300 , 1]", ": '300' is not an INT8"},
        {"i8", "INT8", "[1.5 , 1]", ": '1.5' is not an INT8"},
        {"u8", "UINT8", "[\n-1\n]", ": '-1' is not a UINT8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char path[64], json[256];
        snprintf(path, sizeof path, "/v2/models/%s/infer", bad[i].model);
        snprintf(
            json, sizeof json,
            "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[3],\"datatype\":\"%s\",\"data\":%s}]}",
            bad[i].datatype, bad[i].data);
        generate_says(state, path, json, 400, bad[i].words);
    }
}

// A stream is one server-sent event, in chunks; what fails is a JSON error.
static void test_generate_stream(void **state)
{
    static const char path[] = "/v2/models/ident/generate_stream";
    reply r = post(port_of(state), path, "{\"INPUT0\":[1,2]}", NULL, 0);
    expect_200(&r);
    assert_non_null(strstr(header(&r, "Content-Type"), "text/event-stream; charset=utf-8\r\n"));
    assert_non_null(strstr(r.body, "\r\ndata: {\"model_name\":\"ident\",\"model_version\":\"1\","
                                   "\"OUTPUT0\":[1.0,2.0]}\n\n\r\n0\r\n\r\n"));
    reply_free(&r);
    generate_says(state, path, "{}", 400, "{\"error\":");
}

// What comes out of a small body is bounded while it comes out.
static void test_bomb(void **state)
{
    enum { PIECE = 1 << 20 };
    char head[256], *piece = calloc(1, PIECE);
    struct {
        char *p;
        size_t n;
    } z = {malloc(4 << 20), 0};
    z_stream s = {.next_out = (Bytef *)z.p, .avail_out = 4 << 20};
    assert_int_equal(deflateInit(&s, 9), Z_OK);
    for (int i = 0; i <= 200; i++) {
        s.next_in = (Bytef *)piece;
        s.avail_in = i < 200 ? PIECE : 0;
        int rc = deflate(&s, i < 200 ? Z_NO_FLUSH : Z_FINISH);
        assert_int_equal(rc, i < 200 ? Z_OK : Z_STREAM_END);
    }
    z.n = s.total_out;
    deflateEnd(&s);
    int n =
        snprintf(head, sizeof head,
                 "POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: deflate\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 z.n);
    int fd = dial(port_of(state));
    push(fd, head, (size_t)n);
    push(fd, z.p, z.n);
    reply r = pull(fd, true);
    assert_int_equal(r.status, 413);
    close(fd);
    reply_free(&r);
    free(z.p);
    free(piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_raw_and_classes),
        cmocka_unit_test(test_classes_bounded),
        cmocka_unit_test(test_classes_end),
        cmocka_unit_test(test_bomb),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_generate_stream),
        cmocka_unit_test(test_quoted),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
