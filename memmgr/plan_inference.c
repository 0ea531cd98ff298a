// SPDX-License-Identifier: Apache-2.0
// Plans a forward pass. First the easy case: all weights resident, the fastest algorithm
// everywhere. When that does not fit, plan_stream.c decides which algorithms to degrade and which
// weights to stream. Decisions become rectangles, rectangles get addresses (plan_address.c); if the
// arena comes out higher than the bytes that the decision counted on, the budget is tightened by
// the excess and the decision made again. The last resort is the decision with the fewest bytes,
// whose arena is the floor that hth_plan_floor reports: so a budget of at least the floor always
// succeeds.
//
// Once addresses are known, a fetch may begin as soon as its place is free, which is often long
// before the stage that the decision reserved: it is issued right behind the last compute that used
// any byte of its place, and waits for it.
#include "memmgr/plan_stream.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INFERENCE_ROUNDS 8
#define INFERENCE_SEED   1

typedef struct inference {
    const hth_problem *p;
    hth_buffers buffers;
    hth_stream_model model;
    hth_stream_decision decision;
    // The layout: buffers first, then one rectangle per stage's workspace and per fetch; -1: none.
    int n_rects;
    hth_rect *rect;
    int *of_stage, *of_use;
    uint64_t arena_bytes;
} inference;

static void inference_close(inference *x)
{
    hth_buffers_fini(&x->buffers);
    hth_stream_model_fini(&x->model);
    hth_stream_decision_fini(&x->decision);
    hth_free(x->rect);
    hth_free(x->of_stage);
    hth_free(x->of_use);
}

static hth_err inference_open(const hth_problem *p, inference *x)
{
    *x = (inference){.p = p};
    HTH_TRY(hth_problem_check(p));
    hth_err err;
    HTH_GOTO(hth_plan_buffers(p, &x->buffers), fail);
    HTH_GOTO(hth_stream_model_init(&x->model, p, &x->buffers), fail);
    HTH_GOTO(hth_stream_decision_init(&x->model, &x->decision), fail);
    size_t n_stages = (size_t)p->n_nodes, n_uses = (size_t)x->model.n_uses;
    x->rect = hth_alloc(((size_t)x->buffers.n + n_stages + n_uses) * sizeof *x->rect);
    x->of_stage = hth_alloc(n_stages * sizeof *x->of_stage);
    x->of_use = hth_alloc(n_uses * sizeof *x->of_use);
    if (x->rect != NULL && x->of_stage != NULL && x->of_use != NULL) {
        return HTH_OK;
    }
    err = hth_fail(HTH_ENOMEM, "no memory to plan %d nodes", p->n_nodes);
fail:
    inference_close(x);
    return err;
}

static const hth_menu_item *inference_item(const inference *x, int s)
{
    return &x->model.menu[x->model.menu_start[s] + x->decision.item[s]];
}

// Turns the decision into rectangles and gives them addresses, below `target` if it can.
static hth_err inference_layout(inference *x, uint64_t target)
{
    const hth_stream_model *m = &x->model;
    memcpy(x->rect, x->buffers.rect, (size_t)x->buffers.n * sizeof *x->rect);
    x->n_rects = x->buffers.n;
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t bytes = inference_item(x, s)->workspace;
        x->of_stage[s] = bytes > 0 ? x->n_rects : -1;
        if (bytes > 0) {
            x->rect[x->n_rects++] = (hth_rect){s, s, bytes, 0};
        }
    }
    for (int u = 0; u < m->n_uses; u++) {
        const hth_use *use = &m->use[u];
        x->of_use[u] = -1;
        if (!x->decision.stream[use->weight]) {
            continue;
        }
        if (x->decision.fetched[u]) {
            x->of_use[u] = x->n_rects;
            x->rect[x->n_rects++] =
                (hth_rect){x->decision.begin[u], use->last, m->weight[use->weight].bytes, 0};
        } else { // kept: the earlier fetch's place lives on
            x->of_use[u] = x->of_use[use->previous];
            x->rect[x->of_use[u]].last = use->last;
        }
    }
    return hth_address_assign(x->rect, x->n_rects, target, &x->arena_bytes);
}

static uint64_t inference_bytes(const inference *x)
{
    return x->decision.resident_bytes + x->arena_bytes;
}

