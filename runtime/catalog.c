// SPDX-License-Identifier: Apache-2.0
// An import loads the graph from the file's own bytes before anything is stored: a version that
// exists can be run.
#include "runtime/catalog.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/settings.h"
#include "runtime/checkpoint_index.h"
#include "runtime/content/dataset_index.h"
#include "runtime/model.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

hth_err hth_catalog_parse(const char *model, char name[201], int *version)
{
    const char *colon = strrchr(model, ':');
    size_t n = colon != NULL ? (size_t)(colon - model) : strlen(model);
    *version = 0;
    if (n == 0 || n > 200) {
        return hth_fail(HTH_EINVAL, "'%.64s' is not a model name", model);
    }
    memcpy(name, model, n);
    name[n] = 0;
    if (colon != NULL) {
        char *end;
        bool digit = colon[1] >= '1' && colon[1] <= '9'; // each has one way to be written
        long v = strtol(colon + 1, &end, 10);
        if (!digit || *end != 0 || v > INT32_MAX) {
            return hth_fail(HTH_EINVAL,
                            "'%.32s' is not a version of model '%s': versions are 1, 2, ..",
                            colon + 1, name);
        }
        *version = (int)v;
    }
    return HTH_OK;
}

// ---- import

hth_onnx_limits hth_catalog_limits(void)
{
    return (hth_onnx_limits){
        .max_model_bytes = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MODEL_BYTES),
        .max_tensor_elements = (uint64_t)hth_setting_int(HTH_SET_LIMIT_ELEMENTS),
        .max_nodes = (int)hth_setting_int(HTH_SET_LIMIT_NODES),
        .max_rank = (int)hth_setting_int(HTH_SET_LIMIT_RANK),
        .max_signature = (int)hth_setting_int(HTH_SET_LIMIT_INPUTS_OUTPUTS)};
}

// A tensor of a file.
typedef struct catalog_tensor {
    const hth_onnx_file *file;
    int i;
} catalog_tensor;

static hth_err catalog_read(void *ctx, uint64_t at, void *dst, size_t n)
{
    const catalog_tensor *t = ctx;
    return hth_onnx_tensor_read(t->file, t->i, at, dst, n);
}

static hth_err catalog_materialize(hth_const *constant, void *dst)
{
    const hth_put_tensor *t = constant->owner;
    return t->read(t->read_ctx, 0, dst, constant->bytes);
}

// catalog_check_load loads a graph with the constants `c` and asks `check` to accept it.
static hth_err catalog_check_load(const void *skeleton, size_t bytes, hth_const **c, int n,
                                  const hth_catalog_check *check)
{
    hth_onnx_limits limits = hth_catalog_limits();
    hth_graph *g = NULL;
    hth_independence samples;
    hth_err err;
    HTH_GOTO(hth_onnx_load(skeleton, bytes, c, n, &limits, &g), done);
    if (check != NULL) {
        HTH_GOTO(hth_independence_prove(g, &samples), done);
        err = check->accept(check->ctx, g, &samples);
    }
done:
    hth_graph_free(g);
    return err;
}

hth_err hth_catalog_check_graph(const void *skeleton, size_t bytes, const hth_put_tensor *tensor,
                                int n, const hth_catalog_check *check)
{
    hth_const **c = hth_calloc((size_t)n, sizeof(hth_const *));
    hth_err err = c != NULL ? HTH_OK : HTH_ENOMEM;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        if ((c[i] = hth_calloc(1, sizeof *c[i])) == NULL) {
            err = HTH_ENOMEM;
            break;
        }
        atomic_init(&c[i]->refs, 1);
        c[i]->id = hth_id_of(&(hth_chunk){&i, sizeof i}, 1);
        c[i]->dtype = tensor[i].dtype;
        c[i]->shape = tensor[i].shape;
        c[i]->bytes = tensor[i].bytes;
        c[i]->data = tensor[i].data;
        if (tensor[i].data == NULL) { // whoever wants to know has it read
            c[i]->materialize = catalog_materialize;
            c[i]->owner = (void *)&tensor[i];
        }
    }
    err = err == HTH_OK ? catalog_check_load(skeleton, bytes, c, n, check)
                        : hth_no_memory("%d tensors", n);
    for (int i = 0; c != NULL && i < n; i++) {
        hth_const_rele(c[i]);
    }
    hth_free(c);
    return err;
}

// How a file is imported.
typedef struct catalog_how {
    int max_batch;
    const hth_caller *caller;
    const hth_catalog_check *check;
    hth_progress_fn progress;
    void *ctx;
} catalog_how;

