// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_test.h"

#include <time.h>

// in -> conv(w0) -> relu (in-place) -> conv(w1) -> add(skip) -> out, sizes by hand.
static hth_problem small_problem(void)
{
    hth_problem p = pt_problem(16, 8);
    int x = pt_tensor(&p, HTH_MEM_INPUT, 1024, -1), w0 = pt_tensor(&p, HTH_MEM_WEIGHT, 4096, -1);
    int w1 = pt_tensor(&p, HTH_MEM_WEIGHT, 8192, -1);
    p.tensors[x].external = true;
    int a = pt_node(&p, (int[]){x, w0}, 2, HTH_MEM_ACTIVATION, 2048, false);
    int b = pt_node(&p, (int[]){a}, 1, HTH_MEM_ACTIVATION, 2048, true);
    int c = pt_node(&p, (int[]){b, w1}, 2, HTH_MEM_ACTIVATION, 2048, false);
    int d = pt_node(&p, (int[]){c, b}, 2, HTH_MEM_OUTPUT, 2048, true);
    p.tensors[d].external = true;
    pt_choice(&p, 0, 10, 0);
    pt_choice(&p, 1, 1, 0);
    pt_choice(&p, 2, 20, 6400);
    pt_choice(&p, 2, 30, 640);
    pt_choice(&p, 2, 25, 6400); // never better than the first
    pt_choice(&p, 3, 1, 0);
    return p;
}

static int count(const hth_plan *plan, hth_instr_kind kind)
{
    int n = 0;
    for (int i = 0; i < plan->n_instrs; i++) {
        n += plan->instrs[i].kind == kind;
    }
    return n;
}

static int alt_of(const hth_plan *plan, int node)
{
    for (int i = 0; i < plan->n_instrs; i++) {
        if (plan->instrs[i].kind == HTH_INSTR_COMPUTE && plan->instrs[i].node == node) {
            return plan->instrs[i].alt;
        }
    }
    return -1;
}

