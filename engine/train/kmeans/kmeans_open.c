// SPDX-License-Identifier: Apache-2.0
// A K-means job made ready: points, first centroids, memory. Only what needs a look at all points
// is found out later (values that are not finite).
#include "engine/train/kmeans/kmeans_job_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"
#include "engine/train/kmeans/kmeans_model.h"
#include "group/sequence.h"
#include "runtime/tenants/owner.h"
#include "runtime/tenants/quota.h"
#include "runtime/tenants/tenant.h"

#include <stdio.h>
#include <string.h>

#define OPEN_INDEX  ((uint64_t)64 << 10) // of the store's index, in addition to the result
#define OPEN_MACS   2e10                 // products in a second that a thread is thought to compute
#define OPEN_POINTS 4096 // that are looked at before the clock is, until it is known what they take

// ---- data

typedef struct open_source {
    hth_kmeans_place place;
    hth_kmeans_source *source;
} open_source;

static hth_err open_read(void *arg)
{
    const open_source *o = arg;
    return hth_kmeans_source_open(&o->place, o->source);
}

// open_file opens a dataset: the descriptor that came with the request, or the path. A job that
// goes on without who submitted it may have neither.
static hth_err open_file(const kmeans_job *job, const hth_train_file *file, hth_kmeans_source *out)
{
    bool passed = file->passed >= 0 && file->passed < job->r->n_files;
    open_source o = {.place = {.name = file->name, .fd = -1}, .source = out};
    o.place.tenant = json_string_value(json_object_get(job->args, "tenant"));
    if (file->stored) {
        o.place.store = job->ms->store;
        o.place.own = file->own;
    } else if (passed) {
        o.place.fd = job->r->files[file->passed];
    } else if (file->path != NULL) {
        o.place.name = file->path;
    } else {
        return hth_fail(HTH_EDENIED,
                        "'%s' was passed by a client that is gone: store it with `hearth data put`",
                        file->name);
    }
    return hth_work_elsewhere(job->ms->site->queue, open_read, &o);
}

static hth_err open_start(kmeans_job *job)
{
    hth_kmeans_source start = {.n = 0};
    size_t k = job->spec.what.k, d = job->source.d;
    hth_err err;
    if (job->spec.start.name == NULL) {
        return HTH_OK;
    }
    HTH_GOTO(open_file(job, &job->spec.start, &start), done);
    if (start.n != k || start.d != d) {
        err = hth_fail(HTH_EINVAL,
                       "%s holds %zu centroids of %zu columns, and k is %zu with points of %zu",
                       job->spec.start.name, start.n, start.d, k, d);
        goto done;
    }
    job->start = hth_calloc(k * d, sizeof *job->start);
    err = job->start != NULL ? hth_kmeans_source_copy(&start, job->start)
                             : hth_no_memory("%zu centroids", k);
    job->spec.what.start = job->start;
done:
    hth_kmeans_source_close(&start);
    return err;
}

// ---- memory

// open_window makes a window of the budget that was asked for, and job->bytes of all that is taken.
static hth_err open_window(kmeans_job *job)
{
    hth_kmeans_source *s = &job->source;
    uint64_t row = s->d * sizeof(float), budget = 0;
    uint64_t fixed = hth_kmeans_bytes(job->ms->site->device, &job->spec.what, s->n, s->d);
    fixed += kmeans_group_bytes(job);
    uint64_t whole = fixed + s->n * row;
    size_t most = 0;
    if (job->spec.budget != NULL) {
        HTH_TRY(hth_err_prefix(hth_parse_size(job->spec.budget, whole, &budget), "budget"));
        uint64_t least = fixed + hth_kmeans_source_bytes(s, 1);
        if (budget < least) {
            hth_size needs, has;
            hth_size_pair(least, budget, &needs, &has);
            return hth_fail(HTH_ETOOBIG,
                            "K-means of %zu points of %zu columns with k = %zu needs at least %s, "
                            "and the budget is %s",
                            s->n, s->d, job->spec.what.k, needs.text, has.text);
        }
        most = (size_t)((budget - fixed) / row);
    }
    job->bytes = fixed + hth_kmeans_source_bytes(s, most);
    json_decref(job->planned);
    job->planned = json_pack("{s:I, s:I, s:I, s:I, s:f}", "peak_bytes", (json_int_t)job->bytes,
                             "budget_bytes", (json_int_t)(budget > 0 ? budget : job->bytes),
                             "unconstrained_bytes", (json_int_t)whole, "host_bytes", (json_int_t)0,
                             "predicted_ms", job->predicted_ns / 1e6);
    HTH_TRY(job->planned != NULL ? HTH_OK : hth_no_memory("a K-means job"));
    return hth_kmeans_source_window(s, most);
}

