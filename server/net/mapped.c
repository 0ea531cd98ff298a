// SPDX-License-Identifier: Apache-2.0
#include "server/net/mapped.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/settings.h"
#include "runtime/tenants/tenant_rules.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

// What all tenants may map together, as a multiple of what one may: address space is everybody's,
// and of mappings a process may have 65,530, unless vm.max_map_count says otherwise.
#define MAPPED_TENANTS 16

typedef struct mapped_row {
    char who[HTH_TENANT];
    uint64_t bytes;
    int regions;
    UT_hash_handle hh;
} mapped_row;

static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;
static mapped_row *mapped_rows; // of tenants that have something mapped
static uint64_t mapped_all;
static int mapped_regions; // of all

static mapped_row *mapped_find(const char *who)
{
    mapped_row *r;
    HASH_FIND_STR(mapped_rows, who, r);
    return r;
}

static hth_err mapped_may_regions(const mapped_row *row)
{
    if (row != NULL && row->regions >= HTH_MAPPED_REGIONS) {
        return hth_fail(HTH_EBUSY,
                        "%d buffers of shared memory are mapped: no tenant may have more",
                        row->regions);
    }
    return mapped_regions < MAPPED_TENANTS * HTH_MAPPED_REGIONS
               ? HTH_OK
               : hth_fail(HTH_EBUSY,
                          "all clients together have %d buffers of shared memory mapped: no more "
                          "are allowed",
                          mapped_regions);
}

static hth_err mapped_may(const mapped_row *row, uint64_t bytes)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_SHM_BYTES);
    uint64_t own = row != NULL ? row->bytes : 0, all = MAPPED_TENANTS * most;
    if (bytes > most || own > most - bytes) {
        return hth_fail(HTH_EBUSY,
                        "%" PRIu64 " bytes of shared memory are mapped, and %" PRIu64
                        " more exceed shm.bytes (%" PRIu64 ")",
                        own, bytes, most);
    }
    return mapped_all <= all && bytes <= all - mapped_all
               ? HTH_OK
               : hth_fail(HTH_EBUSY,
                          "all clients together have as much shared memory mapped as there may "
                          "be: %d times shm.bytes (%" PRIu64 ")",
                          MAPPED_TENANTS, most);
}

static hth_err mapped_add(mapped_row *row, const char *who, uint64_t bytes)
{
    if (row == NULL) {
        if ((row = hth_calloc(1, sizeof *row)) == NULL) {
            return hth_no_memory("shared memory");
        }
        snprintf(row->who, sizeof row->who, "%s", who);
        HASH_ADD_STR(mapped_rows, who, row);
        if (!HTH_HASH_ADDED(row)) {
            hth_free(row);
            return hth_no_memory("shared memory");
        }
    }
    row->bytes += bytes;
    row->regions++;
    mapped_all += bytes;
    mapped_regions++;
    return HTH_OK;
}

hth_err hth_mapped_take(const char *who, uint64_t bytes)
{
    pthread_mutex_lock(&mapped_lock);
    mapped_row *r = mapped_find(who);
    hth_err err = mapped_may(r, bytes);
    if (err == HTH_OK) {
        err = mapped_may_regions(r);
    }
    if (err == HTH_OK) {
        err = mapped_add(r, who, bytes);
    }
    pthread_mutex_unlock(&mapped_lock);
    return err;
}

void hth_mapped_give(const char *who, uint64_t bytes)
{
    pthread_mutex_lock(&mapped_lock);
    mapped_row *r = mapped_find(who);
    if (r != NULL) {
        r->bytes -= bytes;
        r->regions--;
        mapped_all -= bytes;
        mapped_regions--;
        if (r->regions == 0) {
            HASH_DEL(mapped_rows, r);
            hth_free(r);
        }
    }
    pthread_mutex_unlock(&mapped_lock);
}
