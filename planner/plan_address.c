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
#include "planner/plan_work.h"

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
static hth_err address_sort(const hth_address *address, int *order)
{
    address_item *item = hth_alloc((size_t)address->n * sizeof *item);
    if (item == NULL) {
        return hth_no_memory("sorting %d buffers", address->n);
    }
    for (int i = 0; i < address->n; i++) {
        item[i] = (address_item){address->key[i], address->r[i].bytes, i};
    }
    qsort(item, (size_t)address->n, sizeof *item, address_item_cmp);
    for (int i = 0; i < address->n; i++) {
        order[i] = item[i].i;
    }
    hth_free(item);
    return HTH_OK;
}

// Calls for every pair that shares a stage: counts (neighbour == NULL) or stores.
static void address_pairs(hth_address *address, const int *by_first, int *active, int *fill)
{
    int n_active = 0;
    for (int k = 0; k < address->n; k++) {
        int i = by_first[k], kept = 0;
        for (int j = 0; j < n_active; j++) {
            int o = active[j];
            if (address->r[o].last < address->r[i].first) {
                continue;
            }
            active[kept++] = o;
            if (address->neighbour != NULL) {
                address->neighbour[fill[i]] = o;
                address->neighbour[fill[o]] = i;
            }
            fill[i]++;
            fill[o]++;
        }
        n_active = kept;
        active[n_active++] = i;
    }
}

// How many neighbours all have, without looking at each: whoever is born has those that live.
static hth_err address_count(const hth_address *address, uint64_t *sum)
{
    int *born = hth_calloc((size_t)address->n_stages + 1, sizeof *born);
    int *died = hth_calloc((size_t)address->n_stages + 1, sizeof *died);
    uint64_t living = 0;
    *sum = 0;
    for (int i = 0; i < address->n && born != NULL && died != NULL; i++) {
        born[address->r[i].first]++;
        died[address->r[i].last + 1]++;
    }
    for (int s = 0; s < address->n_stages && born != NULL && died != NULL; s++) {
        uint64_t fresh = (uint64_t)born[s];
        living -= (uint64_t)died[s];
        *sum += fresh * (2 * living + fresh) - fresh;
        living += fresh;
    }
    bool done = born != NULL && died != NULL;
    hth_free(born);
    hth_free(died);
    return done ? HTH_OK : hth_no_memory("the neighbours of %d buffers", address->n);
}

static hth_err address_sort_stages(hth_address *address, bool by_last, int *order)
{
    for (int i = 0; i < address->n; i++) {
        address->key[i] =
            (uint64_t)(INT32_MAX - (by_last ? address->r[i].last : address->r[i].first));
    }
    return address_sort(address, order);
}

