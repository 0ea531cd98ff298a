// SPDX-License-Identifier: Apache-2.0
// A search that goes on from a plan is never worse than it, ends with its work, and finds the same
// whatever else the machine does.
#include "planner/plan_refine.h"
#include "planner/plan_train_gen.h"
#include "planner/plan_work.h"

#include "base/clock.h"

#include <math.h>

#define FIRST_DECODES 30 // of the plan that all begin with: too few to find a good one
#define SLICES        4

static hth_problem make(double share)
{
    static const int blocks[] = {1, 1, 2, 1};
    hth_problem p = pg_resnet(16, blocks);
    uint64_t peak;
    assert_ok(hth_plan_train_peak(&p, &peak));
    p.budget = (uint64_t)((double)peak * share);
    return p;
}

static hth_plan *first_plan(const hth_problem *problem)
{
    hth_plan *plan;
    hth_plan_options o = {.seed = 7, .limit_ms = 1e6, .limit_decodes = FIRST_DECODES};
    assert_ok(hth_plan_train(problem, &o, &plan));
    return plan;
}

// Each slice is at least as fast as the one before, and what it found can be run.
static void never_worse(void **state)
{
    for (int share = 8; share >= 5; share -= 3) {
        hth_problem p = make(share / 10.0);
        hth_plan *first = first_plan(&p);
        hth_refine r;
        assert_ok(hth_refine_open(&r, &p, &(hth_plan_options){.seed = 7}, first, 0, 1e6));
        assert_true(r.us == first->predicted_us && r.best == NULL);
        for (int i = 0; i < SLICES && !hth_refine_over(&r); i++) {
            double before = r.us;
            bool better = hth_refine_slice(&r);
            assert_true(better ? r.us < before : r.us == before);
            assert_true(r.slices == i + 1 && r.options.seed == 8 + (uint64_t)i);
        }
        assert_non_null(r.best);
        assert_true(r.best->predicted_us == r.us && r.us < first->predicted_us * 0.995);
        assert_true(r.bound_us <= r.us);
        assert_ok(hth_plan_verify(&p, r.best));
        assert_true(r.best->arena_bytes + r.best->resident_bytes <= p.budget);
        hth_refine_close(&r);
        hth_plan_free(first);
        hth_problem_fini(&p);
    }
}

// From what an earlier search ended with, nothing is lost.
static void goes_on_from_its_best(void **state)
{
    hth_problem p = make(0.6);
    hth_plan *first = first_plan(&p);
    hth_refine a, b;
    assert_ok(hth_refine_open(&a, &p, &(hth_plan_options){.seed = 7}, first, 0, 1e6));
    (void)hth_refine_slice(&a);
    assert_non_null(a.best);
    assert_ok(hth_refine_open(&b, &p, &a.options, a.best, 0, 1e6));
    assert_true(b.us == a.us && b.bound_us == a.best->lower_bound_us);
    (void)hth_refine_slice(&b);
    assert_true(b.us <= a.us);
    hth_refine_close(&a);
    hth_refine_close(&b);
    hth_plan_free(first);
    hth_problem_fini(&p);
}

static uint64_t busy_ns(void *ctx)
{
    static uint64_t now_ns;
    return now_ns += 100000;
}

static void same_on_busy_machines(void **state)
{
    hth_problem p = make(0.6);
    hth_plan *first = first_plan(&p);
    hth_refine r[2];
    for (int k = 0; k < 2; k++) {
        hth_clock_inject(k == 0 ? pt_still_ns : busy_ns, NULL);
        assert_ok(hth_refine_open(&r[k], &p, &(hth_plan_options){.seed = 3}, first, 0, 1e6));
        for (int i = 0; i < SLICES; i++) {
            (void)hth_refine_slice(&r[k]);
        }
    }
    hth_clock_inject(pt_still_ns, NULL);
    assert_true(r[0].us == r[1].us && fabs(r[0].work_ms - r[1].work_ms) < 1e-3); // a ns is rounded
    assert_non_null(r[0].best);
    assert_int_equal(r[0].best->n_modes, r[1].best->n_modes);
    assert_memory_equal(r[0].best->mode, r[1].best->mode, (size_t)r[0].best->n_modes);
    hth_refine_close(&r[0]);
    hth_refine_close(&r[1]);
    hth_plan_free(first);
    hth_problem_fini(&p);
}

