// SPDX-License-Identifier: Apache-2.0
#include "base/spelling.h"

#include "base/test.h"

#include <string.h>

static void test_distance(void **state)
{
    assert_int_equal(hth_spelling_distance("import", "import"), 0);
    assert_int_equal(hth_spelling_distance("imprt", "import"), 1);
    assert_int_equal(hth_spelling_distance("improt", "import"), 1); // a swap
    assert_int_equal(hth_spelling_distance("", "abc"), 3);
}

static void test_closer(void **state)
{
    const char *best = NULL;
    int distance = 3;
    hth_spelling_closer("bacth", "budget", &distance, &best);
    assert_null(best);
    hth_spelling_closer("bacth", "batch", &distance, &best);
    assert_string_equal(best, "batch");
    best = NULL;
    distance = 3;
    hth_spelling_closer("x", "y", &distance, &best); // another word altogether
    assert_null(best);
    hth_spelling_closer("foo", "job", &distance, &best); // one letter of three
    assert_null(best);
    hth_spelling_closer("sl", "ls", &distance, &best);
    assert_string_equal(best, "ls");
}

static void test_nearest(void **state)
{
    static const char *const words[] = {"linear", "cosine", "cosines"};
    assert_int_equal(hth_spelling_nearest("cosin", words, 3, 4), 1);
    assert_int_equal(hth_spelling_nearest("cosinse", words, 3, 4), 1); // the first of those as near
    assert_int_equal(hth_spelling_nearest("lenaer", words, 3, 2), -1); // too far
    assert_int_equal(hth_spelling_nearest("step", words, 3, 4), -1);
    assert_int_equal(hth_spelling_nearest("linear", words, 0, 4), -1);
}

static bool known(const void *ctx, const char *name)
{
    return strcmp(ctx, name) == 0;
}

static void test_means(void **state)
{
    static const hth_synonym table[] = {
        {"batch-size", "batch"}, {"out", "save-as"}, {"out", "output-dir"}, {NULL, NULL}};
    assert_true(hth_spelling_same("Batch_Size", "batch-size"));
    assert_true(hth_spelling_same("log.level", "log_level"));
    assert_false(hth_spelling_same("batch", "batch-size"));
    assert_false(hth_spelling_same("batch-size", "batch"));
    assert_string_equal(hth_spelling_means(table, "batch_size", NULL, NULL), "batch");
    assert_string_equal(hth_spelling_means(table, "out", known, "output-dir"), "output-dir");
    assert_null(hth_spelling_means(table, "out", known, "batch"));
    assert_null(hth_spelling_means(table, "other", NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distance), cmocka_unit_test(test_closer),
        cmocka_unit_test(test_nearest), cmocka_unit_test(test_means)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
