// SPDX-License-Identifier: Apache-2.0
// The question "stats": the device's memory to the byte, by model, version and tenant, and what
// models were asked for.
#include "engine/query/query.h"

#include "base/alloc.h"
#include "runtime/host.h"
#include "runtime/ledger.h"
#include "runtime/query_latency.h"
#include "runtime/tenants/tenant.h"

#include <string.h>

static json_t *stats_times(const hth_model *model)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "output_ns", (json_int_t)model->output_ns,
        "samples", (json_int_t)model->samples, "success_ns", (json_int_t)model->success_ns,
        "failure_ns", (json_int_t)model->failure_ns, "queue_ns", (json_int_t)model->queue_ns,
        "input_ns", (json_int_t)model->input_ns, "infer_ns", (json_int_t)model->infer_ns, "last_ms",
        (json_int_t)(model->last_wall_ns / 1000000u));
}

// Runs by the samples of their requests.
static json_t *stats_batches(const hth_model *model)
{
    json_t *list = json_array();
    for (int i = 0; i < model->n_sizes; i++) {
        const hth_batch_count *c = &model->sizes[i];
        json_array_append_new(
            list, json_pack("{s:I, s:I, s:I, s:I, s:I}", "samples", (json_int_t)c->samples, "runs",
                            (json_int_t)c->runs, "input_ns", (json_int_t)c->input_ns, "infer_ns",
                            (json_int_t)c->infer_ns, "output_ns", (json_int_t)c->output_ns));
    }
    return list;
}

static json_t *stats_counts(const uint64_t *v, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(list, json_integer((json_int_t)v[i]));
    }
    return list;
}

// What an account has, under the names that all rows use.
static json_t *stats_row(const hth_account *account, const hth_ledger_row *row)
{
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", account->name, "tenant",
        account->tenant, "resident_private_bytes", (json_int_t)row->private_bytes,
        "resident_shared_bytes", (json_int_t)row->shared_bytes, "held_bytes",
        (json_int_t)row->held_bytes, "pinned_bytes", (json_int_t)row->pinned_bytes, "mapped_bytes",
        (json_int_t)row->mapped_bytes, "streamed_bytes", (json_int_t)row->streamed_bytes,
        "host_bytes", (json_int_t)row->host_bytes, "device_bytes",
        (json_int_t)(row->private_bytes + row->shared_bytes + row->job_bytes));
}

// What a further concurrent run takes of the device; 0: none was made ready.
static uint64_t stats_instance_bytes(const hth_model *model)
{
    uint64_t most = 0;
    for (const hth_program *p = model->source.programs; p != NULL; p = p->next) {
        uint64_t bytes = p->n_instances > 0 ? p->instance[0]->plan->arena_bytes : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

// Programs whose algorithms were measured.
static int stats_measured(const hth_model *model)
{
    int n = 0;
    for (const hth_program *p = model->source.programs; p != NULL; p = p->next) {
        n += p->tuned;
    }
    return n;
}

static json_t *stats_model(const hth_model *model, const hth_ledger *ledger, const char *device)
{
    static const hth_ledger_row none = {.programs = 0};
    const hth_ledger_row *r = hth_ledger_row_of(ledger, &model->account);
    json_t *doc = stats_row(&model->account, r != NULL ? r : &none);
    json_object_update_new(
        doc,
        json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:I, s:i, s:o}", "version",
                  model->version, "device", device, "weight_bytes", (json_int_t)model->weight_bytes,
                  "arena_bytes", (json_int_t)(r != NULL ? r->arena_bytes : 0), "requests",
                  (json_int_t)model->requests, "failures", (json_int_t)model->failures, "busy_ns",
                  (json_int_t)model->busy_ns, "programs", model->source.n_programs, "times",
                  stats_times(model), "executions", (json_int_t)model->executions, "pending",
                  model->refs, "batches", stats_batches(model)));
    json_object_update_new(
        doc, json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:I, s:I, s:I}", "measured",
                       stats_measured(model), "queued", model->queue.n + model->queue.away,
                       "awaiting_memory", model->queue.away, "failed",
                       stats_counts(model->failed, HTH_N_FAILURES), "answered",
                       stats_counts(model->answered, HTH_N_ANSWER_BOUNDS), "quantiles_ns",
                       hth_latency_quantiles(model), "load_ns", (json_int_t)model->load_ns,
                       "concurrent_runs", (json_int_t)model->concurrent_runs,
                       "instance_arena_bytes", (json_int_t)stats_instance_bytes(model)));
    // version 0.1's names for them
    json_object_set(doc, "beside", json_object_get(doc, "concurrent_runs"));
    json_object_set(doc, "beside_arena_bytes", json_object_get(doc, "instance_arena_bytes"));
    return doc;
}

