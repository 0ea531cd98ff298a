// SPDX-License-Identifier: Apache-2.0
// memmgr/residency.h - one device copy of every weight, whoever uses it. Called only by the
// device's owner thread.
//
// A copy is keyed by (content id, form): the same weight in the same form is one entry. Holders
// keep it resident; an entry without holders stays until somebody needs the room, least recently
// used first.
#ifndef HTH_MEMMGR_RESIDENCY_H
#define HTH_MEMMGR_RESIDENCY_H

#include "base/id.h"
#include "memmgr/pool.h"

typedef struct hth_residency hth_residency;
typedef struct hth_resident hth_resident;

// hth_fill_fn writes the weight's bytes, in its form, to dst.
typedef hth_err (*hth_fill_fn)(void *ctx, void *dst, size_t bytes);

typedef struct hth_residency_stats {
    uint64_t entries, resident_bytes, held_bytes; // bytes counted once, however many holders
    uint64_t fills, filled_bytes, evictions, evicted_bytes;
} hth_residency_stats;

hth_err hth_residency_open(hth_pool *pool, hth_residency **out);
void hth_residency_close(hth_residency *residency); // no entry may be held

// hth_residency_hold finds or makes the entry and takes a reference. When it must be made it takes
// `bytes` from the pool, evicting idle entries as needed, and calls fill once. On error nothing is
// held. HTH_ENODEVMEM: everything else is held.
hth_err hth_residency_hold(hth_residency *residency, const hth_id *id, const char *form,
                           size_t bytes, hth_fill_fn fill, void *ctx, hth_resident **out);
void hth_residency_rele(hth_residency *residency, hth_resident *resident); // NULL is allowed
void *hth_resident_data(const hth_resident *resident);
int hth_resident_holders(const hth_resident *resident); // 0: it may go
size_t hth_resident_bytes(const hth_resident *resident);
// hth_residency_find returns the entry, held or idle; NULL: it is not there.
hth_resident *hth_residency_find(const hth_residency *residency, const hth_id *id,
                                 const char *form);
// hth_residency_drop drops the entry unless it is held; returns the bytes that were freed.
uint64_t hth_residency_drop(hth_residency *residency, const hth_id *id, const char *form);
// hth_residency_evict drops idle entries, least recently used first, until at least `bytes` were
// freed or none is left.
uint64_t hth_residency_evict(hth_residency *residency, uint64_t bytes);
// hth_residency_alloc is hth_pool_alloc that evicts idle entries until it succeeds.
hth_err hth_residency_alloc(hth_residency *residency, size_t bytes, hth_pool_use use, void **out);
void hth_residency_stats_get(const hth_residency *residency, hth_residency_stats *out);

#endif
