// SPDX-License-Identifier: Apache-2.0
// A connection's life: accepted and counted, watched, paused while it has too much, closed. What is
// over a peer's limit is closed at once; where all connections are at theirs, a new one takes the
// place of one without a token or without a request.
#include "server/rpc/rpc_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "server/net/closer.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONN_OUT    ((size_t)8 << 20) // that waits to go, before no more requests are read
#define CONN_PASSED 4096              // .. of handles
#define CONN_PROBE  60 // seconds of silence until the kernel asks whether it is there
#define CONN_PROBES 5

#define SECOND_NS 1000000000u

// ---- references

void hth_rpc_conn_hold(hth_rpc_conn *conn)
{
    atomic_fetch_add(&conn->refs, 1);
}

void hth_rpc_conn_rele(hth_rpc_conn *conn)
{
    if (atomic_fetch_sub(&conn->refs, 1) == 1) {
        pthread_mutex_destroy(&conn->lock);
        hth_conn_rele(conn->conn);
        hth_allowance_rele(conn->allowance);
        hth_free(conn);
    }
}

// ---- watching

void hth_rpc_conn_schedule(hth_rpc_conn *conn)
{
    conn->n_round = 0;
    conn->n_reads = HTH_TLS_READS;
    conn->round_over = false;
}

bool hth_rpc_conn_full(const hth_rpc_conn *conn)
{
    if (conn->round_over) {
        return true;
    }
    if (conn->state == HTH_RPC_PASSING) {
        return atomic_load(&conn->out_bytes) > CONN_PASSED;
    }
    if (conn->state != HTH_RPC_LENGTH || conn->n_head > 0) {
        return false;
    }
    if (!conn->proven) {
        return atomic_load(&conn->n_pending) > 0 || atomic_load(&conn->out_bytes) > 0;
    }
    return atomic_load(&conn->n_pending) >= hth_setting_int(HTH_SET_LIMIT_CONN_REQUESTS) ||
           atomic_load(&conn->out_bytes) > CONN_OUT;
}

// conn_pause has nothing read; the peer's end is noticed all the same.
static void conn_pause(hth_rpc_conn *conn)
{
    event_del(conn->read);
    event_add(conn->closed, NULL);
    atomic_store(&conn->paused, true); // who ends a request from here on sees it
}

static void conn_resume(hth_rpc_conn *conn)
{
    atomic_store(&conn->paused, false);
    event_del(conn->closed);
    event_add(conn->read, NULL);
}

void hth_rpc_conn_settle(hth_rpc_conn *conn)
{
    for (;;) {
        if (conn->gone) {
            return;
        }
        hth_rpc_out_flush(conn);
        if (conn->dead) {
            hth_rpc_conn_close(conn);
            return;
        }
        bool full = hth_rpc_conn_full(conn), paused = atomic_load(&conn->paused);
        if (full && paused) {
            return;
        }
        if (!full && !paused) {
            if (conn->rest == NULL) {
                return;
            }
            hth_rpc_in(conn); // what was read already, and stopped before its answers had left
        } else if (full) {
            conn_pause(conn);
        } else {
            conn_resume(conn);
            hth_rpc_in(conn);
        }
    }
}

static void conn_readable(evutil_socket_t fd, short what, void *arg)
{
    hth_rpc_conn *c = arg;
    if (c->state == HTH_RPC_TLS) {
        hth_rpc_shake_ready(c);
        return;
    }
    hth_rpc_conn_hold(c);
    hth_rpc_conn_schedule(c);
    hth_rpc_in(c);
    hth_rpc_conn_settle(c);
    hth_rpc_conn_rele(c);
}

static void conn_writable(evutil_socket_t fd, short what, void *arg)
{
    hth_rpc_conn *c = arg;
    if (c->ssl != NULL && !atomic_load(&c->paused)) { // what reads may have waited for that
        conn_readable(fd, what, arg);
        return;
    }
    hth_rpc_conn_hold(c);
    hth_rpc_conn_settle(c);
    hth_rpc_conn_rele(c);
}

