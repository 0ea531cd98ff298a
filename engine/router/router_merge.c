// SPDX-License-Identifier: Apache-2.0
#include "engine/router/router_merge.h"

#include "runtime/query_latency.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

typedef json_t *const docs_t;

static json_int_t number(const json_t *doc, const char *key)
{
    return json_integer_value(json_object_get(doc, key));
}

static const char *text(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s != NULL ? s : "";
}

// ---- sums

static bool among(const char *key, const char *const *list)
{
    while (list != NULL && *list != NULL && strcmp(*list, key) != 0) {
        list++;
    }
    return list != NULL && *list != NULL;
}

static json_t *larger(const json_t *a, const json_t *b)
{
    return json_deep_copy(json_number_value(a) < json_number_value(b) ? b : a);
}

// What becomes of numbers of two rows: those of `keep` stay the first's, of `most` the larger one
// is taken, all others are added. Lists of numbers are added, or compared, element by element.
typedef struct merge_rule {
    const char *const *keep, *const *most;
} merge_rule;

static void merge_into(json_t *to, const json_t *from, const merge_rule *rule);

static void merge_list(json_t *to, const json_t *from, bool most)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)from, i, v)
    {
        json_t *old = json_array_get(to, i);
        if (old == NULL) {
            json_array_append(to, v);
        } else if (json_is_integer(old) && json_is_integer(v)) {
            json_array_set_new(to, i,
                               most
                                   ? larger(old, v)
                                   : json_integer(json_integer_value(old) + json_integer_value(v)));
        }
    }
}

static void merge_into(json_t *to, const json_t *from, const merge_rule *rule)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)from, key, v)
    {
        json_t *old = json_object_get(to, key);
        bool most = among(key, rule->most);
        if (old == NULL) {
            json_object_set_new(to, key, json_deep_copy(v));
        } else if (among(key, rule->keep)) {
            continue;
        } else if (json_is_number(old) && json_is_number(v) && most) {
            json_object_set_new(to, key, larger(old, v));
        } else if (json_is_integer(old) && json_is_integer(v)) {
            json_object_set_new(to, key,
                                json_integer(json_integer_value(old) + json_integer_value(v)));
        } else if (json_is_number(old) && json_is_number(v)) {
            json_object_set_new(to, key, json_real(json_number_value(old) + json_number_value(v)));
        } else if (json_is_boolean(old) && json_is_boolean(v)) {
            json_object_set_new(to, key, json_boolean(json_is_true(old) || json_is_true(v)));
        } else if (json_is_object(old)) {
            merge_into(old, v, rule);
        } else if (json_is_array(old)) {
            merge_list(old, v, most);
        }
    }
}

// row_like finds the row of `list` with the same values of `keys`.
static json_t *row_like(const json_t *list, const json_t *row, const char *const *keys)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)list, i, v)
    {
        bool same = true;
        for (const char *const *k = keys; *k != NULL && same; k++) {
            same = json_equal(json_object_get(v, *k), json_object_get(row, *k));
        }
        if (same) {
            return v;
        }
    }
    return NULL;
}

static void row_device(json_t *row, const char *name)
{
    if (json_object_get(row, "devices") == NULL) {
        json_object_set_new(row, "devices", json_array());
    }
    json_array_append_new(json_object_get(row, "devices"), json_string(name));
}

// rows_merge adds the rows of `from`, which are about device `name`, to those of `to`.
static void rows_merge(json_t *to, const json_t *from, const char *name, const char *const *keys,
                       const merge_rule *rule)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)from, i, v)
    {
        json_t *row = row_like(to, v, keys);
        if (row == NULL) {
            row = json_deep_copy(v);
            json_array_append_new(to, row);
        } else {
            merge_into(row, v, rule);
        }
        row_device(row, name);
    }
}

// rows_append adds copies of the rows, each with the name of its device.
static void rows_append(json_t *to, const json_t *from, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)from, i, v)
    {
        json_t *row = json_deep_copy(v);
        json_object_set_new(row, "device", json_string(name));
        json_array_append_new(to, row);
    }
}

// ---- questions

static json_t *merge_devices(docs_t *docs, const char *const *name, int n)
{
    json_t *rows = json_array(), *out = NULL;
    for (int i = 0; i < n; i++) {
        json_array_extend(rows, json_object_get(docs[i], "devices"));
        out = out == NULL && docs[i] != NULL ? json_copy(docs[i]) : out;
    }
    json_object_set_new(out, "devices", rows);
    return out;
}

static const char *const versions[] = {"name", "version", NULL};
static const char *const names[] = {"name", NULL};

// Of runs by their samples: rows of one model.
static void merge_batches(json_t *to, const json_t *from)
{
    static const char *const samples[] = {"samples", NULL};
    static const merge_rule rule = {samples, NULL};
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)from, i, v)
    {
        json_t *row = row_like(to, v, samples);
        if (row != NULL) {
            merge_into(row, v, &rule);
        } else {
            json_array_append_new(to, json_deep_copy(v));
        }
    }
}

