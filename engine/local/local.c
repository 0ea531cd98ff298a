// SPDX-License-Identifier: Apache-2.0
// The engine's thread: opens the device, takes what arrives, and has served, measured and trained
// what the device's run queue says (serve_loop.c).
#include "engine/local/local.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread_cache.h"
#include "base/log.h"
#include "base/mailbox.h"
#include "base/settings.h"
#include "base/stats.h"
#include "convsel/link.h"
#include "engine/serve/load.h"
#include "engine/serve/version_swap.h"
#include "engine/engine_ops.h"
#include "engine/query/query.h"
#include "engine/serve/serve.h"
#include "runtime/tenants/tenant.h"
#include "engine/train/queue/train_queue.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// How long the thread sleeps at most: then it looks what has changed in the store.
#define ENGINE_IDLE_NS 200000000u
// How long a caller looks whether another one, whose request is small, has ended.
#define ENGINE_TURN_NS 50000u
// Kernels are made and models are planned on the engine's thread, whatever a program gives others.
#define ENGINE_STACK ((size_t)2 << 20)

typedef struct local_engine {
    hth_engine engine;
    hth_mailbox *mailbox;
    int queue; // requests that may wait
    hth_serve serve;
    // Who has the turn moves the engine: its thread, but for the time in which it waits for
    // requests; then a caller may, for one request (local_here). Both see all of the engine but
    // the mailbox, which is the thread's alone.
    pthread_mutex_t turn;
    atomic_bool wanted; // by the engine's thread: no caller takes it then
    atomic_bool here;   // a caller has it
    atomic_int callers; // have it, or are about to have given it
    pthread_t thread;
    bool running;
    bool ended;                          // under the turn: what a caller would need is gone
    _Atomic uint64_t polled, *polled_ns; // the last turn; where it is noted
    char device[256];
    hth_store *store;
    hth_site site;
    hth_models models;
    hth_timing_cache timings;
    hth_device_kept kept;
    hth_train_queue training;
    hth_loads loads;
    hth_tenants tenants;
    bool resume;
    hth_request drain; // hth_engine_drain's message
    // start-up: the thread opens the device, because the thread team belongs to the thread that
    // first computes
    pthread_mutex_t lock;
    pthread_cond_t started;
    bool ready;
    hth_err open_err;
    char open_detail[512];
} local_engine;

static hth_err timing_get(void *ctx, const char *key, char *value, size_t cap)
{
    return hth_store_text_get(ctx, key, value, cap);
}

static hth_err timing_put(void *ctx, const char *key, const char *value)
{
    return hth_store_text_put(ctx, key, value);
}

// What is measured for somebody is measured to its end.
static bool timing_between(void *owner)
{
    const local_engine *e =
        (const local_engine *)((const char *)owner - offsetof(local_engine, site));
    (void)hth_device_pause(e->site.device); // more, if owed, before the next run
    return hth_serve_tuning(&e->serve) && hth_work_point(e->site.queue);
}

static hth_err site_open(local_engine *engine)
{
    hth_site *s = &engine->site;
    HTH_TRY(hth_device_open(engine->device, &s->device));
    if (hth_kernel_oracle(s->device) == NULL) {
        return hth_fail(HTH_ENOTSUP, "device %s (%s): this version has no operators for it",
                        s->device->props.name, s->device->props.description);
    }
    char word[HTH_SETTING_TEXT];
    hth_precision precision;
    HTH_TRY(hth_precision_find(hth_setting_text(HTH_SET_PRECISION, word), &precision));
    HTH_TRY(hth_kernel_computes(s->device, precision));
    engine->timings = (hth_timing_cache){
        timing_get, timing_put,    engine->store, hth_site_workspace_take, hth_site_workspace_give,
        s,          timing_between};
    s->timings = &engine->timings;
    engine->kept = (hth_device_kept){timing_get, timing_put, engine->store};
    s->device->kept = &engine->kept;
    hth_link link;
    HTH_TRY(hth_link_measure(s->device, s->timings, &link));
    s->link_bytes_per_s = link.h2d_bytes_per_s;
    s->link_back_bytes_per_s = link.d2h_bytes_per_s;
    s->link_latency_us = link.latency_us;
    s->copy_interference = link.interference;
    s->copy_us = link.copy_us;
    s->traffic_bytes_per_s = link.memory_bytes_per_s;
    HTH_TRY(hth_pool_open(s->device, s->device->props.budget_bytes, &s->pool));
    HTH_TRY(hth_residency_open(s->pool, &s->residency));
    s->tolerance = hth_setting_real(HTH_SET_CONVSEL_TOLERANCE);
    s->arena_cleared = strcmp(hth_setting_text(HTH_SET_CLEAR_ARENA, word), "true") == 0;
    engine->models =
        (hth_models){.store = engine->store, .site = s, .changed = hth_version_swap_check};
    s->tenants = &engine->tenants;
    HTH_TRY(hth_tenants_read(&engine->tenants));
    hth_serve_init(&engine->serve);
    return HTH_OK;
}

