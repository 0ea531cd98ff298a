// SPDX-License-Identifier: Apache-2.0
#include "base/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct turns {
    int n;
    hth_err end; // at the third
    hth_pace *inside;
} turns;

static hth_err take_turn(void *ctx)
{
    turns *t = ctx;
    t->inside = hth_pace_now();
    (void)hth_pace_step(UINT64_MAX); // of somebody else: counts for nothing
    return ++t->n == 3 && t->end != HTH_OK ? hth_fail(t->end, "nobody wants it") : HTH_OK;
}

static void test_none(void **state)
{
    assert_null(hth_pace_now());
    assert_int_equal(hth_pace_step(UINT64_MAX), HTH_OK);
    assert_int_equal(hth_pace_take(UINT64_MAX), HTH_OK);
    assert_false(hth_pace_over(UINT64_MAX));
}

static void test_work(void **state)
{
    hth_pace p = {.most_work = 100, .most_bytes = UINT64_MAX};
    assert_null(hth_pace_enter(&p));
    assert_int_equal(hth_pace_step(60), HTH_OK);
    assert_false(hth_pace_over(40));
    assert_true(hth_pace_over(1));
    assert_true(p.over);
    assert_int_equal(hth_pace_step(0), HTH_ETOOBIG); // and stays so
    assert_string_equal(hth_err_detail(), "it takes more than 100 operations (at least 101)");
    hth_pace_leave(NULL);
    assert_int_equal(hth_pace_step(1), HTH_OK);
}

static void test_overflow(void **state)
{
    hth_pace p = {.most_work = UINT64_MAX - 1, .most_bytes = UINT64_MAX - 1};
    hth_pace_enter(&p);
    assert_int_equal(hth_pace_step(10), HTH_OK);
    assert_int_equal(hth_pace_step(UINT64_MAX - 5), HTH_ETOOBIG);
    hth_pace_leave(NULL);
    p = (hth_pace){.most_work = 1, .most_bytes = 1000};
    hth_pace_enter(&p);
    assert_int_equal(hth_pace_take(1000), HTH_OK);
    assert_int_equal(hth_pace_take(UINT64_MAX), HTH_ETOOBIG);
    assert_non_null(strstr(hth_err_detail(), "more than 1000 bytes"));
    assert_int_equal(hth_pace_step(0), HTH_ETOOBIG);
    hth_pace_leave(NULL);
}

static void test_turns(void **state)
{
    turns t = {.end = HTH_ECANCELED};
    hth_pace outer = {.most_work = UINT64_MAX, .most_bytes = UINT64_MAX};
    hth_pace p = {.most_work = UINT64_MAX, .most_bytes = UINT64_MAX, .turn = take_turn, .ctx = &t};
    hth_pace_enter(&outer);
    hth_pace *before = hth_pace_enter(&p);
    assert_ptr_equal(before, &outer);
    int steps = 0;
    while (hth_pace_step(1000) == HTH_OK) {
        steps++;
        assert_ptr_equal(hth_pace_now(), &p);
    }
    assert_int_equal(t.n, 3);
    assert_null(t.inside);
    assert_in_range((uint64_t)steps * 1000, 3 * HTH_PACE_QUANTUM - 3000,
                    3 * HTH_PACE_QUANTUM + 3000);
    assert_int_equal(hth_pace_step(0), HTH_ECANCELED);
    assert_string_equal(hth_err_detail(), "nobody wants it");
    assert_int_equal(t.n, 3);
    assert_false(p.over);
    hth_pace_leave(before);
    assert_ptr_equal(hth_pace_now(), &outer);
    assert_int_equal(outer.work, 0);
    hth_pace_leave(NULL);
}

static void fill_whole(char *to, const char *from, size_t n)
{
    memset(to, 7, n + 1);
    assert_int_equal(hth_pace_fill(to, from, n), HTH_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(to[i], from != NULL ? from[i] : 0);
    }
    assert_int_equal(to[n], 7);
}

static void test_fill(void **state)
{
    const size_t n = 2 * HTH_PACE_QUANTUM + 5;
    char *from = malloc(n), *to = malloc(n + 1);
    turns t = {.end = HTH_ECANCELED};
    hth_pace p = {.most_work = UINT64_MAX, .most_bytes = UINT64_MAX, .turn = take_turn, .ctx = &t};
    for (size_t i = 0; i < n; i++) {
        from[i] = (char)(i * 31 >> 4);
    }
    fill_whole(to, from, n); // nobody counts
    fill_whole(to, NULL, n);
    hth_pace_enter(&p);
    fill_whole(to, from, n);
    assert_int_equal(t.n, 2);
    assert_int_equal(p.work, n);
    p.turned = p.work;
    t.n = 1;
    assert_int_equal(hth_pace_fill(to, NULL, n), HTH_ECANCELED); // at the second of its turns
    assert_true(to[0] == 0 && to[n - 1] == from[n - 1]);
    hth_pace_leave(NULL);
    free(from);
    free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),  cmocka_unit_test(test_work), cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_turns), cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
