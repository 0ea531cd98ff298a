// SPDX-License-Identifier: Apache-2.0
// planner/plan_work.h - the planner's own clock, which advances by what has been done and not by
// the time that passes: the same input gives the same plan on a busy machine, on a slow one and
// under a sanitizer. A limit of 100 ms is as much work as one core of the machine that the rates
// were measured on does in 100 ms. The real clock only ends a search that takes
// HTH_WORK_BACKSTOP times its limit.
#ifndef HTH_PLANNER_PLAN_WORK_H
#define HTH_PLANNER_PLAN_WORK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HTH_WORK_BACKSTOP     20.0 // times the limit, in real time, ..
#define HTH_WORK_BACKSTOP_MIN 2e3  // .. and at least so many ms

typedef enum hth_plan_work_kind {
    HTH_WORK_DECODE,  // a mode vector decoded, ..
    HTH_WORK_NEEDS,   // .. a tensor or interval looked at backwards, ..
    HTH_WORK_RERUN,   // .. a rerun or a read by one, ..
    HTH_WORK_STAGE,   // .. a stage of one round of placing copies and algorithms, ..
    HTH_WORK_COPY,    // .. a copy of one, ..
    HTH_WORK_FLIGHT,  // .. a copy in flight where bytes are missing, ..
    HTH_WORK_TIME,    // .. a stage or a copy given its exact time
    HTH_WORK_NOTE,    // an interval or a stage of which the search takes a note
    HTH_WORK_GAIN,    // a stage over which a flip's gain is summed
    HTH_WORK_MOVE,    // an interval that is priced or sorted
    HTH_WORK_BOUND,   // an interval or a stage in an iteration of the certificate
    HTH_WORK_VISIT,   // a step of the search for addresses by order, ..
    HTH_WORK_SKYLINE, // .. and of the one along the skyline
    HTH_WORK_LAY,     // a stage, a rectangle or an instruction laid out
    HTH_N_WORK_KINDS
} hth_plan_work_kind;

// Where searches wait while another thread wants their processors. What they wait is no time of
// theirs: a search that waited finds the plan that it would have found.
typedef struct hth_plan_gate {
    atomic_bool shut;
    atomic_uint openings; // so often: who waits passes then, also if it is shut again
    pthread_mutex_t lock;
    pthread_cond_t opened;
} hth_plan_gate;

typedef struct hth_plan_work {
    uint64_t count[HTH_N_WORK_KINDS]; // all that this thread has done
    uint64_t round_ps;                // .. and what made it whole ns where a search began
    uint64_t stop_ns;                 // of the real clock, 0: none
    const atomic_int *cancel;         // not 0: it stops, too; may be NULL
    hth_plan_gate *gate;              // it waits there; may be NULL
    unsigned looks;
    bool stopped;
} hth_plan_work;

extern _Thread_local hth_plan_work hth_plan_work_here;

// hth_plan_work_add counts `n` of a kind as done by this thread.
static inline void hth_plan_work_add(hth_plan_work_kind kind, int64_t n)
{
    hth_plan_work_here.count[kind] += (uint64_t)n;
}

// hth_plan_work_now_ns returns what this thread has done, as the nanoseconds that it takes on the
// machine of the rates; once it is stopped, an hour more.
uint64_t hth_plan_work_now_ns(void);
// hth_plan_work_begin has the real clock stop what follows after HTH_WORK_BACKSTOP times limit_ms,
// and *cancel (NULL: none) as soon as it is not 0; it waits while `gate` (NULL: none) is shut. The
// thread's clock goes on from a whole nanosecond, so that what it did before makes no difference.
// hth_plan_work_end returns whether it was stopped, and lets go of all three.
void hth_plan_work_begin(double limit_ms, const atomic_int *cancel, hth_plan_gate *gate);
bool hth_plan_work_end(void);

// A gate is open at first. It is shut and opened by one thread, any number wait; the searches have
// ended when it is destroyed.
void hth_plan_gate_init(hth_plan_gate *gate);
void hth_plan_gate_fini(hth_plan_gate *gate);
void hth_plan_gate_shut(hth_plan_gate *gate);
void hth_plan_gate_open(hth_plan_gate *gate);

#endif
