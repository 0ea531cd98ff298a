// SPDX-License-Identifier: Apache-2.0
// An engine that is a child process: its table of calls, and its lifetime.
#include "engine/process/proxy_impl.h"

#include "base/ipc/memfd.h"
#include "base/settings.h"
#include "base/thread.h"

#include <stdio.h>
#include <unistd.h>

#define IN_BYTES ((uint64_t)64 << 30) // address space, as of the outputs
// Requests beyond those that wait: at work, or training jobs.
#define MORE_CALLS 1024

static hth_err proxy_init(hth_proxy *proxy, const hth_engine_config *config)
{
    proxy->device = hth_strdup(config->device != NULL ? config->device : "cpu");
    proxy->store = hth_strdup(config->child_store);
    proxy->queue = config->queue > 0 ? config->queue : (int)hth_setting_int(HTH_SET_QUEUE_LENGTH);
    proxy->n_calls = proxy->queue + MORE_CALLS;
    proxy->calls = hth_calloc((size_t)proxy->n_calls, sizeof *proxy->calls);
    proxy->first_free = -1;
    proxy->resume = config->resume;
    proxy->event = config->event;
    proxy->event_ctx = config->event_ctx;
    if (proxy->device == NULL || proxy->store == NULL || proxy->calls == NULL) {
        return hth_no_memory("an engine");
    }
    HTH_TRY(hth_slab_make("hearth-in", IN_BYTES, &proxy->in_fd, &proxy->in_bytes));
    HTH_TRY(hth_slab_open(proxy->in_fd, proxy->in_bytes, true, &proxy->in));
    HTH_TRY(hth_slab_reader(proxy->in_fd, &proxy->in_reader));
    HTH_TRY(hth_thread_start("hth-supervisor", proxy_supervise, proxy, &proxy->thread));
    proxy->running = true;
    return HTH_OK;
}

static void proxy_set_poll_hook(hth_engine *engine, const hth_poll_hook *hook)
{
    hth_proxy *p = hth_proxy_of(engine);
    p->hook = hook;
}

static bool proxy_ready(hth_engine *engine)
{
    hth_proxy *p = hth_proxy_of(engine);
    pthread_mutex_lock(&p->lock);
    bool ready = p->phase == PROXY_UP && !p->stopping;
    pthread_mutex_unlock(&p->lock);
    return ready;
}

static uint64_t proxy_stalled_ns(hth_engine *engine)
{
    hth_proxy *p = hth_proxy_of(engine);
    pthread_mutex_lock(&p->lock);
    uint64_t age = p->phase == PROXY_UP ? hth_poll_age_ns(&p->link.control->polled_ns) : 0;
    pthread_mutex_unlock(&p->lock);
    return age;
}

static void proxy_drain(hth_engine *engine)
{
    hth_proxy *p = hth_proxy_of(engine);
    pthread_mutex_lock(&p->lock);
    p->draining = true;
    proxy_tell_end(p);
    pthread_mutex_unlock(&p->lock);
}

static void proxy_stop(hth_engine *engine)
{
    hth_proxy *p = hth_proxy_of(engine);
    if (!p->running) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    proxy_tell_end(p);
    pthread_mutex_unlock(&p->lock);
    hth_thread_join(p->thread);
    p->running = false;
}

static void proxy_close(hth_engine *engine)
{
    hth_proxy *p = hth_proxy_of(engine);
    if (p == NULL) {
        return;
    }
    proxy_stop(&p->engine);
    proxy_region_close(p);
    proxy_models_close(p);
    hth_slab_close(p->in);
    if (p->in_fd >= 0) {
        close(p->in_fd);
    }
    if (p->in_reader >= 0) {
        close(p->in_reader);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->taking);
    hth_free(p->calls);
    hth_free(p->device);
    hth_free(p->store);
    hth_free(p);
}

static const hth_engine_ops proxy_ops = {
    .submit = hth_proxy_submit,
    .set_poll_hook = proxy_set_poll_hook,
    .poll = proxy_take_now,
    .drain = proxy_drain,
    .stop = proxy_stop,
    .close = proxy_close,
    .ready = proxy_ready,
    .stalled_ns = proxy_stalled_ns,
    .share = hth_proxy_share,
    .unshare = hth_proxy_unshare,
    .alloc = hth_proxy_alloc,
    .free = hth_proxy_free,
};

hth_err hth_proxy_open(const hth_engine_config *config, hth_engine **out)
{
    *out = NULL;
    hth_proxy *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_no_memory("an engine");
    }
    p->engine.ops = &proxy_ops;
    p->in_fd = p->in_reader = p->link.socket = p->link.control_fd = p->files = -1;
    pthread_mutex_init(&p->taking, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    hth_err err = proxy_init(p, config);
    if (err == HTH_OK) {
        pthread_mutex_lock(&p->lock);
        while (!p->opened) {
            pthread_cond_wait(&p->changed, &p->lock);
        }
        pthread_mutex_unlock(&p->lock);
        err = hth_err_restore(p->open_err, p->open_detail);
    }
    if (err != HTH_OK) {
        char detail[1024];
        snprintf(detail, sizeof detail, "%s", hth_err_detail());
        proxy_close(&p->engine);
        return hth_fail(err, "%s", detail);
    }
    *out = &p->engine;
    return HTH_OK;
}
