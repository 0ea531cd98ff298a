// SPDX-License-Identifier: Apache-2.0
// The way of an inference:
//
//     submitted --(pick)--> with a device --(answered)--> given back
//                  ^              |
//                  +--------------+ the device cannot have the model, or is lost and had not begun
//
// Each device is tried once for a request, and told not to have it wait for memory as long as
// another one is left that could take it. Where it waits is the last of them; or, when that one can
// never have it, a device that could not have it now.
#include "engine/router/router_impl.h"

#include "base/clock.h"
#include "base/settings.h"

#include <assert.h>

#define SMOOTH 0.2 // of the newest request's time in the mean

// ---- what is known

bool router_up(hth_router *router, int device)
{
    router_device *d = &router->device[device];
    if (d->dead) {
        return false;
    }
    if (hth_engine_ready(d->engine)) {
        d->away_ns = 0;
        return true;
    }
    d->away_ns = d->away_ns != 0 ? d->away_ns : hth_now_ns();
    return false;
}

void router_places(hth_router *router, const router_model *model, uint32_t tried, hth_place *out)
{
    for (int i = 0; i < router->n; i++) {
        const router_device *d = &router->device[i];
        uint64_t since = d->placed_bytes - d->queried_bytes;
        out[i] = (hth_place){
            .up = (tried >> i & 1) == 0 && router_up(router, i),
            .host = d->host,
            .budget_bytes = d->budget_bytes,
            .room_bytes = d->free_bytes > since ? d->free_bytes - since : 0,
            .requests = d->requests,
            .jobs = d->jobs,
        };
        if (model != NULL) {
            const router_there *t = &model->on[i];
            out[i].refused = t->refused;
            out[i].has = t->has;
            out[i].coming = t->coming;
            out[i].mine = t->requests;
            out[i].service_ns = t->service_ns;
        }
    }
}

// more_left tells whether another device than `to` could be asked. Lock held.
static bool more_left(hth_router *router, const router_model *model, uint32_t tried, int to)
{
    bool left = false;
    for (int i = 0; model != NULL && i < router->n && !left; i++) {
        left = i != to && (tried >> i & 1) == 0 && !model->on[i].refused && router_up(router, i) &&
               (model->on[i].has || model->bytes <= router->device[i].budget_bytes ||
                router_model_lacks(model, i) <= router->device[i].budget_bytes);
    }
    return left;
}

// is_known tells whether a model is known to work on a device, and thus whose it is: only then it
// may be brought to others.
static bool is_known(const router_model *model, int device)
{
    return model->on[device].good || model->on[device].loaded;
}

static void places_lacks(const hth_router *router, const router_model *model, hth_place *place)
{
    for (int i = 0; model != NULL && i < router->n; i++) {
        place[i].lacks_bytes = router_model_lacks(model, i);
    }
}

// pick_waiting is a device that has the model and is about to be there again; -1: none.
static int pick_waiting(const hth_router *router, const hth_place *place, uint32_t tried)
{
    uint64_t now = hth_now_ns();
    for (int i = 0; i < router->n; i++) {
        const router_device *x = &router->device[i];
        if (place[i].has && !x->dead && (tried >> i & 1) == 0 &&
            now - x->away_ns < ROUTER_AWAY_NS) {
            return i;
        }
    }
    return -1;
}

