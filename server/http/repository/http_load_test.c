// SPDX-License-Identifier: Apache-2.0
// Models that come with the request that loads them: served afterwards, or refused with nothing
// left behind.
#include "tests/rig/http_rig.h"

#include <jansson.h>

// load posts a configuration and, when `key` is not NULL, a file.
static reply load(void **state, const char *model, const char *config, const char *key,
                  const char *content)
{
    char path[300];
    json_t *parameters = json_pack("{s:s}", "config", config);
    snprintf(path, sizeof path, "/v2/repository/models/%s/load", model);
    if (key != NULL) {
        json_object_set_new(parameters, key, json_string(content));
    }
    json_t *doc = json_pack("{s:o}", "parameters", parameters);
    char *text = json_dumps(doc, 0);
    reply r = post(port_of(state), path, text, NULL, 0);
    free(text);
    json_decref(doc);
    return r;
}

static void load_says(void **state, const char *model, const char *config, const char *key,
                      const char *content, int status, const char *words)
{
    reply r = load(state, model, config, key, content);
    if (r.status != status || (status != 200 && strstr(r.body, words) == NULL)) {
        fail_msg("%s %s: status %d: %.*s", key != NULL ? key : "", config, r.status, (int)r.bytes,
                 r.body);
    }
    reply_free(&r);
}

// says asks and looks for words in the answer.
static void says(void **state, const char *path, int status, const char *words)
{
    reply r = get(port_of(state), path);
    if (r.status != status || strstr(r.body, words) == NULL) {
        fail_msg("%s: status %d: %.*s", path, r.status, (int)r.bytes, r.body);
    }
    reply_free(&r);
}

// census is what the store has: versions, and files below its folder.
static void census(void **state, int *versions, int *files)
{
    const server_rig *f = *state;
    char command[160];
    reply r = post(f->port, "/v2/repository/index", "{}", NULL, 0);
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    *versions = (int)json_array_size(doc);
    json_decref(doc);
    reply_free(&r);
    snprintf(command, sizeof command, "find '%s' -type f | wc -l", f->store);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%d", files), 1);
    pclose(p);
}

static void test_load(void **state)
{
    char *ident = file_base64("ident.onnx"), *batch = file_base64("batch.onnx");
    static const char q[] =
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[2],\"datatype\":\"FP32\",\"data\":[5,6]}]}";
    says(state, "/v2/models/fresh/ready", 404, "unknown model");
    load_says(state, "fresh",
              "{\"backend\":\"onnxruntime\",\"input\":[{\"name\":\"INPUT0\",\"data_type\":\"TYPE_"
              "FP32\",\"dims\":[-1]}]}",
              "file:1/model.onnx", ident, 200, "");
    reply r = post(port_of(state), "/v2/models/fresh/infer", q, NULL, 0);
    expect_200(&r);
    assert_non_null(strstr(r.body, "\"data\":[5.0,6.0]"));
    reply_free(&r);
    load_says(state, "fresh", "{\"name\":\"fresh\"}", "file:7/model.onnx", ident, 200, "");
    says(state, "/v2/models/fresh", 200, "\"versions\":[\"1\"]"); // the same: no new version
    load_says(state, "many", "{\"max_batch_size\":4}", "file:1/model.onnx", batch, 200, "");
    says(state, "/v2/models/many/config", 200, "\"max_batch_size\":4");
    load_says(state, "many", "{\"max_batch_size\":8}", NULL, NULL, 200, "");
    says(state, "/v2/models/many/config", 200, "\"max_batch_size\":8");
    // What it has already, or is not said, makes no version.
    static const char *const same[] = {"{\"max_batch_size\":8}", "{}", "{\"parameters\":{}}",
                                       "{\"dynamic_batching\":{}}"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        load_says(state, "many", same[i], NULL, NULL, 200, "");
        says(state, "/v2/models/many/config", 200, "\"max_batch_size\":8");
    }
    says(state, "/v2/models/many", 200, "\"versions\":[\"1\",\"2\"]");
    // Nor does a model's own configuration, with a limit, without one, and without a batch.
    load_says(state, "many", "{\"max_batch_size\":2147483647}", NULL, NULL, 200, "");
    static const char *const own[] = {"many", "fresh", "batch"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        char path[80];
        snprintf(path, sizeof path, "/v2/models/%s", own[i]);
        reply before = get(port_of(state), path);
        strcat(path, "/config");
        reply config = get(port_of(state), path);
        load_says(state, own[i], config.body, NULL, NULL, 200, "");
        says(state, path, 200, config.body);
        path[strlen(path) - strlen("/config")] = 0;
        says(state, path, 200, before.body);
        reply_free(&config);
        reply_free(&before);
    }
    free(ident);
    free(batch);
}