static void conn_ended(evutil_socket_t fd, short what, void *arg)
{
    hth_rpc_conn *c = arg;
    hth_rpc_conn_hold(c);
    c->dead = true;
    hth_rpc_conn_settle(c);
    hth_rpc_conn_rele(c);
}

// ---- what takes too long

// conn_out_late is when its answers are taken too slowly. What the kernel holds counts as taken
// when the peer's has it: else one that reads steadily would seem to pause for a whole buffer.
static uint64_t conn_out_late(hth_rpc_conn *conn, uint64_t now_ns)
{
    int held = 0;
    pthread_mutex_lock(&conn->lock);
    if (conn->out != NULL && ioctl(conn->fd, SIOCOUTQ, &held) == 0) {
        if (held < conn->out_held) {
            hth_rpc_moved(&conn->out_late_ns, (uint64_t)(conn->out_held - held), now_ns);
        }
        conn->out_held = held;
    }
    uint64_t late_ns = conn->out_late_ns;
    pthread_mutex_unlock(&conn->lock);
    return late_ns;
}

// conn_is_late says why a connection is to be ended; NULL: it is not.
static const char *conn_is_late(hth_rpc_conn *conn, uint64_t now_ns)
{
    uint64_t open_ns = now_ns - conn->opened_ns;
    uint64_t out_late_ns = conn_out_late(conn, now_ns);
    if ((conn->state == HTH_RPC_TLS || conn->state == HTH_RPC_GREETING) &&
        open_ns > (uint64_t)hth_setting_int(HTH_SET_LIMIT_HANDSHAKE_SECONDS) * SECOND_NS) {
        return "no handshake (limits.handshake_seconds)";
    }
    if (conn->late_ns != 0 && now_ns > conn->late_ns) {
        return "its request comes too slowly (http.request_seconds)";
    }
    if (out_late_ns != 0 && now_ns > out_late_ns) {
        return "it takes its answers too slowly (http.request_seconds)";
    }
    if (!conn->local && !conn->proven &&
        open_ns > (uint64_t)hth_setting_int(HTH_SET_LIMIT_TOKEN_SECONDS) * SECOND_NS) {
        return "no token (limits.token_seconds)";
    }
    if (atomic_load(&conn->n_pending) > 0 || atomic_load(&conn->out_bytes) > 0) {
        conn->since_ns = now_ns;
    }
    if (!conn->local && now_ns > conn->since_ns &&
        now_ns - conn->since_ns >
            (uint64_t)hth_setting_int(HTH_SET_LIMIT_IDLE_SECONDS) * SECOND_NS) {
        return "no request (limits.idle_seconds)";
    }
    return NULL;
}

// conn_disconnect closes a connection, and says why.
static void conn_disconnect(hth_rpc_conn *conn, const char *why)
{
    uint64_t unsaid;
    if (hth_seldom_now(&conn->r->endings, &unsaid)) {
        hth_log(INFO, SERVER, "disconnected", "tenant=%s not_logged=%" PRIu64 " reason=%s",
                hth_conn_tenant(conn->conn), unsaid, why);
    }
    hth_rpc_conn_close(conn);
}

void hth_rpc_conn_look(hth_rpc_conn *conn, uint64_t now_ns)
{
    const char *why = conn_is_late(conn, now_ns);
    if (why != NULL) {
        conn_disconnect(conn, why);
    }
}

// ---- the end

void hth_rpc_conn_close(hth_rpc_conn *conn)
{
    hth_rpc *r = conn->r;
    hth_rpc_conn_hold(conn);
    hth_rpc_shake_forget(conn);
    event_free(conn->read);
    event_free(conn->write);
    event_free(conn->closed);
    pthread_mutex_lock(&conn->lock);
    conn->gone = true;
    hth_rpc_out_drop(conn);
    hth_rpc_io_fini(conn);
    pthread_mutex_unlock(&conn->lock);
    *conn->prev = conn->next;
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    hth_rpc_in_fini(conn);
    hth_conn_close(conn->conn);
    hth_rpc_request_drop_all(conn);
    hth_dispatch_gone(r->config.dispatch, conn->conn);
    hth_rings_gone(r->config.rings, conn->conn);
    hth_descriptors_drop(r->config.descriptors, conn);
    hth_allowance_leave(conn->allowance, conn->trusted);
    hth_rpc_conn_rele(conn);
    hth_rpc_conn_rele(conn); // the loop's
}

