// SPDX-License-Identifier: Apache-2.0
// Places count from 1, so that those below place p are 2p and 2p + 1, and 0 is nowhere.
#include "fair/fair_heap.h"

#include "base/alloc.h"

#include <assert.h>
#include <limits.h>

static int *heap_place(const hth_fair_heap *heap, void *item)
{
    return (int *)((char *)item + heap->place);
}

static void heap_put(hth_fair_heap *heap, int place, void *item)
{
    heap->item[place - 1] = item;
    *heap_place(heap, item) = place;
}

static void heap_up(hth_fair_heap *heap, int place, void *item)
{
    while (place > 1 && heap->before(item, heap->item[place / 2 - 1])) {
        heap_put(heap, place, heap->item[place / 2 - 1]);
        place /= 2;
    }
    heap_put(heap, place, item);
}

static void heap_down(hth_fair_heap *heap, int place, void *item)
{
    for (int below = place * 2; below <= heap->n; below = place * 2) {
        below += below < heap->n && heap->before(heap->item[below], heap->item[below - 1]);
        if (!heap->before(heap->item[below - 1], item)) {
            break;
        }
        heap_put(heap, place, heap->item[below - 1]);
        place = below;
    }
    heap_put(heap, place, item);
}

void hth_fair_heap_fini(hth_fair_heap *heap)
{
    hth_free(heap->item);
    heap->item = NULL;
    heap->n = heap->cap = 0;
}

hth_err hth_fair_heap_room(hth_fair_heap *heap, int n)
{
    if (n <= heap->cap) {
        return HTH_OK;
    }
    int cap = heap->cap < INT_MAX / 2 && n < heap->cap * 2 ? heap->cap * 2 : n;
    void **item = hth_realloc(heap->item, (size_t)cap, sizeof *item);
    if (item == NULL) {
        return hth_no_memory("%d entries of a heap", cap);
    }
    heap->item = item;
    heap->cap = cap;
    return HTH_OK;
}

hth_err hth_fair_heap_push(hth_fair_heap *heap, void *item)
{
    assert(*heap_place(heap, item) == 0);
    HTH_TRY(hth_fair_heap_room(heap, heap->n + 1));
    heap->n++;
    heap_up(heap, heap->n, item);
    return HTH_OK;
}

void hth_fair_heap_remove(hth_fair_heap *heap, void *item)
{
    int place = *heap_place(heap, item);
    if (place == 0) {
        return;
    }
    void *last = heap->item[--heap->n];
    *heap_place(heap, item) = 0;
    if (last != item) {
        heap_put(heap, place, last);
        hth_fair_heap_moved(heap, last);
    }
}

void hth_fair_heap_moved(hth_fair_heap *heap, void *item)
{
    int place = *heap_place(heap, item);
    assert(place > 0);
    heap_up(heap, place, item);
    heap_down(heap, *heap_place(heap, item), item);
}

void *hth_fair_heap_first(const hth_fair_heap *heap)
{
    return heap->n > 0 ? heap->item[0] : NULL;
}

static bool walk_before(const hth_fair_walk *walk, int a, int b)
{
    return walk->heap->before(walk->heap->item[a - 1], walk->heap->item[b - 1]);
}

static void walk_push(hth_fair_walk *walk, int place)
{
    int at = walk->n++;
    for (; at > 0 && walk_before(walk, place, walk->front[(at - 1) / 2]); at = (at - 1) / 2) {
        walk->front[at] = walk->front[(at - 1) / 2];
    }
    walk->front[at] = place;
}

static int walk_pop(hth_fair_walk *walk)
{
    int first = walk->front[0], place = walk->front[--walk->n], at = 0;
    for (int below = 1; below < walk->n; below = at * 2 + 1) {
        below +=
            below + 1 < walk->n && walk_before(walk, walk->front[below + 1], walk->front[below]);
        if (!walk_before(walk, walk->front[below], place)) {
            break;
        }
        walk->front[at] = walk->front[below];
        at = below;
    }
    walk->front[at] = place;
    return first;
}

void hth_fair_walk_begin(hth_fair_walk *walk, const hth_fair_heap *heap)
{
    walk->heap = heap;
    walk->n = walk->given = 0;
    if (heap->n > 0) {
        walk_push(walk, 1);
    }
}

// One place leaves the front and at most two come, so that it has room for HTH_FAIR_WALK walks.
void *hth_fair_walk_next(hth_fair_walk *walk)
{
    if (walk->n == 0 || walk->given == HTH_FAIR_WALK) {
        return NULL;
    }
    int place = walk_pop(walk);
    walk->given++;
    for (int below = place * 2; below <= place * 2 + 1 && below <= walk->heap->n; below++) {
        walk_push(walk, below);
    }
    return walk->heap->item[place - 1];
}
