// SPDX-License-Identifier: Apache-2.0
// Random plans of forward passes, run.
#include "memmgr/run_test.h"

#include "device/fake/fake.h"

#include <time.h>

// A problem with a budget `part` eighths of the way from its floor to all weights resident.
static hth_problem tight_problem(uint64_t seed, int nodes, uint64_t part)
{
    hth_problem p = pt_random_problem(seed, nodes);
    uint64_t floor;
    hth_plan *plan;
    assert_ok(hth_plan_inference(&p, &plan));
    assert_ok(hth_plan_floor(&p, &floor));
    p.budget = floor + (plan->resident_bytes + plan->arena_bytes - floor) * part / 8;
    hth_plan_free(plan);
    return p;
}

static void test_random_plans_on_fake(void **state)
{
    int streamed = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        char device[48];
        rig r;
        snprintf(device, sizeof device, "fake:seed=%d", (int)seed);
        rig_plan(&r, tight_problem(seed, 3 + (int)(seed % 30), seed % 9));
        rig_open(&r, device);
        for (int round = 0; round < 4; round++) {
            assert_ok(rig_execute(&r, NULL));
            assert_true(rig_right(&r));
        }
        for (int t = 0; t < r.p.n_tensors; t++) {
            streamed += r.plan->streamed[t];
        }
        rig_close(&r);
    }
    assert_true(streamed > 100);
}

// Streamed or resident, the bits are the same; that is, on the CPU too they are the reference's.
static void test_random_plans_on_cpu(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) {
        rig r;
        rig_plan(&r, tight_problem(seed, 20, seed % 3 * 4)); // floor, half way, all resident
        rig_open(&r, "cpu:mem=1GiB,threads=1");
        for (int round = 0; round < 3; round++) {
            hth_run_measure(r.run, round == 1);
            assert_ok(rig_execute(&r, NULL));
            assert_true(rig_right(&r));
        }
        rig_close(&r);
    }
}

// Takes single waits out of plans: the verifier rejects each such plan, and the fake device shows
// why.
static void test_missing_edges_are_found(void **state)
{
    int removed = 0, shown = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        rig r;
        rig_plan(&r, tight_problem(seed, 16, 0));
        for (int i = 0; i < r.plan->n_instrs; i++) {
            hth_instr *in = &r.plan->instrs[i];
            int kept = in->n_waits;
            in->n_waits = 0;
            bool needed = kept > 0 && hth_plan_verify(&r.p, r.plan) == HTH_ECORRUPT;
            if (!needed) { // implied by other waits
                in->n_waits = kept;
                continue;
            }
            removed++;
            break;
        }
        rig_open(&r, "fake:seed=3");
        bool wrong = false;
        for (int round = 0; round < 20 && !wrong; round++) {
            assert_ok(rig_execute(&r, NULL));
            wrong = !rig_right(&r);
        }
        shown += wrong;
        rig_close(&r);
    }
    print_message("# %d plans without one of their edges, %d seen to fail\n", removed, shown);
    assert_true(removed > 10 && shown * 2 > removed);
}

static void test_cancel_and_failure(void **state)
{
    static const char *const devices[] = {"fake", "cpu:mem=1GiB,threads=1"};
    for (int k = 0; k < 4; k++) {
        rig r;
        atomic_int cancel = 0;
        rig_plan(&r, tight_problem(5, 20, k < 2 ? 0 : 8));
        rig_open(&r, devices[k % 2]);
        r.mixes[4].cancel = &cancel;
        assert_err(rig_execute(&r, &cancel), HTH_ECANCELED, "canceled");
        r.mixes[4].cancel = NULL;
        cancel = 0;
        r.mixes[7].base.run = mix_fail;
        assert_err(rig_execute(&r, &cancel), HTH_ENOTSUP, "node 'n7' cannot");
        r.mixes[7].base.run = mix_run;
        assert_ok(rig_execute(&r, &cancel)); // nothing is left of either
        assert_true(rig_right(&r));
        rig_close(&r);
    }
}

static void test_device_faults(void **state)
{
    rig r;
    rig_plan(&r, tight_problem(6, 20, 0));
    rig_open(&r, "fake");
    hth_fake_control *f = hth_fake_control_of(r.device);
    unsigned *faults[] = {&f->fail_copy, &f->fail_launch, &f->fail_copy_run, &f->fail_launch_run};
    for (int k = 0; k < 4; k++) {
        unsigned nth = 1;
        for (;; nth++) {
            *faults[k] = nth;
            hth_err err = rig_execute(&r, NULL);
            if (err == HTH_OK) {
                *faults[k] = 0;
                break;
            }
            assert_int_equal(err, HTH_EDEVLOST);
        }
        assert_true(nth > 3 && rig_right(&r));
    }
    rig_close(&r);
}

