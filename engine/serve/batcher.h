// SPDX-License-Identifier: Apache-2.0
// engine/serve/batcher.h - what waits to be run: which request is next, and which others are joined
// with it into one run.
//
// Design notes
// A queue per model version holds its requests by priority, then arrival; the batcher serves the
// queue whose head comes first. It is a function of data: time is an argument, and what a run costs
// is asked of an oracle, so that it is tested on a simulated clock. It owns nothing: an item is
// part of the caller's request, linked while it waits.
//
// Requests are joined only where that was measured to be faster per sample. The samples of a joined
// run are rounded up to a *bucket* (a power of two, or a preferred size), so that few programs are
// made. A bucket without a program is requested (`want`) and meanwhile not waited for; one that was
// not timed yet is tried. What was measured grows old, so once in a while the other way is taken.
//
// A delay is spent on waiting for others only while a larger bucket may be faster, and only where
// waiting has brought somebody lately: a single client that waits for its answers pays it four
// times, and then once in sixteen.
//
// A request with a timeout is refused on arrival when the work before it is predicted to take
// longer: it costs its sender a microsecond instead of the timeout, and those that are admitted
// start in time. The prediction is what is queued before it, times a margin that follows the worst
// ratio of wait to prediction that was seen lately, and leaves time for a run that stalls (because
// of the system: a host that takes a virtual machine's processors away) for half as long again as
// the worst of the last half minute to minute. What later overtakes it (a higher priority) is not
// foreseen.
//
// The thread that runs what the batcher chooses also has *background* work: it measures algorithms
// and prepares kernels, a slice at a time. Meanwhile admission leaves time for one slice, half as
// long again as the longest lately, and a slice starts only if every queued request would still
// meet its deadline. Thus slices take the time that admission left for them, and make nobody late.
//
// Several tenants' requests of one priority share the device fairly: each tenant is a *flow* with a
// weight and a virtual time, which is what its runs took divided by its weight; the flow with the
// least comes first (start-time fair queueing, Goyal, Vin and Cheng 1996). A flow that had nothing
// to run begins at the virtual time of the one served last, so that nobody saves up. A joined run
// is everybody's whose items are in it, by samples. Within a flow the order is that of arrival.
//
// One thread.
#ifndef HTH_ENGINE_SERVE_BATCHER_H
#define HTH_ENGINE_SERVE_BATCHER_H

#include "runtime/batching.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HTH_BATCH_ITEMS 256 // requests that are joined at most

struct hth_batch_item {
    // the caller's
    int64_t samples;            // elements of the batch
    bool joins;                 // its model's runs may be joined
    uint32_t priority;          // 1 is first; 0: the policy's
    uint64_t timeout_ns;        // 0: the policy's
    const atomic_int *canceled; // NULL: never
    hth_batch_flow *flow;       // NULL: the one of all such; outlives it, and its run's bill
    uint64_t arrived_ns;
    // the batcher's
    hth_batch_item *prev, *next;
    hth_batch_queue *queue; // NULL: in none
    uint64_t admitted_ns, expires_ns, predicted_ns;
    uint64_t background_ns; // the batcher's, when it was admitted
    bool overtaken;
    double charged; // to its flow, before it was measured
};

#define HTH_BATCH_NONE UINT64_MAX

typedef struct hth_batch_oracle {
    // time_ns is what a run of `samples` like `like` takes; 0: not timed yet, HTH_BATCH_NONE: it
    // has no program.
    uint64_t (*time_ns)(void *ctx, const hth_batch_item *like, int64_t samples);
    // alike says that b, of the same queue, can be joined with a.
    bool (*alike)(void *ctx, const hth_batch_item *left, const hth_batch_item *right);
    // want asks for a program for `samples` like `like`. false: there can be none for now.
    bool (*want)(void *ctx, const hth_batch_item *like, int64_t samples);
    void *ctx;
} hth_batch_oracle;

typedef struct hth_batcher {
    hth_batch_oracle oracle;
    hth_batch_queue *queues;    // with something in them
    int n;                      // items, in all
    uint64_t busy_until_ns;     // when what runs is expected to end
    double margin;              // of predictions
    uint64_t background_ns;     // what background work took, in all
    uint64_t slice_ns;          // the longest slice of that, lately
    uint64_t background_end_ns; // when the last one ended
    uint64_t stall_ns[2];       // for how long a run stalled at most: lately, and before that
    uint64_t stall_from_ns;     // since when lately
    uint64_t round;
    bool passed;            // the last choice passed over items without a program
    hth_batch_flow *flows;  // with items
    hth_batch_flow nobodys; // of items that name none
    double at;              // virtual time of the flow that was served last
} hth_batcher;

