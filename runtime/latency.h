// SPDX-License-Identifier: Apache-2.0
// runtime/latency.h - how long requests took, and how many there were, over the last minutes.
//
// Design notes
// A ring of slots, each for the same span of time and with a histogram of its own. Buckets grow
// with what they hold, as in HdrHistogram (G. Tene): HTH_LATENCY_PARTS of them for every power of
// two, so that a percentile is off by at most 1 / (2 * HTH_LATENCY_PARTS) of its value, be it
// microseconds or seconds. All memory is taken when it is opened, whatever comes. One thread.
#ifndef HTH_RUNTIME_LATENCY_H
#define HTH_RUNTIME_LATENCY_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define HTH_LATENCY_PARTS   16
#define HTH_LATENCY_UNIT    64           // nanoseconds: what is shorter is not told apart
#define HTH_LATENCY_MOST    (1ull << 36) // what is longer is in the last bucket
#define HTH_LATENCY_BUCKETS 432

typedef struct hth_latency hth_latency;

typedef struct hth_latency_sum {
    uint64_t requests, failures; // requests: without failures
    uint64_t longest_ns;         // exact
    double seconds;              // that this is about
    uint64_t count[HTH_LATENCY_BUCKETS];
} hth_latency_sum;

// hth_latency_open begins at `now_ns`, with `slots` of `slot_ns` each.
hth_err hth_latency_open(uint64_t slot_ns, int slots, uint64_t now_ns, hth_latency **out);
void hth_latency_close(hth_latency *latency); // NULL is allowed
// hth_latency_add counts a request that ended at `now_ns`. Of those that failed the time is not
// kept. latency NULL: nothing.
void hth_latency_add(hth_latency *latency, uint64_t now_ns, uint64_t took_ns, bool ok);
// hth_latency_get adds up `slots` slots, the last of them the one that was `back` slots before that
// of now; those before it was opened are empty and have no seconds. latency NULL: nothing.
void hth_latency_get(const hth_latency *latency, uint64_t now_ns, int back, int slots,
                     hth_latency_sum *out);
// hth_latency_percentile is what a share `q` of the requests did not exceed; 0: there were none.
uint64_t hth_latency_percentile(const hth_latency_sum *sum, double q);
// hth_latency_bucket is where bucket `i` begins, in nanoseconds; it ends where the next one begins.
uint64_t hth_latency_bucket(int i);

#endif
