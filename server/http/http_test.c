// SPDX-License-Identifier: Apache-2.0
// Connections over HTTP, and what stands before an inference: several requests at once, metadata, a
// server that stops.
#include "tests/rig/http_rig.h"

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
    assert_int_equal(b.status, 200);
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

// A health check is answered alike whatever else its head has,
// one connection after the other and in any order.
static void test_health(void **state)
{
    static const char *const more[] = {"", "X-Other: 1\r\n", "user-agent: x\r\naccept: */*\r\n"};
    static const char live[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                               "Date: .............................\r\nContent-Length: 13\r\n\r\n",
                      ready[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                "Date: .............................\r\nContent-Length: 14\r\n\r\n";
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
        assert_string_equal(undated(&r), i % 2 == 0 ? live : ready);
        assert_string_equal(r.body, i % 2 == 0 ? "{\"live\":true}" : "{\"ready\":true}");
        reply_free(&r);
    }
    close(fd);
}

typedef struct health_case {
    const char *request;
    int status, next; // next: of a request after it, on the same connection; 0: it is closed
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

// An answer's version is the server's highest, or the client's, where that is lower.
static void test_version(void **state)
{
    static const struct {
        const char *asked, *answered;
    } c[] = {{"1.2", "HTTP/1.1 200"},
             {"1.1", "HTTP/1.1 200"},
             {"1.9", "HTTP/1.1 200"},
             {"1.0", "HTTP/1.0 200"}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        char q[100];
        int n = snprintf(q, sizeof q, "GET /v2 HTTP/%s\r\nHost: x\r\n\r\n", c[i].asked);
        reply r = ask(port_of(state), q, (size_t)n, true);
        assert_memory_equal(r.head, c[i].answered, 12);
        reply_free(&r);
    }
}

// A name in the path is what its bytes say: a region may have a slash in its name, and what is no
// text names no model.
static void test_names(void **state)
{
    static const struct {
        const char *path, *json, *words;
        int status;
    } c[] = {
        {"/v2/systemsharedmemory/region/a%2Fb/register", "{\"key\":\"/none\",\"byte_size\":4}",
         "Unable to open shared memory region: '/none'", 500},
        {"/v2/systemsharedmemory/region/a%3Ab/register", "{}", "Unable to parse the region", 400},
        {"/v2/systemsharedmemory/region/a%ff/register", "{\"key\":\"/none\",\"byte_size\":4}",
         "the name 'a?' in the path is not UTF-8", 400},
        {"/v2/systemsharedmemory/region/a%2Fb/unregister", "", "", 200},
        {"/v2/repository/models/a%ff/load", "", "Request for unknown model: 'a?' is not found",
         404},
        {"/v2/repository/models/a%ff/unload", "", "Request for unknown model: 'a?' is not found",
         404},
        {"/v2/models/a%2Fb/infer", "{}", "Request for unknown model: 'a/b' is not found", 404},
        {"/v2/models/batch/infer", "{\"id\":\"a\\u0000b\",\"inputs\":[]}",
         "JSON buffer: \\\\u0000 is not allowed (at byte", 400},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        reply r = post(port_of(state), c[i].path, c[i].json, NULL, 0);
        assert_int_equal(r.status, c[i].status);
        if (strstr(r.body, c[i].words) == NULL) {
            fail_msg("%s: %s", c[i].path, r.body);
        }
        reply_free(&r);
    }
    reply r = get(port_of(state), "/v2/systemsharedmemory/region/a%2Fb/status");
    assert_non_null(strstr(r.body, "Unable to find system shared memory region: 'a/b'"));
    reply_free(&r);
}

static void test_metadata(void **state)
{
    reply r = get(port_of(state), "/v2/models/batch");
    json_t *doc = json_loadb(r.body, r.bytes, 0, NULL);
    json_t *want =
        json_pack("{s:s, s:[s], s:s, s:[{s:s, s:s, s:[i, i]}], s:[{s:s, s:s, s:[i, i]}], s:{s:b}}",
                  "name", "batch", "versions", "1", "platform", "onnx_hearth", "inputs", "name",
                  "INPUT0", "datatype", "FP32", "shape", -1, 3, "outputs", "name", "OUTPUT0",
                  "datatype", "FP32", "shape", -1, 3, "parameters", "independent", 1);
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
        cmocka_unit_test(test_version),  cmocka_unit_test(test_names),
        cmocka_unit_test(test_batches),  cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
