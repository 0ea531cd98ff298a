// SPDX-License-Identifier: Apache-2.0
// The device's weights: one entry per (content id, packed layout).
//
//               hold                    fill ok                  last rele
//     ABSENT ----------> FILLING ---------------------> HELD <---------------> IDLE
//        ^                  | fill or pool failed         ^         hold         |
//        +------------------+                             |                     |
//        +-------------------------------------------------------- evict ------+
//
//     ABSENT   no entry in the table
//     FILLING  in the table, owns pool bytes, content not valid; holders == 0, not in the idle list
//     HELD     content valid, holders > 0, not in the idle list
//     IDLE     content valid, holders == 0, in the idle list (least recently used first)
//
//     transition            function                  why it cannot be seen half done
//     ABSENT -> FILLING     residency_make            the fill callback runs on the owner's thread;
//                                                     nobody else calls
//     FILLING -> HELD       hth_residency_hold        a hold of the same entry from inside its
//                                                     fill is HTH_EBUSY
//     FILLING -> ABSENT     residency_drop
//     HELD -> IDLE          hth_residency_rele
//     IDLE -> HELD          hth_residency_hold
//     IDLE -> ABSENT        residency_evict_idle
//
// An idle entry costs nothing but memory, so it stays until the memory is needed.
#include "memmgr/residency.h"

#include "base/alloc.h"

#define HASH_NONFATAL_OOM        1
#define uthash_malloc(sz)        hth_alloc(sz)
#define uthash_free(p, sz)       hth_free(p)
#define uthash_nonfatal_oom(elt) ((elt)->state = RESIDENT_ABSENT)
#include <uthash.h>
#include <utlist.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef enum resident_state {
    RESIDENT_ABSENT,
    RESIDENT_FILLING,
    RESIDENT_HELD,
    RESIDENT_IDLE
} resident_state;

typedef struct resident_key {
    hth_id id;
    char form[96]; // zero-padded
} resident_key;

struct hth_resident {
    resident_key key;
    resident_state state;
    int holders;
    size_t bytes;
    void *data;
    hth_resident *prev, *next; // idle list
    UT_hash_handle hh;
};

struct hth_residency {
    hth_pool *pool;
    hth_resident *table, *idle;
    hth_residency_stats stats;
};

static void resident_check(const hth_residency *residency)
{
#ifdef HTH_DEBUG
    uint64_t bytes = 0, held = 0;
    size_t n_idle = 0, n_listed = 0;
    const hth_resident *e;
    for (e = residency->table; e != NULL; e = e->hh.next) {
        if (e->data == NULL || e->state == RESIDENT_ABSENT ||
            (e->holders > 0) != (e->state == RESIDENT_HELD)) {
            abort();
        }
        bytes += e->state == RESIDENT_FILLING ? 0 : e->bytes;
        held += e->state == RESIDENT_HELD ? e->bytes : 0;
        n_idle += e->state == RESIDENT_IDLE;
    }
    DL_COUNT(residency->idle, e, n_listed);
    if (n_idle != n_listed || bytes != residency->stats.resident_bytes ||
        held != residency->stats.held_bytes) {
        abort();
    }
#endif
}

hth_err hth_residency_open(hth_pool *pool, hth_residency **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_fail(HTH_ENOMEM, "no host memory for the table of resident weights");
    }
    (*out)->pool = pool;
    return HTH_OK;
}

void hth_residency_close(hth_residency *residency)
{
    if (residency == NULL) {
        return;
    }
    hth_residency_evict(residency, UINT64_MAX);
    if (residency->table != NULL) {
        abort(); // somebody still uses a weight that would be freed
    }
    hth_free(residency);
}

static void residency_drop(hth_residency *residency, hth_resident *resident)
{
    assert(resident->holders == 0);
    HASH_DEL(residency->table, resident);
    hth_pool_free(residency->pool, resident->data);
    hth_free(resident);
}

static uint64_t residency_evict_idle(hth_residency *residency, hth_resident *resident)
{
    uint64_t bytes = resident->bytes;
    assert(resident->state == RESIDENT_IDLE);
    DL_DELETE(residency->idle, resident);
    assert(residency->stats.entries > 0);
    residency->stats.entries--;
    residency->stats.resident_bytes -= bytes;
    residency->stats.evictions++;
    residency->stats.evicted_bytes += bytes;
    residency_drop(residency, resident);
    return bytes;
}

uint64_t hth_residency_evict(hth_residency *residency, uint64_t bytes)
{
    uint64_t freed = 0;
    resident_check(residency);
    while (freed < bytes && residency->idle != NULL) {
        freed += residency_evict_idle(residency, residency->idle);
    }
    return freed;
}

