// SPDX-License-Identifier: Apache-2.0
// Plans of training steps that were right, changed in one place: whatever matters is noticed.
#include "planner/plan_train_gen.h"

#include "base/clock.h"

static pt_pair step_pair(uint64_t seed)
{
    pt_pair x = {.p = pg_random(seed, 6 + (int)(seed % 12))};
    x.plan = pg_random_schedule(&x.p, seed, true);
    return x;
}

static bool is_resident(const pt_pair *pair, int t)
{
    return hth_plan_home(&pair->p.tensors[t]) == HTH_HOME_RESIDENT;
}

static void change_compute(pt_pair *pair, int i)
{
    hth_instr *in = &pair->plan->instrs[i], keep = *in;
    hth_plan_node *n = &pair->p.nodes[in->node];
    in->recompute = !keep.recompute;
    pt_assert_rejected(pair, "a recompute that is none, or a first run that is one", i);
    *in = keep;
    if (keep.recompute) {
        n->recomputable = false;
        pt_assert_rejected(pair, "a recompute of what must not be", i);
        n->recomputable = true;
        in->alt = (keep.alt + 1) % (n->n_alternatives > 1 ? n->n_alternatives : 2);
        pt_assert_rejected(pair, "a recompute by another algorithm", i);
        *in = keep;
    }
    if (hth_plan_workspace(n, in->alt) > 0) {
        in->offset = pair->plan->arena_bytes;
        pt_assert_rejected(pair, "a workspace behind the arena", i);
        in->offset = keep.offset + 32;
        pt_assert_rejected(pair, "a misaligned workspace", i);
        *in = keep;
    }
}

// The last instruction before i that computes tensor t, or its new content, which a recompute does
// not.
static int last_write(const pt_pair *pair, int t, int i)
{
    for (int k = i - 1; k >= 0; k--) {
        const hth_instr *in = &pair->plan->instrs[k];
        const hth_plan_node *n = in->kind == HTH_INSTR_COMPUTE ? &pair->p.nodes[in->node] : NULL;
        for (int j = 0; n != NULL && j < n->n_outputs; j++) {
            bool update = pair->p.tensors[n->outputs[j]].replaces == t + 1 && !in->recompute;
            if (n->outputs[j] == t || update) {
                return k;
            }
        }
    }
    return -1;
}

// Whether an earlier copy out waits for what wrote the tensor of copy i: then i's own wait says
// nothing new.
static bool waited_before(const pt_pair *pair, int i)
{
    int written = last_write(pair, pair->plan->instrs[i].tensor, i);
    for (int k = 0; k < i; k++) {
        const hth_instr *o = &pair->plan->instrs[k];
        for (int j = 0; o->kind == HTH_INSTR_OFFLOAD && j < o->n_waits; j++) {
            if (o->waits[j] >= written) {
                return true;
            }
        }
    }
    return false;
}

static void change_copy(pt_pair *pair, int i)
{
    hth_instr *in = &pair->plan->instrs[i], keep = *in;
    bool offload = in->kind == HTH_INSTR_OFFLOAD;
    in->kind = offload ? HTH_INSTR_FREE : HTH_INSTR_ALLOC;
    pt_assert_rejected(pair,
                       offload ? "bytes that go without a copy" : "bytes that never come back", i);
    in->kind = offload ? HTH_INSTR_PREFETCH : HTH_INSTR_OFFLOAD;
    pt_assert_rejected(pair, "a copy in the wrong direction", i);
    *in = keep;
    if (!offload || !is_resident(pair, in->tensor)) {
        in->offset += 32;
        pt_assert_rejected(pair, "a misaligned place", i);
        in->offset = offload ? pair->plan->host_bytes : pair->plan->arena_bytes;
        pt_assert_rejected(pair, "a place behind the end", i);
        *in = keep;
    }
    if (offload && !waited_before(pair, i)) {
        in->n_waits = 0;
        pt_assert_rejected(pair, "a copy of what may not be there yet", i);
    }
    *in = keep;
}