// What cannot be loaded leaves neither a version nor a byte.
static void test_refused(void **state)
{
    static const char file[] = "file:1/model.onnx";
    static const char *const names[] = {"file:/etc/passwd",
                                        "file:../model.onnx",
                                        "file:1/../model.onnx",
                                        "file:model.onnx",
                                        "file:1/model.onnx/x",
                                        "file:0/model.onnx",
                                        "file:1/sub/model.onnx",
                                        "file:01x/model.onnx",
                                        "file:99999999999/model.onnx",
                                        "file:",
                                        "file:1/model.py",
                                        "file:1//model.onnx"};
    char *ident = file_base64("ident.onnx"), *batch = file_base64("batch.onnx");
    char *junk = base64("hello, this is no model", 23);
    int versions, files, after, files_after;
    census(state, &versions, &files);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        load_says(state, "bad", "{}", names[i], ident, 400, "N/model.onnx");
    }
    load_says(state, "bad", "{}", file, junk, 400, "failed to load 'bad'");
    load_says(state, "bad", "{}", file, "a!b=", 400, "base64");
    load_says(state, "bad", "{}", file, "abc", 400, "base64");
    load_says(state, "bad", "{}", file, "YQ=a", 400, "base64");
    load_says(state, "bad", "{}", file, "", 400, "failed to load 'bad'");
    load_says(state, "bad", "{", file, ident, 400, "not a JSON object");
    load_says(state, "bad", "[]", file, ident, 400, "not a JSON object");
    load_says(state, "bad", "{\"foo\":1}", file, ident, 400, "no field 'foo'");
    load_says(state, "bad", "{\"name\":\"other\"}", file, ident, 400, "'other'");
    load_says(state, "bad", "{\"backend\":\"python\"}", file, ident, 400, "'python'");
    load_says(state, "bad", "{\"sequence_batching\":{}}", file, ident, 400, "is not supported");
    load_says(state, "bad", "{\"max_batch_size\":-1}", file, ident, 400, "max_batch_size");
    load_says(state, "bad", "{\"max_batch_size\":\"4\"}", file, ident, 400, "max_batch_size");
    load_says(state, "bad", "{\"input\":[{\"name\":\"X\",\"data_type\":\"TYPE_FP32\"}]}", file,
              ident, 400, "no input 'X'");
    load_says(state, "bad", "{\"output\":[{\"name\":\"OUTPUT0\",\"data_type\":\"TYPE_INT8\"}]}",
              file, ident, 400, "TYPE_INT8");
    load_says(state, "bad",
              "{\"max_batch_size\":4,\"input\":[{\"name\":\"INPUT0\",\"data_type\":\"TYPE_FP32\","
              "\"dims\":[5]}]}",
              file, batch, 400, "dims");
    load_says(state, "..", "{}", file, ident, 400, "failed to load '..'");
    load_says(state, "nobody", "{}", NULL, NULL, 500, "failed to poll");
    assert_ok(hth_setting_set("limits.upload_bytes", "64B"));
    load_says(state, "bad", "{}", file, ident, 413, "limits.upload_bytes");
    assert_ok(hth_setting_set("limits.upload_bytes", "256MiB"));
    census(state, &after, &files_after);
    assert_int_equal(after, versions);
    assert_int_equal(files_after, files);
    says(state, "/v2/models/bad/ready", 404, "unknown model");
    free(ident);
    free(batch);
    free(junk);
}

