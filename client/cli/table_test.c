// SPDX-License-Identifier: Apache-2.0
#include "client/cli/table.h"

#include "base/test.h"

#include <string.h>

static const char *printed(const char *json)
{
    static char out[4096];
    json_t *doc = json_loads(json, JSON_DECODE_ANY, NULL);
    assert_non_null(doc);
    FILE *f = fmemopen(out, sizeof out, "w");
    assert_non_null(f);
    hth_table_print(f, doc);
    assert_int_equal(fclose(f), 0);
    json_decref(doc);
    return out;
}

// Columns stand below each other by what a terminal shows: letters of two bytes, wide ones, and
// accents that combine.
static void test_columns(void **state)
{
    assert_string_equal(printed("[{\"name\":\"plain\",\"state\":\"up\",\"n\":1},"
                                "{\"name\":\"\xc3\xbc\xc3\xb6\",\"state\":\"up\",\"n\":20},"
                                "{\"name\":\"\xe4\xb8\xad\xe6\x96\x87\",\"state\":\"x\",\"n\":3},"
                                "{\"name\":\"e\xcc\x81t\",\"state\":\"x\",\"n\":3}]"),
                        "name   state  n \n"
                        "plain  up      1\n"
                        "\xc3\xbc\xc3\xb6     up     20\n"
                        "\xe4\xb8\xad\xe6\x96\x87   x       3\n"
                        "e\xcc\x81t     x       3\n");
    assert_string_equal(printed("{\"gr\xc3\xb6\xc3\x9f"
                                "e\":1,\"longer\":2}"),
                        "gr\xc3\xb6\xc3\x9f"
                        "e   1\nlonger  2\n");
}

// Of what others wrote, keys as well, a terminal obeys nothing, and no line begins in it.
static void test_plain(void **state)
{
    assert_string_equal(printed("[{\"a\\u001b[1m\":\"x\\u0007\\n\"}]"), "a?[1m\nx??\n");
    assert_string_equal(printed("{\"a\\nb\":\"\\u009b\",\"c\\nd\":{\"e\\u202e\":1}}"),
                        "a?b  ??\n\nc?d:\ne???  1\n");
}

// A cell that is too long is cut between characters.
static void test_cut(void **state)
{
    char json[400] = "[{\"name\":\"x";
    for (int i = 0; i < 60; i++) {
        strcat(json, "\xc3\xbc");
    }
    strcat(json, "\"}]");
    const char *text = printed(json);
    assert_null(strchr(text, '?'));
    assert_int_equal(strlen(strchr(text, 'x')), 1 + 2 * 47 + 1);
}

// Times that no calendar has.
static void test_dates(void **state)
{
    assert_string_equal(printed("{\"created_ns\":1e300}"), "created  -\n");
    assert_string_equal(printed("{\"ended_ns\":-1e300}"), "ended  -\n");
    assert_string_equal(printed("{\"scrubbed_ns\":0}"), "scrubbed  -\n"); // never
}

// Whatever a document says in nanoseconds since 1970 or in bytes, people read as dates and sizes.
static void test_units(void **state)
{
    static const char *const dates[][2] = {{"created_ns", "created"},
                                           {"ended_ns", "ended"},
                                           {"submitted", "submitted"},
                                           {"started", "started"},
                                           {"ended", "ended"},
                                           {"scrubbed_ns", "scrubbed"},
                                           {"oldest_read_ns", "oldest_read"},
                                           {"index_read_ns", "index_read"}};
    char json[100], want[100];
    for (size_t i = 0; i < sizeof dates / sizeof *dates; i++) {
        snprintf(json, sizeof json, "{\"%s\":86400000000000}", dates[i][0]);
        snprintf(want, sizeof want, "%s  1970-01-02 00:00:00\n", dates[i][1]);
        assert_string_equal(printed(json), want);
    }
    assert_string_equal(printed("{\"submitted\":\"3 s\"}"), "submitted  3 s\n");
    assert_string_equal(printed("{\"moved\":2048}"), "moved  2.0 KiB\n");
    assert_string_equal(printed("{\"run_ns\":2048}"), "run_ns  2048\n"); // a duration
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_columns), cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_cut), cmocka_unit_test(test_dates),
                                       cmocka_unit_test(test_units)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
