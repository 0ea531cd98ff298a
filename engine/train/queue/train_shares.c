// SPDX-License-Identifier: Apache-2.0
// "shares": what each tenant has of a device, and what its jobs do or wait for. All of it lies in
// memory, so that it is answered at once.
#include "engine/train/queue/train_fair.h"

#include "base/clock.h"
#include "device/cpu/machine.h"
#include "engine/train/queue/train_entry_impl.h"

#include <math.h>
#include <stdio.h>

typedef enum shares_resource {
    SHARES_THREADS,
    SHARES_HOST_MEMORY,
    SHARES_DEVICE_MEMORY,
    SHARES_DEVICE_TIME,
    SHARES_LINK,
    SHARES_RESOURCES
} shares_resource;

static const char *const shares_name[SHARES_RESOURCES] = {"threads", "host_memory", "device_memory",
                                                          "device_time", "link"};
// One number for each resource; NAN: not known on this device.
typedef struct shares_amounts {
    double of[SHARES_RESOURCES];
} shares_amounts;

// What is less than this part of the time, and nothing else, is no use of the device any more.
#define SHARES_TIME_LEAST 0.001

static json_t *shares_number(double v, bool whole)
{
    if (isnan(v)) {
        return json_null();
    }
    return whole ? json_integer((json_int_t)v) : json_real(v);
}

static bool shares_bytes(int resource)
{
    return resource == SHARES_HOST_MEMORY || resource == SHARES_DEVICE_MEMORY;
}

// whole: of memory the numbers are bytes.
static json_t *shares_doc(const shares_amounts *amounts, bool whole)
{
    json_t *doc = json_object();
    for (int i = 0; i < SHARES_RESOURCES; i++) {
        json_object_set_new(doc, shares_name[i],
                            shares_number(amounts->of[i], whole && shares_bytes(i)));
    }
    return doc;
}

static void shares_capacity(const hth_train_queue *queue, shares_amounts *out)
{
    const hth_site *site = queue->ms->site;
    const hth_device_props *props = &site->device->props;
    uint64_t host_bytes = hth_machine_memory();
    out->of[SHARES_THREADS] = props->host_visible && props->n_threads > 0 ? props->n_threads : NAN;
    out->of[SHARES_HOST_MEMORY] = host_bytes > 0 ? (double)host_bytes : NAN;
    out->of[SHARES_DEVICE_MEMORY] = (double)hth_train_fair_capacity(site);
    out->of[SHARES_DEVICE_TIME] = 1;
    out->of[SHARES_LINK] = site->link_bytes_per_s > 0 ? 1 : NAN;
}

// Who computes has all threads of the device.
static void shares_used(const hth_train_queue *queue, const hth_tenant *tenant,
                        const shares_amounts *capacity, shares_amounts *out)
{
    hth_fair_standing s = hth_train_fair_standing(&queue->fair, tenant);
    double device, link;
    hth_tenant_share(tenant, hth_now_ns(), &device, &link);
    out->of[SHARES_THREADS] = device * capacity->of[SHARES_THREADS];
    out->of[SHARES_HOST_MEMORY] = s.used.of[HTH_TRAIN_HOST_MEMORY];
    out->of[SHARES_DEVICE_MEMORY] = s.used.of[HTH_TRAIN_DEVICE_MEMORY];
    out->of[SHARES_DEVICE_TIME] = device;
    out->of[SHARES_LINK] = isnan(capacity->of[SHARES_LINK]) ? NAN : link;
}

// What is used of what there is, and of which resource that is most; -1: of none.
static int shares_of(const shares_amounts *used, const shares_amounts *capacity,
                     shares_amounts *out)
{
    int most = -1;
    for (int i = 0; i < SHARES_RESOURCES; i++) {
        out->of[i] = capacity->of[i] > 0 ? used->of[i] / capacity->of[i] : NAN;
        if (out->of[i] > (most >= 0 ? out->of[most] : 0)) {
            most = i;
        }
    }
    return most;
}

static double shares_memory(const hth_train_entry *entry)
{
    if (entry->work != NULL) {
        return (double)hth_job_device_bytes(entry->work);
    }
    return entry->offer.n > 0 ? entry->offer.demand[entry->offer.n - 1].of[HTH_TRAIN_DEVICE_MEMORY]
                              : NAN;
}

// shares_row describes a job; of others' nobody learns its name and what exactly it waits for.
static json_t *shares_row(const hth_train_queue *queue, const hth_train_entry *entry,
                          const hth_request *request)
{
    char why[HTH_CHECKPOINT_NOTE] = "";
    double seconds = NAN;
    bool works = entry->work != NULL, mine = hth_train_row_mine(request, entry->of);
    if (works) {
        snprintf(why, sizeof why, "%s", hth_job_trouble(entry->work));
    } else {
        seconds = hth_train_wait_why(queue, entry, why);
    }
    json_t *id = mine && entry->id > 0 ? json_integer(entry->id) : json_null();
    const char *name = mine ? entry->job : NULL;
    const char *reason = mine && why[0] != 0 ? why : NULL;
    const char *waits_for = works ? NULL : hth_train_waits_word(queue, entry);
    return json_pack("{s:o, s:s?, s:s, s:i, s:o, s:s?, s:s?, s:o}", "id", id, "job", name, "state",
                     hth_train_row_word(entry), "priority", entry->priority, "memory_bytes",
                     shares_number(shares_memory(entry), true), "why", reason, "waits_for",
                     waits_for, "wait_seconds",
                     shares_number(isinf(seconds) ? NAN : seconds, false));
}

