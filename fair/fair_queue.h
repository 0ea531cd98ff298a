// SPDX-License-Identifier: Apache-2.0
// fair/fair_queue.h - which job starts next, with which of its demands, and which one is paused for
// it. Pure: time is an argument (from 1 on), nothing is started or stopped here; one thread.
//
// Design notes
// Jobs are whole and run for long; what they hold comes back when they end. The rules, in order:
//
// 1. Shares: the tenant with the least dominant share by weight is next (fair.h); among equal ones
//    the one served longest ago. Of a tenant's jobs the one is next whose submission and predicted
//    time (with its best demand, a day at most) add up to the least: short ones pass long ones, and
//    a job is passed by those alone that come within the time that it takes. Each level of priority
//    counts as `priority_ns` of waiting. Both order a tenant's own jobs, gain it no share, and
//    starve none of its others.
// 2. The point of an elastic job: the best demand that fits and, while other tenants wait, keeps
//    the tenant within its entitlement (its weight among those of all tenants with jobs); where
//    none does, the last that fits.
// 3. Reservation: the first job that is next and does not fit keeps its turn until it starts; only
//    one of its own tenant's that comes to be ahead of it takes that over. Its predicted start is
//    when enough of what runs will have ended.
// 4. Backfill (EASY, Lifka 1995): another job may pass it, if it is predicted to end before that
//    start, or takes nothing that the waiting job will need then. Where an end that matters is not
//    known, nobody passes.
// 5. Patience: a tenant that has waited below its entitlement for `patience_ns` has jobs paused in
//    its favour, those started last of the tenant with the most over its entitlement, each after it
//    ran for patience_ns: only if that tenant stays ahead of the waiting one, or the waiting one
//    has nothing. A job that keeps its turn need not be heeded then, unless its tenant is below
//    its entitlement as well. So tenants whose jobs need the whole device take turns of
//    patience_ns. Where the device's time is shared by slices, a tenant with a job that runs has
//    its part of it: only one without is below its entitlement, and all others are above theirs.
//
// 6. Shortest first: where the job that is next does not fit, one of its own tenant's is paused for
//    it that is longer (it has more than twice as long left to run) and would be after it by rule
//    1, the one with the most left, after it ran for as long as in rule 5. Only where that makes
//    enough room.
// 7. Slices: a job does not start with a demand that slows it down while its tenant runs a shorter
//    job of at least its priority, for it would take time from the one that ends sooner. This does
//    not hold while other tenants wait.
//
// Hence nobody starves: rule 3 bounds the wait by what runs, and rule 5 a tenant's by its patience.
// A decision to start looks at HTH_FAIR_WALK tenants, at as many jobs, and at as many predicted
// ends; one to pause looks at all tenants.
#ifndef HTH_FAIR_FAIR_QUEUE_H
#define HTH_FAIR_FAIR_QUEUE_H

#include "fair/fair.h"

#define HTH_FAIR_NEVER UINT64_MAX

typedef struct hth_fair_queue hth_fair_queue;

typedef enum hth_fair_state { HTH_FAIR_OUT, HTH_FAIR_WAITS, HTH_FAIR_RUNS } hth_fair_state;

// All zero but for what the owner sets. The owner keeps it where it is while it is in a queue.
typedef struct hth_fair_job {
    // The owner's; fixed while the job is in a queue.
    int tenant;                     // hth_fair_queue_tenant's
    int priority;                   // -1000 to 1000; larger is sooner, 0 is usual
    uint64_t submitted_ns;          // since when it waits, all in all
    const hth_fair_amounts *demand; // n_demands, from best to least; outlive it
    const uint64_t *run_ns;         // predicted with each demand, from the start; NULL: not known
    int n_demands;
    uint64_t least_ns; // it runs for so long before it is paused for another; may change
    uint64_t left_ns;  // of time of its own while it runs, as run_ns; may change; 0: till ends_ns
    // The queue's.
    hth_fair_state state;
    int with;                   // the demand it runs with
    hth_fair_amounts held;      // what it really holds while it runs
    uint64_t began_ns, ends_ns; // while it runs; ends_ns is predicted, HTH_FAIR_NEVER: not known
    uint64_t order;             // of arrival
    int64_t key;                // its turn within its tenant
    int place;                  // in a heap
    struct hth_fair_job *older, *newer; // its tenant's that run, by their start
} hth_fair_job;

typedef struct hth_fair_queue_options {
    int n_resources;
    hth_fair_amounts capacity;
    uint64_t patience_ns; // HTH_FAIR_NEVER: no job is paused for another
    uint64_t priority_ns; // of waiting, that a level of priority counts as; at most a day
    bool no_backfill;     // nobody passes a job that waits
    bool sliced;          // jobs that run also share the device's time, by their tenants' weights
} hth_fair_queue_options;

