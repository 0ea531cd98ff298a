// SPDX-License-Identifier: Apache-2.0
// fair/fair_queue_impl.h - what the files of the queue share.
#ifndef HTH_FAIR_FAIR_QUEUE_IMPL_H
#define HTH_FAIR_FAIR_QUEUE_IMPL_H

#include "fair/fair_heap.h"
#include "fair/fair_queue.h"

typedef struct queue_tenant {
    double weight, level; // level: dominant share by weight
    hth_fair_amounts used;
    int index, running;
    int place;               // among those with jobs that wait
    uint64_t under_since_ns; // waits below its entitlement; 0: it does not, as far as is known
    uint64_t served;         // number of its last start
    hth_fair_heap waiting;   // its jobs, by key
    hth_fair_job *newest;    // that runs
    // While a decision is made: what the tenant has without those of its jobs that are paused in
    // it, and the first that may be the next.
    hth_fair_amounts left;
    double left_level;
    hth_fair_job *victim;
} queue_tenant;

struct hth_fair_queue {
    hth_fair_queue_options o;
    hth_fair_amounts free, hole;
    bool holes; // `hole` is set
    queue_tenant **tenants;
    int n_tenants, cap, jobs;
    double weights;         // of the tenants with jobs
    hth_fair_heap by_level; // tenants with jobs that wait
    hth_fair_heap ends;     // jobs that run, by their predicted end
    hth_fair_job *reserved;
    hth_fair_job **victim; // of the decision; there is room for all jobs
    int cap_victims;
    uint64_t order, starts;
};

// A demand fits in what may differ by rounding from what is there.
#define HTH_QUEUE_ROUNDING 1e-9 // of the capacity
bool hth_queue_fits(const hth_fair_queue *queue, const hth_fair_amounts *demand,
                    const hth_fair_amounts *room);
void hth_queue_sum(const hth_fair_queue *queue, hth_fair_amounts *to,
                   const hth_fair_amounts *amounts, double sign);
double hth_queue_level(const hth_fair_queue *queue, const queue_tenant *tenant,
                       const hth_fair_amounts *used);

// hth_queue_key is a job's turn within its tenant, with so long left to run (rule 1).
int64_t hth_queue_key(const hth_fair_queue *queue, const hth_fair_job *job, uint64_t left_ns);

// When a job will have room, and what will be left then beside it.
typedef struct queue_shadow {
    uint64_t at_ns; // HTH_FAIR_NEVER: not known
    hth_fair_amounts extra;
} queue_shadow;

queue_shadow hth_queue_shadow(const hth_fair_queue *queue, const hth_fair_job *job,
                              uint64_t now_ns);
// hth_queue_room is what one job can get now.
hth_fair_amounts hth_queue_room(const hth_fair_queue *queue);
// hth_queue_point is the demand with which a job may start in `room` (rule 2), and beside a
// reservation (rule 4; shadow NULL: there is none); -1: none.
int hth_queue_point(const hth_fair_queue *queue, const hth_fair_job *job,
                    const hth_fair_amounts *room, const queue_shadow *shadow, uint64_t now_ns);
// hth_queue_longer: a job that runs has so much left that one which takes run_ns better ends first.
bool hth_queue_longer(const hth_fair_job *runs, uint64_t run_ns, uint64_t now_ns);
// hth_queue_preempt decides rules 5 and 6; false: nobody is to be paused. *until_ns: when to look
// again.
bool hth_queue_preempt(hth_fair_queue *queue, uint64_t now_ns, hth_fair_decision *out);

#endif
