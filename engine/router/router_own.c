// SPDX-License-Identifier: Apache-2.0
// Requests that the router makes itself: a device's ledger, models that are loaded in the
// background, jobs that go on. They go straight to a device.
#include "engine/router/router_impl.h"

#include <stdio.h>
#include <stdlib.h>

void router_own_free(router_own *own)
{
    hth_free(own->r.json);
    free(own->arguments);
    hth_free(own);
}

static void own_done(hth_request *request)
{
    router_own *o = request->ctx;
    o->then(o);
    router_own_free(o);
}

hth_err router_own_make(hth_router *router, int device, const char *tenant, hth_command_id command,
                        json_t *args, const char *name, void (*then)(router_own *own),
                        router_own **out)
{
    router_own *o = hth_calloc(1, sizeof *o);
    char *text = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    if (o == NULL || text == NULL) {
        hth_free(o);
        free(text);
        return hth_no_memory("a question to a device");
    }
    *o = (router_own){.router = router, .device = device, .then = then, .arguments = text};
    o->r = (hth_request){.command = command,
                         .arguments = text,
                         .tenant = o->tenant,
                         .own = true,
                         .admin = true,
                         .done = own_done,
                         .ctx = o};
    snprintf(o->name, sizeof o->name, "%s", name);
    snprintf(o->tenant, sizeof o->tenant, "%s", tenant[0] != 0 ? tenant : HTH_TENANT_OWN);
    *out = o;
    return HTH_OK;
}

hth_err router_own_submit(router_own *own)
{
    return hth_engine_submit(own->router->device[own->device].engine, &own->r);
}

hth_err router_own_ask(hth_router *router, int device, const char *tenant, hth_command_id command,
                       json_t *args, const char *name, void (*then)(router_own *own))
{
    router_own *o;
    HTH_TRY(router_own_make(router, device, tenant, command, args, name, then, &o));
    hth_err err = router_own_submit(o);
    if (err != HTH_OK) {
        router_own_free(o);
    }
    return err;
}

static void refresh_done(router_own *own)
{
    hth_router *n = own->router;
    router_device *d = &n->device[own->device];
    json_t *doc = own->r.err == HTH_OK ? json_loads(own->r.json, 0, NULL) : NULL;
    const json_t *ledger = json_object_get(doc, "ledger");
    pthread_mutex_lock(&n->lock);
    if (ledger != NULL) {
        d->budget_bytes = (uint64_t)json_integer_value(json_object_get(ledger, "budget_bytes"));
        d->free_bytes = (uint64_t)json_integer_value(json_object_get(ledger, "free_bytes"));
    }
    d->asking = false;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    json_decref(doc);
}

void router_refresh(hth_router *router, int device)
{
    router_device *d = &router->device[device];
    pthread_mutex_lock(&router->lock);
    bool ask = !d->asking && !router->stopping && router_up(router, device);
    d->asking = d->asking || ask;
    d->queried_bytes = ask ? d->placed_bytes : d->queried_bytes;
    pthread_mutex_unlock(&router->lock);
    if (ask && router_own_ask(router, device, "", HTH_COMMAND_STATS, json_object(), "",
                              refresh_done) != HTH_OK) {
        pthread_mutex_lock(&router->lock);
        d->asking = false;
        pthread_cond_broadcast(&router->changed);
        pthread_mutex_unlock(&router->lock);
    }
}
