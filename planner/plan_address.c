// SPDX-License-Identifier: Apache-2.0
// Addresses: rectangles {stages x bytes} to offsets so that none overlap, as low as possible
// ("dynamic storage allocation", NP-hard). Place the rectangles one after the other into the best
// interval between already placed ones that share a stage with them, in several orders; the order
// decides everything. If no order reaches the peak of live bytes, which is a lower bound,
// plan_address_skyline.c looks for better ones.
//
// Who shares a stage with whom is computed once, as adjacency lists; a pass then costs the sum of
// their lengths. Where these would be too long there is one placement (plan_address_stream.c). The
// search is limited by the neighbours that it looks at, so it is deterministic.
#include "planner/plan_address_impl.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define ADDRESS_VISITS   400000 // neighbours looked at: about 2 ms
#define ADDRESS_NEAR     64     // part of the peak: what fits but is more above it is tried again
#define ADDRESS_LOWER    2      // .. for so many times as long
#define ADDRESS_KINDS    5      // of orders
#define ADDRESS_MIN      6      // passes, whatever the time
#define ADDRESS_PATIENCE 5      // times as many, where a target can be reached
// Of all rectangles together, 64 MiB: with more there is no search. Networks of thousands of layers
// have a tenth of that.
#define ADDRESS_NEIGHBOURS ((uint64_t)1 << 24)

typedef struct address_item {
    uint64_t key, key2;
    int i;
} address_item;

static int address_item_cmp(const void *a, const void *b)
{
    const address_item *x = a, *y = b;
    if (x->key != y->key) {
        return x->key > y->key ? -1 : 1;
    }
    if (x->key2 != y->key2) {
        return x->key2 > y->key2 ? -1 : 1;
    }
    return (x->i > y->i) - (x->i < y->i);
}

// Sorts 0 .. n-1 by a->key, then bytes, both descending, then by number.
static hth_err address_sort(const hth_address *a, int *order)
{
    address_item *item = hth_alloc((size_t)a->n * sizeof *item);
    if (item == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to sort %d buffers", a->n);
    }
    for (int i = 0; i < a->n; i++) {
        item[i] = (address_item){a->key[i], a->r[i].bytes, i};
    }
    qsort(item, (size_t)a->n, sizeof *item, address_item_cmp);
    for (int i = 0; i < a->n; i++) {
        order[i] = item[i].i;
    }
    hth_free(item);
    return HTH_OK;
}

// Calls for every pair that shares a stage: counts (neighbour == NULL) or stores.
static void address_pairs(hth_address *a, const int *by_first, int *active, int *fill)
{
    int n_active = 0;
    for (int k = 0; k < a->n; k++) {
        int i = by_first[k], kept = 0;
        for (int j = 0; j < n_active; j++) {
            int o = active[j];
            if (a->r[o].last < a->r[i].first) {
                continue;
            }
            active[kept++] = o;
            if (a->neighbour != NULL) {
                a->neighbour[fill[i]] = o;
                a->neighbour[fill[o]] = i;
            }
            fill[i]++;
            fill[o]++;
        }
        n_active = kept;
        active[n_active++] = i;
    }
}

// How many neighbours all have, without looking at each: whoever is born has those that live.
static hth_err address_count(const hth_address *a, uint64_t *sum)
{
    int *born = hth_calloc((size_t)a->n_stages + 1, sizeof *born);
    int *died = hth_calloc((size_t)a->n_stages + 1, sizeof *died);
    uint64_t living = 0;
    *sum = 0;
    for (int i = 0; i < a->n && born != NULL && died != NULL; i++) {
        born[a->r[i].first]++;
        died[a->r[i].last + 1]++;
    }
    for (int s = 0; s < a->n_stages && born != NULL && died != NULL; s++) {
        uint64_t fresh = (uint64_t)born[s];
        living -= (uint64_t)died[s];
        *sum += fresh * (2 * living + fresh) - fresh;
        living += fresh;
    }
    bool done = born != NULL && died != NULL;
    hth_free(born);
    hth_free(died);
    return done ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for the neighbours of %d buffers", a->n);
}

static hth_err address_sort_stages(hth_address *a, bool by_last, int *order)
{
    for (int i = 0; i < a->n; i++) {
        a->key[i] = (uint64_t)(INT32_MAX - (by_last ? a->r[i].last : a->r[i].first));
    }
    return address_sort(a, order);
}