// ---- coming

// conn_worth says how little is lost by closing a connection, the least first; 0: it stays. Without
// a token, or idle: its client connects again when it needs to. Slow: it has a while, but not the
// place of others.
static int conn_worth(const hth_rpc_conn *conn)
{
    bool busy = atomic_load(&conn->n_pending) > 0;
    bool moving = conn->late_ns != 0 || atomic_load(&conn->out_bytes) > 0;
    if (conn->trusted || (conn->proven && busy)) {
        return 0;
    }
    if (!conn->proven) {
        return 1;
    }
    return moving ? 3 : 2;
}

// conn_evict makes room: it closes the connection that is worth least, of equal ones that which
// has been so for longest; false: there is none.
static bool conn_evict(hth_rpc *rpc)
{
    hth_rpc_conn *least = NULL;
    int worth = 0;
    for (hth_rpc_conn *c = rpc->conns; c != NULL; c = c->next) {
        int w = conn_worth(c);
        if (w != 0 &&
            (least == NULL || w < worth || (w == worth && c->since_ns < least->since_ns))) {
            least = c;
            worth = w;
        }
    }
    if (least != NULL) {
        conn_disconnect(least, "another one needs its place (limits.connections)");
    }
    return least != NULL;
}

static void conn_refused(hth_rpc *rpc)
{
    uint64_t unsaid;
    if (hth_seldom_now(&rpc->refusals, &unsaid)) {
        hth_log(WARN, SERVER, "refused", "not_logged=%" PRIu64 " %s", unsaid, hth_err_detail());
    }
}

// conn_know finds out who is at the other end of a socket.
static hth_conn_who conn_know(const hth_rpc_listener *listener, int fd)
{
    hth_conn_who who = {.where = listener->local ? HTH_CONN_LOCAL : HTH_CONN_NETWORK,
                        .uid = UINT64_MAX};
    struct ucred cred;
    socklen_t n = sizeof cred;
    if (listener->local && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) == 0) {
        who.known = true;
        who.uid = cred.uid;
        who.gid = cred.gid;
    }
    return who;
}

static hth_err conn_join(hth_rpc_conn *conn, const hth_rpc_listener *listener,
                         const struct sockaddr *a)
{
    hth_rpc *r = conn->r;
    const hth_allowance_key key =
        listener->local ? hth_allowance_key_user(conn->uid) : hth_allowance_key_address(a);
    hth_err err = hth_allowance_join(r->config.allowances, &key, conn->trusted, &conn->allowance);
    if (err == HTH_EBUSY && hth_allowance_full(r->config.allowances, listener->local) &&
        conn_evict(r)) {
        err = hth_allowance_join(r->config.allowances, &key, conn->trusted, &conn->allowance);
    }
    return err;
}

static hth_err conn_events(hth_rpc_conn *conn)
{
    struct event_base *base = conn->r->base;
    conn->read = event_new(base, conn->fd, EV_READ | EV_PERSIST, conn_readable, conn);
    conn->write = event_new(base, conn->fd, EV_WRITE, conn_writable, conn);
    conn->closed = event_new(base, conn->fd, EV_CLOSED | EV_PERSIST, conn_ended, conn);
    return conn->read != NULL && conn->write != NULL && conn->closed != NULL &&
                   event_add(conn->read, NULL) == 0
               ? HTH_OK
               : hth_no_memory("a connection");
}

