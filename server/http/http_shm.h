// SPDX-License-Identifier: Apache-2.0
// server/http/http_shm.h - regions of POSIX shared memory that clients register over HTTP.
//
// Design notes
// A region belongs to the tenant that registered it, and its name is one of that tenant's names:
// for all others it is not there, whatever they ask. An object is mapped when the user whose
// program asks may read and write it, not when hearthd may: nothing else would keep a token from
// being a key to all of /dev/shm. Loop's thread only, but for hth_shm_range and hth_shm_rele;
// memory of a held region may be used by any.
#ifndef HTH_SERVER_HTTP_HTTP_SHM_H
#define HTH_SERVER_HTTP_HTTP_SHM_H

#include "engine/engine.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

typedef struct hth_shm hth_shm;               // the regions of one server
typedef struct hth_shm_region hth_shm_region; // one of them

// Who asks.
typedef struct hth_shm_asker {
    const char *tenant; // NULL: has no regions
    bool admin;         // sees and removes those of all tenants
} hth_shm_asker;

// hth_shm_open: `allowed` false: nothing can be registered, and there are no regions.
// `engine`, which must outlive it, is told of them.
hth_err hth_shm_open(bool allowed, hth_engine *engine, hth_shm **out);
void hth_shm_close(hth_shm *shm);            // no region may be held; NULL is allowed
hth_err hth_shm_allowed(const hth_shm *shm); // HTH_ENOTSUP: says how they are

// hth_shm_register maps [offset, offset + bytes) of the object `key` for `tenant`, if that is
// `uid`'s to read and write, as the object's mode says for its owner or for others. HTH_ENOTSUP:
// not allowed; HTH_EEXIST: the tenant has a region of that name; HTH_EBUSY: it has too many, or too
// many bytes (shm.regions, shm.bytes); HTH_EIO: there is no such object, or not for that user;
// HTH_EINVAL: it is not that large.
hth_err hth_shm_register(hth_shm *shm, const char *tenant, uid_t uid, const char *name,
                         const char *key, uint64_t offset, uint64_t bytes);
// hth_shm_unregister forgets the asker's region of that name, or of an admin who has none the
// others'; `name` "": all that the asker sees. Requests in flight keep them.
void hth_shm_unregister(hth_shm *shm, const hth_shm_asker *asker, const char *name);
// hth_shm_status lists a region (all: `name` "") as far as the asker sees it; those of others with
// their "tenant". HTH_ENOENT.
hth_err hth_shm_status(const hth_shm *shm, const hth_shm_asker *asker, const char *name,
                       json_t **out);

// hth_shm_range stores the address of `bytes` from `offset` on in a region of `tenant` (NULL: who
// has none), and the region, held until hth_shm_rele. HTH_ENOENT, HTH_EINVAL.
hth_err hth_shm_range(hth_shm *shm, const char *tenant, const char *name, uint64_t offset,
                      uint64_t bytes, char **out, hth_shm_region **held);
void hth_shm_rele(hth_shm_region *region);

#endif