static hth_err open_and_run(rig *r)
{
    hth_run_spec spec = {r->device, &r->p,   r->plan,  r->kernels, r->ins,
                         r->n_in,   r->outs, r->n_out, r->far,     r->spill_dir};
    hth_run *run;
    HTH_TRY(hth_run_open(&spec, &run));
    hth_run_measure(run, true);
    hth_err err = hth_run_bind(run, r->arena, r->fixed);
    err = err ? err : hth_run_execute(run, NULL);
    hth_run_close(run);
    return err;
}

static void test_allocation_faults(void **state)
{
    rig r;
    rig_plan(&r, tight_problem(6, 10, 0));
    rig_open(&r, "cpu:mem=1GiB,threads=1");
    FAULT_LOOP(open_and_run(&r));
    rig_close(&r);
}

static void test_binding(void **state)
{
    rig r;
    rig_plan(&r, tight_problem(8, 10, 8));
    rig_open(&r, "cpu:mem=1GiB,threads=1");
    int weight = -1;
    for (int t = 0; t < r.p.n_tensors; t++) {
        weight = r.p.tensors[t].cls == HTH_MEM_WEIGHT ? t : weight;
    }
    void *at = r.fixed[weight];
    r.fixed[weight] = NULL;
    assert_err(hth_run_bind(r.run, r.arena, r.fixed), HTH_EINVAL, r.p.tensors[weight].name);
    assert_err(hth_run_execute(r.run, NULL), HTH_EINVAL, "bound");
    r.fixed[weight] = at;
    assert_ok(hth_run_bind(r.run, r.arena, r.fixed));
    assert_ok(rig_execute(&r, NULL));
    assert_true(rig_right(&r));
    rig_close(&r);
}

static void test_measured_times(void **state)
{
    rig r;
    rig_plan(&r, tight_problem(5, 20, 0));
    rig_open(&r, "cpu:mem=1GiB,threads=1");
    assert_null(hth_run_times(r.run));
    hth_run_measure(r.run, true);
    assert_ok(rig_execute(&r, NULL));
    const double(*times)[2] = hth_run_times(r.run);
    double compute = 0;
    for (int i = 0; i < r.plan->n_instrs; i++) {
        const hth_instr *in = &r.plan->instrs[i];
        assert_true(times[i][0] >= 0 && times[i][1] >= times[i][0]);
        if (in->kind == HTH_INSTR_COMPUTE) {
            assert_true(times[i][0] >= compute); // one after the other, and after what it waits for
            compute = times[i][1];
            for (int j = 0; j < in->n_waits; j++) {
                assert_true(times[in->waits[j]][1] <= times[i][0]);
            }
        }
    }
    assert_true(compute > 0);
    rig_close(&r);
}

static hth_err nothing_run(const hth_kernel *kernel, const hth_kernel_args *args)
{
    return HTH_OK;
}

static void test_overhead(void **state)
{
    rig r;
    rig_plan(&r, tight_problem(5, 30, 8));
    rig_open(&r, "cpu:mem=1GiB,threads=1");
    for (int i = 0; i < 30; i++) {
        r.mixes[i].base.run = nothing_run;
    }
    double best = 1e9;
    for (int k = 0; k < 200; k++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(hth_run_bind(r.run, r.arena, r.fixed), HTH_OK);
            assert_int_equal(hth_run_execute(r.run, NULL), HTH_OK);
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 100;
        best = ns < best ? ns : best;
    }
    print_message("# 30 nodes: %.0f ns a run beside the kernels\n", best);
    assert_true(HTH_SANITIZED || best < 2000);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_plans_on_fake),
        cmocka_unit_test(test_random_plans_on_cpu),
        cmocka_unit_test(test_missing_edges_are_found),
        cmocka_unit_test(test_cancel_and_failure),
        cmocka_unit_test(test_device_faults),
        cmocka_unit_test(test_allocation_faults),
        cmocka_unit_test(test_binding),
        cmocka_unit_test(test_measured_times),
        cmocka_unit_test(test_overhead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
