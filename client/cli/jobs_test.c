// SPDX-License-Identifier: Apache-2.0
// The table of training jobs, and which job a misspelt name means.
#include "client/cli/jobs.h"

#include "base/test.h"

#include <string.h>

#define NOW_NS UINT64_C(1800000000000000000)

static json_t *rows_of(const char *text)
{
    json_t *rows = json_loads(text, 0, NULL);
    assert_non_null(rows);
    return rows;
}

static void expect(const char *rows, const char *want)
{
    json_t *given = rows_of(rows), *table = hth_jobs_table(given, NOW_NS);
    char *text = json_dumps(table, JSON_COMPACT);
    assert_string_equal(text, want);
    free(text);
    json_decref(table);
    json_decref(given);
}

static void test_table(void **state)
{
    expect("[]", "[]");
    // columns that nobody fills are left out; times in either form, also from the future
    expect(
        "[{\"id\":7,\"job\":\"net\",\"tenant\":\"alice\",\"state\":\"running\",\"step\":46,"
        "\"steps\":270,\"loss\":0.5,\"submitted\":1799999880000000000,\"ended_ns\":null},"
        "{\"id\":8,\"job\":\"a\",\"tenant\":\"bob\",\"state\":\"finished\",\"step\":9,\"steps\":9,"
        "\"loss\":0.25,\"submitted\":1899999880000000000,\"ended_ns\":1799990000000000000}]",
        "[{\"id\":7,\"name\":\"net\",\"state\":\"running\",\"owner\":\"alice\",\"submitted\":\"2 "
        "min\","
        "\"ended\":null,\"progress\":\"46/270  17 %\",\"loss\":0.5},"
        "{\"id\":8,\"name\":\"a\",\"state\":\"finished\",\"owner\":\"bob\",\"submitted\":\"0 s\","
        "\"ended\":\"2 h\",\"progress\":\"9/9 100 %\",\"loss\":0.25}]");
    // others' jobs have no name, and a server may say anything
    expect("[{\"id\":null,\"job\":null,\"state\":\"running\"}]",
           "[{\"id\":null,\"name\":null,\"state\":\"running\"}]");
    expect(
        "[{\"id\":\"x\",\"job\":[],\"state\":5,\"step\":\"1\",\"steps\":1e300,\"submitted\":1e300,"
        "\"why\":\"no room\"}]",
        "[{\"id\":\"x\",\"name\":[],\"state\":5,\"why\":\"no room\"}]");
}

static void test_nearest(void **state)
{
    json_t *rows =
        rows_of("[{\"job\":\"resnet\"},{\"job\":\"trained\"},{\"job\":\"a\"},{\"job\":null}]");
    static const char *const like[][2] = {
        {"restnet", "resnet"}, {"Trained2", "trained"}, {"trianed", "trained"}, {"b", "a"}};
    for (size_t i = 0; i < sizeof like / sizeof *like; i++) {
        const char *got = hth_jobs_nearest(rows, like[i][0]);
        assert_non_null(got);
        assert_string_equal(got, like[i][1]);
    }
    assert_null(hth_jobs_nearest(rows, "something else"));
    char longest[300];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    (void)hth_jobs_nearest(rows, longest); // compared as far as there is room
    json_decref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
