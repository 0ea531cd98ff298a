// SPDX-License-Identifier: Apache-2.0
// From a message to a request in progress, to its reply. A request that may not start yet waits in
// its connection's list, and the connection in its loop's: whenever a place becomes free, the loop
// goes round the connections, one request each, and passes over peers that have their share.
#include "server/rpc/rpc_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "client/wire.h"

#include <string.h>

// Of a connection's requests, those that may be long: 1 / REQUEST_LONG. The others are room for
// questions about them.
#define REQUEST_LONG 2

size_t hth_rpc_route(const uint8_t *message, size_t have)
{
    for (size_t n = 0; n + 4 <= have; n += 4) {
        if (n == HTH_RPC_ROUTE) {
            return SIZE_MAX;
        }
        if ((message[n] & 0x80) != 0) {
            return n + 4;
        }
    }
    return 0;
}

// ---- replies

static size_t request_head(const hth_rpc_conn *conn, const uint8_t *route, size_t n_route,
                           const nng_msg *msg, uint8_t *head)
{
    size_t n = hth_rpc_head(conn, n_route + nng_msg_len(msg), head);
    memcpy(head + n, route, n_route);
    return n + n_route;
}

static void request_answer(void *back, nng_msg *reply)
{
    hth_rpc_request *q = back;
    hth_rpc_conn *c = q->c;
    bool on_loop = hth_rpc_on_loop(c->r);
    uint8_t head[HTH_RPC_HEAD + HTH_RPC_ROUTE];
    hth_rpc_out *o = NULL;
    if (reply != NULL) {
        size_t n = request_head(c, q->route, q->n_route, reply, head);
        o = hth_rpc_out_new(c, head, n, reply);
    }
    if (o != NULL) {
        uint64_t bytes = nng_msg_len(reply);
        if (bytes > q->reply_bytes) {
            hth_allowance_add(c->allowance, bytes - q->reply_bytes);
        } else {
            hth_allowance_give(c->allowance, q->reply_bytes - bytes);
        }
        o->charged = bytes;
    } else {
        hth_allowance_give(c->allowance, q->reply_bytes);
        if (reply != NULL) {
            nng_msg_free(reply);
        }
    }
    hth_allowance_give(c->allowance, q->message_bytes);
    if (q->counted) {
        hth_allowance_answered(c->allowance, q->kind);
        atomic_fetch_sub(&c->n_long, q->kind == HTH_ALLOWANCE_LONG);
    }
    atomic_fetch_sub(&c->n_watches, q->watches);
    hth_free(q);
    if (o != NULL) {
        hth_rpc_out_add(c, o, !on_loop); // the loop sends many together
    } else {
        hth_rpc_out_fail(c); // no memory: else its client would wait
    }
    atomic_fetch_sub(&c->n_pending, 1);
    if (atomic_load(&c->paused) && !on_loop) {
        hth_rpc_touch(c);
    }
    hth_rpc_conn_rele(c);
}

static hth_err request_reserve(void *back, uint64_t bytes)
{
    hth_rpc_request *q = back;
    HTH_TRY(hth_allowance_charge(q->c->allowance, bytes));
    q->reply_bytes += bytes;
    return HTH_OK;
}

// request_error answers the request of which these are the words.
static void request_error(hth_rpc_conn *conn, const uint8_t *route, size_t n_route, hth_err err,
                          const char *sentence)
{
    uint8_t head[HTH_RPC_HEAD + HTH_RPC_ROUTE];
    nng_msg *msg = hth_wire_error(err, sentence);
    hth_rpc_out *o = NULL;
    if (msg != NULL) {
        size_t n = request_head(conn, route, n_route, msg, head);
        o = hth_rpc_out_new(conn, head, n, msg);
    }
    if (o == NULL) {
        if (msg != NULL) {
            nng_msg_free(msg);
        }
        conn->dead = true;
        return;
    }
    hth_rpc_out_add(conn, o, true);
}

void hth_rpc_request_refuse(hth_rpc_conn *conn, hth_err err, const char *sentence)
{
    size_t route = hth_rpc_route(conn->message, conn->have);
    if (route == 0 || route > HTH_RPC_ROUTE) { // it says nothing that can be answered
        conn->dead = true;
        return;
    }
    request_error(conn, conn->message, route, err, sentence);
}

// ---- requests

