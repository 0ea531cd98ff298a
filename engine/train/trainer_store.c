// SPDX-License-Identifier: Apache-2.0
// A trainer and the model store: the state of all slots for checkpoints, and the result as a new
// version of a model.
#include "engine/train/trainer_impl.h"

#include "base/alloc.h"
#include "runtime/catalog.h"
#include "runtime/tenants/owner.h"
#include "runtime/tenants/tenant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Of a file system: what a file's last one leaves empty, at most.
#define STORE_BLOCK 4096u

// What slot i has in a checkpoint, under `name`.
static hth_put_tensor state_tensor(const hth_trainer *trainer, int i, const char *name,
                                   const void *data)
{
    const hth_train_graph *g = hth_trainer_graph(trainer);
    const hth_value *v = &g->graph->values[g->graph->inputs[g->slots[i].input]];
    return (hth_put_tensor){.name = name,
                            .dtype = v->dtype,
                            .shape = v->shape,
                            .data = (void *)data,
                            .bytes = trainer->slots.bytes[i]};
}

// A group's gradients are zeros between steps: checkpoints do not have them, so that the job may go
// on alone, and one that was alone in a group.
static bool state_zero(const hth_trainer *trainer, int i)
{
    if (!trainer->group) {
        return false;
    }
    const hth_train_slot *slot = &hth_trainer_current(trainer)->add.graph.slots[i];
    return slot->kind == HTH_SLOT_STATE && slot->output >= 0;
}

hth_err hth_trainer_state(hth_trainer *trainer, hth_put_tensor **out, int *count)
{
    const hth_train_graph *g = &hth_trainer_current(trainer)->apply.graph;
    size_t n = (size_t)trainer->slots.n;
    const void **view = hth_calloc(2 * n + 1, sizeof *view);
    *count = 0;
    *out = hth_calloc(2 * n + 1, sizeof **out);
    hth_err err = *out != NULL && view != NULL ? hth_trainer_slots_view(&trainer->slots, view)
                                               : hth_no_memory("the trained model");
    if (err == HTH_OK) {
        err = hth_trainer_kept_view(trainer, view + n);
    }
    for (int i = 0; err == HTH_OK && i < trainer->slots.n; i++) {
        if (g->slots[i].kind != HTH_SLOT_COPY && !state_zero(trainer, i)) {
            (*out)[(*count)++] = state_tensor(trainer, i, g->slots[i].name, view[i]);
        }
    }
    for (int i = 0; err == HTH_OK && i < trainer->slots.n; i++) {
        if (view[n + (size_t)i] != NULL) {
            (*out)[(*count)++] =
                state_tensor(trainer, i, trainer->kept.name[i], view[n + (size_t)i]);
        }
    }
    hth_free(view);
    if (err != HTH_OK) {
        hth_free(*out);
        *out = NULL;
    }
    return err;
}

// Whether tensor is what slot i is set from; that of a copy is the parameter's.
static bool slot_is(const hth_trainer *trainer, const hth_train_graph *graph, int i,
                    const hth_manifest_tensor *tensor)
{
    bool copy = graph->slots[i].kind == HTH_SLOT_COPY;
    const char *name = graph->slots[i].name;
    for (int s = 0; s < graph->n_slots && copy; s++) {
        bool of = graph->slots[s].kind == HTH_SLOT_PARAM &&
                  graph->slots[s].initializer == graph->slots[i].initializer;
        name = of ? graph->slots[s].name : name;
    }
    return strcmp(tensor->name, name) == 0 &&
           tensor->bytes == trainer->slots.bytes[i] * (copy ? sizeof(float) / sizeof(uint16_t) : 1);
}

// What was kept, of all slots that have it or of none.
static hth_err restore_kept(hth_trainer *trainer, hth_store *store, const hth_manifest *manifest)
{
    int found = 0, wanted = 0;
    for (int i = 0; i < trainer->kept.n; i++) {
        hth_const *view;
        wanted += trainer->kept.name[i] != NULL;
        for (int k = 0; k < manifest->n_tensors && trainer->kept.name[i] != NULL; k++) {
            const hth_manifest_tensor *x = &manifest->tensors[k];
            if (strcmp(x->name, trainer->kept.name[i]) != 0 ||
                x->bytes != trainer->slots.bytes[i]) {
                continue;
            }
            HTH_TRY(hth_store_view(store, x, &view));
            hth_err err = hth_trainer_kept_set(trainer, i, view->data);
            hth_const_rele(view);
            HTH_TRY(err);
            found++;
        }
    }
    trainer->kept.any = found > 0;
    return found == 0 || found == wanted
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT, "'%s' has %d of %d tensors of the best epoch",
                          manifest->name, found, wanted);
}

