// SPDX-License-Identifier: Apache-2.0
// A call that was not answered in time leaves its stream with an answer on the way: it is closed.
// One that lies in the list is looked at before it is used: what can be read from it then is its
// end.
#include "client/plain.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "client/wire.h"
#include "client/socket.h"

#include <string.h>
#include <time.h>

#define PLAIN_CONNECT_NS 10000000000u // to connect, TLS included
#define PLAIN_POLL_NS    100000000u   // from one look at a call's progress to the next
#define PLAIN_AGAIN_NS   3000000000u  // how long a server that is gone may take to come back
#define PLAIN_PAUSE_NS   50000000
#define PLAIN_CANCEL_NS  1000000000u
#define PLAIN_ID         0x80000000u // of every request's id
#define PLAIN_REQ        0x30        // the protocols of SP
#define PLAIN_REP        0x31

struct hth_plain {
    hth_socket *stream;
    bool local;  // ipc: a byte more in front of a message
    uint32_t id; // of the last request
    hth_plain *next;
};

static uint64_t plain_after(uint64_t ns)
{
    return hth_now_ns() + ns;
}

// ---- messages

// plain_greet says that we are a REQ, to hear that they are a REP.
static hth_err plain_greet(hth_plain *plain, uint64_t until_ns)
{
    const uint8_t ours[8] = {0, 'S', 'P', 0, 0, PLAIN_REQ, 0, 0};
    uint8_t theirs[8] = {0};
    HTH_TRY(hth_socket_write(plain->stream, ours, sizeof ours, until_ns));
    hth_err err = hth_socket_read(plain->stream, theirs, sizeof theirs, until_ns);
    if (err == HTH_ETIMEDOUT) {
        return hth_fail(err, "the program there does not respond like hearthd");
    }
    HTH_TRY(err);
    return memcmp(theirs, ours, 5) == 0 && theirs[5] == PLAIN_REP
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT, "the program there is not hearthd");
}

static void plain_put(uint8_t *at, uint64_t v, int bytes) // big-endian
{
    for (int i = bytes - 1; i >= 0; i--) {
        at[i] = (uint8_t)v;
        v >>= 8;
    }
}

static uint64_t plain_get(const uint8_t *at, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) {
        v = v << 8 | at[i];
    }
    return v;
}

// plain_send sends a request, taking `msg`.
static hth_err plain_send(hth_plain *plain, nng_msg *msg, uint64_t until_ns)
{
    uint8_t head[13];
    size_t n = nng_msg_len(msg), at = 0;
    plain->id = (plain->id + 1) | PLAIN_ID;
    if (plain->local) {
        head[at++] = 1;
    }
    plain_put(head + at, n + HTH_WIRE_ID_BYTES, 8);
    plain_put(head + at + 8, plain->id, HTH_WIRE_ID_BYTES);
    hth_err err = hth_socket_head(plain->stream, head, at + 8 + HTH_WIRE_ID_BYTES, until_ns);
    if (err == HTH_OK) {
        err = hth_socket_write(plain->stream, nng_msg_body(msg), n, until_ns);
    }
    nng_msg_free(msg);
    return err;
}

// plain_receive reads the next message; *id: what it answers.
static hth_err plain_receive(const hearth *h, hth_plain *plain, uint64_t until_ns, uint32_t *id,
                             nng_msg **out)
{
    uint8_t head[9];
    size_t at = plain->local ? 1 : 0;
    HTH_TRY(hth_socket_read(plain->stream, head, at + 8, until_ns));
    uint64_t n = plain_get(head + at, 8);
    if (n < HTH_WIRE_ID_BYTES || n > h->limits.message_bytes + HTH_WIRE_ID_BYTES) {
        return hth_fail(HTH_ECORRUPT, "an answer of %llu bytes", (unsigned long long)n);
    }
    if (nng_msg_alloc(out, n) != 0) {
        return hth_fail(HTH_ENOMEM, "no memory for an answer of %llu bytes", (unsigned long long)n);
    }
    hth_err err = hth_socket_read(plain->stream, nng_msg_body(*out), n, until_ns);
    if (err != HTH_OK) {
        nng_msg_free(*out);
        *out = NULL;
        return err;
    }
    *id = (uint32_t)plain_get(nng_msg_body(*out), HTH_WIRE_ID_BYTES);
    nng_msg_trim(*out, HTH_WIRE_ID_BYTES);
    return HTH_OK;
}

