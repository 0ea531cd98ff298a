// SPDX-License-Identifier: Apache-2.0
// Training steps, run under random schedules: offloads, prefetches, recomputes, parameters that
// leave, whatever a random choice of modes gives. Several steps in a row have the bits of a plain
// evaluation, on the fake device with its random legal orders and on the CPU.
#include "planner/plan_train_gen.h"
#include "memmgr/run_test.h"

typedef struct tally {
    int recomputes, offloads, prefetches, steps;
} tally;

static void count(const hth_plan *plan, tally *n)
{
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        n->recomputes += in->kind == HTH_INSTR_COMPUTE && in->recompute;
        n->offloads += in->kind == HTH_INSTR_OFFLOAD;
        n->prefetches += in->kind == HTH_INSTR_PREFETCH;
    }
    n->steps++;
}

// Runs three steps; returns the first that is wrong, -1: none.
static int first_wrong_step(rig *r, const char *device)
{
    int wrong = -1;
    rig_open(r, device);
    for (int step = 0; step < 3 && wrong < 0; step++) {
        uint64_t before = hth_alloc_count();
        assert_ok(rig_execute(r, NULL));
        if (device[0] == 'c') { // the fake device queues everything, so it allocates
            assert_int_equal(hth_alloc_count(), before);
        }
        wrong = rig_right(r) ? -1 : step;
        rig_next(r);
    }
    rig_close(r);
    return wrong;
}

static void check_steps(uint64_t seeds, const char *device_format, const char *spill_dir)
{
    tally n = {0};
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        char device[80];
        rig r = {.p = pg_random_small(seed), .spill_dir = spill_dir};
        r.plan = pg_random_schedule(&r.p, seed, seed % 8 > 0);
        count(r.plan, &n);
        snprintf(device, sizeof device, device_format, (int)seed);
        int wrong = first_wrong_step(&r, device);
        if (wrong >= 0) {
            fail_msg("%s, network %d: step %d is wrong", device, (int)seed, wrong);
        }
    }
    print_message("# %s: %d steps, %d recomputes, %d offloads, %d prefetches\n", device_format,
                  n.steps, n.recomputes, n.offloads, n.prefetches);
    assert_true(n.recomputes > n.steps && n.offloads > n.steps && n.prefetches > n.steps);
}

static void test_random_schedules_on_fake(void **state)
{
    check_steps(60, "fake:seed=%d", NULL);
}

static void test_random_schedules_on_cpu(void **state)
{
    check_steps(24, "cpu:mem=1GiB,threads=1", NULL);
}

// Copies take a link's time, next to kernels.
static void test_random_schedules_over_a_link(void **state)
{
    check_steps(24, "cpu:mem=1GiB,threads=1,h2d=300MB/s,d2h=200MB/s", NULL);
}

// The far side is a file.
static void test_spill(void **state)
{
    check_steps(16, "fake:seed=%d", ".");
    check_steps(8, "cpu:mem=1GiB,threads=1", ".");
}

// Takes single waits out of plans: what the verifier rejects is what the fake device shows.
static void test_missing_edges_are_found(void **state)
{
    int removed = 0, shown = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        rig r = {.p = pg_random_small(seed)};
        r.plan = pg_random_schedule(&r.p, seed, true);
        bool found = false;
        for (int k = 0; k < 200 && !found; k++) {
            hth_instr *in = &r.plan->instrs[pt_random((uint32_t)r.plan->n_instrs)];
            if (in->n_waits == 0) {
                continue;
            }
            in->n_waits--;
            found = hth_plan_verify(&r.p, r.plan) == HTH_ECORRUPT;
            in->n_waits += !found; // not needed: implied by others
        }
        removed += found;
        bool wrong = false;
        for (int round = 0; round < 6 && found && !wrong; round++) {
            char device[48];
            snprintf(device, sizeof device, "fake:seed=%d", round);
            rig again = {.p = r.p, .plan = r.plan};
            rig_open(&again, device);
            for (int step = 0; step < 3 && !wrong; step++) {
                assert_ok(rig_execute(&again, NULL));
                wrong = !rig_right(&again);
                rig_next(&again);
            }
            rig_close_run(&again);
        }
        shown += wrong;
        hth_plan_free(r.plan);
        hth_problem_fini(&r.p);
    }
    print_message("# %d plans without one of their edges, %d seen to fail\n", removed, shown);
    assert_true(removed > 10 && shown * 3 > removed);
}

