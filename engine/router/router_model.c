// SPDX-License-Identifier: Apache-2.0
// Which models are on which devices, and what a model would have to bring to one: contents are
// known by their ids, so that one which another model has there already is no byte to move.
//
// Rows are made when a model is first asked for, from the manifest of that moment, and stay. There
// is one for each name and each version that was in the store: hth_catalog_parse has one way only
// to write a version.
#include "engine/router/router_impl.h"

#include "runtime/catalog.h"

#include <stdio.h>
#include <string.h>

// ---- rows

// model_content finds or makes a content's row. Lock held.
static router_content *model_content(hth_router *router, const hth_manifest_tensor *tensor)
{
    router_content *c;
    HASH_FIND(hh, router->contents, &tensor->id, sizeof tensor->id, c);
    if (c == NULL && (c = hth_calloc(1, sizeof *c)) != NULL) {
        c->id = tensor->id;
        c->bytes = tensor->bytes;
        HASH_ADD(hh, router->contents, id, sizeof c->id, c);
        if (!HTH_HASH_ADDED(c)) {
            hth_free(c);
            c = NULL;
        }
    }
    return c;
}

// model_new makes the row; lock held.
static router_model *model_new(hth_router *router, const char *spec, const hth_manifest *list)
{
    router_model *m = hth_calloc(1, sizeof *m);
    if (m != NULL) {
        m->content = hth_calloc((size_t)list->n_tensors + 1, sizeof *m->content);
    }
    if (m == NULL || m->content == NULL) {
        hth_free(m);
        return NULL;
    }
    strcpy(m->spec, spec);
    for (int i = 0; i < list->n_tensors; i++) {
        router_content *c = model_content(router, &list->tensors[i]);
        if (c != NULL) {
            m->content[m->n_content++] = c;
            m->bytes += c->bytes;
        }
    }
    HASH_ADD_STR(router->models, spec, m);
    if (!HTH_HASH_ADDED(m)) {
        hth_free(m->content);
        hth_free(m);
        m = NULL;
    }
    return m;
}

// model_target resolves a name that a command was given: an alias's target, else the name itself.
static const char *model_target(const hth_router *router, const char *spec,
                                char target[HTH_STORE_TARGET])
{
    hth_store_alias a;
    if (hth_store_alias_get(router->store, spec, &a) != HTH_OK) {
        return spec;
    }
    hth_store_alias_target(&a, target);
    return target;
}

router_model *router_model_find(hth_router *router, const char *spec)
{
    router_model *m;
    char name[201];
    int version;
    hth_manifest list;
    char target[HTH_STORE_TARGET];
    spec = model_target(router, spec, target);
    pthread_mutex_lock(&router->lock);
    HASH_FIND_STR(router->models, spec, m);
    pthread_mutex_unlock(&router->lock);
    if (m != NULL || strlen(spec) >= sizeof m->spec ||
        hth_catalog_parse(spec, name, &version) != HTH_OK ||
        hth_store_get(router->store, name, version, &list) != HTH_OK) {
        return m;
    }
    pthread_mutex_lock(&router->lock);
    HASH_FIND_STR(router->models, spec, m); // somebody was faster
    m = m != NULL ? m : model_new(router, spec, &list);
    pthread_mutex_unlock(&router->lock);
    hth_manifest_fini(&list);
    return m;
}

void router_models_close(hth_router *router)
{
    while (router->models != NULL) {
        router_model *m = router->models;
        HASH_DEL(router->models, m);
        hth_free(m->content);
        hth_free(m);
    }
    while (router->contents != NULL) {
        router_content *c = router->contents;
        HASH_DEL(router->contents, c);
        hth_free(c);
    }
}

// ---- where they are

uint64_t router_model_lacks(const router_model *model, int device)
{
    uint64_t bytes = 0;
    for (int i = 0; i < model->n_content; i++) {
        bytes += model->content[i]->refs[device] == 0 ? model->content[i]->bytes : 0;
    }
    return bytes;
}

bool router_model_small(const router_model *model, int device)
{
    const char *small = model->on[device].too_big_for;
    return small[0] != 0 && strcmp(small, model->tenant) == 0;
}