int router_pick(hth_router *router, router_model *model, uint32_t tried, bool place, int *another)
{
    hth_place d[HTH_PLACE_DEVICES];
    int queue = (int)hth_setting_int(HTH_SET_DEVICES_REPLICA_QUEUE);
    router_places(router, model, tried, d);
    *another = -1;
    int to = model != NULL ? hth_place_request(d, router->n) : -1;
    if (to >= 0) {
        if (place && queue > 0 && model->on[to].requests >= queue && is_known(model, to)) {
            places_lacks(router, model, d);
            for (int i = 0; i < router->n; i++) {
                d[i].refused = d[i].refused || router_model_small(model, i);
            }
            *another = hth_place_another(d, router->n, queue);
        }
        return to;
    }
    to = model != NULL ? pick_waiting(router, d, tried) : -1;
    if (to >= 0) {
        return to;
    }
    places_lacks(router, model, d);
    to = hth_place_model(d, router->n);
    for (int i = 0; i < router->n && to < 0 && tried == 0; i++) { // somebody has to say why not
        to = d[i].up ? i : -1;
    }
    to = to < 0 && tried == 0 ? 0 : to;
    if (to >= 0 && model != NULL && place) {
        router_model_place(router, model, to);
    }
    return to;
}

// ---- a request's way

void router_finish(hth_request *request)
{
    request->done = request->route.done;
    request->done(request);
}

hth_err router_send(hth_router *router, hth_request *request, int device)
{
    router_model *m = request->route.model;
    pthread_mutex_lock(&router->lock);
    request->route.device = device;
    request->route.tried |= 1u << device;
    router->device[device].requests++;
    if (m != NULL) {
        m->on[device].requests++;
    }
    pthread_mutex_unlock(&router->lock);
    request->started_ns = 0;
    request->outputs = NULL;
    request->n_outputs = 0;
    hth_err err = hth_engine_submit(router->device[device].engine, request);
    if (err != HTH_OK) {
        router_sent(router, request);
    }
    return err;
}

void router_sent(hth_router *router, hth_request *request)
{
    router_model *m = request->route.model;
    pthread_mutex_lock(&router->lock);
    assert(router->device[request->route.device].requests > 0);
    router->device[request->route.device].requests--;
    if (m != NULL) {
        assert(m->on[request->route.device].requests > 0);
        m->on[request->route.device].requests--;
    }
    pthread_mutex_unlock(&router->lock);
}

bool router_is_lost(hth_router *router, const hth_request *request, hth_err err)
{
    const router_device *d = &router->device[request->route.device];
    return err == HTH_EDEVLOST &&
           (!router->child || (request->started_ns == 0 && !hth_engine_ready(d->engine)));
}

// lost_from takes a model from a device; true: it worked there and is nowhere now. Lock held.
static bool lost_from(const hth_router *router, router_model *model, int device)
{
    bool had = model->on[device].has && is_known(model, device), elsewhere = false;
    router_model_leave(model, device);
    for (int i = 0; i < router->n; i++) {
        elsewhere = elsewhere || model->on[i].has || model->on[i].coming;
    }
    return had && !elsewhere;
}

void router_lost(hth_router *router, int device)
{
    router_device *d = &router->device[device];
    router_model **moved = NULL;
    int *to = NULL;
    int n_moved = 0;
    pthread_mutex_lock(&router->lock);
    bool newly_dead = !router->child && !d->dead;
    d->dead = !router->child;
    moved = hth_calloc(HASH_COUNT(router->models) + 1u, sizeof *moved);
    to = hth_calloc(HASH_COUNT(router->models) + 1u, sizeof *to);
    for (router_model *m = router->models; m != NULL && !router->stopping; m = m->hh.next) {
        if (lost_from(router, m, device) && moved != NULL && to != NULL) {
            int ignored, next = router_pick(router, m, 1u << device, false, &ignored);
            if (next >= 0) {
                m->on[next].coming = true;
                moved[n_moved] = m;
                to[n_moved++] = next;
            }
        }
    }
    pthread_mutex_unlock(&router->lock);
    if (n_moved > 0 || newly_dead) {
        hth_log(ERROR, SERVER, "device-lost", "device=%s models_moved=%d", d->name, n_moved);
    }
    for (int i = 0; i < n_moved; i++) {
        router_model_fetch(router, moved[i], to[i]);
    }
    hth_free(moved);
    hth_free(to);
}

