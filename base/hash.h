// SPDX-License-Identifier: Apache-2.0
// base/hash.h - uthash on hth_alloc, without its exit() when memory is out.
//
// After HASH_ADD*, HTH_HASH_ADDED(element) says whether there was memory for it.
#ifndef HTH_BASE_HASH_H
#define HTH_BASE_HASH_H

#include "base/alloc.h"

#define HASH_NONFATAL_OOM     1
#define uthash_malloc(bytes)  hth_alloc(bytes)
#define uthash_free(p, bytes) hth_free(p)
#include <uthash.h>

#define HTH_HASH_ADDED(element) ((element)->hh.tbl != NULL)

#endif
