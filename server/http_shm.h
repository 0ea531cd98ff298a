// SPDX-License-Identifier: Apache-2.0
// server/http_shm.h - regions of POSIX shared memory that clients register over HTTP. Loop's thread
// only; memory of a held region may be used by any.
#ifndef HTH_SERVER_HTTP_SHM_H
#define HTH_SERVER_HTTP_SHM_H

#include "server/engine.h"

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

typedef struct hth_shm hth_shm;               // the regions of one server
typedef struct hth_shm_region hth_shm_region; // one of them

// hth_shm_open: `allowed` false: nothing can be registered, and there are no regions.
// `engine`, which must outlive it, is told of them.
hth_err hth_shm_open(bool allowed, hth_engine *engine, hth_shm **out);
void hth_shm_close(hth_shm *s); // no region may be held; NULL is allowed

// hth_shm_register maps [offset, offset + bytes) of the object `key`. HTH_ENOTSUP: not allowed;
// HTH_EEXIST: the name is taken; HTH_EIO: it cannot be opened; HTH_EINVAL: it is not that large.
hth_err hth_shm_register(hth_shm *s, const char *name, const char *key, uint64_t offset,
                         uint64_t bytes);
// hth_shm_unregister forgets a region (all: `name` ""); requests in flight keep it.
void hth_shm_unregister(hth_shm *s, const char *name);
// hth_shm_status lists a region (all: `name` ""). HTH_ENOENT.
hth_err hth_shm_status(const hth_shm *s, const char *name, json_t **out);

// hth_shm_range stores the address of `bytes` from `offset` on, and the region, held until
// hth_shm_rele. HTH_ENOENT, HTH_EINVAL.
hth_err hth_shm_range(hth_shm *s, const char *name, uint64_t offset, uint64_t bytes, char **out,
                      hth_shm_region **held);
void hth_shm_rele(hth_shm_region *r);

#endif
