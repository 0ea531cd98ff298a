// SPDX-License-Identifier: Apache-2.0
// engine/train/queue/train_queue.h - the training jobs of an engine, at work in turns or waiting
// for memory; and those in the store that can go on. Engine's thread only.
#ifndef HTH_ENGINE_TRAIN_QUEUE_TRAIN_QUEUE_H
#define HTH_ENGINE_TRAIN_QUEUE_TRAIN_QUEUE_H

#include "engine/train/checkpoint/checkpoint.h"
#include "engine/train/queue/train_fair.h"
#include "engine/train/train.h"
#include "runtime/tenants/tenant.h"

struct hth_train_queue {
    hth_models *ms;
    void (*answer)(hth_request *request, hth_err err); // gives a request back with its result
    hth_train_entry *first, *active; // active: whose turn it is or was, NULL: none
    hth_train_fair fair;             // who begins next, with how much memory
    hth_turns turns;                 // whose step is next (train_turn.c)
    uint64_t ran_ns;                 // what all their slices took
    hth_turns_tenant nobodys;        // of jobs without a tenant
    uint64_t ranks;                  // counts those of groups whose lead is elsewhere
    bool draining;                   // no job begins any more
    uint64_t freed;                  // counts the times that memory was given back
    uint64_t awaited_bytes;          // by requests, when that was last looked at
    void (*event)(void *ctx, const char *job, const char *what, uint64_t done,
                  uint64_t total); // NULL: nobody listens
    void *event_ctx;
    hth_timeline *timeline; // of the last job that ended or was paused; NULL: none
    char timeline_job[HTH_CHECKPOINT_JOB], timeline_tenant[HTH_TENANT];
};

// hth_train_queue_add takes the request "train"; it is answered when its job ends. With {"detach"}
// its progress tells {"state":..} once, as soon as the job works or waits for memory: who asked for
// it need not wait then, and a record tells how it ended, even if it never came to a step.
void hth_train_queue_add(hth_train_queue *queue, hth_request *request);
// hth_train_queue_resume adds the jobs that were interrupted by the end of an earlier engine; their
// results go nowhere but to the store.
void hth_train_queue_resume(hth_train_queue *queue);
// hth_train_queue_slice runs one step of the job whose turn it is, or makes the next one ready:
// jobs at work take turns, those that wait begin in order of arrival, as soon as the device has
// memory for them. false: there is nothing to do now.
bool hth_train_queue_slice(hth_train_queue *queue);
// hth_train_queue_stop ends all jobs; those with checkpoints are taken up by
// hth_train_queue_resume, except paused ones.
void hth_train_queue_stop(hth_train_queue *queue);

// hth_train_queue_drain ends all jobs with a checkpoint of where they are, from which
// hth_train_queue_resume goes on, and says so to who waits for them. Those added later are refused.
void hth_train_queue_drain(hth_train_queue *queue);

// hth_train_queue_query answers "jobs", "timeline" (of the job that last had a step measured), and
// "job", "cancel", "pause", "resume" of {"job"} by r->json. With {"id"}
// the job of that number is meant, and of that name no other. "job" and
// "resume" change the job's {"budget"} when there is one; with {"points"} a "job" tells that many
// losses at most.
hth_err hth_train_queue_query(hth_train_queue *queue, hth_request *request);

#endif
