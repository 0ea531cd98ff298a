// SPDX-License-Identifier: Apache-2.0
// Opens the implementation that a configuration asks for, and calls it through its table.
#include "engine/engine.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "device/device.h"
#include "engine/engine_ops.h"
#include "engine/local/local.h"
#include "engine/process/proxy.h"
#include "engine/router/router.h"

#include <jansson.h>

#include <string.h>

hth_err hth_engine_open(const hth_engine_config *config, hth_store *store, hth_engine **out)
{
    hth_engine *e = NULL;
    *out = NULL;
    if (hth_router_several(config->device)) {
        HTH_TRY(hth_router_open(config, store, &e));
    } else if (config->child_store != NULL) {
        HTH_TRY(hth_proxy_open(config, &e));
    } else {
        HTH_TRY(hth_local_open(config, store, &e));
    }
    const char *device = config->device != NULL ? config->device : "cpu";
    if (hth_router_several(config->device) || config->inner ||
        hth_device_name(device, e->name, sizeof e->name) != HTH_OK) {
        e->name[0] = 0;
    }
    *out = e;
    return HTH_OK;
}

// engine_named refuses what is to be done on a device (the argument "on") that is not there.
static hth_err engine_named(const hth_engine *e, const hth_request *r)
{
    if (e->name[0] == 0 || r->query == NULL || r->arguments == NULL ||
        strstr(r->arguments, "\"on\"") == NULL) {
        return HTH_OK;
    }
    json_t *args = json_loads(r->arguments, 0, NULL);
    const char *on = json_string_value(json_object_get(args, "on"));
    hth_err err =
        on == NULL || strcmp(on, e->name) == 0
            ? HTH_OK
            : hth_fail(HTH_EINVAL, "there is no device '%.60s' (there is: %s)", on, e->name);
    json_decref(args);
    return err;
}

hth_err hth_engine_submit(hth_engine *e, hth_request *r)
{
    HTH_TRY(engine_named(e, r));
    return e->ops->submit(e, r);
}

void hth_engine_watch(hth_engine *e, const hth_poll_hook *w)
{
    e->ops->watch(e, w);
}

bool hth_engine_look(hth_engine *e, bool on)
{
    return e->ops->look(e, on);
}

void hth_engine_drain(hth_engine *e)
{
    e->ops->drain(e);
}

void hth_engine_stop(hth_engine *e)
{
    e->ops->stop(e);
}

void hth_engine_close(hth_engine *e)
{
    if (e != NULL) {
        e->ops->close(e);
    }
}

bool hth_engine_ready(hth_engine *e)
{
    return e->ops->ready(e);
}

uint64_t hth_engine_stalled_ns(hth_engine *e)
{
    return e->ops->stalled_ns(e);
}

void hth_engine_share(hth_engine *e, int fd, uint64_t offset, const void *base, size_t bytes)
{
    e->ops->share(e, fd, offset, base, bytes);
}

void hth_engine_unshare(hth_engine *e, const void *base)
{
    e->ops->unshare(e, base);
}

void *hth_engine_alloc(hth_engine *e, size_t bytes)
{
    void *p = e->ops->alloc(e, bytes);
    return p != NULL ? p : hth_alloc_aligned(bytes, 64);
}

void hth_engine_free(hth_engine *e, void *p)
{
    if (!e->ops->free(e, p)) {
        hth_free(p);
    }
}

void hth_engine_release(hth_kept *kept)
{
    if (kept != NULL) {
        hth_proxy_release(kept); // only a child process keeps outputs
    }
}

uint64_t hth_turn_age_ns(const _Atomic uint64_t *turned_ns)
{
    uint64_t then = atomic_load_explicit(turned_ns, memory_order_relaxed), now = hth_real_ns();
    return then != 0 && now > then ? now - then : 0;
}