hth_err hth_rpc_request_prove(hth_rpc_conn *conn)
{
    Hearth__Request *q;
    size_t route = hth_rpc_route(conn->message, conn->have);
    if (route == 0 || route > HTH_RPC_ROUTE) {
        return hth_fail(HTH_ECORRUPT, "a request without a number");
    }
    HTH_TRY(hth_wire_peek_request(conn->message + route, conn->have - route,
                                  &hth_wire_default_limits, &q));
    hth_err err = hth_auth_check(conn->r->config.auth, hth_conn_peer(conn->conn), q->token,
                                 HTH_NEED_ANY, NULL);
    hth_wire_free_request(q);
    conn->proven = err == HTH_OK;
    return err;
}

bool hth_rpc_request_is_put(const hth_rpc_conn *conn)
{
    Hearth__Request *q;
    size_t route = hth_rpc_route(conn->message, conn->have);
    if (route == 0 || route > HTH_RPC_ROUTE ||
        hth_wire_peek_request(conn->message + route, conn->have - route, &hth_wire_default_limits,
                              &q) != HTH_OK) {
        return false;
    }
    bool put = q->body_case == HEARTH__REQUEST__BODY_PUT;
    hth_wire_free_request(q);
    return put;
}

// What became of an attempt to start a request.
typedef enum request_start {
    REQUEST_STARTED,
    REQUEST_PEER_FULL,
    REQUEST_ALL_FULL,
} request_start;

static request_start request_try(hth_rpc_request *request)
{
    hth_rpc_slot *s = request->slot;
    bool admin = hth_rpc_slot_is_admin(s);
    if (!admin && hth_allowance_request(request->c->allowance, request->kind) != HTH_OK) {
        return REQUEST_PEER_FULL;
    }
    if (!hth_rpc_slot_place(s)) {
        if (!admin) {
            hth_allowance_answered(request->c->allowance, request->kind);
        }
        hth_fail(HTH_EBUSY, "the server has as many requests of this kind as it takes: try again");
        return REQUEST_ALL_FULL;
    }
    request->counted = !admin;
    atomic_fetch_add(&request->c->n_long, request->kind == HTH_ALLOWANCE_LONG && request->counted);
    request->slot = NULL;
    hth_rpc_slot_run(s);
    return REQUEST_STARTED;
}

static void waiter_link(hth_rpc_conn *conn)
{
    hth_rpc *r = conn->r;
    conn->prev_waiter = r->last_waiter;
    conn->next_waiter = NULL;
    *r->last_waiter = conn;
    r->last_waiter = &conn->next_waiter;
    atomic_fetch_add(&r->n_waiters, 1);
}

static void request_wait(hth_rpc_request *request)
{
    hth_rpc_conn *c = request->c;
    *c->last_waiting = request;
    c->last_waiting = &request->next;
    if (c->prev_waiter == NULL) {
        waiter_link(c);
    }
}

// request_long starts a request that may last, or refuses it: it does not wait.
static void request_long(hth_rpc_request *request)
{
    hth_rpc_conn *c = request->c;
    int most = (int)hth_setting_int(HTH_SET_LIMIT_CONN_REQUESTS) / REQUEST_LONG;
    hth_rpc_slot *s = request->slot;
    if (atomic_load(&c->n_long) >= most) {
        hth_fail(HTH_EBUSY,
                 "%d long requests are in progress on this connection (half of "
                 "limits.requests_per_connection)",
                 most);
        hth_rpc_slot_fail(s, HTH_EBUSY, hth_err_detail());
    } else if (request_try(request) != REQUEST_STARTED) {
        hth_rpc_slot_fail(s, HTH_EBUSY, hth_err_detail());
    }
}

// request_watch starts a request that waits for a training job, which takes nobody's place, or
// refuses it: of a connection's requests half may, so that others get through.
static void request_watch(hth_rpc_request *request)
{
    hth_rpc_conn *c = request->c;
    int most = (int)hth_setting_int(HTH_SET_LIMIT_CONN_REQUESTS) / REQUEST_LONG;
    hth_rpc_slot *s = request->slot;
    request->slot = NULL;
    if (atomic_load(&c->n_watches) >= most) {
        hth_fail(HTH_EBUSY,
                 "this connection watches %d training jobs (half of "
                 "limits.requests_per_connection)",
                 most);
        hth_rpc_slot_fail(s, HTH_EBUSY, hth_err_detail());
    } else if (!hth_rpc_slot_is_admin(s) &&
               hth_allowance_request(c->allowance, HTH_ALLOWANCE_WATCH) != HTH_OK) {
        hth_rpc_slot_fail(s, HTH_EBUSY, hth_err_detail());
    } else {
        request->counted = !hth_rpc_slot_is_admin(s);
        request->watches = true;
        atomic_fetch_add(&c->n_watches, 1);
        hth_rpc_slot_run(s);
    }
}

