// SPDX-License-Identifier: Apache-2.0
// Lists of devices, lifetime, and what concerns all devices alike.
#include "engine/router/router_impl.h"

#include "device/device.h"

#include <stdio.h>
#include <string.h>

// ---- lists of devices

static const char *item_next(const char **at, char item[256])
{
    const char *from = *at + strspn(*at, " ");
    size_t len = strcspn(from, " ");
    *at = from + len;
    snprintf(item, 256, "%.*s", len < 256 ? (int)len : 255, from);
    return len > 0 ? item : NULL;
}

bool hth_router_several(const char *devices)
{
    char item[256];
    return devices != NULL && item_next(&devices, item) != NULL &&
           item_next(&devices, item) != NULL;
}

// router_names reads the names of a list's devices; returns how many there are by *n.
static hth_err router_names(const char *devices, char name[HTH_PLACE_DEVICES][64], int *n)
{
    char item[256];
    for (*n = 0; item_next(&devices, item) != NULL; (*n)++) {
        if (*n == HTH_PLACE_DEVICES) {
            return hth_fail(HTH_EINVAL, "more than %d devices", HTH_PLACE_DEVICES);
        }
        HTH_TRY(hth_device_name(item, name[*n], sizeof name[*n]));
        for (int i = 0; i < *n; i++) {
            if (strcmp(name[i], name[*n]) == 0) {
                return hth_fail(HTH_EINVAL,
                                "device %s is named twice: each has a number of its own, such as "
                                "cpu:0 and cpu:1",
                                name[*n]);
            }
        }
    }
    return HTH_OK;
}

hth_err hth_router_check(const char *devices)
{
    char name[HTH_PLACE_DEVICES][64];
    int n;
    HTH_TRY(router_names(devices, name, &n));
    return n > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "no device is named");
}

// ---- lifetime

static hth_err router_start(hth_router *router, const hth_engine_config *config)
{
    char name[HTH_PLACE_DEVICES][64], item[256];
    const char *at = config->device;
    int n_names;
    HTH_TRY(router_names(config->device, name, &n_names));
    while (router->n < n_names && item_next(&at, item) != NULL) {
        router_device *d = &router->device[router->n];
        hth_engine_config one = *config;
        one.device = item;
        one.resume = false; // jobs are gone on with by the router
        one.inner = true;
        memcpy(d->name, name[router->n], sizeof d->name);
        d->host = strncmp(d->name, "cpu:", 4) == 0;
        HTH_TRY(hth_engine_open(&one, router->store, &d->engine));
        router->n++;
    }
    for (int i = 0; i < router->n; i++) {
        router_refresh(router, i);
    }
    pthread_mutex_lock(&router->lock);
    for (int i = 0; i < router->n; i++) {
        while (router->device[i].asking) {
            pthread_cond_wait(&router->changed, &router->lock);
        }
    }
    pthread_mutex_unlock(&router->lock);
    if (router->resume) {
        router_jobs_resume(router);
    }
    return HTH_OK;
}

// router_set_poll_hook: a supervisor waits for its child and can look elsewhere at any time. An
// engine's thread is away for as long as it computes, while others could serve: then nobody looks,
// and rings are left to their own threads.
static void router_set_poll_hook(hth_engine *engine, const hth_poll_hook *hook)
{
    hth_router *n = hth_router_of(engine);
    if (n->child) {
        hth_engine_set_poll_hook(n->device[0].engine, hook);
    }
}

static void router_drain(hth_engine *engine)
{
    hth_router *n = hth_router_of(engine);
    pthread_mutex_lock(&n->lock);
    n->draining = true;
    pthread_mutex_unlock(&n->lock);
    for (int i = 0; i < n->n; i++) {
        hth_engine_drain(n->device[i].engine);
    }
}

static void router_stop(hth_engine *engine)
{
    hth_router *n = hth_router_of(engine);
    pthread_mutex_lock(&n->lock);
    n->stopping = true;
    pthread_mutex_unlock(&n->lock);
    for (int i = 0; i < n->n; i++) {
        hth_engine_stop(n->device[i].engine);
    }
}

