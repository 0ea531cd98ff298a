// SPDX-License-Identifier: Apache-2.0
// tests/rig/fake_engine.h - an engine behind engine/engine.h that computes nothing, included by one
// .c of a test program; its symbols are found before the library's.
//
// Infer answers each input as the output of the same name. Models: "missing" does not exist;
// "strict" refuses what is not FP32; "late" fails after its outputs were placed; "hold" runs until
// it is canceled or fake_released is set; "stuck" until the latter. Queries: "devices" has a fixed
// answer; "stats" and "loaded" have fake_models rows of models m0, m1, ..; "bench" reports progress
// until it is canceled, or ten steps; "train" takes one job, which runs until fake_job_end; "job"
// tells of it; any other command is refused. Memory of fake_hold_bytes or more is given when
// fake_released is set.
#ifndef HTH_TESTS_RIG_FAKE_ENGINE_H
#define HTH_TESTS_RIG_FAKE_ENGINE_H

#include "base/alloc.h"
#include "base/mailbox.h"
#include "engine/engine.h"

#include <jansson.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define FAKE_DEVICES "{\"devices\":[{\"name\":\"fake:0\",\"total_bytes\":1024}]}"

struct hth_engine {
    hth_mailbox *mailbox;
    pthread_t thread;
    bool running;
};

static uint64_t fake_spin_ns = 20000;   // how long it looks for requests before it sleeps
static atomic_int fake_taken;           // requests for "hold" that were submitted
static atomic_int fake_held;            // requests inside "hold"
static atomic_int fake_released;        // "hold" may end
static _Atomic(size_t) fake_hold_bytes; // of memory that is waited for; 0: none is
static atomic_int fake_canceled;        // requests that ended because they were canceled
static atomic_int fake_engines;         // that are open
static atomic_int fake_models;          // that "stats" and "loaded" tell of
static atomic_int fake_lists;           // how often it was asked for these
static const void *_Atomic fake_last_input;
static atomic_uint fake_last_priority; // of the last inference
static _Atomic(uint64_t) fake_last_timeout_us;

// The training job: NULL when there is none. What happens to it is told by fake_job_event.
static hth_request *_Atomic fake_job;
static const char *_Atomic fake_job_state;
static atomic_int fake_job_id, fake_job_asked; // .. and how often "job" was answered
static char fake_job_name[64], fake_job_tenant[64];
static void (*fake_event)(void *ctx, const char *job, const char *what, uint64_t done,
                          uint64_t total);
static void *fake_event_ctx;

static void fake_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static hth_err fake_hold(hth_request *request)
{
    atomic_fetch_add(&fake_held, 1);
    bool deaf = strcmp(request->model, "stuck") == 0;
    while (!atomic_load(&fake_released) && (deaf || !request->canceled)) {
        fake_nap();
    }
    atomic_fetch_sub(&fake_held, 1);
    return request->canceled ? hth_fail(HTH_ECANCELED, "canceled by its client") : HTH_OK;
}

// fake_apart: no two outputs share memory, for an engine reads there what it wrote.
static bool fake_apart(const hth_request_tensor *out, int n)
{
    bool apart = true;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) {
            const char *a = out[i].t.data, *b = out[k].t.data;
            apart = apart && (a + out[i].t.bytes <= b || b + out[k].t.bytes <= a);
        }
    }
    return apart;
}

static hth_err fake_infer(hth_request *request)
{
    atomic_store(&fake_last_priority, request->priority);
    atomic_store(&fake_last_timeout_us, request->timeout_us);
    if (strcmp(request->model, "missing") == 0) {
        return hth_fail(HTH_ENOENT, "there is no model 'missing'; there are: strict, hold");
    }
    if (strcmp(request->model, "strict") == 0 && request->inputs[0].t.dtype != HTH_DT_F32) {
        return hth_fail(HTH_EINVAL, "input 'x': the model wants FP32, not %s",
                        hth_dtype_name(request->inputs[0].t.dtype));
    }
    if (strcmp(request->model, "hold") == 0 || strcmp(request->model, "stuck") == 0) {
        HTH_TRY(fake_hold(request));
    }
    hth_request_tensor out[64];
    for (int i = 0; i < request->n_inputs; i++) {
        out[i] = request->inputs[i];
        out[i].name = request->inputs[i].name != NULL ? request->inputs[i].name : "y";
        fake_last_input = request->inputs[i].t.data;
    }
    HTH_TRY(request->place(request, out, request->n_inputs));
    if (!fake_apart(out, request->n_inputs)) {
        return hth_fail(HTH_ECORRUPT, "outputs share memory");
    }
    if (strcmp(request->model, "late") == 0) {
        return hth_fail(HTH_EIO, "failed after the outputs were placed");
    }
    for (int i = 0; i < request->n_inputs; i++) {
        memcpy(out[i].t.data, request->inputs[i].t.data, out[i].t.bytes);
    }
    return HTH_OK;
}

