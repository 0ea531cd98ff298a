// SPDX-License-Identifier: Apache-2.0
// Traces of requests: which are taken, what is in the file; and logging settings, which are the
// process's own.
#include "tests/rig/http_rig.h"

#include "base/log.h"
#include "server/http/trace/http_trace_file.h"

#include <jansson.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#define INFER                                                                                      \
    "{\"id\":\"q\",\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":" \
    "[1]}]}"

static const char *const trace_path = "/tmp/hearth-trace-test";

static int trace_setup(void **state)
{
    char path[64];
    snprintf(path, sizeof path, "%s-%d", trace_path, (int)getpid());
    assert_ok(hth_setting_set("trace.file", path));
    return rig_setup(state);
}

static int trace_teardown(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -f %s-%d*", trace_path, (int)getpid());
    int rc = rig_teardown(state);
    return system(command) != 0 ? -1 : rc;
}

// set posts settings and compares one member of the answer.
static void set(void **state, const char *path, const char *json, int status, const char *key,
                const char *want)
{
    reply r = post(port_of(state), path, json, NULL, 0);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL), *v = json_object_get(doc, key);
    const char *text = json_string_value(json_is_array(v) ? json_array_get(v, 0) : v);
    if (r.status != status || text == NULL || strstr(text, want) == NULL) {
        fail_msg("%s: status %d: %.*s", json, r.status, (int)r.bytes, r.body);
    }
    json_decref(doc);
    reply_free(&r);
}

static void infer(void **state, const char *model, const char *json, int status)
{
    char path[64];
    snprintf(path, sizeof path, "/v2/models/%s/infer", model);
    reply r = post(port_of(state), path, json, NULL, 0);
    assert_int_equal(r.status, status);
    reply_free(&r);
}

static json_t *load(int index)
{
    char path[80];
    snprintf(path, sizeof path, index < 0 ? "%s-%d" : "%s-%d.%d", trace_path, (int)getpid(), index);
    json_t *doc = json_load_file(path, 0, NULL);
    assert_true(doc == NULL || json_is_array(doc));
    return doc;
}

// traces_of waits until a file has `n` entries: they are written after the answers have left.
static json_t *traces_of(int index, size_t n)
{
    json_t *doc = load(index);
    for (int i = 0; i < 12000 && json_array_size(doc) < n; i++) {
        json_decref(doc);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        doc = load(index);
    }
    assert_int_equal(json_array_size(doc), n);
    return doc;
}

static json_t *traces(int index, size_t n)
{
    return traces_of(index, 2 * n);
}

// expect_events checks that a trace has these events in this order, at times that do not go back.
static void expect_events(const json_t *times, const char *const *want, size_t n)
{
    const json_t *list = json_object_get(times, "timestamps");
    json_int_t before = 0;
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(list, i);
        json_int_t ns = json_integer_value(json_object_get(e, "ns"));
        assert_string_equal(json_string_value(json_object_get(e, "name")), want[i]);
        assert_true(ns >= before);
        before = ns;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    assert_true(before <= (json_int_t)now.tv_sec * 1000000000 + now.tv_nsec);
    assert_true(before > ((json_int_t)now.tv_sec - 600) * 1000000000);
}

static void test_trace(void **state)
{
    static const char *const all[] = {
        "HTTP_RECV_START",         "HTTP_RECV_END",     "REQUEST_START",        "QUEUE_START",
        "COMPUTE_START",           "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
        "INFER_RESPONSE_COMPLETE", "REQUEST_END",       "HTTP_SEND_START",      "HTTP_SEND_END"};
    static const char *const refused[] = {"HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START",
                                          "HTTP_SEND_END"};
    infer(state, "ident", INFER, 200); // the level is OFF
    set(state, "/v2/trace/setting", "{\"trace_level\":[\"TIMESTAMPS\"],\"trace_rate\":\"1\"}", 200,
        "trace_level", "TIMESTAMPS");
    infer(state, "ident", INFER, 200);
    infer(state, "ident", "{", 400);
    reply r = post(port_of(state), "/v2/models/ident/generate_stream", "{\"INPUT0\":1}", NULL, 0);
    expect_200(&r);
    reply_free(&r);
    json_t *doc = traces(-1, 3);
    const json_t *head = json_array_get(doc, 0), *times = json_array_get(doc, 1);
    assert_string_equal(json_string_value(json_object_get(head, "model_name")), "ident");
    assert_string_equal(json_string_value(json_object_get(head, "request_id")), "q");
    assert_int_equal(json_integer_value(json_object_get(head, "model_version")), 1);
    assert_int_equal(json_integer_value(json_object_get(head, "id")),
                     json_integer_value(json_object_get(times, "id")));
    expect_events(times, all, 12);
    expect_events(json_array_get(doc, 3), refused, 4);
    expect_events(json_array_get(doc, 5), all, 12);
    json_decref(doc);
}

