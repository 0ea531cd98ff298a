// SPDX-License-Identifier: Apache-2.0
// Heads: what one says, what is refused because a proxy in front could read it differently, and
// that nothing depends on the pieces in which a request comes.
#include "server/http/http_head.h"
#include "tests/rig/http_rig.h"

// ---- the parser by itself

// head_of reads a head that must be whole where it ends, and not before, in pieces of any size.
static const char *head_of(const char *text, char *copy, hth_http_head *out)
{
    size_t n = strlen(text);
    for (size_t piece = 1; piece <= n; piece++) {
        size_t seen = 0, end = 0;
        for (size_t come = piece; end == 0 && come < n; come += piece) {
            end = hth_http_head_end(text, come, &seen);
            assert_int_equal(end, 0);
        }
        assert_int_equal(hth_http_head_end(text, n, &seen), n);
    }
    memcpy(copy, text, n);
    return hth_http_head_read(copy, n, out);
}

static void test_read(void **state)
{
    char text[600];
    hth_http_head d;
    assert_null(head_of("POST http://[::1]:80/v2/models/a?b#c HTTP/1.7\r\nhost: x\r\n"
                        "Authorization:  Bearer t \r\nCONTENT-LENGTH: 007\r\nX-Forwarded-For:\r\n"
                        "Accept-Encoding: gzip\r\nExpect: 100-Continue\r\n\r\n",
                        text, &d));
    assert_int_equal(d.verb, HTH_VERB_POST);
    assert_int_equal(d.minor, 1);
    assert_string_equal(d.path, "/v2/models/a");
    assert_string_equal(d.query, "b");
    assert_null(d.range);
    assert_int_equal(d.host_bytes, 8);
    assert_memory_equal(d.host, "[::1]:80", 8);
    assert_string_equal(d.authorization, "Bearer t");
    assert_string_equal(d.accept_encoding, "gzip");
    assert_true(d.sized && d.length == 7 && !d.chunked && d.forwarded && d.absolute && !d.keep);
    assert_int_equal(d.expect, HTH_EXPECT_CONTINUE);
    assert_null(d.origin);

    assert_null(head_of("GET / HTTP/1.0\nConnection: x, Keep-Alive\n\n", text, &d));
    assert_true(d.keep && d.minor == 0 && d.host == NULL && !d.sized);
    assert_null(head_of("GET / HTTP/1.0\r\n\r\n", text, &d));
    assert_false(d.keep);
    assert_null(head_of("GET / HTTP/1.1\r\nHost:x\r\nConnection: TE,close\r\n\r\n", text, &d));
    assert_false(d.keep);
    assert_null(head_of("FOO / HTTP/1.1\r\nHost:x\r\n\r\n", text, &d));
    assert_int_equal(d.verb, HTH_VERB_UNKNOWN);
    assert_null(
        head_of("POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: Chunked\r\n\r\n", text, &d));
    assert_true(d.chunked && d.keep && d.host_bytes == 0);
    assert_null(head_of("POST / HTTP/1.1\r\nHost:\r\nContent-Length: 99999999999999999999\r\n\r\n",
                        text, &d));
    assert_true(d.length == UINT64_MAX);
}

static void test_read_ranges(void **state)
{
    char text[600];
    hth_http_head d;
    assert_null(head_of("PUT /t?a=1?&b#c?d HTTP/1.1\r\nHost: x\r\nContent-Range: bytes 0-1/2\r\n"
                        "range: bytes=4-\r\nRANGE: bytes=5-\r\nLast-Event-ID: 7\r\n\r\n",
                        text, &d));
    assert_int_equal(d.verb, HTH_VERB_PUT);
    assert_string_equal(d.path, "/t");
    assert_string_equal(d.query, "a=1?&b");
    assert_string_equal(d.content_range, "bytes 0-1/2");
    assert_string_equal(d.range, "bytes=4-");
    assert_string_equal(d.last_event, "7");
    assert_null(head_of("DELETE /t#a?b HTTP/1.1\r\nHost: x\r\n\r\n", text, &d));
    assert_int_equal(d.verb, HTH_VERB_DELETE);
    assert_null(d.query);
    assert_null(head_of("GET ?a HTTP/1.1\r\nHost: x\r\n\r\n", text, &d));
    assert_string_equal(d.query, "a");
    assert_non_null(strstr(head_of("PUT / HTTP/1.1\r\nHost: x\r\nContent-Range: a\r\n"
                                   "Content-Range: a\r\n\r\n",
                                   text, &d),
                           "more than one Content-Range"));
}

// ---- the server

#define HOST  "Host: x\r\n"
#define INFER "POST /v2/models/ident/infer HTTP/1.1\r\n" HOST
#define LIVE  "GET /v2/health/live HTTP/1.1\r\n" HOST "\r\n"
#define LAST  "GET /v2/health/live HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"
#define JSON                                                                                       \
    "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[3],\"datatype\":\"FP32\",\"data\":[1,2,3]}]}"

// answers returns all that comes until the connection ends, without the digits of dates; malloc'd.
static char *answers(int fd)
{
    size_t n = 0, cap = 1 << 16;
    char *text = calloc(1, cap);
    for (ssize_t got; (got = recv(fd, text + n, cap - 1 - n, 0)) > 0;) {
        n += (size_t)got;
    }
    for (char *p = text; (p = strstr(p, "Date: ")) != NULL;) {
        while (*p != '\r') {
            *p++ = '.';
        }
    }
    close(fd);
    return text;
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)) != NULL; text++) {
        n++;
    }
    return n;
}

