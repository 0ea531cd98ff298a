// SPDX-License-Identifier: Apache-2.0
// Checks at submission, from the model's graph, whether a job's result will fit into its owner's
// quota of the store; otherwise the job would fail after its last step. Tensors that training
// leaves as they are count only if the owner does not have them yet; all others are new.
#include "engine/train/queue/train_entry_impl.h"

#include "base/alloc.h"
#include "runtime/catalog.h"
#include "runtime/tenants/owner.h"

#include <stdio.h>
#include <string.h>

typedef struct quota_result {
    hth_manifest base;
    hth_graph *graph;
    bool *changed; // by the base's tensors
    hth_put_tensor *put;
    hth_id *id;
} quota_result;

static void quota_fini(quota_result *result)
{
    hth_free(result->id);
    hth_free(result->put);
    hth_free(result->changed);
    hth_graph_free(result->graph);
    hth_manifest_fini(&result->base);
}

// quota_read reads the model that is trained. What is wrong with it is told when it is the job's
// turn: then *out is empty.
static hth_err quota_read(hth_store *store, const hth_train_spec *spec, quota_result *out)
{
    char name[201];
    int version;
    *out = (quota_result){.graph = NULL};
    if (hth_catalog_resolve(store, spec->model, name, &version) != HTH_OK ||
        hth_store_get(store, name, version, &out->base) != HTH_OK) {
        return HTH_OK;
    }
    size_t n = (size_t)out->base.n_tensors + 1;
    out->changed = hth_calloc(n, sizeof *out->changed);
    out->put = hth_calloc(n, sizeof *out->put);
    out->id = hth_calloc(n, sizeof *out->id);
    if (out->changed == NULL || out->put == NULL || out->id == NULL) {
        return hth_no_memory("a job");
    }
    if (hth_model_graph(store, &out->base, &out->graph) != HTH_OK) {
        out->graph = NULL;
        return HTH_OK;
    }
    return hth_train_changes(out->graph, &spec->options, out->changed, out->base.n_tensors);
}

// quota_tensors describes the result's tensors: what changes has ids of nothing that there is.
static void quota_tensors(quota_result *result)
{
    for (int i = 0; i < result->base.n_tensors; i++) {
        const hth_manifest_tensor *t = &result->base.tensors[i];
        result->id[i] = result->changed[i] ? hth_id_of(&(hth_chunk){&i, sizeof i}, 1) : t->id;
        result->put[i] = (hth_put_tensor){.name = t->name,
                                          .dtype = t->dtype,
                                          .shape = t->shape,
                                          .bytes = t->bytes,
                                          .id = &result->id[i]};
    }
}

hth_err hth_train_quota(const hth_train_queue *queue, const char *job, const char *owner,
                        const json_t *args)
{
    quota_result r;
    hth_train_spec spec;
    hth_store *store = queue->ms->store;
    const hth_tenant *t = owner[0] != 0 ? hth_tenant_of(queue->ms->site->tenants, owner) : NULL;
    if (t == NULL || t->limits.store_bytes == HTH_TENANT_NEVER ||
        hth_train_spec_read(args, false, &spec) != HTH_OK) {
        return HTH_OK;
    }
    hth_err err = quota_read(store, &spec, &r);
    if (err == HTH_OK && r.graph != NULL) {
        quota_tensors(&r);
        const hth_owner_put put = {r.base.skeleton, r.base.skeleton_bytes, strlen(r.base.meta),
                                   r.put, r.base.n_tensors};
        err = hth_owner_room(store, owner, t->limits.store_bytes, NULL, &put);
        err = hth_err_prefix(err, "the result of job '%s' does not fit", job);
    }
    quota_fini(&r);
    return err;
}
