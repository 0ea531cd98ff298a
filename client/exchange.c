// SPDX-License-Identifier: Apache-2.0
// The body of a message is allocated four bytes too long and trimmed by four: nng's request id then
// takes the place that it has in the receiver's memory, and the tensors (wire.h) are aligned on
// both sides, in process and across it.
#include "client/exchange.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "client/socket_exchange.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define EXCHANGE_CONNECT_MS                                                                        \
    3000 // how long a lost connection may take to come back before a call fails
#define EXCHANGE_REDIAL_MS 1500 // and before it is dialed anew
#define EXCHANGE_POLL_MS   100
#define EXCHANGE_CANCEL_MS 1000

struct hth_call {
    nng_ctx ctx;
    nng_aio *aio;
    hth_call *next;
};

static void call_free(hth_call *call)
{
    if (call->aio != NULL) {
        nng_aio_free(call->aio);
        nng_ctx_close(call->ctx);
    }
    hth_free(call);
}

static hth_err call_new(hearth *h, hth_call **out)
{
    hth_call *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_no_memory("a call");
    }
    int rv = nng_ctx_open(&c->ctx, h->socket);
    if (rv == 0 && (rv = nng_aio_alloc(&c->aio, NULL, NULL)) != 0) {
        nng_ctx_close(c->ctx);
    }
    if (rv != 0) {
        call_free(c);
        return hth_wire_fail(rv, "cannot start a call to %s", h->url);
    }
    *out = c;
    return HTH_OK;
}

void hth_exchange_hold(hearth *handle)
{
    pthread_mutex_lock(&handle->lock);
    handle->in_flight++;
    pthread_mutex_unlock(&handle->lock);
}

void hth_exchange_rele(hearth *handle)
{
    pthread_mutex_lock(&handle->lock);
    if (--handle->in_flight == 0) {
        pthread_cond_broadcast(&handle->idle);
    }
    pthread_mutex_unlock(&handle->lock);
}

static hth_err call_get(hearth *h, hth_call **out)
{
    pthread_mutex_lock(&h->lock);
    hth_call *c = h->free_calls;
    if (c != NULL) {
        h->free_calls = c->next;
    }
    h->in_flight++;
    pthread_mutex_unlock(&h->lock);
    *out = c;
    return c != NULL ? HTH_OK : call_new(h, out);
}

static void call_put(hearth *h, hth_call *call)
{
    pthread_mutex_lock(&h->lock);
    if (call != NULL) {
        call->next = h->free_calls;
        h->free_calls = call;
    }
    if (--h->in_flight == 0) {
        pthread_cond_broadcast(&h->idle);
    }
    pthread_mutex_unlock(&h->lock);
}

void hth_exchange_fini(hearth *handle)
{
    while (handle->free_calls != NULL) {
        hth_call *c = handle->free_calls;
        handle->free_calls = c->next;
        call_free(c);
    }
}

hth_err hth_exchange_frame(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                           nng_msg **out)
{
    Hearth__Tensor **t = NULL;
    size_t n = 0;
    uint64_t section = 0;
    uint8_t *data;
    if (request->body_case == HEARTH__REQUEST__BODY_INFER) {
        t = request->infer->inputs;
        n = request->infer->n_inputs;
    } else if (inputs != NULL) {
        section = inputs->bytes;
    }
    HTH_TRY(hth_wire_message(&request->base, t, n, section, &handle->limits, out, &data));
    if (section > 0) {
        memcpy(data, inputs->data, section);
    }
    for (size_t i = 0; i < n; i++) {
        if (t[i]->region == 0 && t[i]->bytes > 0) {
            memcpy(data + t[i]->offset, inputs[i].data, t[i]->bytes);
        }
    }
    return HTH_OK;
}

