// SPDX-License-Identifier: Apache-2.0
// sched/run_queue.h - who computes next on a device. Pure: time is an argument; nothing is started,
// stopped or allocated here, so that it is tested by simulation.
//
// Design notes
// Whoever wants to compute is an *item*: the requests that wait (one item; their own order is the
// batcher's), a model that is loaded, a program that is compiled, a measurement, a training step.
// The item that has the device computes to its next preemption point, which is a *slice*; then the
// queue is asked again. Three rules decide:
//
// 1. Weights: start-time fair queueing (Goyal, Vin and Cheng 1996). An item's virtual time grows
//    by what its slices took divided by its weight, and the least virtual time comes first. An
//    item that begins to want the device starts at the queue's virtual time: nobody saves up, but
//    for the `credit_ns` that an item may be owed.
// 2. Deadlines: a slice does not begin if it would make somebody late who can still be in time; the
//    earliest deadline is served instead. So, where slices take as long as predicted, all items
//    that are there meet their deadlines if there is any order in which they do (Jackson 1955).
//    Deadlines that nothing can save any more delay nobody.
// 3. Patience: rule 2 delays an item for at most `patience_ns`, so nobody starves; without it
//    rule 2 may delay an item for ever. Somebody waits for an item that `insists`: rule 2 never
//    delays it.
//
// An item that `rests` leaves the device alone for so many times what each slice took, also when
// nobody else wants it: work that must not be met by a request that arrives.
#ifndef HTH_SCHED_RUN_QUEUE_H
#define HTH_SCHED_RUN_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#define HTH_RUN_NEVER UINT64_MAX
// As credit: while it wants the device an item loses no claim, and it gains none while it does not.
#define HTH_RUN_CREDIT_ALL UINT64_MAX

typedef struct hth_run_item {
    // The owner's; may change between two calls.
    double weight;        // > 0
    uint64_t credit_ns;   // how much of the device's time it may be owed at most
    uint64_t slice_ns;    // predicted: to its next preemption point
    uint64_t deadline_ns; // when it is to be done; 0: it has no deadline
    uint64_t need_ns;     // predicted: how long it computes until then
    uint64_t patience_ns; // how long deadlines may hold it up; 0: for ever
    uint64_t most_ns;     // that a slice counts as, at most; 0: a second
    uint32_t rests;       // after a slice: so many times what it took
    bool insists;         // deadlines do not hold it up
    // The queue's.
    struct hth_run_item *next;
    bool queued;
    double at;              // virtual time
    double charged;         // of that, since its last slice (hth_run_queue_charge)
    uint64_t ran;           // number of its last slice
    uint64_t held_since_ns; // since when deadlines hold it up; 0: they do not
    uint64_t rests_until_ns;
} hth_run_item;

// All zero at first.
typedef struct hth_run_queue {
    hth_run_item *first; // that want the device
    double at;           // virtual time: where the slice began that ended last
    uint64_t slices;     // so far
} hth_run_queue;

// hth_run_queue_add: the item wants the device from now on. One that is queued already stays as it
// is. The owner keeps the item where it is until hth_run_queue_remove.
void hth_run_queue_add(hth_run_queue *queue, hth_run_item *item);
// hth_run_queue_remove: it does not any more. One that is not queued stays as it is.
void hth_run_queue_remove(hth_run_queue *queue, hth_run_item *item);
// hth_run_queue_next says who has the device next. NULL: nobody, before *wake_ns (HTH_RUN_NEVER:
// before something changes). Asked again, it gives the same answer; the slice ends with
// hth_run_queue_ran.
hth_run_item *hth_run_queue_next(hth_run_queue *queue, uint64_t now_ns, uint64_t *wake_ns);
// hth_run_queue_ran ends a slice of the item, queued or not, that took took_ns until now. It counts
// as most_ns at most: nobody pays for minutes because of a clock that leaps, or a machine that was
// stopped.
void hth_run_queue_ran(hth_run_queue *queue, hth_run_item *item, uint64_t took_ns, uint64_t now_ns);
// hth_run_queue_charge charges an item, queued or not, for what it computed without being asked for
// here: from one slice to the next, most_ns at most.
void hth_run_queue_charge(hth_run_queue *queue, hth_run_item *item, uint64_t took_ns,
                          uint64_t most_ns);
// hth_run_queue_renew has an item that is not queued stand for something else from now on, which
// owes nothing for what it took before.
void hth_run_queue_renew(hth_run_item *item);
// hth_run_queue_wake ends an item's rest.
void hth_run_queue_wake(hth_run_item *item);

#endif
