// SPDX-License-Identifier: Apache-2.0
// /metrics, on a port of its own: the engine's counts per model by the names that Triton's users
// know (nv_*, where we have the same thing), the ledger of the device's memory, the process's
// counters (hearth_*), and the machine's processors and memory.
#include "server/http/http_call.h"
#include "server/http/http_metrics_impl.h"
#include "server/http/tensors/http_json.h"
#include "runtime/model.h"

#include "base/stats.h"

#include <stdio.h>
#include <string.h>

// A number of a model: where it is in the engine's answer, and by what it is divided.
typedef struct metric {
    const char *name, *type, *help, *group, *key;
    int divisor;
} metric;

static const metric metric_table[] = {
    {"nv_inference_count", "counter", "elements of batches that were inferred", "times", "samples",
     1},
    {"nv_inference_exec_count", "counter", "runs, each for one or several requests", "",
     "executions", 1},
    {"nv_inference_request_duration_us", "counter", "time of successful requests", "times",
     "success_ns", 1000},
    {"nv_inference_queue_duration_us", "counter", "time in the queue", "times", "queue_ns", 1000},
    {"nv_inference_compute_input_duration_us", "counter", "time to allocate outputs", "times",
     "input_ns", 1000},
    {"nv_inference_compute_infer_duration_us", "counter", "time of the model", "times", "infer_ns",
     1000},
    {"nv_inference_compute_output_duration_us", "counter",
     "time to split the outputs of batched requests", "times", "output_ns", 1000},
    {"nv_inference_pending_request_count", "gauge", "queued requests", "", "queued", 1},
    {"hearth_model_requests", "counter", "requests, including failed ones", "", "requests", 1},
    {"hearth_model_busy_us", "counter", "time that the engine computed for the model", "",
     "busy_ns", 1000},
    {"hearth_model_weight_bytes", "gauge", "bytes of all weights in the store", "", "weight_bytes",
     1},
    {"hearth_model_private_bytes", "gauge", "resident weights that no other model uses", "",
     "resident_private_bytes", 1},
    {"hearth_model_shared_bytes", "gauge", "resident weights that other models use too", "",
     "resident_shared_bytes", 1},
    {"hearth_model_pinned_bytes", "gauge", "resident weights that are pinned", "", "pinned_bytes",
     1},
    {"hearth_model_mapped_bytes", "gauge", "weights used in place, mapped from the store", "",
     "mapped_bytes", 1},
    {"hearth_model_host_bytes", "gauge", "copies in host memory", "", "host_bytes", 1},
    {"hearth_model_arena_bytes", "gauge", "largest arena of the model's programs", "",
     "arena_bytes", 1},
};

void hth_metric_head(hth_text *out, const char *name, const char *type, const char *help)
{
    hth_text_put(out, "# HELP ");
    hth_text_put(out, name);
    hth_text_put(out, " ");
    hth_text_put(out, help);
    hth_text_put(out, "\n# TYPE ");
    hth_text_put(out, name);
    hth_text_put(out, " ");
    hth_text_put(out, type);
    hth_text_put(out, "\n");
}

// metric_labels begins a line about a model: all but the value.
static void metric_labels(hth_text *out, const char *name, const json_t *json, const char *more)
{
    hth_text_put(out, name);
    hth_text_put(out, "{model=");
    hth_text_quoted(out, json_string_value(json_object_get(json, "name")));
    hth_text_put(out, ",version=\"");
    hth_text_int(out, json_integer_value(json_object_get(json, "version")));
    hth_text_put(out, "\"");
    hth_text_put(out, more);
    hth_text_put(out, "} ");
}

static void metric_int(hth_text *out, json_int_t v)
{
    hth_text_int(out, v);
    hth_text_put(out, "\n");
}

void hth_metric_real(hth_text *out, double v)
{
    char text[64];
    snprintf(text, sizeof text, "%.6f\n", v);
    hth_text_put(out, text);
}

static void metric_line(hth_text *out, const char *name, const json_t *json, const char *more,
                        json_int_t v)
{
    metric_labels(out, name, json, more);
    metric_int(out, v);
}

static json_int_t of_model(const json_t *json, const char *key)
{
    return json_integer_value(json_object_get(json, key));
}

static json_int_t at_index(const json_t *json, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(json, key), i));
}