static hth_err address_adjacency(hth_address *a)
{
    size_t n = (size_t)a->n;
    int *active = hth_alloc(n * sizeof *active), *fill = hth_calloc(n, sizeof *fill);
    hth_err err = hth_fail(HTH_ENOMEM, "no memory for the neighbours of %d buffers", a->n);
    if (active == NULL || fill == NULL) {
        goto out;
    }
    HTH_GOTO(address_sort_stages(a, false, a->order), out);
    address_pairs(a, a->order, active, fill);
    int64_t sum = 0;
    for (int i = 0; i < a->n; i++) {
        a->start[i] = (int)sum;
        sum += fill[i];
        fill[i] = a->start[i];
    }
    a->start[a->n] = (int)sum;
    a->neighbour = sum < INT32_MAX ? hth_alloc((size_t)sum * sizeof(int)) : NULL;
    if (a->neighbour == NULL) {
        err = hth_fail(HTH_ENOMEM, "no memory for the neighbours of %d buffers", a->n);
        goto out;
    }
    address_pairs(a, a->order, active, fill);
    err = HTH_OK;
out:
    hth_free(active);
    hth_free(fill);
    return err;
}

// Shell sort by offset: short, nearly sorted lists, no callback.
static void address_sort_near(hth_address_span *near, int n)
{
    static const int intervals[] = {301, 57, 10, 1};
    for (size_t g = 0; g < sizeof intervals / sizeof *intervals; g++) {
        for (int i = intervals[g]; i < n; i++) {
            hth_address_span x = near[i];
            int j = i;
            for (; j >= intervals[g] && near[j - intervals[g]].lo > x.lo; j -= intervals[g]) {
                near[j] = near[j - intervals[g]];
            }
            near[j] = x;
        }
    }
}

// The offset of the tightest (or, with `lowest`, the first) interval for rectangle i among its
// placed neighbours.
static uint64_t address_interval(hth_address *a, int i, bool lowest)
{
    int n = 0;
    uint64_t bytes = a->r[i].bytes;
    for (int k = a->start[i]; k < a->start[i + 1]; k++) {
        const hth_address_span *o = &a->placed[a->neighbour[k]];
        if (o->hi > 0) {
            a->near[n++] = *o;
        }
    }
    a->visits += a->start[i + 1] - a->start[i];
    address_sort_near(a->near, n);
    uint64_t at = 0, found = UINT64_MAX, tightest = UINT64_MAX;
    for (int k = 0; k < n; k++) {
        const hth_address_span *o = &a->near[k];
        if (o->lo >= at + bytes && o->lo - at < tightest) {
            if (lowest) {
                return at;
            }
            tightest = o->lo - at;
            found = at;
        }
        at = o->hi > at ? o->hi : at;
    }
    return found != UINT64_MAX ? found : at;
}

// Gives up as soon as it cannot be the lowest.
void hth_address_pass(hth_address *a, bool lowest)
{
    uint64_t height = 0;
    memset(a->placed, 0, (size_t)a->n * sizeof *a->placed);
    for (int k = 0; k < a->n && height < a->best_height; k++) {
        int i = a->order[k];
        a->r[i].offset = address_interval(a, i, lowest);
        uint64_t top = a->r[i].offset + a->r[i].bytes;
        a->placed[i] = (hth_address_span){a->r[i].offset, top};
        height = top > height ? top : height;
    }
    for (int i = 0; height < a->best_height && i < a->n; i++) {
        a->best[i] = a->r[i].offset;
    }
    a->best_height = height < a->best_height ? height : a->best_height;
}

// Key of rectangle i in the k-th order: size, load of its fullest stage, area, length, birth.
static void address_keys(hth_address *a, int kind)
{
    for (int i = 0; i < a->n; i++) {
        const hth_rect *r = &a->r[i];
        uint64_t length = (uint64_t)(r->last - r->first) + 1, fullest = 0;
        switch (kind) {
        case 0:
            a->key[i] = r->bytes;
            break;
        case 1:
            for (int s = r->first; s <= r->last; s++) {
                fullest = a->load[s] > fullest ? a->load[s] : fullest;
            }
            a->key[i] = fullest;
            break;
        case 2:
            a->key[i] = r->bytes / HTH_PLAN_ALIGN * length;
            break;
        case 3:
            a->key[i] = length;
            break;
        default:
            a->key[i] = (uint64_t)(INT32_MAX - r->first);
        }
    }
}

