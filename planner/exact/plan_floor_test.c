// SPDX-License-Identifier: Apache-2.0
// The floor of a training step: no schedule fits below it. CBC proves that, and that one fits at it
// where there is a link, on small steps.
#include "planner/exact/plan_optimal.h"
#include "planner/plan_train_gen.h"

#include "base/clock.h"

#define FLOOR_STEPS 12 // small ones that are tried
#define FLOOR_MS    20000

// Whether cbc finds a schedule within `budget`; *known: it proved one or the other. False at once
// where there is no cbc.
static bool floor_solves(const hth_problem *problem, uint64_t budget, bool *fits, bool *known)
{
    hth_step step;
    hth_search search;
    hth_outcome out;
    hth_plan_options o = {.policy = HTH_POLICY_OPTIMAL, .limit_ms = FLOOR_MS};
    hth_problem at = *problem;
    at.budget = budget;
    assert_ok(hth_step_init(&step, &at));
    assert_ok(hth_search_open(&search, &step, budget, &o));
    hth_err err = hth_search_optimal(&search, &step, &o, &out);
    bool there = err != HTH_ENOTSUP || strstr(hth_err_detail(), "not installed") == NULL;
    *fits = err == HTH_OK;
    *known = err == HTH_OK || err == HTH_ETOOBIG;
    assert_true(!*fits || out.peak_bytes <= budget);
    hth_search_close(&search);
    hth_step_fini(&step);
    return there;
}

// in -> a -> b -> c, with b's input read again at the end.
static void by_hand(void **state)
{
    hth_problem p = pt_problem(8, 4);
    uint64_t floor;
    int x = pt_tensor(&p, HTH_MEM_INPUT, 1000, -1), w = pt_tensor(&p, HTH_MEM_STATE, 4096, -1);
    int a = pt_node(&p, (int[]){x, w}, 2, HTH_MEM_ACTIVATION, 2048, false);
    int b = pt_node(&p, (int[]){a}, 1, HTH_MEM_ACTIVATION, 8192, false);
    int c = pt_node(&p, (int[]){b}, 1, HTH_MEM_ACTIVATION, 8192, true);
    pt_node(&p, (int[]){c, a}, 2, HTH_MEM_OUTPUT, 64, false);
    pt_choice(&p, 1, 10, 100000);
    pt_choice(&p, 1, 20, 640);
    assert_ok(hth_plan_train_floor(&p, &floor)); // the weight may leave, x and a may not
    assert_int_equal(floor, 2048 + 8192 + 640);
    p.h2d_bytes_per_s = 0; // nothing can leave: the weight stays, and a, which b's stage reads
    assert_ok(hth_plan_train_floor(&p, &floor));
    assert_int_equal(floor, 4096 + 2048 + 8192 + 640);
    p.nodes[0].n_alternatives = 0;
    pt_choice(&p, 3, 1, 1 << 20); // with all that the last node has
    assert_ok(hth_plan_train_floor(&p, &floor));
    assert_int_equal(floor, 4096 + 2048 + 8192 + 64 + (1 << 20));
    hth_problem_fini(&p);
}

// With a link cbc fits a step into its floor, and proves that it fits into no less.
static void exact_with_a_link(void **state)
{
    int tried = 0, proven = 0, planned = 0;
    double more = 0;
    for (uint64_t seed = 1; tried < FLOOR_STEPS; seed++) {
        hth_problem p = pg_random(seed, 2 + (int)(seed % 4));
        hth_plan *plan;
        uint64_t floor;
        bool fits, known, below, known_below;
        assert_ok(hth_plan_train_floor(&p, &floor));
        assert_in_range(hth_plan_min(&p, NULL), 1, floor);
        if (!floor_solves(&p, floor, &fits, &known)) {
            hth_problem_fini(&p);
            skip();
        }
        assert_true(floor_solves(&p, floor - HTH_PLAN_ALIGN, &below, &known_below));
        if (known && !fits) {
            fail_msg("seed %d: nothing fits into the floor", (int)seed);
        }
        if (known_below && below) {
            fail_msg("seed %d: something fits below the floor", (int)seed);
        }
        tried++;
        proven += known && known_below;
        p.budget = floor;
        planned += hth_plan_train(&p, &(hth_plan_options){.seed = 1}, &plan) == HTH_OK;
        if (plan != NULL) {
            assert_ok(hth_plan_verify(&p, plan));
            hth_plan_free(plan);
        } else { // addresses
            double share = 0;
            for (int k = 1; k <= 64 && plan == NULL; k++) {
                share = k / 256.0;
                p.budget = floor + floor / 256 * (uint64_t)k;
                (void)hth_plan_train(&p, &(hth_plan_options){.seed = 1}, &plan);
            }
            assert_non_null(plan);
            more = share > more ? share : more;
            hth_plan_free(plan);
        }
        hth_problem_fini(&p);
    }
    print_message("# %d steps: %d proven, %d planned in their floor, all in %.1f %% more\n", tried,
                  proven, planned, 100 * more);
    assert_true(proven >= tried / 2 && planned >= tried / 2);
}

// A plan that takes many times the step is still a plan: near the floor there may be no other.
static void slow_plans_are_found(void **state)
{
    for (uint64_t seed = 1; seed < 12; seed++) {
        hth_problem p = pg_random(seed, 6);
        hth_plan *plan;
        uint64_t floor;
        p.h2d_bytes_per_s = p.d2h_bytes_per_s = 1e7;
        for (int i = 0; i < p.n_nodes; i++) { // nothing is recomputed
            p.nodes[i].recomputable = false;
        }
        assert_ok(hth_plan_train_floor(&p, &floor));
        p.budget = floor + floor / 10;
        assert_ok(hth_plan_train(&p, &(hth_plan_options){.seed = 1}, &plan));
        assert_ok(hth_plan_verify(&p, plan));
        hth_plan_free(plan);
        hth_problem_fini(&p);
    }
}

// Without a link it is proven, too, and how far the least that cbc fits is above it is printed.
static void proven_without_a_link(void **state)
{
    int tried = 0, exact = 0;
    for (uint64_t seed = 1; tried < FLOOR_STEPS / 3; seed++) {
        hth_problem p = pg_random(seed, 2 + (int)(seed % 3));
        uint64_t floor;
        bool fits, known;
        p.h2d_bytes_per_s = p.d2h_bytes_per_s = 0;
        assert_ok(hth_plan_train_floor(&p, &floor));
        if (!floor_solves(&p, floor - HTH_PLAN_ALIGN, &fits, &known)) {
            hth_problem_fini(&p);
            skip();
        }
        assert_true(!known || !fits);
        assert_true(floor_solves(&p, floor, &fits, &known));
        tried++;
        exact += known && fits;
        hth_problem_fini(&p);
    }
    print_message("# %d of %d exact without a link\n", exact, tried);
}

int main(void)
{
    hth_clock_inject(pt_still_ns, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(exact_with_a_link),
        cmocka_unit_test(slow_plans_are_found),
        cmocka_unit_test(proven_without_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
