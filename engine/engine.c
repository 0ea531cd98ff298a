// SPDX-License-Identifier: Apache-2.0
// Calls the implementation of an engine through its table (engine_ops.h). Which there are is known
// to engine_open.c alone.
#include "engine/engine.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine_ops.h"

#include <assert.h>
#include <jansson.h>

#include <string.h>

// engine_alias resolves an inference's alias once, at submission, so that moving the alias later
// changes nothing for it. Commands resolve aliases where they are answered.
static hth_err engine_alias(const hth_engine *engine, hth_request *request)
{
    hth_store_alias a;
    hth_err err = engine->store != NULL && request->command == HTH_COMMAND_NONE
                      ? hth_store_alias_get(engine->store, request->model, &a)
                      : HTH_ENOENT;
    if (err == HTH_OK) {
        hth_store_alias_target(&a, request->target);
        request->model = request->target;
        request->record = NULL; // it says the alias
    }
    return err == HTH_ENOENT ? HTH_OK : err;
}

// engine_named refuses what is to be done on a device (the argument "on") that is not there.
static hth_err engine_named(const hth_engine *engine, const hth_request *request)
{
    if (engine->name[0] == 0 || request->command == HTH_COMMAND_NONE ||
        request->arguments == NULL || strstr(request->arguments, "\"on\"") == NULL) {
        return HTH_OK;
    }
    json_t *args = json_loads(request->arguments, 0, NULL);
    const char *on = json_string_value(json_object_get(args, "on"));
    hth_err err =
        on == NULL || strcmp(on, engine->name) == 0 || strcmp(on, "all") == 0
            ? HTH_OK
            : hth_fail(HTH_EINVAL, "there is no device '%.60s' (there is: %s)", on, engine->name);
    json_decref(args);
    return err;
}

hth_err hth_engine_submit(hth_engine *engine, hth_request *request)
{
    assert(request->model != NULL || request->command != HTH_COMMAND_NONE);
    HTH_TRY(engine_named(engine, request));
    HTH_TRY(engine_alias(engine, request));
    return engine->ops->submit(engine, request);
}

hth_err hth_engine_here(hth_engine *engine, hth_request *request)
{
    assert(request->model != NULL && request->command == HTH_COMMAND_NONE);
    HTH_TRY(engine_alias(engine, request));
    bool here = engine->ops->here != NULL && engine->ops->here(engine, request);
    return here ? HTH_OK : engine->ops->submit(engine, request);
}

void hth_engine_set_poll_hook(hth_engine *engine, const hth_poll_hook *hook)
{
    engine->ops->set_poll_hook(engine, hook);
}

bool hth_engine_poll(hth_engine *engine, bool on)
{
    return engine->ops->poll(engine, on);
}

void hth_engine_drain(hth_engine *engine)
{
    engine->ops->drain(engine);
}

void hth_engine_stop(hth_engine *engine)
{
    engine->ops->stop(engine);
}

void hth_engine_close(hth_engine *engine)
{
    if (engine != NULL) {
        engine->ops->close(engine);
    }
}

bool hth_engine_ready(hth_engine *engine)
{
    return engine->ops->ready(engine);
}

uint64_t hth_engine_stalled_ns(hth_engine *engine)
{
    return engine->ops->stalled_ns(engine);
}

void hth_engine_share(hth_engine *engine, int fd, uint64_t offset, const void *base, size_t bytes)
{
    engine->ops->share(engine, fd, offset, base, bytes);
}

void hth_engine_unshare(hth_engine *engine, const void *base)
{
    engine->ops->unshare(engine, base);
}

void *hth_engine_alloc(hth_engine *engine, size_t bytes)
{
    void *p = engine->ops->alloc(engine, bytes);
    return p != NULL ? p : hth_alloc_aligned(bytes, 64);
}

void hth_engine_free(hth_engine *engine, void *memory)
{
    if (!engine->ops->free(engine, memory)) {
        hth_free(memory);
    }
}

void hth_engine_release(hth_retained *retained)
{
    if (retained != NULL) {
        retained->release(retained);
    }
}

uint64_t hth_poll_age_ns(const _Atomic uint64_t *polled_ns)
{
    uint64_t then = atomic_load_explicit(polled_ns, memory_order_relaxed), now = hth_real_ns();
    return then != 0 && now > then ? now - then : 0;
}
