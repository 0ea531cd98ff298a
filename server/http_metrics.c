// SPDX-License-Identifier: Apache-2.0
// /metrics, on a port of its own: the engine's counts per model by the names that Triton's users
// know (nv_*, where we have the same thing), and the ledger of the device's memory (hearth_*).
#include "server/http_call.h"
#include "server/http_json.h"

#include <stdio.h>
#include <string.h>

// A counter of a model: where it is in the engine's answer, and by what it is divided.
typedef struct metric {
    const char *name, *type, *help, *group, *key;
    int divisor;
} metric;

static const metric metric_table[] = {
    {"nv_inference_count", "counter", "elements of batches that were inferred", "times", "samples",
     1},
    {"nv_inference_request_duration_us", "counter", "time of successful requests", "times",
     "success_ns", 1000},
    {"nv_inference_queue_duration_us", "counter", "time in the queue", "times", "queue_ns", 1000},
    {"nv_inference_compute_input_duration_us", "counter", "time until the outputs had a place",
     "times", "input_ns", 1000},
    {"nv_inference_compute_infer_duration_us", "counter", "time of the model", "times", "infer_ns",
     1000},
    {"hearth_model_requests", "counter", "requests, failed ones too", "", "requests", 1},
    {"hearth_model_busy_us", "counter", "time that the engine spent on the model", "", "busy_ns",
     1000},
    {"hearth_model_weight_bytes", "gauge", "bytes of all weights, in the store", "", "weight_bytes",
     1},
    {"hearth_model_private_bytes", "gauge", "resident weights that no other model uses", "",
     "resident_private_bytes", 1},
    {"hearth_model_shared_bytes", "gauge", "resident weights that other models use too", "",
     "resident_shared_bytes", 1},
    {"hearth_model_pinned_bytes", "gauge", "resident weights that stay whoever needs the room", "",
     "pinned_bytes", 1},
    {"hearth_model_mapped_bytes", "gauge", "weights used where the store maps them", "",
     "mapped_bytes", 1},
    {"hearth_model_host_bytes", "gauge", "copies in host memory", "", "host_bytes", 1},
    {"hearth_model_arena_bytes", "gauge", "largest arena of the model's programs", "",
     "arena_bytes", 1},
};

static void metric_head(hth_text *out, const char *name, const char *type, const char *help)
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

static void metric_line(hth_text *out, const char *name, const json_t *m, const char *more,
                        json_int_t v)
{
    hth_text_put(out, name);
    hth_text_put(out, "{model=");
    hth_text_quoted(out, json_string_value(json_object_get(m, "name")));
    hth_text_put(out, ",version=\"");
    hth_text_int(out, json_integer_value(json_object_get(m, "version")));
    hth_text_put(out, "\"");
    hth_text_put(out, more);
    hth_text_put(out, "} ");
    hth_text_int(out, v);
    hth_text_put(out, "\n");
}

static json_int_t of_model(const json_t *m, const char *key)
{
    return json_integer_value(json_object_get(m, key));
}

static void metrics_models(hth_text *out, const json_t *models)
{
    const json_t *m;
    size_t i;
    metric_head(out, "nv_inference_request_success", "counter", "requests answered with a result");
    json_array_foreach(models, i, m)
    {
        metric_line(out, "nv_inference_request_success", m, "",
                    of_model(m, "requests") - of_model(m, "failures"));
    }
    metric_head(out, "nv_inference_exec_count", "counter", "times that the model was run");
    json_array_foreach(models, i, m)
    {
        metric_line(out, "nv_inference_exec_count", m, "", of_model(m, "executions"));
    }
    metric_head(out, "nv_inference_request_failure", "counter", "requests answered with an error");
    json_array_foreach(models, i, m)
    {
        metric_line(out, "nv_inference_request_failure", m, ",reason=\"OTHER\"",
                    of_model(m, "failures"));
    }
    for (size_t k = 0; k < sizeof metric_table / sizeof metric_table[0]; k++) {
        const metric *t = &metric_table[k];
        metric_head(out, t->name, t->type, t->help);
        json_array_foreach(models, i, m)
        {
            metric_line(out, t->name, m, "",
                        of_model(t->group[0] != 0 ? json_object_get(m, t->group) : m, t->key) /
                            t->divisor);
        }
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
        metric_head(out, name, "gauge", "of the device's memory");
        hth_text_put(out, name);
        hth_text_put(out, " ");
        hth_text_int(out, json_integer_value(v));
        hth_text_put(out, "\n");
    }
}

// One line for each row of a list: whose bytes they are.
static void metrics_owners(hth_text *out, const char *name, const char *help, const char *label,
                           const json_t *list)
{
    const json_t *row;
    size_t i;
    metric_head(out, name, "gauge", help);
    json_array_foreach(list, i, row)
    {
        const char *tenant = json_string_value(json_object_get(row, "tenant"));
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
        hth_text_int(out, json_integer_value(json_object_get(row, "device_bytes")));
        hth_text_put(out, "\n");
    }
}

static void metrics_finish(hth_http_call *c)
{
    json_t *doc = hth_http_answer(c);
    if (doc == NULL) {
        return;
    }
    hth_text out = {.p = NULL};
    struct evbuffer *body = evbuffer_new();
    metrics_models(&out, json_object_get(doc, "models"));
    metrics_ledger(&out, "ledger", json_object_get(doc, "ledger"));
    metrics_ledger(&out, "residency", json_object_get(doc, "residency"));
    metrics_owners(&out, "hearth_tenant_device_bytes", "what those that asked for them have there",
                   "tenant", json_object_get(doc, "tenants"));
    metrics_owners(&out, "hearth_job_device_bytes", "of training jobs", "job",
                   json_object_get(doc, "jobs"));
    if (out.failed || body == NULL || evbuffer_add(body, out.p, out.n) != 0) {
        hth_http_fail(c->h, c->req, HTTP_SERVUNAVAIL, "out of memory for the metrics");
    } else {
        hth_http_send(c->h, c->req, HTTP_OK, "text/plain; charset=utf-8", body);
    }
    if (body != NULL) {
        evbuffer_free(body);
    }
    hth_text_fini(&out);
    json_decref(doc);
}

void hth_http_metrics(hth_http *h, struct evhttp_request *req)
{
    static const hth_http_args none = {.version = 0};
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    if (path == NULL || strcmp(path, "/metrics") != 0) {
        hth_http_fail(h, req, HTTP_NOTFOUND, "Not Found");
    } else if (evhttp_request_get_command(req) != EVHTTP_REQ_GET) {
        hth_http_fail(h, req, HTTP_BADMETHOD, "Method Not Allowed");
    } else {
        hth_http_ask(h, req, &none, "stats", metrics_finish);
    }
}
