// SPDX-License-Identifier: Apache-2.0
// server/checkpoint.h - a training job's state in the store, as the latest version of a model
// called "RESULT.checkpoint": parameters, running statistics, optimizer state, and in its meta the
// job, the step and the losses so far. A version is put atomically, so that a process killed at any
// moment leaves the last whole one. Engine's thread only.
#ifndef HTH_SERVER_CHECKPOINT_H
#define HTH_SERVER_CHECKPOINT_H

#include "server/train.h"

// What a checkpoint says beside the tensors.
typedef struct hth_checkpoint {
    const json_t *args;  // the job as it was asked for
    int64_t step, steps; // done, in all
    json_t *history;     // one entry per step done
} hth_checkpoint;

hth_err hth_checkpoint_save(hth_store *store, const hth_train_spec *spec, hth_trainer *t,
                            const hth_checkpoint *c);
// hth_checkpoint_load brings trainer, c->step and c->history (which is empty) to the last
// checkpoint; without one they stay as they are. HTH_EINVAL: it is of another job; budget, policy
// and the like may differ.
hth_err hth_checkpoint_load(hth_store *store, const hth_train_spec *spec, hth_trainer *t,
                            hth_checkpoint *c);
// hth_checkpoint_drop removes the checkpoint of a job that is done.
hth_err hth_checkpoint_drop(hth_store *store, const hth_train_spec *spec);

#endif
