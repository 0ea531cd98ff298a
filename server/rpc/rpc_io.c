// SPDX-License-Identifier: Apache-2.0
// Bytes of a connection, plain or through TLS. A session is only touched on the loop's thread.
// Whoever sends descriptors where none are expected has them received and closed elsewhere
// (closer.h): the kernel would close them here, on the loop's thread.
#include "server/net/closer.h"
#include "server/rpc/rpc_impl.h"

#include <openssl/err.h>

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IO_RECORD 16384u // the most that one record of TLS holds

// io_budget bounds what OpenSSL reads in one go: by itself it goes on for as long as records come
// that have nothing for us, such as attempts to begin a new handshake.
static long io_budget(BIO *b, int what, const char *p, size_t n, int i, long l, int rv, size_t *did)
{
    hth_rpc_conn *c = (void *)BIO_get_callback_arg(b);
    if (what == BIO_CB_READ && c->n_reads-- <= 0) {
        BIO_clear_retry_flags(b);
        BIO_set_retry_read(b);
        return -1;
    }
    return rv;
}

hth_err hth_rpc_io_secure(hth_rpc_conn *c)
{
    c->ssl = hth_tls_session(c->r->config.tls);
    if (c->ssl == NULL || SSL_set_fd(c->ssl, c->fd) != 1) {
        ERR_clear_error();
        return hth_fail(HTH_ENOMEM, "out of memory for TLS");
    }
    BIO_set_callback_arg(SSL_get_rbio(c->ssl), (char *)c);
    BIO_set_callback_ex(SSL_get_rbio(c->ssl), io_budget);
    SSL_set_mode(c->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_set_accept_state(c->ssl);
    return HTH_OK;
}

// io_failed says what a call of OpenSSL's meant that gave `rv`.
static int io_failed(hth_rpc_conn *c, int rv)
{
    int why = SSL_get_error(c->ssl, rv);
    ERR_clear_error();
    if (why == SSL_ERROR_WANT_READ) {
        return HTH_RPC_AGAIN;
    }
    if (why == SSL_ERROR_WANT_WRITE) {
        event_add(c->write, NULL);
        return HTH_RPC_AGAIN;
    }
    return why == SSL_ERROR_ZERO_RETURN ? 0 : HTH_RPC_FAILED;
}

int hth_rpc_io_shake(hth_rpc_conn *c)
{
    int rv = SSL_do_handshake(c->ssl);
    if (rv == 1) {
        return 1;
    }
    return io_failed(c, rv) == HTH_RPC_AGAIN ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

static ssize_t io_came(ssize_t got)
{
    if (got >= 0) {
        return got;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

ssize_t hth_rpc_io_receive(hth_rpc_conn *c, void *p, size_t n, int fds[HTH_RPC_FDS], int *n_fds)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(HTH_RPC_FDS * sizeof(int))];
    } control;
    struct iovec v = {p, n};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got;
    *n_fds = 0;
    if (hth_closer_stuck(c->uid)) { // .. with what it sent before
        return HTH_RPC_FAILED;
    }
    do {
        got = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    const struct cmsghdr *h = got >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (h != NULL && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
        *n_fds = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(h), (size_t)*n_fds * sizeof(int));
    }
    return io_came(got);
}

ssize_t hth_rpc_io_read(hth_rpc_conn *c, void *p, size_t n)
{
    if (c->ssl != NULL) {
        int rv = SSL_read(c->ssl, p, n < INT_MAX ? (int)n : INT_MAX);
        return rv > 0 ? rv : io_failed(c, rv);
    }
    if (c->local && !c->trusted) {
        int fds[HTH_RPC_FDS], n_fds;
        ssize_t got = hth_rpc_io_receive(c, p, n, fds, &n_fds);
        while (n_fds > 0) {
            hth_closer_close(c->uid, fds[--n_fds], false);
        }
        return got;
    }
    ssize_t got;
    do {
        got = recv(c->fd, p, n, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return io_came(got);
}

// io_write_tls makes one record of what is there: heads are short, and would be one each.
static ssize_t io_write_tls(hth_rpc_conn *c, const struct iovec *v, int n)
{
    uint8_t record[IO_RECORD];
    size_t bytes = 0;
    for (int i = 0; i < n && bytes < sizeof record; i++) {
        size_t part = v[i].iov_len < sizeof record - bytes ? v[i].iov_len : sizeof record - bytes;
        memcpy(record + bytes, v[i].iov_base, part);
        bytes += part;
    }
    int rv = SSL_write(c->ssl, record, (int)bytes);
    if (rv > 0) {
        return rv;
    }
    return io_failed(c, rv) == HTH_RPC_AGAIN ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

ssize_t hth_rpc_io_write(hth_rpc_conn *c, const struct iovec *v, int n)
{
    if (c->ssl != NULL) {
        return io_write_tls(c, v, n);
    }
    const struct msghdr m = {.msg_iov = (struct iovec *)v, .msg_iovlen = (size_t)n};
    ssize_t sent;
    do {
        sent = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        return sent;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
}

void hth_rpc_io_fini(hth_rpc_conn *c)
{
    if (c->ssl != NULL) {
        if (SSL_is_init_finished(c->ssl)) {
            SSL_shutdown(c->ssl); // says so, as far as that goes at once
        }
        SSL_free(c->ssl);
        ERR_clear_error();
        c->ssl = NULL;
    }
    if (c->fd >= 0 && c->kind == HTH_ACCEPT_LOCAL) {
        hth_closer_socket(c->uid, c->fd, true);
    } else if (c->fd >= 0) {
        close(c->fd);
        hth_accept_give(c->kind);
    }
    c->fd = -1;
}
