// SPDX-License-Identifier: Apache-2.0
// Bodies in chunks: what is well-formed, in pieces of any size, and the text that stays;
// what is not, as the parser says it and as the server answers it.
#include "server/http/http_chunks.h"
#include "tests/rig/http_rig.h"

typedef struct chunks_case {
    const char *text, *seen; // seen: what stays; NULL: refused
} chunks_case;

static const chunks_case cases[] = {
    {"3\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"},
    {"0003\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n", "0003\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"},
    {"3;a=b\r\nabc\r\n0;c\r\n\r\n", "3    \r\nabc\r\n0  \r\n\r\n"},
    {"3 ; a=\"x;y\"\r\na;b\r\n0\t\r\n\r\n", "3          \r\na;b\r\n0 \r\n\r\n"},
    {"0\r\nX: y\r\nZ:\tw;v\r\n\r\n3;next", "0\r\nX: y\r\nZ:\tw;v\r\n\r\n3;next"},
    {"x\r\nabc\r\n0\r\n\r\n", NULL},
    {"\r\nabc\r\n0\r\n\r\n", NULL},
    {" 3\r\nabc\r\n0\r\n\r\n", NULL},
    {"-3\r\nabc\r\n0\r\n\r\n", NULL},
    {"+3\r\nabc\r\n0\r\n\r\n", NULL},
    {"0x3\r\nabc\r\n0\r\n\r\n", NULL},
    {"3 4\r\nabc\r\n0\r\n\r\n", NULL},
    {"3g\r\nabc\r\n0\r\n\r\n", NULL},
    {"3\nabc\r\n0\r\n\r\n", NULL},
    {"3\r\nabcd\r\n0\r\n\r\n", NULL},
    {"3\r\nab\r\n0\r\n\r\n", NULL},
    {"3;a\rb\r\nabc\r\n0\r\n\r\n", NULL},
    {"3;a\nb\r\nabc\r\n0\r\n\r\n", NULL},
    {"3\r\nabc\n0\r\n\r\n", NULL},
    {"0\r\n: y\r\n\r\n", NULL},
    {"0\r\nX\r\n\r\n", NULL},
    {"0\r\n X: y\r\n\r\n", NULL},
};

static void test_parser(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].text);
        for (size_t piece = 1; piece <= n; piece++) {
            char text[100];
            hth_chunks k = {HTH_CHUNKS_FIRST, 0};
            const char *wrong = NULL;
            strcpy(text, cases[i].text);
            for (size_t at = 0; at < n && wrong == NULL; at += piece) {
                wrong = hth_chunks_take(&k, text + at, n - at < piece ? n - at : piece);
            }
            assert_int_equal(wrong == NULL, cases[i].seen != NULL);
            if (cases[i].seen != NULL) {
                assert_string_equal(text, cases[i].seen);
                assert_int_equal(k.at, HTH_CHUNKS_NONE);
            }
        }
    }
}

// Sizes that no number holds are data without an end: refused.
static void test_huge(void **state)
{
    char text[] = "ffffffffffffffffffffffff\r\nxyz";
    hth_chunks k = {HTH_CHUNKS_FIRST, 0};
    assert_null(hth_chunks_take(&k, text, sizeof text - 1));
    assert_int_equal(k.at, HTH_CHUNKS_DATA);
}

#define HEAD "POST /v2/models/batch/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
#define BODY                                                                                       \
    "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1,3],\"datatype\":\"FP32\",\"data\":[1,2,3]}]}"

// Extensions are passed over, whole and byte by byte, and the next request is found.
static void test_extensions(void **state)
{
    char text[600];
    int n = snprintf(text, sizeof text,
                     HEAD "%zx;a=b\r\n%.20s\r\n%zx ;c=\"d;e\"\r\n%s\r\n0;f\r\nX: y\r\n\r\n"
                          "GET /v2/models/batch/config HTTP/1.1\r\nHost: x\r\n\r\n",
                     (size_t)20, BODY, strlen(BODY) - 20, BODY + 20);
    for (int piece = 1; piece <= n; piece += piece < 3 ? 1 : n - 3) {
        int fd = dial(port_of(state));
        for (int i = 0; i < n; i += piece) {
            push(fd, text + i, (size_t)(n - i < piece ? n - i : piece));
        }
        reply r = pull(fd, true), next = pull(fd, true);
        expect_200(&r);
        expect_200(&next);
        assert_non_null(strstr(next.body, "\"max_batch_size\":4"));
        reply_free(&r);
        reply_free(&next);
        close(fd);
    }
}

// What is not well-formed gets 400 and a sentence, and the connection ends.
static void test_malformed(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400], c;
        if (cases[i].seen != NULL) {
            continue;
        }
        for (int apart = 0; apart < 2; apart++) {
            size_t n = (size_t)snprintf(text, sizeof text, HEAD "%s", cases[i].text);
            size_t head = apart == 1 ? strlen(HEAD) : n;
            int fd = dial(port_of(state));
            push(fd, text, head);
            usleep(apart == 1 ? 2000 : 0); // the rest comes by itself
            push(fd, text + head, n - head);
            reply r = pull(fd, true);
            assert_int_equal(r.status, 400);

            assert_non_null(strstr(r.head, "application/json"));
            assert_true(recv(fd, &c, 1, 0) <= 0);
            reply_free(&r);
            close(fd);
        }
    }
}

// A size above the limit is what it was before.
static void test_too_large(void **state)
{
    static const char text[] = HEAD "ffffffffffffffffffff\r\nabc\r\n";
    reply r = ask(port_of(state), text, sizeof text - 1, true);
    assert_int_equal(r.status, 413);
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parser),    cmocka_unit_test(test_huge),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_extensions),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