static void conn_options(const hth_rpc_conn *conn)
{
    int one = 1, idle = CONN_PROBE, probes = CONN_PROBES;
    if (!conn->local) {
        setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(conn->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
        setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    }
}

// conn_open makes everything of a connection; on error what it has is conn_undo's.
static hth_err conn_open(hth_rpc_conn *conn, const hth_rpc_listener *listener,
                         const hth_conn_who *who, const struct sockaddr *a)
{
    hth_rpc *r = conn->r;
    HTH_TRY(conn_join(conn, listener, a));
    hth_conn_who joined = *who;
    joined.allowance = conn->allowance;
    HTH_TRY(hth_conn_open(r->config.conns, &joined, &conn->conn));
    conn->proven = conn->trusted || !r->tokens;
    if (listener->tls) {
        HTH_TRY(hth_rpc_io_secure(conn));
    }
    return conn_events(conn);
}

static void conn_leave(hth_rpc *rpc, int i)
{
    if (rpc->leaving[i] >= 0) {
        hth_closer_socket(rpc->leaving_uid[i], rpc->leaving[i], false);
        rpc->leaving[i] = -1;
    }
}

// conn_show_out ends a connection that is not taken. nng 1.5 gives an address up for good when its
// greeting meets a closed socket, but tries again when it reads an end: so that is sent at once,
// and the socket closed a moment later.
static void conn_show_out(hth_rpc *rpc, int fd, uint64_t uid)
{
    int i = rpc->next_leaving;
    shutdown(fd, SHUT_WR);
    conn_leave(rpc, i);
    rpc->leaving[i] = fd;
    rpc->leaving_uid[i] = uid;
    rpc->left[i] = false;
    rpc->next_leaving = (i + 1) % HTH_RPC_LEAVING;
}

void hth_rpc_conn_shut_out(hth_rpc *rpc, bool all)
{
    for (int i = 0; i < HTH_RPC_LEAVING; i++) {
        if (all || rpc->left[i]) {
            conn_leave(rpc, i);
        }
        rpc->left[i] = true; // at the next look
    }
}

static void conn_undo(hth_rpc_conn *conn)
{
    hth_accept_give(conn->kind);
    struct event *events[] = {conn->read, conn->write, conn->closed};
    for (int i = 0; i < 3; i++) {
        if (events[i] != NULL) {
            event_free(events[i]);
        }
    }
    if (conn->conn != NULL) {
        hth_conn_close(conn->conn);
    }
    conn_show_out(conn->r, conn->fd, conn->local ? conn->uid : 0);
    conn->fd = -1;
    hth_rpc_io_fini(conn);
    if (conn->allowance != NULL) {
        hth_allowance_leave(conn->allowance, conn->trusted);
        hth_rpc_conn_rele(conn);
    } else {
        pthread_mutex_destroy(&conn->lock);
        hth_free(conn);
    }
}

void hth_rpc_conn_accept(hth_rpc_listener *listener, int fd, const struct sockaddr *address)
{
    hth_rpc *r = listener->r;
    const hth_conn_who who = conn_know(listener, fd);
    bool trusted = listener->local && who.known && r->config.auth != NULL &&
                   hth_auth_local(r->config.auth, who.uid, who.gid) == HTH_PEER_TRUSTED;
    hth_accept_kind kind = listener->local ? HTH_ACCEPT_LOCAL : HTH_ACCEPT_NETWORK;
    kind = trusted ? HTH_ACCEPT_ADMIN : kind;
    if (!hth_accept_take(kind) && !(conn_evict(r) && hth_accept_take(kind))) {
        hth_fail(HTH_EBUSY, "too many connections: %d (the limit of open files)",
                 hth_accept_count());
        conn_refused(r);
        conn_show_out(r, fd, listener->local ? who.uid : 0);
        return;
    }
    hth_rpc_conn *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        hth_accept_give(kind);
        conn_show_out(r, fd, listener->local ? who.uid : 0);
        return;
    }
    c->r = r;
    c->refs = 1;
    c->fd = fd;
    c->local = listener->local;
    c->trusted = trusted;
    c->kind = kind;
    c->uid = who.uid;
    c->state = listener->tls ? HTH_RPC_TLS : HTH_RPC_GREETING;
    c->opened_ns = c->since_ns = hth_now_ns();
    c->last_waiting = &c->waiting;
    c->last_out = &c->out;
    pthread_mutex_init(&c->lock, NULL);
    if (conn_open(c, listener, &who, address) != HTH_OK) {
        conn_refused(r);
        conn_undo(c);
        return;
    }
    conn_options(c);
    c->next = r->conns;
    c->prev = &r->conns;
    if (c->next != NULL) {
        c->next->prev = &c->next;
    }
    r->conns = c;
}