hth_err hth_trainer_restore(hth_trainer *trainer, hth_store *store, const hth_manifest *manifest,
                            uint64_t steps)
{
    const hth_train_graph *g = &hth_trainer_current(trainer)->apply.graph;
    for (int i = 0; i < trainer->slots.n; i++) {
        int k = 0;
        hth_const *view;
        if (state_zero(trainer, i)) {
            continue;
        }
        while (k < manifest->n_tensors && !slot_is(trainer, g, i, &manifest->tensors[k])) {
            k++;
        }
        if (k == manifest->n_tensors) {
            return hth_fail(HTH_EINVAL,
                            "'%s' has no '%s' of the shape and type that this job needs",
                            manifest->name, g->slots[i].name);
        }
        HTH_TRY(hth_store_view(store, &manifest->tensors[k], &view));
        hth_err err = hth_trainer_slots_set(&trainer->slots, i, view->data);
        hth_const_rele(view);
        HTH_TRY(err);
    }
    trainer->counter = steps;
    return restore_kept(trainer, store, manifest);
}

static int64_t not_finite(const float *x, size_t bytes)
{
    int64_t n = 0;
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        n += !isfinite(x[i]);
    }
    return n;
}

// A mask that is added to scores has infinite elements from the start.
static hth_err slot_finite(hth_trainer *trainer, int i, const void *now)
{
    hth_const *c = trainer->slots.initial[i];
    int64_t bad = not_finite(now, trainer->slots.bytes[i]);
    const void *before;
    if (bad > 0) {
        HTH_TRY(hth_const_map(c, &before));
        bad -= not_finite(before, c->bytes);
        hth_const_unmap(c);
    }
    return bad <= 0 ? HTH_OK
                    : hth_fail(HTH_EINVAL, "'%s' has elements that are not finite",
                               hth_trainer_current(trainer)->apply.graph.slots[i].name);
}

hth_err hth_trainer_finite(hth_trainer *trainer)
{
    const hth_train_graph *g = &hth_trainer_current(trainer)->apply.graph;
    const void **view = hth_calloc((size_t)trainer->slots.n + 1, sizeof *view);
    hth_err err = view != NULL ? hth_trainer_slots_view(&trainer->slots, view)
                               : hth_no_memory("the trained model");
    for (int i = 0; err == HTH_OK && i < trainer->slots.n; i++) {
        bool floats = g->graph->values[g->graph->inputs[g->slots[i].input]].dtype == HTH_DT_F32;
        if (floats && trainer->slots.initial[i] != NULL) {
            err = slot_finite(trainer, i, view[i]);
        }
    }
    hth_free(view);
    return err;
}

// The version's meta, that it was trained here, and whose it is now. To be freed by hth_free.
static char *trainer_meta(const char *meta, const char *owner)
{
    json_t *j = json_loads(meta, 0, NULL);
    j = json_is_object(j) ? j : json_object();
    json_object_set_new(j, HTH_META_TRAINED, json_true());
    char *text = json_dumps(j, JSON_COMPACT);
    char *owned = text != NULL ? hth_owner_meta(text, owner) : NULL;
    free(text);
    json_decref(j);
    return owned;
}

// trainer_owned finds whose the result is, and whether its owner has room for it.
static hth_err trainer_owned(const hth_trainer *trainer, const char *name,
                             const hth_put_tensor *put, char owner[HTH_TENANT])
{
    const char *tenant = trainer->spec->owner;
    const hth_caller caller = {tenant, tenant == NULL, HTH_TENANT_NEVER};
    hth_store *store = trainer->ms->store;
    HTH_TRY(hth_owner_new(store, name, &caller, owner));
    const hth_tenant *t = owner[0] != 0 ? hth_tenant_of(trainer->ms->site->tenants, owner) : NULL;
    const hth_owner_put made = {.graph = trainer->manifest.skeleton,
                                .graph_bytes = trainer->manifest.skeleton_bytes,
                                .tensors = put,
                                .n = trainer->manifest.n_tensors};
    return t != NULL ? hth_owner_room(store, owner, t->limits.store_bytes, NULL, &made) : HTH_OK;
}