static void stats_models(json_t *to, const json_t *from, const char *name)
{
    static const char *const keep[] = {"name",         "version", "device",  "tenant",
                                       "weight_bytes", "batches", "devices", NULL};
    static const char *const most[] = {"last_ms", "quantiles_ns", "arena_bytes", NULL};
    static const merge_rule rule = {keep, most};
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)from, i, v)
    {
        json_t *row = row_like(to, v, versions);
        if (row != NULL) {
            merge_batches(json_object_get(row, "batches"), json_object_get(v, "batches"));
        }
    }
    rows_merge(to, from, name, versions, &rule);
}

// A limit holds on each device: theirs are added, as what is used is.
static const char *const tenant_keep[] = {"name", "devices", "weight", NULL};
static const merge_rule tenant_rule = {tenant_keep, NULL};

static json_t *merge_tenants(docs_t *docs, const char *const *name, int n)
{
    json_t *rows = json_array();
    for (int i = 0; i < n; i++) {
        if (docs[i] != NULL) {
            rows_merge(rows, json_object_get(docs[i], "tenants"), name[i], names, &tenant_rule);
        }
    }
    return json_pack("{s:o}", "tenants", rows);
}

static json_t *merge_stats(docs_t *docs, const char *const *name, int n)
{
    static const merge_rule sum = {NULL, NULL};
    json_t *ledger = json_object(), *residency = json_object(), *models = json_array();
    json_t *waits = json_object(), *jobs = json_array(), *tenants = json_array(),
           *devices = json_array();
    for (int i = 0; i < n; i++) {
        if (docs[i] == NULL) {
            continue;
        }
        json_t *one = json_object_get(docs[i], "ledger"), *row = json_deep_copy(one);
        merge_into(ledger, one, &sum);
        merge_into(residency, json_object_get(docs[i], "residency"), &sum);
        stats_models(models, json_object_get(docs[i], "models"), name[i]);
        rows_append(jobs, json_object_get(docs[i], "jobs"), name[i]);
        rows_merge(tenants, json_object_get(docs[i], "tenants"), name[i], names, &tenant_rule);
        merge_into(waits, json_object_get(docs[i], "memory_waits"), &sum);
        json_object_set_new(row, "name", json_string(name[i]));
        if (json_object_get(docs[i], "gpu") != NULL) {
            json_object_set(row, "gpu", json_object_get(docs[i], "gpu"));
        }
        json_array_append_new(devices, row);
    }
    json_t *out = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "memory_waits", waits, "ledger",
                            ledger, "residency", residency, "models", models, "jobs", jobs,
                            "tenants", tenants, "devices", devices);
    for (int i = 0; i < n && json_object_get(out, "store") == NULL; i++) { // they have one
        json_object_set(out, "store", json_object_get(docs[i], "store"));
    }
    return out;
}

static const char *const latency_keep[] = {"name",      "version", "slot_seconds", "series",
                                           "histogram", "models",  "devices",      NULL};
static const char *const latency_most[] = {"seconds", "p50_ns",     "p90_ns",
                                           "p99_ns",  "longest_ns", NULL};
static const merge_rule latency_rule = {latency_keep, latency_most};

// Series end with the interval of now, however far back they go: the oldest come first.
static json_t *merge_series(docs_t *docs, int n)
{
    json_t *out = json_array();
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t have = json_array_size(json_object_get(docs[i], "series"));
        most = have > most ? have : most;
    }
    for (size_t back = most; back > 0; back--) {
        json_t *interval = json_object();
        for (int i = 0; i < n; i++) {
            const json_t *series = json_object_get(docs[i], "series");
            if (json_array_size(series) >= back) {
                merge_into(interval, json_array_get(series, json_array_size(series) - back),
                           &latency_rule);
            }
        }
        json_array_append_new(out, interval);
    }
    return out;
}

static void sum_histogram(const json_t *from, hth_latency_sum *sum)
{
    size_t i;
    json_t *v;
    int k = 0;
    json_array_foreach((json_t *)from, i, v)
    {
        uint64_t begins = (uint64_t)json_integer_value(json_array_get(v, 0));
        while (k < HTH_LATENCY_BUCKETS - 1 && hth_latency_bucket(k) < begins) {
            k++;
        }
        sum->count[k] += (uint64_t)json_integer_value(json_array_get(v, 2));
        sum->requests += (uint64_t)json_integer_value(json_array_get(v, 2));
    }
}