// metrics_failures: the reasons are in the order of hth_failure.
static void metrics_failures(hth_text *out, const json_t *models)
{
    static const char *const reason[] = {",reason=\"REJECTED\"", ",reason=\"CANCELED\"",
                                         ",reason=\"BACKEND\"", ",reason=\"OTHER\""};
    const json_t *m;
    size_t i;
    hth_metric_head(out, "nv_inference_request_failure", "counter",
                    "requests answered with an error");
    json_array_foreach(models, i, m)
    {
        for (size_t k = 0; k < sizeof reason / sizeof reason[0]; k++) {
            metric_line(out, "nv_inference_request_failure", m, reason[k],
                        at_index(m, "failed", k));
        }
    }
}

static json_int_t successes(const json_t *json)
{
    return of_model(json, "requests") - of_model(json, "failures");
}

// metrics_answers: a request here has one answer, which is its first.
static void metrics_answers(hth_text *out, const json_t *models)
{
    static const int bound[] = {HTH_ANSWER_BOUNDS};
    static const char name[] = "nv_inference_first_response_histogram_ms";
    const json_t *m;
    char line[80];
    size_t i;
    hth_metric_head(out, name, "histogram", "latency of successful requests");
    json_array_foreach(models, i, m)
    {
        snprintf(line, sizeof line, "%s_count", name);
        metric_line(out, line, m, "", successes(m));
        snprintf(line, sizeof line, "%s_sum", name);
        metric_labels(out, line, m, "");
        hth_metric_real(out, (double)of_model(json_object_get(m, "times"), "success_ns") / 1e6);
        snprintf(line, sizeof line, "%s_bucket", name);
        for (size_t k = 0; k < sizeof bound / sizeof bound[0]; k++) {
            char le[24];
            snprintf(le, sizeof le, ",le=\"%d\"", bound[k]);
            metric_line(out, line, m, le, at_index(m, "answered", k));
        }
        metric_line(out, line, m, ",le=\"+Inf\"", successes(m));
    }
}

// metrics_summaries: percentiles of the last minute; count and sum are of all time, as counters
// are.
static void metrics_summaries(hth_text *out, const json_t *models)
{
    static const char *const quantile[] = {"0.5", "0.9", "0.95", "0.99", "0.999"};
    static const char name[] = "nv_inference_request_summary_us";
    const json_t *m;
    char line[80];
    size_t i;
    hth_metric_head(out, name, "summary",
                    "latency of successful requests, percentiles over a minute");
    json_array_foreach(models, i, m)
    {
        bool any = json_array_size(json_object_get(m, "quantiles_ns")) > 0;
        for (size_t k = 0; k < sizeof quantile / sizeof quantile[0]; k++) {
            snprintf(line, sizeof line, ",quantile=\"%s\"", quantile[k]);
            metric_labels(out, name, m, line);
            if (any) {
                hth_metric_real(out, (double)at_index(m, "quantiles_ns", k) / 1e3);
            } else {
                hth_text_put(out, "NaN\n");
            }
        }
        snprintf(line, sizeof line, "%s_sum", name);
        metric_line(out, line, m, "", of_model(json_object_get(m, "times"), "success_ns") / 1000);
        snprintf(line, sizeof line, "%s_count", name);
        metric_line(out, line, m, "", successes(m));
    }
}

static void metrics_models(hth_text *out, const json_t *models)
{
    const json_t *m;
    size_t i;
    hth_metric_head(out, "nv_inference_request_success", "counter",
                    "requests answered with a result");
    json_array_foreach(models, i, m)
    {
        metric_line(out, "nv_inference_request_success", m, "", successes(m));
    }
    metrics_failures(out, models);
    for (size_t k = 0; k < sizeof metric_table / sizeof metric_table[0]; k++) {
        const metric *t = &metric_table[k];
        hth_metric_head(out, t->name, t->type, t->help);
        json_array_foreach(models, i, m)
        {
            metric_line(out, t->name, m, "",
                        of_model(t->group[0] != 0 ? json_object_get(m, t->group) : m, t->key) /
                            t->divisor);
        }
    }
    hth_metric_head(out, "nv_model_load_duration_secs", "gauge", "time to load the model");
    json_array_foreach(models, i, m)
    {
        metric_labels(out, "nv_model_load_duration_secs", m, "");
        hth_metric_real(out, (double)of_model(m, "load_ns") / 1e9);
    }
    metrics_answers(out, models);
    char on[HTH_SETTING_TEXT];
    if (strcmp(hth_setting_text(HTH_SET_METRICS_SUMMARIES, on), "true") == 0) {
        metrics_summaries(out, models);
    }
}

// ---- the machine and the process

