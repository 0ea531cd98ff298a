// SPDX-License-Identifier: Apache-2.0
// Bytes of a connection, plain or through TLS, and the queue of what goes out.
//
// A session is only touched on the loop's thread. Whoever sends descriptors where none are expected
// has them received and closed elsewhere (closer.h): the kernel would close them here, on the
// loop's thread. Whoever brings a small reply sends it at once, which saves the loop's thread from
// being woken; the loop sends what the socket did not take then, what is large, and all of TLS.
//
// A TLS handshake costs the server a signature, a millisecond or so, and its peer next to nothing:
// a few hundred bytes that it may send again and again. Therefore handshakes do not happen when
// they come, but a few at a time between everything else, and those go first that have got further,
// then those of peers that had the fewest in this second, then the oldest.
#include "server/rpc/rpc_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "server/net/closer.h"

#include <openssl/err.h>

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IO_RECORD  16384u              // the most that one record of TLS holds
#define OUT_PARTS  16                  // of one system call
#define OUT_NOW    (64u << 10)         // largest reply that another thread sends
#define OUT_TURN   ((size_t)512 << 10) // sent in one go, so that others get theirs
#define SHAKE_TURN 2                   // steps of handshakes between two looks at everything else

// ---- sockets and sessions

hth_err hth_rpc_io_secure(hth_rpc_conn *conn)
{
    conn->ssl = hth_tls_session(conn->r->config.tls, conn->fd, &conn->n_reads);
    return conn->ssl != NULL ? HTH_OK : hth_no_memory("TLS");
}

// io_failed says what a call of OpenSSL's meant that gave `rv`.
static int io_failed(hth_rpc_conn *conn, int rv)
{
    int why = SSL_get_error(conn->ssl, rv);
    ERR_clear_error();
    if (why == SSL_ERROR_WANT_READ) {
        return HTH_RPC_AGAIN;
    }
    if (why == SSL_ERROR_WANT_WRITE) {
        event_add(conn->write, NULL);
        return HTH_RPC_AGAIN;
    }
    return why == SSL_ERROR_ZERO_RETURN ? 0 : HTH_RPC_FAILED;
}

