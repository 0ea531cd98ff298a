// SPDX-License-Identifier: Apache-2.0
// What a refusal says of memory is true: "needs at least" is said of what no plan can do with less,
// whoever makes it, and otherwise that no plan was found.
#include "planner/plan_least_test.h"
#include "base/clock.h"
#include "planner/plan_train_gen.h"

// in -> conv(w) -> relu (in-place) -> out, sizes by hand.
static void by_hand(void **state)
{
    hth_problem p = pt_problem(8, 3);
    int node, x = pt_tensor(&p, HTH_MEM_INPUT, 1000, -1);
    int w = pt_tensor(&p, HTH_MEM_WEIGHT, 4096, -1);
    pt_tensor(&p, HTH_MEM_WEIGHT, 1 << 20, -1); // that nobody reads
    int a = pt_node(&p, (int[]){x, w, x}, 3, HTH_MEM_ACTIVATION, 2048, false);
    int b = pt_node(&p, (int[]){a}, 1, HTH_MEM_ACTIVATION, 2048, true);
    pt_node(&p, (int[]){b}, 1, HTH_MEM_OUTPUT, 64, false);
    pt_choice(&p, 0, 10, 100000);
    pt_choice(&p, 0, -1, 129);
    assert_int_equal(hth_plan_min(&p, &node), 1024 + 4096 + 2048 + 192);
    assert_int_equal(node, 0);
    p.loose = true; // no workspace, no weight, and the output may not lie in the smaller input
    assert_int_equal(hth_plan_min(&p, NULL), 1024 + 2048);
    p.tensors[x].bytes = 2048;
    assert_int_equal(hth_plan_min(&p, &node), 2048);
    assert_int_equal(node, 0);
    p.loose = false;
    p.tensors[p.n_tensors - 1].bytes = 16384; // what is there at the end
    assert_int_equal(hth_plan_min(&p, &node), 16384 + 2048);
    p.tensors[p.n_tensors - 1].bytes = 64;
    p.tensors[x].external = true;
    assert_int_equal(hth_plan_min(&p, NULL), 4096 + 2048 + 192);
    p.h2d_bytes_per_s = 0; // the weight stays, also while another node runs
    p.nodes[2].n_alternatives = 0;
    pt_choice(&p, 2, 1, 8192);
    assert_int_equal(hth_plan_min(&p, &node), 4096 + 2048 + 64 + 8192);
    assert_int_equal(node, 2);
    hth_problem_fini(&p);
    p = pt_problem(1, 1);
    assert_int_equal(hth_plan_min(&p, &node), 0);
    assert_int_equal(node, -1);
    hth_problem_fini(&p);
}

static void words(void **state)
{
    hth_shortage s = {.budget = 10 << 20, .least = 28416671, .found = 30000000, .policy = "keep"};
    assert_err(hth_shortage_fail(&s), HTH_ETOOBIG,
               "needs at least 27.1 MiB, the budget is 10.0 MiB; a plan was found for 28.7 MiB");
    s.node = "conv";
    s.budget = 28416670; // they look alike
    assert_err(
        hth_shortage_fail(&s), HTH_ETOOBIG,
        "needs at least 28416671 B (node 'conv' alone takes that), the budget is 28416670 B; "
        "a plan was found for 30000000 B");
    s.budget = 28416671;
    assert_err(
        hth_shortage_fail(&s), HTH_ETOOBIG,
        "no plan was found for a budget of 27.1 MiB (policy keep); one was found for 28.7 MiB; "
        "none fits below 27.1 MiB");
    s.found = 28416672;
    assert_err(hth_shortage_fail(&s), HTH_ETOOBIG,
               "a budget of 27.1 MiB (policy keep); one was found for 27.2 MiB");
    s.found = 0;
    s.least = 20 << 20;
    assert_err(hth_shortage_fail(&s), HTH_ETOOBIG,
               "a budget of 27.1 MiB (policy keep); none fits below 20.0 MiB");
    s.least = 0;
    s.policy = NULL;
    hth_shortage_fail(&s);
    assert_string_equal(hth_err_detail(), "no plan was found for a budget of 27.1 MiB");
}