// The tensors of the version that was trained, with the contents of the slots that belong to them;
// view[i] is held where a tensor was not trained.
static hth_err trainer_tensors(hth_trainer *trainer, hth_put_tensor *put, hth_const **view)
{
    const hth_manifest *m = &trainer->manifest;
    const hth_train_graph *g = &hth_trainer_current(trainer)->apply.graph;
    const void **content = hth_calloc((size_t)trainer->slots.n + 1, sizeof *content);
    hth_err err = content != NULL ? hth_trainer_slots_view(&trainer->slots, content)
                                  : hth_no_memory("the trained model");
    if (err == HTH_OK) {
        err = hth_trainer_kept_view(trainer, content);
    }
    for (int i = 0; err == HTH_OK && i < m->n_tensors; i++) {
        const hth_manifest_tensor *x = &m->tensors[i];
        put[i] = (hth_put_tensor){
            .name = x->name, .dtype = x->dtype, .shape = x->shape, .bytes = x->bytes};
        for (int s = 0; s < trainer->slots.n; s++) {
            if (hth_slot_of_model(g->slots[s].kind) && g->slots[s].initializer == i) {
                put[i].data = (void *)content[s];
            }
        }
        if (put[i].data == NULL) {
            err = hth_store_view(trainer->ms->store, x, &view[i]);
            put[i].data = err == HTH_OK ? view[i]->data : NULL;
        }
    }
    hth_free(content);
    return err;
}

void hth_trainer_bytes(const hth_trainer *trainer, uint64_t *result, uint64_t *state)
{
    const hth_manifest *m = &trainer->manifest;
    const hth_train_graph *g = &hth_trainer_current(trainer)->apply.graph;
    *result = *state = 0;
    for (int s = 0; s < trainer->slots.n; s++) {
        uint64_t bytes = trainer->slots.bytes[s] + STORE_BLOCK;
        *state += g->slots[s].kind != HTH_SLOT_COPY ? bytes : 0;
        *state += trainer->kept.n > 0 && hth_slot_of_model(g->slots[s].kind) ? bytes : 0;
    }
    for (int i = 0; i < m->n_tensors; i++) {
        bool trained = false;
        for (int s = 0; s < trainer->slots.n; s++) {
            trained =
                trained || (hth_slot_of_model(g->slots[s].kind) && g->slots[s].initializer == i);
        }
        *result += trained ? m->tensors[i].bytes + STORE_BLOCK : 0;
    }
}

hth_err hth_trainer_publish(hth_trainer *trainer, int *version)
{
    const hth_manifest *m = &trainer->manifest;
    const char *as = trainer->spec->save_as != NULL ? trainer->spec->save_as : trainer->spec->model;
    char name[208], owner[HTH_TENANT];
    int ignored;
    hth_put_tensor *put = hth_calloc((size_t)m->n_tensors + 1, sizeof *put);
    hth_const **view = hth_calloc((size_t)m->n_tensors + 1, sizeof *view);
    hth_put_result result;
    char *meta = NULL;
    *version = 0;
    hth_err err;
    if (put == NULL || view == NULL) {
        err = hth_no_memory("the trained model");
        goto done;
    }
    HTH_GOTO(trainer_tensors(trainer, put, view), done);
    HTH_GOTO(hth_catalog_parse(as, name, &ignored), done);
    HTH_GOTO(trainer_owned(trainer, name, put, owner), done);
    meta = trainer_meta(m->meta, owner);
    HTH_GOTO(meta == NULL ? hth_no_memory("the trained model")
                          : hth_store_put(trainer->ms->store, name, m->skeleton, m->skeleton_bytes,
                                          meta, put, m->n_tensors, NULL, NULL, &result),
             done);
    *version = result.version;
done:
    hth_free(meta);
    for (int i = 0; view != NULL && i < m->n_tensors; i++) {
        hth_const_rele(view[i]);
    }
    hth_trainer_slots_unview(&trainer->slots);
    hth_free(view);
    hth_free(put);
    return err;
}
