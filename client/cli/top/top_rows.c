// SPDX-License-Identifier: Apache-2.0
// What a sample knows by the question "shares": each tenant's share of the device that it uses most
// of, and the jobs that wait. A server that does not know the question is asked for its jobs only.
// And the rows of the tables: a sample's lists with what people read, in the order of the columns.
// Counters that only the next sample needs are left out, shares are in per cent.
#include "client/cli/top/top_sample.h"

#include <string.h>

static const char *share_text(const json_t *json, const char *key)
{
    const char *s = json_string_value(json_object_get(json, key));
    return s != NULL ? s : "";
}

static double share_real(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

// share_of finds a tenant's row on a device, NULL: it has none.
static const json_t *share_of(const json_t *device, const char *tenant)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(device, "tenants"), i, row)
    {
        if (strcmp(share_text(row, "tenant"), tenant) == 0) {
            return row;
        }
    }
    return NULL;
}

void hth_top_share(const json_t *shares, json_t *row)
{
    static const char *const same[] = {"weight", "dominant_share", "dominant", "entitlement"};
    const char *tenant = share_text(row, "name");
    const json_t *most = NULL, *device, *at;
    json_int_t running = 0, waiting = 0;
    size_t i;
    json_array_foreach(json_object_get(shares, "devices"), i, device)
    {
        at = share_of(device, tenant);
        running += json_integer_value(json_object_get(at, "jobs_running"));
        waiting += json_integer_value(json_object_get(at, "jobs_waiting"));
        bool more = share_real(at, "dominant_share") > share_real(most, "dominant_share");
        most = most == NULL || more ? at : most;
    }
    for (i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *v = json_object_get(most, same[i]);
        json_object_set_new(row, same[i], v != NULL ? json_incref(v) : json_null());
    }
    json_object_set_new(row, "jobs_running", json_integer(running));
    json_object_set_new(row, "jobs_waiting", json_integer(waiting));
}

bool hth_top_waits(const json_t *job)
{
    const char *state = share_text(job, "state");
    return strcmp(state, "waiting") == 0 || strcmp(state, "queued") == 0;
}

// waiting_row describes a job that waits; of another tenant's only that it does.
static json_t *waiting_row(const json_t *job, const json_t *tenant, const json_t *device)
{
    static const char *const keys[] = {"job",          "state",     "memory_bytes",
                                       "wait_seconds", "waits_for", "why"};
    json_t *row = json_pack("{s:O?, s:O?}", "tenant", tenant, "device", device);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = json_object_get(job, keys[i]);
        json_object_set_new(row, keys[i], v != NULL ? json_incref(v) : json_null());
    }
    return row;
}

static void waiting_on(const json_t *device, json_t *out)
{
    size_t i, k;
    const json_t *tenant, *job;
    json_array_foreach(json_object_get(device, "tenants"), i, tenant)
    {
        json_array_foreach(json_object_get(tenant, "waiting"), k, job)
        {
            json_array_append_new(out, waiting_row(job, json_object_get(tenant, "tenant"),
                                                   json_object_get(device, "device")));
        }
    }
}

json_t *hth_top_waiting(const json_t *shares, const json_t *jobs)
{
    json_t *out = json_array();
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(shares, "devices"), i, v)
    {
        waiting_on(v, out);
    }
    json_array_foreach(jobs, i, v)
    {
        if (shares == NULL && hth_top_waits(v)) {
            json_array_append_new(
                out, waiting_row(v, json_object_get(v, "tenant"), json_object_get(v, "device")));
        }
    }
    return out;
}

// ---- rows of the tables

// To three digits, as far as that is shorter: a table prints six.
static void rows_round(json_t *rows, const char *key, double unit)
{
    size_t i;
    json_t *v;
    json_array_foreach(rows, i, v)
    {
        json_t *x = json_object_get(v, key);
        if (json_is_real(x)) {
            json_real_set(x, (double)(long long)(json_real_value(x) / unit + 0.5) * unit);
        }
    }
}

void hth_top_rows_drop(json_t *rows, const char *key)
{
    size_t i;
    json_t *v;
    json_array_foreach(rows, i, v)
    {
        json_object_del(v, key);
    }
}

static json_t *rows_percent(const json_t *part)
{
    return json_is_number(part) ? json_sprintf("%5.1f %%", 100 * json_number_value(part))
                                : json_null();
}

