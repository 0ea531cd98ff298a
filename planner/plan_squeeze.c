// SPDX-License-Identifier: Apache-2.0
// When a placement is too high: tensors that stick out go into intervals between other tensors,
// wherever workspaces are, and each workspace into the largest hole that its stage has left. A
// workspace is one stage's own, so what it gets concerns nobody else: its node may take an
// algorithm that needs less. That costs a few microseconds of one node, where planning for a
// smaller budget costs all of them.
#include "planner/plan_lay.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define SQUEEZE_NEAR 64 // part of the peak: what is more above it is placed once more

typedef struct squeeze_hole {
    uint64_t offset, bytes;
} squeeze_hole;

static int squeeze_cmp(const void *a, const void *b)
{
    const squeeze_hole *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool squeeze_meet(const hth_rect *a, const hth_rect *b)
{
    return a->first <= b->last && b->first <= a->last;
}

// The tightest hole under `room` of at least `bytes` between the placed hard rectangles that share
// a stage with rectangle i; the largest one if none is so large. near: scratch.
static squeeze_hole squeeze_find(const hth_rect *rect, const bool *placed, int n, int i,
                                 uint64_t room, squeeze_hole *near)
{
    int k = 0;
    for (int j = 0; j < n; j++) {
        if (j != i && placed[j] && squeeze_meet(&rect[i], &rect[j])) {
            near[k++] = (squeeze_hole){rect[j].offset, rect[j].bytes};
        }
    }
    qsort(near, (size_t)k, sizeof *near, squeeze_cmp);
    near[k++] = (squeeze_hole){room, 0};
    squeeze_hole best = {0, 0};
    uint64_t at = 0;
    for (int j = 0; j < k; j++) {
        uint64_t size = near[j].offset > at ? near[j].offset - at : 0;
        bool fits = size >= rect[i].bytes, fitted = best.bytes >= rect[i].bytes;
        if (fits ? !fitted || size < best.bytes : !fitted && size > best.bytes) {
            best = (squeeze_hole){at, size};
        }
        uint64_t end = near[j].offset + near[j].bytes;
        at = end > at ? end : at;
    }
    return best;
}

// Places the hard rectangles that stick out, largest first.
static bool squeeze_hard(hth_rect *rect, const bool *soft, bool *placed, int n, uint64_t room,
                         squeeze_hole *near)
{
    for (int i = 0; i < n; i++) {
        placed[i] = !soft[i] && rect[i].offset + rect[i].bytes <= room;
    }
    for (;;) {
        int next = -1;
        for (int i = 0; i < n; i++) {
            next =
                !soft[i] && !placed[i] && (next < 0 || rect[i].bytes > rect[next].bytes) ? i : next;
        }
        if (next < 0) {
            return true;
        }
        squeeze_hole h = squeeze_find(rect, placed, n, next, room, near);
        if (h.bytes < rect[next].bytes) {
            return false;
        }
        rect[next].offset = h.offset;
        placed[next] = true;
    }
}

hth_err hth_address_squeeze(hth_rect *rect, const bool *soft, int n, uint64_t room, bool *fits)
{
    bool *placed = hth_calloc((size_t)n + 1, sizeof *placed);
    squeeze_hole *near = hth_calloc((size_t)n + 1, sizeof *near);
    if (placed == NULL || near == NULL) {
        hth_free(placed);
        hth_free(near);
        return hth_no_memory("placing %d buffers", n);
    }
    *fits = squeeze_hard(rect, soft, placed, n, room, near);
    for (int i = 0; *fits && i < n; i++) {
        if (soft[i]) {
            squeeze_hole h = squeeze_find(rect, placed, n, i, room, near);
            rect[i].offset = h.offset;
            rect[i].bytes =
                h.bytes < rect[i].bytes ? h.bytes / HTH_PLAN_ALIGN * HTH_PLAN_ALIGN : rect[i].bytes;
        }
    }
    hth_free(placed);
    hth_free(near);
    return HTH_OK;
}

// From rectangles to algorithms.

// The bytes besides its own workspace that a user of stage `stage` needs there: rerun NULL: its
// node.
static uint64_t lay_scratch(const hth_lay *lay, const hth_rerun *rerun)
{
    return rerun == NULL
               ? 0
               : hth_lay_rerun_bytes(lay, rerun) -
                     hth_plan_round(hth_plan_workspace(&lay->p->nodes[rerun->node], rerun->alt));
}

// Gives a node, wherever it runs, the fastest algorithm whose workspace fits in `bytes`.
static bool lay_algorithm(hth_lay *lay, int node, uint64_t bytes, hth_menu_item *menu)
{
    hth_schedule *s = lay->s;
    int n = hth_plan_menu(&lay->p->nodes[node], menu), k = 0;
    if (hth_plan_round(hth_plan_workspace(&lay->p->nodes[node], s->alt[node])) <= bytes) {
        return true;
    }
    while (k < n && menu[k].workspace > bytes) {
        k++;
    }
    for (int i = 0; k < n && i < s->n_reruns; i++) {
        s->rerun[i].alt = s->rerun[i].node == node ? menu[k].alt : s->rerun[i].alt;
    }
    s->alt[node] = k < n ? menu[k].alt : s->alt[node];
    return k < n;
}

// What the stages' workspaces can be.
typedef struct lay_soft {
    bool *soft;     // per rectangle: a workspace
    hth_rect *rect; // an attempt
    uint64_t *least, *load;
    int *alt;         // what the schedule had
    hth_rerun *rerun; // ..
    hth_menu_item *menu;
} lay_soft;

static void soft_fini(lay_soft *soft)
{
    void *all[] = {soft->soft, soft->rect,  soft->least, soft->load,
                   soft->alt,  soft->rerun, soft->menu};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
}

// The least that a stage can do with, and what it has besides its workspace.
static void soft_stages(const hth_lay *lay, lay_soft *soft)
{
    const hth_schedule *s = lay->s;
    for (int stage = 0, r = 0; stage < s->n_stages; stage++) {
        int n = hth_plan_menu(&lay->p->nodes[stage], soft->menu);
        soft->least[stage] = soft->menu[n - 1].workspace;
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            n = hth_plan_menu(&lay->p->nodes[s->rerun[r].node], soft->menu);
            uint64_t b = lay_scratch(lay, &s->rerun[r]) + soft->menu[n - 1].workspace;
            soft->least[stage] = b > soft->least[stage] ? b : soft->least[stage];
        }
        if (lay->of_stage[stage] >= 0) {
            soft->soft[lay->of_stage[stage]] = true;
        }
    }
    for (int i = 0; i < lay->n_rects; i++) {
        soft->load[lay->rect[i].first] += lay->rect[i].bytes;
        soft->load[lay->rect[i].last + 1] -= lay->rect[i].bytes;
    }
    for (int stage = 1; stage < s->n_stages; stage++) {
        soft->load[stage] += soft->load[stage - 1];
    }
}