// ---- streams

static void plain_free(hth_plain *plain)
{
    if (plain != NULL) {
        hth_socket_close(plain->stream);
        hth_free(plain);
    }
}

static hth_err plain_new(hearth *h, hth_plain **out)
{
    uint64_t until_ns = plain_after(PLAIN_CONNECT_NS);
    hth_plain *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a connection");
    }
    p->local = strncmp(h->url, "ipc://", 6) == 0;
    hth_err err = hth_socket_open(h->url, h->ca_file, until_ns, &p->stream);
    err = err == HTH_OK ? plain_greet(p, until_ns) : err;
    if (err != HTH_OK) {
        plain_free(p);
        bool absent = err == HTH_EIO || err == HTH_ETIMEDOUT;
        return hth_err_prefix(err, "%s%s", absent ? "no server at " : "", h->url);
    }
    *out = p;
    return HTH_OK;
}

// plain_again connects to a server that was there.
static hth_err plain_again(hearth *h, hth_plain **out)
{
    uint64_t until_ns = plain_after(PLAIN_AGAIN_NS);
    hth_err err;
    while ((err = plain_new(h, out)) == HTH_EIO && hth_now_ns() < until_ns) {
        nanosleep(&(struct timespec){.tv_nsec = PLAIN_PAUSE_NS}, NULL);
    }
    return err;
}

// plain_take gives a stream that lies there, or a new one. The call counts from here on.
static hth_err plain_take(hearth *h, hth_plain **out)
{
    hth_plain *p;
    pthread_mutex_lock(&h->lock);
    h->in_flight++;
    pthread_mutex_unlock(&h->lock);
    for (;;) {
        pthread_mutex_lock(&h->lock);
        p = h->plain_free;
        h->plain_free = p != NULL ? p->next : NULL;
        pthread_mutex_unlock(&h->lock);
        if (p == NULL) {
            return plain_again(h, out);
        }
        if (!hth_socket_wait(p->stream, 0)) {
            *out = p;
            return HTH_OK;
        }
        plain_free(p);
    }
}

// plain_leave ends the call; a stream that is NULL is not there any more.
static void plain_leave(hearth *h, hth_plain *plain)
{
    pthread_mutex_lock(&h->lock);
    if (plain != NULL) {
        plain->next = h->plain_free;
        h->plain_free = plain;
    }
    if (--h->in_flight == 0) {
        pthread_cond_broadcast(&h->idle);
    }
    pthread_mutex_unlock(&h->lock);
}

hth_err hth_plain_open(hearth *handle)
{
    hth_plain *p;
    HTH_TRY(plain_new(handle, &p));
    handle->plain_free = p;
    return HTH_OK;
}

void hth_plain_fini(hearth *handle)
{
    while (handle->plain_free != NULL) {
        hth_plain *p = handle->plain_free;
        handle->plain_free = p->next;
        plain_free(p);
    }
}

// ---- a call

typedef struct plain_call {
    hearth *h;
    hth_plain *p;
    uint64_t call, until_ns;
    uint32_t id;
    nng_msg *answer; // that came while something else was waited for
} plain_call;

