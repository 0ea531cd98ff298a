// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_curve.h"

#include "planner/plan_train_gen.h"

#include <math.h>

static const hth_plan_options quick = {.limit_ms = 1000, .limit_decodes = 60};

static void curves_are_monotone(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 4 + (int)(seed % 20));
        hth_curve c;
        assert_ok(hth_plan_curve(&p, &quick, &c));
        assert_true(c.n >= 1);
        assert_true(c.point[c.n - 1].device_bytes <= c.peak_bytes);
        for (int i = 0; i < c.n; i++) {
            assert_true(c.point[i].device_bytes <= c.point[i].budget_bytes);
            assert_true(c.point[i].time_us >= c.point[i].lower_bound_us * 0.999999);
            assert_true(i == 0 || c.point[i].budget_bytes > c.point[i - 1].budget_bytes ||
                        c.peak_bytes - c.floor_bytes < HTH_CURVE_POINTS);
            assert_true(i == 0 || c.point[i].time_us <= c.point[i - 1].time_us);
            assert_true(i == 0 || c.point[i].lower_bound_us <= c.point[i - 1].lower_bound_us);
        }
        hth_problem_fini(&p);
    }
}

typedef struct limits {
    uint64_t least; // a plan takes half of what its budget has above this
    int asked;
} limits;

static hth_err limits_plan(void *ctx, uint64_t budget, hth_curve_point *out, bool *fits)
{
    limits *x = ctx;
    x->asked++;
    *fits = budget >= x->least;
    *out = (hth_curve_point){.budget_bytes = budget,
                             .device_bytes = x->least + (budget - x->least) / 2};
    return HTH_OK;
}

// What is said to be enough is what a plan was found for, and little more than the least.
static void least_memory_is_found(void **state)
{
    for (uint64_t least = 100; least <= 1000000; least = least * 3 / 2) {
        limits x = {.least = least};
        uint64_t bytes;
        assert_ok(hth_curve_min(limits_plan, &x, 1000000, 90, &bytes));
        assert_true(bytes >= least && bytes <= least + 10000);
        assert_true(x.asked <= 9);
    }
    limits x = {.least = 11};
    uint64_t bytes;
    assert_err(hth_curve_min(limits_plan, &x, 10, 5, &bytes), HTH_ETOOBIG,
               "no plan was found for 10 B");
}

static hth_curve curve_of(const double *times, const uint64_t *bytes, double link, int n)
{
    hth_curve c = {.n = n};
    for (int i = 0; i < n; i++) {
        c.point[i] = (hth_curve_point){.device_bytes = bytes[i],
                                       .time_us = times[i],
                                       .h2d_us = i < n - 1 ? link * times[i] : 0};
    }
    return c;
}

// Against trying everything.
static void admission_is_the_best_choice(void **state)
{
    const double t1[] = {30, 20, 10}, t2[] = {16, 12, 10}, weight[] = {1, 2};
    const uint64_t b1[] = {100, 200, 400}, b2[] = {100, 300, 600};
    hth_curve a = curve_of(t1, b1, 0.1, 3), b = curve_of(t2, b2, 0.1, 3);
    const hth_curve *curves[] = {&a, &b};
    for (uint64_t device = 200; device <= 1100; device += 50) {
        double best = INFINITY;
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < 3; j++) {
                double cost = t1[i] / 10 + 2 * t2[j] / 10;
                best = b1[i] + b2[j] <= device && cost < best ? cost : best;
            }
        }
        int chosen[2];
        // A cell is 1/4096 of the device: sizes here are rounded by less than a byte in 10.
        hth_err err = hth_curve_admit(curves, weight, 2, device + 2, 1, chosen);
        assert_ok(err);
        double got = t1[chosen[0]] / 10 + 2 * t2[chosen[1]] / 10;
        assert_true(b1[chosen[0]] + b2[chosen[1]] <= device + 2);
        assert_true(got <= best + 1e-9);
    }
    int chosen[2];
    assert_err(hth_curve_admit(curves, weight, 2, 150, 1, chosen), HTH_ETOOBIG, "do not fit");
}

// Two jobs that both keep the link busy cannot both hide it.
static void the_link_is_a_resource(void **state)
{
    const double t[] = {12, 10};
    const uint64_t b[] = {100, 200};
    hth_curve a = curve_of(t, b, 0.8, 2);
    const hth_curve *curves[] = {&a, &a};
    const double weight[] = {1, 1};
    int chosen[2];
    assert_ok(hth_curve_admit(curves, weight, 2, 310, 1, chosen));
    assert_int_equal(chosen[0] + chosen[1], 1);
    assert_err(hth_curve_admit(curves, weight, 2, 210, 1, chosen), HTH_ETOOBIG, "link");
    assert_ok(hth_curve_admit(curves, weight, 2, 210, 2, chosen));
}

// Every allocation of one plan, every 37th of a curve's.
static void allocations_fail_cleanly(void **state)
{
    const hth_plan_options o = {.limit_ms = 1000, .limit_decodes = 3};
    hth_problem p = pg_random(3, 3);
    hth_curve c;
    uint64_t before = hth_alloc_count();
    assert_ok(hth_plan_curve(&p, &o, &c));
    uint64_t all = hth_alloc_count() - before;
    for (uint64_t nth = 1; nth <= all; nth += 37) {
        hth_curve other;
        int64_t live = hth_alloc_live();
        hth_fault_alloc(nth);
        hth_err err = hth_plan_curve(&p, &o, &other);
        hth_fault_alloc(0);
        assert_int_equal(err, HTH_ENOMEM);
        assert_int_equal(hth_alloc_live(), live);
    }
    hth_plan *plan;
    p.budget = c.peak_bytes / 10 * 8;
    FAULT_LOOP(hth_plan_train(&p, &o, &plan));
    hth_plan_free(plan);
    const hth_curve *curves[] = {&c};
    const double weight[] = {1};
    int chosen[1];
    FAULT_LOOP(hth_curve_admit(curves, weight, 1, c.peak_bytes, 1, chosen));
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves_are_monotone),          cmocka_unit_test(least_memory_is_found),
        cmocka_unit_test(admission_is_the_best_choice), cmocka_unit_test(the_link_is_a_resource),
        cmocka_unit_test(allocations_fail_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