// rows_time is for how long, to two digits.
static json_t *rows_time(const json_t *seconds)
{
    double s = json_number_value(seconds);
    if (!json_is_number(seconds)) {
        return json_null();
    }
    if (s < 60) {
        return json_sprintf(s < 9.95 ? "%.1f s" : "%.0f s", s);
    }
    return s < 5400 ? json_sprintf("%.0f min", s / 60) : json_sprintf("%.1f h", s / 3600);
}

// A resource in a word that a column has room for.
static json_t *rows_resource(const json_t *dominant)
{
    static const char *const words[][2] = {
        {"device_time", "time"}, {"device_memory", "memory"}, {"host_memory", "host memory"}};
    const char *key = json_string_value(dominant);
    for (size_t i = 0; key != NULL && i < sizeof words / sizeof *words; i++) {
        key = strcmp(key, words[i][0]) == 0 ? words[i][1] : key;
    }
    return key != NULL ? json_string(key) : json_null();
}

static json_t *rows_tenant(const json_t *tenant)
{
    static const char *const more[] = {"memory_bytes", "job_bytes", "waiting", "refused"};
    static const char *const named[] = {"memory_bytes", "job_bytes", "requests", "refused"};
    json_t *row =
        json_pack("{s:O?, s:O?, s:o, s:o, s:o, s:O?, s:O?}", "name",
                  json_object_get(tenant, "name"), "weight", json_object_get(tenant, "weight"),
                  "share", rows_percent(json_object_get(tenant, "dominant_share")), "of",
                  rows_resource(json_object_get(tenant, "dominant")), "entitled",
                  rows_percent(json_object_get(tenant, "entitlement")), "running",
                  json_object_get(tenant, "jobs_running"), "waiting",
                  json_object_get(tenant, "jobs_waiting"));
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        json_object_set(row, named[i], json_object_get(tenant, more[i]));
    }
    return row;
}

// rows_why is the reason why a job waits, or of another tenant's job only what it waits for.
static json_t *rows_why(const json_t *job)
{
    static const char *const words[][2] = {
        {"memory", "device memory"},         {"turn", "its turn"},
        {"tenant", "a limit of its tenant"}, {"job", "another job"},
        {"retry", "its next attempt"},       {"share", "tenants under their share"}};
    json_t *why = json_object_get(job, "why");
    const char *word = json_string_value(json_object_get(job, "waits_for"));
    for (size_t i = 0; !json_is_string(why) && word != NULL && i < sizeof words / sizeof *words;
         i++) {
        if (strcmp(word, words[i][0]) == 0) {
            return json_sprintf("waits for %s", words[i][1]);
        }
    }
    return json_is_string(why) ? json_incref(why) : json_null();
}

static json_t *rows_waiting(const json_t *job)
{
    json_t *name = json_object_get(job, "job");
    return json_pack("{s:o, s:O?, s:O?, s:o, s:o}", "waiting_job",
                     json_is_string(name) ? json_incref(name) : json_string("another's"), "tenant",
                     json_object_get(job, "tenant"), "device", json_object_get(job, "device"),
                     "starts_in", rows_time(json_object_get(job, "wait_seconds")), "why",
                     rows_why(job));
}

json_t *hth_top_rows(const json_t *sample, const char *key)
{
    json_t *rows = json_array(), *v;
    bool shares =
        json_object_get(json_array_get(json_object_get(sample, key), 0), "weight") != NULL;
    size_t i;
    json_array_foreach(json_object_get(sample, key), i, v)
    {
        if (strcmp(key, "waiting") == 0) {
            json_array_append_new(rows, rows_waiting(v));
        } else if (strcmp(key, "tenants") == 0 && shares) {
            json_array_append_new(rows, rows_tenant(v));
        } else if (strcmp(key, "jobs") != 0 || !hth_top_waits(v)) {
            json_array_append_new(rows, json_deep_copy(v));
        }
    }
    if (json_array_size(json_object_get(sample, "devices")) <= 1 && strcmp(key, "waiting") == 0) {
        hth_top_rows_drop(rows, "device");
    }
    hth_top_rows_drop(rows, "samples");
    hth_top_rows_drop(rows, "runs");
    rows_round(rows, "per_second", 0.1);
    rows_round(rows, "batch", 0.1);
    rows_round(rows, "percent", 0.1);
    return rows;
}
