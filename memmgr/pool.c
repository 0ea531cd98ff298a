// SPDX-License-Identifier: Apache-2.0
// Two-level segregated fit (Masmano et al., "TLSF", ECRTS 2004) with its records outside the
// managed bytes, because a device's memory need not be readable by the host. A class is a power of
// two cut in 32; two bitmaps find the smallest class with a free block in O(1), inside it the
// smallest of the first few fitting blocks is taken.
//
// Invariants (hth_pool_check): blocks tile the reservation in address order; no two neighbours are
// both free; a free block hangs in exactly the list of its class; the ledger is the sum over the
// blocks. Weights stay for long and arenas come and go, so weights are cut from the low end of a
// block and everything else from the high end: a long life does not nail down the middle of what a
// departing arena leaves.
#include "memmgr/pool.h"

#include "base/alloc.h"

#define HASH_NONFATAL_OOM        1
#define uthash_malloc(sz)        hth_alloc(sz)
#define uthash_free(p, sz)       hth_free(p)
#define uthash_nonfatal_oom(elt) ((elt)->size = 0)
#include <uthash.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define POOL_UNIT ((size_t)HTH_DEVICE_ALIGN)
#define POOL_SUB                                                                                   \
    32 // classes per power of two: a block is at most 1/32 larger than its class's smallest
#define POOL_LEVELS 48
#define POOL_SCAN   16 // blocks compared inside a class

typedef struct pool_block {
    size_t offset, size; // multiples of POOL_UNIT
    size_t asked;        // 0: free
    hth_pool_use use;
    struct pool_block *below, *above; // neighbours by address
    struct pool_block *prev, *next;   // in the class's free list
    UT_hash_handle hh;                // used blocks, by offset
} pool_block;

struct hth_pool {
    hth_device *device;
    char *base;
    size_t reserved, size; // as reserved; rounded down to units
    pool_block *first;     // lowest address
    pool_block *used;      // hash
    uint64_t level_map;
    uint32_t sub_map[POOL_LEVELS];
    pool_block *list[POOL_LEVELS][POOL_SUB];
    uint64_t used_bytes[HTH_POOL_N_USES], padding, free;
};

// Free lists.

static void pool_class(size_t size, int *level, int *sub)
{
    uint64_t units = size / POOL_UNIT;
    if (units < POOL_SUB) {
        *level = 0;
        *sub = (int)units;
        return;
    }
    int log = 63 - __builtin_clzll(units);
    *level = log - 4;
    *sub = (int)(units >> (log - 5)) - POOL_SUB;
}

static void pool_list_add(hth_pool *pool, pool_block *block)
{
    int l, s;
    pool_class(block->size, &l, &s);
    block->prev = NULL;
    block->next = pool->list[l][s];
    if (block->next != NULL) {
        block->next->prev = block;
    }
    pool->list[l][s] = block;
    pool->sub_map[l] |= 1u << s;
    pool->level_map |= 1ull << l;
}

static void pool_list_remove(hth_pool *pool, pool_block *block)
{
    int l, s;
    pool_class(block->size, &l, &s);
    if (block->next != NULL) {
        block->next->prev = block->prev;
    }
    if (block->prev != NULL) {
        block->prev->next = block->next;
        return;
    }
    pool->list[l][s] = block->next;
    if (block->next == NULL) {
        pool->sub_map[l] &= ~(1u << s);
        pool->level_map &= pool->sub_map[l] ? ~0ull : ~(1ull << l);
    }
}

// The smallest fitting block among the first POOL_SCAN of a class.
static pool_block *pool_scan(pool_block *block, size_t size)
{
    pool_block *best = NULL;
    for (int i = 0; block != NULL && (i < POOL_SCAN || best == NULL); i++, block = block->next) {
        if (block->size >= size && (best == NULL || block->size < best->size)) {
            best = block;
        }
    }
    return best;
}

static pool_block *pool_find(const hth_pool *pool, size_t size)
{
    int l, s;
    pool_class(size, &l, &s);
    pool_block *b = pool_scan(pool->list[l][s], size);
    if (b != NULL) {
        return b;
    }
    uint32_t subs = s + 1 < POOL_SUB ? pool->sub_map[l] & (~0u << (s + 1)) : 0;
    if (subs == 0) {
        uint64_t levels = pool->level_map & (~0ull << (l + 1));
        if (levels == 0) {
            return NULL;
        }
        l = __builtin_ctzll(levels);
        subs = pool->sub_map[l];
    }
    return pool_scan(pool->list[l][__builtin_ctz(subs)], size);
}

