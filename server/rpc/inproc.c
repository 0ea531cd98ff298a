// SPDX-License-Identifier: Apache-2.0
// A context of the socket takes one request at a time: RECEIVING -> (callback) the dispatcher's ->
// (answer) SENDING -> (callback) RECEIVING.
#include "server/rpc/inproc.h"

#include "base/hash.h"
#include "client/wire.h"

#include <nng/protocol/reqrep0/rep.h>

#include <pthread.h>
#include <stdatomic.h>

#define INPROC_CONTEXTS 64
#define INPROC_WATCHES  (INPROC_CONTEXTS / 2) // of them, that may watch training jobs

typedef struct inproc_context {
    hth_inproc *i;
    nng_ctx ctx;
    nng_aio *aio;
    bool sending; // what the aio is doing
    bool watches; // a training job: among n_watches
} inproc_context;

// A client: a pipe of the socket.
typedef struct inproc_client {
    uint32_t pipe;
    hth_conn *conn;
    UT_hash_handle hh;
} inproc_client;

struct hth_inproc {
    hth_dispatch *dispatch;
    hth_conns *conns;
    hth_rings *rings;
    nng_socket socket;
    bool socket_open, halted;
    pthread_mutex_t lock; // guards `clients`
    inproc_client *clients;
    int n_contexts;
    atomic_int n_watches;
    inproc_context context[INPROC_CONTEXTS];
};

// ---- clients

static void client_add(hth_inproc *inproc, nng_pipe p)
{
    static const hth_conn_who who = {.where = HTH_CONN_EMBEDDED};
    inproc_client *c = hth_calloc(1, sizeof *c);
    bool added = c != NULL && hth_conn_open(inproc->conns, &who, &c->conn) == HTH_OK;
    if (added) {
        c->pipe = (uint32_t)nng_pipe_id(p);
        pthread_mutex_lock(&inproc->lock);
        HASH_ADD(hh, inproc->clients, pipe, sizeof c->pipe, c);
        added = HTH_HASH_ADDED(c);
        pthread_mutex_unlock(&inproc->lock);
    }
    if (!added) {
        if (c != NULL && c->conn != NULL) {
            hth_conn_close(c->conn);
            hth_conn_rele(c->conn);
        }
        hth_free(c);
        nng_pipe_close(p);
    }
}

// client_find is under the lock.
static inproc_client *client_find(hth_inproc *inproc, nng_pipe p)
{
    uint32_t id = (uint32_t)nng_pipe_id(p);
    inproc_client *c;
    HASH_FIND(hh, inproc->clients, &id, sizeof id, c);
    return c;
}

static void client_remove(hth_inproc *inproc, nng_pipe p)
{
    pthread_mutex_lock(&inproc->lock);
    inproc_client *c = client_find(inproc, p);
    if (c != NULL) {
        HASH_DELETE(hh, inproc->clients, c);
    }
    pthread_mutex_unlock(&inproc->lock);
    if (c != NULL) {
        hth_conn_close(c->conn);
        hth_dispatch_gone(inproc->dispatch, c->conn);
        hth_rings_gone(inproc->rings, c->conn);
        hth_conn_rele(c->conn);
        hth_free(c);
    }
}

static void inproc_pipe_changed(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    if (ev == NNG_PIPE_EV_ADD_PRE) {
        client_add(arg, p);
    } else {
        client_remove(arg, p);
    }
}

static hth_conn *client_conn(hth_inproc *inproc, nng_pipe p)
{
    pthread_mutex_lock(&inproc->lock);
    const inproc_client *c = client_find(inproc, p);
    hth_conn *conn = c != NULL ? c->conn : NULL;
    if (conn != NULL) {
        hth_conn_hold(conn);
    }
    pthread_mutex_unlock(&inproc->lock);
    return conn;
}

// ---- requests

static void inproc_receive(inproc_context *context)
{
    context->sending = false;
    nng_ctx_recv(context->ctx, context->aio);
}

// reply NULL: there was no memory for it, and a client waits.
static void inproc_answer(void *back, nng_msg *reply)
{
    inproc_context *c = back;
    atomic_fetch_sub(&c->i->n_watches, c->watches);
    c->watches = false;
    if (reply == NULL) {
        reply = hth_wire_error(HTH_ENOMEM, "no memory for the answer");
    }
    if (reply == NULL) {
        inproc_receive(c);
        return;
    }
    c->sending = true;
    nng_aio_set_msg(c->aio, reply);
    nng_ctx_send(c->ctx, c->aio);
}

static void inproc_free(void *msg)
{
    nng_msg_free(msg);
}

// inproc_watch leaves half of the contexts to other requests.
static void inproc_watch(inproc_context *context, hth_rpc_slot *slot)
{
    context->watches = atomic_fetch_add(&context->i->n_watches, 1) < INPROC_WATCHES;
    if (context->watches) {
        hth_rpc_slot_run(slot);
        return;
    }
    atomic_fetch_sub(&context->i->n_watches, 1);
    hth_rpc_slot_fail(slot, HTH_EBUSY, "too many training jobs are watched in this process");
}

