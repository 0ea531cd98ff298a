// SPDX-License-Identifier: Apache-2.0
// Rates and latencies of requests as a JSON document.
#include "runtime/query_latency.h"

#include "base/clock.h"

#include <inttypes.h>

// What the histogram and the series are about; a model's slots are longer, and fewer.
#define SERIES_SLOT_NS 5000000000u
#define SERIES_SLOTS   60
#define MODEL_SLOT_NS  10000000000u
#define MODEL_SLOTS    6

void hth_latency_count(hth_models *ms, hth_model *model, uint64_t now_ns, uint64_t took_ns, bool ok)
{
    // What cannot be had is not counted: no request fails because of it.
    if (ms->latency == NULL) {
        (void)hth_latency_open(SERIES_SLOT_NS, SERIES_SLOTS + 1, now_ns, &ms->latency);
    }
    if (model->latency == NULL) {
        (void)hth_latency_open(MODEL_SLOT_NS, MODEL_SLOTS + 1, now_ns, &model->latency);
    }
    hth_latency_add(ms->latency, now_ns, took_ns, ok);
    hth_latency_add(model->latency, now_ns, took_ns, ok);
}

static json_t *sum_json(const hth_latency_sum *sum)
{
    double all = (double)(sum->requests + sum->failures);
    return json_pack(
        "{s:f, s:I, s:I, s:f, s:I, s:I, s:I, s:I}", "seconds", sum->seconds, "requests",
        (json_int_t)(sum->requests + sum->failures), "failures", (json_int_t)sum->failures,
        "per_second", sum->seconds > 0 ? all / sum->seconds : 0.0, "p50_ns",
        (json_int_t)hth_latency_percentile(sum, 0.5), "p90_ns",
        (json_int_t)hth_latency_percentile(sum, 0.9), "p99_ns",
        (json_int_t)hth_latency_percentile(sum, 0.99), "longest_ns", (json_int_t)sum->longest_ns);
}

json_t *hth_latency_histogram(const hth_latency_sum *sum)
{
    json_t *out = json_array();
    for (int i = 0; i < HTH_LATENCY_BUCKETS; i++) {
        if (sum->count[i] > 0) {
            json_array_append_new(out, json_pack("[I, I, I]", (json_int_t)hth_latency_bucket(i),
                                                 (json_int_t)hth_latency_bucket(i + 1),
                                                 (json_int_t)sum->count[i]));
        }
    }
    return out;
}

static json_t *series_json(const hth_models *ms, uint64_t now)
{
    json_t *out = json_array();
    for (int i = SERIES_SLOTS; i >= 0; i--) { // the oldest first
        hth_latency_sum s;
        hth_latency_get(ms->latency, now, i, 1, &s);
        if (s.seconds > 0) {
            json_array_append_new(out, sum_json(&s));
        }
    }
    return out;
}

static json_t *model_json(const hth_model *model, uint64_t now)
{
    hth_latency_sum s;
    hth_latency_get(model->latency, now, 0, MODEL_SLOTS + 1, &s);
    json_t *out = json_pack("{s:s, s:i}", "name", model->name, "version", model->version);
    json_object_update_new(out, sum_json(&s));
    return out;
}

json_t *hth_latency_quantiles(const hth_model *model)
{
    static const double q[] = {0.5, 0.9, 0.95, 0.99, 0.999};
    hth_latency_sum s;
    json_t *list = json_array();
    hth_latency_get(model->latency, hth_now_ns(), 0, MODEL_SLOTS + 1, &s);
    for (size_t i = 0; i < sizeof q / sizeof q[0] && s.requests > 0; i++) {
        json_array_append_new(list, json_integer((json_int_t)hth_latency_percentile(&s, q[i])));
    }
    return list;
}

json_t *hth_latency_json(const hth_models *ms)
{
    uint64_t now = hth_now_ns();
    hth_latency_sum s;
    json_t *models = json_array();
    for (const hth_model *m = ms->list; m != NULL; m = m->next) {
        json_array_append_new(models, model_json(m, now));
    }
    hth_latency_get(ms->latency, now, 0, SERIES_SLOTS + 1, &s);
    json_t *out = sum_json(&s);
    json_object_update_new(out, json_pack("{s:i, s:o, s:o, s:o}", "slot_seconds",
                                          (int)(SERIES_SLOT_NS / 1000000000u), "series",
                                          series_json(ms, now), "histogram",
                                          hth_latency_histogram(&s), "models", models));
    return out;
}
