// SPDX-License-Identifier: Apache-2.0
// runtime/query_latency.h - the engine's counts of latencies, for all requests and for each model.
// Engine's thread only.
#ifndef HTH_RUNTIME_QUERY_LATENCY_H
#define HTH_RUNTIME_QUERY_LATENCY_H

#include "runtime/model.h"

#include <jansson.h>

// hth_latency_count counts a request for `model` that ended at `now_ns`, `took_ns` after it was
// submitted.
void hth_latency_count(hth_models *ms, hth_model *model, uint64_t now_ns, uint64_t took_ns,
                       bool ok);
// hth_latency_quantiles lists what 50, 90, 95, 99 and 99.9 % of the last minute's requests for
// `model` did not exceed, in nanoseconds; empty: there were none.
json_t *hth_latency_quantiles(const hth_model *model);
// hth_latency_json tells rates and percentiles of the last five minutes, as a whole and slot by
// slot, and of the last minute for each model.
json_t *hth_latency_json(const hth_models *ms);
// hth_latency_histogram: [[from_ns, to_ns, requests]], of buckets that are not empty.
json_t *hth_latency_histogram(const hth_latency_sum *sum);

#endif
