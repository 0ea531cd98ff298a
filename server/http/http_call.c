// SPDX-License-Identifier: Apache-2.0
// Calls to the engine: made, submitted, completed, freed; and the loop's two regular events.
//
// A call is in h->pending from submission until it is answered. `done`, on the engine's thread,
// pushes it on h->completed and writes to the eventfd when the list was empty and the loop does not
// look for it; the loop takes the whole list at once. While a reply is pending nothing is read, and
// a client that hangs up is not seen. Calls that take longer than a tick are therefore
// watched for EV_CLOSED; quick ones are not, because watching costs two system calls.
#include "server/http/http_call.h"

#include "base/clock.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// How long replies may take to leave when everything is answered and the server stops.
#define CALL_LINGER_NS 1000000000u

void *hth_http_call_make(hth_http *http, hth_http_req *req, const hth_http_args *args, size_t bytes)
{
    hth_http_call *c = hth_calloc(1, bytes);
    if (c == NULL) {
        return NULL;
    }
    c->h = http;
    c->req = req;
    c->args = *args;
    hth_http_tenant(http, req, c->tenant, sizeof c->tenant);
    c->r.tenant = c->tenant;
    c->trace = http->tracing;
    http->tracing = NULL;
    return c;
}

void *hth_http_call_new(hth_http *http, hth_http_req *req, const hth_http_args *args, size_t bytes)
{
    hth_http_call *call = hth_http_call_make(http, req, args, bytes);
    if (call == NULL) {
        hth_http_fail(http, req, 503, "out of memory for a request");
    }
    return call;
}

static void call_unwatch(hth_http_call *call)
{
    if (call->closed != NULL) {
        event_free(call->closed);
        call->closed = NULL;
    }
}

void hth_http_call_free(hth_http_call *call)
{
    call_unwatch(call);
    if (call->drop != NULL) {
        call->drop(call);
    }
    hth_free(call->r.json);
    hth_free(call);
}

void hth_http_wake(hth_http *http)
{
    uint64_t one = 1;
    ssize_t n = write(http->wake_fd, &one, sizeof one);
    (void)n; // fails only when the count is at its end, and then the loop is awake
}

// call_done runs on the engine's thread.
static void call_done(hth_request *request)
{
    hth_http_call *c = request->ctx;
    hth_http *h = c->h; // c may be gone once it is on the list
    hth_http_call *first = atomic_load(&h->completed);
    do {
        c->next_completed = first;
    } while (!atomic_compare_exchange_weak(&h->completed, &first, c));
    if (first == NULL && !atomic_load(&h->polling)) {
        hth_http_wake(h);
    }
}

static void call_unlink(hth_http_call *call)
{
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        call->h->pending = call->next;
    }
    atomic_fetch_sub(&call->h->n_pending, 1);
}

// call_answer gives the trace to whoever answers now.
static void call_answer(hth_http_call *call)
{
    call->h->tracing = call->trace;
    call->trace = NULL;
}

void hth_http_call_begin(hth_http_call *call)
{
    hth_http *h = call->h;
    call->begun = true;
    call->r.ctx = call;
    call->r.done = call_done;
    if (call->trace == NULL) { // of a call that is handed on
        call->trace = h->tracing;
        h->tracing = NULL;
    }
    call->since_ns = hth_now_ns();
    call->prev = NULL; // one that is handed on was in the list before
    call->next = h->pending;
    if (h->pending != NULL) {
        h->pending->prev = call;
    }
    h->pending = call;
    atomic_fetch_add(&h->n_pending, 1);
}

void hth_http_call_refuse(hth_http_call *call, hth_err err)
{
    call_answer(call);
    hth_http_fail_err(call->h, call->req, err);
    hth_http_call_free(call);
}

// call_times takes the times over that the engine has kept. A question before the request itself
// has none that count, nor has what was not submitted, because it could not be read.
static void call_times(const hth_http_call *call)
{
    uint64_t *ns = call->trace->ns;
    if (call->r.command == HTH_COMMAND_NONE && ns[HTH_TRACE_REQUEST_START] != 0) {
        ns[HTH_TRACE_QUEUE_START] = call->r.submitted_ns;
        ns[HTH_TRACE_COMPUTE_START] = call->r.started_ns;
        ns[HTH_TRACE_COMPUTE_OUTPUT_START] =
            ns[HTH_TRACE_COMPUTE_INPUT_END] != 0 ? call->r.finished_ns : 0;
        ns[HTH_TRACE_COMPUTE_END] = call->r.started_ns != 0 ? call->r.finished_ns : 0;
        ns[HTH_TRACE_INFER_RESPONSE_COMPLETE] = call->r.finished_ns;
        ns[HTH_TRACE_REQUEST_END] = hth_now_ns();
    }
}

static void call_finish(hth_http_call *call)
{
    call_unlink(call);
    call_unwatch(call);
    if (call->trace != NULL) {
        call_times(call);
    }
    call_answer(call);
    call->begun = false;
    call->finish(call);
    if (!call->begun) {
        hth_http_call_free(call);
    }
}

