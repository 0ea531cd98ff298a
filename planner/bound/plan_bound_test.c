// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/plan_bound.h"
#include "planner/plan_train_gen.h"

#include <math.h>
#include <sys/resource.h>

static double bound_of(const hth_step *step, uint64_t budget, double known_us)
{
    double us;
    assert_ok(hth_step_bound(step, budget, known_us, 200, 0, NULL, NULL, &us));
    return us;
}

// A random network's step, with slow, fast and uneven links and with nodes that may all run again;
// or a random graph with weights, skips and nodes in place.
static hth_problem bound_problem(uint64_t seed, int layers)
{
    hth_problem p =
        seed % 4 == 3 ? pt_random_problem(seed, 3 + (int)(seed / 4 % 8)) : pg_random(seed, layers);
    for (int i = 0; seed % 4 == 3 && i < p.n_nodes; i++) {
        p.nodes[i].recomputable = pt_random(4) > 0;
        p.copy_interference = (double)(seed % 3) / 4;
        p.copy_us = (double)(seed % 2);
    }
    static const double h2d[] = {1, 0.05, 8, 1, 1}, d2h[] = {1, 0.05, 4, 1, 1};
    p.h2d_bytes_per_s *= h2d[seed % 5];
    p.d2h_bytes_per_s *= d2h[seed % 5];
    for (int i = 0; seed % 7 == 3 && i < p.n_nodes; i++) {
        p.nodes[i].recomputable = true;
    }
    return p;
}

// Layers in which each node reads all of the layer before, and the last node long after them: what
// a recompute of that one reads that is dead is without number.
static void bounds_of_many_paths(void **state)
{
    enum { WIDTH = 6, LAYERS = 10 };
    hth_problem p = pt_problem(WIDTH * LAYERS + 20, WIDTH * LAYERS + 20);
    int at[WIDTH], last[WIDTH];
    hth_step m;
    struct rusage before, after;
    for (int i = 0; i < WIDTH; i++) {
        last[i] = pt_tensor(&p, HTH_MEM_INPUT, 1000, -1);
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < WIDTH; i++) {
            at[i] = pt_node(&p, last, WIDTH, HTH_MEM_ACTIVATION, 1000, false);
        }
        memcpy(last, at, sizeof last);
    }
    int end = pt_node(&p, last, 1, HTH_MEM_ACTIVATION, 1000, false);
    for (int i = 0; i < 3; i++) {
        end = pt_node(&p, &end, 1, HTH_MEM_ACTIVATION, 1000, false);
    }
    pt_node(&p, (int[]){end, last[0]}, 2, HTH_MEM_OUTPUT, 1000, false);
    for (int i = 0; i < p.n_nodes; i++) {
        pt_choice(&p, i, 10, 0);
        p.nodes[i].recomputable = true;
    }
    assert_ok(hth_step_init(&m, &p));
    getrusage(RUSAGE_SELF, &before);
    assert_true(bound_of(&m, 20000, 1e6) <= 1e6);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 16 * 1024); // KiB
    hth_step_fini(&m);
    hth_problem_fini(&p);
}

