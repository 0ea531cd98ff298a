// SPDX-License-Identifier: Apache-2.0
// A commit loads the graph with what is there by then, as an import does with a file's bytes: a
// version that exists can be run. What an importer looks at in the file is looked at here: sizes
// against the limits, and that a BOOL is 0 or 1.
#include "runtime/content/content.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"
#include "runtime/catalog.h"
#include "runtime/content/dataset_index.h"
#include "runtime/model.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

#define CONTENT_CHUNK ((size_t)256 << 10)

static hth_manifest_tensor content_tensor(const hth_content_object *o)
{
    return (hth_manifest_tensor){.name = (char *)o->name,
                                 .id = o->id,
                                 .dtype = o->dtype,
                                 .shape = o->shape,
                                 .bytes = o->bytes};
}

static hth_err content_tensors(const hth_content_object *objects, int n, hth_manifest_tensor **out)
{
    hth_manifest_tensor *t = hth_calloc((size_t)n, sizeof *t);
    for (int i = 0; t != NULL && i < n; i++) {
        t[i] = content_tensor(&objects[i]);
    }
    *out = t;
    return t != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for %d objects", n);
}

// content_sees: names with a dot in front are no models'.
static bool content_sees(void *ctx, const char *name, int version)
{
    const hth_content_who *who = ctx;
    bool mine;
    return hth_dataset_named(name, who->owner, &mine) ? mine : who->models && name[0] != '.';
}

hth_err hth_content_have(hth_store *s, const hth_content_who *who,
                         const hth_content_object *objects, int n, uint64_t *there)
{
    hth_manifest_tensor *t;
    HTH_TRY(content_tensors(objects, n, &t));
    hth_err err = hth_upload_have(s, who->owner, content_sees, (void *)who, t, n, there);
    hth_free(t);
    return err;
}

hth_err hth_content_put(hth_store *s, const char *owner, uint64_t most,
                        const hth_content_object *object, uint64_t at, const void *data, size_t n,
                        uint64_t *there)
{
    hth_manifest_tensor t = content_tensor(object);
    return hth_upload_put(s, owner, most, &t, at, data, n, there);
}

hth_err hth_content_discard(hth_store *s, const char *owner, const hth_content_object *objects,
                            int n)
{
    hth_manifest_tensor *t;
    HTH_TRY(content_tensors(objects, n, &t));
    hth_err err = hth_upload_discard(s, owner, t, n);
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

static hth_err commit_init(commit_job *j)
{
    size_t n = (size_t)j->m->n;
    j->put = hth_calloc(n, sizeof *j->put);
    j->look = hth_calloc(n, sizeof *j->look);
    j->from = hth_calloc(n, sizeof *j->from);
    j->asked = hth_calloc(n, sizeof *j->asked);
    j->there = hth_calloc(n, sizeof *j->there);
    return j->put != NULL && j->look != NULL && j->from != NULL && j->asked != NULL &&
                   j->there != NULL
               ? HTH_OK
               : hth_fail(HTH_ENOMEM, "out of memory for %zu tensors", n);
}

static void commit_fini(commit_job *j)
{
    hth_free(j->put);
    hth_free(j->look);
    hth_free(j->from);
    hth_free(j->asked);
    hth_free(j->there);
}

// commit_fill describes the tensors: those that came along by their bytes, the others by their ids.
static hth_err commit_fill(commit_job *j)
{
    const hth_content_model *m = j->m;
    uint64_t at = 0, all = m->skeleton_bytes, most = hth_catalog_limits().max_model_bytes;
    hth_size have, limit;
    for (int i = 0; i < m->n; i++) {
        const hth_content_object *o = &m->objects[i];
        if (o->here && o->bytes > m->here_bytes - at) {
            return hth_fail(HTH_ECORRUPT, "tensor '%s' is to come along, and does not", o->name);
        }
        all = o->bytes > UINT64_MAX - all ? UINT64_MAX : all + o->bytes;
        j->from[i] = (commit_tensor){j->s, m->who.owner, content_tensor(o)};
        j->put[i] = (hth_put_tensor){.name = o->name,
                                     .dtype = o->dtype,
                                     .shape = o->shape,
                                     .data = o->here ? m->here + at : NULL,
                                     .bytes = o->bytes,
                                     .id = &o->id,
                                     .owner = m->who.owner};
        j->look[i] = j->put[i];
        j->look[i].read = commit_read;
        j->look[i].read_ctx = &j->from[i];
        at += o->here ? o->bytes : 0;
        if (!o->here) {
            j->asked[j->n_asked++] = content_tensor(o);
        }
    }
    hth_size_pair(all, most, &have, &limit);
    if (at != m->here_bytes) {
        return hth_fail(HTH_ECORRUPT, "bytes came along that belong to no tensor");
    }
    return all <= most || j->unlimited
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG, "the model has %s; limits.model_bytes is %s", have.text,
                          limit.text);
}

