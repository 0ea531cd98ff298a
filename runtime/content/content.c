// SPDX-License-Identifier: Apache-2.0
// A commit loads the graph with what is there by then, as an import does with a file's bytes: a
// version that exists can be run. What an importer looks at in the file is looked at here: sizes
// against the limits, and that a BOOL is 0 or 1.
#include "runtime/content/content.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"
#include "runtime/catalog.h"
#include "runtime/checkpoint_index.h"
#include "runtime/content/dataset_index.h"
#include "runtime/model.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

#define CONTENT_CHUNK ((size_t)256 << 10)

static hth_manifest_tensor content_tensor(const hth_content_object *object)
{
    return (hth_manifest_tensor){.name = (char *)object->name,
                                 .id = object->id,
                                 .dtype = object->dtype,
                                 .shape = object->shape,
                                 .bytes = object->bytes};
}

static hth_err content_tensors(const hth_content_object *objects, int n, hth_manifest_tensor **out)
{
    hth_manifest_tensor *t = hth_calloc((size_t)n, sizeof *t);
    for (int i = 0; t != NULL && i < n; i++) {
        t[i] = content_tensor(&objects[i]);
    }
    *out = t;
    return t != NULL ? HTH_OK : hth_no_memory("%d objects", n);
}

// content_sees: names with a dot in front are no models'.
static bool content_sees(void *ctx, const char *name, const char *meta)
{
    const hth_content_who *who = ctx;
    bool mine;
    if (hth_dataset_named(name, who->caller.tenant, &mine)) {
        return mine;
    }
    return who->models && name[0] != '.' && hth_owner_is(meta, &who->caller);
}

hth_err hth_content_have(hth_store *store, const hth_content_who *who,
                         const hth_content_object *objects, int n, uint64_t *there)
{
    hth_manifest_tensor *t;
    HTH_TRY(content_tensors(objects, n, &t));
    hth_err err =
        hth_upload_have(store, who->caller.tenant, content_sees, (void *)who, t, n, there);
    hth_free(t);
    return err;
}

hth_err hth_content_put(hth_store *store, const char *owner, uint64_t most,
                        const hth_content_object *object, uint64_t at, const void *data, size_t n,
                        uint64_t *there)
{
    hth_manifest_tensor t = content_tensor(object);
    return hth_upload_put(store, owner, most, &t, at, data, n, there);
}

hth_err hth_content_discard(hth_store *store, const char *owner, const hth_content_object *objects,
                            int n)
{
    hth_manifest_tensor *t;
    HTH_TRY(content_tensors(objects, n, &t));
    hth_err err = hth_upload_discard(store, owner, t, n);
    hth_free(t);
    return err;
}

// ---- commit

typedef struct commit_tensor {
    hth_store *s;
    const char *owner;
    hth_manifest_tensor object;
} commit_tensor;

typedef struct commit_job {
    hth_store *s;
    const hth_content_model *m;
    hth_put_tensor *put, *look; // what is put; the same with bytes that can be read
    commit_tensor *from;
    hth_manifest_tensor *asked; // those that did not come along
    uint64_t *there;
    int n_asked;
    bool unlimited; // a dataset: its tenant's limit counts, not that of models
} commit_job;

static hth_err commit_read(void *ctx, uint64_t at, void *dst, size_t n)
{
    const commit_tensor *t = ctx;
    return hth_upload_read(t->s, t->owner, &t->object, at, dst, n);
}

static hth_err commit_init(commit_job *job)
{
    size_t n = (size_t)job->m->n;
    job->put = hth_calloc(n, sizeof *job->put);
    job->look = hth_calloc(n, sizeof *job->look);
    job->from = hth_calloc(n, sizeof *job->from);
    job->asked = hth_calloc(n, sizeof *job->asked);
    job->there = hth_calloc(n, sizeof *job->there);
    return job->put != NULL && job->look != NULL && job->from != NULL && job->asked != NULL &&
                   job->there != NULL
               ? HTH_OK
               : hth_no_memory("%zu tensors", n);
}

static void commit_fini(commit_job *job)
{
    hth_free(job->put);
    hth_free(job->look);
    hth_free(job->from);
    hth_free(job->asked);
    hth_free(job->there);
}

