// SPDX-License-Identifier: Apache-2.0
// A call that was not answered in time leaves its stream with an answer on the way: it is closed.
// One that lies in the list is looked at before it is used: what can be read from it then is its
// end.
#include "client/socket_exchange.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "client/wire.h"
#include "client/socket.h"

#include <string.h>
#include <time.h>

#define CALL_CONNECT_NS 10000000000u // to connect, TLS included
#define CALL_POLL_NS    100000000u   // from one look at a call's progress to the next
#define CALL_AGAIN_NS   3000000000u  // how long a server that is gone may take to come back
#define CALL_PAUSE_NS   50000000
#define CALL_CANCEL_NS  1000000000u
#define CALL_ID         0x80000000u // of every request's id
#define CALL_REQ        0x30        // the protocols of SP
#define CALL_REP        0x31

struct hth_socket_call {
    hth_socket *stream;
    bool local;  // ipc: a byte more in front of a message
    uint32_t id; // of the last request
    hth_socket_call *next;
};

static uint64_t call_after(uint64_t ns)
{
    return hth_now_ns() + ns;
}

// ---- messages

// call_greet says that we are a REQ, to hear that they are a REP.
static hth_err call_greet(hth_socket_call *call, uint64_t until_ns)
{
    const uint8_t ours[8] = {0, 'S', 'P', 0, 0, CALL_REQ, 0, 0};
    uint8_t theirs[8] = {0};
    HTH_TRY(hth_socket_write(call->stream, ours, sizeof ours, until_ns));
    hth_err err = hth_socket_read(call->stream, theirs, sizeof theirs, until_ns);
    if (err == HTH_ETIMEDOUT) {
        return hth_fail(err, "the program there does not respond like hearthd");
    }
    HTH_TRY(err);
    return memcmp(theirs, ours, 5) == 0 && theirs[5] == CALL_REP
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT, "the program there is not hearthd");
}

static void call_put(uint8_t *at, uint64_t v, int bytes) // big-endian
{
    for (int i = bytes - 1; i >= 0; i--) {
        at[i] = (uint8_t)v;
        v >>= 8;
    }
}

static uint64_t call_get(const uint8_t *at, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) {
        v = v << 8 | at[i];
    }
    return v;
}

// call_send sends a request, taking `msg`.
static hth_err call_send(hth_socket_call *call, nng_msg *msg, uint64_t until_ns)
{
    uint8_t head[13];
    size_t n = nng_msg_len(msg), at = 0;
    call->id = (call->id + 1) | CALL_ID;
    if (call->local) {
        head[at++] = 1;
    }
    call_put(head + at, n + HTH_WIRE_ID_BYTES, 8);
    call_put(head + at + 8, call->id, HTH_WIRE_ID_BYTES);
    hth_err err = hth_socket_head(call->stream, head, at + 8 + HTH_WIRE_ID_BYTES, until_ns);
    if (err == HTH_OK) {
        err = hth_socket_write(call->stream, nng_msg_body(msg), n, until_ns);
    }
    nng_msg_free(msg);
    return err;
}

// call_receive reads the next message; *id: what it answers.
static hth_err call_receive(const hearth *h, hth_socket_call *call, uint64_t until_ns, uint32_t *id,
                            nng_msg **out)
{
    uint8_t head[9];
    size_t at = call->local ? 1 : 0;
    HTH_TRY(hth_socket_read(call->stream, head, at + 8, until_ns));
    uint64_t n = call_get(head + at, 8);
    if (n < HTH_WIRE_ID_BYTES || n > h->limits.message_bytes + HTH_WIRE_ID_BYTES) {
        return hth_fail(HTH_ECORRUPT, "an answer of %llu bytes", (unsigned long long)n);
    }
    if (nng_msg_alloc(out, n) != 0) {
        return hth_no_memory("an answer of %llu bytes", (unsigned long long)n);
    }
    hth_err err = hth_socket_read(call->stream, nng_msg_body(*out), n, until_ns);
    if (err != HTH_OK) {
        nng_msg_free(*out);
        *out = NULL;
        return err;
    }
    *id = (uint32_t)call_get(nng_msg_body(*out), HTH_WIRE_ID_BYTES);
    nng_msg_trim(*out, HTH_WIRE_ID_BYTES);
    return HTH_OK;
}

