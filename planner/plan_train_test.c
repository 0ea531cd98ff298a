// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_train_gen.h"
#include "planner/bound/plan_bound.h"
#include "planner/search/plan_search.h"

#include <math.h>

#include "base/clock.h"

static const int resnet50[] = {3, 4, 6, 3};

// Every policy, at shares of the peak: the plan verifies, stays in the budget, and takes the
// predicted time; keep's bytes are the peak's.
static void check_policies(hth_problem problem, const char *name, const double *shares,
                           int n_shares)
{
    uint64_t peak, floor;
    assert_ok(hth_plan_train_peak(&problem, &peak));
    assert_ok(hth_plan_train_floor(&problem, &floor));
    assert_true(floor < peak);
    double fastest = 0;
    for (int i = 0; i < n_shares; i++) {
        problem.budget = (uint64_t)((double)peak * shares[i]);
        double best = 0;
        for (int policy = 0; policy < HTH_POLICY_OPTIMAL; policy++) {
            hth_plan *plan;
            hth_plan_options o = {
                .policy = (hth_policy)policy, .seed = 1, .limit_ms = 5000, .limit_decodes = 3000};
            hth_err err = hth_plan_train(&problem, &o, &plan);
            if (err != HTH_OK) {
                assert_err(err, HTH_ETOOBIG, "budget");
                if (getenv("PLAN_TABLE") != NULL) {
                    print_message("%s %.1f %-14s %s (floor %.2f)\n", name, shares[i],
                                  hth_policy_name((hth_policy)policy), hth_err_detail(),
                                  (double)floor / (double)peak);
                }
                assert_true(policy != HTH_POLICY_HEARTH);
                continue;
            }
            assert_ok(hth_plan_verify(&problem, plan));
            assert_true(plan->arena_bytes + plan->resident_bytes <= problem.budget);
            assert_true(plan->predicted_us >= plan->lower_bound_us * 0.999999);
            fastest = fastest > 0 ? fastest : plan->lower_bound_us;
            if (getenv("PLAN_TABLE") != NULL) {
                print_message(
                    "%s %.1f %-14s %.4f of the fastest, gap %.4f, %.1f ms, arena/live %.4f\n", name,
                    shares[i], hth_policy_name((hth_policy)policy), plan->predicted_us / fastest,
                    plan->predicted_us / plan->lower_bound_us - 1, plan->plan_ms,
                    (double)plan->arena_bytes / (double)plan->live_peak_bytes);
            }
            best = policy == HTH_POLICY_HEARTH ? plan->predicted_us : best;
            assert_true(best <= plan->predicted_us * 1.02);
            hth_plan_free(plan);
        }
    }
    hth_problem_fini(&problem);
}

static void policies_on_networks(void **state)
{
    static const double shares[] = {0.8, 0.6};
    check_policies(pg_vgg19(144, 227), "vgg19", shares, 2);
    check_policies(pg_unet(16, 256, 256), "unet", shares, 2);
    check_policies(pg_resnet(64, resnet50), "resnet50", shares, 2);
}

static void random_networks_verify(void **state)
{
    for (uint64_t seed = 0; seed < 60; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 5 + (int)(seed % 30));
        uint64_t peak;
        assert_ok(hth_plan_train_peak(&p, &peak));
        for (int share = 90; share >= 30; share -= 20) {
            hth_plan *plan;
            p.budget = peak / 100 * (uint64_t)share;
            hth_plan_options o = {
                .policy = (hth_policy)(seed % HTH_POLICY_OPTIMAL), .seed = seed, .limit_ms = 5};
            if (hth_plan_train(&p, &o, &plan) == HTH_OK) {
                assert_ok(hth_plan_verify(&p, plan));
                hth_plan_free(plan);
            }
        }
        hth_problem_fini(&p);
    }
}

