// SPDX-License-Identifier: Apache-2.0
// From addresses to instructions. Once addresses are known, a fetch may begin as soon as its place
// is free, which is often long before the stage that the decision reserved: it is issued right
// after the last compute that used any byte of its place, and waits for it.
#include "planner/plan_place.h"

#include "base/alloc.h"

#include <string.h>

typedef struct place_emit {
    hth_placement *x;
    hth_plan_builder builder;
    int *issue;    // per use: stage before which its fetch is issued
    int *after;    // per use: stage whose compute it waits for, -1: none
    int *computes; // per stage: its instruction
    int *fetches;  // per use: its instruction
    int *place;    // per tensor: rectangle of a weight that was fetched, -1: not a streamed weight
    int *ended;    // per tensor: the last stage of which it was looked whether it leaves there
} place_emit;

// Finds for every fetch the last stage that uses its place before it. `by_last`: rectangles sorted
// by their last stage.
static void emit_advance(place_emit *emit, const int *by_last)
{
    const hth_placement *x = emit->x;
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
        emit->after[u] = k >= 0 ? x->rect[by_last[k]].last : -1;
        int twin = x->model.use[u].previous >= 0 ? x->of_use[x->model.use[u].previous] : -1;
        if (twin >= 0 &&
            x->rect[twin].last >
                emit->after[u]) { // one place at a time: the weight's earlier one is given up
            emit->after[u] = x->rect[twin].last;
        }
        emit->issue[u] = emit->after[u] + 1 > previous ? emit->after[u] + 1 : previous;
        previous = emit->issue[u];
    }
}

// Stages are small numbers: a counting sort.
static hth_err emit_sort_by_last(const hth_placement *placement, int *by_last)
{
    int *count = hth_calloc((size_t)placement->p->n_nodes + 1, sizeof *count);
    if (count == NULL) {
        return hth_no_memory("planning %d nodes", placement->p->n_nodes);
    }
    for (int i = 0; i < placement->n_rects; i++) {
        count[placement->rect[i].last + 1]++;
    }
    for (int s = 0; s < placement->p->n_nodes; s++) {
        count[s + 1] += count[s];
    }
    for (int i = 0; i < placement->n_rects; i++) {
        by_last[count[placement->rect[i].last]++] = i;
    }
    hth_free(count);
    return HTH_OK;
}

static hth_err emit_alloc(place_emit *emit, int t)
{
    int buffer = emit->x->buffers.of_tensor[t];
    if (buffer < 0) {
        return HTH_OK;
    }
    return hth_plan_add(
        &emit->builder,
        (hth_instr){.kind = HTH_INSTR_ALLOC, .tensor = t, .offset = emit->x->rect[buffer].offset},
        NULL, 0, NULL);
}

// Fetches issued before stage s; *next is the first use not issued yet.
static hth_err emit_fetches(place_emit *emit, int s, int *next)
{
    const hth_placement *x = emit->x;
    for (; *next < x->model.n_uses; ++*next) {
        int u = *next;
        if (!x->decision.fetched[u]) {
            continue;
        }
        if (emit->issue[u] > s) {
            break;
        }
        hth_instr in = {.kind = HTH_INSTR_PREFETCH,
                        .tensor = x->model.weight[x->model.use[u].weight].tensor,
                        .offset = x->rect[x->of_use[u]].offset};
        int waits = emit->after[u] >= 0;
        HTH_TRY(hth_plan_add(&emit->builder, in, waits ? &emit->computes[emit->after[u]] : NULL,
                             waits, &emit->fetches[u]));
    }
    return HTH_OK;
}

static hth_err emit_compute(place_emit *emit, int s, int *waits, int n_waits)
{
    const hth_placement *x = emit->x;
    const hth_plan_node *n = &x->p->nodes[s];
    for (int j = 0; j < n->n_outputs; j++) {
        HTH_TRY(emit_alloc(emit, n->outputs[j]));
    }
    hth_instr in = {.kind = HTH_INSTR_COMPUTE,
                    .node = s,
                    .alt = hth_place_item(x, s)->alt,
                    .offset = x->of_stage[s] >= 0 ? x->rect[x->of_stage[s]].offset : 0};
    return hth_plan_add(&emit->builder, in, waits, n_waits, &emit->computes[s]);
}