typedef enum hth_fair_action {
    HTH_FAIR_NOTHING, // until something changes, or until_ns
    HTH_FAIR_START,   // `job` with demand `with`
    HTH_FAIR_PREEMPT, // first pause the victims, if any, then start `job`
} hth_fair_action;

typedef struct hth_fair_decision {
    hth_fair_action action;
    hth_fair_job *job;
    int with;
    bool passes;           // it is a backfill: another job keeps its turn
    hth_fair_job **victim; // the queue's own; until it is asked again or a job is added
    int n_victims;
    uint64_t until_ns; // when to ask again although nothing changed; HTH_FAIR_NEVER: not at all
} hth_fair_decision;

typedef struct hth_fair_standing {
    hth_fair_amounts used;
    double share;       // dominant
    int dominant;       // the resource; -1: nothing is used
    double entitlement; // of the dominant resource; 0 while the tenant has no jobs
    int waiting, running;
    uint64_t under_since_ns; // it waits below its entitlement; 0: it does not, as far as is known
} hth_fair_standing;

// hth_fair_queue_open: on error *out is NULL. HTH_ENOMEM.
hth_err hth_fair_queue_open(const hth_fair_queue_options *options, hth_fair_queue **out);
void hth_fair_queue_close(hth_fair_queue *queue); // jobs may be in it; NULL is allowed
// hth_fair_queue_tenant adds a tenant; *out is its number, from 0 on. HTH_EINVAL: weight is out of
// range.
hth_err hth_fair_queue_tenant(hth_fair_queue *queue, double weight, int *out);
hth_err hth_fair_queue_weigh(hth_fair_queue *queue, int tenant, double weight);
// hth_fair_queue_capacity: what there is to share has changed. What runs keeps what it has, also
// where that is more than there is now.
void hth_fair_queue_capacity(hth_fair_queue *queue, const hth_fair_amounts *capacity);
void hth_fair_queue_patience(hth_fair_queue *queue, uint64_t patience_ns);
// hth_fair_queue_hole sets the most of each resource that one job can get now, where what is free
// lies in pieces; NULL: all that is free.
void hth_fair_queue_hole(hth_fair_queue *queue, const hth_fair_amounts *hole);

// hth_fair_queue_add: the job waits from now on. HTH_ETOOBIG: none of its demands fits the
// capacity; HTH_EINVAL: a demand is out of range; HTH_ENOMEM. On error it is not in.
hth_err hth_fair_queue_add(hth_fair_queue *queue, hth_fair_job *job);
// hth_fair_queue_remove: it has ended or was canceled. One that is in no queue stays as it is.
void hth_fair_queue_remove(hth_fair_queue *queue, hth_fair_job *job);
// hth_fair_queue_next decides. It changes nothing but its notes of who is below its entitlement
// since when, and who keeps a turn; asked again at the same time, it decides the same.
void hth_fair_queue_next(hth_fair_queue *queue, uint64_t now_ns, hth_fair_decision *out);
// hth_fair_queue_start: the job, which waits, runs with a demand from now on.
void hth_fair_queue_start(hth_fair_queue *queue, hth_fair_job *job, int with, uint64_t now_ns);
// hth_fair_queue_pause: the job, which runs, waits again, in its old turn. Where it will go on from
// where it was, its owner may set run_ns to what is left before it starts anew.
void hth_fair_queue_pause(hth_fair_queue *queue, hth_fair_job *job);
// hth_fair_queue_holds: the job, which runs, holds so much, whatever its demand says.
void hth_fair_queue_holds(hth_fair_queue *queue, hth_fair_job *job, const hth_fair_amounts *held);
// hth_fair_queue_ends: the job, which runs, is predicted to end at ends_ns.
void hth_fair_queue_ends(hth_fair_queue *queue, hth_fair_job *job, uint64_t ends_ns);
// hth_fair_queue_predict is when enough of what runs will have ended for the job to start, whoever
// else waits; HTH_FAIR_NEVER: not known.
uint64_t hth_fair_queue_predict(const hth_fair_queue *queue, const hth_fair_job *job,
                                uint64_t now_ns);
// hth_fair_queue_reserved is the job that keeps its turn; NULL: none does.
const hth_fair_job *hth_fair_queue_reserved(const hth_fair_queue *queue);
hth_fair_standing hth_fair_queue_standing(const hth_fair_queue *queue, int tenant);

#endif