static void site_close(local_engine *engine)
{
    hth_serve_fini(&engine->serve);
    hth_models_fini(&engine->models);
    if (engine->site.pool != NULL) {
        hth_pool_free(engine->site.pool, engine->site.arena);
    }
    if (engine->site.residency != NULL) {
        hth_residency_close(engine->site.residency);
    }
    hth_pool_close(engine->site.pool);
    hth_device_close(engine->site.device);
    hth_tenants_fini(&engine->tenants);
}

static void engine_done(hth_request *request)
{
    hth_request_tensor *outputs = request->outputs;
    request->done(request); // r may be gone now
    hth_free(outputs);
}

static void engine_answer(hth_request *request, hth_err err)
{
    request->err = err;
    if (err != HTH_OK) {
        snprintf(request->detail, sizeof request->detail, "%s", hth_err_detail());
    }
    request->finished_ns = hth_now_ns();
    if (request->later != NULL) { // this is its caller's thread
        request->later->answered = true;
        return;
    }
    engine_done(request);
}

// ---- what the serving asks for

// engine_polled notes that the thread looks for requests. The clock has the kernel's ticks, and is
// read in a few nanoseconds.
static void engine_polled(local_engine *engine)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    atomic_store_explicit(engine->polled_ns, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec,
                          memory_order_relaxed);
}

static hth_request *engine_mail(void *ctx)
{
    local_engine *e = ctx;
    void *message = NULL;
    if (atomic_load_explicit(&e->here, memory_order_relaxed)) { // this is a caller's thread
        return NULL;
    }
    engine_polled(e);
    if (hth_mailbox_count(e->mailbox) > 0) {
        (void)hth_mailbox_receive(e->mailbox, 0, &message);
    }
    return message;
}

static void take_drain(local_engine *engine, hth_request *request)
{
    assert(request == &engine->drain); // it has no answer
    hth_train_queue_drain(&engine->training);
}

static void take_train(local_engine *engine, hth_request *request)
{
    hth_train_queue_add(&engine->training, request);
}

static void local_store(local_engine *engine, hth_request *request)
{
    engine_answer(request,
                  hth_fail(HTH_ENOTSUP, "'%s' is answered from the store, and not by an engine",
                           hth_command_name(request->command)));
}

static void local_query(local_engine *engine, hth_request *request)
{
    engine_answer(request, hth_query_answer(&engine->models, request));
}

static void local_load(local_engine *engine, hth_request *request)
{
    hth_loads_take(&engine->loads, request);
}

static void local_jobs(local_engine *engine, hth_request *request)
{
    engine_answer(request, hth_train_queue_query(&engine->training, request));
}

// Who answers each command: the row's section says it.
static void (*const local_commands[HTH_COMMANDS])(local_engine *e, hth_request *r) = {
#define LOCAL_STORE(ID, ...)        [HTH_COMMAND_##ID] = local_store,
#define LOCAL_QUERY(ID, ...)        [HTH_COMMAND_##ID] = local_query,
#define LOCAL_LOAD(ID, ...)         [HTH_COMMAND_##ID] = local_load,
#define LOCAL_JOBS(ID, ...)         [HTH_COMMAND_##ID] = local_jobs,
#define LOCAL_ENGINE(ID, name, ...) [HTH_COMMAND_##ID] = take_##name,
    HTH_COMMANDS_STORE(LOCAL_STORE) HTH_COMMANDS_QUERY(LOCAL_QUERY) HTH_COMMANDS_LOAD(LOCAL_LOAD)
        HTH_COMMANDS_JOBS(LOCAL_JOBS) HTH_COMMANDS_ENGINE(LOCAL_ENGINE)};

