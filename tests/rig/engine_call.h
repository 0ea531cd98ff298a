// SPDX-License-Identifier: Apache-2.0
// tests/rig/engine_call.h - an engine on a store of its own, and requests that are waited for.
#ifndef HTH_TESTS_RIG_ENGINE_CALL_H
#define HTH_TESTS_RIG_ENGINE_CALL_H

#include "base/test.h"
#include "convsel/link.h"
#include "graph/onnx/onnx.h"
#include "engine/engine.h"
#include "engine/job_paths.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct fixture {
    char dir[64];
    hth_store *store;
    hth_engine *engine;
} fixture;

// What happens to jobs, counted: who waits for a state of one looks again when something happened,
// or a second later, for not every figure has an event.
static pthread_mutex_t events_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t events_more = PTHREAD_COND_INITIALIZER;
static uint64_t events_count;

// events_event is the `event` of an engine's configuration.
static inline void events_event(void *ctx, const char *job, const char *what, uint64_t done,
                                uint64_t total)
{
    pthread_mutex_lock(&events_lock);
    events_count++;
    pthread_cond_broadcast(&events_more);
    pthread_mutex_unlock(&events_lock);
}

// events_wait waits for an event after the first *seen, which it counts.
static inline void events_wait(uint64_t *seen)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec++;
    pthread_mutex_lock(&events_lock);
    while (events_count == *seen && pthread_cond_timedwait(&events_more, &events_lock, &end) == 0) {
    }
    *seen = events_count;
    pthread_mutex_unlock(&events_lock);
}

static inline void put(hth_store *store, const char *name, const char *path)
{
    hth_onnx_file *f;
    hth_put_result result;
    size_t bytes;
    assert_ok(hth_onnx_open(path, &hth_onnx_default_limits, &f));
    int n = hth_onnx_n_tensors(f);
    hth_put_tensor *t = calloc((size_t)n + 1, sizeof *t);
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *o = hth_onnx_tensor_at(f, i);
        void *data = malloc(o->bytes + 1);
        assert_ok(hth_onnx_tensor_read(f, i, 0, data, o->bytes));
        t[i] = (hth_put_tensor){
            .name = o->name, .dtype = o->dtype, .shape = o->shape, .data = data, .bytes = o->bytes};
    }
    const void *skeleton = hth_onnx_skeleton(f, &bytes);
    assert_ok(hth_store_put(store, name, skeleton, bytes, NULL, t, n, NULL, NULL, &result));
    for (int i = 0; i < n; i++) {
        free((void *)t[i].data);
    }
    free(t);
    hth_onnx_close(f);
}

// paths_named does what hearthd does with the paths in a request's arguments: an engine's process
// may have opened what the store has noted, after hth_job_paths_begin, and nothing else.
static inline void paths_named(hth_store *store, const char *arguments)
{
    json_t *args = json_loads(arguments, 0, NULL);
    assert_ok(hth_job_paths_keep(store, args));
    json_decref(args);
}

static inline hth_err link_text_get(void *ctx, const char *key, char *value, size_t cap)
{
    return hth_store_text_get(ctx, key, value, cap);
}

static inline hth_err link_text_put(void *ctx, const char *key, const char *value)
{
    return hth_store_text_put(ctx, key, value);
}

// link_known spares an engine on a new store the measurement of its CPU devices' links, about a
// processor second each. Set links are measured, and those of other devices.
static inline void link_known(hth_store *store, const char *devices)
{
    char text[1000], *rest;
    const hth_timing_cache cache = {.get = link_text_get, .put = link_text_put, .ctx = store};
    assert_true(strlen(devices) < sizeof text);
    strcpy(text, devices);
    for (char *at = strtok_r(text, " ", &rest); at != NULL; at = strtok_r(NULL, " ", &rest)) {
        hth_device *device;
        if (strncmp(at, "cpu", 3) != 0 || hth_device_open(at, &device) != HTH_OK) {
            continue;
        }
        const hth_link link = {.h2d_bytes_per_s = 4e9,
                               .d2h_bytes_per_s = 4e9,
                               .latency_us = 2,
                               .interference = device->props.inline_copies ? 1 : 0.5};
        if (!hth_device_paced(device)) {
            assert_ok(hth_link_keep(device, &cache, &link));
        }
        hth_device_close(device);
    }
}