void hth_rpc_request_take(hth_rpc_conn *conn)
{
    static const hth_front front = {.answer = request_answer, .reserve = request_reserve};
    size_t route = hth_rpc_route(conn->message, conn->have);
    hth_rpc_request *q = NULL;
    if (route == 0) { // it does not speak this
        conn->dead = true;
    } else if (route <= HTH_RPC_ROUTE) {
        if (!conn->proven) {
            (void)hth_rpc_request_prove(conn); // the dispatcher says what is wrong
        }
        q = hth_calloc(1, sizeof *q);
        if (q == NULL) {
            request_error(conn, conn->message, route, HTH_ENOMEM, "out of memory for a request");
        }
    }
    if (q == NULL) { // .. or it has come a long way round: dropped, as nng does
        hth_rpc_in_forget(conn);
        return;
    }
    const hth_message m = {conn->message + route, conn->have - route, conn->message, hth_free};
    q->c = conn;
    q->message_bytes = conn->charged;
    q->n_route = route;
    memcpy(q->route, conn->message, route);
    conn->message = NULL;
    conn->charged = 0;
    hth_rpc_in_forget(conn);
    hth_rpc_conn_hold(conn);
    atomic_fetch_add(&conn->n_pending, 1);
    hth_rpc_slot *s;
    if (hth_dispatch_take(conn->r->config.dispatch, conn->conn, &m, &front, q, &s) != HTH_OK) {
        request_answer(q, NULL);
        return;
    }
    if (s == NULL) {
        return; // answered
    }
    q->slot = s;
    hth_rpc_slot_kind kind = hth_rpc_slot_get_kind(s);
    q->kind = (hth_allowance_kind)kind;
    if (kind == HTH_RPC_SLOT_WATCH) {
        request_watch(q);
    } else if (kind == HTH_RPC_SLOT_LONG) {
        request_long(q);
    } else if ((conn->waiting != NULL && !hth_rpc_slot_is_admin(s)) ||
               request_try(q) != REQUEST_STARTED) {
        request_wait(q);
    }
}

// ---- those that wait

static void waiter_unlink(hth_rpc_conn *conn)
{
    hth_rpc *r = conn->r;
    *conn->prev_waiter = conn->next_waiter;
    if (conn->next_waiter != NULL) {
        conn->next_waiter->prev_waiter = conn->prev_waiter;
    } else {
        r->last_waiter = conn->prev_waiter;
    }
    conn->prev_waiter = NULL;
    conn->next_waiter = NULL;
    atomic_fetch_sub(&r->n_waiters, 1);
}

// waiter_start starts the oldest request of a connection, and has the connection wait for its next
// turn, if it has more.
static request_start waiter_start(hth_rpc_conn *conn)
{
    hth_rpc_request *next = conn->waiting->next;
    request_start how = request_try(conn->waiting);
    if (how == REQUEST_STARTED) {
        conn->waiting = next;
        conn->last_waiting = next != NULL ? conn->last_waiting : &conn->waiting;
    }
    if (how != REQUEST_ALL_FULL) {
        waiter_unlink(conn);
        if (conn->waiting != NULL) {
            waiter_link(conn);
        }
    }
    return how;
}

void hth_rpc_waiters_run(hth_rpc *rpc)
{
    int left = atomic_load(&rpc->n_waiters);
    while (rpc->waiters != NULL && left > 0) {
        hth_rpc_conn *c = rpc->waiters;
        hth_rpc_conn_hold(c);
        request_start how = waiter_start(c);
        if (how == REQUEST_STARTED) {
            hth_rpc_conn_settle(c);
        }
        hth_rpc_conn_rele(c);
        if (how == REQUEST_ALL_FULL) {
            return;
        }
        left = how == REQUEST_STARTED ? atomic_load(&rpc->n_waiters) : left - 1;
    }
}

void hth_rpc_request_drop_all(hth_rpc_conn *conn)
{
    if (conn->prev_waiter != NULL) {
        waiter_unlink(conn);
    }
    while (conn->waiting != NULL) {
        hth_rpc_request *q = conn->waiting;
        conn->waiting = q->next;
        hth_rpc_slot_drop(q->slot);
    }
    conn->last_waiting = &conn->waiting;
}
