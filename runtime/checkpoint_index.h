// SPDX-License-Identifier: Apache-2.0
// runtime/checkpoint_index.h - training jobs by the checkpoints that a store has of them, which are
// versions of a model called "RESULT.checkpoint".
#ifndef HTH_RUNTIME_CHECKPOINT_INDEX_H
#define HTH_RUNTIME_CHECKPOINT_INDEX_H

#include "runtime/tenants/tenant_rules.h"
#include "modelstore/store.h"

#include <jansson.h>

#define HTH_CHECKPOINT_TAIL HTH_STORE_TAIL_CHECKPOINT
#define HTH_CHECKPOINT_NAME 240 // bytes of a checkpoint's name

// hth_checkpoint_forget removes a version of a checkpoint (0: all), and what only that needed.
hth_err hth_checkpoint_forget(hth_store *store, const char *name, int version);

// Jobs by name, which is that of the model that they make; HTH_CHECKPOINT_JOB bytes hold one.
#define HTH_CHECKPOINT_JOB 208
// hth_checkpoint_job is the name of the job with these arguments.
hth_err hth_checkpoint_job(const json_t *args, char out[HTH_CHECKPOINT_JOB]);
// hth_checkpoint_tenant is whose job it is by its checkpoint's arguments (NULL: there are none).
void hth_checkpoint_tenant(const json_t *args, char out[HTH_TENANT]);
// hth_checkpoint_owner stores whose the job is by a version's meta; false: that is no checkpoint's.
bool hth_checkpoint_owner(const char *meta, char out[HTH_TENANT]);
// hth_checkpoint_none is what is answered about a job without a checkpoint: HTH_ENOENT.
hth_err hth_checkpoint_none(const char *job);
// hth_checkpoint_is tells a training job's checkpoint from a model of such a name. Any thread.
bool hth_checkpoint_is(hth_store *store, const char *model);
// hth_checkpoint_model refuses with HTH_EINVAL what can be no model's name or alias, for a job's
// checkpoints have, or could have, that name.
hth_err hth_checkpoint_model(const char *name);
// hth_checkpoint_find reads the meta of a job's checkpoint. HTH_ENOENT: there is none, perhaps
// because nothing can have such a name.
hth_err hth_checkpoint_find(hth_store *store, const char *job, json_t **doc);
// hth_checkpoint_args reads of that only the job as it was asked for ("job"), which takes no longer
// however many losses there are; the caller's. HTH_ENOENT as above.
hth_err hth_checkpoint_args(hth_store *store, const char *job, json_t **args);
// hth_checkpoint_of tells whether `stored`, the arguments in the checkpoint of that name, are those
// of the job with `args`, or an older job's: they have its number, or the job goes on from what
// there is ("resume"). died: a job without a number was at work in a process that died, and what
// there is counts as its own.
bool hth_checkpoint_of(const json_t *args, bool died, const json_t *stored);
// hth_checkpoint_list stores a JSON array of the names of all jobs that have one, in the order in
// which they were submitted.
hth_err hth_checkpoint_list(hth_store *store, json_t **names);
// hth_checkpoint_expire removes the checkpoints of jobs that were canceled `age_ns` ago or before.
hth_err hth_checkpoint_expire(hth_store *store, uint64_t now_ns, uint64_t age_ns);
// hth_checkpoint_unused refuses with HTH_EBUSY where a job that has a checkpoint, and was not
// canceled, is to go on with this version (0: any) of the model, and names the job.
hth_err hth_checkpoint_unused(hth_store *store, const char *model, int version);
// hth_checkpoint_no_dataset does so where it is to go on with this dataset of this tenant.
hth_err hth_checkpoint_no_dataset(hth_store *store, const char *dataset, const char *tenant);
// hth_checkpoint_rm is hth_checkpoint_drop by name; there need not be one.
hth_err hth_checkpoint_rm(hth_store *store, const char *job);

// A note says why a job that has a checkpoint does not run; none ("") says that it was interrupted.
#define HTH_CHECKPOINT_NOTE 600
void hth_checkpoint_note_set(hth_store *store, const char *job, const char *note);
void hth_checkpoint_note_get(hth_store *store, const char *job, char note[HTH_CHECKPOINT_NOTE]);

#endif