// commit_there looks whether all that did not come along is there.
static hth_err commit_there(commit_job *j)
{
    HTH_TRY(hth_upload_have(j->s, j->m->who.owner, content_sees, (void *)&j->m->who, j->asked,
                            j->n_asked, j->there));
    for (int i = 0; i < j->n_asked; i++) {
        const hth_manifest_tensor *t = &j->asked[i];
        if (j->there[i] != HTH_UPLOAD_WHOLE) {
            char hex[HTH_ID_HEX];
            return hth_fail(HTH_ENOENT,
                            "tensor '%s' is not in the store, and %llu of its %llu bytes were "
                            "uploaded; its id is %s",
                            t->name, (unsigned long long)j->there[i], (unsigned long long)t->bytes,
                            hth_id_hex(&t->id, hex));
        }
    }
    return HTH_OK;
}

static hth_err commit_bool(const hth_put_tensor *t, void *chunk)
{
    for (uint64_t at = 0; at < t->bytes; at += CONTENT_CHUNK) {
        size_t n = t->bytes - at < CONTENT_CHUNK ? (size_t)(t->bytes - at) : CONTENT_CHUNK;
        const uint8_t *p = t->data != NULL ? (const uint8_t *)t->data + at : chunk;
        HTH_TRY(t->data != NULL ? HTH_OK : t->read(t->read_ctx, at, chunk, n));
        for (size_t i = 0; i < n; i++) {
            if (p[i] > 1) {
                return hth_fail(HTH_ECORRUPT, "tensor '%s': element %llu of a BOOL is %u", t->name,
                                (unsigned long long)(at + i), p[i]);
            }
        }
    }
    return HTH_OK;
}

static hth_err commit_bools(const commit_job *j)
{
    void *chunk = hth_alloc(CONTENT_CHUNK);
    hth_err err = chunk != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for a commit");
    for (int i = 0; i < j->m->n && err == HTH_OK; i++) {
        err = j->look[i].dtype == HTH_DT_BOOL ? commit_bool(&j->look[i], chunk) : HTH_OK;
    }
    hth_free(chunk);
    return err;
}

// commit_meta is what of a version's meta may come from outside; NULL: no memory.
static char *commit_meta(const hth_content_model *m)
{
    json_t *had = json_loads(m->meta, 0, NULL), *meta = json_object();
    json_t *batch = json_object_get(had, "max_batch");
    json_int_t most = json_is_integer(batch) ? json_integer_value(batch) : m->max_batch;
    if (most >= 0 && most < INT32_MAX) {
        json_object_set_new(meta, "max_batch", json_integer(most));
    }
    if (json_is_true(json_object_get(had, HTH_META_TRAINED))) {
        json_object_set_new(meta, HTH_META_TRAINED, json_true());
    }
    char *text = json_dumps(meta, JSON_COMPACT), *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(meta);
    json_decref(had);
    return out;
}