// stats_jobs names nobody's jobs but those of who asks, and to administrators all.
static json_t *stats_jobs(const hth_ledger *ledger, const hth_request *asks)
{
    json_t *list = json_array();
    for (int i = 0; i < ledger->n; i++) {
        const hth_ledger_row *r = &ledger->rows[i];
        if (r->account != NULL && r->account->job) {
            json_t *doc = stats_row(r->account, r);
            if (!asks->admin && asks->tenant != NULL &&
                strcmp(r->account->tenant, asks->tenant) != 0) {
                json_object_set_new(doc, "name", json_null());
                json_object_set_new(doc, "tenant", json_null());
            }
            json_object_set_new(doc, "job_bytes", json_integer((json_int_t)r->job_bytes));
            json_array_append_new(list, doc);
        }
    }
    return list;
}

// A limit; null: there is none.
static json_t *stats_limit(int64_t limit)
{
    return limit == HTH_TENANT_NEVER ? json_null() : json_integer((json_int_t)limit);
}

static json_t *stats_tenant(const hth_ledger *ledger, const char *name, const hth_tenant *tenant)
{
    hth_ledger_tenant none = {.private_bytes = 0};
    const hth_ledger_tenant *has = &none;
    for (int i = 0; i < ledger->n_tenants; i++) {
        has = strcmp(ledger->tenants[i].name, name) == 0 ? &ledger->tenants[i] : has;
    }
    json_t *doc = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "name", name, "private_bytes",
        (json_int_t)has->private_bytes, "shared_bytes", (json_int_t)has->shared_bytes, "job_bytes",
        (json_int_t)has->job_bytes, "arena_bytes", (json_int_t)has->arena_bytes, "device_bytes",
        (json_int_t)(has->private_bytes + has->shared_bytes + has->job_bytes), "memory_bytes",
        (json_int_t)(has->private_bytes + has->job_bytes + has->arena_bytes));
    if (tenant != NULL) {
        json_object_update_new(
            doc,
            json_pack("{s:o, s:i, s:o, s:i, s:o, s:f, s:I, s:I}", "memory_limit",
                      stats_limit(tenant->limits.memory_bytes), "waiting",
                      tenant->flow.n + tenant->flow.away, "waiting_limit",
                      stats_limit(tenant->limits.waiting), "jobs", tenant->jobs, "jobs_limit",
                      stats_limit(tenant->limits.jobs), "weight", tenant->limits.weight, "run_ns",
                      (json_int_t)tenant->turns.ran_ns, "refused", (json_int_t)tenant->refused));
    }
    return doc;
}

static json_t *stats_tenants(const hth_ledger *ledger, hth_tenants *all)
{
    json_t *list = json_array();
    for (int i = 0; i < ledger->n_tenants; i++) { // each has limits, and is in `all`
        if (hth_tenant_of(all, ledger->tenants[i].name) == NULL) {
            json_array_append_new(list, stats_tenant(ledger, ledger->tenants[i].name, NULL));
        }
    }
    for (const hth_tenant *t = all != NULL ? all->list : NULL; t != NULL; t = t->next) {
        json_array_append_new(list, stats_tenant(ledger, t->name, t));
    }
    return list;
}

