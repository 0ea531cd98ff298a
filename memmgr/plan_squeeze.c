// SPDX-License-Identifier: Apache-2.0
// When a placement is too high: tensors that stick out go into gaps between other tensors, wherever
// workspaces are, and each workspace into the largest hole that its stage has left. A workspace is
// one stage's own, so what it gets concerns nobody else: its node may take an algorithm that needs
// less. That costs a few microseconds of one node, where planning for a smaller budget costs all of
// them.
#include "memmgr/plan_parts.h"

#include "base/alloc.h"

#include <stdlib.h>

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
