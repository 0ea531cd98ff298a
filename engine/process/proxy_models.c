// SPDX-License-Identifier: Apache-2.0
// Which models the child has loaded, and which are pinned, is known from the answers to requests. A
// new child is asked to load them, as far as there is room. One whose loading ends the process is
// not asked for again: the request for it is answered with an error, like any that was begun.
#include "engine/process/proxy_impl.h"

#include <jansson.h>

#include <string.h>

#define MODELS_MOST 256 // more are loaded when they are asked for

// A request of our own.
typedef struct models_call {
    hth_request r;
    hth_proxy *p;
    char *arguments; // malloc'd
    char spec[216];
} models_call;

// models_drop forgets a name with all its versions, or the one that is named.
static void models_drop(hth_proxy *p, const char *spec)
{
    proxy_model *m, *next;
    size_t n = strlen(spec);
    HASH_ITER (hh, p->models, m, next) {
        if (strncmp(m->spec, spec, n) == 0 && (m->spec[n] == 0 || m->spec[n] == ':')) {
            HASH_DEL(p->models, m);
            hth_free(m);
        }
    }
}

// models_add returns the row of a model, NULL: there is no room for it.
static proxy_model *models_add(hth_proxy *p, const char *spec)
{
    proxy_model *m;
    HASH_FIND_STR(p->models, spec, m);
    if (m != NULL || strlen(spec) >= sizeof m->spec || HASH_COUNT(p->models) >= MODELS_MOST) {
        return m;
    }
    m = hth_calloc(1, sizeof *m);
    if (m != NULL) {
        strcpy(m->spec, spec);
        HASH_ADD_STR(p->models, spec, m);
        if (!HTH_HASH_ADDED(m)) {
            hth_free(m);
            m = NULL;
        }
    }
    return m;
}

void proxy_models_note(hth_proxy *p, const hth_request *r)
{
    if (r->query == NULL) {
        (void)models_add(p, r->model);
        return;
    }
    bool load = strcmp(r->query, "load") == 0;
    if (!load && strcmp(r->query, "unload") != 0) {
        return;
    }
    json_t *args = json_loads(r->arguments != NULL ? r->arguments : "", 0, NULL);
    const char *spec = json_string_value(json_object_get(args, "model"));
    const json_t *pin = json_object_get(args, "pin");
    proxy_model *m = spec != NULL && load ? models_add(p, spec) : NULL;
    bool unpin = json_is_true(json_object_get(args, "unpin"));
    if (m != NULL && (pin != NULL || unpin)) {
        m->pinned = json_is_true(pin) && !unpin;
    } else if (spec != NULL && !load) {
        models_drop(p, spec);
    }
    json_decref(args);
}

static void models_done(hth_request *r)
{
    models_call *m = r->ctx;
    if (r->err != HTH_OK) { // gone from the store, or not to be loaded
        hth_log(WARN, SERVER, "engine-model", "%s: not loaded again: %s", m->spec, r->detail);
        models_drop(m->p, m->spec);
    }
    hth_free(r->json);
    free(m->arguments);
    hth_free(m);
}

void proxy_models_again(hth_proxy *p)
{
    for (const proxy_model *m = p->models; m != NULL; m = m->hh.next) {
        models_call *call = hth_calloc(1, sizeof *call);
        json_t *args = json_pack("{s:s, s:b}", "model", m->spec, "wait", 0);
        if (m->pinned) {
            json_object_set_new(args, "pin", json_true());
        }
        if (call != NULL) {
            call->p = p;
            call->arguments = json_dumps(args, JSON_COMPACT);
            strcpy(call->spec, m->spec);
            call->r = (hth_request){
                .query = "load", .arguments = call->arguments, .done = models_done, .ctx = call};
            if (call->arguments == NULL || hth_proxy_submit(&p->engine, &call->r) != HTH_OK) {
                free(call->arguments);
                hth_free(call);
            }
        }
        json_decref(args);
    }
}

void proxy_models_close(hth_proxy *p)
{
    while (p->models != NULL) {
        proxy_model *m = p->models;
        HASH_DEL(p->models, m);
        hth_free(m);
    }
}
