// SPDX-License-Identifier: Apache-2.0
// What RFC 9110 and 9112 have every server do: hosts, empty lines in front of a request, heads that
// others read differently, HEAD, and the fields that every answer has.
#include "tests/rig/http_rig.h"

#include <jansson.h>

#define LIVE "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"

typedef struct rfc_case {
    const char *request;
    int status, next; // next: of a request after it, on the same connection; 0: it is closed
} rfc_case;

static void expect_case(int port, const rfc_case *c)
{
    int fd = dial(port);
    push(fd, c->request, strlen(c->request));
    reply r = pull(fd, true);
    if (r.status != c->status) {
        fail_msg("%.300s: status %d instead of %d", c->request, r.status, c->status);
    }
    if (r.status == 400) {
        assert_non_null(strstr(r.body, "{\"error\":\""));
    }
    push(fd, LIVE, sizeof LIVE - 1);
    reply next = pull(fd, true);
    if (next.status != c->next) {
        fail_msg("after %.300s: status %d instead of %d", c->request, next.status, c->next);
    }
    reply_free(&r);
    reply_free(&next);
    close(fd);
}

// HTTP/1.1 needs one Host header whose value is a host; a health check, too, is nobody's without.
static void test_hosts(void **state)
{
    static const rfc_case c[] = {
        {"GET /v2/health/live HTTP/1.1\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nAccept: */*\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nX: y\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.0\r\n\r\n", 200, 0}, // which knows of no Host
        {"GET /v2/health/live HTTP/1.1\r\nHost: a b\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: a:b\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: a:1:2\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: []\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: [x.example]\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: caf\xe9\r\n\r\n", 400, 0},
        {"POST /v2/models/ident/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, 0},
        {"POST /v2/models/ident/infer HTTP/1.1\r\nHost: a\r\nHost: b\r\n"
         "Content-Length: 1000000\r\n\r\n",
         400, 0}, // before the body has come
        {"GET http:///v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400, 0},
        {"GET http://a@b/v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nHost:\r\n\r\n", 200, 200},
        {"GET /v2 HTTP/1.1\r\nHost:\tx-1_z~ \t\r\n\r\n", 200, 200},
        {"GET /v2/health/live HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", 200, 200},
        {"GET /v2/health/live HTTP/1.1\r\nhost: 127.0.0.1:\r\n\r\n", 200, 200},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        expect_case(port_of(state), &c[i]);
    }
    for (int n = 255; n <= 300; n += 15) { // no name in DNS is longer than the first
        for (int slow = 0; slow < 2; slow++) {
            char q[600];
            snprintf(q, sizeof q, "GET /v2/health/live HTTP/1.1\r\nHost: %0*d\r\n%s\r\n", n, 0,
                     slow ? "X: y\r\n" : "");
            expect_case(port_of(state), &(rfc_case){q, n == 255 ? 200 : 400, n == 255 ? 200 : 0});
        }
    }
}

// The host in a target counts, whatever the header says: rights depend on it.
static void test_target_host(void **state)
{
    static const rfc_case c[] = {
        {"GET http://x/v2 HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200, 0},
        {"GET http://127.0.0.1:1/v2 HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200, 0},
        {"GET http://evil.example/v2 HTTP/1.1\r\nHost: x\r\n\r\n", 403, 0},
        {"GET http://evil.example:80/v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 403, 0},
        {"POST http://evil.example/v2/models/ident/infer HTTP/1.1\r\nHost: x\r\n"
         "Content-Length: 1000000\r\n\r\n",
         403, 0},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        expect_case(port_of(state), &c[i]);
    }
}

// Heads that begin with an empty line, and those that others could read differently.
static void test_heads(void **state)
{
    static const rfc_case c[] = {
        {"\r\n" LIVE, 200, 200},
        {"\r\n\r\n" LIVE, 200, 200},
        {"\n" LIVE, 200, 200},
        {"\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 200, 200},
        {"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n" LIVE, 400, 0},
        {"\r\r\n" LIVE, 400, 0},
        {" " LIVE, 400, 0},
        {"\t" LIVE, 400, 0},
        // a body with an empty line after it, as old clients send it
        {"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}\r\n", 200,
         200},
        {"GET /v2  HTTP/1.1\r\nHost: x\r\n\r\n", 400, 0},
        {"GET  /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400, 0},
        {"GET /v2 /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 400, 0},
        {"GET /v2\r/x HTTP/1.1\r\nHost: x\r\n\r\n", 400, 0},
        {"GET /v2?\x7f HTTP/1.1\r\nHost: x\r\n\r\n", 400, 0},
        {"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nAccept: a\r\n b\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nHost: x\r\nA: a\r\n\tb\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nHost: x\r\nA: a\r\n \r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nHost: x\r\nF\xff: x\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nHost: x\r\n(F): x\r\n\r\n", 400, 0},
        {"GET /v2 HTTP/1.1\r\nHost: x\r\nA_b.c!#$%&'*+^`|~: x\r\n\r\n", 200, 200},
        // HTTP/1.0 knows no Expect: it is not answered
        {"GET /v2 HTTP/1.0\r\nExpect: 100-continue\r\n\r\n", 200, 0},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        expect_case(port_of(state), &c[i]);
    }
}

// A header that rights or lengths hang on comes once: two readers could take a different one.
static void test_twice(void **state)
{
    static const char *const once[] = {"Authorization: Bearer a", "Origin: http://x",
                                       "Content-Encoding: gzip",
                                       "Inference-Header-Content-Length: 2"};
    char q[400];
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++) {
        for (int large = 0; large < 2; large++) { // .. of which the head comes before the body
            char lower[64];
            snprintf(lower, sizeof lower, "%s", once[i]);
            lower[0] |= 32;
            snprintf(q, sizeof q,
                     "POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n%s\r\nA: b\r\n%s\r\n"
                     "Content-Length: %d\r\n\r\n%s",
                     once[i], lower, large ? 1000000 : 2, large ? "" : "{}");
            expect_case(port_of(state), &(rfc_case){q, 400, 0});
        }
    }
}

// An empty line, in pieces, between two requests; the connection waits as if it had not come.
static void test_empty_line(void **state)
{
    static const char q[] = "\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = dial(port_of(state));
    for (int cut = 1; cut < 5; cut++) {
        push(fd, q, (size_t)cut);
        usleep(2000); // the rest comes by itself
        push(fd, q + cut, sizeof q - 1 - (size_t)cut);
        reply r = pull(fd, true);
        expect_200(&r);
        reply_free(&r);
    }
    close(fd);
}

// dots hides the digits of an answer's date: another second.
static char *dots(reply *r)
{
    for (char *p = (char *)header(r, "Date"); p != NULL && *p != '\r'; p++) {
        *p = '.';
    }
    return r->head;
}

// A HEAD is answered with the head of the GET, errors too, and the next request is found after it.
static void test_head(void **state)
{
    static const char *const paths[] = {
        "/v2/health/live", "/v2/health/ready",    "/v2",           "/",
        "/v2/models/m",    "/v2/models/m/config", "/v2/models/mm", "/v2/models/m/ready",
        "/v2/nothing",     "/v2/models/m/infer"};
    char q[200];
    int fd = dial(port_of(state));
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        for (int packed = 0; packed < 2; packed++) {
            const char *accept = packed ? "Accept-Encoding: gzip\r\n" : "";
            int n = snprintf(q, sizeof q, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", paths[i], accept);
            push(fd, q, (size_t)n);
            reply got = pull(fd, true);
            n = snprintf(q, sizeof q, "HEAD %s HTTP/1.1\r\nHost: x\r\n%s\r\n", paths[i], accept);
            push(fd, q, (size_t)n);
            reply head = pull(fd, false);
            assert_true(got.bytes > 0);
            assert_string_equal(dots(&head), dots(&got));
            reply_free(&got);
            reply_free(&head);
        }
    }
    close(fd);
    reply old = ask(port_of(state), "HEAD /v2/health/live HTTP/1.0\r\n\r\n", 33, false);
    assert_int_equal(old.status, 200);
    assert_memory_equal(header(&old, "Content-Length"), "13\r", 3);
    reply_free(&old);
    static const char metrics[] = "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    reply m = ask(((server_rig *)*state)->metrics_port, metrics, sizeof metrics - 1, false);
    assert_int_equal(m.status, 200);
    assert_true(atoi(header(&m, "Content-Length")) > 1000);
    reply_free(&m);
}

// What the protocol says of health, on each way that an answer goes.
static void test_health_bodies(void **state)
{
    static const struct {
        const char *request, *body;
    } c[] = {
        {"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", "{\"live\":true}"},
        {"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nX: y\r\n\r\n", "{\"live\":true}"},
        {"GET /v2/health/live HTTP/1.0\r\n\r\n", "{\"live\":true}"},
        {"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n", "{\"ready\":true}"},
        {"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nX: y\r\n\r\n", "{\"ready\":true}"},
        {"GET /v2/models/m/ready HTTP/1.1\r\nHost: x\r\n\r\n", "{\"name\":\"m\",\"ready\":true}"},
        {"GET /v2/models/m/versions/1/ready HTTP/1.1\r\nHost: x\r\n\r\n",
         "{\"name\":\"m\",\"ready\":true}"},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        reply r = ask(port_of(state), c[i].request, strlen(c[i].request), true);
        expect_200(&r);
        assert_string_equal(r.body, c[i].body);
        assert_memory_equal(header(&r, "Content-Type"), "application/json\r", 17);
        reply_free(&r);
    }
}

// Whoever makes an answer, this server or libevent: errors say when, and a 405 what is served.
static void test_fields(void **state)
{
    static const struct {
        const char *request;
        int status;
        const char *allow;
    } c[] = {
        {"GET /v2/nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404, NULL},
        {"nonsense\r\n\r\n", 400, NULL},
        {"GET /v2 HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n", 400, NULL},
        {"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413,
         NULL},
        {"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
         400, NULL},
        {"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405, "GET, HEAD\r"},
        {"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", 405, "GET, HEAD\r"},
        {"GET /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n\r\n", 405, "POST\r"},
        {"PUT /v2/models/m/versions/1/infer HTTP/1.1\r\nHost: x\r\n\r\n", 405, "POST\r"},
        {"DELETE /v2/logging HTTP/1.1\r\nHost: x\r\n\r\n", 405, "GET, HEAD, POST\r"},
        {"FOO /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", 405, "GET, HEAD, POST, PUT, DELETE\r"},
        {"POST /v2/hearth/datasets/d HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405,
         "PUT, DELETE\r"},
        {"PUT /v2/hearth/tensors/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 8388609\r\n\r\n", 413,
         NULL},
        {"DELETE /v2/hearth/datasets/d HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n", 403,
         NULL}, // without tokens
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        reply r = ask(port_of(state), c[i].request, strlen(c[i].request), true);
        assert_int_equal(r.status, c[i].status);
        if (header(&r, "Date") == NULL) {
            fail_msg("no Date: %s", c[i].request);
        }
        const char *allow = header(&r, "Allow");
        if (c[i].allow != NULL &&
            (allow == NULL || strncmp(allow, c[i].allow, strlen(c[i].allow)) != 0)) {
            fail_msg("not %s: %s", c[i].allow, r.head);
        }
        reply_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),         cmocka_unit_test(test_target_host),
        cmocka_unit_test(test_heads),         cmocka_unit_test(test_twice),
        cmocka_unit_test(test_empty_line),    cmocka_unit_test(test_head),
        cmocka_unit_test(test_health_bodies), cmocka_unit_test(test_fields),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