void router_model_for(router_model *model, const char *tenant, bool again)
{
    again = again || model->tenant[0] == 0;
    for (int i = 0; i < HTH_PLACE_DEVICES && !again; i++) {
        again = router_model_small(model, i);
    }
    if (tenant != NULL && again) {
        snprintf(model->tenant, sizeof model->tenant, "%s", tenant);
    }
}

void router_model_place(hth_router *router, router_model *model, int device)
{
    if (model->on[device].has) {
        return;
    }
    router->device[device].placed_bytes += router_model_lacks(model, device);
    model->on[device].has = true;
    for (int i = 0; i < model->n_content; i++) {
        model->content[i]->refs[device]++;
    }
}

void router_model_leave(router_model *model, int device)
{
    router_there *t = &model->on[device];
    for (int i = 0; t->has && i < model->n_content; i++) {
        model->content[i]->refs[device]--;
    }
    t->has = t->loaded = t->good = false;
    t->service_ns = 0;
}

void router_model_unload(hth_router *router, const char *spec)
{
    char target[HTH_STORE_TARGET];
    spec = model_target(router, spec, target);
    size_t len = strlen(spec);
    for (router_model *m = router->models; m != NULL; m = m->hh.next) {
        if (strncmp(m->spec, spec, len) == 0 && (m->spec[len] == 0 || m->spec[len] == ':')) {
            m->pinned = false;
            m->tenant[0] = 0;
            for (int i = 0; i < router->n; i++) {
                router_model_leave(m, i);
                m->on[i].coming = false;
                m->on[i].refused = false; // a newer version may be another matter
                m->on[i].too_big_for[0] = 0;
            }
        }
    }
}

// ---- loading in the background

// fetch_refused notes that a device does not get a model: it cannot have it, or it is too big for
// who it was to be for. Another one may have more; what is too big for two is so for the device.
static void fetch_refused(const router_own *own, router_there *there)
{
    bool big = own->r.err == HTH_ETOOBIG;
    bool whole = strcmp(own->tenant, HTH_TENANT_OWN) == 0 ||
                 (there->too_big_for[0] != 0 && strcmp(there->too_big_for, own->tenant) != 0);
    there->refused = own->r.err == HTH_ENOTSUP || (big && whole);
    if (big) {
        memcpy(there->too_big_for, own->tenant, sizeof there->too_big_for);
    }
}

static void fetch_done(router_own *own)
{
    hth_router *n = own->router;
    router_model *m = router_model_find(n, own->name);
    pthread_mutex_lock(&n->lock);
    bool wanted = m != NULL && m->on[own->device].coming; // not unloaded meanwhile
    if (wanted) {
        m->on[own->device].coming = false;
        fetch_refused(own, &m->on[own->device]);
    }
    if (wanted && own->r.err == HTH_OK) {
        router_model_place(n, m, own->device);
        m->on[own->device].loaded = true;
    }
    pthread_mutex_unlock(&n->lock);
    if (own->r.err == HTH_OK) {
        hth_log(INFO, SERVER, "model-placed", "model=%s device=%s", own->name,
                n->device[own->device].name);
        router_refresh(n, own->device);
    } else {
        hth_log(WARN, SERVER, "model-not-placed", "model=%s device=%s: %s", own->name,
                n->device[own->device].name, own->r.detail);
    }
}

void router_model_fetch(hth_router *router, router_model *model, int device)
{
    json_t *args = json_pack("{s:s, s:b}", "model", model->spec, "wait", 0);
    pthread_mutex_lock(&router->lock);
    char tenant[HTH_TENANT];
    memcpy(tenant, model->tenant, sizeof tenant);
    bool pinned = model->pinned;
    pthread_mutex_unlock(&router->lock);
    if (pinned) {
        json_object_set_new(args, "pin", json_true());
    }
    if (router_own_ask(router, device, tenant, HTH_COMMAND_LOAD, args, model->spec, fetch_done) !=
        HTH_OK) {
        pthread_mutex_lock(&router->lock);
        model->on[device].coming = false;
        pthread_mutex_unlock(&router->lock);
    }
}