static void test_every_instruction(void **state)
{
    int copies = 0, recomputes = 0;
    for (uint64_t seed = 1; seed <= 16; seed++) {
        pt_pair x = step_pair(seed);
        for (int i = 0; i < x.plan->n_instrs; i++) {
            const hth_instr *in = &x.plan->instrs[i];
            if (in->kind == HTH_INSTR_COMPUTE) {
                recomputes += in->recompute;
                change_compute(&x, i);
            } else if (in->kind == HTH_INSTR_OFFLOAD || in->kind == HTH_INSTR_PREFETCH) {
                copies++;
                change_copy(&x, i);
            }
        }
        assert_ok(hth_plan_verify(&x.p, x.plan));
        pt_pair_fini(&x);
    }
    assert_true(copies > 50 && recomputes > 20);
}

static void test_totals(void **state)
{
    for (uint64_t seed = 1; seed <= 16; seed++) {
        pt_pair x = step_pair(seed);
        uint64_t *const fields[] = {&x.plan->arena_bytes, &x.plan->resident_bytes,
                                    &x.plan->live_peak_bytes, &x.plan->host_bytes};
        for (int k = 0; k < 4; k++) {
            if (*fields[k] > 0) {
                *fields[k] -= 64;
                pt_assert_rejected(&x, "a total that is too small", k);
                *fields[k] += 64;
            }
        }
        x.p.budget = x.plan->arena_bytes + x.plan->resident_bytes;
        assert_ok(hth_plan_verify(&x.p, x.plan));
        x.p.budget--;
        assert_err(hth_plan_verify(&x.p, x.plan), HTH_ECORRUPT, "budget");
        pt_pair_fini(&x);
    }
}