// infer_learn takes what an answer says about its device. Lock held.
static void infer_learn(hth_router *router, const hth_request *request)
{
    router_model *m = request->route.model;
    router_there *t = &m->on[request->route.device];
    if (request->err == HTH_OK && request->finished_ns > request->started_ns) {
        double ns = (double)(request->finished_ns - request->started_ns);
        t->service_ns += t->service_ns > 0 ? SMOOTH * (ns - t->service_ns) : ns;
        t->good = true;
        router_model_for(m, request->tenant, false); // who is refused it does not own it
    } else if (request->err == HTH_ENOTSUP && !t->good) {
        t->refused = true;
        router_model_leave(m, request->route.device);
    } else if (request->err == HTH_ETOOBIG && !t->good && !t->loaded) {
        router_model_leave(m, request->route.device); // for this tenant or batch, not for the next
    }
}

// infer_again tells whether another device may be asked: nothing was computed here.
static bool infer_again(const hth_request *request, bool lost)
{
    return request->n_outputs == 0 && !request->canceled &&
           (request->err == HTH_ENOTSUP || request->err == HTH_ETOOBIG ||
            request->err == HTH_ENODEVMEM || (lost && request->started_ns == 0));
}

static hth_err infer_send(hth_router *router, hth_request *request);

static void infer_done(hth_request *request)
{
    hth_router *n = request->route.router;
    int device = request->route.device;
    bool lost = router_is_lost(n, request, request->err), first = false;
    router_sent(n, request);
    if (request->route.model != NULL) {
        router_model *m = request->route.model;
        pthread_mutex_lock(&n->lock);
        first = !m->on[device].good;
        infer_learn(n, request);
        first = first && m->on[device].good;
        pthread_mutex_unlock(&n->lock);
    }
    if (lost) {
        router_lost(n, device);
    }
    bool again = infer_again(request, lost);
    if (request->err == HTH_ENODEVMEM) { // .. now, or for as long as it may wait
        request->route.later = request->at_once ? request->route.later | 1u << device : 0;
    }
    request->waited_ns = again ? hth_now_ns() - request->submitted_ns : request->waited_ns;
    if (!again || infer_send(n, request) != HTH_OK) {
        router_finish(request);
    }
    if (first) { // its bytes are there now
        router_refresh(n, device);
    }
}

// infer_pick chooses where a request goes, -1: nowhere. Lock held.
static int infer_pick(hth_router *router, hth_request *request, int *another)
{
    hth_route *route = &request->route;
    int to = router_pick(router, route->model, route->tried, true, another);
    request->at_once = to >= 0 && more_left(router, route->model, route->tried, to);
    for (int i = 0; i < router->n && to < 0; i++) {
        to = (route->later >> i & 1) != 0 && router_up(router, i) ? i : -1;
    }
    route->later &= to >= 0 ? ~(1u << to) : 0;
    return to;
}

// infer_send finds a device that takes the request.
static hth_err infer_send(hth_router *router, hth_request *request)
{
    router_model *m = request->route.model;
    int to = 0, another;
    hth_err err = HTH_EDEVLOST;
    while (err == HTH_EDEVLOST) {
        pthread_mutex_lock(&router->lock);
        another = -1;
        to = router->stopping ? -1 : infer_pick(router, request, &another);
        if (to >= 0 && another >= 0) {
            m->on[another].coming = true;
        }
        pthread_mutex_unlock(&router->lock);
        if (to < 0) {
            return router->stopping ? hth_fail(HTH_ECANCELED, "Server exiting")
                                    : hth_fail(HTH_EDEVLOST, "no device is left for it");
        }
        err = router_send(router, request, to); // r may be gone now, if it was taken
        if (err == HTH_EDEVLOST && router_is_lost(router, request, err)) {
            router_lost(router, to);
        }
        if (another >= 0) {
            router_model_fetch(router, m, another);
        }
    }
    return err;
}

hth_err router_infer(hth_router *router, hth_request *request)
{
    request->route.model = router_model_find(router, request->model);
    request->done = infer_done;
    return infer_send(router, request);
}