static json_t *stats_ledger(const hth_ledger *ledger, hth_site *site)
{
    json_t *doc = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "budget_bytes",
        (json_int_t)ledger->pool.reserved_bytes, "weight_bytes",
        (json_int_t)ledger->pool.used_bytes[HTH_POOL_WEIGHT], "private_weight_bytes",
        (json_int_t)ledger->private_bytes, "shared_weight_bytes", (json_int_t)ledger->shared_bytes,
        "arena_bytes", (json_int_t)ledger->pool.used_bytes[HTH_POOL_ARENA], "compute_arena_bytes",
        (json_int_t)ledger->arena_bytes, "job_bytes", (json_int_t)ledger->job_bytes,
        "workspace_bytes", (json_int_t)ledger->pool.used_bytes[HTH_POOL_WORKSPACE], "padding_bytes",
        (json_int_t)ledger->pool.padding_bytes, "free_bytes", (json_int_t)ledger->pool.free_bytes,
        "unclaimed_bytes", (json_int_t)ledger->unclaimed_bytes, "difference_bytes",
        (json_int_t)ledger->difference, "mapped_bytes", (json_int_t)ledger->mapped_bytes,
        "host_bytes", (json_int_t)ledger->host_bytes);
    static const char *const use[HTH_HOST_N_USES] = {"host_output_bytes", "host_stage_bytes",
                                                     "host_batch_bytes", "host_content_bytes"};
    json_object_set_new(doc, "host_limit_bytes", json_integer((json_int_t)hth_host_limit(site)));
    for (int i = 0; i < HTH_HOST_N_USES; i++) {
        json_object_set_new(doc, use[i], json_integer((json_int_t)site->host_bytes[i]));
    }
    return doc;
}

// What the driver of a GPU says about it; NULL: the device is none, or is lost.
static json_t *stats_gpu(hth_device *device)
{
    uint64_t total, free;
    if (hth_device_memory(device, &total, &free) != HTH_OK) {
        return NULL;
    }
    return json_pack("{s:s, s:I, s:I}", "uuid", device->props.uuid, "total_bytes",
                     (json_int_t)total, "used_bytes", (json_int_t)(total - free));
}

static json_t *stats_store(hth_store *store)
{
    hth_store_health h;
    return hth_store_health_get(store, &h) != HTH_OK
               ? NULL
               : json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "damaged_tensors",
                           (json_int_t)h.damaged, "index_damages", (json_int_t)h.index_damages,
                           "tensors", (json_int_t)h.tensors, "bytes", (json_int_t)h.bytes,
                           "scrubbed_ns", (json_int_t)h.scrubbed_ns, "oldest_read_ns",
                           (json_int_t)h.oldest_ns, "index_read_ns", (json_int_t)h.index_ns);
}

hth_err hth_query_stats(hth_models *ms, const hth_model *only, const hth_request *asks,
                        json_t **out)
{
    hth_ledger l;
    hth_residency_stats rs;
    HTH_TRY(hth_ledger_read(ms->site, &l));
    hth_residency_stats_get(ms->site->residency, &rs);
    json_t *models = json_array();
    for (const hth_model *m = ms->list; m != NULL; m = m->next) {
        if (only == NULL || only == m) {
            json_array_append_new(models, stats_model(m, &l, ms->site->device->props.name));
        }
    }
    *out = json_pack("{s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:o, s:o, s:o, s:{s:i, s:I}}",
                     "ledger", stats_ledger(&l, ms->site), "residency", "entries",
                     (json_int_t)rs.entries, "resident_bytes", (json_int_t)rs.resident_bytes,
                     "held_bytes", (json_int_t)rs.held_bytes, "fills", (json_int_t)rs.fills,
                     "filled_bytes", (json_int_t)rs.filled_bytes, "evictions",
                     (json_int_t)rs.evictions, "evicted_bytes", (json_int_t)rs.evicted_bytes,
                     "models", models, "jobs", stats_jobs(&l, asks), "tenants",
                     stats_tenants(&l, ms->site->tenants), "memory_waits", "requests",
                     ms->site->awaiting, "bytes", (json_int_t)ms->site->awaited_bytes);
    hth_ledger_fini(&l);
    json_t *gpu = stats_gpu(ms->site->device),
           *store = only == NULL ? stats_store(ms->store) : NULL;
    if (store != NULL) {
        json_object_set_new(*out, "store", store);
    }
    if (gpu != NULL) {
        json_object_set_new(*out, "gpu", gpu);
    }
    return *out != NULL ? HTH_OK : hth_no_memory("an answer");
}