static void engine_query(void *ctx, hth_request *request)
{
    local_engine *e = ctx;
    request->started_ns = hth_now_ns();
    if (*hth_request_canceled(request)) {
        engine_answer(request, hth_fail(HTH_ECANCELED, "canceled while it was queued"));
    } else {
        local_commands[request->command](e, request);
    }
}

static bool engine_at_once(void *ctx, hth_request *request)
{
    local_engine *e = ctx;
    if (*hth_request_canceled(request) || !hth_query_at_once(&e->models, request)) {
        return false;
    }
    request->started_ns = hth_now_ns();
    local_commands[request->command](e, request);
    return true;
}

static bool engine_await(void *ctx, uint64_t ns)
{
    local_engine *e = ctx;
    void *message;
    engine_polled(e);
    hth_err got = hth_mailbox_receive(e->mailbox, ns, &message);
    if (message != NULL) {
        hth_serve_take(&e->serve, message);
    }
    return got != HTH_ECANCELED;
}

static void engine_wake(void *ctx)
{
    hth_mailbox_wake(((local_engine *)ctx)->mailbox);
}

// engine_wait is how long the thread may sleep before something that waits is due.
static uint64_t engine_wait(uint64_t wake_ns)
{
    uint64_t now_ns = wake_ns < UINT64_MAX ? hth_now_ns() : 0;
    if (wake_ns <= now_ns) {
        return 0;
    }
    return wake_ns - now_ns < ENGINE_IDLE_NS ? wake_ns - now_ns : ENGINE_IDLE_NS;
}

static bool engine_due(void *ctx)
{
    local_engine *e = ctx;
    return hth_loads_due(&e->loads) || e->training.first != NULL;
}

static bool engine_job(void *ctx)
{
    local_engine *e = ctx;
    bool loads = hth_loads_slice(&e->loads);
    return hth_train_queue_slice(&e->training) || loads;
}

static void turn_take(local_engine *engine)
{
    if (pthread_mutex_trylock(&engine->turn) != 0) {
        atomic_store(&engine->wanted, true);
        pthread_mutex_lock(&engine->turn);
        atomic_store(&engine->wanted, false);
    }
}

static void turn_give(local_engine *engine)
{
    pthread_mutex_unlock(&engine->turn);
}

static hth_err engine_receive(local_engine *engine, uint64_t wait_ns, void **message)
{
    if (wait_ns == 0) {
        return hth_mailbox_receive(engine->mailbox, 0, message);
    }
    turn_give(engine);
    hth_err got = hth_mailbox_receive(engine->mailbox, wait_ns, message);
    turn_take(engine);
    return got;
}

// engine_loop goes on until the mailbox is stopped and everything is answered.
static void engine_loop(local_engine *engine)
{
    bool more = true;
    uint64_t wake_ns = 0;
    hth_err got = HTH_OK;
    while (got != HTH_ECANCELED || !hth_serve_over(&engine->serve)) {
        void *message;
        engine_polled(engine);
        got = engine_receive(engine, more ? 0 : engine_wait(wake_ns), &message);
        for (hth_request *r = message; r != NULL; r = engine_mail(engine)) {
            hth_serve_take(&engine->serve, r);
        }
        more = hth_serve_iterate(&engine->serve, got == HTH_ECANCELED, &wake_ns);
    }
}

