// SPDX-License-Identifier: Apache-2.0
// base/stats.h - the process's counters, in one table, which /metrics shows.
#ifndef HTH_BASE_STATS_H
#define HTH_BASE_STATS_H

#include <stdint.h>

// X(identifier, name, unit, help). Counters only grow; the names are those of /metrics without
// "hearth_" and "_total".
#define HTH_STATS(X)                                                                               \
    X(REQUESTS_REFUSED, "requests_refused", "requests",                                            \
      "requests refused because the engine's queue was full")                                      \
    X(HTTP_BYTES_IN, "http_bytes_in", "bytes", "bytes received over HTTP")                         \
    X(HTTP_BYTES_OUT, "http_bytes_out", "bytes", "bytes sent over HTTP")                           \
    X(STORE_BYTES_WRITTEN, "store_bytes_written", "bytes", "tensor bytes written to the store")    \
    X(STORE_BYTES_SHARED, "store_bytes_shared", "bytes",                                           \
      "tensor bytes that the store already had")                                                   \
    X(STORE_BYTES_MAPPED, "store_bytes_mapped", "bytes",                                           \
      "tensor bytes mapped or read from the store")                                                \
    X(STORE_BYTES_CHECKED, "store_bytes_checked", "bytes",                                         \
      "stored tensor bytes that were read and verified")                                           \
    X(STORE_DAMAGED, "store_damaged", "tensors", "stored tensors found damaged")                   \
    X(STORE_REPAIRED, "store_repaired", "tensors",                                                 \
      "damaged tensors repaired by importing the same content again")

typedef enum hth_stat {
#define HTH_STAT_ID(id, name, unit, help) HTH_STAT_##id,
    HTH_STATS(HTH_STAT_ID)
#undef HTH_STAT_ID
        HTH_N_STATS
} hth_stat;

typedef struct hth_stat_info {
    const char *name, *unit, *help;
} hth_stat_info;

const hth_stat_info *hth_stat_get_info(hth_stat stat);
void hth_stat_add(hth_stat stat, uint64_t n); // any thread
uint64_t hth_stat_get(hth_stat stat); // any thread; counters are not read at one instant together

#endif
