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

// undated is an answer's head with every digit of its date the same.
static char *undated(reply *r)
{
    for (char *p = (char *)header(r, "Date"); p != NULL && *p != '\r'; p++) {
        *p = '.';
    }
    return r->head;
}

// A health check is answered alike whether or not its head has something that sends it through
// evhttp, one connection after the other and in any order.
static void test_health(void **state)
{
    static const char *const more[] = {"", "X-Other: 1\r\n", "user-agent: x\r\naccept: */*\r\n"};
    char q[160];
    int fd = dial(port_of(state));
    for (int i = 0; i < 12; i++) {
        int n = snprintf(q, sizeof q, "GET /v2/health/%s HTTP/1.1\r\nHost: x\r\n%s\r\n",
                         i % 2 == 0 ? "live" : "ready", more[i % 3]);
        push(fd, q, (size_t)(i < 6 ? n : 20));
        if (i >= 6) { // in two pieces
            usleep(2000);
            push(fd, q + 20, (size_t)n - 20);
        }
        reply r = pull(fd, true);
        assert_string_equal(undated(&r),
                            "HTTP/1.1 200 OK\r\nDate: .............................\r\n"
                            "Content-Length: 0\r\n\r\n");
        reply_free(&r);
    }
    close(fd);
}

typedef struct health_case {
    const char *request;
    int status, next; // next: of a request behind it, on the same connection; 0: it is closed
} health_case;

// What is not just a health check is answered as any other request, and what follows it is found.
static void test_health_else(void **state)
{
    static const char live[] = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    static const health_case c[] = {
        {"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200, 0},
        {"GET /v2/health/live HTTP/1.0\r\nHost: x\r\n\r\n", 200, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde", 200, 200},
        {"GET /v2/health/live HTTP/1.1\nHost: x\n\n", 200, 200},
        {"GET /v2/health/lively HTTP/1.1\r\nHost: x\r\n\r\n", 404, 200},
        {"GET /v2/health/live?x HTTP/1.1\r\nHost: x\r\n\r\n", 200, 200},
        {"POST /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", 405, 200},
        {"GET /v2/health/live HTTP/1.1\r\nno header\r\n\r\n", 400, 0},
        // a body that looks like one
        {"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 41\r\n\r\n"
         "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
         400, 200},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        const char *body = strstr(c[i].request, "\r\n\r\n");
        size_t n = strlen(c[i].request),
               first = body != NULL ? (size_t)(body + 4 - c[i].request) : n;
        int fd = dial(port_of(state));
        push(fd, c[i].request, first);
        usleep(5000); // the rest comes by itself
        push(fd, c[i].request + first, n - first);
        reply r = pull(fd, true);
        assert_int_equal(r.status, c[i].status);
        push(fd, live, sizeof live - 1);
        reply next = pull(fd, true);
        assert_int_equal(next.status, c[i].next);
        reply_free(&r);
        reply_free(&next);
        close(fd);
    }
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

// Batches of two inputs that differ are told as such: each by itself fits.
static void test_batches(void **state)
{
    static const char json[] =
        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1,3],\"datatype\":\"FP32\",\"data\":[1,2,3]},"
        "{\"name\":\"INPUT1\",\"shape\":[2,3],\"datatype\":\"FP32\",\"data\":[1,2,3,4,5,6]}]}";
    reply r = post(port_of(state), "/v2/models/batch2/infer", json, NULL, 0);
    assert_int_equal(r.status, 400);
    assert_non_null(
        strstr(r.body, "input 'INPUT1' batch size does not match other inputs for 'batch2'"));
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
        cmocka_unit_test(test_metadata), cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_health),   cmocka_unit_test(test_health_else),
        cmocka_unit_test(test_batches),  cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