static hth_err address_adjacency(hth_address *address)
{
    size_t n = (size_t)address->n;
    int *active = hth_alloc(n * sizeof *active), *fill = hth_calloc(n, sizeof *fill);
    hth_err err = hth_no_memory("the neighbours of %d buffers", address->n);
    if (active == NULL || fill == NULL) {
        goto out;
    }
    HTH_GOTO(address_sort_stages(address, false, address->order), out);
    address_pairs(address, address->order, active, fill);
    int64_t sum = 0;
    for (int i = 0; i < address->n; i++) {
        address->start[i] = (int)sum;
        sum += fill[i];
        fill[i] = address->start[i];
    }
    address->start[address->n] = (int)sum;
    address->neighbour = sum < INT32_MAX ? hth_alloc((size_t)sum * sizeof(int)) : NULL;
    if (address->neighbour == NULL) {
        err = hth_no_memory("the neighbours of %d buffers", address->n);
        goto out;
    }
    address_pairs(address, address->order, active, fill);
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
static uint64_t address_interval(hth_address *address, int i, bool lowest)
{
    int n = 0;
    uint64_t bytes = address->r[i].bytes;
    for (int k = address->start[i]; k < address->start[i + 1]; k++) {
        const hth_address_span *o = &address->placed[address->neighbour[k]];
        if (o->hi > 0) {
            address->near[n++] = *o;
        }
    }
    address->visits += address->start[i + 1] - address->start[i];
    address_sort_near(address->near, n);
    uint64_t at = 0, found = UINT64_MAX, tightest = UINT64_MAX;
    for (int k = 0; k < n; k++) {
        const hth_address_span *o = &address->near[k];
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
void hth_address_pass(hth_address *address, bool lowest)
{
    uint64_t height = 0;
    memset(address->placed, 0, (size_t)address->n * sizeof *address->placed);
    for (int k = 0; k < address->n && height < address->best_height; k++) {
        int i = address->order[k];
        address->r[i].offset = address_interval(address, i, lowest);
        uint64_t top = address->r[i].offset + address->r[i].bytes;
        address->placed[i] = (hth_address_span){address->r[i].offset, top};
        height = top > height ? top : height;
    }
    for (int i = 0; height < address->best_height && i < address->n; i++) {
        address->best[i] = address->r[i].offset;
    }
    address->best_height = height < address->best_height ? height : address->best_height;
}

// Key of rectangle i in the k-th order: size, load of its fullest stage, area, length, birth.
static void address_keys(hth_address *address, int kind)
{
    for (int i = 0; i < address->n; i++) {
        const hth_rect *r = &address->r[i];
        uint64_t length = (uint64_t)(r->last - r->first) + 1, fullest = 0;
        switch (kind) {
        case 0:
            address->key[i] = r->bytes;
            break;
        case 1:
            for (int s = r->first; s <= r->last; s++) {
                fullest = address->load[s] > fullest ? address->load[s] : fullest;
            }
            address->key[i] = fullest;
            break;
        case 2:
            address->key[i] = r->bytes / HTH_PLAN_ALIGN * length;
            break;
        case 3:
            address->key[i] = length;
            break;
        default:
            address->key[i] = (uint64_t)(INT32_MAX - r->first);
        }
    }
}

// address_many places rectangles that have too many neighbours for a search.
static hth_err address_many(hth_address *address)
{
    int *by_last = hth_alloc((size_t)address->n * sizeof *by_last);
    if (by_last == NULL) {
        return hth_no_memory("placing %d buffers", address->n);
    }
    hth_err err;
    HTH_GOTO(address_sort_stages(address, true, by_last), out);
    HTH_GOTO(address_sort_stages(address, false, address->order), out);
    err = hth_address_stream(address, address->order, by_last);
out:
    hth_free(by_last);
    return err;
}

static hth_err address_search(hth_address *address, int effort)
{
    for (int pass = 0; pass < 2 * ADDRESS_KINDS; pass++) {
        if (address->best_height <= address->goal ||
            (hth_address_done(address) && pass >= ADDRESS_MIN)) {
            break;
        }
        if (pass % 2 == 0) {
            address_keys(address, pass / 2);
            HTH_TRY(address_sort(address, address->order));
        }
        hth_address_pass(address, pass % 2 != 0);
    }
    hth_plan_work_add(HTH_WORK_VISIT, address->visits + 2 * (int64_t)address->start[address->n]);
    if (effort > 1 && address->visits > address->most / 2) {
        address->most = address->visits + address->most / 2;
    }
    return hth_address_done(address) ? HTH_OK : hth_address_skyline(address);
}

static hth_err rect_load(const hth_rect *rect, int n, int n_stages, uint64_t **out, uint64_t *peak)
{
    uint64_t *load = hth_calloc((size_t)n_stages + 1, sizeof *load);
    uint64_t sum = 0;
    if (load == NULL) {
        return hth_no_memory("the load of %d stages", n_stages);
    }
    for (int i = 0; i < n; i++) {
        load[rect[i].first] += rect[i].bytes;
        load[rect[i].last + 1] -= rect[i].bytes;
    }
    *peak = 0;
    for (int s = 0; s < n_stages; s++) {
        load[s] = sum += load[s];
        *peak = sum > *peak ? sum : *peak;
    }
    *out = load;
    return HTH_OK;
}

static hth_err address_place(hth_address *address, uint64_t target, int effort)
{
    uint64_t neighbours, near = address->peak + address->peak / ADDRESS_NEAR;
    HTH_TRY(address_count(address, &neighbours));
    if (neighbours > ADDRESS_NEIGHBOURS) {
        return address_many(address);
    }
    HTH_TRY(address_adjacency(address));
    HTH_TRY(address_search(address, effort));
    if (address->best_height > target || address->best_height <= near) {
        return HTH_OK;
    }
    address->goal = near; // it fits: now lower, for a moment
    address->most = address->visits + ADDRESS_LOWER * (int64_t)ADDRESS_VISITS;
    return hth_address_skyline(address);
}

hth_err hth_address_assign(hth_rect *rect, int n, uint64_t target, int effort, uint64_t *height)
{
    int n_stages = 0;
    uint64_t *load = NULL;
    uint64_t peak = 0;
    for (int i = 0; i < n; i++) {
        n_stages = rect[i].last >= n_stages ? rect[i].last + 1 : n_stages;
    }
    HTH_TRY(rect_load(rect, n, n_stages, &load, &peak));
    size_t count = (size_t)n;
    hth_address a = {.r = rect,
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
        rect[i].offset = a.best[i];
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