// No schedule is faster than the bound, found by the search or at random.
static void bounds_hold_on_random_networks(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed += TEST_STRIDE) {
        hth_problem p = bound_problem(seed, 4 + (int)(seed % 30));
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
        us = fmax(us, bound_of(&m, p.budget, known));    // .. and to what may be the optimum
        assert_true(us <= known * (1 + 1e-9) || known == 2 * m.fastest_us);
        assert_ok(hth_decoder_init(&d, &m, p.budget));
        uint8_t *mode = hth_calloc((size_t)m.n_intervals + 1, 1);
        for (int k = 0; k < 200; k++) {
            hth_outcome out;
            for (int g = 0; g < m.n_intervals; g++) {
                mode[g] = (uint8_t)pt_random(HTH_N_INTERVAL_MODES);
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

// The fastest of all combinations of modes, INFINITY: none fits. What can only be kept is.
static double bound_best(const hth_step *step, uint64_t budget)
{
    hth_decoder d;
    uint8_t mode[16] = {0};
    double best = INFINITY;
    int total = 1, free[16], n_free = 0;
    for (int g = 0; g < step->n_intervals; g++) {
        if (step->interval[g].can_offload || step->interval[g].can_rerun) {
            free[n_free++] = g;
            total *= HTH_N_INTERVAL_MODES;
        }
    }
    assert_ok(hth_decoder_init(&d, step, budget));
    for (int k = 0; k < total; k++) {
        hth_outcome out;
        for (int i = 0, rest = k; i < n_free; i++, rest /= HTH_N_INTERVAL_MODES) {
            mode[free[i]] = (uint8_t)(rest % HTH_N_INTERVAL_MODES);
        }
        hth_decode(&d, mode, &out);
        best = out.excess == 0 ? fmin(best, out.time_us) : best;
    }
    hth_decoder_fini(&d);
    return best;
}

// Every combination of modes on small networks: the bound is under the best of them, whatever it is
// steered by. How far is reported.
static void bounds_hold_against_all_schedules(void **state)
{
    int tried = 0;
    double interval = 0;
    for (uint64_t seed = 0; seed < 700; seed += TEST_STRIDE) {
        hth_problem p = bound_problem(seed, 2 + (int)(seed % 4));
        hth_step m;
        uint64_t peak, floor;
        assert_ok(hth_plan_train_peak(&p, &peak));
        assert_ok(hth_plan_train_floor(&p, &floor));
        assert_ok(hth_step_init(&m, &p));
        for (int part = 0; m.n_intervals <= 8 && part < 6; part++) {
            uint64_t budget = floor + (peak - floor) / 6 * (uint64_t)part;
            double best = bound_best(&m, budget);
            if (best < INFINITY) {
                double us = bound_of(&m, budget, best);
                assert_true(us <= best * (1 + 1e-9));
                assert_true(bound_of(&m, budget, 2 * best) <= best * (1 + 1e-9));
                interval += best > 0 ? best / fmax(us, m.fastest_us) - 1 : 0;
                tried++;
            }
        }
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
    print_message("# %d small steps: the best schedule is %.0f %% above the bound on average\n",
                  tried, 100 * interval / tried);
    assert_true(tried > 500 / TEST_STRIDE);
}

// Where a tensor is needed there is no room to compute it again, but there is where another
// recompute reads it before.
static void recomputes_come_early(void **state)
{
    hth_problem p = pt_problem(8, 8);
    hth_step m;
    p.h2d_bytes_per_s = p.d2h_bytes_per_s = 0;
    int w = pt_tensor(&p, HTH_MEM_WEIGHT, 64, -1);
    int a = pt_node(&p, &w, 1, HTH_MEM_ACTIVATION, 3 << 20, false);
    int t = pt_node(&p, &a, 1, HTH_MEM_ACTIVATION, 1 << 20, false);
    int r = pt_node(&p, &t, 1, HTH_MEM_ACTIVATION, 1 << 20, false);
    int wide = pt_node(&p, &w, 1, HTH_MEM_ACTIVATION, 1 << 20, false);
    int s = pt_node(&p, (int[]){r, wide}, 2, HTH_MEM_ACTIVATION, 1 << 20, false);
    pt_node(&p, (int[]){t, s}, 2, HTH_MEM_OUTPUT, 6 << 20, false);
    for (int i = 0; i < p.n_nodes; i++) {
        pt_choice(&p, i, 10, i == 3 ? 17 << 19 : 0); // no other tensor fits beside that workspace
        p.nodes[i].recomputable = true;
    }
    uint64_t budget = (10 << 20) - 4096;
    assert_ok(hth_step_init(&m, &p));
    double best = bound_best(&m, budget);
    assert_true(best < INFINITY);
    assert_true(bound_of(&m, budget, best) <= best * (1 + 1e-9));
    hth_step_fini(&m);
    hth_problem_fini(&p);
}

// The fastest schedule of a small step is no faster than the bound, however that is steered.
static void expect_bound_holds(hth_problem *p, uint64_t budget)
{
    hth_step m;
    assert_ok(hth_step_init(&m, p));
    double best = bound_best(&m, budget);
    assert_true(best < INFINITY);
    for (int k = 1; k <= 8; k *= 2) {
        assert_true(bound_of(&m, budget, k * best) <= best * (1 + 1e-9));
    }
    hth_step_fini(&m);
    hth_problem_fini(p);
}

static int small_node(hth_problem *p, const int *in, int n_in, uint64_t bytes, uint64_t workspace,
                      bool again)
{
    int t = pt_node(p, in, n_in, HTH_MEM_ACTIVATION, bytes, false);
    pt_choice(p, p->n_nodes - 1, 10, workspace);
    p->nodes[p->n_nodes - 1].recomputable = again;
    return t;
}

// The cheapest stage to compute a tensor again is where what it reads, which is dead, was kept to.
static void recomputes_are_not_only_late(void **state)
{
    const uint64_t mib = 1 << 20;
    hth_problem p = pt_problem(12, 12);
    p.h2d_bytes_per_s = p.d2h_bytes_per_s = 0;
    int w = pt_tensor(&p, HTH_MEM_WEIGHT, 64, -1);
    int u = small_node(&p, &w, 1, 4 * mib, 0, false);
    int t1 = small_node(&p, &u, 1, 3 * mib, 0, true), t2 = small_node(&p, &u, 1, 3 * mib, 0, true);
    int y = small_node(&p, (int[]){t1, t2}, 2, mib, 0, true);
    int a = small_node(&p, &w, 1, 64, 15 * mib / 2, false);
    int b = small_node(&p, (int[]){t1, y, a}, 3, 64, 0, false);
    int c = small_node(&p, &w, 1, 64, 17 * mib / 2, false);
    small_node(&p, (int[]){t2, b, c}, 3, 64, 0, false);
    p.tensors[p.n_tensors - 1].cls = HTH_MEM_OUTPUT;
    int d = small_node(&p, &w, 1, 64, 0, false);
    small_node(&p, &d, 1, 64, 0, false);
    p.tensors[p.n_tensors - 1].cls = HTH_MEM_OUTPUT;
    expect_bound_holds(&p, 12 * mib);
}

// What is read by its own user later, and by a recompute, is copied out once.
static void one_copy_out_serves_all(void **state)
{
    const uint64_t mib = 1 << 20;
    hth_problem p = pt_problem(8, 8);
    p.h2d_bytes_per_s = 1e12;
    p.d2h_bytes_per_s = 1e9;
    p.latency_us = 0;
    int w = pt_tensor(&p, HTH_MEM_WEIGHT, 64, -1);
    int u = small_node(&p, &w, 1, 3 * mib, 0, false);
    int x = small_node(&p, &w, 1, 64, 8 * mib, false);
    int t = small_node(&p, &u, 1, 5 * mib, 0, true), c = small_node(&p, &t, 1, 64, 0, false);
    int d = small_node(&p, &w, 1, 64, 8 * mib, false);
    small_node(&p, (int[]){t, c, d, x}, 4, 64, 0, false);
    p.tensors[p.n_tensors - 1].cls = HTH_MEM_OUTPUT;
    expect_bound_holds(&p, 10 * mib);
}

// What the bound is worth on a step of ordinary size: long searches end 1 to 5 % above these.
static void bounds_are_close(void **state)
{
    static const int blocks[] = {3, 4, 6, 3};
    static const double least[] = {1.005, 1.021, 1.039, 1.067, 1.095, 1.122};
    hth_problem p = pg_resnet(184, blocks);
    hth_step m;
    uint64_t peak;
    assert_ok(hth_plan_train_peak(&p, &peak));
    assert_ok(hth_step_init(&m, &p));
    for (uint64_t k = 0; k < 6; k++) {
        double us, known = (1.02 + 0.03 * (double)k) * m.fastest_us;
        assert_ok(hth_step_bound(&m, peak / 10 * (8 - k), known, 300, 0, NULL, NULL, &us));
        print_message("# ResNet-50 at 0.%d of its peak: at least %.4f of its fastest step\n",
                      8 - (int)k, us / m.fastest_us);
        assert_true(us >= least[k] * m.fastest_us);
    }
    hth_step_fini(&m);
    hth_problem_fini(&p);
}

static void allocations_fail_cleanly(void **state)
{
    hth_problem p = pg_random(3, 8);
    hth_step m;
    uint64_t peak, floor;
    double us;
    assert_ok(hth_plan_train_peak(&p, &peak));
    assert_ok(hth_step_init(&m, &p));
    FAULT_LOOP(hth_step_bound(&m, peak / 2, 1e9, 20, 0, NULL, NULL, &us));
    FAULT_LOOP(hth_plan_train_floor(&p, &floor));
    assert_true(floor < peak);
    hth_step_fini(&m);
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_of_many_paths),
        cmocka_unit_test(bounds_hold_on_random_networks),
        cmocka_unit_test(bounds_hold_against_all_schedules),
        cmocka_unit_test(recomputes_come_early),
        cmocka_unit_test(recomputes_are_not_only_late),
        cmocka_unit_test(one_copy_out_serves_all),
        cmocka_unit_test(bounds_are_close),
        cmocka_unit_test(allocations_fail_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