static void ignore(void *ctx, int i, const void *content)
{
}

static hth_err open_and_run(rig *r)
{
    hth_run_spec spec = {r->device, &r->p,   r->plan,  r->kernels, r->ins,
                         r->n_in,   r->outs, r->n_out, r->far,     r->spill_dir};
    hth_run *run;
    HTH_TRY(hth_run_open(&spec, &run));
    hth_err err = hth_run_bind(run, r->arena, r->fixed);
    int written[] = {r->p.nodes[0].outputs[0], r->p.nodes[1].outputs[0]};
    err = err || r->device->props.inline_compute == 0
              ? err
              : hth_run_watch(run, written, 2, ignore, NULL);
    err = err ? err : hth_run_execute(run, NULL);
    hth_run_close(run);
    return err;
}

static void test_allocation_faults(void **state)
{
    for (int spill = 0; spill < 2; spill++) {
        rig r = {.p = pg_random_small(5), .spill_dir = spill ? "." : NULL};
        r.plan = pg_random_schedule(&r.p, 5, true);
        rig_open(&r, "cpu:mem=1GiB,threads=1");
        FAULT_LOOP(open_and_run(&r));
        rig_close(&r);
    }
}

// No such directory: nothing is opened.
static void test_spill_nowhere(void **state)
{
    rig r = {.p = pg_random_small(6)};
    r.plan = pg_random_schedule(&r.p, 6, true);
    rig_open(&r, "fake");
    r.spill_dir = "/nowhere/at/all";
    assert_err(open_and_run(&r), HTH_ENOENT, "/nowhere/at/all");
    r.spill_dir = NULL;
    assert_ok(open_and_run(&r));
    rig_close(&r);
}

typedef struct watch {
    rig *r;
    const int *tensors;
    int *reported; // per tensor
    int n;
    bool wrong;
} watch;

static void watch_written(void *ctx, int i, const void *content)
{
    watch *w = ctx;
    int t = w->tensors[i];
    size_t bytes = w->r->p.tensors[t].bytes / 4 * 4;
    w->wrong = w->wrong || memcmp(content, w->r->want[t], bytes) != 0;
    w->reported[t]++;
    w->n++;
}

// Every tensor that a kernel writes is reported once, with its final content, wherever it goes from
// there, and however often it is computed.
static void test_watch(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) {
        rig r = {.p = pg_random_small(seed)};
        r.plan = pg_random_schedule(&r.p, seed, seed % 8 > 0);
        int *tensors = hth_calloc((size_t)r.p.n_tensors + 1, sizeof *tensors), n = 0;
        int *reported = hth_calloc((size_t)r.p.n_tensors, sizeof *reported);
        watch w = {.r = &r, .tensors = tensors, .reported = reported};
        tensors[n++] = -1;
        for (int t = r.p.n_tensors - 1; t >= 0; t--) {
            tensors[n++] = t;
        }
        rig_open(&r, "cpu:mem=1GiB,threads=1");
        for (int step = 0; step < 3; step++) {
            hth_run_measure(r.run, step == 1);
            assert_ok(hth_run_watch(r.run, tensors, n, watch_written, &w));
            assert_ok(rig_execute(&r, NULL));
            assert_false(w.wrong);
            rig_next(&r);
        }
        for (int t = 0; t < r.p.n_tensors; t++) {
            assert_int_equal(reported[t], r.p.tensors[t].producer >= 0 ? 3 : 0);
        }
        int before = w.n;
        assert_ok(hth_run_watch(r.run, NULL, 0, NULL, NULL));
        assert_ok(rig_execute(&r, NULL));
        assert_int_equal(w.n, before);
        rig_close(&r);
        hth_free(tensors);
        hth_free(reported);
    }
    rig fake = {.p = pg_random_small(1)};
    fake.plan = pg_random_schedule(&fake.p, 1, true);
    rig_open(&fake, "fake");
    assert_err(hth_run_watch(fake.run, (int[]){0}, 1, watch_written, NULL), HTH_ENOTSUP, "fake");
    rig_close(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules_on_fake),
        cmocka_unit_test(test_random_schedules_on_cpu),
        cmocka_unit_test(test_random_schedules_over_a_link),
        cmocka_unit_test(test_spill),
        cmocka_unit_test(test_missing_edges_are_found),
        cmocka_unit_test(test_allocation_faults),
        cmocka_unit_test(test_spill_nowhere),
        cmocka_unit_test(test_watch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