// fake_list tells of models, with as much about each as the real engine has.
static hth_err fake_list(hth_request *request)
{
    static const char row[] =
        "{\"name\":\"m%d\",\"version\":1,\"device\":\"cpu:0\",\"state\":\"READY\",\"reason\":\"\","
        "\"requests\":%d,\"failures\":0,\"executions\":7,\"times\":{\"samples\":9,\"success_ns\":"
        "1000,"
        "\"failure_ns\":0,\"queue_ns\":1,\"input_ns\":2,\"infer_ns\":3,\"output_ns\":4,\"last_ms\":"
        "5},"
        "\"batches\":[{\"samples\":1,\"runs\":7,\"input_ns\":1,\"infer_ns\":2,\"output_ns\":3}],"
        "\"failed\":[0,0,0,0],\"answered\":[1,2,3,4],\"quantiles_ns\":[],\"load_ns\":5}%s";
    int n = atomic_load(&fake_models), asked = atomic_fetch_add(&fake_lists, 1) + 1;
    size_t cap = 64 + (size_t)n * (sizeof row + 32), at = 0;
    char *text = hth_alloc(cap);
    if (text == NULL) {
        return HTH_ENOMEM;
    }
    at += (size_t)snprintf(text, cap, "{\"models\":[");
    for (int i = 0; i < n; i++) {
        at += (size_t)snprintf(text + at, cap - at, row, i, asked, i + 1 < n ? "," : "");
    }
    snprintf(text + at, cap - at, "]}");
    request->json = text;
    return HTH_OK;
}

static void fake_text(const json_t *args, const char *key, char out[64])
{
    const char *text = json_string_value(json_object_get(args, key));
    snprintf(out, 64, "%s", text != NULL ? text : "");
}

// fake_train takes a job, whose answer is fake_job_end's.
static void fake_train(hth_request *request)
{
    json_t *args = json_loads(request->arguments, 0, NULL);
    fake_text(args, "save-as", fake_job_name);
    snprintf(fake_job_tenant, sizeof fake_job_tenant, "%s", request->tenant);
    atomic_store(&fake_job_id, (int)json_integer_value(json_object_get(args, "id")));
    json_decref(args);
    atomic_store(&fake_job_state, "running");
    request->progress(request, "{\"state\":\"running\"}", 0, 1);
    atomic_store(&fake_job, request); // from here on it may end
}

static hth_err fake_query_job(hth_request *request)
{
    char name[64];
    json_t *args = json_loads(request->arguments, 0, NULL);
    fake_text(args, "job", name);
    json_decref(args);
    atomic_fetch_add(&fake_job_asked, 1);
    if (fake_job_name[0] == 0 || strcmp(name, fake_job_name) != 0) {
        return hth_fail(HTH_ENOENT, "there is no job '%s'; `hearth jobs` lists what there is",
                        name);
    }
    if (!request->admin && strcmp(request->tenant, fake_job_tenant) != 0) {
        return hth_fail(HTH_EDENIED, "job '%s' belongs to another tenant", name);
    }
    request->json = hth_asprintf(
        "{\"id\":%d,\"job\":\"%s\",\"tenant\":\"%s\",\"state\":\"%s\",\"step\":1,"
        "\"steps\":1000,\"loss\":0.5,\"why\":null}",
        atomic_load(&fake_job_id), fake_job_name, fake_job_tenant, atomic_load(&fake_job_state));
    return HTH_OK;
}

static inline void fake_job_event(const char *what, uint64_t done)
{
    fake_event(fake_event_ctx, fake_job_name, what, done, 1000);
}

// fake_job_end ends the job, "finished" or in another way.
static inline void fake_job_end(const char *state)
{
    char text[64];
    hth_request *r;
    while ((r = atomic_exchange(&fake_job, NULL)) == NULL) {
        fake_nap();
    }
    snprintf(text, sizeof text, "{\"state\":\"%s\"}", state);
    atomic_store(&fake_job_state, state);
    fake_job_event(text, 0);
    r->err = HTH_OK;
    r->done(r);
}