// A model's own settings are over those for all; null gives them up.
static void test_trace_settings(void **state)
{
    static const char all[] = "/v2/trace/setting", own[] = "/v2/models/i8/trace/setting";
    set(state, all, "{\"trace_level\":[\"OFF\"],\"trace_rate\":null}", 200, "trace_rate", "1000");
    set(state, own, "{\"trace_rate\":\"7\"}", 200, "trace_rate", "7");
    set(state, all, "{\"trace_rate\":\"9\"}", 200, "trace_rate", "9");
    set(state, own, "{}", 200, "trace_rate", "7");
    set(state, own, "{\"trace_rate\":null}", 200, "trace_rate", "9");
    set(state, all, "{\"trace_rate\":null}", 200, "trace_rate", "1000");
    set(state, all, "{\"trace_file\":\"/tmp/x\"}", 501, "error", "network");
    set(state, all, "{\"trace_rate\":\"0\"}", 400, "error", "trace_rate");
    set(state, all, "{\"trace_count\":\"x\"}", 400, "error", "trace_count");
    set(state, all, "{\"trace_level\":[\"ALL\"]}", 400, "error", "trace_level");
    set(state, all, "[]", 400, "error", "object");
    set(state, "/v2/models/none/trace/setting", "{}", 400, "error", "none");
    set(state, all, "", 200, "trace_rate", "1000");
}

// Every second request, three times, a file for each two; nobody else's requests.
static void test_trace_rate(void **state)
{
    static const char own[] = "/v2/models/batch/trace/setting";
    static const char q[] = "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1,3],\"datatype\":"
                            "\"FP32\",\"data\":[1,2,3]}]}";
    set(state, "/v2/trace/setting", "{\"trace_level\":null}", 200, "trace_level", "OFF");
    set(state, own,
        "{\"trace_level\":[\"TIMESTAMPS\"],\"trace_rate\":\"2\",\"trace_count\":\"3\","
        "\"log_frequency\":\"2\"}",
        200, "trace_count", "3");
    for (int i = 0; i < 10; i++) {
        infer(state, "batch", q, 200);
        infer(state, "ident", INFER, 200);
    }
    json_decref(traces(0, 2));
    json_decref(traces(1, 1));
    assert_null(load(2));
    set(state, own, "{}", 200, "trace_count", "0");
    set(state, own, "{\"trace_count\":\"1\"}", 200, "trace_count", "1");
    infer(state, "batch", q, 200);
    infer(state, "batch", q, 200);
    json_decref(traces(1, 2));
}

static void expect_tensor(const json_t *json, const char *activity, const char *name,
                          const char *data, const char *shape, const char *dtype)
{
    json_t *want = json_pack("{s:O, s:s, s:{s:s, s:s, s:s, s:s}}", "id",
                             json_object_get(json, "id"), "activity", activity, "tensor", "name",
                             name, "data", data, "shape", shape, "dtype", dtype);
    if (!json_equal(json, want)) {
        char *text = json_dumps(json, 0);
        fail_msg("%s", text);
    }
    json_decref(want);
}

// What a request's tensors hold, with and without times, in the order of Triton's files.
static void test_trace_tensors(void **state)
{
    static const char own[] = "/v2/models/ident/trace/setting";
    size_t before;
    json_t *doc = load(-1);
    before = json_array_size(doc);
    json_decref(doc);
    set(state, own, "{\"trace_level\":[\"TENSORS\"],\"trace_rate\":\"1\"}", 200, "trace_level",
        "TENSORS");
    infer(state, "ident",
          "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[3],\"datatype\":\"FP32\",\"data\":"
          "[1,2.5,-3]}]}",
          200);
    set(state, own, "{\"trace_level\":[\"TIMESTAMPS\",\"TENSORS\"]}", 200, "trace_level",
        "TIMESTAMPS");
    infer(state, "ident", INFER, 200);
    set(state, own, "{\"trace_level\":null,\"trace_rate\":null}", 200, "trace_level", "OFF");
    doc = traces_of(-1, before + 7);
    const json_t *head = json_array_get(doc, before), *in = json_array_get(doc, before + 1);
    assert_string_equal(json_string_value(json_object_get(head, "model_name")), "ident");
    assert_true(json_equal(json_object_get(head, "id"), json_object_get(in, "id")));
    expect_tensor(in, "TENSOR_QUEUE_INPUT", "INPUT0", "1.0,2.5,-3.0", "3", "FP32");
    expect_tensor(json_array_get(doc, before + 2), "TENSOR_BACKEND_OUTPUT", "OUTPUT0",
                  "1.0,2.5,-3.0", "3", "FP32");
    assert_non_null(json_object_get(json_array_get(doc, before + 4), "timestamps"));
    expect_tensor(json_array_get(doc, before + 5), "TENSOR_QUEUE_INPUT", "INPUT0", "1.0", "1",
                  "FP32");
    expect_tensor(json_array_get(doc, before + 6), "TENSOR_BACKEND_OUTPUT", "OUTPUT0", "1.0", "1",
                  "FP32");
    json_decref(doc);
}

