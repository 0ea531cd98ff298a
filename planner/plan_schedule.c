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
#include "planner/plan_work.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

#define LAY_EFFORT 1

void hth_schedule_fini(hth_schedule *schedule)
{
    hth_free(schedule->alt);
    hth_free(schedule->segment);
    hth_free(schedule->rerun);
    memset(schedule, 0, sizeof *schedule);
}

static void lay_fini(hth_lay *lay)
{
    void *all[] = {lay->rect,      lay->of_segment, lay->of_stage,   lay->host_rect,
                   lay->slab,      lay->first_at,   lay->next_first, lay->last_at,
                   lay->next_last, lay->save_at,    lay->next_save,  lay->need_at,
                   lay->next_need, lay->instr,      lay->saved,      lay->waits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
}

static hth_err lay_init(hth_lay *lay, const hth_problem *problem, hth_schedule *schedule)
{
    size_t n = (size_t)schedule->n_segments + 1, stages = (size_t)schedule->n_stages + 2,
           nt = (size_t)problem->n_tensors + 1;
    *lay = (hth_lay){.p = problem, .s = schedule};
    struct {
        void *at;
        size_t bytes;
    } all[] = {{&lay->rect, (n + stages) * sizeof *lay->rect},
               {&lay->of_segment, n * sizeof(int)},
               {&lay->of_stage, stages * sizeof(int)},
               {&lay->host_rect, nt * sizeof(int)},
               {&lay->slab, nt * sizeof *lay->slab},
               {&lay->first_at, stages * sizeof(int)},
               {&lay->next_first, n * sizeof(int)},
               {&lay->last_at, stages * sizeof(int)},
               {&lay->next_last, n * sizeof(int)},
               {&lay->save_at, stages * sizeof(int)},
               {&lay->next_save, n * sizeof(int)},
               {&lay->need_at, stages * sizeof(int)},
               {&lay->next_need, n * sizeof(int)},
               {&lay->instr, n * sizeof(int)},
               {&lay->saved, nt * sizeof(int)},
               {&lay->waits, (n + 2) * sizeof(int)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *block = hth_alloc(all[i].bytes);
        if (block == NULL) {
            lay_fini(lay);
            return hth_no_memory("laying out a plan of %d nodes", schedule->n_stages);
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
static void lay_lists(hth_lay *lay)
{
    const hth_schedule *s = lay->s;
    for (int i = s->n_segments - 1; i >= 0; i--) {
        const hth_segment *g = &s->segment[i];
        lay_list(lay->last_at, lay->next_last, g->last, i);
        if (g->save >= 0) {
            lay_list(lay->save_at, lay->next_save, g->save, i);
        }
        if (g->origin == HTH_FROM_HOST) {
            lay_list(lay->need_at, lay->next_need, g->need, i);
        } else {
            lay_list(lay->first_at, lay->next_first, g->first, i);
        }
    }
    for (int m = s->n_stages - 1; m >= 0; m--) {
        for (int i = lay->need_at[m]; i >= 0; i = lay->next_need[i]) {
            lay_list(lay->first_at, lay->next_first, s->segment[i].first, i);
        }
    }
}

static int lay_root(const hth_lay *lay, int i)
{
    while (lay->s->segment[i].inplace >= 0) {
        i = lay->s->segment[i].inplace;
    }
    return i;
}

uint64_t hth_lay_rerun_bytes(const hth_lay *lay, const hth_rerun *rerun)
{
    const hth_plan_node *n = &lay->p->nodes[rerun->node];
    uint64_t bytes = hth_plan_round(hth_plan_workspace(n, rerun->alt));
    for (int j = 0; j < n->n_outputs; j++) {
        bool begins = false;
        for (int i = lay->first_at[rerun->stage]; i >= 0; i = lay->next_first[i]) {
            begins = begins || (lay->s->segment[i].tensor == n->outputs[j] &&
                                lay->s->segment[i].origin == HTH_FROM_RERUN);
        }
        bytes += begins ? 0 : hth_plan_round(lay->p->tensors[n->outputs[j]].bytes);
    }
    return bytes;
}

static void lay_rects(hth_lay *lay)
{
    const hth_schedule *s = lay->s;
    for (int i = 0; i < s->n_segments; i++) {
        const hth_segment *g = &s->segment[i];
        int root = lay_root(lay, i);
        if (root == i) {
            lay->of_segment[i] = lay->n_rects;
            lay->rect[lay->n_rects++] =
                (hth_rect){g->first, g->last, hth_plan_round(lay->p->tensors[g->tensor].bytes), 0};
        }
    }
    for (int i = 0; i < s->n_segments; i++) {
        int r = lay->of_segment[i] = lay->of_segment[lay_root(lay, i)];
        lay->rect[r].last =
            s->segment[i].last > lay->rect[r].last ? s->segment[i].last : lay->rect[r].last;
    }
    int r = 0;
    for (int stage = 0; stage < s->n_stages; stage++) {
        uint64_t most = hth_plan_round(hth_plan_workspace(&lay->p->nodes[stage], s->alt[stage]));
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            uint64_t b = hth_lay_rerun_bytes(lay, &s->rerun[r]);
            most = b > most ? b : most;
        }
        if (most > 0) {
            lay->of_stage[stage] = lay->n_rects;
            lay->rect[lay->n_rects++] = (hth_rect){stage, stage, most, 0};
        }
    }
}

// The host's copy of a tensor stays from its save to its last fetch. What is resident elsewhere has
// its copy there.
static hth_err lay_host(hth_lay *lay, uint64_t *bytes)
{
    const hth_schedule *s = lay->s;
    for (int i = 0; i < s->n_segments; i++) {
        const hth_segment *g = &s->segment[i];
        int *r = &lay->host_rect[g->tensor];
        if (hth_plan_home(&lay->p->tensors[g->tensor]) == HTH_HOME_RESIDENT) {
            continue;
        }
        if (g->origin == HTH_FROM_HOST) {
            lay->slab[*r].last = g->need > lay->slab[*r].last ? g->need : lay->slab[*r].last;
        }
        if (g->save >= 0) {
            *r = lay->n_slab;
            lay->slab[lay->n_slab++] =
                (hth_rect){g->save, g->save, hth_plan_round(lay->p->tensors[g->tensor].bytes), 0};
        }
    }
    return hth_address_assign(lay->slab, lay->n_slab, 0, 1, bytes);
}

// Instructions.

static hth_err lay_simple(hth_lay *lay, hth_instr_kind kind, int t, uint64_t offset, int wait,
                          int *index)
{
    return hth_plan_add(&lay->builder, (hth_instr){.kind = kind, .tensor = t, .offset = offset},
                        &wait, wait >= 0, index);
}

static hth_err lay_alloc(hth_lay *lay, int stage, hth_origin origin, int node)
{
    for (int i = lay->first_at[stage]; i >= 0; i = lay->next_first[i]) {
        const hth_segment *g = &lay->s->segment[i];
        if (g->origin == origin && (node < 0 || lay->p->tensors[g->tensor].producer == node)) {
            HTH_TRY(lay_simple(lay, HTH_INSTR_ALLOC, g->tensor,
                               lay->rect[lay->of_segment[i]].offset, -1, NULL));
        }
    }
    return HTH_OK;
}

static hth_err lay_arrive(hth_lay *lay, int stage, int compute)
{
    int n = 0;
    if (compute >= 0) {
        lay->waits[n++] = compute;
    }
    for (int i = stage > 0 ? lay->last_at[stage - 1] : -1; i >= 0; i = lay->next_last[i]) {
        const hth_segment *g = &lay->s->segment[i];
        if (g->save >= 0) {
            lay->waits[n++] = lay->saved[g->tensor];
            HTH_TRY(lay_simple(lay, HTH_INSTR_FREE, g->tensor, 0, lay->saved[g->tensor], NULL));
        }
    }
    for (int i = lay->first_at[stage]; i >= 0; i = lay->next_first[i]) {
        const hth_segment *g = &lay->s->segment[i];
        if (g->origin != HTH_FROM_HOST) {
            continue;
        }
        int more = n;
        if (lay->saved[g->tensor] >= 0) {
            lay->waits[more++] = lay->saved[g->tensor];
        }
        hth_instr in = {.kind = HTH_INSTR_PREFETCH,
                        .tensor = g->tensor,
                        .offset = lay->rect[lay->of_segment[i]].offset};
        HTH_TRY(hth_plan_add(&lay->builder, in, lay->waits, more, &lay->instr[i]));
    }
    return HTH_OK;
}

static hth_err lay_compute(hth_lay *lay, int stage, int *compute)
{
    int n = 0;
    uint64_t at = lay->of_stage[stage] >= 0 ? lay->rect[lay->of_stage[stage]].offset : 0;
    for (int i = lay->need_at[stage]; i >= 0; i = lay->next_need[i]) {
        lay->waits[n++] = lay->instr[i];
    }
    for (; lay->next_rerun < lay->s->n_reruns && lay->s->rerun[lay->next_rerun].stage == stage;
         lay->next_rerun++) {
        const hth_rerun *r = &lay->s->rerun[lay->next_rerun];
        HTH_TRY(lay_alloc(lay, stage, HTH_FROM_RERUN, r->node));
        hth_instr in = {.kind = HTH_INSTR_COMPUTE,
                        .node = r->node,
                        .alt = r->alt,
                        .offset = at,
                        .recompute = true};
        HTH_TRY(hth_plan_add(&lay->builder, in, lay->waits, n, compute));
        n = 0;
    }
    HTH_TRY(lay_alloc(lay, stage, HTH_FROM_NODE, stage));
    hth_instr in = {
        .kind = HTH_INSTR_COMPUTE, .node = stage, .alt = lay->s->alt[stage], .offset = at};
    return hth_plan_add(&lay->builder, in, lay->waits, n, compute);
}

static hth_err lay_leave(hth_lay *lay, int stage, int compute)
{
    for (int i = lay->save_at[stage]; i >= 0; i = lay->next_save[i]) {
        int t = lay->s->segment[i].tensor;
        uint64_t at = lay->host_rect[t] >= 0 ? lay->slab[lay->host_rect[t]].offset : 0;
        HTH_TRY(lay_simple(lay, HTH_INSTR_OFFLOAD, t, at, compute, &lay->saved[t]));
    }
    for (int i = lay->last_at[stage]; i >= 0; i = lay->next_last[i]) {
        const hth_segment *g = &lay->s->segment[i];
        bool residencies =
            lay->p->tensors[g->tensor].cls == HTH_MEM_OUTPUT && stage == lay->s->n_stages - 1;
        if (g->save < 0 && !residencies) {
            HTH_TRY(lay_simple(lay, HTH_INSTR_FREE, g->tensor, 0, -1, NULL));
        }
    }
    return HTH_OK;
}

static hth_err lay_instrs(hth_lay *lay)
{
    int compute = -1;
    for (int i = 0; i < lay->s->n_segments; i++) {
        const hth_segment *g = &lay->s->segment[i];
        if (g->origin == HTH_FROM_START) {
            HTH_TRY(lay_simple(lay, HTH_INSTR_ALLOC, g->tensor,
                               lay->rect[lay->of_segment[i]].offset, -1, NULL));
        }
    }
    for (int s = 0; s < lay->s->n_stages; s++) {
        HTH_TRY(lay_arrive(lay, s, compute));
        HTH_TRY(lay_compute(lay, s, &compute));
        HTH_TRY(lay_leave(lay, s, compute));
    }
    return lay_arrive(lay, lay->s->n_stages, compute);
}

static hth_err lay_plan(hth_lay *lay, bool hasty, hth_plan *plan)
{
    const hth_problem *p = lay->p;
    plan->streamed = hth_calloc((size_t)p->n_tensors + 1, sizeof *plan->streamed);
    if (plan->streamed == NULL) {
        return hth_no_memory("a plan of %d tensors", p->n_tensors);
    }
    lay_lists(lay);
    lay_rects(lay);
    hth_plan_work_add(HTH_WORK_LAY, lay->n_rects + lay->s->n_stages);
    HTH_TRY(hth_address_assign(lay->rect, lay->n_rects, p->budget - lay->s->resident_bytes,
                               hasty ? 0 : LAY_EFFORT, &plan->arena_bytes));
    lay->s->height_bytes = plan->arena_bytes;
    if (plan->arena_bytes > p->budget - lay->s->resident_bytes) {
        HTH_TRY(
            hth_lay_squeeze(lay, p->budget - lay->s->resident_bytes, hasty, &plan->arena_bytes));
    }
    HTH_TRY(lay_host(lay, &plan->host_bytes));
    lay->builder.plan = plan;
    HTH_TRY(lay_instrs(lay));
    for (int i = 0; i < lay->s->n_segments; i++) {
        int t = lay->s->segment[i].tensor;
        plan->streamed[t] = hth_plan_home(&p->tensors[t]) == HTH_HOME_RESIDENT;
    }
    plan->resident_bytes = lay->s->resident_bytes;
    HTH_TRY(hth_plan_live_peak(p, plan, &plan->live_peak_bytes));
    hth_plan_simulate(p, plan);
    return HTH_OK;
}

hth_err hth_plan_emit(const hth_problem *problem, hth_schedule *schedule, bool hasty,
                      hth_plan **out)
{
    hth_lay x;
    *out = NULL;
    HTH_TRY(lay_init(&x, problem, schedule));
    hth_plan *plan = hth_calloc(1, sizeof *plan);
    hth_err err = plan ? lay_plan(&x, hasty, plan) : hth_no_memory("a plan");
    lay_fini(&x);
    if (err != HTH_OK) {
        hth_plan_free(plan);
        return err;
    }
    *out = plan;
    return HTH_OK;
}