int hth_rpc_io_shake(hth_rpc_conn *conn)
{
    int rv = SSL_do_handshake(conn->ssl);
    if (rv == 1) {
        return 1;
    }
    return io_failed(conn, rv) == HTH_RPC_AGAIN ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

static ssize_t io_came(ssize_t got)
{
    if (got >= 0) {
        return got;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

ssize_t hth_rpc_io_receive(hth_rpc_conn *conn, void *memory, size_t bytes, int fds[HTH_RPC_FDS],
                           int *n_fds)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(HTH_RPC_FDS * sizeof(int))];
    } control;
    struct iovec v = {memory, bytes};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got;
    *n_fds = 0;
    if (hth_closer_stuck(conn->uid)) { // .. with what it sent before
        return HTH_RPC_FAILED;
    }
    do {
        got = recvmsg(conn->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    const struct cmsghdr *h = got >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (h != NULL && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
        *n_fds = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(h), (size_t)*n_fds * sizeof(int));
    }
    return io_came(got);
}

ssize_t hth_rpc_io_read(hth_rpc_conn *conn, void *memory, size_t bytes)
{
    if (conn->ssl != NULL) {
        int rv = SSL_read(conn->ssl, memory, bytes < INT_MAX ? (int)bytes : INT_MAX);
        return rv > 0 ? rv : io_failed(conn, rv);
    }
    if (conn->local && !conn->trusted) {
        int fds[HTH_RPC_FDS], n_fds;
        ssize_t got = hth_rpc_io_receive(conn, memory, bytes, fds, &n_fds);
        while (n_fds > 0) {
            hth_closer_close(conn->uid, fds[--n_fds], false);
        }
        return got;
    }
    ssize_t got;
    do {
        got = recv(conn->fd, memory, bytes, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return io_came(got);
}

// io_write_tls makes one record of what is there: heads are short, and would be one each.
static ssize_t io_write_tls(hth_rpc_conn *conn, const struct iovec *v, int n)
{
    uint8_t record[IO_RECORD];
    size_t bytes = 0;
    for (int i = 0; i < n && bytes < sizeof record; i++) {
        size_t part = v[i].iov_len < sizeof record - bytes ? v[i].iov_len : sizeof record - bytes;
        memcpy(record + bytes, v[i].iov_base, part);
        bytes += part;
    }
    int rv = SSL_write(conn->ssl, record, (int)bytes);
    if (rv > 0) {
        return rv;
    }
    return io_failed(conn, rv) == HTH_RPC_AGAIN ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

ssize_t hth_rpc_io_write(hth_rpc_conn *conn, const struct iovec *parts, int count)
{
    if (conn->ssl != NULL) {
        return io_write_tls(conn, parts, count);
    }
    const struct msghdr m = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    ssize_t sent;
    do {
        sent = sendmsg(conn->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        return sent;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

void hth_rpc_io_fini(hth_rpc_conn *conn)
{
    if (conn->ssl != NULL) {
        if (SSL_is_init_finished(conn->ssl)) {
            SSL_shutdown(conn->ssl); // says so, as far as that goes at once
        }
        SSL_free(conn->ssl);
        ERR_clear_error();
        conn->ssl = NULL;
    }
    if (conn->fd >= 0 && conn->kind == HTH_ACCEPT_LOCAL) {
        hth_closer_socket(conn->uid, conn->fd, true);
    } else if (conn->fd >= 0) {
        close(conn->fd);
        hth_accept_give(conn->kind);
    }
    conn->fd = -1;
}

// ---- what goes out

size_t hth_rpc_head(const hth_rpc_conn *conn, uint64_t bytes, uint8_t *head)
{
    size_t n = 0;
    if (conn->local) {
        head[n++] = 1;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        head[n++] = (uint8_t)(bytes >> shift);
    }
    return n;
}

static size_t out_bytes(const hth_rpc_out *out)
{
    return out->n_head + (out->msg != NULL ? nng_msg_len(out->msg) : 0);
}

static void out_free(hth_rpc_conn *conn, hth_rpc_out *out)
{
    if (out->charged > 0) {
        hth_allowance_give(conn->allowance, out->charged);
    }
    if (out->msg != NULL) {
        nng_msg_free(out->msg);
    }
    hth_free(out);
}

hth_rpc_out *hth_rpc_out_new(hth_rpc_conn *conn, const void *head, size_t n_head, nng_msg *msg)
{
    hth_rpc_out *o = hth_alloc(sizeof *o);
    if (o != NULL) {
        o->next = NULL;
        o->msg = msg;
        o->n_head = n_head;
        o->sent = 0;
        o->charged = 0;
        memcpy(o->head, head, n_head);
    }
    return o;
}

// out_parts gathers what the list begins with.
static int out_parts(const hth_rpc_conn *conn, struct iovec *v)
{
    int n = 0;
    for (hth_rpc_out *o = conn->out; o != NULL && n + 2 <= OUT_PARTS; o = o->next) {
        size_t in_msg = o->sent > o->n_head ? o->sent - o->n_head : 0;
        if (o->sent < o->n_head) {
            v[n++] = (struct iovec){o->head + o->sent, o->n_head - o->sent};
        }
        if (o->msg != NULL && nng_msg_len(o->msg) > in_msg) {
            v[n++] = (struct iovec){(uint8_t *)nng_msg_body(o->msg) + in_msg,
                                    nng_msg_len(o->msg) - in_msg};
        }
    }
    return n;
}

// out_sent takes n bytes off the list.
static void out_sent(hth_rpc_conn *conn, size_t n)
{
    atomic_fetch_sub(&conn->out_bytes, n);
    while (conn->out != NULL) {
        hth_rpc_out *o = conn->out;
        size_t left = out_bytes(o) - o->sent;
        if (n < left) {
            o->sent += n;
            return;
        }
        n -= left;
        conn->out = o->next;
        conn->last_out = conn->out != NULL ? conn->last_out : &conn->out;
        out_free(conn, o);
    }
}

// out_send sends until the socket takes no more, or `most` bytes have gone. Under the lock.
static void out_send(hth_rpc_conn *conn, size_t most)
{
    struct iovec v[OUT_PARTS];
    while (conn->out != NULL && most > 0 && !conn->broken) {
        ssize_t n = hth_rpc_io_write(conn, v, out_parts(conn, v));
        if (n < 0) {
            conn->broken = n != HTH_RPC_AGAIN;
            break;
        }
        out_sent(conn, (size_t)n);
        most -= (size_t)n < most ? (size_t)n : most;
        if (conn->out_late_ns != 0) {
            hth_rpc_moved(&conn->out_late_ns, (uint64_t)n, hth_now_ns());
        }
    }
    if (conn->out == NULL) {
        conn->out_late_ns = 0;
    } else if (conn->out_late_ns == 0) {
        hth_rpc_moved(&conn->out_late_ns, 0, hth_now_ns());
    }
}

void hth_rpc_out_add(hth_rpc_conn *conn, hth_rpc_out *out, bool soon)
{
    bool on_loop = hth_rpc_on_loop(conn->r), left = false;
    size_t bytes = out_bytes(out);
    pthread_mutex_lock(&conn->lock);
    if (conn->gone) {
        out_free(conn, out);
    } else {
        *conn->last_out = out;
        conn->last_out = &out->next;
        atomic_fetch_add(&conn->out_bytes, bytes);
        if (soon && conn->out == out && conn->ssl == NULL && (on_loop || bytes <= OUT_NOW)) {
            out_send(conn, OUT_TURN);
        }
        left = conn->out != NULL || conn->broken;
    }
    pthread_mutex_unlock(&conn->lock);
    if (left && !on_loop) {
        hth_rpc_touch(conn);
    }
}

void hth_rpc_out_fail(hth_rpc_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    conn->broken = true;
    bool gone = conn->gone;
    pthread_mutex_unlock(&conn->lock);
    if (!gone) {
        hth_rpc_touch(conn);
    }
}

void hth_rpc_out_flush(hth_rpc_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    if (!conn->gone) {
        out_send(conn, OUT_TURN);
    }
    bool left = conn->out != NULL && !conn->broken;
    conn->dead = conn->dead || conn->broken;
    pthread_mutex_unlock(&conn->lock);
    if (left) {
        event_add(conn->write, NULL);
    }
}

void hth_rpc_out_drop(hth_rpc_conn *conn)
{
    while (conn->out != NULL) {
        hth_rpc_out *o = conn->out;
        conn->out = o->next;
        out_free(conn, o);
    }
    conn->last_out = &conn->out;
    atomic_store(&conn->out_bytes, 0);
    conn->out_late_ns = 0;
}

// ---- handshakes, each in its turn

void hth_rpc_shake_ready(hth_rpc_conn *conn)
{
    static const struct timeval soon = {0};
    hth_rpc *r = conn->r;
    if (!conn->shaking) {
        conn->shaking = true;
        event_del(conn->read); // what there is to read is known
        if (r->n_shaking++ == 0) {
            event_add(r->shake, &soon);
        }
    }
}

void hth_rpc_shake_forget(hth_rpc_conn *conn)
{
    if (conn->shaking) {
        conn->shaking = false;
        conn->r->n_shaking--;
    }
}

// shake_before tells whether a handshake goes before another, which is younger.
static bool shake_before(const hth_rpc_conn *conn, const hth_rpc_conn *other, uint64_t second)
{
    bool later = conn->n_shakes > 0, other_later = other->n_shakes > 0;
    if (later != other_later) {
        return later;
    }
    return hth_allowance_shakes(conn->allowance, second) <=
           hth_allowance_shakes(other->allowance, second);
}

static hth_rpc_conn *shake_next(const hth_rpc *rpc, uint64_t second)
{
    hth_rpc_conn *next = NULL;
    for (hth_rpc_conn *c = rpc->conns; c != NULL; c = c->next) { // the youngest first
        if (c->shaking && (next == NULL || shake_before(c, next, second))) {
            next = c;
        }
    }
    return next;
}

static void shake_step(hth_rpc_conn *conn)
{
    hth_rpc_conn_hold(conn);
    hth_rpc_shake_forget(conn);
    hth_rpc_conn_schedule(conn);
    conn->n_shakes++;
    int rv = hth_rpc_io_shake(conn);
    if (rv == HTH_RPC_FAILED) {
        conn->dead = true;
    } else {
        event_add(conn->read, NULL);
    }
    if (rv == 1) {
        conn->state = HTH_RPC_GREETING;
        hth_rpc_in(conn);
    }
    hth_rpc_conn_settle(conn);
    hth_rpc_conn_rele(conn);
}

void hth_rpc_shake_run(hth_rpc *rpc)
{
    static const struct timeval soon = {0};
    uint64_t second = hth_now_ns() / 1000000000u;
    for (int i = 0; i < SHAKE_TURN && rpc->n_shaking > 0; i++) {
        hth_rpc_conn *c = shake_next(rpc, second);
        hth_allowance_shook(c->allowance, second);
        shake_step(c);
    }
    if (rpc->n_shaking > 0) {
        event_add(rpc->shake, &soon);
    }
}
