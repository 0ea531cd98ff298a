// SPDX-License-Identifier: Apache-2.0
// engine/train/checkpoint/checkpoint.h - a training job's state in the store, as the latest
// version of a model called "RESULT.checkpoint": parameters, running statistics, optimizer state,
// and in its meta the job, the step and the losses so far. A version is put atomically, so that a
// process killed at any moment leaves the last whole one. Engine's thread only, where nothing else
// is said.
#ifndef HTH_ENGINE_TRAIN_CHECKPOINT_CHECKPOINT_H
#define HTH_ENGINE_TRAIN_CHECKPOINT_CHECKPOINT_H

#include "engine/train/train.h"
#include "runtime/checkpoint_index.h"

// What a checkpoint says in addition to the tensors.
typedef struct hth_checkpoint {
    const json_t *args;  // the job as it was asked for
    int64_t step, steps; // done, in all
    json_t *history;     // one entry per step done
    json_t *held_out;    // one per evaluation done
    uint64_t ran_ms;     // of the job's time limit
    json_t *shards;      // the sequence of a job of several devices (group/sequence.h); NULL: none
} hth_checkpoint;

// hth_checkpoint_doc makes a checkpoint's meta: {"job", "step", "steps", "history", "held_out",
// "ran_ms", "shards"}. NULL: no memory.
json_t *hth_checkpoint_doc(const hth_checkpoint *checkpoint);

// hth_checkpoint_name is the model that a job's checkpoints are versions of.
hth_err hth_checkpoint_name(const hth_train_spec *spec, char out[HTH_CHECKPOINT_NAME]);
// hth_checkpoint_result checks the name of what a job makes, and of its checkpoints. HTH_EINVAL: it
// can be no model's, or names a version, or is kept for checkpoints.
hth_err hth_checkpoint_result(const hth_train_spec *spec);
// hth_checkpoint_free_key: the losses of a job do not depend on this argument.
bool hth_checkpoint_free_key(const char *key);
// hth_checkpoint_put stores one; hth_checkpoint_trim removes those before the last. Any thread.
hth_err hth_checkpoint_put(hth_store *store, const char *name, const char *meta,
                           const hth_put_tensor *put, int count);
hth_err hth_checkpoint_trim(hth_store *store, const char *name);
// hth_checkpoint_back removes the last one if there is one before it, whose step *step becomes.
hth_err hth_checkpoint_back(hth_store *store, const char *name, int64_t *step);
// hth_checkpoint_load brings trainer, checkpoint->step, checkpoint->history, checkpoint->held_out
// and checkpoint->shards (which are empty) to the last checkpoint; without one they stay as they
// are. HTH_EINVAL: it is of another job; budget, policy and the like may differ.
hth_err hth_checkpoint_load(hth_store *store, const hth_train_spec *spec, hth_trainer *trainer,
                            hth_checkpoint *checkpoint);
// hth_checkpoint_accept stores that `job` was accepted: a checkpoint of step 0 without tensors,
// from which the job begins, so that it outlives a server that ends before it has made a step.
// Those of an older job of that name are removed. args: what was asked for.
hth_err hth_checkpoint_accept(hth_store *store, const char *job, const json_t *args);
// hth_checkpoint_drop removes the checkpoint of a job that is done.
hth_err hth_checkpoint_drop(hth_store *store, const hth_train_spec *spec);

#endif