// answered asks a model over HTTP for an inference.
static int answered(void **state, const char *model)
{
    char path[80];
    snprintf(path, sizeof path, "/v2/models/%s/infer", model);
    reply r = post(port_of(state), path,
                   "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[2],\"datatype\":\"FP32\",\"data\":"
                   "[5,6]}]}",
                   NULL, 0);
    int status = r.status;
    reply_free(&r);
    return status;
}

// What a refusal says of the model is so: it has a version that answers, or it has none.
static void test_still(void **state)
{
    static const char file[] = "file:1/model.onnx", none[] = "'still', no version is available: ";
    static const char tf32[] = "{\"parameters\":{\"precision\":{\"string_value\":\"tf32\"}}}";
    char *ident = file_base64("ident.onnx"), *junk = base64("hello, this is no model", 23);
    load_says(state, "still", "{}", file, junk, 400, none);
    load_says(state, "still", tf32, file, ident, 400, none);
    load_says(state, "still", "{}", file, ident, 200, "");
    for (int i = 0; i < 2; i++) {
        load_says(state, "still", "{}", file, junk, 400, "failed to load 'still': not an O");
        load_says(state, "still", "{\"foo\":1}", NULL, NULL, 400,
                  "failed to load 'still': a model c");
        load_says(state, "still", tf32, NULL, NULL, 400, "failed to load 'still': ");
        assert_int_equal(answered(state, "still"), 200);
    }
    reply r = post(port_of(state), "/v2/repository/models/still/unload", "", NULL, 0);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    load_says(state, "still", "{}", file, junk, 400, none);
    assert_int_equal(answered(state, "still"), 404);
    free(ident);
    free(junk);
}

// Of several files the last one is the second: nothing of the first stays.
static void test_second_refused(void **state)
{
    char *ident = file_base64("ident.onnx"), *text;
    int versions, files, after, files_after;
    census(state, &versions, &files);
    json_t *doc = json_pack("{s:{s:s, s:s, s:s}}", "parameters", "config", "{}",
                            "file:2/model.onnx", "AAAA", "file:1/model.onnx", ident);
    text = json_dumps(doc, 0);
    reply r = post(port_of(state), "/v2/repository/models/pair/load", text, NULL, 0);
    assert_int_equal(r.status, 400);
    census(state, &after, &files_after);
    assert_int_equal(after, versions);
    assert_int_equal(files_after, files);
    reply_free(&r);
    free(text);
    json_decref(doc);
    free(ident);
}