static void test_everything_fits(void **state)
{
    hth_problem p = small_problem();
    hth_plan *plan;
    assert_ok(hth_plan_inference(&p, &plan));
    assert_ok(hth_plan_verify(&p, plan));
    assert_int_equal(plan->resident_bytes, 4096 + 8192);
    assert_int_equal(plan->arena_bytes,
                     2048 + 2048 + 6400); // b, c and node 2's workspace; a and b share
    assert_int_equal(plan->live_peak_bytes, plan->arena_bytes);
    assert_int_equal(count(plan, HTH_INSTR_PREFETCH), 0);
    assert_true(plan->predicted_us == 32 && plan->lower_bound_us == 32);
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

static void test_algorithm_is_degraded_to_fit(void **state)
{
    hth_problem p = small_problem();
    hth_plan *plan;
    p.h2d_bytes_per_s = 1e6; // streaming would take milliseconds
    p.budget = 12288 + 4096 + 640;
    assert_ok(hth_plan_inference(&p, &plan));
    assert_ok(hth_plan_verify(&p, plan));
    assert_int_equal(alt_of(plan, 2), 1);
    assert_int_equal(plan->arena_bytes, 4096 + 640);
    assert_true(plan->predicted_us == 42);
    hth_plan_free(plan);
    p.h2d_bytes_per_s = 0; // no link: this budget is the floor
    uint64_t floor;
    assert_ok(hth_plan_floor(&p, &floor));
    assert_int_equal(floor, p.budget);
    p.budget--;
    assert_err(hth_plan_inference(&p, &plan), HTH_ETOOBIG,
               "needs at least 17024 B, the budget is 17023 B");
    assert_null(plan);
    hth_problem_fini(&p);
}

// Without room for both weights one is streamed; the other's copy hides behind compute or not, as
// the link allows.
static void test_weights_are_streamed(void **state)
{
    hth_problem p = small_problem();
    hth_plan *plan;
    uint64_t floor;
    assert_ok(hth_plan_floor(&p, &floor));
    assert_int_equal(floor, 4096 + 640 + 8192); // stage 2: b, c, w1 and the smaller workspace
    p.budget = floor;
    assert_ok(hth_plan_inference(&p, &plan));
    assert_ok(hth_plan_verify(&p, plan));
    assert_true(plan->resident_bytes + plan->arena_bytes <= floor);
    assert_true(count(plan, HTH_INSTR_PREFETCH) >= 1);
    hth_plan_free(plan);
    p.budget =
        floor +
        4096; // w0 beside w1: the copy of 8 KiB takes 5 + 1.6 us and hides behind node 0's 10 us
    assert_ok(hth_plan_inference(&p, &plan));
    assert_ok(hth_plan_verify(&p, plan));
    assert_true(plan->predicted_us <= 42);
    hth_plan_free(plan);
    p.budget = floor - 1;
    assert_err(hth_plan_inference(&p, &plan), HTH_ETOOBIG, "budget");
    hth_problem_fini(&p);
}

// Random networks at budgets from the floor to twice the peak: every plan is sound, within its
// budget, and close to the live peak; more budget than the peak gives the fastest algorithms
// everywhere.
static void test_random_networks(void **state)
{
    double ratio = 0;
    int n_plans = 0;
    for (uint64_t seed = 1; seed <= 150; seed += TEST_STRIDE) {
        hth_problem p = pt_random_problem(seed, 2 + (int)(seed % 60));
        hth_plan *plan;
        uint64_t floor, full;
        p.h2d_bytes_per_s = seed % 5 == 0 ? 0 : 1e8 * (double)(seed % 40);
        assert_ok(hth_plan_inference(&p, &plan));
        assert_ok(hth_plan_verify(&p, plan));
        full = plan->resident_bytes + plan->arena_bytes;
        double fastest = plan->predicted_us;
        hth_plan_free(plan);
        assert_ok(hth_plan_floor(&p, &floor));
        assert_true(floor <= full);
        for (int step = 0; step <= 8; step++) {
            p.budget = step < 8 ? floor + (full - floor) * (uint64_t)step / 7 : 2 * full;
            assert_ok(hth_plan_inference(&p, &plan));
            hth_err err = hth_plan_verify(&p, plan);
            if (err != HTH_OK) {
                fail_msg("seed %d step %d: %s", (int)seed, step, hth_err_detail());
            }
            assert_true(plan->resident_bytes + plan->arena_bytes <= p.budget);
            assert_true(plan->predicted_us >= plan->lower_bound_us * 0.999999);
            assert_true(step < 7 || plan->predicted_us == fastest);
            ratio += plan->live_peak_bytes
                         ? (double)plan->arena_bytes / (double)plan->live_peak_bytes
                         : 1;
            n_plans++;
            hth_plan_free(plan);
        }
        p.budget = floor - 1;
        assert_err(hth_plan_inference(&p, &plan), HTH_ETOOBIG, "budget");
        hth_problem_fini(&p);
    }
    print_message("# %d plans, arena / live peak %.4f on average\n", n_plans, ratio / n_plans);
    assert_true(ratio / n_plans <= 1.05);
}

static void test_same_problem_same_plan(void **state)
{
    hth_problem p = pt_random_problem(9, 80);
    uint64_t floor;
    hth_plan *a, *b;
    assert_ok(hth_plan_floor(&p, &floor));
    p.budget = floor + floor / 8;
    assert_ok(hth_plan_inference(&p, &a));
    assert_ok(hth_plan_inference(&p, &b));
    assert_int_equal(a->n_instrs, b->n_instrs);
    for (int i = 0; i < a->n_instrs; i++) {
        const hth_instr *x = &a->instrs[i], *y = &b->instrs[i];
        assert_true(x->kind == y->kind && x->tensor == y->tensor && x->node == y->node &&
                    x->alt == y->alt && x->offset == y->offset && x->n_waits == y->n_waits &&
                    x->end_us == y->end_us);
    }
    hth_plan_free(a);
    hth_plan_free(b);
    hth_problem_fini(&p);
}

static hth_err plan_once(const hth_problem *problem)
{
    hth_plan *plan;
    HTH_TRY(hth_plan_inference(problem, &plan));
    hth_err err = hth_plan_verify(problem, plan);
    hth_plan_free(plan);
    return err;
}

static void test_allocation_faults(void **state)
{
    hth_problem p = pt_random_problem(3, 12);
    FAULT_LOOP(plan_once(&p));
    FAULT_LOOP(hth_plan_floor(&p, &p.budget));
    FAULT_LOOP(plan_once(&p));
    hth_problem_fini(&p);
}

static void test_bad_problems(void **state)
{
    hth_problem p = small_problem();
    hth_plan *plan;
    p.nodes[1].inputs[0] = p.nodes[3].outputs[0];
    assert_err(hth_plan_inference(&p, &plan), HTH_EINVAL, "produced before it");
    p.nodes[1].inputs[0] = 99;
    assert_err(hth_plan_inference(&p, &plan), HTH_EINVAL, "produced before it");
    hth_problem_fini(&p);
    p = small_problem();
    p.tensors[1].bytes = UINT64_MAX;
    assert_err(hth_plan_inference(&p, &plan), HTH_EINVAL, "out of range");
    p.tensors[1].bytes = 1;
    p.nodes[0].outputs[0] = 1;
    assert_err(hth_plan_inference(&p, &plan), HTH_EINVAL, "another node's");
    hth_problem_fini(&p);
    p = pt_problem(1, 1); // nothing to do is a plan too
    assert_ok(plan_once(&p));
    hth_problem_fini(&p);
}

static void test_planning_is_fast(void **state)
{
    static const int sizes[] = {500, 5000};
    for (int k = 0; k < 2; k++) {
        hth_problem p = pt_random_problem(42, sizes[k]);
        uint64_t floor;
        hth_plan *plan;
        assert_ok(hth_plan_floor(&p, &floor));
        for (int part = 0; part <= 4; part++) {
            p.budget = part < 4 ? floor + floor * (uint64_t)part / 3 * 2 : UINT64_MAX / 4;
            clock_t start = clock();
            assert_ok(hth_plan_inference(&p, &plan));
            double cpu_ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
            print_message("# %d nodes, budget %.2f of floor: %.1f ms, %d fetches, %.0f us (bound "
                          "%.0f), arena/peak %.4f\n",
                          sizes[k], (double)p.budget / (double)floor, cpu_ms,
                          count(plan, HTH_INSTR_PREFETCH), plan->predicted_us, plan->lower_bound_us,
                          (double)plan->arena_bytes / (double)plan->live_peak_bytes);
            assert_true(cpu_ms < 10000); // a limit against runaway growth, not a measurement
            hth_plan_free(plan);
        }
        hth_problem_fini(&p);
    }
}

// Two pairs of one node: both outputs take over their inputs' places.
static void test_pairs(void **state)
{
    hth_problem p = pt_problem(8, 3);
    int x = pt_tensor(&p, HTH_MEM_INPUT, 64, -1);
    p.tensors[x].external = true;
    int a = pt_node(&p, &x, 1, HTH_MEM_ACTIVATION, 4096, false);
    int b = pt_node(&p, &x, 1, HTH_MEM_ACTIVATION, 2048, false);
    int c = pt_node(&p, (int[]){a, b}, 2, HTH_MEM_OUTPUT, 2048, false);
    hth_plan_node *n = &p.nodes[2];
    int out[2] = {c, pt_tensor(&p, HTH_MEM_OUTPUT, 4096, 2)};
    const int pairs[2][2] = {{b, c}, {a, out[1]}};
    hth_free(n->outputs);
    n->outputs = hth_memdup(out, sizeof out);
    n->n_outputs = 2;
    n->inplace = hth_memdup(pairs, sizeof pairs);
    for (n->n_inplace = 0; n->n_inplace <= 2; n->n_inplace++) {
        static const uint64_t want[] = {2 * 6144, 6144 + 4096, 6144};
        hth_plan *plan;
        assert_ok(hth_plan_inference(&p, &plan));
        assert_ok(hth_plan_verify(&p, plan));
        assert_int_equal(plan->arena_bytes, want[n->n_inplace]);
        hth_plan_free(plan);
    }
    n->n_inplace = 2;
    n->inplace[1][0] = b;
    assert_err(hth_problem_check(&p), HTH_EINVAL, "each once");
    hth_problem_fini(&p);
}

// What a node updates stays: dropped and fetched again it would be what it was before. So does what
// a node updates and none reads.
static void test_updates_stay(void **state)
{
    for (int reads = 0; reads < 2; reads++) {
        hth_problem p = pt_problem(8, 3);
        hth_plan *plan;
        uint64_t floor;
        int x = pt_tensor(&p, HTH_MEM_INPUT, 64, -1), w = pt_tensor(&p, HTH_MEM_WEIGHT, 6400, -1);
        int v = pt_tensor(&p, HTH_MEM_WEIGHT, 64000, -1);
        p.tensors[x].external = true;
        int a = pt_node(&p, (int[]){x, w}, 1 + reads, HTH_MEM_ACTIVATION, 64, false);
        int b = pt_node(&p, (int[]){a, v}, 2, HTH_MEM_ACTIVATION, 64, false);
        int next = pt_node(&p, (int[]){b, w}, 1 + reads, HTH_MEM_OUTPUT, 6400, false);
        p.tensors[next].external = true;
        p.tensors[next].replaces = w + 1;
        assert_ok(hth_plan_floor(&p, &floor));
        assert_int_equal(floor, 6400 + 64000 + 2 * 64);
        p.budget = floor;
        assert_ok(hth_plan_inference(&p, &plan));
        assert_ok(hth_plan_verify(&p, plan));
        assert_true(!plan->streamed[w] && plan->resident_bytes >= 6400);
        hth_plan_free(plan);
        p.budget = floor - 1;
        assert_err(hth_plan_inference(&p, &plan), HTH_ETOOBIG, "budget");
        hth_problem_fini(&p);
    }
}

// A node of n inputs, of which it reads one n times more, and n outputs in their places.
static hth_problem wide_problem(int n)
{
    hth_problem p = pt_problem(2 * n + 1, 2);
    int *list = hth_alloc((size_t)(2 * n) * sizeof *list);
    int x = pt_tensor(&p, HTH_MEM_INPUT, 64, -1);
    p.n_nodes = 2;
    p.nodes[0] = (hth_plan_node){.n_inputs = 1, .n_outputs = n};
    p.nodes[1] = (hth_plan_node){.n_inputs = 2 * n, .n_outputs = n, .n_inplace = n};
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < n; j++) {
            list[j] = pt_tensor(&p, i == 0 ? HTH_MEM_ACTIVATION : HTH_MEM_OUTPUT, 64, i);
        }
        p.nodes[i].outputs = hth_memdup(list, (size_t)n * sizeof *list);
    }
    p.nodes[1].inplace = hth_calloc((size_t)n, sizeof *p.nodes[1].inplace);
    for (int j = 0; j < n; j++) {
        list[j] = p.nodes[1].inplace[j][0] = p.nodes[0].outputs[j];
        list[n + j] = list[0];
        p.nodes[1].inplace[j][1] = p.nodes[1].outputs[j];
    }
    p.nodes[0].inputs = hth_memdup(&x, sizeof x);
    p.nodes[1].inputs = list;
    return p;
}

