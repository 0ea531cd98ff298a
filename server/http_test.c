// SPDX-License-Identifier: Apache-2.0
// Connections over HTTP, and what stands before an inference: several requests at once, metadata, a
// server that stops.
#include "tests/http_rig.h"

#include <jansson.h>

static void test_pipelined(void **state)
{
    static const char two[] = "GET /v2/models/batch/config HTTP/1.1\r\nHost: x\r\n\r\n"
                              "HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
                              "GET http://x/v2 HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = dial(port_of(state));
    push(fd, two, sizeof two - 1);
    reply a = pull(fd, true), b = pull(fd, false), c = pull(fd, true);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"max_batch_size\":4"));
    assert_non_null(strstr(a.body, "\"dims\":[3]"));
    assert_int_equal(b.status, 405);
    assert_int_equal(c.status, 200);
    assert_non_null(strstr(c.body, "\"name\":\"hearth\""));
    reply_free(&a);
    reply_free(&b);
    reply_free(&c);
    close(fd);
}

static void test_metadata(void **state)
{
    reply r = get(port_of(state), "/v2/models/batch");
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    json_t *want = json_pack(
        "{s:s, s:[s], s:s, s:[{s:s, s:s, s:[i, i]}], s:[{s:s, s:s, s:[i, i]}]}", "name", "batch",
        "versions", "1", "platform", "onnx_hearth", "inputs", "name", "INPUT0", "datatype", "FP32",
        "shape", -1, 3, "outputs", "name", "OUTPUT0", "datatype", "FP32", "shape", -1, 3);
    assert_true(json_equal(doc, want));
    json_decref(want);
    json_decref(doc);
    reply_free(&r);
}

static void test_stop(void **state)
{
    server_rig *f = *state;
    int idle = dial(f->port);
    hth_server_stop(f->server);
    char c;
    assert_true(recv(idle, &c, 1, 0) <= 0);
    close(idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
