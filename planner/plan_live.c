// SPDX-License-Identifier: Apache-2.0
// The live bytes of an arena, by class, as a plan's instructions are issued.
#include "planner/plan_impl.h"

#include "base/alloc.h"

#include <string.h>

typedef struct live_account {
    uint64_t bytes, offset;
} live_account;

static void live_add(hth_live *live, int t, uint64_t bytes)
{
    live->at[t].bytes += bytes;
    live->of_class[live->problem->tensors[t].cls] += bytes;
    live->bytes += bytes;
}

static void live_take(hth_live *live, int t, uint64_t bytes)
{
    live->at[t].bytes -= bytes;
    live->of_class[live->problem->tensors[t].cls] -= bytes;
    live->bytes -= bytes;
}

// An output that takes over its input's place moves the bytes from one account to the other.
static void live_enter(hth_live *live, const hth_instr *in)
{
    const hth_plan_tensor *t = &live->problem->tensors[in->tensor];
    uint64_t bytes = hth_plan_round(t->bytes);
    int pair = live->pair[in->tensor];
    if (pair >= 0 && live->at[pair].bytes >= bytes && live->at[pair].offset == in->offset) {
        live_take(live, pair, bytes);
    }
    live->at[in->tensor] = (live_account){.offset = in->offset};
    live_add(live, in->tensor, bytes);
}

// A recompute writes those of its outputs that have a place but no content yet; the others (still
// there, gone for good, or the caller's) go to scratch after its workspace, in their order.
static void live_compute(hth_live *live, const hth_instr *in)
{
    const hth_plan_node *n = &live->problem->nodes[in->node];
    live->scratch = hth_plan_round(hth_plan_workspace(n, in->alt));
    for (int j = 0; j < n->n_outputs; j++) {
        int t = n->outputs[j];
        if (in->recompute && live->filled[t]) {
            live->scratch += hth_plan_round(live->problem->tensors[t].bytes);
        }
        live->filled[t] = true;
    }
}

hth_err hth_live_open(const hth_problem *problem, hth_live *out)
{
    size_t n = (size_t)problem->n_tensors;
    *out = (hth_live){.problem = problem,
                      .at = hth_calloc(n, sizeof *out->at),
                      .pair = hth_alloc(n * sizeof *out->pair),
                      .filled = hth_alloc(n * sizeof *out->filled)};
    if (out->at == NULL || out->pair == NULL || out->filled == NULL) {
        hth_live_close(out);
        return hth_no_memory("the live bytes of %d tensors", problem->n_tensors);
    }
    hth_plan_pairs(problem, out->pair);
    memset(out->filled, true, n * sizeof *out->filled);
    return HTH_OK;
}

void hth_live_close(hth_live *live)
{
    hth_free(live->at);
    hth_free(live->pair);
    hth_free(live->filled);
    *live = (hth_live){.problem = NULL};
}

void hth_live_step(hth_live *live, const hth_instr *in)
{
    live->scratch = 0;
    switch (in->kind) {
    case HTH_INSTR_ALLOC:
    case HTH_INSTR_PREFETCH:
        live_enter(live, in);
        live->filled[in->tensor] = in->kind == HTH_INSTR_PREFETCH;
        break;
    case HTH_INSTR_FREE:
        live_take(live, in->tensor, live->at[in->tensor].bytes);
        live->filled[in->tensor] = true;
        break;
    case HTH_INSTR_COMPUTE:
        live_compute(live, in);
        break;
    case HTH_INSTR_OFFLOAD:
        break;
    }
}
