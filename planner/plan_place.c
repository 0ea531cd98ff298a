// SPDX-License-Identifier: Apache-2.0
// From a decision to addresses. See plan_place.h.
#include "planner/plan_place.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

void hth_place_close(hth_placement *placement)
{
    hth_buffers_fini(&placement->buffers);
    hth_stream_model_fini(&placement->model);
    hth_stream_decision_fini(&placement->decision);
    hth_free(placement->rect);
    hth_free(placement->of_stage);
    hth_free(placement->of_use);
}

hth_err hth_place_open(const hth_problem *problem, hth_placement *placement)
{
    *placement = (hth_placement){.p = problem};
    HTH_TRY(hth_problem_check(problem));
    hth_err err;
    HTH_GOTO(hth_plan_buffers(problem, &placement->buffers), fail);
    HTH_GOTO(hth_stream_model_init(&placement->model, problem, &placement->buffers), fail);
    HTH_GOTO(hth_stream_decision_init(&placement->model, &placement->decision), fail);
    size_t n_stages = (size_t)problem->n_nodes, n_uses = (size_t)placement->model.n_uses;
    placement->rect =
        hth_alloc(((size_t)placement->buffers.n + n_stages + n_uses) * sizeof *placement->rect);
    placement->of_stage = hth_alloc(n_stages * sizeof *placement->of_stage);
    placement->of_use = hth_alloc(n_uses * sizeof *placement->of_use);
    if (placement->rect != NULL && placement->of_stage != NULL && placement->of_use != NULL) {
        return HTH_OK;
    }
    err = hth_no_memory("planning %d nodes", problem->n_nodes);
fail:
    hth_place_close(placement);
    return err;
}

hth_err hth_place_assign(hth_placement *placement, uint64_t target)
{
    const hth_stream_model *m = &placement->model;
    memcpy(placement->rect, placement->buffers.rect,
           (size_t)placement->buffers.n * sizeof *placement->rect);
    placement->n_rects = placement->buffers.n;
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t bytes = hth_place_item(placement, s)->workspace;
        placement->of_stage[s] = bytes > 0 ? placement->n_rects : -1;
        if (bytes > 0) {
            placement->rect[placement->n_rects++] = (hth_rect){s, s, bytes, 0};
        }
    }
    for (int u = 0; u < m->n_uses; u++) {
        const hth_stream_use *use = &m->use[u];
        placement->of_use[u] = -1;
        if (!placement->decision.stream[use->weight]) {
            continue;
        }
        if (placement->decision.fetched[u]) {
            placement->of_use[u] = placement->n_rects;
            placement->rect[placement->n_rects++] = (hth_rect){
                placement->decision.begin[u], use->last, m->weight[use->weight].bytes, 0};
        } else { // kept: the earlier fetch's place lives on
            placement->of_use[u] = placement->of_use[use->previous];
            placement->rect[placement->of_use[u]].last = use->last;
        }
    }
    return hth_address_assign(placement->rect, placement->n_rects, target, 1,
                              &placement->arena_bytes);
}

hth_err hth_place_minimal(hth_placement *placement)
{
    hth_stream_minimal(&placement->model, &placement->decision);
    return hth_place_assign(placement, 0);
}

// Polish.

// The rectangles of every stage, as adjacency: of stage s, list[start[s] .. start[s + 1]).
static hth_err place_stages(const hth_placement *placement, int **start, int **list)
{
    int n = placement->p->n_nodes;
    size_t sum = 0;
    for (int i = 0; i < placement->n_rects; i++) {
        sum += placement->rect[i].bytes
                   ? (size_t)(placement->rect[i].last - placement->rect[i].first) + 1
                   : 0;
    }
    *start = hth_calloc((size_t)n + 2, sizeof **start);
    *list = sum < INT32_MAX ? hth_alloc(sum * sizeof **list) : NULL;
    if (*start == NULL || *list == NULL) {
        return hth_no_memory("planning %d nodes", n);
    }
    for (int pass = 0; pass < 2;
         pass++) { // count, then fill: start[s + 1] is where stage s goes on
        for (int i = 0; i < placement->n_rects; i++) {
            for (int s = placement->rect[i].first;
                 placement->rect[i].bytes > 0 && s <= placement->rect[i].last; s++) {
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
static void place_polish_stage(hth_placement *placement, int s, const int *list, int n,
                               uint64_t limit, hth_rect *near)
{
    const hth_menu_item *menu = &placement->model.menu[placement->model.menu_start[s]];
    int count = 0;
    uint64_t at = 0, widest = 0, where = 0;
    for (int i = 0; i < n; i++) {
        if (list[i] != placement->of_stage[s] && placement->rect[list[i]].bytes > 0) {
            near[count++] = placement->rect[list[i]];
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
    for (int i = 0; i < placement->decision.item[s]; i++) {
        if (menu[i].workspace <= widest) {
            if (placement->of_stage[s] < 0) {
                placement->of_stage[s] = placement->n_rects++;
            }
            placement->rect[placement->of_stage[s]] = (hth_rect){s, s, menu[i].workspace, where};
            placement->decision.item[s] = i;
            return;
        }
    }
}

// Makes weights resident, in order of need (the first ones have least compute to hide behind).
static void place_polish_weights(hth_placement *placement)
{
    hth_stream_model *m = &placement->model;
    hth_stream_decision *d = &placement->decision;
    for (int u = 0; u < m->n_uses; u++) {
        int w = m->use[u].weight;
        if (d->stream[w] &&
            hth_place_bytes(placement) + m->weight[w].bytes <= placement->p->budget) {
            d->stream[w] = false;
            d->resident_bytes += m->weight[w].bytes;
        }
    }
    for (int u = 0; u < m->n_uses; u++) {
        if (!d->stream[m->use[u].weight] && placement->of_use[u] >= 0) {
            placement->rect[placement->of_use[u]].bytes = 0;
            placement->of_use[u] = -1;
            d->fetched[u] = false;
        }
    }
}

hth_err hth_place_polish(hth_placement *placement)
{
    int *start = NULL, *list = NULL;
    int widest = 0;
    place_polish_weights(placement);
    uint64_t limit = placement->p->budget - placement->decision.resident_bytes, top;
    hth_err err = place_stages(placement, &start, &list);
    for (int s = 0; err == HTH_OK && s < placement->p->n_nodes; s++) {
        widest = start[s + 1] - start[s] > widest ? start[s + 1] - start[s] : widest;
    }
    hth_rect *near = err == HTH_OK ? hth_alloc(((size_t)widest + 1) * sizeof *near) : NULL;
    if (err == HTH_OK && near == NULL) {
        err = hth_no_memory("planning %d nodes", placement->p->n_nodes);
    }
    for (int s = 0; err == HTH_OK && s < placement->p->n_nodes; s++) {
        place_polish_stage(placement, s, list + start[s], start[s + 1] - start[s], limit, near);
    }
    placement->arena_bytes = 0;
    for (int i = 0; i < placement->n_rects; i++) {
        top = placement->rect[i].offset + placement->rect[i].bytes;
        placement->arena_bytes = placement->rect[i].bytes > 0 && top > placement->arena_bytes
                                     ? top
                                     : placement->arena_bytes;
    }
    hth_free(start);
    hth_free(list);
    hth_free(near);
    return err;
}