// address_many places rectangles that have too many neighbours for a search.
static hth_err address_many(hth_address *a)
{
    int *by_last = hth_alloc((size_t)a->n * sizeof *by_last);
    if (by_last == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to place %d buffers", a->n);
    }
    hth_err err;
    HTH_GOTO(address_sort_stages(a, true, by_last), out);
    HTH_GOTO(address_sort_stages(a, false, a->order), out);
    err = hth_address_stream(a, a->order, by_last);
out:
    hth_free(by_last);
    return err;
}

static hth_err address_search(hth_address *a, int effort)
{
    for (int pass = 0; pass < 2 * ADDRESS_KINDS; pass++) {
        if (a->best_height <= a->goal || (hth_address_done(a) && pass >= ADDRESS_MIN)) {
            break;
        }
        if (pass % 2 == 0) {
            address_keys(a, pass / 2);
            HTH_TRY(address_sort(a, a->order));
        }
        hth_address_pass(a, pass % 2 != 0);
    }
    if (effort > 1 && a->visits > a->most / 2) {
        a->most = a->visits + a->most / 2;
    }
    return hth_address_done(a) ? HTH_OK : hth_address_skyline(a);
}

static hth_err rect_load(const hth_rect *r, int n, int n_stages, uint64_t **out, uint64_t *peak)
{
    uint64_t *load = hth_calloc((size_t)n_stages + 1, sizeof *load), sum = 0;
    if (load == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for the load of %d stages", n_stages);
    }
    for (int i = 0; i < n; i++) {
        load[r[i].first] += r[i].bytes;
        load[r[i].last + 1] -= r[i].bytes;
    }
    *peak = 0;
    for (int s = 0; s < n_stages; s++) {
        load[s] = sum += load[s];
        *peak = sum > *peak ? sum : *peak;
    }
    *out = load;
    return HTH_OK;
}

static hth_err address_place(hth_address *a, uint64_t target, int effort)
{
    uint64_t neighbours, near = a->peak + a->peak / ADDRESS_NEAR;
    HTH_TRY(address_count(a, &neighbours));
    if (neighbours > ADDRESS_NEIGHBOURS) {
        return address_many(a);
    }
    HTH_TRY(address_adjacency(a));
    HTH_TRY(address_search(a, effort));
    if (a->best_height > target || a->best_height <= near) {
        return HTH_OK;
    }
    a->goal = near; // it fits: now lower, for a moment
    a->most = a->visits + ADDRESS_LOWER * (int64_t)ADDRESS_VISITS;
    return hth_address_skyline(a);
}

hth_err hth_address_assign(hth_rect *r, int n, uint64_t target, int effort, uint64_t *height)
{
    int n_stages = 0;
    uint64_t *load = NULL, peak = 0;
    for (int i = 0; i < n; i++) {
        n_stages = r[i].last >= n_stages ? r[i].last + 1 : n_stages;
    }
    HTH_TRY(rect_load(r, n, n_stages, &load, &peak));
    size_t count = (size_t)n;
    hth_address a = {.r = r,
                     .n = n,
                     .n_stages = n_stages,
                     .load = load,
                     .start = hth_alloc((count + 1) * sizeof(int)),
                     .order = hth_alloc(count * sizeof(int)),
                     .key = hth_alloc(count * sizeof(uint64_t)),
                     .placed = hth_alloc(count * sizeof(hth_address_span)),
                     .near = hth_alloc(count * sizeof(hth_address_span)),
                     .best = hth_alloc(count * sizeof(uint64_t)),
                     .best_height = UINT64_MAX,
                     .peak = peak,
                     .goal = target > peak ? target : peak,
                     .most = (int64_t)ADDRESS_VISITS * (effort > 0 ? effort : 1)};
    a.most *= effort > 0 && target >= peak ? ADDRESS_PATIENCE : 1;
    hth_err err = HTH_ENOMEM;
    if (!a.start || !a.order || !a.key || !a.placed || !a.near || !a.best) {
        hth_fail(err, "no memory to place %d buffers", n);
        goto out;
    }
    HTH_GOTO(address_place(&a, target, effort), out);
    *height = n > 0 ? a.best_height : 0;
    for (int i = 0; i < n; i++) {
        r[i].offset = a.best[i];
    }
out:
    hth_free(load);
    hth_free(a.start);
    hth_free(a.neighbour);
    hth_free(a.order);
    hth_free(a.key);
    hth_free(a.placed);
    hth_free(a.near);
    hth_free(a.best);
    return err;
}