static void *engine_main(void *arg)
{
    local_engine *e = arg;
    hth_thread_cache_begin();
    turn_take(e);
    hth_err err = site_open(e);
    pthread_mutex_lock(&e->lock);
    e->ready = true;
    e->open_err = err;
    snprintf(e->open_detail, sizeof e->open_detail, "%s", hth_err_detail());
    pthread_cond_signal(&e->started);
    pthread_mutex_unlock(&e->lock);
    if (err == HTH_OK && e->resume) {
        hth_train_queue_resume(&e->training);
    }
    if (err == HTH_OK) {
        engine_loop(e);
    }
    hth_serve_stop(&e->serve);
    hth_loads_stop(&e->loads);
    hth_train_queue_stop(&e->training);
    site_close(e);
    e->ended = true;
    turn_give(e);
    hth_thread_cache_end();
    return NULL;
}

static local_engine *local_of(hth_engine *engine)
{
    return (local_engine *)engine;
}

static hth_err local_submit(hth_engine *engine, hth_request *request)
{
    local_engine *e = local_of(engine);
    request->submitted_ns = hth_now_ns() - request->waited_ns;
    hth_err err = atomic_fetch_add(&e->serve.waiting, 1) < e->queue || request == &e->drain
                      ? hth_mailbox_send(e->mailbox, request)
                      : HTH_EBUSY;
    if (err == HTH_OK) {
        return HTH_OK;
    }
    atomic_fetch_sub(&e->serve.waiting, 1);
    hth_stat_add(HTH_STAT_REQUESTS_REFUSED, err == HTH_EBUSY);
    return hth_fail(err, err == HTH_EBUSY ? "Exceeds maximum queue size" : "Server exiting");
}

static bool turn_busy(void *ctx)
{
    local_engine *e = ctx;
    return atomic_load(&e->callers) > 0 && !atomic_load(&e->wanted);
}

// turn_try is for callers. Who has the turn is another caller, who is done soon, or the engine's
// thread, which may be at work for hours.
static bool turn_try(local_engine *engine)
{
    for (uint64_t until_ns = 0; !atomic_load(&engine->wanted);) {
        if (pthread_mutex_trylock(&engine->turn) == 0) {
            atomic_fetch_add(&engine->callers, 1);
            return true;
        }
        uint64_t now_ns = hth_real_ns();
        until_ns = until_ns == 0 ? now_ns + ENGINE_TURN_NS : until_ns;
        if (now_ns >= until_ns || atomic_load(&engine->callers) == 0) {
            return false;
        }
        hth_spin(turn_busy, engine, until_ns);
    }
    return false;
}

// A quota is the engine's thread's, and a device whose launches do not run on the caller is bound
// to it.
static bool here_may(local_engine *engine)
{
    const hth_device *d = engine->site.device;
    return !engine->ended && d->props.inline_compute && hth_device_quota_percent(d) == 100 &&
           atomic_load(&engine->serve.waiting) < engine->queue;
}

static void here_finish(hth_request *request, const hth_leftover *later)
{
    for (int i = 0; i < later->n && request->err == HTH_OK; i++) {
        memcpy(later->copy[i].to, later->copy[i].from, later->copy[i].bytes);
    }
    request->later = NULL;
    engine_done(request);
}

static bool local_here(hth_engine *engine, hth_request *request)
{
    local_engine *e = local_of(engine);
    hth_leftover later = {.n = 0};
    bool taken = false, left = false;
    if (!turn_try(e)) {
        return false;
    }
    if (here_may(e)) {
        atomic_store(&e->here, true);
        request->submitted_ns = hth_now_ns();
        request->later = &later;
        taken = hth_serve_here(&e->serve, request, &left);
        request->later = later.answered ? &later : NULL; // else the engine's thread will answer it
        atomic_store(&e->here, false);
    }
    turn_give(e);
    atomic_fetch_sub(&e->callers, 1);
    if (left) {
        engine_wake(e);
    }
    if (later.answered) {
        here_finish(request, &later);
    }
    return taken;
}

static void local_set_poll_hook(hth_engine *engine, const hth_poll_hook *hook)
{
    hth_mailbox_set_poll(local_of(engine)->mailbox, hook);
}

static bool local_poll(hth_engine *engine, bool on)
{
    return false; // its own thread answers
}

