// SPDX-License-Identifier: Apache-2.0
// Centroids in the store: in double as a checkpoint, under the name that all jobs' have, and in the
// end as a model.
#include "engine/train/kmeans/kmeans_job_impl.h"

#include "base/alloc.h"
#include "engine/train/kmeans/kmeans_model.h"
#include "runtime/catalog.h"
#include "runtime/tenants/tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECKPOINT_TENSOR    "centroids"
#define CHECKPOINT_SEEDED    "seeded" // only so many of them, 0: all
#define CHECKPOINT_CONVERGED "converged"

static void checkpoint_name(const kmeans_job *job, char out[HTH_CHECKPOINT_NAME])
{
    snprintf(out, HTH_CHECKPOINT_NAME, "%s" HTH_CHECKPOINT_TAIL, job->name);
}

// ---- save

typedef struct checkpoint_put {
    hth_store *store;
    char name[HTH_CHECKPOINT_NAME];
    char *meta;
    hth_put_tensor tensor;
    int n;
} checkpoint_put;

static hth_err put_run(void *arg)
{
    const checkpoint_put *put = arg;
    HTH_TRY(hth_checkpoint_put(put->store, put->name, put->meta, &put->tensor, put->n));
    return hth_checkpoint_trim(put->store, put->name);
}

hth_err kmeans_save(kmeans_job *job)
{
    checkpoint_put put = {.store = job->ms->store};
    int64_t k = (int64_t)job->spec.what.k, d = (int64_t)job->source.d;
    size_t iterations = job->at.iterations;
    json_t *held = json_array();
    json_t *doc = hth_checkpoint_doc(
        &(hth_checkpoint){job->args, (int64_t)iterations, (int64_t)job->spec.what.iterations,
                          job->history, held, kmeans_ran_ms(job), kmeans_shards_of(job)});
    json_decref(held);
    json_object_set_new(doc, CHECKPOINT_SEEDED, json_integer((json_int_t)job->at.seeded));
    json_object_set_new(doc, CHECKPOINT_CONVERGED, json_boolean(job->at.converged));
    put.meta = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(doc);
    if (put.meta == NULL) {
        return hth_no_memory("a checkpoint");
    }
    checkpoint_name(job, put.name);
    const double *centroids = hth_kmeans_where(job->run).centroids;
    put.n = centroids != NULL ? 1 : 0;
    put.tensor = (hth_put_tensor){.name = CHECKPOINT_TENSOR,
                                  .dtype = HTH_DT_F64,
                                  .shape = {.rank = 2, .dim = {k, d}},
                                  .data = centroids,
                                  .bytes = (size_t)(k * d) * sizeof(double)};
    hth_err err = hth_work_elsewhere(job->ms->site->queue, put_run, &put);
    free(put.meta);
    HTH_TRY(err);
    if (job->saved != (int64_t)iterations) {
        char text[80];
        snprintf(text, sizeof text, "checkpoint of iteration %zu written", iterations);
        kmeans_log(job, "info", text);
    }
    job->saved = (int64_t)iterations;
    job->trouble[0] = 0;
    return HTH_OK;
}

// ---- load

static hth_err load_centroids(const kmeans_job *job, const hth_manifest *m, double **out)
{
    size_t bytes = job->spec.what.k * job->source.d * sizeof(double);
    hth_const *view;
    if (m->n_tensors != 1 || m->tensors[0].dtype != HTH_DT_F64 || m->tensors[0].bytes != bytes ||
        m->tensors[0].shape.dim[0] != (int64_t)job->spec.what.k) {
        return hth_fail(HTH_EINVAL,
                        "'%s' belongs to another job: it has no %zu centroids of %zu "
                        "columns",
                        m->name, job->spec.what.k, job->source.d);
    }
    HTH_TRY(hth_store_view(job->ms->store, &m->tensors[0], &view));
    *out = hth_memdup(view->data, bytes);
    hth_const_rele(view);
    return *out != NULL ? HTH_OK : hth_no_memory("a checkpoint");
}

static hth_err load_read(kmeans_job *job, const hth_manifest *m, double **centroids,
                         hth_kmeans_saved *saved)
{
    json_t *doc = json_loads(m->meta, 0, NULL), *history = json_object_get(doc, "history");
    json_int_t step = json_integer_value(json_object_get(doc, "step"));
    json_int_t seeded = json_integer_value(json_object_get(doc, CHECKPOINT_SEEDED));
    hth_err err = HTH_OK;
    if (step < 0 || seeded < 0 || (uint64_t)seeded > job->spec.what.k ||
        json_array_size(history) != (size_t)step) {
        err = hth_fail(HTH_ECORRUPT, "'%s' is not a checkpoint", m->name);
    } else if (step > 0 || seeded > 0 || m->n_tensors > 0) { // all are chosen, and none has moved
        err = load_centroids(job, m, centroids);
    }
    if (err == HTH_OK) {
        saved->iterations = (size_t)step;
        saved->seeded = step == 0 ? (size_t)seeded : 0;
        saved->converged = json_is_true(json_object_get(doc, CHECKPOINT_CONVERGED));
        job->saved = step;
        json_array_extend(job->shards, json_object_get(doc, "shards"));
        job->ran_ms = (uint64_t)json_integer_value(json_object_get(doc, "ran_ms"));
        err =
            json_array_extend(job->history, history) == 0 ? HTH_OK : hth_no_memory("a checkpoint");
    }
    json_decref(doc);
    return err;
}

// load_own tells whether the job has made the checkpoint, and not an older one of its name.
static bool load_own(const kmeans_job *job, const hth_manifest *m)
{
    json_t *doc = json_loads(m->meta, 0, NULL);
    bool own = hth_checkpoint_of(job->args, job->r->crashes > 0, json_object_get(doc, "job"));
    json_decref(doc);
    return own;
}

hth_err kmeans_load(kmeans_job *job, double **centroids, hth_kmeans_saved *saved)
{
    char name[HTH_CHECKPOINT_NAME];
    hth_manifest m;
    *centroids = NULL;
    *saved = (hth_kmeans_saved){.iterations = 0};
    if (!job->spec.resume && job->r->crashes == 0) {
        return HTH_OK;
    }
    checkpoint_name(job, name);
    hth_err err = hth_store_get(job->ms->store, name, 0, &m);
    if (err == HTH_ENOENT) {
        return job->r->crashes > 0 ? HTH_OK : hth_checkpoint_none(job->name);
    }
    HTH_TRY(err);
    err = load_own(job, &m) ? load_read(job, &m, centroids, saved) : HTH_OK;
    saved->centroids = *centroids;
    hth_manifest_fini(&m);
    return err;
}

// ---- the result

hth_err kmeans_publish(kmeans_job *job)
{
    const char *owner = job->spec.owner;
    const hth_tenant *tenant = owner != NULL ? hth_tenant_of(job->ms->site->tenants, owner) : NULL;
    const hth_caller caller = {owner, owner == NULL,
                               tenant != NULL ? tenant->limits.store_bytes : HTH_TENANT_NEVER};
    hth_put_result result;
    void *file;
    size_t bytes;
    HTH_TRY(hth_kmeans_model(job->at.centroids, job->spec.what.k, job->source.d, &file, &bytes));
    hth_store_unreserve(job->room);
    job->room = -1;
    hth_err err = hth_catalog_import_bytes(job->ms->store, job->name, file, bytes, -1, &caller,
                                           NULL, &result);
    hth_free(file);
    job->version = err == HTH_OK ? result.version : 0;
    return err;
}