typedef struct shares_jobs {
    json_t *running, *waiting;
} shares_jobs;

static void shares_list(const hth_train_queue *queue, const hth_tenant *tenant,
                        const hth_request *request, shares_jobs *out)
{
    out->running = json_array();
    out->waiting = json_array();
    for (const hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        if (e->tenant == tenant && !e->paused) {
            json_array_append_new(e->work != NULL ? out->running : out->waiting,
                                  shares_row(queue, e, request));
        }
    }
}

static bool shares_counts(const hth_train_queue *queue, const hth_tenant *tenant)
{
    const hth_train_entry *e = queue->first;
    while (e != NULL && (e->tenant != tenant || e->paused)) {
        e = e->next;
    }
    return e != NULL;
}

// The weights of all tenants with jobs that run or wait.
static double shares_weights(const hth_train_queue *queue)
{
    double sum = 0;
    for (const hth_tenant *t = queue->ms->site->tenants->list; t != NULL; t = t->next) {
        sum += shares_counts(queue, t) ? t->limits.weight : 0;
    }
    return sum;
}

// NULL: the tenant has nothing, and had nothing lately.
static json_t *shares_tenant(const hth_train_queue *queue, const hth_tenant *tenant,
                             const hth_request *request, const shares_amounts *capacity)
{
    shares_amounts used, share;
    shares_jobs jobs;
    bool counts = shares_counts(queue, tenant);
    shares_used(queue, tenant, capacity, &used);
    if (!counts && used.of[SHARES_DEVICE_TIME] < SHARES_TIME_LEAST) {
        return NULL;
    }
    int most = shares_of(&used, capacity, &share);
    double weight = tenant->limits.weight;
    shares_list(queue, tenant, request, &jobs);
    size_t running = json_array_size(jobs.running), waiting = json_array_size(jobs.waiting);
    const char *dominant = most >= 0 ? shares_name[most] : NULL;
    double dominant_share = most >= 0 ? share.of[most] : 0.0;
    double entitlement = counts ? weight / shares_weights(queue) : NAN;
    return json_pack("{s:s, s:f, s:o, s:o, s:s?, s:f, s:o, s:b, s:I, s:I, s:I, s:o, s:o}", "tenant",
                     tenant->name, "weight", weight, "used", shares_doc(&used, true), "share",
                     shares_doc(&share, false), "dominant", dominant, "dominant_share",
                     dominant_share, "entitlement", shares_number(entitlement, false), "under",
                     waiting > 0 && running == 0, "run_ns", (json_int_t)tenant->turns.ran_ns,
                     "jobs_running", (json_int_t)running, "jobs_waiting", (json_int_t)waiting,
                     "running", jobs.running, "waiting", jobs.waiting);
}

static json_t *shares_free(const hth_train_queue *queue, const shares_amounts *capacity)
{
    double device = capacity->of[SHARES_DEVICE_MEMORY], host = capacity->of[SHARES_HOST_MEMORY];
    for (const hth_tenant *t = queue->ms->site->tenants->list; t != NULL; t = t->next) {
        hth_fair_standing s = hth_train_fair_standing(&queue->fair, t);
        device -= s.used.of[HTH_TRAIN_DEVICE_MEMORY];
        host -= s.used.of[HTH_TRAIN_HOST_MEMORY];
    }
    return json_pack("{s:o, s:o}", "host_memory",
                     shares_number(isnan(host) ? NAN : fmax(0, host), true), "device_memory",
                     shares_number(fmax(0, device), true));
}

hth_err hth_train_shares(const hth_train_queue *queue, const hth_request *request, json_t **out)
{
    shares_amounts capacity;
    json_t *tenants = json_array();
    uint64_t patience_ns = hth_train_fair_patience_ns();
    shares_capacity(queue, &capacity);
    for (const hth_tenant *t = queue->ms->site->tenants->list; t != NULL; t = t->next) {
        json_t *row = shares_tenant(queue, t, request, &capacity);
        if (row != NULL) {
            json_array_append_new(tenants, row);
        }
    }
    *out = json_pack("{s:[{s:s, s:f, s:o, s:o, s:o}]}", "devices", "device",
                     queue->ms->site->device->props.name, "patience_seconds",
                     patience_ns == HTH_FAIR_NEVER ? 0.0 : (double)patience_ns / 1e9, "capacity",
                     shares_doc(&capacity, true), "free", shares_free(queue, &capacity), "tenants",
                     tenants);
    return *out != NULL ? HTH_OK : hth_no_memory("an answer");
}