hth_err hth_residency_alloc(hth_residency *residency, size_t bytes, hth_pool_use use, void **out)
{
    hth_err err;
    resident_check(residency);
    while ((err = hth_pool_alloc(residency->pool, bytes, use, out)) == HTH_ENODEVMEM &&
           residency->idle != NULL) {
        residency_evict_idle(residency, residency->idle);
    }
    return err;
}

// The key's padding is zero: it is compared as bytes.
static hth_err residency_key(const hth_id *id, const char *form, resident_key *key)
{
    *key = (resident_key){.id = *id};
    if (strlen(form) >= sizeof key->form) {
        return hth_fail(HTH_EINVAL,
                        "the name of a weight's packed layout is longer than %zu bytes: '%s'",
                        sizeof key->form - 1, form);
    }
    strcpy(key->form, form);
    return HTH_OK;
}

hth_resident *hth_residency_find(const hth_residency *residency, const hth_id *id, const char *form)
{
    resident_key key;
    hth_resident *e = NULL;
    if (residency_key(id, form, &key) == HTH_OK) {
        HASH_FIND(hh, residency->table, &key, sizeof key, e);
    }
    return e;
}

uint64_t hth_residency_drop(hth_residency *residency, const hth_id *id, const char *form)
{
    resident_check(residency);
    hth_resident *e = hth_residency_find(residency, id, form);
    return e != NULL && e->state == RESIDENT_IDLE ? residency_evict_idle(residency, e) : 0;
}

// Makes the entry of `key`, in state FILLING.
static hth_err residency_make(hth_residency *residency, const resident_key *key, size_t bytes,
                              hth_resident **out)
{
    hth_resident *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "no host memory for a resident weight's record");
    }
    hth_err err = hth_residency_alloc(residency, bytes, HTH_POOL_WEIGHT, &e->data);
    if (err == HTH_OK) {
        e->key = *key;
        e->bytes = bytes;
        e->state = RESIDENT_FILLING;
        HASH_ADD(hh, residency->table, key, sizeof e->key, e);
        if (e->state == RESIDENT_FILLING) {
            *out = e;
            return HTH_OK;
        }
        hth_pool_free(residency->pool, e->data);
        err = hth_fail(HTH_ENOMEM, "no host memory for the table of resident weights");
    }
    hth_free(e);
    return err;
}

static hth_err residency_fill(hth_residency *residency, const resident_key *key, size_t bytes,
                              hth_fill_fn fill, void *ctx, hth_resident **out)
{
    hth_resident *e = NULL;
    HTH_TRY(residency_make(residency, key, bytes, &e));
    hth_err err = fill(ctx, e->data, bytes);
    if (err != HTH_OK) {
        residency_drop(residency, e);
        return err;
    }
    residency->stats.entries++;
    residency->stats.resident_bytes += bytes;
    residency->stats.fills++;
    residency->stats.filled_bytes += bytes;
    *out = e;
    return HTH_OK;
}

hth_err hth_residency_hold(hth_residency *residency, const hth_id *id, const char *form,
                           size_t bytes, hth_fill_fn fill, void *ctx, hth_resident **out)
{
    resident_key key;
    hth_resident *e;
    resident_check(residency);
    *out = NULL;
    HTH_TRY(residency_key(id, form, &key));
    HASH_FIND(hh, residency->table, &key, sizeof key, e);
    if (e == NULL) {
        HTH_TRY(residency_fill(residency, &key, bytes, fill, ctx, &e));
    } else if (e->state == RESIDENT_FILLING) {
        return hth_fail(HTH_EBUSY, "packed weight '%s' is being written", form);
    } else if (e->bytes != bytes) {
        return hth_fail(HTH_EINVAL, "packed weight '%s' has %zu bytes, %zu were expected", form,
                        e->bytes, bytes);
    }
    assert((e->holders > 0) == (e->state == RESIDENT_HELD));
    if (e->state == RESIDENT_IDLE) {
        DL_DELETE(residency->idle, e);
    }
    residency->stats.held_bytes += e->holders == 0 ? e->bytes : 0;
    e->state = RESIDENT_HELD;
    e->holders++;
    *out = e;
    return HTH_OK;
}

void hth_residency_rele(hth_residency *residency, hth_resident *resident)
{
    resident_check(residency);
    assert(resident == NULL || (resident->state == RESIDENT_HELD && resident->holders > 0));
    if (resident != NULL && --resident->holders == 0) {
        resident->state = RESIDENT_IDLE;
        DL_APPEND(residency->idle, resident);
        residency->stats.held_bytes -= resident->bytes;
    }
}

void *hth_resident_data(const hth_resident *resident)
{
    return resident->data;
}

int hth_resident_holders(const hth_resident *resident)
{
    return resident->holders;
}

size_t hth_resident_bytes(const hth_resident *resident)
{
    return resident->bytes;
}

void hth_residency_stats_get(const hth_residency *residency, hth_residency_stats *out)
{
    *out = residency->stats;
}
