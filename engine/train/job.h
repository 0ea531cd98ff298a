// SPDX-License-Identifier: Apache-2.0
// engine/train/job.h - a job at work, whatever it computes: what the queue (queue/) asks of it.
//
// Design notes
// The queue decides which job computes next, pauses jobs, charges tenants, and keeps logs and
// records. What it needs of a job to do so is this table: a training job has one
// (train_job_ops.c), K-means another (kmeans/). A job's arguments say of which kind it is (queue/
// train_kind.h); all else about jobs is the same for all kinds. Engine's thread only.
#ifndef HTH_ENGINE_TRAIN_JOB_H
#define HTH_ENGINE_TRAIN_JOB_H

#include "runtime/checkpoint_index.h"
#include "runtime/request.h"

#include <jansson.h>

typedef struct hth_job hth_job;

typedef struct hth_job_ops {
    void (*free)(hth_job *job);
    // slice makes a step, or part of one. After the last one the result is stored, the request has
    // its answer (r->json), and *done; with an error there was no memory for the answer.
    // HTH_ETIMEDOUT: its time limit is over, with a checkpoint.
    hth_err (*slice)(hth_job *job, bool *done);
    // The arguments, with what was chosen, and what was planned ({"peak_bytes", "budget_bytes",
    // "host_bytes", "predicted_ms"}): the job's.
    const json_t *(*arguments)(const hth_job *job);
    const json_t *(*planned)(const hth_job *job);
    // Where it stands, as a checkpoint's meta does, and its times ({"memory_bytes", "step_ms",
    // ..}): the caller's. NULL: no memory.
    json_t *(*state)(const hth_job *job);
    json_t *(*times)(const hth_job *job);
    uint64_t (*device_bytes)(const hth_job *job); // that it holds
    // What a slice is predicted to take, and all that are left; for how long it will have the
    // device, by what it took so far. When that is over depends on other jobs (train_turn.c).
    uint64_t (*predicted_ns)(const hth_job *job);
    uint64_t (*left_ns)(const hth_job *job);
    double (*seconds_left)(const hth_job *job);
    void (*number)(hth_job *job, uint64_t id); // gives it its number
    // Checkpoints: save makes one; saved is the step of the last one, -1: there is none. leave
    // begins one with which it goes on as it is, and left tells when that is written.
    hth_err (*save)(hth_job *job);
    int64_t (*saved)(const hth_job *job);
    hth_err (*leave)(hth_job *job);
    bool (*left)(hth_job *job, hth_err *err);
    // What does not go as it should while it goes on; "": nothing.
    const char *(*trouble)(const hth_job *job);
    // ---- optional
    double (*link)(const hth_job *job); // share of its time that its copies take; NULL: none
    // A job is done and neither its result nor a checkpoint could be stored: the next slice tries
    // again, for another request perhaps. NULL: that never is so.
    bool (*stuck)(const hth_job *job);
    void (*serve)(hth_job *job, hth_request *request);
    // Another budget, and more or less memory, while it is at work. NULL: it keeps what it has.
    hth_err (*budget)(hth_job *job, const char *budget);
    hth_err (*more)(hth_job *job);
    hth_err (*less)(hth_job *job, uint64_t bytes);
    bool (*resized)(hth_job *job, hth_err *err);
    void (*keep_size)(hth_job *job);
} hth_job_ops;

struct hth_job {
    const hth_job_ops *ops;
};

// job.c: the table's functions, with what is so where one is missing.
void hth_job_free(hth_job *job); // NULL is allowed
hth_err hth_job_slice(hth_job *job, bool *done);
const json_t *hth_job_args(const hth_job *job);
const json_t *hth_job_planned(const hth_job *job);
json_t *hth_job_state(const hth_job *job);
json_t *hth_job_times(const hth_job *job);
uint64_t hth_job_device_bytes(const hth_job *job);
uint64_t hth_job_predicted_ns(const hth_job *job);
uint64_t hth_job_left_ns(const hth_job *job);
double hth_job_seconds_left(const hth_job *job);
void hth_job_number(hth_job *job, uint64_t id);
hth_err hth_job_save(hth_job *job);
int64_t hth_job_saved(const hth_job *job);
hth_err hth_job_leave(hth_job *job);
bool hth_job_left(hth_job *job, hth_err *err);
const char *hth_job_trouble(const hth_job *job);
double hth_job_link(const hth_job *job);
bool hth_job_stuck(const hth_job *job);
void hth_job_serve(hth_job *job, hth_request *request);
hth_err hth_job_budget(hth_job *job, const char *budget);
hth_err hth_job_more(hth_job *job);
hth_err hth_job_less(hth_job *job, uint64_t bytes);
bool hth_job_resized(hth_job *job, hth_err *err);
void hth_job_keep_size(hth_job *job);

// ---- jobs that cannot store what they have, of every kind

// Who is told of it: who waits for the job (`r`), and who listens and its log (train.h).
typedef struct hth_job_told {
    hth_request *r;
    const struct hth_train_events *events;
    const char *job;
    uint64_t done, total; // steps
} hth_job_told;

// hth_job_unwritten: a checkpoint could not be written, as hth_fail says. hth_job_unstored: nor
// could the result, and `why`; the job waits for room. `trouble` becomes that sentence. Of
// checkpoints it is told once, until one is written and trouble is "" again.
void hth_job_unwritten(const hth_job_told *told, char trouble[HTH_CHECKPOINT_NOTE]);
void hth_job_unstored(const hth_job_told *told, const char *why, char trouble[HTH_CHECKPOINT_NOTE]);
// hth_job_unremoved: the checkpoint of a job whose result is stored could not be removed, as
// hth_fail says. It gets a note, so that no server goes on from it.
void hth_job_unremoved(hth_store *store, const char *job);

#endif
