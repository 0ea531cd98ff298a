// SPDX-License-Identifier: Apache-2.0
#include "group/sequence.h"

#include "base/test.h"

static json_t *rows_of(const char *text)
{
    json_t *rows = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(rows);
    return rows;
}

static void test_check(void **state)
{
    static const char *const good[] = {"[[0,3,1]]", "[[0,1,3],[2,2,2],[2,0,4],[7,4,0]]",
                                       "[[5,2,2]]"};
    static const char *const bad[] = {"3",
                                      "[]",
                                      "[3]",
                                      "[[0,4]]",
                                      "[[0,2,1,1]]",
                                      "[[0,2,1]]",
                                      "[[0,4,0]]",
                                      "[[0,5,-1]]",
                                      "[[-1,2,2]]",
                                      "[[0,2.5,1.5]]",
                                      "[[\"0\",2,2]]",
                                      "[[0,9223372036854775807,9223372036854775807]]",
                                      "[[3,2,2],[2,1,3]]",
                                      "[[0,2,2],[1,5,-1]]"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        json_t *rows = rows_of(good[i]);
        assert_ok(hth_sequence_check(rows, 2, 4));
        json_decref(rows);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *rows = rows_of(bad[i]);
        assert_err(hth_sequence_check(rows, 2, 4), HTH_EINVAL,
                   "the samples of each of 2 devices, at first 1 at least, in all 4");
        json_decref(rows);
    }
    assert_err(hth_sequence_check(NULL, 3, 8), HTH_EINVAL, "of 3 devices");
}

// Rows, or the summary of the job that had them.
static void test_given(void **state)
{
    json_t *args = json_pack("{s:[[i,i,i]]}", "shards", 0, 3, 1);
    json_t *summary = json_pack("{s:O}", "shards", args);
    const json_t *rows = json_object_get(args, "shards");
    assert_ptr_equal(hth_sequence_given(args), rows);
    assert_ptr_equal(hth_sequence_given(summary), rows);
    assert_null(hth_sequence_given(json_object_get(args, "none")));
    json_decref(summary);
    json_decref(args);
}

static void expect_at(const json_t *rows, int64_t step, int64_t a, int64_t b)
{
    int64_t n[HTH_GROUP_MEMBERS];
    assert_true(hth_sequence_at(rows, 2, step, n));
    assert_int_equal(n[0], a);
    assert_int_equal(n[1], b);
}

static void test_steps(void **state)
{
    static const int64_t all[3][2] = {{2, 2}, {3, 1}, {4, 0}};
    json_t *rows = json_array();
    int64_t n[HTH_GROUP_MEMBERS];
    assert_false(hth_sequence_at(rows, 2, 0, n));
    for (int i = 0; i < 3; i++) {
        assert_ok(hth_sequence_add(rows, 2, i == 0 ? 0 : 5 + i, all[i]));
    }
    expect_at(rows, 0, 2, 2);
    expect_at(rows, 5, 2, 2);
    expect_at(rows, 6, 3, 1);
    expect_at(rows, 100, 4, 0);
    assert_false(hth_sequence_at(rows, 3, 0, n));
    hth_sequence_cut(rows, 8);
    assert_int_equal(json_array_size(rows), 3);
    hth_sequence_cut(rows, 6);
    expect_at(rows, 100, 2, 2);
    hth_sequence_cut(rows, 0);
    assert_int_equal(json_array_size(rows), 0);
    json_decref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_check), cmocka_unit_test(test_given),
                                       cmocka_unit_test(test_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
