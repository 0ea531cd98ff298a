// SPDX-License-Identifier: Apache-2.0
// From a decision to addresses. See plan_place.h.
#include "planner/plan_place.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

void hth_place_close(hth_placement *x)
{
    hth_buffers_fini(&x->buffers);
    hth_stream_model_fini(&x->model);
    hth_stream_decision_fini(&x->decision);
    hth_free(x->rect);
    hth_free(x->of_stage);
    hth_free(x->of_use);
}

hth_err hth_place_open(const hth_problem *p, hth_placement *x)
{
    *x = (hth_placement){.p = p};
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
    hth_place_close(x);
    return err;
}

hth_err hth_place_assign(hth_placement *x, uint64_t target)
{
    const hth_stream_model *m = &x->model;
    memcpy(x->rect, x->buffers.rect, (size_t)x->buffers.n * sizeof *x->rect);
    x->n_rects = x->buffers.n;
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t bytes = hth_place_item(x, s)->workspace;
        x->of_stage[s] = bytes > 0 ? x->n_rects : -1;
        if (bytes > 0) {
            x->rect[x->n_rects++] = (hth_rect){s, s, bytes, 0};
        }
    }
    for (int u = 0; u < m->n_uses; u++) {
        const hth_stream_use *use = &m->use[u];
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
    return hth_address_assign(x->rect, x->n_rects, target, 1, &x->arena_bytes);
}

hth_err hth_place_minimal(hth_placement *x)
{
    hth_stream_minimal(&x->model, &x->decision);
    return hth_place_assign(x, 0);
}

// Polish.

// The rectangles of every stage, as adjacency: of stage s, list[start[s] .. start[s + 1]).
static hth_err place_stages(const hth_placement *x, int **start, int **list)
{
    int n = x->p->n_nodes;
    size_t sum = 0;
    for (int i = 0; i < x->n_rects; i++) {
        sum += x->rect[i].bytes ? (size_t)(x->rect[i].last - x->rect[i].first) + 1 : 0;
    }
    *start = hth_calloc((size_t)n + 2, sizeof **start);
    *list = sum < INT32_MAX ? hth_alloc(sum * sizeof **list) : NULL;
    if (*start == NULL || *list == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to plan %d nodes", n);
    }
    for (int pass = 0; pass < 2;
         pass++) { // count, then fill: start[s + 1] is where stage s goes on
        for (int i = 0; i < x->n_rects; i++) {
            for (int s = x->rect[i].first; x->rect[i].bytes > 0 && s <= x->rect[i].last; s++) {
                if (pass == 1) {
                    (*list)[(*start)[s + 1]] = i;
                }
                (*start)[s + 1 + (pass == 0)]++;
            }
        }
        for (int s = 1; pass == 0 && s <= n; s++) {
            (*start)[s + 1] += (*start)[s];
        }
    }
    return HTH_OK;
}

static int place_cmp(const void *a, const void *b)
{
    const hth_rect *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

// Gives stage s the fastest algorithm whose workspace fits an interval below `limit`. `near` is
// scratch.
static void place_polish_stage(hth_placement *x, int s, const int *list, int n, uint64_t limit,
                               hth_rect *near)
{
    const hth_menu_item *menu = &x->model.menu[x->model.menu_start[s]];
    int count = 0;
    uint64_t at = 0, widest = 0, where = 0;
    for (int i = 0; i < n; i++) {
        if (list[i] != x->of_stage[s] && x->rect[list[i]].bytes > 0) {
            near[count++] = x->rect[list[i]];
        }
    }
    qsort(near, (size_t)count, sizeof *near, place_cmp);
    near[count] = (hth_rect){.offset = limit};
    for (int i = 0; i <= count; i++) {
        if (near[i].offset > at && near[i].offset - at > widest) {
            widest = near[i].offset - at;
            where = at;
        }
        at = near[i].offset + near[i].bytes > at ? near[i].offset + near[i].bytes : at;
    }
    for (int i = 0; i < x->decision.item[s]; i++) {
        if (menu[i].workspace <= widest) {
            if (x->of_stage[s] < 0) {
                x->of_stage[s] = x->n_rects++;
            }
            x->rect[x->of_stage[s]] = (hth_rect){s, s, menu[i].workspace, where};
            x->decision.item[s] = i;
            return;
        }
    }
}

// Makes weights resident, in order of need (the first ones have least compute to hide behind).
static void place_polish_weights(hth_placement *x)
{
    hth_stream_model *m = &x->model;
    hth_stream_decision *d = &x->decision;
    for (int u = 0; u < m->n_uses; u++) {
        int w = m->use[u].weight;
        if (d->stream[w] && hth_place_bytes(x) + m->weight[w].bytes <= x->p->budget) {
            d->stream[w] = false;
            d->resident_bytes += m->weight[w].bytes;
        }
    }
    for (int u = 0; u < m->n_uses; u++) {
        if (!d->stream[m->use[u].weight] && x->of_use[u] >= 0) {
            x->rect[x->of_use[u]].bytes = 0;
            x->of_use[u] = -1;
            d->fetched[u] = false;
        }
    }
}

hth_err hth_place_polish(hth_placement *x)
{
    int *start = NULL, *list = NULL, widest = 0;
    place_polish_weights(x);
    uint64_t limit = x->p->budget - x->decision.resident_bytes, top;
    hth_err err = place_stages(x, &start, &list);
    for (int s = 0; err == HTH_OK && s < x->p->n_nodes; s++) {
        widest = start[s + 1] - start[s] > widest ? start[s + 1] - start[s] : widest;
    }
    hth_rect *near = err == HTH_OK ? hth_alloc(((size_t)widest + 1) * sizeof *near) : NULL;
    if (err == HTH_OK && near == NULL) {
        err = hth_fail(HTH_ENOMEM, "no memory to plan %d nodes", x->p->n_nodes);
    }
    for (int s = 0; err == HTH_OK && s < x->p->n_nodes; s++) {
        place_polish_stage(x, s, list + start[s], start[s + 1] - start[s], limit, near);
    }
    x->arena_bytes = 0;
    for (int i = 0; i < x->n_rects; i++) {
        top = x->rect[i].offset + x->rect[i].bytes;
        x->arena_bytes = x->rect[i].bytes > 0 && top > x->arena_bytes ? top : x->arena_bytes;
    }
    hth_free(start);
    hth_free(list);
    hth_free(near);
    return err;
}