// How its requests wait comes with a model, too, and is checked.
static void test_batching(void **state)
{
    static const char *const config =
        "{\"dynamic_batching\":{\"preferred_batch_size\":[2,4],\"max_queue_delay_microseconds\":"
        "70,\"default_queue_policy\":{\"default_timeout_microseconds\":5000,\"max_queue_size\":9}}"
        "}";
    load_says(state, "batch", config, NULL, NULL, 200, "");
    says(state, "/v2/models/batch/config", 200, "\"preferred_batch_size\":[2,4]");
    says(state, "/v2/models/batch/config", 200, "\"max_queue_delay_microseconds\":70");
    says(state, "/v2/models/batch/config", 200, "\"default_timeout_microseconds\":5000");
    says(state, "/v2/models/batch/config", 200, "\"max_queue_size\":9");
    load_says(state, "batch", "{\"dynamic_batching\":{\"preferred_batch_size\":[0]}}", NULL, NULL,
              400, "preferred batch size");
    load_says(state, "batch", "{\"dynamic_batching\":7}", NULL, NULL, 400, "not an object");
    // What is not done is refused, and so is what does not exist.
    static const char *const bad[][2] = {
        {"\"preserve_ordering\":true", "'preserve_ordering' is always false"},
        {"\"priority_queue_policy\":{\"1\":{}}", "'priority_queue_policy' is always {}"},
        {"\"nonsense\":1", "no field 'nonsense'"},
        {"\"default_queue_policy\":{\"timeout_action\":\"DELAY\"}", "'timeout_action' is always"},
        {"\"default_queue_policy\":{\"what\":[]}", "no field 'what'"},
        {"\"default_queue_policy\":{\"max_queue_size\":-1}", "queue is a whole number"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[160];
        snprintf(text, sizeof text, "{\"dynamic_batching\":{%s}}", bad[i][0]);
        load_says(state, "batch", text, NULL, NULL, 400, bad[i][1]);
    }
    says(state, "/v2/models/batch/config", 200, "\"preferred_batch_size\":[2,4]");
    says(state, "/v2/models/batch/config", 200, "\"max_batch_size\":4");
    // 0 is the server's setting again; what is not said stays.
    load_says(state, "batch",
              "{\"dynamic_batching\":{\"max_queue_delay_microseconds\":0,"
              "\"default_queue_policy\":{\"max_queue_size\":0}}}",
              NULL, NULL, 200, "");
    says(state, "/v2/models/batch/config", 200, "\"max_queue_delay_microseconds\":0");
    says(state, "/v2/models/batch/config", 200, "\"max_queue_size\":0");
    says(state, "/v2/models/batch/config", 200, "\"default_timeout_microseconds\":5000");
}

// In what a model computes comes with it, too; what the device cannot do is refused and undone.
static void test_precision(void **state)
{
    static const char *const fp32 = "{\"parameters\":{\"precision\":{\"string_value\":\"fp32\"}}}";
    static const char *const tf32 = "{\"parameters\":{\"precision\":{\"string_value\":\"tf32\"}}}";
    static const char *const fp8 = "{\"parameters\":{\"precision\":{\"string_value\":\"fp8\"}}}";
    load_says(state, "batch", fp32, NULL, NULL, 200, "");
    says(state, "/v2/models/batch/config", 200, "\"precision\":{\"string_value\":\"fp32\"}");
    load_says(state, "batch", tf32, NULL, NULL, 400, "fp32 only");
    says(state, "/v2/models/batch/config", 200, "\"precision\":{\"string_value\":\"fp32\"}");
    load_says(state, "batch", fp8, NULL, NULL, 400, "not one of fp32, tf32, bf16");
    load_says(state, "batch", "{\"parameters\":{\"precision\":{}}}", NULL, NULL, 400,
              "no 'string_value'");
}

// A store that has lost a model's tensors is the server's fault, not its client's. The last test.
static void test_damaged(void **state)
{
    const server_rig *f = *state;
    char command[160], *mobile = file_base64("../train/mobile_adam.onnx");
    assert_ok(hth_setting_set("store.inline_bytes", "0"));
    load_says(state, "lost", "{}", "file:1/model.onnx", mobile, 200, "");
    free(mobile);
    reply r = post(f->port, "/v2/repository/models/lost/unload", "", NULL, 0);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    snprintf(command, sizeof command, "find '%s/tensors' -type f -delete", f->store);
    assert_int_equal(system(command), 0);
    load_says(state, "lost", "{}", NULL, NULL, 500, "is missing");
    load_says(state, "lost", "{\"max_batch_size\":3}", NULL, NULL, 500, "is missing");
    r = post(f->port, "/v2/repository/models/lost/load", "", NULL, 0);
    assert_int_equal(r.status, 500);
    assert_non_null(strstr(r.body, "is missing"));
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),           cmocka_unit_test(test_batching),
        cmocka_unit_test(test_precision),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_second_refused), cmocka_unit_test(test_still),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