// Node 1 updates a weight; node 2 wanted the old one.
static void test_read_after_update(void **state)
{
    hth_problem p = pt_problem(8, 3);
    int w = pt_tensor(&p, HTH_MEM_STATE, 64, -1);
    int a = pt_node(&p, &w, 1, HTH_MEM_ACTIVATION, 64, false);
    int new_w = pt_node(&p, (int[]){w, a}, 2, HTH_MEM_OUTPUT, 64, false);
    p.tensors[new_w].external = true;
    p.tensors[new_w].replaces = w + 1;
    pt_node(&p, &w, 1, HTH_MEM_OUTPUT, 64, false);
    hth_plan *plan;
    assert_ok(hth_plan_inference(&p, &plan));
    assert_err(hth_plan_verify(&p, plan), HTH_ECORRUPT, "after its update");
    p.tensors[new_w].replaces = 0;
    assert_ok(hth_plan_verify(&p, plan));
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

typedef struct step_line {
    hth_instr_kind kind;
    int what; // the node, or the tensor
    uint64_t offset;
    int wait; // -1: for none
} step_line;

static hth_err verify_lines(const hth_problem *problem, const step_line *line, int n)
{
    hth_plan plan = {.arena_bytes = 192};
    hth_plan_builder builder = {.plan = &plan};
    plan.streamed = hth_calloc((size_t)problem->n_tensors, sizeof *plan.streamed);
    plan.streamed[0] = true;
    for (int i = 0; i < n; i++) {
        hth_instr in = {.kind = line[i].kind, .offset = line[i].offset};
        *(in.kind == HTH_INSTR_COMPUTE ? &in.node : &in.tensor) = line[i].what;
        assert_ok(hth_plan_add(&builder, in, &line[i].wait, line[i].wait >= 0, NULL));
    }
    assert_ok(hth_plan_live_peak(problem, &plan, &plan.live_peak_bytes));
    hth_err err = hth_plan_verify(problem, &plan);
    for (int i = 0; i < n; i++) {
        hth_free(plan.instrs[i].waits);
    }
    hth_free(plan.instrs);
    hth_free(plan.streamed);
    return err;
}

// Node 0 reads a state that comes and goes, node 1 updates it: the host has to get what that wrote,
// before it is fetched again.
static void test_lost_updates(void **state)
{
    enum { S, A, NEXT };
    hth_problem p = pt_problem(3, 2);
    pt_tensor(&p, HTH_MEM_STATE, 64, -1);
    pt_node(&p, (int[]){S}, 1, HTH_MEM_ACTIVATION, 64, false);
    pt_node(&p, (int[]){S, A}, 2, HTH_MEM_OUTPUT, 64, false);
    p.tensors[NEXT].external = true;
    p.tensors[NEXT].replaces = S + 1;
#define READS                                                                                      \
    {HTH_INSTR_PREFETCH, S, 0, -1}, {HTH_INSTR_ALLOC, A, 64, -1},                                  \
    {                                                                                              \
        HTH_INSTR_COMPUTE, 0, 0, 0                                                                 \
    }
#define FREES                                                                                      \
    {HTH_INSTR_FREE, A, 0, -1},                                                                    \
    {                                                                                              \
        HTH_INSTR_FREE, S, 0, -1                                                                   \
    }
    const step_line saved[] = {
        READS, {HTH_INSTR_COMPUTE, 1, 0, -1}, {HTH_INSTR_OFFLOAD, S, 0, 3}, FREES};
    const step_line early[] = {
        READS, {HTH_INSTR_OFFLOAD, S, 0, 2}, {HTH_INSTR_COMPUTE, 1, 0, 3}, FREES};
    const step_line back[] = {READS,
                              {HTH_INSTR_COMPUTE, 1, 0, -1},
                              {HTH_INSTR_OFFLOAD, S, 0, 3},
                              {HTH_INSTR_FREE, S, 0, -1},
                              {HTH_INSTR_PREFETCH, S, 128, 4},
                              FREES};
    const step_line stale[] = {READS,
                               {HTH_INSTR_COMPUTE, 1, 0, -1},
                               {HTH_INSTR_FREE, S, 0, -1},
                               {HTH_INSTR_PREFETCH, S, 128, 3},
                               {HTH_INSTR_OFFLOAD, S, 0, 5},
                               FREES};
    step_line hasty[sizeof back / sizeof *back];
    memcpy(hasty, back, sizeof back);
    hasty[6].wait = 3; // for the update, not for its copy
    assert_ok(verify_lines(&p, saved, sizeof saved / sizeof *saved));
    assert_err(verify_lines(&p, early, sizeof early / sizeof *early), HTH_ECORRUPT,
               "the update of 't0' is lost");
    assert_ok(verify_lines(&p, back, sizeof back / sizeof *back));
    assert_err(verify_lines(&p, stale, sizeof stale / sizeof *stale), HTH_ECORRUPT,
               "before its update");
    assert_err(verify_lines(&p, hasty, sizeof hasty / sizeof *hasty), HTH_ECORRUPT,
               "before its update");
#undef READS
#undef FREES
    hth_problem_fini(&p);
}

// Verifying is cheap enough for every plan that is ever run.
static void test_cost(void **state)
{
    hth_problem p = pg_resnet(16, (const int[]){3, 4, 6, 3});
    hth_plan *plan = pg_random_schedule(&p, 3, true);
    uint64_t best = UINT64_MAX;
    for (int k = 0; k < 20; k++) {
        uint64_t from = hth_now_ns();
        assert_ok(hth_plan_verify(&p, plan));
        uint64_t took = hth_now_ns() - from;
        best = took < best ? took : best;
    }
    print_message("# ResNet-50, %d instructions: verified in %.2f ms\n", plan->n_instrs,
                  (double)best / 1e6);
    assert_true(best < 20000000);
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

static hth_err verify_once(const pt_pair *pair)
{
    return hth_plan_verify(&pair->p, pair->plan);
}

static void test_allocation_faults(void **state)
{
    pt_pair x = step_pair(3);
    FAULT_LOOP(verify_once(&x));
    pt_pair_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_instruction), cmocka_unit_test(test_totals),
        cmocka_unit_test(test_read_after_update), cmocka_unit_test(test_cost),
        cmocka_unit_test(test_allocation_faults), cmocka_unit_test(test_lost_updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