// catalog_store stores what was checked, as the caller's.
static hth_err catalog_store(hth_store *store, const char *name, const hth_onnx_file *file,
                             const catalog_how *how, const hth_put_tensor *tensors,
                             hth_put_result *out)
{
    char owner[HTH_TENANT], before[40] = "{}";
    size_t bytes;
    int n = hth_onnx_n_tensors(file);
    const void *skeleton = hth_onnx_skeleton(file, &bytes);
    HTH_TRY(hth_owner_new(store, name, how->caller, owner));
    if (how->caller != NULL && !how->caller->admin) {
        const hth_owner_put put = {
            .graph = skeleton, .graph_bytes = bytes, .tensors = tensors, .n = n};
        HTH_TRY(hth_owner_room(store, owner, how->caller->store_bytes, NULL, &put));
    }
    if (how->max_batch >= 0 && how->max_batch < INT32_MAX) {
        snprintf(before, sizeof before, "{\"max_batch\":%d}", how->max_batch);
    }
    char *meta = hth_owner_meta(before, owner);
    if (meta == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a version");
    }
    hth_err err =
        hth_store_put(store, name, skeleton, bytes, meta, tensors, n, how->progress, how->ctx, out);
    hth_free(meta);
    return err;
}

static hth_err catalog_put(hth_store *store, const char *name, const hth_onnx_file *file,
                           const catalog_how *how, hth_put_result *out)
{
    int n = hth_onnx_n_tensors(file);
    size_t bytes;
    HTH_TRY(hth_dataset_model(name));
    HTH_TRY(hth_checkpoint_model(name));
    const void *skeleton = hth_onnx_skeleton(file, &bytes);
    hth_put_tensor *t = hth_calloc((size_t)n, sizeof *t);
    catalog_tensor *from = hth_calloc((size_t)n, sizeof *from);
    hth_err err = hth_no_memory("%d tensors", n);
    if (t != NULL && from != NULL) {
        for (int i = 0; i < n; i++) {
            const hth_onnx_tensor *o = hth_onnx_tensor_at(file, i);
            from[i] = (catalog_tensor){file, i};
            t[i] = (hth_put_tensor){.name = o->name,
                                    .dtype = o->dtype,
                                    .shape = o->shape,
                                    .data = o->data,
                                    .bytes = o->bytes,
                                    .read = catalog_read,
                                    .read_ctx = &from[i]};
        }
        err = hth_catalog_check_graph(skeleton, bytes, t, n, how->check);
        if (err == HTH_OK) {
            err = catalog_store(store, name, file, how, t, out);
        }
    }
    hth_free(t);
    hth_free(from);
    return err;
}

hth_err hth_catalog_import(hth_store *store, const char *name, const char *path, int max_batch,
                           const hth_caller *caller, hth_progress_fn progress, void *ctx,
                           hth_put_result *out)
{
    hth_onnx_file *f;
    const catalog_how how = {max_batch, caller, NULL, progress, ctx};
    hth_onnx_limits limits = hth_catalog_limits();
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_onnx_open(path, &limits, &f));
    hth_err err = catalog_put(store, name, f, &how, out);
    hth_onnx_close(f);
    return err;
}

hth_err hth_catalog_import_given(hth_store *store, const char *name, const char *shown,
                                 const hth_onnx_given *given, int n, int max_batch,
                                 const hth_caller *caller, hth_progress_fn progress, void *ctx,
                                 hth_onnx_wanted *wanted, hth_put_result *out)
{
    hth_onnx_file *f;
    const catalog_how how = {max_batch, caller, NULL, progress, ctx};
    hth_file file;
    hth_onnx_limits limits = hth_catalog_limits();
    memset(out, 0, sizeof *out);
    *wanted = (hth_onnx_wanted){NULL, 0, 0};
    for (int i = 0; i < n; i++) {
        HTH_TRY(hth_file_take(given[i].fd, i == 0 ? shown : given[i].location, &file));
    }
    HTH_TRY(hth_onnx_open_given(shown, given, n, &limits, wanted, &f));
    hth_err err = catalog_put(store, name, f, &how, out);
    hth_onnx_close(f);
    return err;
}

hth_err hth_catalog_import_bytes(hth_store *store, const char *name, const void *data, size_t bytes,
                                 int max_batch, const hth_caller *caller,
                                 const hth_catalog_check *check, hth_put_result *out)
{
    hth_onnx_file *f;
    const catalog_how how = {max_batch, caller, check, NULL, NULL};
    hth_onnx_limits limits = hth_catalog_limits();
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_onnx_open_bytes(data, bytes, &limits, &f));
    hth_err err = catalog_put(store, name, f, &how, out);
    hth_onnx_close(f);
    return err;
}