static void agrees_with_instructions(hth_problem *p, const hth_decoder *d, const hth_outcome *o)
{
    hth_schedule s;
    hth_plan *plan;
    assert_ok(hth_decode_schedule(d, o, &s));
    assert_ok(hth_plan_emit(p, &s, false, &plan));
    p->budget = UINT64_MAX / 4;
    assert_ok(hth_plan_verify(p, plan));
    assert_float_equal(plan->predicted_us, o->time_us, o->time_us * 1e-9);
    assert_true(plan->live_peak_bytes + plan->resident_bytes <= o->peak_bytes);
    hth_plan_free(plan);
    hth_schedule_fini(&s);
}

// What the decoder says is what the emitted instructions take; also when it is told all decisions,
// such as those that another one made, which need no more memory then.
static void decode_agrees_with_instructions(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 4 + (int)(seed % 25));
        hth_step m;
        hth_decoder d, again;
        hth_outcome o, fixed;
        uint64_t peak;
        assert_ok(hth_plan_train_peak(&p, &peak));
        assert_ok(hth_step_init(&m, &p));
        assert_ok(hth_decoder_init(&d, &m, peak / 100 * (40 + seed % 60)));
        assert_ok(hth_decoder_init(&again, &m, d.budget));
        uint8_t *mode = hth_calloc((size_t)m.n_intervals + 1, 1);
        for (int g = 0; g < m.n_intervals; g++) {
            mode[g] = (uint8_t)pt_random(HTH_N_INTERVAL_MODES);
        }
        hth_decode(&d, mode, &o);
        agrees_with_instructions(&p, &d, &o);
        const hth_fixed made = {d.mode, d.away, d.back, d.item};
        hth_decode_fixed(&again, &made, &fixed);
        agrees_with_instructions(&p, &again, &fixed);
        assert_true(fixed.peak_bytes <= o.peak_bytes && fixed.excess <= o.excess);
        hth_free(mode);
        hth_decoder_fini(&again);
        hth_decoder_fini(&d);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
}

// Whether a step fits depends on its modes alone: not on whether copies give way to faster
// algorithms, too.
static void hurries_fit_the_same(void **state)
{
    int n_fit = 0, n_not = 0;
    for (uint64_t seed = 0; seed < 400; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 4 + (int)(seed % 25));
        hth_step m;
        hth_decoder d;
        uint64_t peak;
        assert_ok(hth_plan_train_peak(&p, &peak));
        assert_ok(hth_step_init(&m, &p));
        assert_ok(hth_decoder_init(&d, &m, 0));
        uint8_t *mode = hth_calloc((size_t)m.n_intervals + 1, 1);
        for (int share = 40; share < 100; share += 2) {
            hth_outcome calm, hurried;
            d.budget = peak / 100 * (uint64_t)share;
            for (int g = 0; g < m.n_intervals; g++) {
                mode[g] = pt_random(4) > 0 ? HTH_INTERVAL_OFFLOAD : HTH_INTERVAL_KEEP;
            }
            d.hurries = false;
            hth_decode(&d, mode, &calm);
            d.hurries = true;
            hth_decode(&d, mode, &hurried);
            assert_int_equal(calm.excess > 0, hurried.excess > 0);
            n_fit += calm.excess == 0;
            n_not += calm.excess > 0;
        }
        hth_free(mode);
        hth_decoder_fini(&d);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
    assert_true(n_fit > 400 / TEST_STRIDE && n_not > 400 / TEST_STRIDE);
}

