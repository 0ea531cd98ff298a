// SPDX-License-Identifier: Apache-2.0
// base/stats.h - the process's counters, in one table from which `hearth stats`, /metrics and the
// documents are made.
#ifndef HTH_BASE_STATS_H
#define HTH_BASE_STATS_H

#include <stdint.h>

// X(identifier, name, unit, help). Counters only grow; the names are those of /metrics without the
// prefix.
#define HTH_STATS(X)                                                                               \
    X(REQUESTS_OK, "requests_ok", "requests", "inference requests answered with a result")         \
    X(REQUESTS_FAILED, "requests_failed", "requests", "inference requests answered with an error") \
    X(REQUESTS_REFUSED, "requests_refused", "requests",                                            \
      "requests refused because a queue was full")                                                 \
    X(SAMPLES, "samples", "samples", "samples that went through a model")                          \
    X(BATCHES, "batches", "runs", "plan runs; samples / batches is the mean batch size")           \
    X(QUEUE_NS, "queue_time", "ns", "time that requests spent waiting for an engine")              \
    X(COMPUTE_NS, "compute_time", "ns", "time that engines spent running plans")                   \
    X(PLANS_BUILT, "plans_built", "plans", "plans made because no cached one fitted")              \
    X(BYTES_IN, "bytes_in", "bytes", "request bytes received")                                     \
    X(BYTES_OUT, "bytes_out", "bytes", "answer bytes sent")                                        \
    X(STORE_BYTES_WRITTEN, "store_bytes_written", "bytes", "tensor bytes written to the store")    \
    X(STORE_BYTES_SHARED, "store_bytes_shared", "bytes",                                           \
      "tensor bytes found in the store already")                                                   \
    X(STORE_BYTES_MAPPED, "store_bytes_mapped", "bytes",                                           \
      "tensor bytes mapped or read from the store")

typedef enum hth_stat {
#define HTH_STAT_ID(id, name, unit, help) HTH_STAT_##id,
    HTH_STATS(HTH_STAT_ID)
#undef HTH_STAT_ID
        HTH_N_STATS
} hth_stat;

typedef struct hth_stat_info {
    const char *name, *unit, *help;
} hth_stat_info;

const hth_stat_info *hth_stat_get_info(hth_stat s);
void hth_stat_add(hth_stat s, uint64_t n); // any thread
uint64_t hth_stat_get(hth_stat s); // any thread; counters are not read at one instant together

#endif