static hth_err soft_init(const hth_lay *lay, lay_soft *soft)
{
    const hth_schedule *s = lay->s;
    size_t stages = (size_t)s->n_stages + 2, rects = (size_t)lay->n_rects + 1;
    int most = 1;
    for (int i = 0; i < lay->p->n_nodes; i++) {
        most = lay->p->nodes[i].n_alternatives > most ? lay->p->nodes[i].n_alternatives : most;
    }
    *soft = (lay_soft){.soft = hth_calloc(rects, sizeof(bool)),
                       .rect = hth_memdup(lay->rect, (size_t)lay->n_rects * sizeof *lay->rect),
                       .least = hth_calloc(stages, sizeof(uint64_t)),
                       .load = hth_calloc(stages, sizeof(uint64_t)),
                       .alt = hth_memdup(s->alt, (size_t)s->n_stages * sizeof *s->alt),
                       .rerun = hth_calloc((size_t)s->n_reruns + 1, sizeof *s->rerun),
                       .menu = hth_calloc((size_t)most, sizeof(hth_menu_item))};
    if (!soft->soft || !soft->rect || !soft->least || !soft->load || !soft->alt || !soft->rerun ||
        !soft->menu) {
        soft_fini(soft);
        return hth_no_memory("placing %d buffers", lay->n_rects);
    }
    memcpy(soft->rerun, s->rerun, (size_t)s->n_reruns * sizeof *s->rerun);
    soft_stages(lay, soft);
    return HTH_OK;
}