// exchange_redial has a dialer of its own dial from now on: nng 1.5 gives an address up for good
// when the server closes the socket between connect and greeting, as one that stops may do. Whether
// it has cannot be seen, so who is only slow to connect has twice as long each time. A connection
// that comes up at this very moment may be lost, as any may.
static void exchange_redial(hearth *h)
{
    nng_dialer d;
    pthread_mutex_lock(&h->dialing);
    if (atomic_load(&h->pipes) == 0 && hth_now_ns() >= h->redial_ns &&
        nng_dialer_create(&d, h->socket, h->url) == 0) {
        nng_dialer_close(h->dialer);
        h->dialer = d;
        unsigned n = atomic_fetch_add(&h->redials, 1);
        h->redial_ns = hth_now_ns() + (EXCHANGE_REDIAL_MS * UINT64_C(1000000) << (n < 4 ? n : 4));
        nng_dialer_start(d, NNG_FLAG_NONBLOCK);
    }
    pthread_mutex_unlock(&h->dialing);
}

// exchange_send waits piecewise: a connection counts as up for a moment after it was lost, and then
// nothing takes the message before there is another. nng gives back what it has not sent.
static hth_err exchange_send(hearth *h, hth_call *call, nng_msg *msg, uint64_t timeout_ms)
{
    uint64_t left = timeout_ms, down = 0;
    bool up;
    int rv;
    do {
        up = atomic_load(&h->pipes) > 0;
        uint64_t wait = left < EXCHANGE_REDIAL_MS ? left : EXCHANGE_REDIAL_MS;
        left -= wait;
        nng_aio_set_msg(call->aio, msg);
        nng_aio_set_timeout(call->aio, (nng_duration)wait);
        nng_ctx_send(call->ctx, call->aio);
        nng_aio_wait(call->aio);
        rv = nng_aio_result(call->aio);
        down = up ? 0 : down + wait;
        if (rv == NNG_ETIMEDOUT && !up) {
            exchange_redial(h);
        }
    } while (rv == NNG_ETIMEDOUT && left > 0 && down < EXCHANGE_CONNECT_MS);
    if (rv == 0) {
        return HTH_OK;
    }
    nng_msg_free(msg);
    return up ? hth_wire_fail(rv, "cannot send to %s", h->url)
              : hth_fail(HTH_EIO, "no server answers at %s", h->url);
}

hth_err hth_exchange_lost(hearth *handle)
{
    return hth_fail(HTH_EIO, "the connection to %s was lost before the answer came", handle->url);
}

static hth_err exchange_received(hearth *h, int rv, nng_aio *aio, nng_msg **out)
{
    if (rv == NNG_ECONNRESET || rv == NNG_ECLOSED) {
        return hth_exchange_lost(h);
    }
    if (rv != 0) {
        return hth_wire_fail(rv, "no answer from %s", h->url);
    }
    *out = nng_aio_get_msg(aio);
    return HTH_OK;
}

// A receive that is waited for piecewise: nng has no timed wait that leaves the operation running.
typedef struct exchange_waiter {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool done;
} exchange_waiter;

static void exchange_wake(void *arg)
{
    exchange_waiter *w = arg;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

static bool exchange_wait(exchange_waiter *waiter, uint64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + ms * 1000000u;
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->done && pthread_cond_timedwait(&waiter->wake, &waiter->lock, &t) == 0) {
    }
    bool done = waiter->done;
    pthread_mutex_unlock(&waiter->lock);
    return done;
}

static void exchange_cancel(hearth *h, uint64_t call)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Cancel body = HEARTH__CANCEL__INIT;
    hth_call *c;
    nng_msg *msg;
    body.call = call;
    q.body_case = HEARTH__REQUEST__BODY_CANCEL;
    q.cancel = &body;
    if (call_get(h, &c) == HTH_OK && hth_exchange_frame(h, &q, NULL, &msg) == HTH_OK &&
        exchange_send(h, c, msg, EXCHANGE_CANCEL_MS) == HTH_OK) {
        nng_aio_set_timeout(c->aio, EXCHANGE_CANCEL_MS);
        nng_ctx_recv(c->ctx, c->aio);
        nng_aio_wait(c->aio);
        if (nng_aio_result(c->aio) == 0) {
            nng_msg_free(nng_aio_get_msg(c->aio));
        }
    }
    call_put(h, c);
}

