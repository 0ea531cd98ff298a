// SPDX-License-Identifier: Apache-2.0
// Plans that were right, changed in one place: whatever matters is noticed.
#include "planner/plan_test.h"

static pt_pair streamed_pair(uint64_t seed)
{
    pt_pair x = {.p = pt_random_problem(seed, 24)};
    assert_ok(hth_plan_floor(&x.p, &x.p.budget));
    assert_ok(hth_plan_inference(&x.p, &x.plan));
    assert_ok(hth_plan_verify(&x.p, x.plan));
    return x;
}

static void test_totals(void **state)
{
    pt_pair x = streamed_pair(4);
    uint64_t *const fields[] = {&x.plan->arena_bytes, &x.plan->resident_bytes,
                                &x.plan->live_peak_bytes};
    for (size_t k = 0; k < 3; k++) {
        *fields[k] -= 64;
        pt_assert_rejected(&x, "a total that is too small", (int)k);
        *fields[k] += 64;
    }
    x.p.budget--;
    assert_err(hth_plan_verify(&x.p, x.plan), HTH_ECORRUPT, "budget");
    x.p.budget++;
    x.plan->n_instrs--;
    if (x.plan->instrs[x.plan->n_instrs].kind == HTH_INSTR_FREE) {
        assert_ok(hth_plan_verify(&x.p, x.plan)); // freeing at the very end is no duty
    }
    x.plan->n_instrs++;
    for (int t = 0; t < x.p.n_tensors; t++) {
        x.plan->streamed[t] ^= 1;
        pt_assert_rejected(&x, "a weight on the wrong side", t);
        x.plan->streamed[t] ^= 1;
    }
    pt_pair_fini(&x);
}

// Changes every instruction in every way that must matter.
static void test_every_instruction(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        pt_pair x = streamed_pair(seed);
        for (int i = 0; i < x.plan->n_instrs; i++) {
            hth_instr *in = &x.plan->instrs[i], keep = *in;
            if (in->kind == HTH_INSTR_COMPUTE) {
                in->node = x.p.n_nodes;
                pt_assert_rejected(&x, "a node that does not exist", i);
                in->node = (keep.node + 1) % x.p.n_nodes;
                pt_assert_rejected(&x, "another node", i);
                *in = keep;
                in->alt = 99;
                pt_assert_rejected(&x, "an alternative that does not exist", i);
                *in = keep;
                in->recompute = true;
                pt_assert_rejected(&x, "a false recompute", i);
                *in = keep;
                in->kind = HTH_INSTR_FREE;
                in->tensor = 0;
                pt_assert_rejected(&x, "a missing compute", i);
            } else {
                in->tensor = x.p.n_tensors;
                pt_assert_rejected(&x, "a tensor that does not exist", i);
                *in = keep;
                if (in->kind != HTH_INSTR_FREE) {
                    in->offset += 32;
                    pt_assert_rejected(&x, "a misaligned offset", i);
                    in->offset = x.plan->arena_bytes;
                    pt_assert_rejected(&x, "a place behind the arena", i);
                }
                if (in->kind == HTH_INSTR_ALLOC) {
                    in->kind = HTH_INSTR_PREFETCH;
                    pt_assert_rejected(&x, "a fetch from nowhere", i);
                }
                if (in->kind == HTH_INSTR_PREFETCH && keep.kind == in->kind) {
                    in->kind = HTH_INSTR_ALLOC;
                    pt_assert_rejected(&x, "a weight that is not fetched", i);
                }
            }
            *in = keep;
            if (in->n_waits > 0) {
                int w = in->waits[0];
                in->waits[0] = i;
                pt_assert_rejected(&x, "a wait for itself", i);
                in->waits[0] = w;
            }
        }
        pt_pair_fini(&x);
    }
}

typedef struct place {
    uint64_t lo, hi; // hi == 0: not in the arena
} place;

static bool places_overlap(place a, place b)
{
    return a.lo < b.hi && b.lo < a.hi;
}

// The naive check: in issue order, does anything overlap anything that is alive? In-place pairs
// may.
static bool naive_overlap(const hth_problem *problem, const hth_plan *plan)
{
    place at[200] = {{0, 0}};
    int pair[200];
    hth_plan_pairs(problem, pair);
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        bool compute = in->kind == HTH_INSTR_COMPUTE;
        uint64_t bytes = compute ? hth_plan_workspace(&problem->nodes[in->node], in->alt)
                                 : problem->tensors[in->tensor].bytes;
        place x = {in->offset, in->offset + hth_plan_round(bytes)};
        if (in->kind == HTH_INSTR_FREE) {
            at[in->tensor].hi = 0;
            continue;
        }
        for (int t = 0; t < problem->n_tensors; t++) {
            bool inplace = !compute && pair[in->tensor] == t;
            if (bytes > 0 && at[t].hi > 0 && !inplace && places_overlap(x, at[t])) {
                return true;
            }
        }
        if (!compute) {
            at[in->tensor] = x;
        }
    }
    return false;
}

