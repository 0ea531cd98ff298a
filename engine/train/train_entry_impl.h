// SPDX-License-Identifier: Apache-2.0
// engine/train/train_entry_impl.h - the inside of the queue of training jobs: train_queue.c (who is
// at work, and how jobs end), train_query.c (what is asked about them).
#ifndef HTH_ENGINE_TRAIN_TRAIN_ENTRY_IMPL_H
#define HTH_ENGINE_TRAIN_TRAIN_ENTRY_IMPL_H

#include "engine/train/checkpoint.h"
#include "runtime/tenants/tenant.h"
#include "engine/train/train_queue.h"

#define HTH_TRAIN_PAUSED "paused" // the note of a checkpoint whose job waits for `resume`
#define HTH_TRAIN_QUEUED "queued" // a job that waits for memory

struct hth_train_entry {
    hth_train_entry *next;
    hth_tenant *tenant; // who submitted it; NULL: nobody with limits
    hth_request *r;
    char job[HTH_CHECKPOINT_JOB];
    json_int_t id;                 // 0: it has no number yet
    bool leaves;                   // its client goes as soon as it is told that the job is taken
    bool taken;                    // that was told: the job works, or waits for memory
    hth_train_job *work;           // NULL: not at work
    hth_timeline *timeline;        // of its last measured step; NULL: never at work, or no memory
    uint64_t reported_ns;          // when its last event was
    bool paused;                   // not taken up until it is resumed; with work: it is stuck
    uint64_t tried;                // 1 + queue->freed when there was too little memory, 0: never
    char why[HTH_CHECKPOINT_NOTE]; // .. and how much too little
    char *arguments;               // in place of the request's, from json_dumps
    char owner[HTH_TENANT];        // who submitted it, as its checkpoint says
    char of[HTH_TENANT];           // whose it is: who asked for it, last
    hth_request own;               // of one that nobody waits for
};

static inline bool hth_train_entry_works(const hth_train_queue *queue, const hth_train_entry *entry)
{
    return entry != NULL && entry->work != NULL;
}

// hth_train_queue_find returns the first job of that name, NULL: it neither works nor waits.
hth_train_entry *hth_train_queue_find(const hth_train_queue *queue, const char *job);
// hth_train_queue_end answers the request with the result that hth_fail has set, and removes it.
// word: the job's state from now on; NULL: as before.
void hth_train_queue_end(hth_train_queue *queue, hth_train_entry *entry, hth_err err,
                         const char *word);
// hth_train_queue_event tells who listens that a job's state is another one.
void hth_train_queue_event(const hth_train_queue *queue, const char *job, const char *word);
// hth_train_queue_own adds a job that the server itself goes on with, from its checkpoint and in
// the name of who submitted it; what is in `given` replaces its arguments. requested: somebody has
// it go on. HTH_EBUSY: then it is one job too many of its tenant's; one that was interrupted was
// not.
hth_err hth_train_queue_own(hth_train_queue *queue, const char *job, json_t *given, bool requested);
// hth_train_entry_resume has a job that is in the queue go on from its checkpoint like this.
hth_err hth_train_entry_resume(hth_train_queue *queue, hth_train_entry *entry, json_t *given);

// train_query.c
// hth_train_queue_may: HTH_EDENIED, the job (in the queue, or its checkpoint) is another tenant's
// than who asks; HTH_ENOENT: there is none of that name.
hth_err hth_train_queue_may(const hth_train_queue *queue, const char *job,
                            const hth_request *request);
// hth_train_queue_record keeps the record of a job that ends now, while its last state is there.
void hth_train_queue_record(hth_train_queue *queue, const char *job, const char *word,
                            const char *why);

#endif
