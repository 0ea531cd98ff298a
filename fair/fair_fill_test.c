// SPDX-License-Identifier: Apache-2.0
// Whole tasks: the paper's example, order and ties, elastic demands, what is exact. Random problems
// are compared with an independent program in tests/shares_test.py.
#include "fair/fair.h"

#include "fair/fixture.h"

#include <math.h>

static hth_fair_amounts of(double a, double b, double c)
{
    return (hth_fair_amounts){{a, b, c}};
}

static hth_fair_problem problem_of(hth_fair_tenant *tenants, int n, hth_fair_amounts capacity)
{
    return (hth_fair_problem){3, n, {"cpu", "memory", "gpu"}, capacity, tenants, {1, 1, 1}};
}

static void test_paper(void **state)
{
    hth_fair_amounts a = of(1, 4, 0), b = of(3, 1, 1);
    hth_fair_tenant tenants[] = {{"A", 1, HTH_FAIR_UNLIMITED, &a, 1},
                                 {"B", 1, HTH_FAIR_UNLIMITED, &b, 1}};
    hth_fair_problem p = problem_of(tenants, 2, of(9, 18, 2));
    hth_fair_shares s;
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
    assert_int_equal(s.of[0].tasks, 3);
    assert_int_equal(s.of[1].tasks, 2);
    assert_true(s.left.of[0] == 0 && s.left.of[1] == 4 && s.left.of[2] == 0);
    assert_int_equal(s.of[0].dominant, 1);
    assert_int_equal(s.of[1].dominant, 2);
    assert_true(s.of[0].dominant_share == 12.0 / 18 && s.of[1].dominant_share == 1);
    hth_fair_shares_fini(&s);
}

// One resource, tasks of 1: shares follow weights, and the first in the file has the odd one.
static void test_weights(void **state)
{
    hth_fair_amounts one = of(1, 0, 0);
    hth_fair_tenant tenants[] = {{"A", 1, HTH_FAIR_UNLIMITED, &one, 1},
                                 {"B", 3, HTH_FAIR_UNLIMITED, &one, 1},
                                 {"C", 1, 2, &one, 1}};
    hth_fair_problem p = problem_of(tenants, 3, of(18, 0, 0));
    hth_fair_shares s;
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
    assert_int_equal(s.of[0].tasks, 4);
    assert_int_equal(s.of[1].tasks, 12);
    assert_int_equal(s.of[2].tasks, 2); // all that it wants
    hth_fair_shares_fini(&s);
    p.capacity = of(1, 0, 0);
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
    assert_int_equal(s.of[0].tasks, 1);
    hth_fair_shares_fini(&s);
}

// Equal shares are equal however they come about: after k tasks each, kw of 11w by weight w and kv
// of 11w by weight v. The third resource, of which the share is never the dominant one, is enough
// for ten tasks of each and one more, which is the first tenant's.
static void test_ties(void **state)
{
    for (int w = 2; w <= 99; w++) {
        for (int v = w * 11 / 20 + 1; v < w; v++) {
            hth_fair_amounts a = of(w, 0, 1), b = of(0, v, 1);
            hth_fair_tenant tenants[] = {{"A", w, HTH_FAIR_UNLIMITED, &a, 1},
                                         {"B", v, HTH_FAIR_UNLIMITED, &b, 1}};
            hth_fair_problem p = problem_of(tenants, 2, of(11 * w, 11 * w, 21));
            hth_fair_shares s;
            assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
            assert_int_equal(s.of[0].tasks, 11);
            assert_int_equal(s.of[1].tasks, 10);
            hth_fair_shares_fini(&s);
        }
    }
}

// An elastic task takes the first of its demands that fits.
static void test_elastic(void **state)
{
    hth_fair_amounts curve[] = {of(1, 7, 0), of(1, 4, 0), of(1, 2, 0)}, rigid = of(1, 7, 0);
    hth_fair_tenant tenants[] = {{"elastic", 1, HTH_FAIR_UNLIMITED, curve, 3}};
    hth_fair_problem p = problem_of(tenants, 1, of(9, 20, 0));
    hth_fair_shares s;
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s)); // 7 7 4 2
    assert_int_equal(s.of[0].tasks, 4);
    assert_true(s.of[0].used.of[1] == 20);
    hth_fair_shares_fini(&s);
    tenants[0] = (hth_fair_tenant){"rigid", 1, HTH_FAIR_UNLIMITED, &rigid, 1};
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
    assert_int_equal(s.of[0].tasks, 2);
    hth_fair_shares_fini(&s);
    curve[0].of[1] = 21; // more than there is: the others will do
    tenants[0] = (hth_fair_tenant){"large", 1, 1, curve, 3};
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
    assert_true(s.of[0].used.of[1] == 4);
    hth_fair_shares_fini(&s);
}