// Moves buffers to random other places: whatever then overlaps is noticed.
static void test_random_offsets(void **state)
{
    int overlaps = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        pt_pair x = streamed_pair(seed);
        pt_state = seed;
        assert_false(naive_overlap(&x.p, x.plan));
        for (int k = 0; k < 60; k++) {
            hth_instr *in = &x.plan->instrs[pt_random((uint32_t)x.plan->n_instrs)];
            uint64_t keep = in->offset;
            in->offset = pt_random((uint32_t)(x.plan->arena_bytes / 64)) * 64;
            if (in->kind != HTH_INSTR_FREE && naive_overlap(&x.p, x.plan)) {
                pt_assert_rejected(&x, "an overlap", (int)(in - x.plan->instrs));
                overlaps++;
            }
            in->offset = keep;
        }
        pt_pair_fini(&x);
    }
    assert_true(overlaps > 500);
}

// A plan by hand with an offload: t0 goes to the host while node 1 runs and comes back for node 2.
static hth_plan *offload_plan(hth_problem *problem)
{
    *problem = pt_problem(8, 3);
    problem->budget = 4096;
    int x = pt_tensor(problem, HTH_MEM_INPUT, 64, -1);
    problem->tensors[x].external = true;
    int a = pt_node(problem, &x, 1, HTH_MEM_ACTIVATION, 1024, false);
    int b = pt_node(problem, &a, 1, HTH_MEM_ACTIVATION, 1024, false);
    int c = pt_node(problem, (int[]){a, b}, 2, HTH_MEM_OUTPUT, 64, false);
    hth_plan_builder bld = {hth_calloc(1, sizeof(hth_plan)), 0};
    bld.plan->streamed = hth_calloc(8, sizeof(bool));
    const struct {
        hth_instr in;
        int wait;
    } list[] = {
        {{.kind = HTH_INSTR_ALLOC, .tensor = a, .offset = 0}, -1},
        {{.kind = HTH_INSTR_COMPUTE, .node = 0}, -1},
        {{.kind = HTH_INSTR_OFFLOAD, .tensor = a, .offset = 0}, 1},
        {{.kind = HTH_INSTR_ALLOC, .tensor = b, .offset = 1024}, -1},
        {{.kind = HTH_INSTR_COMPUTE, .node = 1}, -1},
        {{.kind = HTH_INSTR_FREE, .tensor = a}, 2},
        {{.kind = HTH_INSTR_PREFETCH, .tensor = a, .offset = 0}, 4},
        {{.kind = HTH_INSTR_ALLOC, .tensor = c, .offset = 2048}, -1},
        {{.kind = HTH_INSTR_COMPUTE, .node = 2}, 6},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        assert_ok(hth_plan_add(&bld, list[i].in, &list[i].wait, list[i].wait >= 0, NULL));
    }
    bld.plan->arena_bytes = bld.plan->live_peak_bytes = 2048 + 64;
    bld.plan->host_bytes = 1024;
    return bld.plan;
}

static void test_offload(void **state)
{
    hth_problem p;
    hth_plan *plan = offload_plan(&p);
    // The fetch writes where the offload may still read: it must wait for it as well.
    assert_err(hth_plan_verify(&p, plan), HTH_ECORRUPT, "still be using");
    plan->instrs[6].waits[0] = 5; // the free, which waited for the offload
    assert_ok(hth_plan_verify(&p, plan));
    plan->host_bytes = 512;
    assert_err(hth_plan_verify(&p, plan), HTH_ECORRUPT, "after the arena");
    plan->host_bytes = 1024;
    plan->instrs[2].n_waits = 0;
    assert_err(hth_plan_verify(&p, plan), HTH_ECORRUPT, "before its copy is known to be complete");
    plan->instrs[2].n_waits = 1;
    plan->instrs[8].n_waits = 0;
    assert_err(hth_plan_verify(&p, plan), HTH_ECORRUPT, "before its copy is known to be complete");
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

static void test_allocation_faults(void **state)
{
    pt_pair x = streamed_pair(2);
    FAULT_LOOP(hth_plan_verify(&x.p, x.plan));
    pt_pair_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_totals),
        cmocka_unit_test(test_every_instruction),
        cmocka_unit_test(test_random_offsets),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_allocation_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