static void metrics_one(hth_text *out, const char *name, const char *type, const char *help,
                        uint64_t v)
{
    hth_metric_head(out, name, type, help);
    hth_text_put(out, name);
    hth_text_put(out, " ");
    metric_int(out, (json_int_t)v);
}

static void metrics_machine(hth_text *out, hth_machine *machine)
{
    hth_machine_read(machine);
    hth_metric_head(out, "nv_cpu_utilization", "gauge",
                    "of all processors since the last time this was asked, 0.0 to 1.0");
    hth_text_put(out, "nv_cpu_utilization ");
    hth_metric_real(out, machine->utilization);
    metrics_one(out, "nv_cpu_memory_total_bytes", "gauge", "the machine's memory",
                machine->total_bytes);
    metrics_one(out, "nv_pinned_memory_pool_total_bytes", "gauge",
                "host memory registered with a GPU: there is none", 0);
    metrics_one(out, "nv_pinned_memory_pool_used_bytes", "gauge", "what of it is used", 0);
    metrics_one(out, "nv_cpu_memory_used_bytes", "gauge", "what of it is not available",
                machine->used_bytes);
}

static void metrics_process(hth_text *out)
{
    for (int i = 0; i < HTH_N_STATS; i++) {
        const hth_stat_info *s = hth_stat_get_info((hth_stat)i);
        char name[96];
        snprintf(name, sizeof name, "hearth_%s_total", s->name);
        metrics_one(out, name, "counter", s->help, hth_stat_get((hth_stat)i));
    }
}

static void metrics_ledger(hth_text *out, const char *group, json_t *ledger)
{
    const char *key;
    json_t *v;
    json_object_foreach(ledger, key, v)
    {
        char name[96];
        snprintf(name, sizeof name, "hearth_%s_%s", group, key);
        metrics_one(out, name, "gauge", "of the device's memory", (uint64_t)json_integer_value(v));
    }
}

// One line for each row of a list: whose bytes they are.
static void metrics_owners(hth_text *out, const char *name, const char *kind, const char *help,
                           const char *label, const char *key, const json_t *list)
{
    const json_t *row;
    size_t i;
    hth_metric_head(out, name, kind, help);
    json_array_foreach(list, i, row)
    {
        const char *tenant = json_string_value(json_object_get(row, "tenant"));
        if (!json_is_integer(json_object_get(row, key))) { // no limit
            continue;
        }
        hth_text_put(out, name);
        hth_text_put(out, "{");
        hth_text_put(out, label);
        hth_text_put(out, "=");
        hth_text_quoted(out, json_string_value(json_object_get(row, "name")));
        if (tenant != NULL) {
            hth_text_put(out, ",tenant=");
            hth_text_quoted(out, tenant);
        }
        hth_text_put(out, "} ");
        hth_text_int(out, json_integer_value(json_object_get(row, key)));
        hth_text_put(out, "\n");
    }
}

// metrics_devices tells of each device's memory, where there are several.
static void metrics_devices(hth_text *out, const json_t *devices)
{
    static const char *const keys[] = {"budget_bytes", "weight_bytes", "arena_bytes", "job_bytes",
                                       "free_bytes"};
    const json_t *row;
    size_t i;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0] && json_array_size(devices) > 0; k++) {
        char name[96];
        snprintf(name, sizeof name, "hearth_device_%s", keys[k]);
        hth_metric_head(out, name, "gauge", "of one device's memory");
        json_array_foreach(devices, i, row)
        {
            hth_text_put(out, name);
            hth_text_put(out, "{device=");
            hth_text_quoted(out, json_string_value(json_object_get(row, "name")));
            hth_text_put(out, "} ");
            metric_int(out, of_model(row, keys[k]));
        }
    }
}

static void metrics_gpu_line(hth_text *out, const char *name, const json_t *gpu, const char *key)
{
    hth_text_put(out, name);
    hth_text_put(out, "{gpu_uuid=");
    hth_text_quoted(out, json_string_value(json_object_get(gpu, "uuid")));
    hth_text_put(out, "} ");
    metric_int(out, of_model(gpu, key));
}