// Nothing is left of which somebody could make a task; with one resource and tasks of one size the
// shares are within a task of the divided ones.
static void test_random(void **state)
{
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        hth_fair_problem p = fair_random_problem(seed, true);
        hth_fair_shares s;
        assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
        hth_fair_amounts sum = s.left;
        for (int i = 0; i < p.n_tenants; i++) {
            assert_true(s.of[i].tasks == p.tenants[i].tasks ||
                        !hth_fair_fits(&p.tenants[i].demand[0], &s.left, p.n_resources));
            for (int r = 0; r < p.n_resources; r++) {
                double used = (double)s.of[i].tasks * p.tenants[i].demand[0].of[r];
                assert_true(fabs(used - s.of[i].used.of[r]) <= 1e-9 * p.capacity.of[r]);
                sum.of[r] += s.of[i].used.of[r];
            }
        }
        for (int r = 0; r < p.n_resources; r++) {
            assert_true(s.left.of[r] >= 0);
            assert_true(fabs(sum.of[r] - p.capacity.of[r]) <= 1e-9 * p.capacity.of[r]);
        }
        hth_fair_shares_fini(&s);
        hth_fair_problem_fini(&p);
    }
}

static void test_bad(void **state)
{
    hth_fair_amounts d[] = {of(1, 0, 0), of(0, 0, 0)};
    hth_fair_tenant t = {"A", 1, HTH_FAIR_UNLIMITED, d, 1};
    hth_fair_problem p = problem_of(&t, 1, of(9, 18, 2));
    hth_fair_shares s;
    const double weight[] = {0, -1, NAN, INFINITY, 1e-9, 1e9};
    for (int i = 0; i < 6; i++) {
        t.weight = weight[i];
        assert_err(hth_fair_fill(&p, HTH_FAIR_TASKS, &s), HTH_EINVAL,
                   "it must be 1e-06 to 1000000");
        assert_null(s.of);
    }
    t.weight = 1;
    d[0].of[1] = NAN;
    assert_err(hth_fair_fill(&p, HTH_FAIR_TASKS, &s), HTH_EINVAL, "needs nan of 'memory'");
    d[0].of[1] = -2;
    assert_err(hth_fair_fill(&p, HTH_FAIR_TASKS, &s), HTH_EINVAL, "needs -2 of 'memory'");
    d[0].of[1] = 18.5;
    assert_err(hth_fair_fill(&p, HTH_FAIR_TASKS, &s), HTH_EINVAL,
               "needs 18.5 of 'memory' for a task; the capacity is 18");
    d[0].of[1] = 0;
    t.n_demands = 2;
    assert_err(hth_fair_fill(&p, HTH_FAIR_TASKS, &s), HTH_EINVAL, "so that any number fits");
    t.tasks = 123456789012345678u; // 9 of the first kind, and then those that need nothing
    assert_ok(hth_fair_fill(&p, HTH_FAIR_TASKS, &s));
    assert_true(s.of[0].tasks == t.tasks && s.left.of[0] == 0);
    hth_fair_shares_fini(&s);
    t.n_demands = 0;
    assert_err(hth_fair_fill(&p, HTH_FAIR_TASKS, &s), HTH_EINVAL, "has 0 demands");
    t.n_demands = 1;
    assert_err(hth_fair_fill(&p, 5, &s), HTH_EINVAL, "more than 5 tasks fit the capacity");
    assert_null(s.of);
    p.capacity.of[0] = -9;
    assert_err(hth_fair_fill(&p, 5, &s), HTH_EINVAL, "the capacity of 'cpu' is -9");
}

static hth_err fill_once(const hth_fair_problem *problem)
{
    hth_fair_shares s;
    hth_err err = hth_fair_fill(problem, HTH_FAIR_TASKS, &s);
    if (err == HTH_OK) {
        hth_fair_shares_fini(&s);
    }
    return err;
}

static void test_memory(void **state)
{
    hth_fair_problem p = fair_random_problem(3, true);
    FAULT_LOOP(fill_once(&p));
    hth_fair_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paper),   cmocka_unit_test(test_weights), cmocka_unit_test(test_ties),
        cmocka_unit_test(test_elastic), cmocka_unit_test(test_random),  cmocka_unit_test(test_bad),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