static void router_close(hth_engine *engine)
{
    hth_router *n = hth_router_of(engine);
    if (n == NULL) {
        return;
    }
    router_stop(&n->engine);
    for (int i = 0; i < n->n; i++) {
        hth_engine_close(n->device[i].engine);
    }
    router_models_close(n);
    router_jobs_close(n);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    hth_free(n);
}

static bool router_ready(hth_engine *engine)
{
    hth_router *n = hth_router_of(engine);
    bool ready = false;
    pthread_mutex_lock(&n->lock);
    for (int i = 0; i < n->n && !ready && !n->stopping; i++) {
        ready = router_up(n, i);
    }
    pthread_mutex_unlock(&n->lock);
    return ready;
}

static uint64_t router_stalled_ns(hth_engine *engine)
{
    hth_router *n = hth_router_of(engine);
    uint64_t least = UINT64_MAX;
    pthread_mutex_lock(&n->lock);
    for (int i = 0; i < n->n; i++) {
        uint64_t age = router_up(n, i) ? hth_engine_stalled_ns(n->device[i].engine) : UINT64_MAX;
        least = age < least ? age : least;
    }
    pthread_mutex_unlock(&n->lock);
    return least < UINT64_MAX ? least : 0;
}

static hth_err router_submit(hth_engine *engine, hth_request *request)
{
    hth_router *n = hth_router_of(engine);
    request->route = (hth_route){.router = n, .done = request->done};
    if (n->stopping) {
        return hth_fail(HTH_ECANCELED, "Server exiting");
    }
    hth_err err;
    if (request->command != HTH_COMMAND_NONE) {
        err = router_query(n, request);
    } else {
        err = router_infer(n, request);
    }
    if (err != HTH_OK) {
        request->done = request->route.done;
    }
    return err;
}

// ---- memory: every process sees what clients share; what is asked for here, the first device's

static bool router_poll(hth_engine *engine, bool on)
{
    return false; // the engines' own threads take answers
}

static void router_share(hth_engine *engine, int fd, uint64_t offset, const void *base,
                         size_t bytes)
{
    hth_router *n = hth_router_of(engine);
    for (int i = 0; i < n->n; i++) {
        hth_engine_share(n->device[i].engine, fd, offset, base, bytes);
    }
}

static void router_unshare(hth_engine *engine, const void *base)
{
    hth_router *n = hth_router_of(engine);
    for (int i = 0; i < n->n; i++) {
        hth_engine_unshare(n->device[i].engine, base);
    }
}

static void *router_alloc(hth_engine *engine, size_t bytes)
{
    hth_router *n = hth_router_of(engine);
    return hth_engine_alloc(n->device[0].engine, bytes);
}

static bool router_free(hth_engine *engine, void *p)
{
    hth_router *n = hth_router_of(engine);
    hth_engine_free(n->device[0].engine, p);
    return true;
}

static const hth_engine_ops router_ops = {
    .submit = router_submit,
    .set_poll_hook = router_set_poll_hook,
    .poll = router_poll,
    .drain = router_drain,
    .stop = router_stop,
    .close = router_close,
    .ready = router_ready,
    .stalled_ns = router_stalled_ns,
    .share = router_share,
    .unshare = router_unshare,
    .alloc = router_alloc,
    .free = router_free,
};

hth_err hth_router_open(const hth_engine_config *config, hth_store *store, hth_engine **out)
{
    *out = NULL;
    hth_router *n = hth_calloc(1, sizeof *n);
    if (n == NULL) {
        return hth_no_memory("a machine's engines");
    }
    n->engine.ops = &router_ops;
    n->store = store;
    n->child = config->child_store != NULL;
    n->resume = config->resume;
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    hth_err err = router_start(n, config);
    if (err != HTH_OK) {
        char detail[1024];
        snprintf(detail, sizeof detail, "%s", hth_err_detail());
        router_close(&n->engine);
        return hth_fail(err, "%s", detail);
    }
    *out = &n->engine;
    return HTH_OK;
}