// commit_fill describes the tensors: those that came along by their bytes, the others by their ids.
static hth_err commit_fill(commit_job *job)
{
    const hth_content_model *m = job->m;
    uint64_t at = 0, all = m->skeleton_bytes, most = hth_catalog_limits().max_model_bytes;
    hth_size have, limit;
    for (int i = 0; i < m->n; i++) {
        const hth_content_object *o = &m->objects[i];
        if (o->here && o->bytes > m->here_bytes - at) {
            return hth_fail(HTH_ECORRUPT, "tensor '%s' is to come along, and does not", o->name);
        }
        all = o->bytes > UINT64_MAX - all ? UINT64_MAX : all + o->bytes;
        job->from[i] = (commit_tensor){job->s, m->who.caller.tenant, content_tensor(o)};
        job->put[i] = (hth_put_tensor){.name = o->name,
                                       .dtype = o->dtype,
                                       .shape = o->shape,
                                       .data = o->here ? m->here + at : NULL,
                                       .bytes = o->bytes,
                                       .id = &o->id,
                                       .owner = m->who.caller.tenant};
        job->look[i] = job->put[i];
        job->look[i].read = commit_read;
        job->look[i].read_ctx = &job->from[i];
        at += o->here ? o->bytes : 0;
        if (!o->here) {
            job->asked[job->n_asked++] = content_tensor(o);
        }
    }
    hth_size_pair(all, most, &have, &limit);
    if (at != m->here_bytes) {
        return hth_fail(HTH_ECORRUPT, "bytes came along that belong to no tensor");
    }
    return all <= most || job->unlimited
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG, "the model has %s; limits.model_bytes is %s", have.text,
                          limit.text);
}

// commit_there looks whether all that did not come along is there.
static hth_err commit_there(commit_job *job)
{
    HTH_TRY(hth_upload_have(job->s, job->m->who.caller.tenant, content_sees, (void *)&job->m->who,
                            job->asked, job->n_asked, job->there));
    for (int i = 0; i < job->n_asked; i++) {
        const hth_manifest_tensor *t = &job->asked[i];
        if (job->there[i] != HTH_UPLOAD_WHOLE) {
            char hex[HTH_ID_HEX];
            return hth_fail(HTH_ENOENT,
                            "tensor '%s' is not in the store, and %llu of its %llu bytes were "
                            "uploaded; its id is %s",
                            t->name, (unsigned long long)job->there[i],
                            (unsigned long long)t->bytes, hth_id_hex(&t->id, hex));
        }
    }
    return HTH_OK;
}

static hth_err commit_bool(const hth_put_tensor *tensor, void *chunk)
{
    for (uint64_t at = 0; at < tensor->bytes; at += CONTENT_CHUNK) {
        size_t n =
            tensor->bytes - at < CONTENT_CHUNK ? (size_t)(tensor->bytes - at) : CONTENT_CHUNK;
        const uint8_t *p = tensor->data != NULL ? (const uint8_t *)tensor->data + at : chunk;
        HTH_TRY(tensor->data != NULL ? HTH_OK : tensor->read(tensor->read_ctx, at, chunk, n));
        for (size_t i = 0; i < n; i++) {
            if (p[i] > 1) {
                return hth_fail(HTH_ECORRUPT, "tensor '%s': element %llu of a BOOL is %u",
                                tensor->name, (unsigned long long)(at + i), p[i]);
            }
        }
    }
    return HTH_OK;
}

static hth_err commit_bools(const commit_job *job)
{
    void *chunk = hth_alloc(CONTENT_CHUNK);
    hth_err err = chunk != NULL ? HTH_OK : hth_no_memory("a commit");
    for (int i = 0; i < job->m->n && err == HTH_OK; i++) {
        err = job->look[i].dtype == HTH_DT_BOOL ? commit_bool(&job->look[i], chunk) : HTH_OK;
    }
    hth_free(chunk);
    return err;
}

// commit_meta is what of a version's meta may come from outside; NULL: no memory.
static char *commit_meta(const hth_content_model *model, const char *owner)
{
    json_t *had = json_loads(model->meta, 0, NULL), *meta = json_object();
    json_t *batch = json_object_get(had, "max_batch");
    json_int_t most = json_is_integer(batch) ? json_integer_value(batch) : model->max_batch;
    if (most >= 0 && most < INT32_MAX) {
        json_object_set_new(meta, "max_batch", json_integer(most));
    }
    if (json_is_true(json_object_get(had, HTH_META_TRAINED))) {
        json_object_set_new(meta, HTH_META_TRAINED, json_true());
    }
    if (owner[0] != 0) {
        json_object_set_new(meta, HTH_META_OWNER, json_string(owner));
    }
    char *text = json_dumps(meta, JSON_COMPACT), *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(meta);
    json_decref(had);
    return out;
}