// Whether tensor t, an input or output of stage s, leaves the arena there.
static bool emit_leaves(const place_emit *emit, int t, int s)
{
    const hth_placement *x = emit->x;
    if (emit->place[t] >= 0) { // a fetched weight leaves after the last use that its place serves
        return x->rect[emit->place[t]].last == s;
    }
    return x->buffers.of_tensor[t] >= 0 && x->buffers.last_use[t] == s &&
           x->p->tensors[t].cls != HTH_MEM_OUTPUT;
}

static hth_err emit_ends(place_emit *emit, int s)
{
    const hth_plan_node *n = &emit->x->p->nodes[s];
    for (int j = 0; j < n->n_inputs + n->n_outputs; j++) {
        int t = j < n->n_inputs ? n->inputs[j] : n->outputs[j - n->n_inputs];
        bool again = emit->ended[t] == s; // a node may read a tensor twice
        emit->ended[t] = s;
        if (!again && emit_leaves(emit, t, s)) {
            HTH_TRY(hth_plan_add(&emit->builder, (hth_instr){.kind = HTH_INSTR_FREE, .tensor = t},
                                 NULL, 0, NULL));
        }
    }
    return HTH_OK;
}

static hth_err emit_stages(place_emit *emit, int *waits)
{
    const hth_placement *x = emit->x;
    const hth_stream_model *m = &x->model;
    int issued = 0, needed = 0;
    for (int t = 0; t < x->p->n_tensors; t++) {
        emit->place[t] = emit->ended[t] = -1;
        if (x->p->tensors[t].producer < 0) {
            HTH_TRY(emit_alloc(emit, t));
        }
    }
    for (int s = 0; s < m->n_stages; s++) {
        int n_waits = 0;
        HTH_TRY(emit_fetches(emit, s, &issued));
        for (; needed < m->n_uses && m->use[needed].need == s; needed++) {
            emit->place[m->weight[m->use[needed].weight].tensor] = x->of_use[needed];
            if (x->decision.fetched[needed]) {
                waits[n_waits++] = emit->fetches[needed];
            }
        }
        HTH_TRY(emit_compute(emit, s, waits, n_waits));
        HTH_TRY(emit_ends(emit, s));
    }
    return HTH_OK;
}

hth_err hth_place_emit(hth_placement *placement, hth_plan *plan)
{
    size_t n_uses = (size_t)placement->model.n_uses, n_stages = (size_t)placement->p->n_nodes;
    place_emit e = {.x = placement,
                    .builder = {plan, 0},
                    .issue = hth_alloc(n_uses * sizeof(int)),
                    .after = hth_alloc(n_uses * sizeof(int)),
                    .fetches = hth_alloc(n_uses * sizeof(int)),
                    .computes = hth_alloc(n_stages * sizeof(int)),
                    .place = hth_alloc((size_t)placement->p->n_tensors * sizeof(int)),
                    .ended = hth_alloc((size_t)placement->p->n_tensors * sizeof(int))};
    int *by_last = hth_alloc((size_t)placement->n_rects * sizeof *by_last),
        *waits = hth_alloc(n_uses * sizeof *waits);
    hth_err err = HTH_ENOMEM;
    if (!e.issue || !e.after || !e.fetches || !e.computes || !e.place || !e.ended || !by_last ||
        !waits) {
        hth_fail(err, "no memory to plan %d nodes", placement->p->n_nodes);
        goto out;
    }
    HTH_GOTO(emit_sort_by_last(placement, by_last), out);
    emit_advance(&e, by_last);
    err = emit_stages(&e, waits);
out:
    hth_free(e.issue);
    hth_free(e.after);
    hth_free(e.fetches);
    hth_free(e.computes);
    hth_free(e.place);
    hth_free(e.ended);
    hth_free(by_last);
    hth_free(waits);
    return err;
}
