// SPDX-License-Identifier: Apache-2.0
// tests/rig/fake_http_rig.h - a server with HTTP on the fake engine, for tests of requests that are
// not answered at once.
#ifndef HTH_TESTS_RIG_FAKE_HTTP_RIG_H
#define HTH_TESTS_RIG_FAKE_HTTP_RIG_H

#include "tests/rig/fake_engine.h"
#include "tests/rig/http_client.h"
#include "tests/rig/server_rig.h"

#define FAKE_PATIENCE 120000 // naps until what never comes is given up

// fake_http_setup and fake_http_teardown are a test's; *state is the server_rig. The engine begins
// as if it had answered nothing.
static inline int fake_http_setup(void **state)
{
    server_rig *f = calloc(1, sizeof *f);
    server_rig_make(f);
    atomic_store(&fake_released, 0);
    atomic_store(&fake_hold_bytes, 0);
    atomic_store(&fake_canceled, 0);
    hth_server_config config = {.store = f->store, .http = "127.0.0.1:0", .metrics = "127.0.0.1:0"};
    assert_ok(hth_server_open(&config, &f->server));
    f->port = hth_server_http_port(f->server);
    f->metrics_port = hth_server_metrics_port(f->server);
    atomic_store(&fake_lists, 0);
    *state = f;
    return 0;
}

static inline int fake_http_teardown(void **state)
{
    atomic_store(&fake_released, 1);
    server_rig_end(*state);
    free(*state);
    return 0;
}

static inline void fake_wait(atomic_int *v, int want)
{
    for (int i = 0; i < FAKE_PATIENCE && atomic_load(v) != want; i++) {
        fake_nap();
    }
    assert_int_equal(atomic_load(v), want);
}

// fake_http_send asks `model` for an inference, and does not wait for the answer; `more` are lines
// of the head. Returns the connection.
static inline int fake_http_send(const server_rig *rig, const char *model, const char *more,
                                 const void *body, size_t bytes)
{
    char head[300];
    int fd = dial(rig->port);
    int n = snprintf(head, sizeof head,
                     "POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n%sContent-Length: "
                     "%zu\r\n\r\n",
                     model, more, bytes);
    push(fd, head, (size_t)n);
    push(fd, body, bytes);
    return fd;
}

// fake_http_seven is the same for one element, a seven, and a request with `parameters`.
static inline int fake_http_seven(const server_rig *rig, const char *model, const char *parameters)
{
    char json[300];
    int n = snprintf(json, sizeof json,
                     "{\"parameters\":{%s},\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":"
                     "\"FP32\",\"data\":[7]}]}",
                     parameters);
    return fake_http_send(rig, model, "", json, (size_t)n);
}

// fake_http_hold has the engine inside a request until fake_released; returns the connection, which
// fake_http_release ends when the request is answered.
static inline int fake_http_hold(const server_rig *rig)
{
    int fd = fake_http_seven(rig, "hold", "");
    fake_wait(&fake_held, 1);
    return fd;
}

static inline void fake_http_release(int fd)
{
    atomic_store(&fake_released, 1);
    reply r = pull(fd, true);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
}

#endif