static hth_err fake_query(hth_request *request)
{
    if (request->command == HTH_COMMAND_JOB) {
        return fake_query_job(request);
    }
    if (request->command == HTH_COMMAND_DEVICES) {
        request->json = hth_strdup(FAKE_DEVICES);
        return HTH_OK;
    }
    if (request->command == HTH_COMMAND_STATS || request->command == HTH_COMMAND_LOADED) {
        return fake_list(request);
    }
    if (request->command != HTH_COMMAND_BENCH) {
        return hth_fail(HTH_ENOTSUP, "there is no query '%s'", hth_command_name(request->command));
    }
    for (int i = 0; i < 400 && !request->canceled; i++) {
        request->progress(request, "measuring", (uint64_t)i + 1, 400);
        fake_nap();
    }
    request->json = hth_asprintf("{\"arguments\":%s}", request->arguments);
    return request->canceled ? hth_fail(HTH_ECANCELED, "canceled by its client") : HTH_OK;
}

static void *fake_main(void *arg)
{
    hth_engine *e = arg;
    void *message;
    while (hth_mailbox_receive(e->mailbox, HTH_FOREVER, &message) == HTH_OK) {
        hth_request *r = message;
        if (r->command == HTH_COMMAND_TRAIN) {
            fake_train(r);
            continue;
        }
        r->err = r->command != HTH_COMMAND_NONE ? fake_query(r) : fake_infer(r);
        snprintf(r->detail, sizeof r->detail, "%s", r->err != HTH_OK ? hth_err_detail() : "");
        if (r->err == HTH_ECANCELED) {
            atomic_fetch_add(&fake_canceled, 1);
        }
        r->done(r);
    }
    return NULL;
}

hth_err hth_engine_open(const hth_engine_config *config, hth_store *store, hth_engine **out)
{
    hth_engine *e = hth_calloc(1, sizeof *e);
    (void)store; // nothing is loaded
    fake_event = config->event;
    fake_event_ctx = config->event_ctx;
    *out = e;
    HTH_TRY(hth_mailbox_open(config->queue > 0 ? (size_t)config->queue : 1024, fake_spin_ns,
                             &e->mailbox));
    e->running = pthread_create(&e->thread, NULL, fake_main, e) == 0;
    atomic_fetch_add(&fake_engines, 1);
    return HTH_OK;
}

void hth_engine_set_poll_hook(hth_engine *engine, const hth_poll_hook *hook)
{
    hth_mailbox_set_poll(engine->mailbox, hook);
}

bool hth_engine_poll(hth_engine *engine, bool on)
{
    return false;
}

void hth_engine_drain(hth_engine *engine)
{
}

void hth_engine_stop(hth_engine *engine)
{
    if (engine->running) {
        hth_mailbox_stop(engine->mailbox);
        pthread_join(engine->thread, NULL);
        engine->running = false;
    }
}

void hth_engine_close(hth_engine *engine)
{
    if (engine != NULL) {
        hth_engine_stop(engine);
        hth_mailbox_close(engine->mailbox);
        hth_free(engine);
        atomic_fetch_sub(&fake_engines, 1);
    }
}

hth_err hth_engine_here(hth_engine *engine, hth_request *request)
{
    return hth_engine_submit(engine, request);
}

hth_err hth_engine_submit(hth_engine *engine, hth_request *request)
{
    bool hold = request->model != NULL && strcmp(request->model, "hold") == 0;
    hth_err err = hth_mailbox_send(engine->mailbox, request); // which may be answered then
    atomic_fetch_add(&fake_taken, err == HTH_OK && hold);
    return err == HTH_OK ? HTH_OK : hth_fail(err, "the engine takes no more requests");
}

void hth_engine_release(hth_retained *retained) // this engine leaves no outputs
{
}

uint64_t hth_engine_stalled_ns(hth_engine *engine)
{
    return 0;
}

bool hth_engine_ready(hth_engine *engine)
{
    return true;
}

void hth_engine_share(hth_engine *engine, int fd, uint64_t offset, const void *base, size_t bytes)
{
}

void hth_engine_unshare(hth_engine *engine, const void *base)
{
}

void *hth_engine_alloc(hth_engine *engine, size_t bytes)
{
    size_t hold = atomic_load(&fake_hold_bytes);
    if (hold > 0 && bytes >= hold) {
        atomic_fetch_add(&fake_held, 1);
        while (!atomic_load(&fake_released)) {
            fake_nap();
        }
        atomic_fetch_sub(&fake_held, 1);
    }
    return hth_alloc_aligned(bytes, 64);
}

void hth_engine_free(hth_engine *engine, void *p)
{
    hth_free(p);
}

// A thread's: the request that the fake holds is let go in a while.
static inline void *fake_release_soon(void *arg)
{
    for (int i = 0; i < 100; i++) {
        fake_nap();
    }
    atomic_store(&fake_released, 1);
    return NULL;
}

#endif
