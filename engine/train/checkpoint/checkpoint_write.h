// SPDX-License-Identifier: Apache-2.0
// engine/train/checkpoint/checkpoint_write.h - writes a job's checkpoints while it goes on.
//
// Design notes
// Between two steps the slots are copied into host memory; a thread of the writer's own puts that
// copy into the store (hashing, files, fsync, the index). There is one copy: a checkpoint that is
// due while the last one is being written waits for it. Where there is no memory for a copy, and
// under --spill, whose jobs may have more state than there is memory, it is written at once, from
// where the slots are. The one before stays until a step from the new one had a finite loss: a
// state can be finite and yet lead nowhere. Used by the engine's thread.
#ifndef HTH_ENGINE_TRAIN_CHECKPOINT_CHECKPOINT_WRITE_H
#define HTH_ENGINE_TRAIN_CHECKPOINT_CHECKPOINT_WRITE_H

#include "engine/train/checkpoint/checkpoint.h"

typedef struct hth_checkpointer hth_checkpointer;

hth_err hth_checkpointer_open(hth_store *store, hth_checkpointer **out);
void hth_checkpointer_close(
    hth_checkpointer *checkpointer); // writes what was begun; NULL is allowed

// hth_checkpointer_save begins a checkpoint of `trainer` as it is now. The error may be that of the
// one before.
hth_err hth_checkpointer_save(hth_checkpointer *checkpointer, const hth_train_spec *spec,
                              hth_trainer *trainer, const hth_checkpoint *checkpoint);
// hth_checkpointer_wait returns when nothing is being written. *saved: step of the last checkpoint
// that this writer has made, -1: none. The error is that of the last save.
hth_err hth_checkpointer_wait(hth_checkpointer *checkpointer, int64_t *saved);
// hth_checkpointer_poll is the same, but returns false at once while something is being written.
bool hth_checkpointer_poll(hth_checkpointer *checkpointer, int64_t *saved, hth_err *err);
// hth_checkpointer_proved says that the last one is good: the thread removes the one before.
void hth_checkpointer_proved(hth_checkpointer *checkpointer);
// hth_checkpointer_back says that the last one is bad: the one before, if there is one, is the last
// then.
hth_err hth_checkpointer_back(hth_checkpointer *checkpointer, const hth_train_spec *spec);

#endif