// open_may finds out whether the device has job->bytes for it now.
static hth_err open_may(kmeans_job *job)
{
    hth_site *site = job->ms->site;
    const hth_train_admission *a = &job->events.admission;
    bool asks = a->ask != NULL && a->budget_bytes == 0 && !hth_job_memory_alone(site, &job->share);
    hth_size needs, has;
    uint64_t given, all = site->device->props.budget_bytes;
    hth_size_pair(job->bytes, all, &needs, &has);
    if (job->bytes > all) {
        return hth_fail(HTH_ETOOBIG, "K-means needs %s, and the device has %s; --budget takes less",
                        needs.text, has.text);
    }
    if (asks) {
        const hth_curve curve = {.n = 1,
                                 .point = {{.budget_bytes = job->bytes,
                                            .device_bytes = job->bytes,
                                            .time_us = job->predicted_ns / 1e3}}};
        HTH_TRY(a->ask(a->ctx, &curve, (int64_t)job->spec.what.iterations, &given));
    }
    uint64_t rest = hth_job_memory_rest(site, &job->share);
    hth_size_pair(job->bytes, rest, &needs, &has);
    return job->bytes <= rest
               ? HTH_OK
               : hth_fail(HTH_ENODEVMEM, "waits for %s of device memory, of which %s are free",
                          needs.text, has.text);
}

static hth_err open_admit(kmeans_job *job)
{
    hth_site *site = job->ms->site;
    HTH_TRY(hth_quota_job(site, &job->share, open_may(job)));
    const hth_curve_point point = {.device_bytes = job->bytes, .time_us = job->predicted_ns / 1e3};
    hth_job_memory_set(site, &job->share, &point);
    (void)hth_quota_holds(site, &job->account, NULL); // idle programs of its tenant go for it
    return HTH_OK;
}

static void open_account(kmeans_job *job)
{
    const char *tenant = job->r->tenant != NULL ? job->r->tenant : HTH_TENANT_OWN;
    json_object_set_new(job->args, "tenant", json_string(tenant));
    job->account = (hth_account){.job = true};
    snprintf(job->account.name, sizeof job->account.name, "%s", job->name);
    snprintf(job->account.tenant, sizeof job->account.tenant, "%s", tenant);
    job->share.account = &job->account;
}

// open_quota refuses, before any iteration, a result for which its owner has no room in the store.
static hth_err open_quota(const kmeans_job *job)
{
    const char *owner = job->spec.owner;
    const hth_tenant *t = owner != NULL ? hth_tenant_of(job->ms->site->tenants, owner) : NULL;
    size_t bytes = hth_kmeans_model_bytes(job->spec.what.k, job->source.d);
    if (t == NULL || t->limits.store_bytes == HTH_TENANT_NEVER) {
        return HTH_OK;
    }
    const hth_id none = hth_id_of(&(hth_chunk){job->name, strlen(job->name)}, 1); // of no tensor
    const hth_put_tensor all = {.name = "centroids",
                                .dtype = HTH_DT_U8,
                                .shape = {.rank = 1, .dim = {(int64_t)bytes}},
                                .bytes = bytes,
                                .id = &none};
    const hth_owner_put put = {.tensors = &all, .n = 1};
    hth_err err = hth_owner_room(job->ms->store, owner, t->limits.store_bytes, NULL, &put);
    return hth_err_prefix(err, "the result of job '%s' does not fit", job->name);
}

// ---- all of it

// open_shard makes labels and the shard of all points; of a group labels are shared.
static hth_err open_shard(kmeans_job *job, size_t iterations)
{
    hth_kmeans_source *s = &job->source;
    hth_kmeans_shard like = {.x = hth_kmeans_source_all(s),
                             .points = hth_kmeans_source_points(s),
                             .n = s->n,
                             .d = s->d,
                             .k = job->spec.what.k};
    if (job->r->member > 0) {
        HTH_TRY(kmeans_group_open(job, iterations));
    } else {
        job->labels = hth_alloc_large(s->n * sizeof *job->labels);
        HTH_TRY(job->labels != NULL ? HTH_OK : hth_no_memory("%zu labels", s->n));
        memset(job->labels, 0xFF, s->n * sizeof *job->labels);
    }
    like.labels = job->labels;
    return hth_kmeans_open_shared(job->ms->site->device, &like, &job->shard);
}

// open_goes_on refuses a group's job with fewer iterations than it has made: the shared memory, of
// which all members know the size beforehand, has room for no more.
static hth_err open_goes_on(const kmeans_job *job, size_t made)
{
    return job->r->member == 0 || made <= job->spec.what.iterations
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "job '%s' has made %zu iterations, and 'iterations' is %zu now: on "
                          "several devices it goes on with %zu at least, on one it ends at once",
                          job->name, made, job->spec.what.iterations, made);
}

