// SPDX-License-Identifier: Apache-2.0
// sched/turns.h - which job has the device next among jobs of several tenants. Pure; one thread.
//
// Design notes
// Two levels of start-time fair queueing (run_queue.h): tenants by their weights, and each one's
// jobs. Of these the one with the least left (of the highest priority) has HTH_TURNS_FIRST times
// what each other one has: the mean time to completion is the least where the shortest job comes
// first (Smith 1956), and a long one still gets on, whatever comes. What is charged is the device's
// time as it was measured, so that a tenant with steps of 45 ms and one with steps of 1 ms have
// what their weights say, and more jobs get a tenant no more. A tenant has one account: what it
// computes beside its jobs is charged to it as well (hth_turns_charge). Where it wants nothing for
// a while it neither saves up nor loses.
#ifndef HTH_SCHED_TURNS_H
#define HTH_SCHED_TURNS_H

#include "sched/run_queue.h"

#define HTH_TURNS_FIRST 16

typedef struct hth_turns { // all zero at first
    hth_run_queue tenants; // with jobs that want the device
} hth_turns;

typedef struct hth_turns_job hth_turns_job;

typedef struct hth_turns_tenant { // all zero but for the weight at first
    hth_run_item item;            // weight: the owner's, > 0; may change at any time
    hth_run_queue jobs;
    hth_turns_job *first; // of these; NULL: not known
    uint64_t ran_ns;      // charged, in all
} hth_turns_tenant;

struct hth_turns_job {        // all zero but for the owner's at first
    hth_run_item item;        // slice_ns, a step as predicted (0: not known): the owner's
    hth_turns_tenant *tenant; // outlives it
    int priority;             // larger is sooner; among its tenant's only
    uint64_t left_ns;         // what its steps will take, as predicted; 0: not known. May change
    double need_ns;           // .. for hth_turns_predict, as measured; INFINITY: not known
    double ends_ns;           // hth_turns_predict's
    double rest_ns, rate;     // .. while it predicts
};

// hth_turns_add: the job has a step to run, from now on until hth_turns_remove. The owner keeps
// both where they are meanwhile.
void hth_turns_add(hth_turns *turns, hth_turns_job *job);
void hth_turns_remove(hth_turns *turns, hth_turns_job *job);
// hth_turns_next is the job whose turn it is; NULL: there is none. Asked again, it gives the same.
hth_turns_job *hth_turns_next(hth_turns *turns);
// hth_turns_ran charges a step that took took_ns. One of more than a second, and of more than twice
// what was predicted, counts as that: nobody pays for a clock that leaps.
void hth_turns_ran(hth_turns *turns, hth_turns_job *job, uint64_t took_ns);
// hth_turns_charge charges a tenant for something else than its jobs, whether it has any or not.
// For that they wait for a second of the others' time, divided by its weight, at most.
void hth_turns_charge(hth_turns *turns, hth_turns_tenant *tenant, uint64_t took_ns);
// hth_turns_predict stores in ends_ns of each job that is in turns when it will have had need_ns of
// the device, which is the owner's: counted from now, in the device's time, if nobody comes or
// goes but those that end. INFINITY: not known. Steps are taken as if they could be divided at
// will; so it is off by some steps of each job.
void hth_turns_predict(const hth_turns *turns);

#endif