// Nodes may have any number of inputs and outputs: none is looked for among all of them.
static void test_wide_nodes(void **state)
{
    const int n = 100000;
    hth_problem p = wide_problem(n);
    hth_plan *plan;
    clock_t start = clock();
    assert_ok(hth_plan_inference(&p, &plan));
    assert_ok(hth_plan_verify(&p, plan));
    assert_int_equal(plan->arena_bytes, 64 * (n + 1));
    p.budget = 64 * (uint64_t)n - 1;
    hth_plan_free(plan);
    assert_err(hth_plan_inference(&p, &plan), HTH_ETOOBIG, "needs at least");
    double cpu_ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
    print_message("# %d inputs and outputs: %.1f ms\n", n, cpu_ms);
    assert_true(cpu_ms < 5000); // a search among them takes a minute
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_everything_fits),
        cmocka_unit_test(test_algorithm_is_degraded_to_fit),
        cmocka_unit_test(test_weights_are_streamed),
        cmocka_unit_test(test_random_networks),
        cmocka_unit_test(test_same_problem_same_plan),
        cmocka_unit_test(test_allocation_faults),
        cmocka_unit_test(test_bad_problems),
        cmocka_unit_test(test_planning_is_fast),
        cmocka_unit_test(test_updates_stay),
        cmocka_unit_test(test_wide_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