hth_err hth_exchange_timed_out(hearth *handle, uint64_t call)
{
    exchange_cancel(handle, call);
    return hth_fail(HTH_ETIMEDOUT,
                    "no answer from %s within %" PRIu64 " ms; the request was canceled",
                    handle->url, handle->timeout_ms);
}

// exchange_ask_progress tells the watcher how far the call is; non-zero: it wants the call stopped.
static int exchange_ask_progress(hearth *h, uint64_t call, const hth_watch *watch)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Progress body = HEARTH__PROGRESS__INIT;
    hth_reply r;
    int stop = 0;
    body.call = call;
    q.body_case = HEARTH__REQUEST__BODY_PROGRESS;
    q.progress = &body;
    if (hth_exchange(h, &q, NULL, NULL, &r) != HTH_OK) {
        return 0; // the call itself will say what is wrong
    }
    if (r.head->body_case == HEARTH__REPLY__BODY_PROGRESSED && r.head->progressed->active) {
        stop = watch->fn(watch->ctx, r.head->progressed->what, r.head->progressed->done,
                         r.head->progressed->total);
    }
    hth_reply_fini(&r);
    return stop;
}

static hth_err exchange_watch(hearth *h, hth_call *c, uint64_t call, const hth_watch *watch,
                              nng_msg **out)
{
    exchange_waiter w = {.done = false};
    pthread_condattr_t attr;
    nng_aio *aio = NULL;
    bool canceled = false;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.wake, &attr);
    pthread_condattr_destroy(&attr);
    int rv = nng_aio_alloc(&aio, exchange_wake, &w);
    if (rv == 0) {
        nng_aio_set_timeout(aio, (nng_duration)h->timeout_ms);
        nng_ctx_recv(c->ctx, aio);
        while (!exchange_wait(&w, EXCHANGE_POLL_MS)) {
            if (!canceled && exchange_ask_progress(h, call, watch) != 0) {
                exchange_cancel(h, call);
                canceled = true;
            }
        }
        rv = nng_aio_result(aio);
    }
    hth_err err = exchange_received(h, rv, aio, out);
    nng_aio_free(aio);
    pthread_cond_destroy(&w.wake);
    pthread_mutex_destroy(&w.lock);
    return err;
}

static hth_err exchange_receive(hearth *h, hth_call *c, uint64_t call, const hth_watch *watch,
                                nng_msg **out)
{
    hth_err err;
    if (watch != NULL && watch->fn != NULL) {
        err = exchange_watch(h, c, call, watch, out);
    } else {
        nng_aio_set_timeout(c->aio, (nng_duration)h->timeout_ms);
        nng_ctx_recv(c->ctx, c->aio);
        nng_aio_wait(c->aio);
        err = exchange_received(h, nng_aio_result(c->aio), c->aio, out);
    }
    return err == HTH_ETIMEDOUT ? hth_exchange_timed_out(h, call) : err;
}

hth_err hth_reply_read(const hearth *handle, const uint8_t *at, size_t bytes, hth_reply *out)
{
    const hth_ipc_record *r = (const hth_ipc_record *)(const void *)at;
    HTH_TRY(hth_wire_check_record(r, bytes, &handle->limits));
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        if (r->tensor[i].region != HTH_IPC_RECORD_HERE) {
            return hth_fail(HTH_ECORRUPT, "output %" PRIu32 " of a reply lies outside of it", i);
        }
    }
    out->record = r;
    return HTH_OK;
}

// reply_error is the error that a reply is, with its sentence; HTH_OK: it is none.
static hth_err reply_error(const hth_reply *reply, const char **sentence)
{
    uint32_t code = HTH_OK;
    if (reply->record != NULL) {
        code = reply->record->err;
        *sentence = hth_ipc_record_text(reply->record, HTH_IPC_RECORD_DETAIL);
    } else if (reply->head->body_case == HEARTH__REPLY__BODY_ERROR) {
        code = reply->head->error->code > HTH_OK ? reply->head->error->code : HTH_N_ERR;
        *sentence = reply->head->error->sentence;
    }
    return code < HTH_N_ERR ? (hth_err)code : HTH_EIO;
}

