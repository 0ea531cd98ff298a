// SPDX-License-Identifier: Apache-2.0
// memmgr/pool.h - sub-allocates one device reservation. Called only by the device's owner thread;
// takes no locks.
#ifndef HTH_MEMMGR_POOL_H
#define HTH_MEMMGR_POOL_H

#include "device/device.h"

typedef struct hth_pool hth_pool;

typedef enum hth_pool_use {
    HTH_POOL_WEIGHT,
    HTH_POOL_ARENA,
    HTH_POOL_WORKSPACE,
    HTH_POOL_N_USES
} hth_pool_use;

typedef struct hth_pool_ledger {
    uint64_t reserved_bytes;
    uint64_t used_bytes[HTH_POOL_N_USES]; // as asked for, exact
    uint64_t padding_bytes;               // alignment
    uint64_t free_bytes, largest_free_bytes;
} hth_pool_ledger;

// hth_pool_open reserves `bytes` on `dev`, which must outlive the pool. On success the caller owns
// *out until hth_pool_close; on error *out is NULL and nothing is held. HTH_ENODEVMEM: does not fit
// now, evict and retry. HTH_ETOOBIG: larger than the device, never retry.
hth_err hth_pool_open(hth_device *dev, size_t bytes, hth_pool **out);
void hth_pool_close(hth_pool *pool); // NULL is allowed

// hth_pool_alloc gives `bytes` (> 0), HTH_DEVICE_ALIGN-aligned. HTH_ENODEVMEM: evict and retry;
// HTH_ETOOBIG: never.
hth_err hth_pool_alloc(hth_pool *pool, size_t bytes, hth_pool_use use, void **out);
void hth_pool_free(hth_pool *pool, void *ptr); // NULL is allowed
// hth_pool_holds says whether `ptr` lies in the pool's reservation.
bool hth_pool_holds(const hth_pool *pool, const void *ptr);
void hth_pool_ledger_get(const hth_pool *pool, hth_pool_ledger *out);
// aborts on a broken invariant; called on entry in debug builds
void hth_pool_check(const hth_pool *pool);

#endif