// Small steps, all modes of all intervals tried: the bound is never above the best plan.
static void bounds_hold(void **state)
{
    int solved = 0;
    for (uint64_t seed = 0; seed < 1600; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 2 + (int)(seed % 3));
        hth_step m;
        uint64_t peak;
        assert_ok(hth_plan_train_peak(&p, &peak));
        assert_ok(hth_step_init(&m, &p));
        uint64_t budget = peak / 100 * (40 + seed % 60);
        hth_decoder d;
        hth_outcome o;
        assert_ok(hth_decoder_init(&d, &m, budget));
        uint8_t mode[12] = {0};
        double best = INFINITY, bound, bound2;
        int all = 1;
        for (int g = 0; g < m.n_intervals && g <= 8; g++) {
            all *= HTH_N_INTERVAL_MODES;
        }
        for (int code = 0; m.n_intervals <= 8 && code < all; code++) {
            for (int g = 0, c = code; g < m.n_intervals; g++, c /= HTH_N_INTERVAL_MODES) {
                mode[g] = (uint8_t)(c % HTH_N_INTERVAL_MODES);
            }
            hth_decode(&d, mode, &o);
            best = o.excess == 0 && o.time_us < best ? o.time_us : best;
        }
        if (best < INFINITY) {
            solved++;
            assert_ok(hth_step_bound(&m, budget, best, 300, 0, NULL, NULL, &bound));
            assert_true(bound <= best * (1 + 1e-9));
            assert_ok(hth_step_bound(&m, budget, best * 2, 50, 0, NULL, NULL, &bound2));
            assert_true(bound2 <= best * (1 + 1e-9));
        }
        hth_decoder_fini(&d);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
    assert_true(solved > 100 / TEST_STRIDE);
}

// Near its floor a step is searched for longer: the first search leaves this one at 1.8 times its
// fastest algorithms' time and more.
static void what_the_certificate_leaves_open_is_searched_longer(void **state)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        hth_problem p = pg_unet(120, 256, 256);
        hth_step m;
        hth_plan *plan;
        p.budget = 9600000000;
        assert_ok(hth_step_init(&m, &p));
        assert_ok(hth_plan_train(&p, &(hth_plan_options){.seed = seed}, &plan));
        assert_ok(hth_plan_verify(&p, plan));
        assert_false(plan->stopped);
        assert_true(plan->predicted_us < 1.7 * m.fastest_us);
        assert_true(plan->lower_bound_us > 1.08 * m.fastest_us);
        hth_plan_free(plan);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
}

// Where the budget cannot come down for falls, the search has its best so far and the greedy
// starts.
static void what_does_not_come_down_keeps_its_best(void **state)
{
    for (int i = 2; i <= 4; i++) { // the first is such a case
        hth_problem p = pg_unet(120, 256, 256);
        hth_step m;
        hth_search search;
        hth_outcome o;
        uint64_t peak, floor;
        assert_ok(hth_plan_train_peak(&p, &peak));
        assert_ok(hth_plan_train_floor(&p, &floor));
        p.h2d_bytes_per_s = p.d2h_bytes_per_s = 1e8;
        p.budget = floor + (peak - floor) / 20 * (uint64_t)i;
        assert_ok(hth_step_init(&m, &p));
        assert_ok(hth_search_open(&search, &m, p.budget, &(hth_plan_options){.seed = 1}));
        search.deadline_ns = hth_plan_work_now_ns() + 400000000;
        search.best_score = INFINITY;
        hth_search_keep_all(&search, search.mode);
        search.score = hth_search_try(&search, search.mode, &o);
        hth_search_keep_best(&search);
        double kept = search.best_score;
        search.stall_price = 4;
        hth_search_valleys(&search);
        assert_true(search.best_score > -INFINITY && search.best_score <= kept);
        hth_search_close(&search);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_agrees_with_instructions),
        cmocka_unit_test(random_networks_verify),
        cmocka_unit_test(hurries_fit_the_same),
        cmocka_unit_test(bounds_hold),
        cmocka_unit_test(policies_on_networks),
        cmocka_unit_test(what_the_certificate_leaves_open_is_searched_longer),
        cmocka_unit_test(what_does_not_come_down_keeps_its_best),
    };
    hth_clock_inject(pt_still_ns, NULL); // a busy machine stops no search
    return cmocka_run_group_tests(tests, NULL, NULL);
}