// plain_ask sends a request about the call, and waits for its answer until `until_ns`.
static hth_err plain_ask(plain_call *call, Hearth__Request *request, uint64_t until_ns,
                         nng_msg **out)
{
    nng_msg *msg = NULL;
    request->call = atomic_fetch_add(&call->h->next_call, 1) + 1;
    request->token = call->h->token != NULL ? call->h->token : request->token;
    HTH_TRY(hth_exchange_frame(call->h, request, NULL, &msg));
    HTH_TRY(plain_send(call->p, msg, until_ns));
    for (uint32_t asked = call->p->id, id;;) {
        HTH_TRY(plain_receive(call->h, call->p, until_ns, &id, &msg));
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

static void plain_cancel(plain_call *call)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Cancel body = HEARTH__CANCEL__INIT;
    nng_msg *msg = NULL;
    body.call = call->call;
    q.body_case = HEARTH__REQUEST__BODY_CANCEL;
    q.cancel = &body;
    if (plain_ask(call, &q, plain_after(PLAIN_CANCEL_NS), &msg) == HTH_OK) {
        nng_msg_free(msg);
    }
}

// plain_progress tells the watcher how far the call is; *stop: it wants it stopped.
static hth_err plain_progress(plain_call *call, const hth_watch *watch, bool *stop)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Progress body = HEARTH__PROGRESS__INIT;
    hth_reply r = {.msg = NULL};
    nng_msg *msg = NULL;
    body.call = call->call;
    q.body_case = HEARTH__REQUEST__BODY_PROGRESS;
    q.progress = &body;
    HTH_TRY(plain_ask(call, &q, call->until_ns, &msg));
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

// plain_wait waits for the call's answer, which is call->answer then.
static hth_err plain_wait(plain_call *call, const hth_watch *watch)
{
    bool watched = watch != NULL && watch->fn != NULL, stop = false, canceled = false;
    while (call->answer == NULL) {
        uint64_t look_ns = plain_after(PLAIN_POLL_NS);
        uint32_t id;
        nng_msg *msg;
        if (watched && !canceled && look_ns < call->until_ns &&
            !hth_socket_wait(call->p->stream, look_ns)) {
            HTH_TRY(plain_progress(call, watch, &stop));
            if (stop) {
                plain_cancel(call);
                canceled = true;
            }
            continue;
        }
        HTH_TRY(plain_receive(call->h, call->p, call->until_ns, &id, &msg));
        if (id == call->id) {
            call->answer = msg;
        } else {
            nng_msg_free(msg);
        }
    }
    return HTH_OK;
}

static hth_err plain_failed(plain_call *call, hth_err err, bool sent)
{
    if (err == HTH_ETIMEDOUT) {
        if (sent) {
            plain_cancel(call);
        }
        return hth_fail(HTH_ETIMEDOUT, "no answer from %s within %llu ms; the request was canceled",
                        call->h->url, (unsigned long long)call->h->timeout_ms);
    }
    return err == HTH_EIO ? hth_exchange_lost(call->h) : err;
}

hth_err hth_plain_exchange(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                           const hth_watch *watch, hth_reply *out)
{
    // what is fetched is the reply to the call that it was made for
    uint64_t answers =
        request->body_case == HEARTH__REQUEST__BODY_FETCH ? request->fetch->call : request->call;
    plain_call c = {
        .h = handle, .call = request->call, .until_ns = plain_after(handle->timeout_ms * 1000000u)};
    nng_msg *msg = NULL;
    hth_err err = hth_exchange_frame(handle, request, inputs, &msg);
    if (err != HTH_OK) {
        return err;
    }
    if ((err = plain_take(handle, &c.p)) != HTH_OK) {
        nng_msg_free(msg);
        plain_leave(handle, NULL);
        return err;
    }
    err = plain_send(c.p, msg, c.until_ns);
    bool sent = err == HTH_OK;
    c.id = c.p->id;
    err = sent ? plain_wait(&c, watch) : err;
    if (err == HTH_OK) {
        err = hth_exchange_decode(handle, c.answer, answers, out);
        plain_leave(handle, c.p);
        return err;
    }
    err = plain_failed(&c, err, sent);
    if (c.answer != NULL) {
        nng_msg_free(c.answer);
    }
    plain_free(c.p);
    plain_leave(handle, NULL);
    return err;
}
