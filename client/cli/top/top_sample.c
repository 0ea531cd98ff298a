// SPDX-License-Identifier: Apache-2.0
// A sample's rows are made from the server's documents and from the sample before, which for that
// carries the counters that rates are made of. The parts of a device's memory add up to its budget
// to the byte: what the ledger does not name is "other". Lists are ordered for a terminal that cuts
// them: models by their requests a second.
#include "client/cli/top/top_sample.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TOP_PERCENTILES 30

const hth_top_part hth_top_parts[HTH_TOP_PARTS] = {{"private_weight_bytes", "private", 'P'},
                                                   {"shared_weight_bytes", "shared", 'S'},
                                                   {"unclaimed_bytes", "kept", 'K'},
                                                   {"compute_arena_bytes", "arenas", 'A'},
                                                   {"job_bytes", "jobs", 'J'},
                                                   {NULL, "other", 'o'},
                                                   {"free_bytes", "free", '.'}};

static json_int_t top_int(const json_t *json, const char *key)
{
    return json_integer_value(json_object_get(json, key));
}

static const char *top_str(const json_t *json, const char *key)
{
    const char *s = json_string_value(json_object_get(json, key));
    return s != NULL ? s : "";
}

// The row of `list` with the same values of both keys; key2 may be NULL.
static const json_t *top_same(const json_t *list, const json_t *row, const char *key,
                              const char *key2)
{
    size_t i;
    const json_t *v;
    json_array_foreach((json_t *)list, i, v)
    {
        if (json_equal(json_object_get(v, key), json_object_get(row, key)) &&
            (key2 == NULL || json_equal(json_object_get(v, key2), json_object_get(row, key2)))) {
            return v;
        }
    }
    return NULL;
}

static double top_seconds(const json_t *last, uint64_t now_ns)
{
    json_int_t before = top_int(last, "monotonic_ns");
    return last != NULL && (json_int_t)now_ns > before ? (double)((json_int_t)now_ns - before) / 1e9
                                                       : 0;
}

// ---- rows

static json_t *top_device(const json_t *json, const json_t *stats)
{
    const json_t *rows = json_object_get(stats, "devices"), *l = json_object_get(stats, "ledger");
    const char *state = json_string_value(json_object_get(json, "state"));
    if (rows != NULL) { // of several devices
        l = top_same(rows, json, "name", NULL);
    }
    json_t *out = json_pack("{s:s, s:s, s:s, s:O?}", "name", top_str(json, "name"), "description",
                            top_str(json, "description"), "state", state != NULL ? state : "up",
                            "budget_bytes", json_object_get(l, "budget_bytes"));
    json_int_t rest = top_int(l, "budget_bytes");
    for (int k = 0; k < HTH_TOP_PARTS && l != NULL; k++) {
        rest -= hth_top_parts[k].ledger != NULL ? top_int(l, hth_top_parts[k].ledger) : 0;
    }
    for (int k = 0; k < HTH_TOP_PARTS && l != NULL; k++) {
        char key[40];
        snprintf(key, sizeof key, "%s_bytes", hth_top_parts[k].name);
        json_object_set_new(out, key,
                            json_integer(hth_top_parts[k].ledger != NULL
                                             ? top_int(l, hth_top_parts[k].ledger)
                                             : rest));
    }
    return out;
}

// Of fewer requests than TOP_PERCENTILES a percentile says which of them was the slowest, at most.
static json_t *top_ms(const json_t *json, const char *key)
{
    return top_int(json, "requests") - top_int(json, "failures") >= TOP_PERCENTILES
               ? json_real((double)top_int(json, key) / 1e6)
               : json_null();
}

// Samples of a run: since the sample before if there was a run, else since the model was loaded.
static json_t *top_batch(json_int_t samples, json_int_t runs, const json_t *before)
{
    json_int_t s = samples - top_int(before, "samples"), r = runs - top_int(before, "runs");
    if (before != NULL && r > 0 && s >= 0) {
        return json_real((double)s / (double)r);
    }
    return runs > 0 ? json_real((double)samples / (double)runs) : json_null();
}

static json_t *top_model(const json_t *json, const json_t *latency, const json_t *last,
                         double seconds)
{
    const json_t *t = top_same(json_object_get(latency, "models"), json, "name", "version");
    const json_t *before = top_same(json_object_get(last, "models"), json, "name", "version");
    json_int_t requests = top_int(json, "requests"), failures = top_int(json, "failures");
    json_int_t samples = top_int(json_object_get(json, "times"), "samples");
    json_int_t runs = top_int(json, "executions"), was = top_int(before, "requests");
    double rate = json_number_value(json_object_get(t, "per_second"));
    if (before != NULL && seconds > 0 && requests >= was) { // else it was loaded again
        rate = (double)(requests - was) / seconds;
    }
    return json_pack("{s:s, s:I, s:f, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                     "name", top_str(json, "name"), "version", top_int(json, "version"),
                     "per_second", rate, "p50_ms", top_ms(t, "p50_ns"), "p99_ms",
                     top_ms(t, "p99_ns"), "batch", top_batch(samples, runs, before),
                     "private_bytes", top_int(json, "resident_private_bytes"), "shared_bytes",
                     top_int(json, "resident_shared_bytes"), "arena_bytes",
                     top_int(json, "arena_bytes"), "queued", top_int(json, "queued"), "requests",
                     requests, "failures", failures, "samples", samples, "runs", runs);
}