static hth_err commit_run(commit_job *j, hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    const hth_content_model *m = j->m;
    HTH_TRY(commit_init(j));
    HTH_TRY(commit_fill(j));
    HTH_TRY(commit_there(j));
    HTH_TRY(commit_bools(j));
    HTH_TRY(hth_catalog_check_graph(m->skeleton, m->skeleton_bytes, j->look, m->n, NULL));
    char *meta = commit_meta(m);
    if (meta == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a version");
    }
    hth_err err = hth_store_put(j->s, m->name, m->skeleton, m->skeleton_bytes, meta, j->put, m->n,
                                progress, ctx, out);
    hth_free(meta);
    return err;
}

hth_err hth_content_commit(hth_store *s, const hth_content_model *m, hth_progress_fn progress,
                           void *ctx, hth_put_result *out)
{
    commit_job j = {.s = s, .m = m};
    memset(out, 0, sizeof *out);
    hth_err err = hth_store_check_new(m->name);
    err = err == HTH_OK ? hth_dataset_model(m->name) : err;
    err = err == HTH_OK ? commit_run(&j, progress, ctx, out) : err;
    commit_fini(&j);
    return err;
}

static hth_err dataset_run(commit_job *j, int64_t store_bytes, hth_progress_fn progress, void *ctx,
                           hth_put_result *out)
{
    const hth_content_model *m = j->m;
    hth_dataset_put put = {.name = m->name, .tenant = m->who.owner, .store_bytes = store_bytes};
    j->unlimited = true;
    HTH_TRY(commit_init(j));
    HTH_TRY(commit_fill(j));
    HTH_TRY(commit_there(j));
    json_t *about = json_loads(m->meta, 0, NULL);
    put.about = about;
    put.tensors = j->put;
    put.n = m->n;
    hth_err err = hth_dataset_store(j->s, &put, progress, ctx, out);
    json_decref(about);
    return err;
}

hth_err hth_content_dataset_put(hth_store *s, const hth_content_model *m, int64_t store_bytes,
                                hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    commit_job j = {.s = s, .m = m};
    memset(out, 0, sizeof *out);
    hth_err err = dataset_run(&j, store_bytes, progress, ctx, out);
    commit_fini(&j);
    return err;
}

// ---- what a version has

static hth_err content_version(hth_store *s, const char *model, hth_manifest *out)
{
    char name[201];
    int version;
    HTH_TRY(hth_catalog_parse(model, name, &version));
    HTH_TRY(hth_dataset_is_not(s, name));
    return hth_store_get(s, name, version, out);
}

hth_err hth_content_manifest(hth_store *s, const char *model, hth_manifest *out,
                             hth_content_object **objects)
{
    *objects = NULL;
    HTH_TRY(content_version(s, model, out));
    hth_content_object *o = hth_calloc((size_t)out->n_tensors, sizeof *o);
    if (o == NULL) {
        hth_manifest_fini(out);
        return hth_fail(HTH_ENOMEM, "out of memory for %d objects", out->n_tensors);
    }
    for (int i = 0; i < out->n_tensors; i++) {
        const hth_manifest_tensor *t = &out->tensors[i];
        o[i] = (hth_content_object){
            .name = t->name, .id = t->id, .dtype = t->dtype, .shape = t->shape, .bytes = t->bytes};
    }
    *objects = o;
    return HTH_OK;
}

hth_err hth_content_get(hth_store *s, const char *model, const hth_id *id, uint64_t at, void *dst,
                        size_t n)
{
    hth_manifest m;
    char hex[HTH_ID_HEX];
    HTH_TRY(content_version(s, model, &m));
    const hth_manifest_tensor *found = NULL;
    for (int i = 0; i < m.n_tensors && found == NULL; i++) {
        found = hth_id_equal(&m.tensors[i].id, id) ? &m.tensors[i] : NULL;
    }
    hth_err err = found != NULL ? hth_upload_read(s, NULL, found, at, dst, n)
                                : hth_fail(HTH_ENOENT, "model '%s' has no object %s", model,
                                           hth_id_hex(id, hex));
    hth_manifest_fini(&m);
    return err;
}