static void inproc_take(inproc_context *context, nng_msg *msg)
{
    static const hth_front front = {.answer = inproc_answer};
    hth_conn *conn = client_conn(context->i, nng_msg_get_pipe(msg));
    const hth_message m = {nng_msg_body(msg), nng_msg_len(msg), msg, inproc_free};
    hth_rpc_slot *s = NULL;
    if (conn == NULL) { // gone
        nng_msg_free(msg);
        inproc_receive(context);
        return;
    }
    if (hth_dispatch_take(context->i->dispatch, conn, &m, &front, context, &s) != HTH_OK) {
        inproc_answer(context, NULL);
    } else if (s != NULL && hth_rpc_slot_get_kind(s) == HTH_RPC_SLOT_WATCH) {
        inproc_watch(context, s);
    } else if (s != NULL) {
        hth_rpc_slot_run(s);
    }
    hth_conn_rele(conn);
}

static void inproc_ready(void *arg)
{
    inproc_context *c = arg;
    int rv = nng_aio_result(c->aio);
    bool closed = rv == NNG_ECLOSED || rv == NNG_ECANCELED;
    if (!c->sending && rv == 0) {
        inproc_take(c, nng_aio_get_msg(c->aio));
        return;
    }
    if (c->sending && rv != 0) {
        nng_msg_free(nng_aio_get_msg(c->aio));
    }
    if (!closed) {
        inproc_receive(c);
    }
}

// ---- lifetime

static hth_err inproc_start(hth_inproc *inproc)
{
    int rv = nng_rep0_open(&inproc->socket);
    if (rv != 0) {
        return hth_wire_fail(rv, "cannot open a socket");
    }
    inproc->socket_open = true;
    rv = nng_socket_set_size(inproc->socket, NNG_OPT_RECVMAXSZ, 0);
    rv = rv == 0 ? nng_pipe_notify(inproc->socket, NNG_PIPE_EV_ADD_PRE, inproc_pipe_changed, inproc)
                 : rv;
    rv = rv == 0
             ? nng_pipe_notify(inproc->socket, NNG_PIPE_EV_REM_POST, inproc_pipe_changed, inproc)
             : rv;
    for (int n = 0; n < INPROC_CONTEXTS && rv == 0; n++) {
        inproc_context *c = &inproc->context[n];
        c->i = inproc;
        rv = nng_aio_alloc(&c->aio, inproc_ready, c);
        if (rv == 0 && (rv = nng_ctx_open(&c->ctx, inproc->socket)) != 0) {
            nng_aio_free(c->aio);
        }
        inproc->n_contexts += rv == 0;
    }
    if (rv != 0) {
        return hth_wire_fail(rv, "cannot set up a socket");
    }
    for (int n = 0; n < inproc->n_contexts; n++) {
        inproc_receive(&inproc->context[n]);
    }
    return HTH_OK;
}

hth_err hth_inproc_open(hth_dispatch *dispatch, hth_conns *conns, hth_rings *rings,
                        hth_inproc **out)
{
    hth_inproc *i = hth_calloc(1, sizeof *i);
    *out = NULL;
    if (i == NULL) {
        return hth_no_memory("a socket");
    }
    i->dispatch = dispatch;
    i->conns = conns;
    i->rings = rings;
    pthread_mutex_init(&i->lock, NULL);
    hth_err err = inproc_start(i);
    if (err != HTH_OK) {
        hth_inproc_halt(i);
        hth_inproc_close(i);
        return err;
    }
    *out = i;
    return HTH_OK;
}

hth_err hth_inproc_listen(hth_inproc *inproc, const char *url)
{
    int rv = nng_listen(inproc->socket, url, NULL, 0);
    return rv == 0 ? HTH_OK : hth_wire_fail(rv, "cannot listen on %s", url);
}

void hth_inproc_halt(hth_inproc *inproc)
{
    for (int n = 0; n < inproc->n_contexts; n++) {
        nng_aio_stop(
            inproc->context[n].aio); // waits for the callback, which does not receive again
    }
    for (int n = 0; n < inproc->n_contexts; n++) {
        nng_ctx_close(inproc->context[n].ctx);
    }
    inproc->halted = true;
}

void hth_inproc_close(hth_inproc *inproc)
{
    if (inproc == NULL) {
        return;
    }
    if (!inproc->halted) {
        hth_inproc_halt(inproc);
    }
    if (inproc->socket_open) {
        nng_close(inproc->socket);
    }
    for (int n = 0; n < inproc->n_contexts; n++) {
        nng_aio_free(inproc->context[n].aio);
    }
    pthread_mutex_destroy(&inproc->lock);
    hth_free(inproc);
}
