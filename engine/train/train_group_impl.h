// SPDX-License-Identifier: Apache-2.0
// engine/train/train_group_impl.h - a training job as a member of a group: train_group.c (who it is
// in it, and what comes next), train_round.c (its part of a step), train_shards.c (what the lead
// decides).
#ifndef HTH_ENGINE_TRAIN_TRAIN_GROUP_IMPL_H
#define HTH_ENGINE_TRAIN_TRAIN_GROUP_IMPL_H

#include "engine/train/train_job_impl.h"
#include "engine/train/trainer_impl.h"
#include "group/pass_times.h"

#include <pthread.h>

struct hth_train_group {
    hth_group *exchange;
    hth_trainer_sums sums;
    const float **summed; // per slot of `sums`, of the last round
    int member, members;
    bool at_work; // in `round`, with what its pass left
    bool passed;  // .. which there was
    bool broke;   // .. and ended in its middle with the round
    hth_group_round round;
    int64_t whole;       // samples of the last whole batch that it had some of; 0: none so far
    int64_t good, epoch; // most samples that were planned; whose order the data have, -1: none
    hth_pass_times passes, updates;
    uint64_t since_ns; // when anything came last
    // the lead's
    int64_t shards[HTH_GROUP_MEMBERS], changed; // of a whole batch; the step since when
    hth_shards_pace pace;
    int64_t judged;       // the last step that it has counted
    bool chosen;          // the last change was for a gain, and what it takes is not known yet
    double gain_us;       // .. of a step, as foreseen
    double round_us;      // that the last whole batch's round took
    bool recalled;        // what there was before it came is known
    const json_t *replay; // in their place; NULL: none
    hth_store *store;
    pthread_t thread; // the device's own
    // Held (hth_store_hold), or -1: while a round with sync_bn is at work; to have the next one.
    int turn, next;
};

static inline int64_t group_batch(const hth_train_job *job)
{
    return job->spec.batch < job->data.n_samples ? job->spec.batch : job->data.n_samples;
}

// group_at is the first sample of a step's batch, in the order of its epoch.
static inline int64_t group_at(const hth_train_job *job, int64_t step)
{
    return step % (job->steps / job->spec.epochs) * job->spec.batch;
}

// With sync_bn members wait for each other in the middle of a pass, so two groups on the same
// devices would do so crosswise: of all groups of this store one has its turn, for a round. Who
// waits for it has the next one: a lead comes back at once, and would have every turn.
#define HTH_TRAIN_GROUP_TURN "a round with sync-bn"
#define HTH_TRAIN_GROUP_NEXT "the next round with sync-bn"
// hth_train_group_turn takes it unless another one has it; hth_train_group_turn_over gives it back.
hth_err hth_train_group_turn(hth_train_job *job);
void hth_train_group_turn_over(hth_train_group *group);

// train_round.c
// hth_train_round_pass computes the member's samples and hands its gradients in.
hth_err hth_train_round_pass(hth_train_job *job);
// hth_train_round_update: the step is certain, and all members make the same update.
hth_err hth_train_round_update(hth_train_job *job);
// hth_train_round_undo: the round has broken.
hth_err hth_train_round_undo(hth_train_job *job);

// train_shards.c
// hth_train_shards_first stores the shards that members begin with in a step: even ones, or those
// given.
void hth_train_shards_first(const hth_train_job *job, int64_t step, int members,
                            int64_t n[HTH_GROUP_MEMBERS]);
// hth_train_shards_check looks at shards that were given. HTH_EINVAL.
hth_err hth_train_shards_check(const hth_train_job *job, int members);
// hth_train_shards_start decides everybody's shard of a step, and begins its round unless somebody
// is not there: *started.
hth_err hth_train_shards_start(hth_train_job *job, int64_t step, bool *started);
// hth_train_shards_took tells the lead what the round of a step took: the first one with other
// shards has what the change takes.
void hth_train_shards_took(hth_train_job *job, int64_t step, double us);

#endif