static json_t *merge_latency(docs_t *docs, const char *const *name, int n)
{
    json_t *out = json_object(), *models = json_array();
    hth_latency_sum sum = {.requests = 0};
    for (int i = 0; i < n; i++) {
        if (docs[i] != NULL) {
            merge_into(out, docs[i], &latency_rule);
            sum_histogram(json_object_get(docs[i], "histogram"), &sum);
            rows_merge(models, json_object_get(docs[i], "models"), name[i], versions,
                       &latency_rule);
        }
    }
    sum.longest_ns = (uint64_t)number(out, "longest_ns");
    json_object_update_new(out, json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "p50_ns",
                                          (json_int_t)hth_latency_percentile(&sum, 0.5), "p90_ns",
                                          (json_int_t)hth_latency_percentile(&sum, 0.9), "p99_ns",
                                          (json_int_t)hth_latency_percentile(&sum, 0.99), "series",
                                          merge_series(docs, n), "histogram",
                                          hth_latency_histogram(&sum), "models", models));
    return out;
}

// A version that is ready on one device is ready.
static json_t *merge_loaded(docs_t *docs, const char *const *name, int n)
{
    static const char *const keep[] = {"name", "version", "state", "reason", "devices", NULL};
    static const merge_rule rule = {keep, NULL};
    json_t *rows = json_array(), *v;
    size_t k;
    for (int i = 0; i < n; i++) {
        json_array_foreach(json_object_get(docs[i], "models"), k, v)
        {
            json_t *row = row_like(rows, v, versions);
            if (row != NULL && strcmp(text(v, "state"), "READY") == 0) {
                json_object_set(row, "state", json_object_get(v, "state"));
                json_object_set(row, "reason", json_object_get(v, "reason"));
            }
        }
        rows_merge(rows, json_object_get(docs[i], "models"), name[i], versions, &rule);
    }
    return json_pack("{s:o}", "models", rows);
}

// job_liveness orders what devices say about one job: the others know only its checkpoint.
static int job_liveness(const json_t *row)
{
    static const char *const words[] = {"paused", "queued", "waiting", "running"};
    int live = 0;
    for (int i = 0; i < 4; i++) {
        live = strcmp(text(row, "state"), words[i]) == 0 ? i + 1 : live;
    }
    return live;
}

static json_t *merge_jobs(docs_t *docs, const char *const *name, int n)
{
    static const char *const keys[] = {"job", "ended_ns", "id", NULL};
    json_t *rows = json_array(), *v;
    size_t k;
    for (int i = 0; i < n; i++) {
        json_array_foreach(docs[i], k, v)
        {
            bool named = json_is_string(json_object_get(v, "job")); // else another tenant's
            json_t *row = named ? row_like(rows, v, keys) : NULL, *mine = json_deep_copy(v);
            bool here = job_liveness(v) > 1;
            json_object_set_new(mine, "device", here ? json_string(name[i]) : json_null());
            if (row == NULL) {
                json_array_append_new(rows, mine);
            } else {
                if (job_liveness(v) > job_liveness(row)) {
                    json_object_update(row, mine);
                }
                json_decref(mine);
            }
        }
    }
    return rows;
}

// The step that was measured last.
static json_t *merge_timeline(docs_t *docs, const char *const *name, int n)
{
    int last = -1;
    for (int i = 0; i < n; i++) {
        bool some = json_is_string(json_object_get(docs[i], "job"));
        if (some && (last < 0 || number(docs[i], "age_ms") < number(docs[last], "age_ms"))) {
            last = i;
        }
    }
    for (int i = 0; i < n && last < 0; i++) {
        last = docs[i] != NULL ? i : -1;
    }
    json_t *out = last >= 0 ? json_deep_copy(docs[last]) : NULL;
    json_object_set_new(out, "device", last >= 0 ? json_string(name[last]) : NULL);
    return out;
}

static json_t *merge_unload(docs_t *docs, const char *const *name, int n)
{
    static const char *const keep[] = {"name", NULL};
    static const merge_rule rule = {keep, NULL};
    json_t *out = json_object();
    for (int i = 0; i < n; i++) {
        merge_into(out, docs[i], &rule);
    }
    return out;
}

// Of commands whose answer is the same everywhere, or one device's.
static json_t *merge_first(docs_t *docs, const char *const *name, int n)
{
    for (int i = 0; i < n; i++) {
        if (docs[i] != NULL) {
            return json_deep_copy(docs[i]);
        }
    }
    return NULL;
}

json_t *hth_router_merge(hth_command_id command, json_t *const *docs, const char *const *name,
                         int count)
{
    static json_t *(*const merge[HTH_COMMANDS])(docs_t * docs, const char *const *name,
                                                int count) = {
#define MERGE_ROW(ID, word, need, traits, asked, merge, ...) [HTH_COMMAND_##ID] = merge_##merge,
        HTH_COMMAND_TABLE(MERGE_ROW)};
    assert(merge[command] != NULL);
    return merge[command](docs, name, count);
}
