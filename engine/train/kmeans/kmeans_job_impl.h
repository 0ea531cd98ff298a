// SPDX-License-Identifier: Apache-2.0
// engine/train/kmeans/kmeans_job_impl.h - the inside of a K-means job: kmeans_open.c (what it is
// made of), kmeans_job.c (its iterations), kmeans_group.c (on several devices),
// kmeans_checkpoint.c, kmeans_tell.c (what is told of it).
#ifndef HTH_ENGINE_TRAIN_KMEANS_KMEANS_JOB_IMPL_H
#define HTH_ENGINE_TRAIN_KMEANS_KMEANS_JOB_IMPL_H

#include "engine/train/checkpoint/checkpoint.h"
#include "engine/train/kmeans/kmeans_job.h"
#include "engine/train/kmeans/kmeans_source.h"
#include "engine/train/kmeans/kmeans_spec.h"
#include "runtime/job_memory.h"

typedef struct kmeans_group kmeans_group; // kmeans_group.c

typedef struct kmeans_job {
    hth_job job; // first
    hth_models *ms;
    hth_request *r;
    json_t *args; // what spec points into
    hth_kmeans_spec spec;
    hth_train_events events;
    char name[HTH_CHECKPOINT_JOB]; // the job's, and the result's
    hth_kmeans_source source;
    float *start;     // (k, d); NULL: none was given
    uint32_t *labels; // (n); of a group, in its memory
    hth_kmeans_shard *shard;
    hth_kmeans_run *run;
    hth_kmeans_at at;
    kmeans_group *group; // NULL: it is on one device
    size_t kept;         // iterations before the run that is at work
    size_t seeded;       // centroids of k-means++ that were told of
    json_t *shards;      // those of each iteration (group/sequence.h); empty: on one device
    json_t *history;     // [[inertia, ms, 0], ..]
    json_t *planned;
    double predicted_ns; // an iteration
    // memory of the device
    hth_account account;
    hth_job_memory share;
    uint64_t bytes;
    int room; // kept for the result (hth_store_reserve), -1: nothing is
    // time
    size_t points;            // that are looked at between two looks at the clock
    uint64_t first_ns;        // when its first pass began here, 0: it has not
    uint64_t part_ns;         // of the present iteration's slices, or of its group's rounds
    uint64_t pass_ns;         // of the present pass's slices
    uint64_t ran_ms;          // of its time limit, before its first slice here
    uint64_t due_ns;          // when the next checkpoint is due
    double step_ms, total_ms; // of the last iteration; of all that were made here
    // checkpoints
    int64_t saved;
    char trouble[HTH_CHECKPOINT_NOTE];
    bool stuck;  // it is done, and the result is nowhere but here
    int version; // of the result, 0: there is none yet
} kmeans_job;

static inline kmeans_job *kmeans_job_of(const hth_job *job)
{
    return (kmeans_job *)job;
}

// kmeans_first: the job's first pass begins, and with it its time.
void kmeans_first(kmeans_job *job);
// kmeans_leads: it alone stores anything and is told of, as the lead of its group or without one.
static inline bool kmeans_leads(const kmeans_job *job)
{
    return job->r->member <= 1;
}

// kmeans_shards_of is what a checkpoint, and who asks, get of job->shards.
static inline json_t *kmeans_shards_of(const kmeans_job *job)
{
    return json_array_size(job->shards) > 0 ? job->shards : NULL;
}

// kmeans_job.c
extern const hth_job_ops kmeans_job_ops;
// kmeans_part computes until the slice is over, or a pass is. On the device's other threads.
hth_err kmeans_part(kmeans_job *job);

void kmeans_free(hth_job *job); // kmeans_open.c

// kmeans_group.c
// kmeans_group_check looks whether the points can be shared by a job's group, if it is a member of
// one. HTH_EINVAL.
hth_err kmeans_group_check(const kmeans_job *job);
int kmeans_group_members(const kmeans_job *job);
// kmeans_group_bytes is a member's part of what crosses.
uint64_t kmeans_group_bytes(const kmeans_job *job);
// kmeans_group_open joins, and sets job->labels; `iterations` are done before. On error the group
// is closed with the job.
hth_err kmeans_group_open(kmeans_job *job, size_t iterations);
void kmeans_group_close(kmeans_job *job); // leaves
// kmeans_group_slice computes part of a round, or waits a moment for the others; *over: the group
// has ended.
hth_err kmeans_group_slice(kmeans_job *job, bool *over);
// kmeans_group_row is hth_group_members' document, the caller's.
json_t *kmeans_group_row(const kmeans_job *job);
// kmeans_group_park leaves the group's state in its memory if nobody else has it.
void kmeans_group_park(const kmeans_job *job);

// kmeans_checkpoint.c
// kmeans_save makes a checkpoint of where the job stands. kmeans_load reads the last one:
// *centroids (k, d), to which saved->centroids points, is the caller's, NULL: none were chosen, or
// (job->r->crashes > 0) there is no checkpoint of this job.
hth_err kmeans_save(kmeans_job *job);
hth_err kmeans_load(kmeans_job *job, double **centroids, hth_kmeans_saved *saved);
// kmeans_publish stores the centroids as a model.
hth_err kmeans_publish(kmeans_job *job);

// kmeans_tell.c
void kmeans_log(const kmeans_job *job, const char *level, const char *text);
void kmeans_event(const kmeans_job *job);        // after an iteration
void kmeans_event_seeded(const kmeans_job *job); // after k-means++ has chosen a centroid
json_t *kmeans_state(const hth_job *job);
json_t *kmeans_times(const hth_job *job);
double kmeans_seconds_left(const hth_job *job);
// kmeans_iteration_ms is what one takes, by those that were made here, or as predicted.
double kmeans_iteration_ms(const kmeans_job *job);
uint64_t kmeans_ran_ms(const kmeans_job *job);
// kmeans_summary is the answer to who waits for the job.
hth_err kmeans_summary(kmeans_job *job);

#endif
