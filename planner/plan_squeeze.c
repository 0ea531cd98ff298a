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
static squeeze_hole squeeze_find(const hth_rect *r, const bool *placed, int n, int i, uint64_t room,
                                 squeeze_hole *near)
{
    int k = 0;
    for (int j = 0; j < n; j++) {
        if (j != i && placed[j] && squeeze_meet(&r[i], &r[j])) {
            near[k++] = (squeeze_hole){r[j].offset, r[j].bytes};
        }
    }
    qsort(near, (size_t)k, sizeof *near, squeeze_cmp);
    near[k++] = (squeeze_hole){room, 0};
    squeeze_hole best = {0, 0};
    uint64_t at = 0;
    for (int j = 0; j < k; j++) {
        uint64_t size = near[j].offset > at ? near[j].offset - at : 0;
        bool fits = size >= r[i].bytes, fitted = best.bytes >= r[i].bytes;
        if (fits ? !fitted || size < best.bytes : !fitted && size > best.bytes) {
            best = (squeeze_hole){at, size};
        }
        uint64_t end = near[j].offset + near[j].bytes;
        at = end > at ? end : at;
    }
    return best;
}

// Places the hard rectangles that stick out, largest first.
static bool squeeze_hard(hth_rect *r, const bool *soft, bool *placed, int n, uint64_t room,
                         squeeze_hole *near)
{
    for (int i = 0; i < n; i++) {
        placed[i] = !soft[i] && r[i].offset + r[i].bytes <= room;
    }
    for (;;) {
        int next = -1;
        for (int i = 0; i < n; i++) {
            next = !soft[i] && !placed[i] && (next < 0 || r[i].bytes > r[next].bytes) ? i : next;
        }
        if (next < 0) {
            return true;
        }
        squeeze_hole h = squeeze_find(r, placed, n, next, room, near);
        if (h.bytes < r[next].bytes) {
            return false;
        }
        r[next].offset = h.offset;
        placed[next] = true;
    }
}

hth_err hth_address_squeeze(hth_rect *r, const bool *soft, int n, uint64_t room, bool *fits)
{
    bool *placed = hth_calloc((size_t)n + 1, sizeof *placed);
    squeeze_hole *near = hth_calloc((size_t)n + 1, sizeof *near);
    if (placed == NULL || near == NULL) {
        hth_free(placed);
        hth_free(near);
        return hth_fail(HTH_ENOMEM, "no memory to place %d buffers", n);
    }
    *fits = squeeze_hard(r, soft, placed, n, room, near);
    for (int i = 0; *fits && i < n; i++) {
        if (soft[i]) {
            squeeze_hole h = squeeze_find(r, placed, n, i, room, near);
            r[i].offset = h.offset;
            r[i].bytes =
                h.bytes < r[i].bytes ? h.bytes / HTH_PLAN_ALIGN * HTH_PLAN_ALIGN : r[i].bytes;
        }
    }
    hth_free(placed);
    hth_free(near);
    return HTH_OK;
}

// From rectangles to algorithms.

// The bytes besides its own workspace that a user of stage `stage` needs there: r NULL: its node.
static uint64_t lay_scratch(const hth_lay *x, const hth_rerun *r)
{
    return r == NULL ? 0
                     : hth_lay_rerun_bytes(x, r) -
                           hth_plan_round(hth_plan_workspace(&x->p->nodes[r->node], r->alt));
}

// Gives a node, wherever it runs, the fastest algorithm whose workspace fits in `bytes`.
static bool lay_algorithm(hth_lay *x, int node, uint64_t bytes, hth_menu_item *menu)
{
    hth_schedule *s = x->s;
    int n = hth_plan_menu(&x->p->nodes[node], menu), k = 0;
    if (hth_plan_round(hth_plan_workspace(&x->p->nodes[node], s->alt[node])) <= bytes) {
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

static void soft_fini(lay_soft *w)
{
    void *all[] = {w->soft, w->rect, w->least, w->load, w->alt, w->rerun, w->menu};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_free(all[i]);
    }
}

// The least that a stage can do with, and what it has besides its workspace.
static void soft_stages(const hth_lay *x, lay_soft *w)
{
    const hth_schedule *s = x->s;
    for (int stage = 0, r = 0; stage < s->n_stages; stage++) {
        int n = hth_plan_menu(&x->p->nodes[stage], w->menu);
        w->least[stage] = w->menu[n - 1].workspace;
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            n = hth_plan_menu(&x->p->nodes[s->rerun[r].node], w->menu);
            uint64_t b = lay_scratch(x, &s->rerun[r]) + w->menu[n - 1].workspace;
            w->least[stage] = b > w->least[stage] ? b : w->least[stage];
        }
        if (x->of_stage[stage] >= 0) {
            w->soft[x->of_stage[stage]] = true;
        }
    }
    for (int i = 0; i < x->n_rects; i++) {
        w->load[x->rect[i].first] += x->rect[i].bytes;
        w->load[x->rect[i].last + 1] -= x->rect[i].bytes;
    }
    for (int stage = 1; stage < s->n_stages; stage++) {
        w->load[stage] += w->load[stage - 1];
    }
}

