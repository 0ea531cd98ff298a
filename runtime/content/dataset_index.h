// SPDX-License-Identifier: Apache-2.0
// runtime/content/dataset_index.h - datasets that a store has: versions of "NAME@TENANT.dataset",
// with a tensor for each of theirs and no graph.
//
// A dataset belongs to a tenant, in whose name space its name is: others neither see it nor can use
// it, and may call one of their own the same. Tensors are stored by content: the same ones again
// cost nothing. Any thread; all of it may block for as long as the disk takes.
#ifndef HTH_RUNTIME_CONTENT_DATASET_INDEX_H
#define HTH_RUNTIME_CONTENT_DATASET_INDEX_H

#include "modelstore/store.h"
#include "runtime/tenants/owner.h"

#include <jansson.h>

#define HTH_DATASET_TAIL HTH_STORE_TAIL_DATASET
#define HTH_DATASET_NAME 201 // bytes of a version's name, with its end

// Who asks: a tenant, and whether it may see and remove others' as well.
typedef struct hth_dataset_who {
    const char *tenant; // NULL: the server's own
    bool admin;
} hth_dataset_who;

// hth_dataset_is tells a dataset from a model of such a name.
bool hth_dataset_is(hth_store *store, const char *model);
// hth_dataset_named tells by a version's name alone whether it is a dataset's, *mine: the tenant's.
bool hth_dataset_named(const char *model, const char *tenant, bool *mine);
// hth_dataset_is_not refuses a dataset where a model is asked for: HTH_ENOENT, as if there were
// none.
hth_err hth_dataset_is_not(hth_store *store, const char *model);
// hth_dataset_model refuses with HTH_EINVAL what can be no model's name, for it looks like a
// dataset's.
hth_err hth_dataset_model(const char *name);

// What is put: `about` is the client's description, a JSON object or NULL; store_bytes: what the
// tenant may have in models and datasets.
typedef struct hth_dataset_put {
    const char *name;
    const char *tenant;
    const json_t *about;
    const hth_put_tensor *tensors;
    int n;
    int64_t store_bytes;
} hth_dataset_put;
// hth_dataset_store makes or replaces a dataset. HTH_EINVAL: no such name, no tensors, or tensors
// whose first dimensions differ; HTH_EDENIED: the tenant has too many bytes, with the numbers;
// HTH_EBUSY: a job uses the one that would be replaced.
hth_err hth_dataset_store(hth_store *store, const hth_dataset_put *put, hth_progress_fn progress,
                          void *ctx, hth_put_result *out);
// hth_dataset_file is hth_dataset_store of the safetensors file that `fd` is open on (the
// caller's).
hth_err hth_dataset_file(hth_store *store, const hth_dataset_put *put, int fd, const char *shown,
                         hth_progress_fn progress, void *ctx, hth_put_result *out, uint64_t *bytes);

// hth_dataset_get reads the newest version of a dataset. HTH_ENOENT: the tenant has none of that
// name.
hth_err hth_dataset_get(hth_store *store, const char *name, const char *tenant, hth_manifest *out);
// hth_dataset_hold is the same, and keeps it from being removed or replaced until hth_store_let_go
// (modelstore/hold.h).
hth_err hth_dataset_hold(hth_store *store, const char *name, const char *tenant, hth_manifest *out,
                         int *fd);
// hth_dataset_claim keeps it for a job that was submitted and waits, perhaps one of several: it is
// neither removed nor replaced until hth_dataset_unclaim (-1 is allowed), or the end of the
// process. HTH_EBUSY: that happens now.
hth_err hth_dataset_claim(hth_store *store, const char *name, const char *tenant, int *fd);
void hth_dataset_unclaim(int fd);
// hth_dataset_list describes the datasets that `who` may see: {"datasets": [{"name", "tenant",
// "bytes", "samples", "format", "created_ns", "tensors": [{"name", "dtype", "shape"}],
// "classes"}]}.
hth_err hth_dataset_list(hth_store *store, hth_dataset_who who, json_t **out);
// hth_dataset_remove removes a dataset and what only it needed. `owner`: whose, NULL: the caller's.
// HTH_ENOENT; HTH_EBUSY: a job uses it, waits for it, or needs it to resume, and is named.
hth_err hth_dataset_remove(hth_store *store, const char *name, const char *owner,
                           hth_dataset_who who);

#endif
