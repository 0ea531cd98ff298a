// SPDX-License-Identifier: Apache-2.0
// client/content/hash.h - the ids of what a client sends, found while the first of it is sent.
#ifndef HTH_CLIENT_CONTENT_HASH_H
#define HTH_CLIENT_CONTENT_HASH_H

#include "client/content/objects.h"

typedef struct hth_content_ids hth_content_ids;

// hth_content_ids_begin has threads read objects[0 .. n) and set their ids; all else of them is
// set. `read` is hth_content_source's. On success the caller ends them by hth_content_ids_end,
// while objects and ctx are there; on error *out is NULL.
hth_err hth_content_ids_begin(hth_content_object *objects, int n,
                              hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n),
                              void *ctx, hth_content_ids **out);
// hth_content_ids_at is which object the k-th is, in the order in which they are to be sent.
int hth_content_ids_at(const hth_content_ids *ids, int k);
// hth_content_ids_wait waits, for `ms` at most, until more than the first `had` objects of that
// order have their ids, and stores how many have. What reading them fails with is what it fails
// with.
hth_err hth_content_ids_wait(hth_content_ids *ids, int had, uint64_t ms, int *known);
void hth_content_ids_end(hth_content_ids *ids); // NULL is allowed; blocks for a piece

#endif