// ---- streams

static void call_free(hth_socket_call *call)
{
    if (call != NULL) {
        hth_socket_close(call->stream);
        hth_free(call);
    }
}

static hth_err call_new(hearth *h, hth_socket_call **out)
{
    uint64_t until_ns = call_after(CALL_CONNECT_NS);
    hth_socket_call *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_no_memory("a connection");
    }
    p->local = strncmp(h->url, "ipc://", 6) == 0;
    hth_err err = hth_socket_open(h->url, h->ca_file, until_ns, &p->stream);
    if (err == HTH_OK) {
        err = call_greet(p, until_ns);
    }
    if (err != HTH_OK) {
        call_free(p);
        bool absent = err == HTH_EIO || err == HTH_ETIMEDOUT;
        return hth_err_prefix(err, "%s%s", absent ? "no server at " : "", h->url);
    }
    *out = p;
    return HTH_OK;
}

// call_again connects to a server that was there.
static hth_err call_again(hearth *h, hth_socket_call **out)
{
    uint64_t until_ns = call_after(CALL_AGAIN_NS);
    hth_err err;
    while ((err = call_new(h, out)) == HTH_EIO && hth_now_ns() < until_ns) {
        nanosleep(&(struct timespec){.tv_nsec = CALL_PAUSE_NS}, NULL);
    }
    return err;
}

// call_take gives a stream that lies there, or a new one. The call counts from here on.
static hth_err call_take(hearth *h, hth_socket_call **out)
{
    hth_socket_call *p;
    pthread_mutex_lock(&h->lock);
    h->in_flight++;
    pthread_mutex_unlock(&h->lock);
    for (;;) {
        pthread_mutex_lock(&h->lock);
        p = h->socket_free;
        h->socket_free = p != NULL ? p->next : NULL;
        pthread_mutex_unlock(&h->lock);
        if (p == NULL) {
            return call_again(h, out);
        }
        if (!hth_socket_wait(p->stream, 0)) {
            *out = p;
            return HTH_OK;
        }
        call_free(p);
    }
}

// call_leave ends the call; a stream that is NULL is not there any more.
static void call_leave(hearth *h, hth_socket_call *call)
{
    pthread_mutex_lock(&h->lock);
    if (call != NULL) {
        call->next = h->socket_free;
        h->socket_free = call;
    }
    if (--h->in_flight == 0) {
        pthread_cond_broadcast(&h->idle);
    }
    pthread_mutex_unlock(&h->lock);
}

hth_err hth_socket_exchange_open(hearth *handle)
{
    hth_socket_call *p;
    HTH_TRY(call_new(handle, &p));
    handle->socket_free = p;
    return HTH_OK;
}

void hth_socket_exchange_fini(hearth *handle)
{
    while (handle->socket_free != NULL) {
        hth_socket_call *p = handle->socket_free;
        handle->socket_free = p->next;
        call_free(p);
    }
}

// ---- a call

typedef struct call_call {
    hearth *h;
    hth_socket_call *p;
    uint64_t call, until_ns;
    uint32_t id;
    nng_msg *answer; // that came while something else was waited for
} call_call;

// call_ask sends a request about the call, and waits for its answer until `until_ns`.
static hth_err call_ask(call_call *call, Hearth__Request *request, uint64_t until_ns, nng_msg **out)
{
    nng_msg *msg = NULL;
    request->call = hth_exchange_number(call->h);
    request->token = call->h->token != NULL ? call->h->token : request->token;
    HTH_TRY(hth_exchange_frame(call->h, request, NULL, &msg));
    HTH_TRY(call_send(call->p, msg, until_ns));
    for (uint32_t asked = call->p->id, id;;) {
        HTH_TRY(call_receive(call->h, call->p, until_ns, &id, &msg));
        if (id == asked) {
            *out = msg;
            return HTH_OK;
        }
        if (id == call->id && call->answer == NULL) {
            call->answer = msg;
        } else {
            nng_msg_free(msg);
        }
    }
}