// GPUs are the only device, or among several.
static void metrics_gpus(hth_text *out, const json_t *doc)
{
    static const struct {
        const char *name, *key, *help;
    } table[] = {{"nv_gpu_memory_total_bytes", "total_bytes", "the GPU's memory"},
                 {"nv_gpu_memory_used_bytes", "used_bytes", "what of it any process uses"}};
    const json_t *rows = json_object_get(doc, "devices"), *only = json_object_get(doc, "gpu"), *row;
    size_t i;
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        bool headed = false;
        if (only != NULL) {
            hth_metric_head(out, table[k].name, "gauge", table[k].help);
            metrics_gpu_line(out, table[k].name, only, table[k].key);
        }
        json_array_foreach(rows, i, row)
        {
            const json_t *gpu = json_object_get(row, "gpu");
            if (gpu != NULL && !headed) {
                hth_metric_head(out, table[k].name, "gauge", table[k].help);
                headed = true;
            }
            if (gpu != NULL) {
                metrics_gpu_line(out, table[k].name, gpu, table[k].key);
            }
        }
    }
}

static void metrics_tenants(hth_text *out, const json_t *list)
{
    static const struct {
        const char *name, *kind, *key, *help;
    } row[] = {
        {"hearth_tenant_device_bytes", "gauge", "device_bytes",
         "what those that asked for them have there"},
        {"hearth_tenant_memory_bytes", "gauge", "memory_bytes", "what counts for their limit"},
        {"hearth_tenant_memory_limit_bytes", "gauge", "memory_limit", "of those that have one"},
        {"hearth_tenant_waiting", "gauge", "waiting", "requests"},
        {"hearth_tenant_waiting_limit", "gauge", "waiting_limit", "of those that have one"},
        {"hearth_tenant_jobs", "gauge", "jobs", "at work, waiting or paused"},
        {"hearth_tenant_jobs_limit", "gauge", "jobs_limit", "of those that have one"},
        {"hearth_tenant_run_ns_total", "counter", "run_ns", "what their requests' runs took"},
        {"hearth_tenant_refused_total", "counter", "refused", "for a limit"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        metrics_owners(out, row[i].name, row[i].kind, row[i].help, "tenant", row[i].key, list);
    }
}

// metrics_store tells of what is stored; times in seconds since 1970.
static void metrics_store(hth_text *out, const json_t *store)
{
    static const struct {
        const char *name, *key, *help;
        int divisor;
    } row[] = {
        {"hearth_store_damaged_tensors", "damaged_tensors",
         "tensors known to be damaged, which are not used", 1},
        {"hearth_store_index_damages", "index_damages",
         "what was wrong with the store's index when it was read last", 1},
        {"hearth_store_tensors", "tensors", "tensors with a file, when they were read last", 1},
        {"hearth_store_bytes", "bytes", "their bytes", 1},
        {"hearth_store_scrubbed_seconds", "scrubbed_ns",
         "when all that was due had been read, since 1970; 0: never", 1000000000},
        {"hearth_store_oldest_read_seconds", "oldest_read_ns",
         "when the tensor that was read longest ago was read, since 1970", 1000000000},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0] && store != NULL; i++) {
        metrics_one(out, row[i].name, "gauge", row[i].help,
                    (uint64_t)of_model(store, row[i].key) / (uint64_t)row[i].divisor);
    }
}

hth_err hth_http_write_metrics(hth_http *http, const json_t *doc, bool far, hth_text *out)
{
    metrics_models(out, json_object_get(doc, "models"));
    metrics_ledger(out, "ledger", json_object_get(doc, "ledger"));
    metrics_ledger(out, "residency", json_object_get(doc, "residency"));
    metrics_devices(out, json_object_get(doc, "devices"));
    metrics_gpus(out, doc);
    metrics_tenants(out, json_object_get(doc, "tenants"));
    hth_metrics_shares(out, json_object_get(json_object_get(doc, "further"), "devices"));
    metrics_owners(out, "hearth_job_device_bytes", "gauge", "of a tenant's training jobs", "tenant",
                   "job_bytes", json_object_get(doc, "tenants"));
    metrics_store(out, json_object_get(doc, "store"));
    metrics_process(out);
    metrics_machine(out, &http->machine);
    return HTH_OK;
}

void hth_http_metrics(hth_http *http, hth_http_req *req)
{
    hth_http_verb verb = req->head.verb;
    if (strcmp(req->head.path, "/metrics") != 0) {
        hth_http_fail(http, req, 404, "Not Found");
    } else if (verb != HTH_VERB_GET && verb != HTH_VERB_HEAD) {
        hth_http_add(req, "Allow", HTH_HTTP_ALLOW_GET);
        hth_http_fail(http, req, 405, "Method Not Allowed");
    } else {
        hth_http_list_request(http, req, HTH_HTTP_LIST_METRICS);
    }
}
