// SPDX-License-Identifier: Apache-2.0
// fair/fair_heap.h - a binary heap of items that know their place in it, so that any of them can be
// removed or moved in log n, and a walk in order that changes nothing.
#ifndef HTH_FAIR_FAIR_HEAP_H
#define HTH_FAIR_FAIR_HEAP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_fair_heap {
    bool (*before)(const void *a, const void *b); // a strict order of all items
    size_t place; // offset of the item's int that holds its place, counted from 1; 0: not in it
    void **item;
    int n, cap;
} hth_fair_heap;

// All zero but for `before` and `place` at first; hth_fair_heap_fini frees what it holds, which is
// not the items.
void hth_fair_heap_fini(hth_fair_heap *heap);
// hth_fair_heap_room makes room for n items in all: pushing them cannot fail then.
hth_err hth_fair_heap_room(hth_fair_heap *heap, int n);
hth_err hth_fair_heap_push(hth_fair_heap *heap, void *item);
// hth_fair_heap_remove takes an item out; one that is not in the heap stays as it is.
void hth_fair_heap_remove(hth_fair_heap *heap, void *item);
// hth_fair_heap_moved puts an item of the heap in its place after its key has changed.
void hth_fair_heap_moved(hth_fair_heap *heap, void *item);
void *hth_fair_heap_first(const hth_fair_heap *heap); // NULL: empty

// A walk gives the first HTH_FAIR_WALK items in order, each in log of how many came before it. The
// heap must stay as it is meanwhile.
#define HTH_FAIR_WALK 256
typedef struct hth_fair_walk {
    const hth_fair_heap *heap;
    int front[HTH_FAIR_WALK + 1]; // places whose parents were given, itself a heap
    int n, given;
} hth_fair_walk;

void hth_fair_walk_begin(hth_fair_walk *walk, const hth_fair_heap *heap);
void *hth_fair_walk_next(hth_fair_walk *walk); // NULL: no more

#endif