static hth_err soft_init(const hth_lay *x, lay_soft *w)
{
    const hth_schedule *s = x->s;
    size_t stages = (size_t)s->n_stages + 2, rects = (size_t)x->n_rects + 1;
    int most = 1;
    for (int i = 0; i < x->p->n_nodes; i++) {
        most = x->p->nodes[i].n_alternatives > most ? x->p->nodes[i].n_alternatives : most;
    }
    *w = (lay_soft){.soft = hth_calloc(rects, sizeof(bool)),
                    .rect = hth_memdup(x->rect, (size_t)x->n_rects * sizeof *x->rect),
                    .least = hth_calloc(stages, sizeof(uint64_t)),
                    .load = hth_calloc(stages, sizeof(uint64_t)),
                    .alt = hth_memdup(s->alt, (size_t)s->n_stages * sizeof *s->alt),
                    .rerun = hth_calloc((size_t)s->n_reruns + 1, sizeof *s->rerun),
                    .menu = hth_calloc((size_t)most, sizeof(hth_menu_item))};
    if (!w->soft || !w->rect || !w->least || !w->load || !w->alt || !w->rerun || !w->menu) {
        soft_fini(w);
        return hth_fail(HTH_ENOMEM, "no memory to place %d buffers", x->n_rects);
    }
    memcpy(w->rerun, s->rerun, (size_t)s->n_reruns * sizeof *s->rerun);
    soft_stages(x, w);
    return HTH_OK;
}

// Places everything anew with the least workspaces in stages with more than `full` bytes.
static hth_err soft_place(const hth_lay *x, lay_soft *w, uint64_t full, uint64_t room)
{
    uint64_t height;
    memcpy(w->rect, x->rect, (size_t)x->n_rects * sizeof *w->rect);
    for (int stage = 0; stage < x->s->n_stages; stage++) {
        int i = x->of_stage[stage];
        if (i >= 0 && w->load[stage] > full && w->least[stage] < w->rect[i].bytes) {
            w->rect[i].bytes = w->least[stage];
        }
    }
    HTH_TRY(hth_address_assign(w->rect, x->n_rects, room, 1, &height));
    for (int i = 0; i < x->n_rects; i++) {
        w->rect[i].bytes = x->rect[i].bytes;
    }
    return HTH_OK;
}

// Gives nodes algorithms for the workspaces that their stages have got.
static bool soft_choose(hth_lay *x, lay_soft *w)
{
    hth_schedule *s = x->s;
    bool fits = true;
    for (int stage = 0, r = 0; fits && stage < s->n_stages; stage++) {
        uint64_t bytes = x->of_stage[stage] >= 0 ? w->rect[x->of_stage[stage]].bytes : 0;
        fits = lay_algorithm(x, stage, bytes, w->menu);
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            uint64_t scratch = lay_scratch(x, &s->rerun[r]);
            fits = fits && scratch <= bytes &&
                   lay_algorithm(x, s->rerun[r].node, bytes - scratch, w->menu);
        }
    }
    if (!fits) {
        memcpy(s->alt, w->alt, (size_t)s->n_stages * sizeof *s->alt);
        memcpy(s->rerun, w->rerun, (size_t)s->n_reruns * sizeof *s->rerun);
    }
    return fits;
}

// What has given way needs no more bytes than its algorithms do: with those everything may come to
// lie lower.
static hth_err soft_lower(const hth_lay *x, lay_soft *w, uint64_t *height)
{
    const hth_schedule *s = x->s;
    uint64_t top = 0, peak = 0, live = 0, lower;
    memset(w->load, 0, ((size_t)s->n_stages + 2) * sizeof *w->load);
    for (int stage = 0, r = 0; stage < s->n_stages; stage++) {
        uint64_t most = hth_plan_round(hth_plan_workspace(&x->p->nodes[stage], s->alt[stage]));
        for (; r < s->n_reruns && s->rerun[r].stage == stage; r++) {
            uint64_t b = hth_lay_rerun_bytes(x, &s->rerun[r]);
            most = b > most ? b : most;
        }
        if (x->of_stage[stage] >= 0) {
            w->rect[x->of_stage[stage]].bytes = most;
        }
    }
    for (int i = 0; i < x->n_rects; i++) {
        const hth_rect *r = &w->rect[i];
        top = r->offset + r->bytes > top ? r->offset + r->bytes : top;
        w->load[r->first] += r->bytes;
        w->load[r->last + 1] -= r->bytes;
    }
    for (int stage = 0; stage < s->n_stages; stage++) {
        live += w->load[stage];
        peak = live > peak ? live : peak;
    }
    memcpy(x->rect, w->rect, (size_t)x->n_rects * sizeof *w->rect);
    *height = top;
    if (top <= peak + peak / SQUEEZE_NEAR) {
        return HTH_OK;
    }
    HTH_TRY(hth_address_assign(w->rect, x->n_rects, peak + peak / SQUEEZE_NEAR, 1, &lower));
    if (lower < top) {
        memcpy(x->rect, w->rect, (size_t)x->n_rects * sizeof *w->rect);
        *height = lower;
    }
    return HTH_OK;
}

// As the rectangles are placed, placed anew with the full stages' workspaces at their least, or all
// of them.
hth_err hth_lay_squeeze(hth_lay *x, uint64_t room, bool hasty, uint64_t *height)
{
    lay_soft w;
    bool fits = false;
    HTH_TRY(soft_init(x, &w));
    hth_err err = HTH_OK;
    for (int attempt = 0; err == HTH_OK && !fits && attempt < (hasty ? 1 : 3); attempt++) {
        if (attempt > 0) {
            err = soft_place(x, &w, attempt == 1 ? room / 8 * 7 : 0, room);
        }
        if (err == HTH_OK) {
            err = hth_address_squeeze(w.rect, w.soft, x->n_rects, room, &fits);
        }
        fits = err == HTH_OK && fits && soft_choose(x, &w);
    }
    if (err == HTH_OK && fits) {
        err = soft_lower(x, &w, height);
    }
    soft_fini(&w);
    return err;
}