static hth_err inference_minimal(inference *x)
{
    hth_stream_minimal(&x->model, &x->decision);
    return inference_layout(x, 0);
}

// Decides and lays out within the budget, or leaves a layout that does not fit.
static hth_err inference_decide(inference *x)
{
    uint64_t budget = x->p->budget;
    bool fastest;
    hth_stream_keep_all(&x->model, budget, &x->decision, &fastest);
    if (fastest) {
        HTH_TRY(inference_layout(x, 0));
        if (inference_bytes(x) <= budget) {
            return HTH_OK;
        }
    }
    HTH_TRY(inference_minimal(x));
    uint64_t floor = inference_bytes(x);
    if (floor > budget) {
        return hth_fail(HTH_ETOOBIG, "needs at least %llu bytes, the budget is %llu",
                        (unsigned long long)floor, (unsigned long long)budget);
    }
    for (int round = 1; round <= INFERENCE_ROUNDS; round++) {
        HTH_TRY(hth_stream_search(&x->model, budget, INFERENCE_SEED, round > 1, &x->decision));
        if (!(x->decision.time_us < INFINITY)) {
            break;
        }
        HTH_TRY(inference_layout(x, x->p->budget - x->decision.resident_bytes));
        if (inference_bytes(x) <= x->p->budget) {
            return HTH_OK;
        }
        uint64_t excess = (inference_bytes(x) - x->p->budget) * (uint64_t)round;
        if (excess > budget) {
            break;
        }
        budget -= excess;
    }
    return inference_minimal(x);
}

// Emission.

typedef struct inference_emit {
    inference *x;
    hth_plan_builder builder;
    int *issue;    // per use: stage before which its fetch is issued
    int *after;    // per use: stage whose compute it waits for, -1: none
    int *computes; // per stage: its instruction
    int *fetches;  // per use: its instruction
    int *place;    // per tensor: rectangle of a weight that was fetched, -1: not a streamed weight
} inference_emit;

// Finds for every fetch the last stage that uses its place before it. `by_last`: rectangles sorted
// by their last stage.
static void emit_advance(inference_emit *e, const int *by_last)
{
    const inference *x = e->x;
    int previous = 0, n_done = 0; // rectangles that end before the fetch's first stage
    for (int u = 0; u < x->model.n_uses; u++) {
        if (!x->decision.fetched[u]) {
            continue;
        }
        const hth_rect *r = &x->rect[x->of_use[u]];
        while (n_done < x->n_rects && x->rect[by_last[n_done]].last < r->first) {
            n_done++;
        }
        int k = n_done - 1;
        for (; k >= 0; k--) {
            const hth_rect *o = &x->rect[by_last[k]];
            if (o->offset < r->offset + r->bytes && r->offset < o->offset + o->bytes) {
                break;
            }
        }
        e->after[u] = k >= 0 ? x->rect[by_last[k]].last : -1;
        int twin = x->model.use[u].previous >= 0 ? x->of_use[x->model.use[u].previous] : -1;
        if (twin >= 0 &&
            x->rect[twin].last >
                e->after[u]) { // one place at a time: the weight's earlier one is given up
            e->after[u] = x->rect[twin].last;
        }
        e->issue[u] = e->after[u] + 1 > previous ? e->after[u] + 1 : previous;
        previous = e->issue[u];
    }
}

// Stages are small numbers: a counting sort.
static hth_err emit_sort_by_last(const inference *x, int *by_last)
{
    int *count = hth_calloc((size_t)x->p->n_nodes + 1, sizeof *count);
    if (count == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to plan %d nodes", x->p->n_nodes);
    }
    for (int i = 0; i < x->n_rects; i++) {
        count[x->rect[i].last + 1]++;
    }
    for (int s = 0; s < x->p->n_nodes; s++) {
        count[s + 1] += count[s];
    }
    for (int i = 0; i < x->n_rects; i++) {
        by_last[count[x->rect[i].last]++] = i;
    }
    hth_free(count);
    return HTH_OK;
}

static hth_err emit_alloc(inference_emit *e, int t)
{
    int buffer = e->x->buffers.of_tensor[t];
    if (buffer < 0) {
        return HTH_OK;
    }
    return hth_plan_add(
        &e->builder,
        (hth_instr){.kind = HTH_INSTR_ALLOC, .tensor = t, .offset = e->x->rect[buffer].offset},
        NULL, 0, NULL);
}