static bool top_job_lives(const json_t *json)
{
    const char *state = top_str(json, "state");
    return json_is_null(json_object_get(json, "ended_ns")) && strcmp(state, "stopped") != 0;
}

static json_t *top_job(const json_t *json, const json_t *docs)
{
    const json_t *doc = json_object_get(docs, top_str(json, "job"));
    json_int_t step = top_int(json, "step"), steps = top_int(json, "steps");
    return json_pack(
        "{s:s, s:s, s:s, s:O?, s:O?, s:o, s:O?, s:O?, s:O?, s:O?, s:O?}", "job",
        top_str(json, "job"), "model", top_str(json, "model"), "state", top_str(json, "state"),
        "step", json_object_get(json, "step"), "steps", json_object_get(json, "steps"), "percent",
        steps > 0 ? json_real(100.0 * (double)step / (double)steps) : json_null(), "loss",
        json_object_get(json, "loss"), "step_ms", json_object_get(doc, "step_ms"), "budget_bytes",
        json_object_get(doc, "budget_bytes"), "peak_bytes", json_object_get(doc, "peak_bytes"),
        "device", json_object_get(json, "device"));
}

static json_t *top_tenant(const json_t *json, const json_t *shares)
{
    static const char *const keys[] = {"name",    "memory_bytes", "job_bytes",
                                       "waiting", "jobs",         "refused"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *v = json_object_get(json, keys[i]);
        json_object_set_new(out, keys[i], v != NULL ? json_incref(v) : json_null());
    }
    if (shares != NULL) {
        hth_top_share(shares, out);
    }
    return out;
}

// top_runs_first gives a list with the jobs that run in front, taking `rows`.
static json_t *top_runs_first(json_t *rows)
{
    json_t *out = json_array(), *v;
    size_t i;
    for (int runs = 1; runs >= 0; runs--) {
        json_array_foreach(rows, i, v)
        {
            if ((strcmp(top_str(v, "state"), "running") == 0) == (runs == 1)) {
                json_array_append(out, v);
            }
        }
    }
    json_decref(rows);
    return out;
}

static int top_busier(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    double p = json_number_value(json_object_get(x, "per_second"));
    double q = json_number_value(json_object_get(y, "per_second"));
    json_int_t m = top_int(x, "queued"), n = top_int(y, "queued");
    int by_name = strcmp(top_str(x, "name"), top_str(y, "name"));
    if (p != q) {
        return p < q ? 1 : -1;
    }
    if (m != n) {
        return m < n ? 1 : -1;
    }
    return by_name != 0 ? by_name : (int)(top_int(x, "version") - top_int(y, "version"));
}

// top_order gives a list with the busiest first, taking `rows`.
static json_t *top_order(json_t *rows)
{
    size_t n = json_array_size(rows), i;
    json_t **at = malloc((n + 1) * sizeof *at), *out = json_array(), *v;
    if (at == NULL) {
        json_decref(out);
        return rows;
    }
    json_array_foreach(rows, i, v)
    {
        at[i] = v;
    }
    qsort(at, n, sizeof *at, top_busier);
    for (i = 0; i < n; i++) {
        json_array_append(out, at[i]);
    }
    free(at);
    json_decref(rows);
    return out;
}

json_t *hth_top_sample(const hth_top_answers *answers, const json_t *last, uint64_t now_ns)
{
    json_t *devices = json_array(), *models = json_array(), *jobs = json_array(),
           *tenants = json_array(), *v;
    double seconds = top_seconds(last, now_ns);
    size_t i;
    json_array_foreach(json_object_get(answers->devices, "devices"), i, v)
    {
        json_array_append_new(devices, top_device(v, answers->stats));
    }
    json_array_foreach(json_object_get(answers->stats, "models"), i, v)
    {
        json_array_append_new(models, top_model(v, answers->latency, last, seconds));
    }
    json_array_foreach(answers->jobs, i, v)
    {
        if (top_job_lives(v)) {
            json_array_append_new(jobs, top_job(v, answers->job));
        }
    }
    json_array_foreach(json_object_get(answers->stats, "tenants"), i, v)
    {
        json_array_append_new(tenants, top_tenant(v, answers->shares));
    }
    return json_pack("{s:I, s:f, s:o, s:o, s:o, s:o, s:o}", "monotonic_ns", (json_int_t)now_ns,
                     "seconds", seconds, "devices", devices, "models", top_order(models), "jobs",
                     top_runs_first(jobs), "waiting",
                     hth_top_waiting(answers->shares, answers->jobs), "tenants", tenants);
}