static hth_err open_begin(kmeans_job *job, const hth_kmeans_saved *saved)
{
    HTH_TRY(open_goes_on(job, saved->iterations));
    HTH_TRY(open_shard(job, saved->iterations));
    HTH_TRY(hth_kmeans_begin(&job->spec.what, &job->shard, 1,
                             saved->centroids != NULL ? saved : NULL, &job->run));
    if (job->group != NULL) {
        hth_kmeans_member(job->run);
    }
    return HTH_OK;
}

static hth_err open_run(kmeans_job *job)
{
    double *centroids = NULL;
    hth_kmeans_saved saved = {.iterations = 0};
    if (kmeans_leads(job)) { // the others take its state
        HTH_TRY(kmeans_load(job, &centroids, &saved));
    }
    hth_err err = open_begin(job, &saved);
    hth_free(centroids);
    HTH_TRY(err);
    job->at = hth_kmeans_where(job->run); // a checkpoint that is made before any pass has it all
    job->kept = saved.iterations;
    if (job->group == NULL && json_array_size(job->shards) > 0) {
        const int64_t all = (int64_t)job->source.n; // on several devices so far
        err = hth_sequence_add(job->shards, 1, (int64_t)saved.iterations, &all);
    }
    return err;
}

// open_result refuses a result that cannot be stored. It is the lead's alone.
static hth_err open_result(kmeans_job *job)
{
    hth_store *store = job->ms->store;
    if (!kmeans_leads(job)) {
        job->spec.time_limit = 0;
        job->spec.checkpoint = 0;
        return HTH_OK;
    }
    HTH_TRY(hth_checkpoint_result(&(hth_train_spec){.save_as = job->spec.save_as}));
    return hth_store_alias_free(store, job->name);
}

// open_reserve keeps space for the result.
static hth_err open_reserve(kmeans_job *job)
{
    size_t bytes = hth_kmeans_model_bytes(job->spec.what.k, job->source.d) + OPEN_INDEX;
    if (!kmeans_leads(job)) {
        return HTH_OK;
    }
    hth_err err = hth_store_reserve(job->ms->store, bytes, &job->room);
    return hth_err_prefix(err, "not enough space for the result of this job");
}

static hth_err open_job(kmeans_job *job)
{
    HTH_TRY(hth_kmeans_spec_read(job->args, &job->spec));
    HTH_TRY(hth_checkpoint_job(job->args, job->name));
    HTH_TRY(open_result(job));
    open_account(job);
    HTH_TRY(open_file(job, &job->spec.data, &job->source));
    size_t n = job->source.n, d = job->source.d, k = job->spec.what.k;
    if (k > n) {
        return hth_fail(HTH_EINVAL, "k is %zu, and there are %zu points: there must be as many", k,
                        n);
    }
    HTH_TRY(kmeans_group_check(job));
    HTH_TRY(open_quota(job));
    HTH_TRY(open_start(job));
    double threads = job->ms->site->device->props.n_threads;
    job->predicted_ns = (double)n * (double)d * (double)(k + 16) / (OPEN_MACS * threads) * 1e9;
    HTH_TRY(open_window(job));
    HTH_TRY(open_admit(job));
    HTH_TRY(open_reserve(job));
    return open_run(job);
}

void kmeans_free(hth_job *base)
{
    kmeans_job *job = kmeans_job_of(base);
    hth_kmeans_finish(job->run);
    hth_kmeans_close(job->shard);
    kmeans_group_close(job);
    hth_kmeans_source_close(&job->source);
    if (job->bytes > 0) {
        hth_job_memory_set(job->ms->site, &job->share, &(hth_curve_point){.device_bytes = 0});
    }
    hth_store_unreserve(job->room);
    hth_free(job->labels);
    hth_free(job->start);
    json_decref(job->planned);
    json_decref(job->history);
    json_decref(job->shards);
    json_decref(job->args);
    hth_free(job);
}

hth_err hth_kmeans_job_open(hth_models *ms, hth_request *request, hth_train_events events,
                            hth_job **out)
{
    json_error_t je;
    kmeans_job *job = hth_calloc(1, sizeof *job);
    *out = NULL;
    if (job == NULL) {
        return hth_no_memory("a K-means job");
    }
    *job = (kmeans_job){.job.ops = &kmeans_job_ops,
                        .ms = ms,
                        .r = request,
                        .events = events,
                        .history = json_array(),
                        .shards = json_array(),
                        .room = -1,
                        .saved = -1,
                        .points = OPEN_POINTS};
    job->args = json_loads(request->arguments != NULL ? request->arguments : "", 0, &je);
    hth_err err = open_job(job);
    if (err != HTH_OK) {
        kmeans_free(&job->job);
        return err;
    }
    *out = &job->job;
    return HTH_OK;
}
