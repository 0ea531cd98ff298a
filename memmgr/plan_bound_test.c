// SPDX-License-Identifier: Apache-2.0
#include "memmgr/plan_bound.h"
#include "memmgr/plan_train_gen.h"

#include <math.h>

static double bound_of(const hth_step *m, uint64_t budget, double known_us)
{
    double us;
    assert_ok(hth_step_bound(m, budget, known_us, 200, &us));
    return us;
}

// No schedule is faster than the bound, found by the search or at random.
static void bounds_hold_on_random_networks(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        hth_problem p = pg_random(seed, 4 + (int)(seed % 30));
        hth_step m;
        hth_decoder d;
        uint64_t peak, floor;
        assert_ok(hth_plan_train_peak(&p, &peak));
        assert_ok(hth_plan_train_floor(&p, &floor));
        assert_ok(hth_step_init(&m, &p));
        p.budget = floor + (peak - floor) / 8 * (seed % 8);
        hth_plan *plan;
        hth_plan_options o = {.seed = seed, .limit_ms = 1000, .limit_decodes = 300};
        double known = 2 * m.fastest_us;
        if (hth_plan_train(&p, &o, &plan) == HTH_OK) {
            known = plan->predicted_us;
            hth_plan_free(plan);
        }
        double us = bound_of(&m, p.budget, 1.5 * known); // steers beyond what is true
        assert_true(us <= known * (1 + 1e-9) || known == 2 * m.fastest_us);
        assert_ok(hth_decoder_init(&d, &m, p.budget));
        uint8_t *mode = hth_calloc((size_t)m.n_gaps + 1, 1);
        for (int k = 0; k < 200; k++) {
            hth_outcome out;
            for (int g = 0; g < m.n_gaps; g++) {
                mode[g] = (uint8_t)pt_random(3);
            }
            hth_decode(&d, mode, &out);
            assert_true(out.excess > 0 || us <= out.time_us * (1 + 1e-9));
            assert_true(out.excess > 0 || p.budget >= floor);
        }
        hth_free(mode);
        hth_decoder_fini(&d);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
}

// Every combination of modes on small networks: the bound is under the best of them.
static void bounds_hold_against_all_schedules(void **state)
{
    int tried = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        hth_problem p = pg_random(seed, 3);
        hth_step m;
        hth_decoder d;
        uint64_t peak, floor;
        assert_ok(hth_plan_train_peak(&p, &peak));
        assert_ok(hth_plan_train_floor(&p, &floor));
        assert_ok(hth_step_init(&m, &p));
        uint64_t budget = floor + (peak - floor) / 10 * (seed % 10);
        assert_ok(hth_decoder_init(&d, &m, budget));
        int total = 1;
        for (int g = 0; g < m.n_gaps && total < 100000; g++) {
            total *= 3;
        }
        uint8_t mode[64] = {0};
        double best = INFINITY;
        for (int k = 0; total < 20000 && k < total; k++) {
            hth_outcome out;
            for (int g = 0, rest = k; g < m.n_gaps; g++, rest /= 3) {
                mode[g] = (uint8_t)(rest % 3);
            }
            hth_decode(&d, mode, &out);
            best = out.excess == 0 ? fmin(best, out.time_us) : best;
        }
        if (best < INFINITY) {
            tried++;
            assert_true(bound_of(&m, budget, best) <= best * (1 + 1e-9));
        }
        hth_decoder_fini(&d);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
    assert_true(tried > 20);
}

static void allocations_fail_cleanly(void **state)
{
    hth_problem p = pg_random(3, 8);
    hth_step m;
    uint64_t peak, floor;
    double us;
    assert_ok(hth_plan_train_peak(&p, &peak));
    assert_ok(hth_step_init(&m, &p));
    FAULT_LOOP(hth_step_bound(&m, peak / 2, 1e9, 20, &us));
    FAULT_LOOP(hth_plan_train_floor(&p, &floor));
    assert_true(floor < peak);
    hth_step_fini(&m);
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_hold_on_random_networks),
        cmocka_unit_test(bounds_hold_against_all_schedules),
        cmocka_unit_test(allocations_fail_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