void hth_http_call_submit(hth_http_call *call)
{
    hth_http *h = call->h;
    hth_http_call_begin(call);
    if (call->trace != NULL) {
        call->trace->ns[HTH_TRACE_REQUEST_START] = call->since_ns;
    }
    hth_err err = hth_engine_submit(h->engine, &call->r);
    if (err != HTH_OK && call->late != NULL) {
        call_unlink(call);
        call_answer(call);
        call->late(call, err);
        hth_http_call_free(call);
    } else if (err != HTH_OK) {
        call->r.err = err;
        snprintf(call->r.detail, sizeof call->r.detail, "%s", hth_err_detail());
        call_done(&call->r);
    }
}

void hth_http_call_run(hth_http_call *call, hth_store_worker *jobs, hth_store_task *job,
                       void (*run)(hth_store_task *task))
{
    hth_http_call_begin(call);
    job->run = run;
    hth_store_worker_submit(jobs, job);
}

static void call_worked(hth_http_task *t)
{
    hth_http_call *c = (hth_http_call *)((char *)t - offsetof(hth_http_call, task));
    hth_err err = c->r.canceled ? hth_fail(HTH_ECANCELED, "the request was canceled") : c->work(c);
    c->r.err = err;
    c->r.detail[0] = 0;
    if (err != HTH_OK) {
        snprintf(c->r.detail, sizeof c->r.detail, "%s", hth_err_detail());
    }
    call_done(&c->r);
}

// call_turn stores whose turn a task takes.
static void call_turn(hth_http_call *call)
{
    const hth_http_conn *conn = call->req->conn;
    uint64_t group = 0;
    for (const char *p = call->tenant; *p != 0; p++) {
        group = group * 31 + (unsigned char)*p;
    }
    if (strcmp(call->tenant, HTH_HTTP_NOBODY) == 0) {
        group = (uintptr_t)conn->address;
    }
    call->task.group = group;
    call->task.one = (uintptr_t)conn;
}

void hth_http_call_work(hth_http_call *call, hth_err (*work)(hth_http_call *call),
                        void (*finish)(hth_http_call *call))
{
    hth_http *http = call->h;
    hth_err err = http->work == NULL ? hth_http_work_open(&http->work) : HTH_OK;
    if (call->task.one == 0) {
        call_turn(call);
    }
    call->finish = finish;
    call->work = work;
    call->task.run = call_worked;
    hth_http_call_begin(call);
    if (err == HTH_OK) {
        hth_http_work_submit(http->work, &call->task);
    } else {
        call->r.err = err;
        snprintf(call->r.detail, sizeof call->r.detail, "%s", hth_err_detail());
        call_done(&call->r);
    }
}

static void http_maybe_end(hth_http *http)
{
    if (!atomic_load(&http->ending) || http->pending != NULL || hth_http_lists_wait(http)) {
        return;
    }
    uint64_t now = hth_now_ns();
    http->stop_ns = http->stop_ns != 0 ? http->stop_ns : now + CALL_LINGER_NS;
    if (http->n_sending == 0 || now >= http->stop_ns) {
        http->ended = true;
        event_base_loopbreak(http->base);
    }
}

bool hth_http_complete(hth_http *http)
{
    if (atomic_load(&http->completed) == NULL) {
        return false;
    }
    hth_http_call *c = atomic_exchange(&http->completed, NULL), *first = NULL;
    while (c != NULL) { // the oldest first
        hth_http_call *next = c->next_completed;
        c->next_completed = first;
        first = c;
        c = next;
    }
    while (first != NULL) {
        hth_http_call *next = first->next_completed;
        call_finish(first);
        first = next;
    }
    return true;
}

void hth_http_woken(evutil_socket_t fd, short what, void *arg)
{
    hth_http *h = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
    h->events++;
    (void)hth_http_complete(h);
    for (hth_http_call *c = atomic_exchange(&h->cancel, false) ? h->pending : NULL; c != NULL;
         c = c->next) {
        c->r.canceled = 1;
    }
    if (atomic_load(&h->stopping)) {
        hth_http_listener_close(&h->api);
    }
    http_maybe_end(h);
}

static void call_closed(evutil_socket_t fd, short what, void *arg)
{
    hth_http_call *c = arg;
    c->r.canceled = 1;
    call_unwatch(c);
    if (c->gone != NULL) {
        c->gone(c);
    }
}

// call_late has a call answered before the engine has done so.
static void call_late(hth_http_call *call)
{
    call_unwatch(call);
    call_answer(call);
    call->late(call, HTH_ETIMEDOUT);
    call->late = NULL;
    call->req = NULL;
}

void hth_http_ticked(evutil_socket_t fd, short what, void *arg)
{
    hth_http *h = arg;
    uint64_t now = hth_now_ns();
    hth_tracer_flush(h->tracer);
    hth_http_conns_check_slow(h, now);
    hth_http_lists_start(h, now);
    for (hth_http_call *c = h->pending; c != NULL; c = c->next) {
        if (c->late != NULL && now - c->since_ns > HTH_HTTP_PATIENCE_NS) {
            call_late(c);
        }
        if (c->req != NULL && c->closed == NULL && !c->r.canceled &&
            now - c->since_ns > HTH_HTTP_TICK_US * 1000u) {
            c->closed = event_new(h->base, c->req->conn->fd, EV_CLOSED, call_closed, c);
            if (c->closed != NULL) {
                event_add(c->closed, NULL);
            }
        }
    }
    http_maybe_end(h);
}