static void call_cancel(call_call *call)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Cancel body = HEARTH__CANCEL__INIT;
    nng_msg *msg = NULL;
    body.call = call->call;
    q.body_case = HEARTH__REQUEST__BODY_CANCEL;
    q.cancel = &body;
    if (call_ask(call, &q, call_after(CALL_CANCEL_NS), &msg) == HTH_OK) {
        nng_msg_free(msg);
    }
}

// call_progress tells the watcher how far the call is; *stop: it wants it stopped.
static hth_err call_progress(call_call *call, const hth_watch *watch, bool *stop)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Progress body = HEARTH__PROGRESS__INIT;
    hth_reply r = {.msg = NULL};
    nng_msg *msg = NULL;
    body.call = call->call;
    q.body_case = HEARTH__REQUEST__BODY_PROGRESS;
    q.progress = &body;
    HTH_TRY(call_ask(call, &q, call->until_ns, &msg));
    if (hth_exchange_decode(call->h, msg, q.call, &r) != HTH_OK) {
        return HTH_OK; // the call itself will say what is wrong
    }
    if (r.head->body_case == HEARTH__REPLY__BODY_PROGRESSED && r.head->progressed->active) {
        *stop = watch->fn(watch->ctx, r.head->progressed->what, r.head->progressed->done,
                          r.head->progressed->total) != 0;
    }
    hth_reply_fini(&r);
    return HTH_OK;
}

// call_wait waits for the call's answer, which is call->answer then.
static hth_err call_wait(call_call *call, const hth_watch *watch)
{
    bool watched = watch != NULL && watch->fn != NULL, stop = false, canceled = false;
    bool looks = watched || (watch != NULL && watch->stop != NULL);
    while (call->answer == NULL) {
        uint64_t look_ns = call_after(CALL_POLL_NS);
        uint32_t id;
        nng_msg *msg;
        if (looks && !canceled && look_ns < call->until_ns &&
            !hth_socket_wait(call->p->stream, look_ns)) {
            HTH_TRY(watched ? call_progress(call, watch, &stop) : HTH_OK);
            if (stop || (watch->stop != NULL && atomic_load(watch->stop))) {
                call_cancel(call);
                canceled = true;
            }
            continue;
        }
        HTH_TRY(call_receive(call->h, call->p, call->until_ns, &id, &msg));
        if (id == call->id) {
            call->answer = msg;
        } else {
            nng_msg_free(msg);
        }
    }
    return HTH_OK;
}

static hth_err call_failed(call_call *call, hth_err err, bool sent)
{
    if (err == HTH_ETIMEDOUT) {
        if (sent) {
            call_cancel(call);
        }
        return hth_fail(HTH_ETIMEDOUT, "no answer from %s within %llu ms; the request was canceled",
                        call->h->url, (unsigned long long)call->h->timeout_ms);
    }
    return err == HTH_EIO ? hth_exchange_lost(call->h) : err;
}

hth_err hth_socket_exchange(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                            const hth_watch *watch, hth_reply *out)
{
    // what is fetched is the reply to the call that it was made for
    uint64_t answers =
        request->body_case == HEARTH__REQUEST__BODY_FETCH ? request->fetch->call : request->call;
    call_call c = {
        .h = handle, .call = request->call, .until_ns = call_after(handle->timeout_ms * 1000000u)};
    nng_msg *msg = NULL;
    hth_err err = hth_exchange_frame(handle, request, inputs, &msg);
    if (err != HTH_OK) {
        return err;
    }
    if ((err = call_take(handle, &c.p)) != HTH_OK) {
        nng_msg_free(msg);
        call_leave(handle, NULL);
        return err;
    }
    err = call_send(c.p, msg, c.until_ns);
    bool sent = err == HTH_OK;
    c.id = c.p->id;
    err = sent ? call_wait(&c, watch) : err;
    if (err == HTH_OK) {
        err = hth_exchange_decode(handle, c.answer, answers, out);
        call_leave(handle, c.p);
        return err;
    }
    err = call_failed(&c, err, sent);
    if (c.answer != NULL) {
        nng_msg_free(c.answer);
    }
    call_free(c.p);
    call_leave(handle, NULL);
    return err;
}