// What the flows of a run owe.
typedef struct hth_batch_bill {
    int n;
    int64_t samples; // in all
    struct {
        hth_batch_flow *flow;
        int64_t samples;
        double charged;
    } part[HTH_BATCH_ITEMS];
} hth_batch_bill;

void hth_batcher_init(hth_batcher *batcher, const hth_batch_oracle *oracle);

// hth_batcher_add queues an item. HTH_EBUSY: the queue is full; HTH_ETIMEDOUT: its timeout would
// expire before it is its turn; then it is not queued.
hth_err hth_batcher_add(hth_batcher *batcher, hth_batch_queue *queue, hth_batch_item *item,
                        uint64_t now_ns);

// hth_batcher_requeue puts an item that was taken back where it was; it is not refused.
void hth_batcher_requeue(hth_batcher *batcher, hth_batch_queue *queue, hth_batch_item *item);

// hth_batcher_wait_ns predicts when an item of this priority and flow (NULL: nobody's) that arrives
// now would start.
uint64_t hth_batcher_wait_ns(const hth_batcher *batcher, const hth_batch_flow *flow,
                             uint32_t priority, uint64_t now_ns);

// hth_batcher_background counts background work of took_ns that ends now; 0: some waits for slack.
void hth_batcher_background(hth_batcher *batcher, uint64_t took_ns, uint64_t now_ns);
// hth_batcher_slice_ns is how long the next background slice takes at most: half as long again as
// the longest lately.
uint64_t hth_batcher_slice_ns(const hth_batcher *batcher);
// hth_batcher_slack_ns is how long all queued requests with a program can wait for background work;
// 0: not at all; UINT64_MAX: none of them has a timeout.
uint64_t hth_batcher_slack_ns(const hth_batcher *batcher, uint64_t now_ns);

// hth_batcher_sweep unlinks what was canceled or has expired and returns it, by `next`.
hth_batch_item *hth_batcher_sweep(hth_batcher *batcher, uint64_t now_ns);

typedef struct hth_batch_filter {
    bool hurry;        // no delays
    bool ready;        // only what has a program
    uint32_t priority; // at most (1 is first); 0: any
} hth_batch_filter;

// hth_batcher_next unlinks what is to be run now and returns it, by `next`; *bucket: the samples of
// the joined run, 0: run each alone. NULL: nothing now, but at *wake_ns (UINT64_MAX: never).
// Canceled and expired items are left to the sweep.
hth_batch_item *hth_batcher_next(hth_batcher *batcher, uint64_t now_ns, hth_batch_filter filter,
                                 int64_t *bucket, uint64_t *wake_ns);

// hth_batcher_begin and _end frame a run of `samples` of queue; took_ns 0: nothing was computed, so
// that predictions learn nothing from it.
void hth_batcher_begin(hth_batcher *batcher, const hth_batch_queue *queue, int64_t samples,
                       uint64_t now_ns);
void hth_batcher_end(hth_batcher *batcher, hth_batch_queue *queue, int64_t samples,
                     uint64_t took_ns);
// hth_batcher_note_stall learns from a run that took took_ns where such runs take expected_ns (0:
// not known): a difference of up to 100 ms is a stall.
void hth_batcher_note_stall(hth_batcher *batcher, uint64_t expected_ns, uint64_t took_ns,
                            uint64_t now_ns);

// hth_batch_bill_open says who owes for the run of `items`, by `next`; hth_batch_bill_settle
// charges them what it took. Both: where it failed, too.
void hth_batch_bill_open(hth_batch_bill *bill, const hth_batch_item *items);
void hth_batch_bill_settle(const hth_batch_bill *bill, uint64_t took_ns);

// hth_batch_item_ended: canceled or expired.
bool hth_batch_item_ended(const hth_batch_item *item, uint64_t now_ns);

// hth_batch_bucket is the least bucket of at least `samples`.
int64_t hth_batch_bucket(const hth_batch_policy *policy, int64_t samples);

#endif
