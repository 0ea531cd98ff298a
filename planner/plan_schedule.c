// SPDX-License-Identifier: Apache-2.0
// From a schedule to a plan: buffers of segments become rectangles, rectangles get addresses, and
// stages become instructions:
//   free   what left by a copy (waits for it)
//   fetch  what owns its buffer from here on
//   alloc + compute  reruns, then the node; the first of them waits for the fetches needed here
//   save   copies out that go after this stage
//   free   what ends here
// A fetch waits for the compute before it and for the saves that this stage waits for, so it starts
// when the rules of time say (plan_schedule.h), and nothing that lay at its place is still in use.
#include "planner/plan_lay.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

#define LAY_EFFORT 1

void hth_schedule_fini(hth_schedule *s)
{
    hth_free(s->alt);
    hth_free(s->segment);
    hth_free(s->rerun);
    memset(s, 0, sizeof *s);
}

static void lay_fini(hth_lay *x)
{
    void *all[] = {x->rect,      x->of_segment, x->of_stage,   x->host_rect,
                   x->slab,      x->first_at,   x->next_first, x->last_at,
                   x->next_last, x->save_at,    x->next_save,  x->need_at,
                   x->next_need, x->instr,      x->saved,      x->waits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
}

static hth_err lay_init(hth_lay *x, const hth_problem *p, hth_schedule *s)
{
    size_t n = (size_t)s->n_segments + 1, stages = (size_t)s->n_stages + 2,
           nt = (size_t)p->n_tensors + 1;
    *x = (hth_lay){.p = p, .s = s};
    struct {
        void *at;
        size_t bytes;
    } all[] = {{&x->rect, (n + stages) * sizeof *x->rect},
               {&x->of_segment, n * sizeof(int)},
               {&x->of_stage, stages * sizeof(int)},
               {&x->host_rect, nt * sizeof(int)},
               {&x->slab, nt * sizeof *x->slab},
               {&x->first_at, stages * sizeof(int)},
               {&x->next_first, n * sizeof(int)},
               {&x->last_at, stages * sizeof(int)},
               {&x->next_last, n * sizeof(int)},
               {&x->save_at, stages * sizeof(int)},
               {&x->next_save, n * sizeof(int)},
               {&x->need_at, stages * sizeof(int)},
               {&x->next_need, n * sizeof(int)},
               {&x->instr, n * sizeof(int)},
               {&x->saved, nt * sizeof(int)},
               {&x->waits, (n + 2) * sizeof(int)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *block = hth_alloc(all[i].bytes);
        if (block == NULL) {
            lay_fini(x);
            return hth_fail(HTH_ENOMEM, "no memory to lay out a plan of %d nodes", s->n_stages);
        }
        memset(block, -1, all[i].bytes);
        memcpy(all[i].at, &block, sizeof block);
    }
    return HTH_OK;
}

static void lay_list(int *head, int *next, int key, int i)
{
    next[i] = head[key];
    head[key] = i;
}

// Lists run by tensor then first stage; the fetches of a stage by need.
static void lay_lists(hth_lay *x)
{
    const hth_schedule *s = x->s;
    for (int i = s->n_segments - 1; i >= 0; i--) {
        const hth_segment *g = &s->segment[i];
        lay_list(x->last_at, x->next_last, g->last, i);
        if (g->save >= 0) {
            lay_list(x->save_at, x->next_save, g->save, i);
        }
        if (g->origin == HTH_FROM_HOST) {
            lay_list(x->need_at, x->next_need, g->need, i);
        } else {
            lay_list(x->first_at, x->next_first, g->first, i);
        }
    }
    for (int m = s->n_stages - 1; m >= 0; m--) {
        for (int i = x->need_at[m]; i >= 0; i = x->next_need[i]) {
            lay_list(x->first_at, x->next_first, s->segment[i].first, i);
        }
    }
}

static int lay_root(const hth_lay *x, int i)
{
    while (x->s->segment[i].inplace >= 0) {
        i = x->s->segment[i].inplace;
    }
    return i;
}

uint64_t hth_lay_rerun_bytes(const hth_lay *x, const hth_rerun *r)
{
    const hth_plan_node *n = &x->p->nodes[r->node];
    uint64_t bytes = hth_plan_round(hth_plan_workspace(n, r->alt));
    for (int j = 0; j < n->n_outputs; j++) {
        bool begins = false;
        for (int i = x->first_at[r->stage]; i >= 0; i = x->next_first[i]) {
            begins = begins || (x->s->segment[i].tensor == n->outputs[j] &&
                                x->s->segment[i].origin == HTH_FROM_RERUN);
        }
        bytes += begins ? 0 : hth_plan_round(x->p->tensors[n->outputs[j]].bytes);
    }
    return bytes;
}

static void lay_rects(hth_lay *x)
{
    const hth_schedule *s = x->s;
    for (int i = 0; i < s->n_segments; i++) {
        const hth_segment *g = &s->segment[i];
        int root = lay_root(x, i);
        if (root == i) {
            x->of_segment[i] = x->n_rects;
            x->rect[x->n_rects++] =
                (hth_rect){g->first, g->last, hth_plan_round(x->p->tensors[g->tensor].bytes), 0};
        }
    }
    for (int i = 0; i < s->n_segments; i++) {
        int r = x->of_segment[i] = x->of_segment[lay_root(x, i)];
        x->rect[r].last =
            s->segment[i].last > x->rect[r].last ? s->segment[i].last : x->rect[r].last;
    }
    int r = 0;
    for (int stage = 0; stage < s->n_stages; stage++) {
        uint64_t most = hth_plan_round(hth_plan_workspace(&x->p->nodes[stage], s->alt[stage]));
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            uint64_t b = hth_lay_rerun_bytes(x, &s->rerun[r]);
            most = b > most ? b : most;
        }
        if (most > 0) {
            x->of_stage[stage] = x->n_rects;
            x->rect[x->n_rects++] = (hth_rect){stage, stage, most, 0};
        }
    }
}

// The host's copy of a tensor stays from its save to its last fetch. What is resident elsewhere has
// its copy there.
static hth_err lay_host(hth_lay *x, uint64_t *bytes)
{
    const hth_schedule *s = x->s;
    for (int i = 0; i < s->n_segments; i++) {
        const hth_segment *g = &s->segment[i];
        int *r = &x->host_rect[g->tensor];
        if (hth_plan_home(&x->p->tensors[g->tensor]) == HTH_HOME_RESIDENT) {
            continue;
        }
        if (g->origin == HTH_FROM_HOST) {
            x->slab[*r].last = g->need > x->slab[*r].last ? g->need : x->slab[*r].last;
        }
        if (g->save >= 0) {
            *r = x->n_slab;
            x->slab[x->n_slab++] =
                (hth_rect){g->save, g->save, hth_plan_round(x->p->tensors[g->tensor].bytes), 0};
        }
    }
    return hth_address_assign(x->slab, x->n_slab, 0, 1, bytes);
}

// Instructions.

static hth_err lay_simple(hth_lay *x, hth_instr_kind kind, int t, uint64_t offset, int wait,
                          int *index)
{
    return hth_plan_add(&x->builder, (hth_instr){.kind = kind, .tensor = t, .offset = offset},
                        &wait, wait >= 0, index);
}

static hth_err lay_alloc(hth_lay *x, int stage, hth_origin origin, int node)
{
    for (int i = x->first_at[stage]; i >= 0; i = x->next_first[i]) {
        const hth_segment *g = &x->s->segment[i];
        if (g->origin == origin && (node < 0 || x->p->tensors[g->tensor].producer == node)) {
            HTH_TRY(lay_simple(x, HTH_INSTR_ALLOC, g->tensor, x->rect[x->of_segment[i]].offset, -1,
                               NULL));
        }
    }
    return HTH_OK;
}

static hth_err lay_arrive(hth_lay *x, int stage, int compute)
{
    int n = 0;
    if (compute >= 0) {
        x->waits[n++] = compute;
    }
    for (int i = stage > 0 ? x->last_at[stage - 1] : -1; i >= 0; i = x->next_last[i]) {
        const hth_segment *g = &x->s->segment[i];
        if (g->save >= 0) {
            x->waits[n++] = x->saved[g->tensor];
            HTH_TRY(lay_simple(x, HTH_INSTR_FREE, g->tensor, 0, x->saved[g->tensor], NULL));
        }
    }
    for (int i = x->first_at[stage]; i >= 0; i = x->next_first[i]) {
        const hth_segment *g = &x->s->segment[i];
        if (g->origin != HTH_FROM_HOST) {
            continue;
        }
        int more = n;
        if (x->saved[g->tensor] >= 0) {
            x->waits[more++] = x->saved[g->tensor];
        }
        hth_instr in = {.kind = HTH_INSTR_PREFETCH,
                        .tensor = g->tensor,
                        .offset = x->rect[x->of_segment[i]].offset};
        HTH_TRY(hth_plan_add(&x->builder, in, x->waits, more, &x->instr[i]));
    }
    return HTH_OK;
}

static hth_err lay_compute(hth_lay *x, int stage, int *compute)
{
    int n = 0;
    uint64_t at = x->of_stage[stage] >= 0 ? x->rect[x->of_stage[stage]].offset : 0;
    for (int i = x->need_at[stage]; i >= 0; i = x->next_need[i]) {
        x->waits[n++] = x->instr[i];
    }
    for (; x->next_rerun < x->s->n_reruns && x->s->rerun[x->next_rerun].stage == stage;
         x->next_rerun++) {
        const hth_rerun *r = &x->s->rerun[x->next_rerun];
        HTH_TRY(lay_alloc(x, stage, HTH_FROM_RERUN, r->node));
        hth_instr in = {.kind = HTH_INSTR_COMPUTE,
                        .node = r->node,
                        .alt = r->alt,
                        .offset = at,
                        .recompute = true};
        HTH_TRY(hth_plan_add(&x->builder, in, x->waits, n, compute));
        n = 0;
    }
    HTH_TRY(lay_alloc(x, stage, HTH_FROM_NODE, stage));
    hth_instr in = {
        .kind = HTH_INSTR_COMPUTE, .node = stage, .alt = x->s->alt[stage], .offset = at};
    return hth_plan_add(&x->builder, in, x->waits, n, compute);
}

static hth_err lay_leave(hth_lay *x, int stage, int compute)
{
    for (int i = x->save_at[stage]; i >= 0; i = x->next_save[i]) {
        int t = x->s->segment[i].tensor;
        uint64_t at = x->host_rect[t] >= 0 ? x->slab[x->host_rect[t]].offset : 0;
        HTH_TRY(lay_simple(x, HTH_INSTR_OFFLOAD, t, at, compute, &x->saved[t]));
    }
    for (int i = x->last_at[stage]; i >= 0; i = x->next_last[i]) {
        const hth_segment *g = &x->s->segment[i];
        bool residencies =
            x->p->tensors[g->tensor].cls == HTH_MEM_OUTPUT && stage == x->s->n_stages - 1;
        if (g->save < 0 && !residencies) {
            HTH_TRY(lay_simple(x, HTH_INSTR_FREE, g->tensor, 0, -1, NULL));
        }
    }
    return HTH_OK;
}

static hth_err lay_instrs(hth_lay *x)
{
    int compute = -1;
    for (int i = 0; i < x->s->n_segments; i++) {
        const hth_segment *g = &x->s->segment[i];
        if (g->origin == HTH_FROM_START) {
            HTH_TRY(lay_simple(x, HTH_INSTR_ALLOC, g->tensor, x->rect[x->of_segment[i]].offset, -1,
                               NULL));
        }
    }
    for (int s = 0; s < x->s->n_stages; s++) {
        HTH_TRY(lay_arrive(x, s, compute));
        HTH_TRY(lay_compute(x, s, &compute));
        HTH_TRY(lay_leave(x, s, compute));
    }
    return lay_arrive(x, x->s->n_stages, compute);
}

static hth_err lay_plan(hth_lay *x, bool hasty, hth_plan *plan)
{
    const hth_problem *p = x->p;
    plan->streamed = hth_calloc((size_t)p->n_tensors + 1, sizeof *plan->streamed);
    if (plan->streamed == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a plan of %d tensors", p->n_tensors);
    }
    lay_lists(x);
    lay_rects(x);
    HTH_TRY(hth_address_assign(x->rect, x->n_rects, p->budget - x->s->resident_bytes,
                               hasty ? 0 : LAY_EFFORT, &plan->arena_bytes));
    x->s->height_bytes = plan->arena_bytes;
    if (plan->arena_bytes > p->budget - x->s->resident_bytes) {
        HTH_TRY(hth_lay_squeeze(x, p->budget - x->s->resident_bytes, hasty, &plan->arena_bytes));
    }
    HTH_TRY(lay_host(x, &plan->host_bytes));
    x->builder.plan = plan;
    HTH_TRY(lay_instrs(x));
    for (int i = 0; i < x->s->n_segments; i++) {
        int t = x->s->segment[i].tensor;
        plan->streamed[t] = hth_plan_home(&p->tensors[t]) == HTH_HOME_RESIDENT;
    }
    plan->resident_bytes = x->s->resident_bytes;
    HTH_TRY(hth_plan_live_peak(p, plan, &plan->live_peak_bytes));
    hth_plan_simulate(p, plan);
    return HTH_OK;
}

hth_err hth_plan_emit(const hth_problem *p, hth_schedule *s, bool hasty, hth_plan **out)
{
    hth_lay x;
    *out = NULL;
    HTH_TRY(lay_init(&x, p, s));
    hth_plan *plan = hth_calloc(1, sizeof *plan);
    hth_err err = plan ? lay_plan(&x, hasty, plan) : hth_fail(HTH_ENOMEM, "no memory for a plan");
    lay_fini(&x);
    if (err != HTH_OK) {
        hth_plan_free(plan);
        return err;
    }
    *out = plan;
    return HTH_OK;
}