static inline void fixture_open(fixture *f, const char *device)
{
    strcpy(f->dir, "/tmp/hearth-engine-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_ok(hth_store_open(f->dir, true, false, &f->store));
    link_known(f->store, device);
    hth_engine_config config = {.device = device, .event = events_event};
    assert_ok(hth_engine_open(&config, f->store, &f->engine));
}

static inline void fixture_close(fixture *f)
{
    hth_engine_close(f->engine);
    hth_store_close(f->store);
    assert_int_equal(test_remove(f->dir), 0);
}

// A request that is waited for.
typedef struct call {
    hth_request r;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool finished;
    hth_tensor out[4]; // data malloc'd
    char name[4][32];
} call;

static inline hth_err call_place(hth_request *request, hth_request_tensor *out, int n)
{
    call *c = request->ctx;
    assert_true(n <= 4);
    for (int i = 0; i < n; i++) {
        assert_null(out[i].t.data); // the submitter's, not the engine's
        assert_null(out[i].offered);
        out[i].t.data = malloc(out[i].t.bytes + 1);
        c->out[i] = out[i].t;
        snprintf(c->name[i], sizeof c->name[i], "%s", out[i].name);
    }
    return HTH_OK;
}

static inline void call_done(hth_request *request)
{
    call *c = request->ctx;
    pthread_mutex_lock(&c->lock);
    c->finished = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

// A request may have a `place` and a `done` of its own; what its context is begins with the call.
static inline void call_init(call *c)
{
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->finished = false;
    c->r.place = c->r.place != NULL ? c->r.place : call_place;
    c->r.done = c->r.done != NULL ? c->r.done : call_done;
    c->r.ctx = c;
}

static inline void call_start(hth_engine *engine, call *c)
{
    call_init(c);
    assert_ok(hth_engine_submit(engine, &c->r));
}

static inline bool call_finished(call *c)
{
    pthread_mutex_lock(&c->lock);
    bool finished = c->finished;
    pthread_mutex_unlock(&c->lock);
    return finished;
}

static inline hth_err call_wait(call *c)
{
    pthread_mutex_lock(&c->lock);
    while (!c->finished) {
        pthread_cond_wait(&c->changed, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return hth_err_restore(c->r.err, c->r.detail);
}

static inline hth_err call_run(hth_engine *engine, call *c)
{
    call_start(engine, c);
    return call_wait(c);
}

// Memory that a client shares with the engine.
typedef struct client_memory {
    char *base;
    size_t bytes;
    int fd;
} client_memory;

static inline void client_memory_open(hth_engine *engine, size_t bytes, client_memory *m)
{
    *m = (client_memory){.bytes = bytes, .fd = memfd_create("hearth-client", MFD_CLOEXEC)};
    assert_true(m->fd >= 0);
    assert_int_equal(ftruncate(m->fd, (off_t)bytes), 0);
    m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    assert_ptr_not_equal(m->base, MAP_FAILED);
    hth_engine_share(engine, m->fd, 0, m->base, bytes);
}

static inline void client_memory_close(hth_engine *engine, const client_memory *m)
{
    hth_engine_unshare(engine, m->base);
    munmap(m->base, m->bytes);
    close(m->fd);
}

// told asks what is to be answered, and returns the answer, the caller's. arguments NULL: none.
static inline json_t *told(const fixture *f, const char *query, const char *arguments)
{
    call c = {.r = {.command = hth_command_find(query), .arguments = arguments}};
    if (call_run(f->engine, &c) != HTH_OK) {
        fail_msg("%s %s: %s", query, arguments != NULL ? arguments : "", c.r.detail);
    }
    json_t *doc = json_loads(c.r.json, 0, NULL);
    assert_non_null(doc);
    hth_free(c.r.json);
    return doc;
}

#endif