hth_err hth_reply_check(hearth *handle, uint64_t call, hth_reply *reply)
{
    const char *sentence = NULL;
    hth_err err = reply_error(reply, &sentence);
    if (err != HTH_OK) {
        err = hth_fail(err, "%s", sentence != NULL ? sentence : "");
    } else if (reply->call != call) {
        err = hth_fail(HTH_ECORRUPT, "%s replied to another call", handle->url);
    }
    if (err != HTH_OK) {
        hth_reply_fini(reply);
    }
    return err;
}

hth_err hth_exchange_decode(hearth *handle, nng_msg *msg, uint64_t call, hth_reply *out)
{
    hth_err err = hth_wire_read_reply(nng_msg_body(msg), nng_msg_len(msg), &handle->limits,
                                      &out->head, &out->data, &out->data_bytes);
    out->msg = msg;
    out->call = err == HTH_OK ? out->head->call : 0;
    if (err != HTH_OK) {
        hth_reply_fini(out);
        return err;
    }
    return hth_reply_check(handle, call, out);
}

// ---- forks

static pthread_once_t forked_once = PTHREAD_ONCE_INIT;
static atomic_uint forked_count;

static void forked_child(void)
{
    atomic_fetch_add_explicit(&forked_count, 1, memory_order_relaxed);
}

static void forked_watch(void)
{
    pthread_atfork(NULL, NULL, forked_child);
}

void hth_forked_begin(void)
{
    pthread_once(&forked_once, forked_watch);
}

unsigned hth_forks(void)
{
    return atomic_load_explicit(&forked_count, memory_order_relaxed);
}

uint64_t hth_exchange_number(hearth *handle)
{
    return atomic_fetch_add(&handle->next_call, 1) + 1;
}

hth_err hth_exchange_check(const hearth *handle)
{
    return handle->forks == hth_forks()
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "this connection was opened before a fork and belongs to the "
                                      "parent process; open a new one");
}

hth_err hth_exchange(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                     const hth_watch *watch, hth_reply *out)
{
    hth_call *c;
    nng_msg *msg = NULL;
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_exchange_check(handle));
    request->call = request->call != 0 ? request->call : hth_exchange_number(handle);
    request->token = handle->token != NULL ? handle->token : request->token;
    if (handle->by_socket) {
        return hth_socket_exchange(handle, request, inputs, watch, out);
    }
    hth_err err = call_get(handle, &c);
    if (err != HTH_OK) {
        goto done;
    }
    HTH_GOTO(hth_exchange_frame(handle, request, inputs, &msg), done);
    HTH_GOTO(exchange_send(handle, c, msg, handle->timeout_ms), done);
    HTH_GOTO(exchange_receive(handle, c, request->call, watch, &msg), done);
    // what is fetched is the reply to the call that it was made for
    bool fetch = request->body_case == HEARTH__REQUEST__BODY_FETCH;
    err = hth_exchange_decode(handle, msg, fetch ? request->fetch->call : request->call, out);
done:
    call_put(handle, c); // hearth_close waits until here
    return err;
}

hth_err hth_exchange_call(hearth *handle, Hearth__Request *request, Hearth__Reply__BodyCase want,
                          const hth_watch *watch, hth_reply *reply)
{
    HTH_TRY(hth_exchange(handle, request, NULL, watch, reply));
    if (reply->head->body_case != want) {
        hth_reply_fini(reply);
        return hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", handle->url);
    }
    return HTH_OK;
}

void hth_reply_fini(hth_reply *reply)
{
    hth_wire_free_reply(reply->head);
    if (reply->msg != NULL) {
        nng_msg_free(reply->msg);
    }
    hth_free(reply->copy);
    memset(reply, 0, sizeof *reply);
}
