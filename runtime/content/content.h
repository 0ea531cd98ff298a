// SPDX-License-Identifier: Apache-2.0
// runtime/content/content.h - content that clients name by ids, checked before it becomes a version
// of a model. Any thread; all of it blocks. The folder has what else a store holds by other names
// than a model's: datasets (dataset_index.h), aliases (alias.h), and the check of it all
// (verify.h).
//
// An id gives nobody content: a client may name what versions have that its role lets it read, and
// what it has uploaded itself.
#ifndef HTH_RUNTIME_CONTENT_CONTENT_H
#define HTH_RUNTIME_CONTENT_CONTENT_H

#include "client/content/objects.h"
#include "modelstore/upload.h"
#include "runtime/tenants/owner.h"

// Who asks, and whether its role lets it read models: its own, and those that are nobody's.
// Datasets are their owner's.
typedef struct hth_content_who {
    hth_caller caller;
    bool models;
} hth_content_who;

// hth_content_have, hth_content_put and hth_content_discard are those of modelstore/upload.h, for
// objects of the wire.
hth_err hth_content_have(hth_store *store, const hth_content_who *who,
                         const hth_content_object *objects, int n, uint64_t *there);
hth_err hth_content_put(hth_store *store, const char *owner, uint64_t most,
                        const hth_content_object *object, uint64_t at, const void *data, size_t n,
                        uint64_t *there);
hth_err hth_content_discard(hth_store *store, const char *owner, const hth_content_object *objects,
                            int n);

typedef struct hth_content_model {
    const char *name;
    hth_content_who who;
    const char *meta; // of a version that is copied, or ""; of a dataset what it was
    int max_batch;    // negative: not said
    const void *skeleton;
    size_t skeleton_bytes;
    const hth_content_object *objects;
    int n;
    const uint8_t *here; // bytes of the objects that came along, one after the other
    uint64_t here_bytes;
} hth_content_model;

// hth_content_commit makes a version of it: what an import of the file would have done. HTH_ENOENT:
// an object is neither in the store nor was it uploaded.
hth_err hth_content_commit(hth_store *store, const hth_content_model *model,
                           hth_progress_fn progress, void *ctx, hth_put_result *out);

// hth_content_dataset_put makes a dataset of it (runtime/content/dataset_index.h).
hth_err hth_content_dataset_put(hth_store *store, const hth_content_model *model,
                                hth_progress_fn progress, void *ctx, hth_put_result *out);

// hth_content_objects names what a version is made of as the wire does: *out points into the
// manifest, and is freed by hth_free.
hth_err hth_content_objects(const hth_manifest *manifest, hth_content_object **out);
// hth_content_manifest reads what a version ("name" or "name:version") is made of;
// hth_manifest_fini. *objects points into it, and is freed by hth_free.
hth_err hth_content_manifest(hth_store *store, const char *model, const hth_caller *caller,
                             hth_manifest *out, hth_content_object **objects);
// hth_content_get stores `n` bytes, from `at` on, of an object of a version. HTH_ENOENT: it has no
// such object. HTH_EDENIED, as of hth_content_manifest: it is another tenant's.
hth_err hth_content_get(hth_store *store, const char *model, const hth_caller *caller,
                        const hth_id *id, uint64_t at, void *dst, size_t n);

#endif