static void local_drain(hth_engine *engine)
{
    local_engine *e = local_of(engine);
    e->drain.command = HTH_COMMAND_DRAIN;
    if (local_submit(engine, &e->drain) != HTH_OK) {
        hth_log(WARN, SERVER, "drain", "training jobs are not saved: %s", hth_err_detail());
    }
}

static void local_stop(hth_engine *engine)
{
    local_engine *e = local_of(engine);
    if (e->running) {
        hth_mailbox_stop(e->mailbox);
        pthread_join(e->thread, NULL);
        e->running = false;
    }
}

static void local_close(hth_engine *engine)
{
    local_engine *e = local_of(engine);
    local_stop(engine);
    hth_mailbox_close(e->mailbox);
    pthread_cond_destroy(&e->started);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->turn);
    hth_free(e);
}

static bool local_ready(hth_engine *engine)
{
    return true;
}

static uint64_t local_stalled_ns(hth_engine *engine)
{
    return hth_poll_age_ns(local_of(engine)->polled_ns);
}

static void local_share(hth_engine *engine, int fd, uint64_t offset, const void *base, size_t bytes)
{
}

static void local_unshare(hth_engine *engine, const void *base)
{
}

static void *local_alloc(hth_engine *engine, size_t bytes)
{
    return NULL;
}

static bool local_free(hth_engine *engine, void *p)
{
    return false;
}

static const hth_engine_ops local_ops = {
    .submit = local_submit,
    .here = local_here,
    .set_poll_hook = local_set_poll_hook,
    .poll = local_poll,
    .drain = local_drain,
    .stop = local_stop,
    .close = local_close,
    .ready = local_ready,
    .stalled_ns = local_stalled_ns,
    .share = local_share,
    .unshare = local_unshare,
    .alloc = local_alloc,
    .free = local_free,
};

hth_err hth_local_open(const hth_engine_config *config, hth_store *store, hth_engine **out)
{
    local_engine *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_no_memory("an engine");
    }
    e->engine.ops = &local_ops;
    snprintf(e->device, sizeof e->device, "%s", config->device != NULL ? config->device : "cpu");
    e->store = store;
    e->resume = config->resume;
    e->polled_ns = config->polled_ns != NULL ? config->polled_ns : &e->polled;
    e->training = (hth_train_queue){.ms = &e->models,
                                    .answer = engine_answer,
                                    .event = config->event,
                                    .event_ctx = config->event_ctx};
    e->loads = (hth_loads){.ms = &e->models, .answer = engine_answer};
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->turn, NULL);
    pthread_cond_init(&e->started, NULL);
    e->serve = (hth_serve){.ms = &e->models,
                           .mail = engine_mail,
                           .query = engine_query,
                           .at_once = engine_at_once,
                           .answer = engine_answer,
                           .wait = engine_await,
                           .wake = engine_wake,
                           .due = engine_due,
                           .job = engine_job,
                           .turns = &e->training.turns,
                           .ctx = e};
    e->queue = config->queue > 0 ? config->queue : (int)hth_setting_int(HTH_SET_QUEUE_LENGTH);
    e->serve.queue = e->queue;
    uint64_t spin_ns = (uint64_t)hth_setting_int(HTH_SET_QUEUE_SPIN_US) * 1000u;
    hth_err err = hth_mailbox_open((size_t)e->queue + 1, spin_ns, &e->mailbox); // one: e->drain
    pthread_attr_t stack;
    pthread_attr_init(&stack);
    pthread_attr_setstacksize(&stack, ENGINE_STACK);
    if (err == HTH_OK && pthread_create(&e->thread, &stack, engine_main, e) != 0) {
        err = hth_fail(HTH_ENOMEM, "cannot start the engine's thread");
    }
    pthread_attr_destroy(&stack);
    if (err != HTH_OK) {
        local_close(&e->engine);
        return err;
    }
    e->running = true;
    pthread_mutex_lock(&e->lock);
    while (!e->ready) {
        pthread_cond_wait(&e->started, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    if (e->open_err != HTH_OK) {
        err = hth_fail(e->open_err, "%s", e->open_detail);
        local_close(&e->engine);
        return err;
    }
    *out = &e->engine;
    return HTH_OK;
}