// Fetches issued before stage s; *next is the first use not issued yet.
static hth_err emit_fetches(inference_emit *e, int s, int *next)
{
    const inference *x = e->x;
    for (; *next < x->model.n_uses; ++*next) {
        int u = *next;
        if (!x->decision.fetched[u]) {
            continue;
        }
        if (e->issue[u] > s) {
            break;
        }
        hth_instr in = {.kind = HTH_INSTR_PREFETCH,
                        .tensor = x->model.weight[x->model.use[u].weight].tensor,
                        .offset = x->rect[x->of_use[u]].offset};
        int waits = e->after[u] >= 0;
        HTH_TRY(hth_plan_add(&e->builder, in, waits ? &e->computes[e->after[u]] : NULL, waits,
                             &e->fetches[u]));
    }
    return HTH_OK;
}

static hth_err emit_compute(inference_emit *e, int s, int *waits, int n_waits)
{
    const inference *x = e->x;
    const hth_plan_node *n = &x->p->nodes[s];
    for (int j = 0; j < n->n_outputs; j++) {
        HTH_TRY(emit_alloc(e, n->outputs[j]));
    }
    hth_instr in = {.kind = HTH_INSTR_COMPUTE,
                    .node = s,
                    .alt = inference_item(x, s)->alt,
                    .offset = x->of_stage[s] >= 0 ? x->rect[x->of_stage[s]].offset : 0};
    return hth_plan_add(&e->builder, in, waits, n_waits, &e->computes[s]);
}

// Whether tensor t, an input or output of stage s, leaves the arena there.
static bool emit_leaves(const inference_emit *e, int t, int s)
{
    const inference *x = e->x;
    if (e->place[t] >= 0) { // a fetched weight leaves after the last use that its place serves
        return x->rect[e->place[t]].last == s;
    }
    return x->buffers.of_tensor[t] >= 0 && x->buffers.last_use[t] == s &&
           x->p->tensors[t].cls != HTH_MEM_OUTPUT;
}

static hth_err emit_ends(inference_emit *e, int s)
{
    const hth_plan_node *n = &e->x->p->nodes[s];
    for (int j = 0; j < n->n_inputs + n->n_outputs; j++) {
        int t = j < n->n_inputs ? n->inputs[j] : n->outputs[j - n->n_inputs];
        bool again = false;
        for (int k = 0; k < j && k < n->n_inputs; k++) {
            again = again || n->inputs[k] == t;
        }
        if (!again && emit_leaves(e, t, s)) {
            HTH_TRY(hth_plan_add(&e->builder, (hth_instr){.kind = HTH_INSTR_FREE, .tensor = t},
                                 NULL, 0, NULL));
        }
    }
    return HTH_OK;
}

static hth_err emit_stages(inference_emit *e, int *waits)
{
    const inference *x = e->x;
    const hth_stream_model *m = &x->model;
    int issued = 0, needed = 0;
    for (int t = 0; t < x->p->n_tensors; t++) {
        e->place[t] = -1;
        if (x->p->tensors[t].producer < 0) {
            HTH_TRY(emit_alloc(e, t));
        }
    }
    for (int s = 0; s < m->n_stages; s++) {
        int n_waits = 0;
        HTH_TRY(emit_fetches(e, s, &issued));
        for (; needed < m->n_uses && m->use[needed].need == s; needed++) {
            e->place[m->weight[m->use[needed].weight].tensor] = x->of_use[needed];
            if (x->decision.fetched[needed]) {
                waits[n_waits++] = e->fetches[needed];
            }
        }
        HTH_TRY(emit_compute(e, s, waits, n_waits));
        HTH_TRY(emit_ends(e, s));
    }
    return HTH_OK;
}