static void ends_with_its_work(void **state)
{
    hth_problem p = make(0.5);
    hth_plan *first = first_plan(&p);
    hth_refine r;
    int n = 0;
    first->lower_bound_us = 0; // so that only work ends it, unless a plan is proven to be the best
    assert_ok(hth_refine_open(&r, &p, &(hth_plan_options){.seed = 7}, first, 0, 250));
    assert_true(r.slice_ms == hth_plan_limit_ms(&p));
    for (; !hth_refine_over(&r); n++) {
        assert_true(n < 100 && r.work_ms <= 150);
        (void)hth_refine_slice(&r);
    }
    assert_true(n > 1 && r.work_ms < 250 + 0.2 * r.slice_ms);
    hth_refine_close(&r);
    first->lower_bound_us = first->predicted_us;
    assert_ok(hth_refine_open(&r, &p, &(hth_plan_options){.seed = 7}, first, 0, 250));
    assert_true(hth_refine_over(&r)); // nothing is faster
    hth_refine_close(&r);
    assert_ok(hth_refine_open(&r, &p, &(hth_plan_options){.seed = 7}, first, 0, 0));
    assert_true(hth_refine_over(&r));
    hth_refine_close(&r);
    hth_plan_free(first);
    hth_problem_fini(&p);
}

// A search that is canceled does little, and what it has is not taken.
static void canceled(void **state)
{
    static const int blocks[] = {3, 4, 6, 3};
    hth_problem p = pg_resnet(32, blocks);
    uint64_t peak;
    assert_ok(hth_plan_train_peak(&p, &peak));
    p.budget = peak / 2;
    hth_plan *first = first_plan(&p);
    hth_refine whole, r;
    atomic_int cancel = 1;
    hth_plan_options o = {.seed = 7};
    first->lower_bound_us = 0;
    assert_ok(hth_refine_open(&whole, &p, &o, first, 0, 1e6));
    o.cancel = &cancel;
    assert_ok(hth_refine_open(&r, &p, &o, first, 0, 1e6));
    for (int i = 0; i < 2; i++) { // one goes on from the plan, one begins anew
        (void)hth_refine_slice(&whole);
        assert_false(hth_refine_slice(&r));
    }
    assert_true(r.best == NULL && r.us == first->predicted_us);
    if (r.work_ms > whole.work_ms * 0.6) {
        fail_msg("%g ms of work when canceled, %g ms else", r.work_ms, whole.work_ms);
    }
    cancel = 0;
    (void)hth_refine_slice(&r);
    assert_non_null(r.best);
    hth_refine_close(&r);
    hth_refine_close(&whole);
    hth_plan_free(first);
    hth_problem_fini(&p);
}

static void no_memory(void **state)
{
    hth_problem p = make(0.6);
    hth_plan *first = first_plan(&p);
    hth_refine r;
    hth_fault_alloc(1);
    assert_int_equal(hth_refine_open(&r, &p, &(hth_plan_options){.seed = 7}, first, 0, 1e6),
                     HTH_ENOMEM);
    hth_fault_alloc(0);
    hth_refine_close(&r);
    assert_ok(hth_refine_open(&r, &p, &(hth_plan_options){.seed = 7}, first, 0, 1e6));
    for (uint64_t nth = 1; nth < 200; nth += 13) {
        hth_fault_alloc(nth);
        (void)hth_refine_slice(&r);
        hth_fault_alloc(0);
        assert_true(r.us <= first->predicted_us);
    }
    hth_refine_close(&r);
    assert_ok(hth_refine_open(&r, &p, &(hth_plan_options){.seed = 7}, first, 0, 250));
    for (int n = 0; !hth_refine_over(&r); n++) { // none of it begins
        assert_true(n <= 250 / r.slice_ms + 1);
        hth_fault_alloc(1);
        (void)hth_refine_slice(&r);
        hth_fault_alloc(0);
    }
    hth_refine_close(&r);
    hth_plan_free(first);
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_worse),
        cmocka_unit_test(goes_on_from_its_best),
        cmocka_unit_test(same_on_busy_machines),
        cmocka_unit_test(ends_with_its_work),
        cmocka_unit_test(canceled),
        cmocka_unit_test(no_memory),
    };
    hth_clock_inject(pt_still_ns, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