// catalog_meta is a version's meta with another batch limit, INT32_MAX for none; NULL: it has that
// already, or `*err`.
static char *catalog_meta(const hth_manifest *manifest, int max_batch, hth_err *err)
{
    json_t *meta = json_loads(manifest->meta, 0, NULL), *had = json_object_get(meta, "max_batch");
    char *text = NULL, *out = NULL;
    json_int_t most = json_is_integer(had) ? json_integer_value(had) : INT32_MAX;
    bool same = (most >= 0 ? most : INT32_MAX) == max_batch;
    meta = meta != NULL ? meta : json_object();
    *err = HTH_OK;
    if (!same && max_batch == INT32_MAX) {
        json_object_del(meta, "max_batch");
    } else if (!same) {
        json_object_set_new(meta, "max_batch", json_integer(max_batch));
    }
    if (!same) {
        text = json_dumps(meta, JSON_COMPACT);
        out = text != NULL ? hth_strdup(text) : NULL;
        *err = out != NULL ? HTH_OK : hth_no_memory("a version");
    }
    free(text);
    json_decref(meta);
    return out;
}

static hth_err catalog_put_again(hth_store *store, const hth_manifest *manifest, const char *meta,
                                 hth_put_tensor *tensor, hth_const **view, hth_put_result *out)
{
    HTH_TRY(hth_store_check(store, manifest));
    for (int i = 0; i < manifest->n_tensors; i++) {
        const hth_manifest_tensor *from = &manifest->tensors[i];
        HTH_TRY(hth_store_view(store, from, &view[i]));
        tensor[i] = (hth_put_tensor){
            .name = from->name, .dtype = from->dtype, .shape = from->shape, .bytes = from->bytes};
        HTH_TRY(hth_const_map(view[i], &tensor[i].data));
    }
    return hth_store_put(store, manifest->name, manifest->skeleton, manifest->skeleton_bytes, meta,
                         tensor, manifest->n_tensors, NULL, NULL, out);
}

static hth_err catalog_again(hth_store *store, const hth_manifest *manifest, const char *meta,
                             hth_put_result *out)
{
    hth_put_tensor *t = hth_calloc((size_t)manifest->n_tensors, sizeof *t);
    hth_const **view = hth_calloc((size_t)manifest->n_tensors, sizeof(hth_const *));
    hth_err err = t != NULL && view != NULL ? catalog_put_again(store, manifest, meta, t, view, out)
                                            : hth_no_memory("%d tensors", manifest->n_tensors);
    for (int i = 0; i < manifest->n_tensors && view != NULL && t != NULL; i++) {
        if (t[i].data != NULL) {
            hth_const_unmap(view[i]);
        }
        hth_const_rele(view[i]);
    }
    hth_free(view);
    hth_free(t);
    return err;
}

// catalog_batched says whether the configuration of a model without a limit says more than 0
// (hth_http_max_batch): to say 0 of another changes nothing.
static bool catalog_batched(const hth_graph *graph, const hth_independence *samples)
{
    for (int i = 0; i < graph->n_inputs; i++) {
        if (graph->values[graph->inputs[i]].shape.rank < 2) {
            return false;
        }
    }
    return samples->proven;
}

hth_err hth_catalog_rebatch(hth_store *store, const char *name, int max_batch,
                            const hth_catalog_check *check, hth_put_result *out)
{
    hth_manifest m;
    hth_graph *g = NULL;
    hth_independence samples;
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_store_get(store, name, 0, &m));
    hth_err err = hth_model_serves(store, &m, &g, &samples);
    if (err == HTH_OK) {
        err = check->accept(check->ctx, g, &samples);
    }
    bool said =
        err == HTH_OK && (max_batch > 0 || (max_batch == 0 && catalog_batched(g, &samples)));
    hth_graph_free(g);
    char *meta = said ? catalog_meta(&m, max_batch, &err) : NULL;
    if (meta != NULL) {
        err = catalog_again(store, &m, meta, out);
    } else {
        out->version = m.version;
        out->unchanged = true;
    }
    hth_free(meta);
    hth_manifest_fini(&m);
    return err;
}

// ---- remove

hth_err hth_catalog_remove(hth_store *store, const char *model)
{
    char name[201];
    int version;
    HTH_TRY(hth_catalog_parse(model, name, &version));
    HTH_TRY(hth_dataset_is_not(store, name));
    HTH_TRY(hth_checkpoint_unused(store, name, version));
    return hth_store_rm(store, name, version);
}
