// SPDX-License-Identifier: Apache-2.0
// Addresses of very many rectangles that are there at the same time, where the lists of who shares
// a stage with whom would be as long as the square of their number. They are placed in the order of
// their births, once, as an allocator would: free blocks in lists by size, good fit, neighbours
// joined (TLSF, Masmano and others 2004). Linear in their number, and higher than what the search
// finds.
#include "planner/plan_address_impl.h"

#include "base/alloc.h"

#include <string.h>

#define STREAM_PARTS 8 // of each power of two: a block is at most an eighth larger than its list
#define STREAM_LISTS (64 * STREAM_PARTS)

typedef struct stream_block {
    uint64_t at, bytes;
    int below, above;   // in the order of addresses, -1: none
    int previous, next; // in the list of its size, -1: none
    int list;           // -1: in use
} stream_block;

typedef struct stream {
    stream_block *block;
    int n, top;              // blocks ever made; the one with the highest address, -1: none
    int first[STREAM_LISTS]; // per list, -1: empty
    uint64_t filled[STREAM_LISTS / 64]; // a bit per list
    uint64_t height;
} stream;

// The list of blocks of so many bytes or more, up to the next list's.
static int stream_list(uint64_t bytes)
{
    uint64_t units = bytes / HTH_PLAN_ALIGN;
    if (units < STREAM_PARTS) {
        return (int)units;
    }
    int power = 63 - __builtin_clzll(units);
    return (power - 2) * STREAM_PARTS + (int)(units >> (power - 3) & (STREAM_PARTS - 1));
}

static void stream_put(stream *s, int b)
{
    stream_block *x = &s->block[b];
    x->list = stream_list(x->bytes);
    x->previous = -1;
    x->next = s->first[x->list];
    if (x->next >= 0) {
        s->block[x->next].previous = b;
    }
    s->first[x->list] = b;
    s->filled[x->list / 64] |= UINT64_C(1) << x->list % 64;
}

static void stream_take(stream *s, int b)
{
    stream_block *x = &s->block[b];
    if (x->previous >= 0) {
        s->block[x->previous].next = x->next;
    } else {
        s->first[x->list] = x->next;
    }
    if (x->next >= 0) {
        s->block[x->next].previous = x->previous;
    }
    if (s->first[x->list] < 0) {
        s->filled[x->list / 64] &= ~(UINT64_C(1) << x->list % 64);
    }
    x->list = -1;
}

// The first block of a list whose blocks all have so many bytes, -1: there is none.
static int stream_find(const stream *s, uint64_t bytes)
{
    int list = stream_list(bytes);
    int b = s->first[list]; // perhaps its first one does, too
    if (b >= 0 && s->block[b].bytes >= bytes) {
        return b;
    }
    for (int at = list + 1; at < STREAM_LISTS; at = (at / 64 + 1) * 64) {
        uint64_t bits = s->filled[at / 64] >> at % 64;
        if (bits != 0) {
            return s->first[at + __builtin_ctzll(bits)];
        }
    }
    return -1;
}

// A new block between `below` and what was above it.
static int stream_insert(stream *s, int below, uint64_t at, uint64_t bytes)
{
    int b = s->n++;
    int above = below >= 0 ? s->block[below].above : -1;
    s->block[b] = (stream_block){at, bytes, below, above, -1, -1, -1};
    if (below >= 0) {
        s->block[below].above = b;
    }
    if (above >= 0) {
        s->block[above].below = b;
    } else {
        s->top = b;
    }
    return b;
}

// More addresses at the top, joined to a free block there.
static int stream_grow(stream *s, uint64_t bytes)
{
    int b = s->top;
    if (b >= 0 && s->block[b].list >= 0) {
        stream_take(s, b);
        s->height += bytes - s->block[b].bytes;
        s->block[b].bytes = bytes;
        return b;
    }
    b = stream_insert(s, b, s->height, bytes);
    s->height += bytes;
    return b;
}

static int stream_alloc(stream *s, uint64_t bytes)
{
    int b = stream_find(s, bytes);
    if (b < 0) {
        return stream_grow(s, bytes);
    }
    stream_take(s, b);
    uint64_t rest = s->block[b].bytes - bytes;
    if (rest > 0) {
        s->block[b].bytes = bytes;
        stream_put(s, stream_insert(s, b, s->block[b].at + bytes, rest));
    }
    return b;
}

// Block `b` goes into the free one below it.
static int stream_join(stream *s, int below, int b)
{
    stream_take(s, below);
    s->block[below].bytes += s->block[b].bytes;
    s->block[below].above = s->block[b].above;
    if (s->block[b].above >= 0) {
        s->block[s->block[b].above].below = below;
    } else {
        s->top = below;
    }
    return below;
}

static void stream_free(stream *s, int b)
{
    int below = s->block[b].below, above = s->block[b].above;
    if (above >= 0 && s->block[above].list >= 0) {
        stream_take(s, above);
        stream_put(s, b); // what stream_join takes out
        b = stream_join(s, b, above);
    }
    if (below >= 0 && s->block[below].list >= 0) {
        b = stream_join(s, below, b);
    }
    stream_put(s, b);
}

hth_err hth_address_stream(hth_address *address, const int *by_first, const int *by_last)
{
    stream s = {.top = -1};
    int *of = hth_alloc((size_t)address->n * sizeof *of);
    int ended = 0;
    s.block =
        hth_alloc(2 * (size_t)address->n * sizeof *s.block); // each placement makes two at most
    memset(s.first, -1, sizeof s.first);
    if (of == NULL || s.block == NULL) {
        hth_free(of);
        hth_free(s.block);
        return hth_no_memory("placing %d buffers", address->n);
    }
    for (int k = 0; k < address->n; k++) {
        hth_rect *r = &address->r[by_first[k]];
        while (address->r[by_last[ended]].last < r->first) { // ends at r itself at the latest
            int o = by_last[ended++];
            if (address->r[o].bytes > 0) {
                stream_free(&s, of[o]);
            }
        }
        r->offset = 0;
        if (r->bytes > 0) {
            of[by_first[k]] = stream_alloc(&s, r->bytes);
            r->offset = s.block[of[by_first[k]]].at;
        }
        address->best[by_first[k]] = r->offset;
    }
    address->best_height = s.height;
    hth_free(of);
    hth_free(s.block);
    return HTH_OK;
}