// What hth_plan_inference refuses, and what a plan with the moves of a training step can do with.
static void forward_passes(void **state)
{
    int n_proven = 0, n_not_found = 0, n_below = 0;
    for (uint64_t seed = 1; seed <= 60; seed += TEST_STRIDE) {
        hth_problem p = pt_random_problem(seed, 2 + (int)(seed % 40));
        uint64_t floor, fewest, found = 0;
        p.h2d_bytes_per_s = seed % 5 == 0 ? 0 : 1e9 * (double)(1 + seed % 4);
        p.d2h_bytes_per_s = p.h2d_bytes_per_s;
        for (int i = 0; i < p.n_nodes; i++) {
            p.nodes[i].recomputable = seed % 2 == 0;
        }
        assert_ok(hth_plan_floor(&p, &floor));
        fewest = pl_fewest(&p, seed, floor);
        n_below += fewest < floor;
        for (int k = 0; k <= 8; k++) {
            hth_plan *plan;
            p.budget = k < 8 ? floor / 8 * (uint64_t)k : floor - 1;
            if (hth_plan_inference(&p, &plan) == HTH_OK) {
                fewest = fewest < p.budget ? fewest : p.budget;
                hth_plan_free(plan);
                continue;
            }
            *(pl_check(hth_err_detail(), p.budget, fewest, &found) ? &n_proven : &n_not_found) += 1;
        }
        hth_plan *plan;
        p.budget = found; // that the last refusal named
        assert_ok(hth_plan_inference(&p, &plan));
        hth_plan_free(plan);
        hth_problem_fini(&p);
    }
    print_message("# %d proven, %d not found; %d floors of the planner are not any plan's\n",
                  n_proven, n_not_found, n_below);
    assert_true(n_proven > 0 && n_not_found > 0 && n_below > 0);
}

static void training_steps(void **state)
{
    int n_proven = 0, n_not_found = 0;
    for (uint64_t seed = 0; seed < 40; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 4 + (int)(seed % 20));
        uint64_t peak, fewest, found = 0;
        p.loose = seed % 4 == 3;
        if (seed % 7 == 6) {
            p.h2d_bytes_per_s = p.d2h_bytes_per_s = 0;
        }
        assert_ok(hth_plan_train_peak(&p, &peak));
        fewest = pl_fewest(&p, seed, peak);
        assert_in_range(hth_plan_min(&p, NULL), 1, fewest);
        for (int k = 0; k < 8; k++) {
            hth_plan *plan;
            hth_plan_options o = {.policy = (hth_policy)((seed + (uint64_t)k) % HTH_POLICY_OPTIMAL),
                                  .seed = seed,
                                  .limit_ms = 5000,
                                  .limit_decodes = 20};
            p.budget = k < 7 ? peak / 8 * (uint64_t)k : fewest - 1;
            if (hth_plan_train(&p, &o, &plan) == HTH_OK) {
                fewest = fewest < p.budget ? fewest : p.budget;
                hth_plan_free(plan);
                continue;
            }
            *(pl_check(hth_err_detail(), p.budget, fewest, &found) ? &n_proven : &n_not_found) += 1;
            // Everything kept is a plan, too, of little more at most: its addresses are hasty.
            assert_in_range(found, 1, peak + peak / 8);
        }
        hth_problem_fini(&p);
    }
    print_message("# %d proven, %d not found\n", n_proven, n_not_found);
    assert_true(n_proven > 0 && n_not_found > 0);
}

int main(void)
{
    hth_clock_inject(pt_still_ns, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_hand), cmocka_unit_test(words),
                                       cmocka_unit_test(forward_passes),
                                       cmocka_unit_test(training_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