// Blocks.

// Makes `block` end at `size`, `rest` the free block above it.
static void pool_cut(pool_block *block, size_t size, pool_block *rest)
{
    *rest = (pool_block){.offset = block->offset + size,
                         .size = block->size - size,
                         .below = block,
                         .above = block->above};
    if (block->above != NULL) {
        block->above->below = rest;
    }
    block->above = rest;
    block->size = size;
}

// Joins free block `block` with the free block above it.
static void pool_join(pool_block *block)
{
    pool_block *gone = block->above;
    block->size += gone->size;
    block->above = gone->above;
    if (block->above != NULL) {
        block->above->below = block;
    }
    hth_free(gone);
}

// Returns `block`, out of every list, to the free lists, joined with its neighbours.
static void pool_give_back(hth_pool *pool, pool_block *block)
{
    block->asked = 0;
    if (block->above != NULL && block->above->asked == 0) {
        pool_list_remove(pool, block->above);
        pool_join(block);
    }
    if (block->below != NULL && block->below->asked == 0) {
        block = block->below;
        pool_list_remove(pool, block);
        pool_join(block);
    }
    pool_list_add(pool, block);
}

static void pool_poison(const hth_pool *pool, const pool_block *block, int byte)
{
#ifdef HTH_DEBUG
    if (pool->device->props.host_visible) {
        memset(pool->base + block->offset, byte, block->size);
    }
#endif
}

static void pool_enter(const hth_pool *pool)
{
#ifdef HTH_DEBUG
    hth_pool_check(pool);
#endif
}

hth_err hth_pool_open(hth_device *dev, size_t bytes, hth_pool **out)
{
    *out = NULL;
    if (bytes < POOL_UNIT) {
        return hth_fail(HTH_EINVAL, "a pool of %zu bytes: at least %zu are needed", bytes,
                        POOL_UNIT);
    }
    hth_pool *p = hth_calloc(1, sizeof *p);
    pool_block *b = hth_calloc(1, sizeof *b);
    hth_err err = HTH_ENOMEM;
    void *base;
    if (p == NULL || b == NULL) {
        hth_fail(err, "no host memory for a pool's records");
        goto fail;
    }
    HTH_GOTO(hth_device_reserve(dev, bytes, &base), fail);
    p->device = dev;
    p->base = base;
    p->reserved = bytes;
    p->size = p->free = b->size = bytes / POOL_UNIT * POOL_UNIT;
    p->first = b;
    pool_list_add(p, b);
    *out = p;
    return HTH_OK;
fail:
    hth_free(p);
    hth_free(b);
    return err;
}

void hth_pool_close(hth_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    HASH_CLEAR(hh, pool->used);
    for (pool_block *b = pool->first, *above; b != NULL; b = above) {
        above = b->above;
        hth_free(b);
    }
    hth_device_release(pool->device, pool->base, pool->reserved);
    hth_free(pool);
}

// Takes `size` bytes of free block `block` for `use`; `spare` becomes the rest, and is freed when
// there is none.
static pool_block *pool_take(hth_pool *pool, pool_block *block, size_t size, hth_pool_use use,
                             pool_block *spare)
{
    pool_list_remove(pool, block);
    if (block->size == size) {
        hth_free(spare);
        return block;
    }
    bool low = use == HTH_POOL_WEIGHT;
    pool_cut(block, low ? size : block->size - size, spare);
    pool_list_add(pool, low ? spare : block);
    return low ? block : spare;
}

