// SPDX-License-Identifier: Apache-2.0
// runtime/content/dataset_own.h - datasets without a name: those that came with a training job, and
// go with it.
//
// A client stores what it sends with a job under a name of its own making, "upload-" and 24 hex
// digits, and submits the job then. One that dies in between leaves a dataset that nobody asked
// for: it expires store.upload_seconds after it was stored last, like other content that nothing
// uses.
#ifndef HTH_RUNTIME_CONTENT_DATASET_OWN_H
#define HTH_RUNTIME_CONTENT_DATASET_OWN_H

#include "runtime/content/dataset_index.h"

#define HTH_DATASET_OWN 32 // bytes of such a name, with its end

// hth_dataset_own_is tells whether a dataset's name is one of these.
bool hth_dataset_own_is(const char *name);
// hth_dataset_own_name is the name of what came with job `id` as this argument ("data", "eval",
// "start").
void hth_dataset_own_name(uint64_t id, const char *key, char out[HTH_DATASET_OWN]);

// hth_dataset_own_drop removes one unless a job needs it: what was sent with several is one
// dataset. A job that has claimed it lets go of it first. The sentence of an earlier error stays.
void hth_dataset_own_drop(hth_store *store, const char *name, const char *tenant);
// hth_dataset_drop_own does so for those of a job ({"dataset", "own": true}), given its arguments.
void hth_dataset_drop_own(hth_store *store, const json_t *args, const char *tenant);
// hth_dataset_own_expire removes those that are older than `age_ns`, and that no job needs.
hth_err hth_dataset_own_expire(hth_store *store, uint64_t now_ns, uint64_t age_ns);

#endif