static hth_err inference_emit_all(inference *x, hth_plan *plan)
{
    size_t n_uses = (size_t)x->model.n_uses, n_stages = (size_t)x->p->n_nodes;
    inference_emit e = {.x = x,
                        .builder = {plan, 0},
                        .issue = hth_alloc(n_uses * sizeof(int)),
                        .after = hth_alloc(n_uses * sizeof(int)),
                        .fetches = hth_alloc(n_uses * sizeof(int)),
                        .computes = hth_alloc(n_stages * sizeof(int)),
                        .place = hth_alloc((size_t)x->p->n_tensors * sizeof(int))};
    int *by_last = hth_alloc((size_t)x->n_rects * sizeof *by_last),
        *waits = hth_alloc(n_uses * sizeof *waits);
    hth_err err = HTH_ENOMEM;
    if (!e.issue || !e.after || !e.fetches || !e.computes || !e.place || !by_last || !waits) {
        hth_fail(err, "no memory to plan %d nodes", x->p->n_nodes);
        goto out;
    }
    HTH_GOTO(emit_sort_by_last(x, by_last), out);
    emit_advance(&e, by_last);
    err = emit_stages(&e, waits);
out:
    hth_free(e.issue);
    hth_free(e.after);
    hth_free(e.fetches);
    hth_free(e.computes);
    hth_free(e.place);
    hth_free(by_last);
    hth_free(waits);
    return err;
}

// No plan is faster: all nodes at their fastest, and over the link at least the weights that find
// no room beside the largest stage (less their padding, which is not copied).
static double inference_lower_bound(const inference *x)
{
    const hth_stream_model *m = &x->model;
    double compute = 0;
    uint64_t stage = 0;
    for (int s = 0; s < m->n_stages; s++) {
        const hth_plan_node *n = &x->p->nodes[s];
        double fastest = hth_plan_time(n, 0);
        for (int a = 1; a < n->n_alternatives; a++) {
            fastest = fmin(fastest, hth_plan_time(n, a));
        }
        compute += fastest;
        uint64_t bytes = m->base[s] + m->menu[m->menu_start[s + 1] - 1].workspace;
        stage = bytes > stage ? bytes : stage;
    }
    uint64_t have = x->p->budget + HTH_PLAN_ALIGN * (uint64_t)m->n_weights,
             all = m->resident_bytes + stage;
    bool link = all > have && x->p->h2d_bytes_per_s > 0;
    return link ? fmax(compute, (double)(all - have) / x->p->h2d_bytes_per_s * 1e6) : compute;
}

static hth_err inference_plan(inference *x, hth_plan *plan)
{
    plan->streamed = hth_calloc((size_t)x->p->n_tensors, sizeof *plan->streamed);
    if (plan->streamed == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a plan of %d tensors", x->p->n_tensors);
    }
    for (int t = 0; t < x->p->n_tensors; t++) { // a weight that nobody reads is never brought in
        plan->streamed[t] =
            hth_plan_home(&x->p->tensors[t]) == HTH_HOME_RESIDENT && x->buffers.last_use[t] < 0;
    }
    for (int w = 0; w < x->model.n_weights; w++) {
        plan->streamed[x->model.weight[w].tensor] = x->decision.stream[w];
    }
    plan->arena_bytes = x->arena_bytes;
    plan->resident_bytes = x->decision.resident_bytes;
    plan->seed = INFERENCE_SEED;
    snprintf(plan->policy, sizeof plan->policy, "inference");
    HTH_TRY(inference_emit_all(x, plan));
    HTH_TRY(hth_plan_live_peak(x->p, plan, &plan->live_peak_bytes));
    hth_plan_simulate(x->p, plan);
    plan->lower_bound_us = inference_lower_bound(x);
    return HTH_OK;
}

hth_err hth_plan_inference(const hth_problem *p, hth_plan **out)
{
    uint64_t start_ns = hth_now_ns();
    inference x;
    *out = NULL;
    HTH_TRY(inference_open(p, &x));
    hth_plan *plan = hth_calloc(1, sizeof *plan);
    hth_err err = plan ? inference_decide(&x) : hth_fail(HTH_ENOMEM, "no memory for a plan");
    if (err == HTH_OK) {
        err = inference_plan(&x, plan);
    }
    inference_close(&x);
    if (err != HTH_OK) {
        hth_plan_free(plan);
        return err;
    }
    plan->plan_ms = (double)(hth_now_ns() - start_ns) / 1e6;
    *out = plan;
    return HTH_OK;
}

hth_err hth_plan_floor(const hth_problem *p, uint64_t *bytes)
{
    inference x;
    HTH_TRY(inference_open(p, &x));
    hth_err err = inference_minimal(&x);
    *bytes = inference_bytes(&x);
    inference_close(&x);
    return err;
}
