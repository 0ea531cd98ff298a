// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"
#include "server/http/http_range.h"
#include "server/http/http_url.h"

static void test_query(void **state)
{
    static const struct {
        const char *query;
        hth_http_found found;
        const char *value;
    } cases[] = {
        {NULL, HTH_HTTP_ABSENT, ""},
        {"", HTH_HTTP_ABSENT, ""},
        {"a", HTH_HTTP_FOUND, ""},
        {"a=", HTH_HTTP_FOUND, ""},
        {"a=3", HTH_HTTP_FOUND, "3"},
        {"b=1&a=2%2C3", HTH_HTTP_FOUND, "2,3"},
        {"ab=1&xa=2", HTH_HTTP_ABSENT, ""},
        {"b=a", HTH_HTTP_ABSENT, ""},
        {"&&a=1&", HTH_HTTP_FOUND, "1"},
        {"a=1=2", HTH_HTTP_FOUND, "1=2"},
        {"a=1&a=1", HTH_HTTP_BAD, NULL},
        {"a=%", HTH_HTTP_BAD, NULL},
        {"a=%4", HTH_HTTP_BAD, NULL},
        {"a=%4g", HTH_HTTP_BAD, NULL},
        {"a=%00", HTH_HTTP_BAD, NULL},
        {"a=12345678", HTH_HTTP_BAD, NULL},
        {"a=1234567", HTH_HTTP_FOUND, "1234567"},
    };
    char value[8];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(hth_http_query_get(cases[i].query, "a", value, sizeof value),
                         cases[i].found);
        if (cases[i].value != NULL) {
            assert_string_equal(value, cases[i].value);
        }
    }
}

static void test_content_range(void **state)
{
    static const char *const none[] = {"",
                                       "bytes",
                                       "bytes 0-9",
                                       "bytes 0-9/*",
                                       "bytes */10",
                                       "bytes 5-4/9",
                                       "bytes 0-9/9",
                                       "bytes -5/9",
                                       "bytes 0-/9",
                                       "bytes 0-8/9 ",
                                       "items 0-8/9",
                                       "bytes=0-8/9",
                                       "bytes +0-8/9",
                                       "bytes 0-8/-9",
                                       "bytes 0-18446744073709551616/18446744073709551617"};
    hth_http_range r;
    assert_true(hth_http_content_range("bytes 4-9/100", &r));
    assert_true(r.from == 4 && r.end == 10 && r.total == 100);
    assert_true(hth_http_content_range("Bytes 0-18446744073709551613/18446744073709551615", &r));
    assert_true(r.end == UINT64_MAX - 1 && r.total == UINT64_MAX);
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_false(hth_http_content_range(none[i], &r));
    }
}

static void test_range(void **state)
{
    static const struct {
        const char *text;
        hth_http_ranged ranged;
        uint64_t from, end;
    } cases[] = {
        {NULL, HTH_HTTP_WHOLE, 0, 100},
        {"bytes=0-9", HTH_HTTP_PART, 0, 10},
        {"bytes=90-", HTH_HTTP_PART, 90, 100},
        {"bytes=90-1000", HTH_HTTP_PART, 90, 100},
        {"bytes=99-99", HTH_HTTP_PART, 99, 100},
        {"bytes=-5", HTH_HTTP_PART, 95, 100},
        {"bytes=-500", HTH_HTTP_PART, 0, 100},
        {"bytes=100-", HTH_HTTP_OUTSIDE, 0, 0},
        {"bytes=100-200", HTH_HTTP_OUTSIDE, 0, 0},
        {"bytes=-0", HTH_HTTP_OUTSIDE, 0, 0},
        {"bytes=9-0", HTH_HTTP_WHOLE, 0, 100},
        {"bytes=0-1,4-5", HTH_HTTP_WHOLE, 0, 100},
        {"bytes=", HTH_HTTP_WHOLE, 0, 100},
        {"bytes=-", HTH_HTTP_WHOLE, 0, 100},
        {"lines=0-1", HTH_HTTP_WHOLE, 0, 100},
        {"bytes=0-18446744073709551615", HTH_HTTP_PART, 0, 100},
        {"bytes=18446744073709551616-", HTH_HTTP_WHOLE, 0, 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hth_http_range r;
        assert_int_equal(hth_http_range_read(cases[i].text, 100, &r), cases[i].ranged);
        if (cases[i].ranged != HTH_HTTP_OUTSIDE) {
            assert_true(r.from == cases[i].from && r.end == cases[i].end);
        }
    }
    hth_http_range r; // nothing is there
    assert_int_equal(hth_http_range_read("bytes=0-", 0, &r), HTH_HTTP_OUTSIDE);
    assert_int_equal(hth_http_range_read("bytes=-1", 0, &r), HTH_HTTP_OUTSIDE);
    assert_int_equal(hth_http_range_read(NULL, 0, &r), HTH_HTTP_WHOLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query),
        cmocka_unit_test(test_content_range),
        cmocka_unit_test(test_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
