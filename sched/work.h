// SPDX-License-Identifier: Apache-2.0
// sched/work.h - the run queue of a device, and works that it can interrupt: each has a stack of
// its own (fiber.h), so a long call can stop at a preemption point in its middle and continue
// later. One thread: the device's *loop*.
//
// The folder sched/ decides which work computes next on a device, and interrupts it: the order is
// in run_queue.h and turns.h, pure and simulated in tests; fiber.h has the stacks.
//
// Design notes
// Only the loop decides. On its own stack it accepts what arrives, asks the run queue what is next,
// and runs that: short items there and then, long ones as a *work*. Code that computes for long
// calls hth_work_point wherever it can be interrupted. On a work's stack the point yields the
// device to the loop if another item wants it; on the loop's own stack it only accepts what
// arrived. So nothing ever computes inside another item's call.
//
// What must not be interrupted half done (a run, whose values lie in the memory that all runs
// share) holds the device (hth_work_hold): points inside it only accept.
//
// A work that computes on other threads for a while (hth_work_elsewhere) is *away*: the loop runs
// other items, and continues the work when that computation has ended.
#ifndef HTH_SCHED_WORK_H
#define HTH_SCHED_WORK_H

#include "sched/fiber.h"
#include "sched/run_queue.h"

typedef struct hth_work {
    hth_run_item item; // first; the loop's, but for what is the run queue's
    uint64_t least_ns; // a slice ends at the first point after this long
    // its own
    hth_fiber *fiber; // NULL: it is not in progress
    uint64_t from_ns; // when its slice began
    uint64_t ran_ns;  // of its slices that ended
    bool away;        // what it waits for computes elsewhere
} hth_work;

// Other threads that a work can compute on, one work at a time. The loop's thread calls all three.
typedef struct hth_work_other {
    // start has fn(arg) begin there; false: it cannot, for want of memory.
    bool (*start)(void *ctx, hth_err (*fn)(void *arg), void *arg);
    bool (*busy)(void *ctx);
    hth_err (*wait)(void *ctx); // for its end; its result, with its sentence
    void *ctx;
} hth_work_other;

#define HTH_WORK_STACKS 2 // works in progress at a time, at most

typedef struct hth_work_queue {
    // the loop's
    void (*poll)(void *ctx);   // takes what has arrived; computes nothing. NULL: nothing arrives
    bool (*wanted)(void *ctx); // somebody else wants the device. NULL: nobody ever does
    // slice is told of each slice of `w`, before the run queue is: it may set what is the loop's in
    // w->item. over: w has ended, or is away from now on. May be NULL.
    void (*slice)(void *ctx, hth_work *work, uint64_t took_ns, uint64_t now_ns, bool over);
    void *ctx;
    const hth_work_other *other; // NULL: there are no other threads
    // its own
    hth_run_queue runs;
    hth_fiber *spare[HTH_WORK_STACKS]; // stacks that nobody is on
    hth_work *now;                     // whose stack the thread is on; NULL: the loop's own
    int held;
    uint64_t slices; // that were run, of anybody
    uint64_t ran_ns; // .. and what they took
} hth_work_queue;

void hth_work_fini(hth_work_queue *queue); // no work is in progress

// ---- for the loop

// hth_work_begin runs fn(arg) as `work`, and returns when its first slice has ended. Without
// memory for a stack it runs at once, without interruption.
void hth_work_begin(hth_work_queue *queue, hth_work *work, void (*fn)(void *arg), void *arg);
// hth_work_go continues a work in progress, for a slice; not while it computes elsewhere.
void hth_work_go(hth_work_queue *queue, hth_work *work);
bool hth_work_busy(const hth_work *work); // in progress
// hth_work_computes says that a work is away and still computes there.
bool hth_work_computes(const hth_work_queue *queue, const hth_work *work);
// hth_work_ran notes that the loop computed on its own stack for took_ns.
void hth_work_ran(hth_work_queue *queue, uint64_t took_ns);

// ---- for what computes. queue NULL: the caller has the device for itself

// hth_work_others_ns counts the time, in ns, in which others computed on the loop's thread while
// the caller's work was in progress there: the difference of two calls is what a measurement of
// this work takes off what passed. On the loop's thread only. 0 without a queue.
uint64_t hth_work_others_ns(const hth_work_queue *queue);

// hth_work_point is a preemption point. true: others have computed meanwhile.
bool hth_work_point(hth_work_queue *queue);
// hth_work_hold keeps the device until hth_work_let; they nest.
void hth_work_hold(hth_work_queue *queue);
void hth_work_let(hth_work_queue *queue);
// hth_work_elsewhere runs fn(arg) on other threads while the loop runs other items, and returns its
// result. It runs here if there are none, or if the caller is not a work.
hth_err hth_work_elsewhere(hth_work_queue *queue, hth_err (*fn)(void *arg), void *arg);

#endif