// settle returns when the server has taken what was sent before: it takes this later.
static void settle(int other)
{
    push(other, LIVE, sizeof LIVE - 1);
    reply r = pull(other, true);
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

typedef struct stream {
    const char *text;
    int ok, bad; // answers with 200, and with 400
} stream;

static const stream streams[] = {
    {LIVE "\r\n" LIVE LAST, 3, 0},
    {"GET /v2 HTTP/1.1\nHost: x\n\n" LAST, 2, 0},
    {INFER "Content-Length: 75\r\n\r\n" JSON "\r\n" LAST, 2, 0},
    {INFER
     "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\n{\"inp\r\n46 ;c\r\nuts\":[{\"name\":"
     "\"INPUT0\",\"shape\":[3],\"datatype\":\"FP32\",\"data\":[1,2,3]}]}\r\n0\r\nX: y\r\n\r\n" LAST,
     2, 0},
    {INFER "Expect: 100-continue\r\nContent-Length: 75\r\n\r\n" JSON LAST, 2, 0},
    {INFER "Inference-Header-Content-Length: 3\r\nContent-Length: 3\r\n\r\n{ }" LAST, 1, 1},
    {LIVE INFER "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n" LAST, 1, 1},
    {LIVE INFER "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc" LAST, 1, 1},
    {"HEAD /v2 HTTP/1.1\r\n" HOST "\r\n" LAST, 2, 0},
    {"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /v2 HTTP/1.0\r\n\r\n", 2, 0},
};

// Cut at any place, and byte by byte, a stream gets the answers that it gets as a whole.
static void test_split(void **state)
{
    int other = dial(port_of(state));
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        const char *text = streams[i].text;
        size_t n = strlen(text);
        int fd = dial(port_of(state));
        push(fd, text, n);
        char *whole = answers(fd);
        if (count(whole, " 200 OK\r\n") != streams[i].ok ||
            count(whole, " 400 ") != streams[i].bad) {
            fail_msg("%.100s: %s", text, whole);
        }
        for (size_t cut = 0; cut < n; cut++) { // 0: all of them
            fd = dial(port_of(state));
            for (size_t at = 0; at < n;) {
                size_t some = at == 0 ? cut : n - at;
                some = cut == 0 ? 1 : some;
                push(fd, text + at, some);
                at += some;
                if (at < n) {
                    settle(other);
                }
            }
            char *split = answers(fd);
            if (strcmp(split, whole) != 0) {
                fail_msg("%.100s, cut at %zu: %s\ninstead of %s", text, cut, split, whole);
            }
            free(split);
        }
        free(whole);
    }
    close(other);
}

// What two readers could take for different requests is none: 400, once, and the connection ends.
static void test_ambiguous(void **state)
{
    static const char *const head[] = {
        INFER "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
        INFER "Content-Length: 4\r\nContent-Length: 5\r\n\r\n",
        INFER "Content-Length: 4\r\nContent-Length: 4\r\n\r\n",
        INFER "Content-Length: 4, 4\r\n\r\n",
        INFER "Content-Length: +4\r\n\r\n",
        INFER "Content-Length: 4 4\r\n\r\n",
        INFER "Content-Length : 4\r\n\r\n",
        INFER "Content-Length\r\n\r\n",
        INFER "Content-Length: 4\r\n \r\n\r\n",
        INFER "X: y\r\n Content-Length: 4\r\n\r\n",
        INFER "X: y\rContent-Length: 4\r\n\r\n",
        INFER "X: y\nContent-Length: 4\r\n\r\n",
        INFER "X: y\r\nContent-Length: 4\n\r\n",
        INFER "Content-Length: 4\r\n\n",
        "POST /v2/models/ident/infer HTTP/1.1\nHost: x\r\nContent-Length: 4\n\n",
        INFER "X: \x01\r\nContent-Length: 4\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        INFER "Transfer-Encoding: chunked, identity\r\n\r\n",
        INFER "Transfer-Encoding: \x0b"
              "chunked\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\n\r\n 4\r\nabcd\r\n0\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\n\r\n4\nabcd\r\n0\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\n\r\n4\rabcd\r\n0\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\n\r\n4\r\nabcde\r\n0\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\n\r\n4;a\nb\r\nabcd\r\n0\r\n\r\n",
        INFER "Transfer-Encoding: chunked\r\n\r\n0\r\nGET / HTTP/1.1\r\n\r\n",
        INFER HOST "Content-Length: 4\r\n\r\n",
        "GET /v2 HTTP/1.10\r\n" HOST "\r\n",
        "GET /v2 HTTP/2.0\r\n" HOST "\r\n",
        "GET /v2 http/1.1\r\n" HOST "\r\n",
        "GET\t/v2 HTTP/1.1\r\n" HOST "\r\n",
        "GET /v2\tHTTP/1.1\r\n" HOST "\r\n",
        "GET /v2 x HTTP/1.1\r\n" HOST "\r\n",
        "G(T /v2 HTTP/1.1\r\n" HOST "\r\n",
        "HEAD /v2 HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++) {
        int fd = dial(port_of(state));
        push(fd, head[i], strlen(head[i]));
        push(fd, "GET /" LIVE, sizeof LIVE + 4);
        char *text = answers(fd);
        if (count(text, "HTTP/1.1 ") != 1 || strncmp(text, "HTTP/1.1 400 ", 13) != 0) {
            fail_msg("%s: %s", head[i], text);
        }
        free(text);
    }
    static const char zero[] = INFER "X: a\0b\r\nContent-Length: 4\r\n\r\n" LIVE;
    int fd = dial(port_of(state));
    push(fd, zero, sizeof zero - 1);
    char *text = answers(fd);
    assert_int_equal(count(text, "HTTP/1.1 "), 1);
    assert_memory_equal(text, "HTTP/1.1 400 ", 13);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_read_ranges),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_ambiguous),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
