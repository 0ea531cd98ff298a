// SPDX-License-Identifier: Apache-2.0
// engine/train/queue/train_fair.h - which job begins next, and with how much memory: the jobs of an
// engine in the queue of fair/fair_queue.h.
//
// Design notes
// A job holds memory, of the device and of the host, for as long as it is at work: that is what the
// queue gives out. Device time, threads and the link are shared by turns, a step at a time
// (sched/turns.h): a tenant with a job at work has its part of them, and only one without is below
// its share. So a job is paused only for a tenant that has none at work.
//
// A job that begins alone takes what is spare, without a curve. Otherwise it is planned for several
// budgets, and each point of its memory/time curve is a demand. One that was paused for another
// goes on with the memory that it had: another budget could mean other algorithms, and other bits.
#ifndef HTH_ENGINE_TRAIN_QUEUE_TRAIN_FAIR_H
#define HTH_ENGINE_TRAIN_QUEUE_TRAIN_FAIR_H

#include "fair/fair_queue.h"
#include "planner/plan_curve.h"

#include <jansson.h>

typedef struct hth_tenant hth_tenant;
typedef struct hth_train_entry hth_train_entry;
typedef struct hth_train_queue hth_train_queue;

typedef enum hth_train_held {
    HTH_TRAIN_DEVICE_MEMORY,
    HTH_TRAIN_HOST_MEMORY,
    HTH_TRAIN_HELD
} hth_train_held;

// What a job could have, from best to least.
typedef struct hth_train_offer {
    int n;      // 0: it was not planned yet
    bool exact; // it goes on as it was: with this, no more and no less
    hth_fair_amounts demand[HTH_CURVE_POINTS];
    uint64_t run_ns[HTH_CURVE_POINTS], budget_bytes[HTH_CURVE_POINTS];
} hth_train_offer;

typedef struct hth_train_fair_tenant {
    const hth_tenant *tenant; // NULL: jobs of nobody
    double weight;            // that the queue knows
} hth_train_fair_tenant;

typedef struct hth_train_fair {     // all zero at first
    hth_fair_queue *jobs;           // NULL: none was in it yet
    hth_train_fair_tenant *tenants; // by their numbers in it
    int n_tenants, cap_tenants;
    double host_bytes;                   // of the machine
    uint64_t capacity_bytes, rest_bytes; // that jobs could have when it was asked last
    uint64_t piece_bytes, piece_freed;   // no job gets so much while queue->freed is that: the
                                         // memory lies in pieces; 0: it does not
    uint64_t until_ns;                   // when it is to be asked again although nothing changed
    uint64_t ends_ns;                    // when predicted ends were looked at
    bool changed;                        // since it was asked
    hth_train_entry *grows;              // a job that is to have more memory; NULL: none
    uint64_t grow_ns, waited_ns;         // when one is looked for next; when somebody waited last
} hth_train_fair;

void hth_train_fair_fini(hth_train_fair *fair);

// hth_train_fair_ask is hth_train_events.admit: a job that is made ready asks what it may have.
// HTH_ENODEVMEM: it waits, and the sentence says for what.
hth_err hth_train_fair_ask(void *ctx, const hth_curve *curve, int64_t steps,
                           uint64_t *budget_bytes);
// hth_train_fair_next returns the job that is to begin now, with what was planned for it; NULL:
// none.
hth_train_entry *hth_train_fair_next(hth_train_queue *queue);
// hth_train_fair_granted is what a job was given that begins: the bytes of the device that it needs
// at least, and those that it is planned for; 0: it was not in the queue.
uint64_t hth_train_fair_granted(const hth_train_entry *entry, uint64_t *budget_bytes);
// hth_train_fair_began notes that a job works, or has another budget, and what memory it really
// has; the calling thread's error detail stays, for what it notes may be a job that has just
// failed. hth_train_fair_blocked that what it was given is not there in one piece.
void hth_train_fair_began(hth_train_queue *queue, hth_train_entry *entry);
void hth_train_fair_blocked(hth_train_queue *queue, hth_train_entry *entry);
// hth_train_fair_leave takes a job out of the queue; one that is not in it stays as it is.
// hth_train_fair_forget also discards its demands: it is planned again before it begins.
void hth_train_fair_leave(hth_train_queue *queue, hth_train_entry *entry);
void hth_train_fair_forget(hth_train_queue *queue, hth_train_entry *entry);
// hth_train_fair_exact has a job go on with the memory that it had when it was paused for another,
// as its arguments say; nothing, where it never was.
void hth_train_fair_exact(hth_train_entry *entry, const json_t *args);
// hth_train_fair_entry is whose `job` that is.
hth_train_entry *hth_train_fair_entry(const hth_fair_job *job);
// hth_train_fair_standing is what a tenant (NULL: nobody) has of what jobs hold; all 0 where none
// of its jobs was in the queue.
hth_fair_standing hth_train_fair_standing(const hth_train_fair *fair, const hth_tenant *tenant);
// hth_train_fair_patience_ns is the setting fair.patience; HTH_FAIR_NEVER: nobody is paused.
uint64_t hth_train_fair_patience_ns(void);

// ---- train_grow.c

// hth_train_grow has a job have what memory is spare, where nobody waits for that: the oldest of
// the tenant with the least, one at a time.
void hth_train_grow(hth_train_queue *queue, uint64_t now_ns);
// hth_train_grow_stop: somebody waits.
void hth_train_grow_stop(hth_train_queue *queue, uint64_t now_ns);

// ---- train_preempt.c

// hth_train_preempt has jobs give memory to another one. A job that holds enough for both is
// planned for less, if that can be done; else jobs leave. Their states are written first, while
// others work: true, when that is done of all, and they wait.
bool hth_train_preempt(hth_train_queue *queue, const hth_fair_decision *decision);
// hth_train_preempt_may says no to pausing a job for a shorter one of its own tenant while requests
// wait for memory: what it gave back would be theirs.
bool hth_train_preempt_may(const hth_train_queue *queue, const hth_fair_decision *decision);
// hth_train_preempt_poll looks what became of states that are being written; false: none is.
bool hth_train_preempt_poll(hth_train_queue *queue);
// hth_train_preempt_stay has those go on that do not leave any more, by the last decision.
void hth_train_preempt_stay(hth_train_queue *queue, const hth_fair_decision *decision);

#endif
