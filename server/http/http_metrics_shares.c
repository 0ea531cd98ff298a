// SPDX-License-Identifier: Apache-2.0
// The shares of tenants on each device, for /metrics: gauges with the labels device and tenant. Of
// jobs it counts those that run and wait; their names and reasons, which only their owners get, are
// no labels.
#include "server/http/http_metrics_impl.h"

#include <string.h>

typedef struct share_metric {
    const char *name, *key, *help;
} share_metric;

static const share_metric share_table[] = {
    {"hearth_tenant_weight", "weight", "of tenants with jobs"},
    {"hearth_tenant_share", "share", "of a resource of the device, 0 to 1"},
    {"hearth_tenant_dominant_share", "dominant_share", "the largest of its shares"},
    {"hearth_tenant_entitlement", "entitlement", "its weight among tenants with jobs, 0 to 1"},
    {"hearth_tenant_jobs_running", "jobs_running", "training jobs at work"},
    {"hearth_tenant_jobs_waiting", "waiting", "training jobs that wait, by what they wait for"},
    {"hearth_tenant_job_wait_seconds", "wait_seconds", "until the next of them is to start"}};

// Whose line it is.
typedef struct share_of {
    const char *device, *tenant;
} share_of;

// share_line writes one line, with a third label or (NULL) without one.
static void share_line(hth_text *out, const char *name, const share_of *of, const char *label,
                       const char *value, double v)
{
    hth_text_put(out, name);
    hth_text_put(out, "{device=");
    hth_text_quoted(out, of->device);
    hth_text_put(out, ",tenant=");
    hth_text_quoted(out, of->tenant);
    if (label != NULL) {
        hth_text_put(out, ",");
        hth_text_put(out, label);
        hth_text_put(out, "=");
        hth_text_quoted(out, value);
    }
    hth_text_put(out, "} ");
    hth_metric_real(out, v);
}

// share_waiting counts a tenant's jobs by what they wait for.
static void share_waiting(hth_text *out, const char *name, const share_of *of, const json_t *jobs)
{
    static const char *const words[] = {"job", "memory", "retry", "share", "tenant", "turn"};
    const json_t *job;
    size_t i;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        int n = 0;
        json_array_foreach(jobs, i, job)
        {
            const char *word = json_string_value(json_object_get(job, "waits_for"));
            n += word != NULL && strcmp(word, words[w]) == 0;
        }
        share_line(out, name, of, "for", words[w], n);
    }
}

// share_wait writes when the first of a tenant's jobs is predicted to start, if that is known.
static void share_wait(hth_text *out, const char *name, const share_of *of, const json_t *jobs)
{
    double least = -1;
    const json_t *job;
    size_t i;
    json_array_foreach(jobs, i, job)
    {
        const json_t *seconds = json_object_get(job, "wait_seconds");
        double s = json_number_value(seconds);
        if (json_is_number(seconds) && (least < 0 || s < least)) {
            least = s;
        }
    }
    if (least >= 0) {
        share_line(out, name, of, NULL, NULL, least);
    }
}

static void share_resources(hth_text *out, const char *name, const share_of *of, json_t *shares)
{
    const char *resource;
    json_t *v;
    json_object_foreach(shares, resource, v)
    {
        if (json_is_number(v)) {
            share_line(out, name, of, "resource", resource, json_number_value(v));
        }
    }
}

// share_lines writes a metric's lines for a tenant; none for what is not known. The dominant share
// has its resource as a label.
static void share_lines(hth_text *out, const share_metric *metric, const share_of *of,
                        const json_t *tenant)
{
    json_t *v = json_object_get(tenant, metric->key), *jobs = json_object_get(tenant, "waiting");
    const char *dominant = json_string_value(json_object_get(tenant, "dominant"));
    if (strcmp(metric->key, "waiting") == 0) {
        share_waiting(out, metric->name, of, jobs);
    } else if (strcmp(metric->key, "wait_seconds") == 0) {
        share_wait(out, metric->name, of, jobs);
    } else if (json_is_object(v)) {
        share_resources(out, metric->name, of, v);
    } else if (strcmp(metric->key, "dominant_share") == 0 && dominant != NULL) {
        share_line(out, metric->name, of, "resource", dominant, json_number_value(v));
    } else if (json_is_number(v)) {
        share_line(out, metric->name, of, NULL, NULL, json_number_value(v));
    }
}

void hth_metrics_shares(hth_text *out, const json_t *devices)
{
    const json_t *device, *tenant;
    size_t i, k;
    for (size_t n = 0; n < sizeof share_table / sizeof *share_table && devices != NULL; n++) {
        const share_metric *metric = &share_table[n];
        hth_metric_head(out, metric->name, "gauge", metric->help);
        json_array_foreach(devices, i, device)
        {
            share_of of = {.device = json_string_value(json_object_get(device, "device"))};
            json_array_foreach(json_object_get(device, "tenants"), k, tenant)
            {
                of.tenant = json_string_value(json_object_get(tenant, "tenant"));
                share_lines(out, metric, &of, tenant);
            }
        }
    }
}