hth_err hth_pool_alloc(hth_pool *pool, size_t bytes, hth_pool_use use, void **out)
{
    pool_enter(pool);
    *out = NULL;
    if (bytes == 0 || (unsigned)use >= HTH_POOL_N_USES) {
        return hth_fail(HTH_EINVAL, "a pool cannot allocate %zu bytes for use %d", bytes, (int)use);
    }
    if (bytes > pool->size) {
        return hth_fail(HTH_ETOOBIG, "%zu bytes requested, the device's pool has %zu in all", bytes,
                        pool->size);
    }
    size_t size = (bytes + POOL_UNIT - 1) / POOL_UNIT * POOL_UNIT;
    pool_block *b = pool_find(pool, size);
    if (b == NULL) {
        return hth_fail(HTH_ENODEVMEM, "%zu bytes requested, %llu are free, but not contiguous",
                        bytes, (unsigned long long)pool->free);
    }
    pool_block *spare = hth_alloc(sizeof *spare);
    if (spare == NULL) {
        return hth_fail(HTH_ENOMEM, "no host memory for a pool's records");
    }
    b = pool_take(pool, b, size, use, spare);
    b->asked = bytes;
    b->use = use;
    HASH_ADD(hh, pool->used, offset, sizeof b->offset, b);
    if (b->size == 0) { // the hash table could not grow, and marked the block so
        b->size = size;
        pool_give_back(pool, b);
        return hth_fail(HTH_ENOMEM, "no host memory for a pool's records");
    }
    pool->free -= size;
    pool->used_bytes[use] += bytes;
    pool->padding += size - bytes;
    pool_poison(pool, b, 0xA5);
    *out = pool->base + b->offset;
    return HTH_OK;
}

void hth_pool_free(hth_pool *pool, void *ptr)
{
    pool_enter(pool);
    if (ptr == NULL) {
        return;
    }
    size_t offset = (size_t)((char *)ptr - pool->base);
    pool_block *b;
    HASH_FIND(hh, pool->used, &offset, sizeof offset, b);
    if (b == NULL) {
        abort(); // freed twice, or never allocated here: the pool's bytes are no longer trustworthy
    }
    HASH_DELETE(hh, pool->used, b);
    pool->free += b->size;
    pool->used_bytes[b->use] -= b->asked;
    pool->padding -= b->size - b->asked;
    pool_poison(pool, b, 0x5A);
    pool_give_back(pool, b);
}

bool hth_pool_holds(const hth_pool *pool, const void *ptr)
{
    return (const char *)ptr >= pool->base && (const char *)ptr < pool->base + pool->size;
}

void hth_pool_ledger_get(const hth_pool *pool, hth_pool_ledger *out)
{
    *out = (hth_pool_ledger){
        .reserved_bytes = pool->reserved, .padding_bytes = pool->padding, .free_bytes = pool->free};
    memcpy(out->used_bytes, pool->used_bytes, sizeof pool->used_bytes);
    if (pool->level_map != 0) {
        int l = 63 - __builtin_clzll(pool->level_map), s = 31 - __builtin_clz(pool->sub_map[l]);
        for (const pool_block *b = pool->list[l][s]; b != NULL; b = b->next) {
            out->largest_free_bytes =
                b->size > out->largest_free_bytes ? b->size : out->largest_free_bytes;
        }
    }
}

static void pool_require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static size_t pool_count_listed(const hth_pool *pool)
{
    size_t n = 0;
    for (int l = 0; l < POOL_LEVELS; l++) {
        pool_require(((pool->level_map >> l & 1) != 0) == (pool->sub_map[l] != 0));
        for (int s = 0; s < POOL_SUB; s++) {
            pool_require(((pool->sub_map[l] >> s & 1) != 0) == (pool->list[l][s] != NULL));
            for (const pool_block *b = pool->list[l][s]; b != NULL; b = b->next) {
                int bl, bs;
                pool_class(b->size, &bl, &bs);
                pool_require(bl == l && bs == s && b->asked == 0 &&
                             (b->next == NULL || b->next->prev == b));
                n++;
            }
        }
    }
    return n;
}

void hth_pool_check(const hth_pool *pool)
{
    uint64_t used[HTH_POOL_N_USES] = {0}, padding = 0, free = 0;
    size_t at = 0, n_free = 0, n_used = 0;
    for (const pool_block *b = pool->first, *below = NULL; b != NULL; below = b, b = b->above) {
        pool_require(b->offset == at && b->below == below && b->size > 0 &&
                     b->size % POOL_UNIT == 0);
        pool_require(b->asked <= b->size && (b->asked > 0 || below == NULL || below->asked > 0));
        at += b->size;
        if (b->asked == 0) {
            free += b->size;
            n_free++;
        } else {
            used[b->use] += b->asked;
            padding += b->size - b->asked;
            n_used++;
        }
    }
    pool_require(at == pool->size && free == pool->free && padding == pool->padding);
    pool_require(memcmp(used, pool->used_bytes, sizeof used) == 0);
    pool_require(pool_count_listed(pool) == n_free && HASH_COUNT(pool->used) == n_used);
}