// Places everything anew with the least workspaces in stages with more than `full` bytes.
static hth_err soft_place(const hth_lay *lay, lay_soft *soft, uint64_t full, uint64_t room)
{
    uint64_t height;
    memcpy(soft->rect, lay->rect, (size_t)lay->n_rects * sizeof *soft->rect);
    for (int stage = 0; stage < lay->s->n_stages; stage++) {
        int i = lay->of_stage[stage];
        if (i >= 0 && soft->load[stage] > full && soft->least[stage] < soft->rect[i].bytes) {
            soft->rect[i].bytes = soft->least[stage];
        }
    }
    HTH_TRY(hth_address_assign(soft->rect, lay->n_rects, room, 1, &height));
    for (int i = 0; i < lay->n_rects; i++) {
        soft->rect[i].bytes = lay->rect[i].bytes;
    }
    return HTH_OK;
}

// Gives nodes algorithms for the workspaces that their stages have got.
static bool soft_choose(hth_lay *lay, lay_soft *soft)
{
    hth_schedule *s = lay->s;
    bool fits = true;
    for (int stage = 0, r = 0; fits && stage < s->n_stages; stage++) {
        uint64_t bytes = lay->of_stage[stage] >= 0 ? soft->rect[lay->of_stage[stage]].bytes : 0;
        fits = lay_algorithm(lay, stage, bytes, soft->menu);
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            uint64_t scratch = lay_scratch(lay, &s->rerun[r]);
            fits = fits && scratch <= bytes &&
                   lay_algorithm(lay, s->rerun[r].node, bytes - scratch, soft->menu);
        }
    }
    if (!fits) {
        memcpy(s->alt, soft->alt, (size_t)s->n_stages * sizeof *s->alt);
        memcpy(s->rerun, soft->rerun, (size_t)s->n_reruns * sizeof *s->rerun);
    }
    return fits;
}

// What has given way needs no more bytes than its algorithms do: with those everything may come to
// lie lower.
static hth_err soft_lower(const hth_lay *lay, lay_soft *soft, uint64_t *height)
{
    const hth_schedule *s = lay->s;
    uint64_t top = 0, peak = 0, live = 0, lower;
    memset(soft->load, 0, ((size_t)s->n_stages + 2) * sizeof *soft->load);
    for (int stage = 0, r = 0; stage < s->n_stages; stage++) {
        uint64_t most = hth_plan_round(hth_plan_workspace(&lay->p->nodes[stage], s->alt[stage]));
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            uint64_t b = hth_lay_rerun_bytes(lay, &s->rerun[r]);
            most = b > most ? b : most;
        }
        if (lay->of_stage[stage] >= 0) {
            soft->rect[lay->of_stage[stage]].bytes = most;
        }
    }
    for (int i = 0; i < lay->n_rects; i++) {
        const hth_rect *r = &soft->rect[i];
        top = r->offset + r->bytes > top ? r->offset + r->bytes : top;
        soft->load[r->first] += r->bytes;
        soft->load[r->last + 1] -= r->bytes;
    }
    for (int stage = 0; stage < s->n_stages; stage++) {
        live += soft->load[stage];
        peak = live > peak ? live : peak;
    }
    memcpy(lay->rect, soft->rect, (size_t)lay->n_rects * sizeof *soft->rect);
    *height = top;
    if (top <= peak + peak / SQUEEZE_NEAR) {
        return HTH_OK;
    }
    HTH_TRY(hth_address_assign(soft->rect, lay->n_rects, peak + peak / SQUEEZE_NEAR, 1, &lower));
    if (lower < top) {
        memcpy(lay->rect, soft->rect, (size_t)lay->n_rects * sizeof *soft->rect);
        *height = lower;
    }
    return HTH_OK;
}

// As the rectangles are placed, placed anew with the full stages' workspaces at their least, or all
// of them.
hth_err hth_lay_squeeze(hth_lay *lay, uint64_t room, bool hasty, uint64_t *height)
{
    lay_soft w;
    bool fits = false;
    HTH_TRY(soft_init(lay, &w));
    hth_err err = HTH_OK;
    for (int attempt = 0; err == HTH_OK && !fits && attempt < (hasty ? 1 : 3); attempt++) {
        if (attempt > 0) {
            err = soft_place(lay, &w, attempt == 1 ? room / 8 * 7 : 0, room);
        }
        if (err == HTH_OK) {
            err = hth_address_squeeze(w.rect, w.soft, lay->n_rects, room, &fits);
        }
        fits = err == HTH_OK && fits && soft_choose(lay, &w);
    }
    if (err == HTH_OK && fits) {
        err = soft_lower(lay, &w, height);
    }
    soft_fini(&w);
    return err;
}