static hth_err commit_run(commit_job *job, hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    const hth_content_model *m = job->m;
    const hth_caller *caller = &m->who.caller;
    char owner[HTH_TENANT];
    HTH_TRY(hth_owner_new(job->s, m->name, caller, owner));
    HTH_TRY(commit_init(job));
    HTH_TRY(commit_fill(job));
    HTH_TRY(commit_there(job));
    if (!caller->admin) {
        const hth_owner_put put = {
            .graph = m->skeleton, .graph_bytes = m->skeleton_bytes, .tensors = job->put, .n = m->n};
        HTH_TRY(hth_owner_room(job->s, owner, caller->store_bytes, NULL, &put));
    }
    HTH_TRY(commit_bools(job));
    HTH_TRY(hth_catalog_check_graph(m->skeleton, m->skeleton_bytes, job->look, m->n, NULL));
    char *meta = commit_meta(m, owner);
    if (meta == NULL) {
        return hth_no_memory("a version");
    }
    hth_err err = hth_store_put(job->s, m->name, m->skeleton, m->skeleton_bytes, meta, job->put,
                                m->n, progress, ctx, out);
    hth_free(meta);
    return err;
}

hth_err hth_content_commit(hth_store *store, const hth_content_model *model,
                           hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    commit_job j = {.s = store, .m = model};
    memset(out, 0, sizeof *out);
    hth_err err;
    HTH_GOTO(hth_store_check_new(model->name), done);
    HTH_GOTO(hth_dataset_model(model->name), done);
    HTH_GOTO(hth_checkpoint_model(model->name), done);
    err = commit_run(&j, progress, ctx, out);
done:
    commit_fini(&j);
    return err;
}

static hth_err dataset_run(commit_job *job, hth_progress_fn progress, void *ctx,
                           hth_put_result *out)
{
    const hth_content_model *m = job->m;
    hth_dataset_put put = {
        .name = m->name, .tenant = m->who.caller.tenant, .store_bytes = m->who.caller.store_bytes};
    job->unlimited = true;
    HTH_TRY(commit_init(job));
    HTH_TRY(commit_fill(job));
    HTH_TRY(commit_there(job));
    json_t *about = json_loads(m->meta, 0, NULL);
    put.about = about;
    put.tensors = job->put;
    put.n = m->n;
    hth_err err = hth_dataset_store(job->s, &put, progress, ctx, out);
    json_decref(about);
    return err;
}

hth_err hth_content_dataset_put(hth_store *store, const hth_content_model *model,
                                hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    commit_job j = {.s = store, .m = model};
    memset(out, 0, sizeof *out);
    hth_err err = dataset_run(&j, progress, ctx, out);
    commit_fini(&j);
    return err;
}

// ---- what a version has

static hth_err content_version(hth_store *store, const char *model, const hth_caller *caller,
                               hth_manifest *out)
{
    char name[201];
    int version;
    HTH_TRY(hth_catalog_resolve(store, model, name, &version));
    HTH_TRY(hth_dataset_is_not(store, name));
    HTH_TRY(
        hth_owner_may(store, name, caller, "export")); // before it tells which versions there are
    HTH_TRY(hth_store_get(store, name, version, out));
    if (!hth_owner_is(out->meta, caller)) {
        hth_manifest_fini(out);
        return hth_owner_refuse(name, "export");
    }
    return HTH_OK;
}

hth_err hth_content_objects(const hth_manifest *manifest, hth_content_object **out)
{
    hth_content_object *o = hth_calloc((size_t)manifest->n_tensors, sizeof *o);
    for (int i = 0; o != NULL && i < manifest->n_tensors; i++) {
        const hth_manifest_tensor *t = &manifest->tensors[i];
        o[i] = (hth_content_object){
            .name = t->name, .id = t->id, .dtype = t->dtype, .shape = t->shape, .bytes = t->bytes};
    }
    *out = o;
    return o != NULL ? HTH_OK : hth_no_memory("%d objects", manifest->n_tensors);
}

hth_err hth_content_manifest(hth_store *store, const char *model, const hth_caller *caller,
                             hth_manifest *out, hth_content_object **objects)
{
    *objects = NULL;
    HTH_TRY(content_version(store, model, caller, out));
    hth_err err = hth_content_objects(out, objects);
    if (err != HTH_OK) {
        hth_manifest_fini(out);
    }
    return err;
}

hth_err hth_content_get(hth_store *store, const char *model, const hth_caller *caller,
                        const hth_id *id, uint64_t at, void *dst, size_t n)
{
    hth_manifest m;
    char hex[HTH_ID_HEX];
    HTH_TRY(content_version(store, model, caller, &m));
    const hth_manifest_tensor *found = NULL;
    for (int i = 0; i < m.n_tensors && found == NULL; i++) {
        found = hth_id_equal(&m.tensors[i].id, id) ? &m.tensors[i] : NULL;
    }
    hth_err err = found != NULL ? hth_upload_read(store, NULL, found, at, dst, n)
                                : hth_fail(HTH_ENOENT, "model '%s' has no object %s", model,
                                           hth_id_hex(id, hex));
    hth_manifest_fini(&m);
    return err;
}