// Of a large tensor the beginning is written.
static void test_trace_large(void **state)
{
    enum { N = 70000 };
    static const char own[] = "/v2/models/ident/trace/setting";
    static char q[2 * N + 200];
    json_t *doc = load(-1);
    size_t before = json_array_size(doc);
    json_decref(doc);
    int n = snprintf(q, sizeof q,
                     "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%d],\"datatype\":\"FP32\","
                     "\"data\":[1",
                     N);
    for (int i = 1; i < N; i++) {
        n += snprintf(q + n, sizeof q - (size_t)n, ",1");
    }
    snprintf(q + n, sizeof q - (size_t)n, "]}]}");
    set(state, own, "{\"trace_level\":[\"TENSORS\"],\"trace_rate\":\"1\"}", 200, "trace_level",
        "TENSORS");
    infer(state, "ident", q, 200);
    set(state, own, "{\"trace_level\":null,\"trace_rate\":null}", 200, "trace_level", "OFF");
    doc = traces_of(-1, before + 3);
    const json_t *t = json_object_get(json_array_get(doc, before + 1), "tensor");
    const char *data = json_string_value(json_object_get(t, "data"));
    assert_int_equal(strlen(data), 4 * 65536 - 1 + 3);
    assert_string_equal(data + 4 * 65536 - 1, ",..");
    assert_string_equal(json_string_value(json_object_get(t, "shape")), "70000");
    json_decref(doc);
}

// expect_ids checks that a file is a JSON array of these traces.
static void expect_ids(const char *path, json_int_t first, json_int_t last, size_t n)
{
    json_t *doc = json_load_file(path, 0, NULL);
    assert_true(json_is_array(doc));
    assert_int_equal(json_array_size(doc), n);
    if (n > 0) {
        assert_int_equal(json_integer_value(json_object_get(json_array_get(doc, 0), "id")), first);
        assert_int_equal(json_integer_value(json_object_get(json_array_get(doc, n - 1), "id")),
                         last);
    }
    json_decref(doc);
}

// A write that has room for a part only leaves the file as it was before; later ones go on there.
static void test_trace_no_room(void **state)
{
    hth_trace_file *file;
    struct rlimit all, few;
    char path[64];
    snprintf(path, sizeof path, "%s-%d.room", trace_path, (int)getpid());
    hth_trace *t = calloc(1, sizeof *t);
    assert_non_null(t);
    snprintf(t->model, sizeof t->model, "m");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    assert_ok(hth_trace_file_open(path, &file));
    for (int i = 0; i < 6; i++) {
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        few = (struct rlimit){.rlim_cur = (rlim_t)st.st_size + 20, .rlim_max = all.rlim_max};
        t->id = (uint64_t)i;
        hth_trace_file_add(file, t);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, i % 2 == 0 ? &few : &all), 0);
        hth_trace_file_flush(file);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
        expect_ids(path, 1, i - (i % 2 == 0), (size_t)(i + 1) / 2);
    }
    hth_trace_file_close(file);
    expect_ids(path, 1, 5, 3);
    signal(SIGXFSZ, SIG_DFL);
    free(t);
}

static void unheard(void *ctx, const hth_log_record *record)
{
}

static void test_logging(void **state)
{
    hth_log_sink(unheard, NULL); // without one nothing is logged
    static const char path[] = "/v2/logging";
    set(state, path, "{\"log_info\":false,\"log_warning\":true}", 200, "log_format", "ISO8601");
    assert_false(hth_log_enabled(HTH_LEVEL_INFO, HTH_SUBSYS_STORE));
    assert_true(hth_log_enabled(HTH_LEVEL_WARN, HTH_SUBSYS_STORE));
    set(state, path, "{\"log_verbose_level\":2}", 200, "log_format", "ISO8601");
    assert_true(hth_log_enabled(HTH_LEVEL_DEBUG, HTH_SUBSYS_STORE));
    set(state, path, "{\"log_verbose_level\":0,\"log_info\":false}", 200, "log_format", "ISO8601");
    assert_false(hth_log_enabled(HTH_LEVEL_DEBUG, HTH_SUBSYS_STORE));
    set(state, path, "{\"log_info\":1}", 400, "error", "switches");
    set(state, path, "{\"log_file\":\"/tmp/x\"}", 501, "error", "log_file");
    set(state, path, "{\"log_format\":\"default\"}", 501, "error", "log_format");
    set(state, path, "{\"log_format\":\"ISO8601\",\"log_info\":true}", 200, "log_format",
        "ISO8601");
    assert_true(hth_log_enabled(HTH_LEVEL_INFO, HTH_SUBSYS_SERVER));
    assert_ok(hth_log_filter("warn"));
    hth_log_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace),       cmocka_unit_test(test_trace_settings),
        cmocka_unit_test(test_trace_rate),  cmocka_unit_test(test_trace_tensors),
        cmocka_unit_test(test_trace_large), cmocka_unit_test(test_trace_no_room),
        cmocka_unit_test(test_logging),
    };
    return cmocka_run_group_tests(tests, trace_setup, trace_teardown);
}
