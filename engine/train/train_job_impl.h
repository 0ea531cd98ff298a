// SPDX-License-Identifier: Apache-2.0
// engine/train/train_job_impl.h - the inside of a training job: train_open.c (what it is made of,
// and its plans), train_job.c (its steps, and what is told of them), train_job_times.c (what those
// take), train_job_ops.c (what the queue asks of it).
#ifndef HTH_ENGINE_TRAIN_TRAIN_JOB_IMPL_H
#define HTH_ENGINE_TRAIN_TRAIN_JOB_IMPL_H

#include "engine/train/checkpoint/checkpoint_write.h"
#include "engine/train/job.h"
#include "engine/train/train_eval.h"
#include "engine/train/train_score.h"
#include "group/group.h"
#include "runtime/arguments.h"

typedef struct hth_train_group hth_train_group; // train_group.c

struct hth_train_job {
    hth_job job; // first
    hth_models *ms;
    hth_request *r;
    json_t *args;   // what spec points into
    json_t *memory; // of a whole batch's step
    json_t *had;    // what it was planned for, to go on with after a pause (HTH_TRAIN_HAD)
    char model[HTH_CHECKPOINT_JOB + 16]; // with its version
    hth_train_spec spec;
    hth_train_data data;
    hth_trainer *trainer;
    int64_t epoch, at, step, steps; // epoch and first sample of the next batch; steps in all
    int64_t begun;                  // step of the checkpoint that it began with, -1: none
    uint64_t first_ns;              // when it made its first step here, 0: it has not
    uint64_t slices_ns;             // what all slices since then took
    int64_t first;                  // .. and how many it had then
    int version;                    // of the result, 0: there is none yet
    hth_checkpointer *writer;
    int room; // kept for the result (hth_store_reserve), -1: nothing is
    // why the last checkpoint could not be written, "": it could; or why the result cannot
    char trouble[HTH_CHECKPOINT_NOTE];
    // why it has ended, which its next slice says: a step that was certain at a rest, or no memory
    char lost[HTH_CHECKPOINT_NOTE]; // "": it has not
    hth_err lost_err;
    int64_t saved;    // step of the last checkpoint that is known to be written, -1: none
    bool writing;     // one was begun, and what became of it is not known yet
    uint64_t due_ns;  // when the next one is due by time
    uint64_t ran_ms;  // of its time limit, before its first step here
    bool stuck;       // all steps are made, and the result is nowhere but here
    bool early;       // it ends before its last step: no epoch was better for spec.patience
    json_t *history;  // [[loss, ms, lr], ..]
    json_t *shards;   // of several devices (group/sequence.h), of an earlier start perhaps
    json_t *held_out; // [{"step", "epoch", "set", "loss", "accuracy", ..}, ..]
    int n_evaluators, evaluating; // evaluating: which of them is at work, n_evaluators: none
    hth_evaluator *evaluator[2];
    const char *set[2]; // what they evaluate
    hth_train_events events;
    double loss, step_ms, lr; // of the last step
    int64_t replanned;        // the step of the last better plan that was told of, 0: none
    hth_train_group *group;   // NULL: it is alone
    int64_t planned;          // samples of a member's shard that it was planned for first
    hth_rank rank;            // ranks > 0: the group's other members are elsewhere
    char *budget_next;        // a rank's, from the next round on; NULL: the one that it has
};

extern const hth_job_ops hth_train_job_ops; // train_job_ops.c

// hth_train_job_first: the job's first step begins, and with it its time.
void hth_train_job_first(hth_train_job *job);
// hth_train_job_rest brings a group's member to a whole step, from which it can be saved or left.
// HTH_EINVAL: the step that was certain has ended the job, which its next slice says.
hth_err hth_train_job_rest(hth_train_job *job);
// hth_train_job_place brings the job to where `step` steps end: epoch, next sample, evaluation.
void hth_train_job_place(hth_train_job *job, int64_t step);

// hth_train_job_replanned writes to the job's log, and tells its followers, that a better plan took
// over after the last step, if one did.
void hth_train_job_replanned(hth_train_job *job);

// hth_train_job_best is the best evaluation so far, by what spec.keep compares.
static inline hth_best hth_train_job_best(const hth_train_job *job)
{
    return hth_train_best(job->held_out, job->spec.keep == HTH_KEEP_BEST_ACCURACY);
}

// hth_train_job_shards are those to tell; NULL: all its steps were of one device.
static inline json_t *hth_train_job_shards(const hth_train_job *job)
{
    return job->group != NULL || json_array_size(job->shards) > 0 ? job->shards : NULL;
}

// train_rank.c: a member whose group's others are jobs of other servers.
// hth_train_rank_open reads whether the job is one.
hth_err hth_train_rank_open(hth_train_job *job);
// hth_train_rank_join joins by the socket that came with its request.
hth_err hth_train_rank_join(const hth_train_job *job, hth_group_spec *spec, hth_group **out);

// train_group.c: a job as a member of a group, and the way from one global step to the next.

typedef enum hth_train_group_event {
    HTH_TRAIN_GROUP_NOTHING,
    HTH_TRAIN_GROUP_STEPPED, // job->loss and job->step_ms are the step's
    HTH_TRAIN_GROUP_MOVED,   // the job goes on from another step, whose state it has now: job->step
    HTH_TRAIN_GROUP_OVER,    // the lead has ended the group, or somebody before the first step
} hth_train_group_event;

// hth_train_group_prepare makes the step of the member's first shard ready.
hth_err hth_train_group_prepare(hth_train_job *job);
// hth_train_group_open joins; everything else of the job is ready. The descriptor is its request's.
hth_err hth_train_group_open(hth_train_job *job);
void hth_train_group_close(hth_train_group *group); // leaves; NULL is allowed
// hth_train_group_slice takes the next part of a step, or waits a moment for the others.
hth_err hth_train_group_slice(hth_train_job *job, hth_train_group_event *event);
// hth_train_group_at_work: a round is.
bool hth_train_group_at_work(const hth_train_job *job);
// hth_train_group_rest brings the job to a whole step: the one in progress is undone, or if it is
// certain already made (HTH_TRAIN_GROUP_STEPPED).
hth_err hth_train_group_rest(hth_train_job *job, hth_train_group_event *event);
// hth_train_group_wait waits for as long as a slice does.
void hth_train_group_wait(const hth_train_job *job);
// hth_train_group_park leaves the group's state in the region if nobody else has it.
hth_err hth_train_group_park(hth_train_job *job);
// hth_train_group_over is why the group has ended; HTH_OK: its job is done.
hth_err hth_train_group_over(const hth_train_job *job);
// hth_train_group_loss is what a step that others made with the job cost, for its history.
double hth_train_group_loss(const hth_train_job *job, int64_t step, double *ms);
// hth_train_group_lead: the job is one, or no member of a group.
bool hth_train_group_lead(const hth_train_job *job);
// hth_train_group_budget has the other members plan for the job's budget, too.
void hth_train_group_budget(hth_train_job *job);
// hth_train_group_planned is that, after a new budget: this member may take more samples by now.
void hth_train_group_planned(hth_train_job *job);
// hth_train_group_row is hth_group_members' document, the caller's. NULL: no group.
json_t *hth_train_group_row(const hth_train_job *job);

#endif
