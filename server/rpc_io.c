// SPDX-License-Identifier: Apache-2.0
// Bytes of a connection, plain or through TLS. A session is only touched on the loop's thread.
#include "server/rpc_parts.h"

#include <openssl/err.h>

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IO_RECORD 16384u // the most that one record of TLS holds

hth_err hth_rpc_io_secure(hth_rpc_conn *c)
{
    c->ssl = hth_tls_session(c->r->config.tls);
    if (c->ssl == NULL || SSL_set_fd(c->ssl, c->fd) != 1) {
        ERR_clear_error();
        return hth_fail(HTH_ENOMEM, "out of memory for TLS");
    }
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

ssize_t hth_rpc_io_read(hth_rpc_conn *c, void *p, size_t n)
{
    if (c->ssl != NULL) {
        int rv = SSL_read(c->ssl, p, n < INT_MAX ? (int)n : INT_MAX);
        return rv > 0 ? rv : io_failed(c, rv);
    }
    ssize_t got;
    do {
        got = recv(c->fd, p, n, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got >= 0) {
        return got;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? HTH_RPC_AGAIN : HTH_RPC_FAILED;
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

bool hth_rpc_io_pending(const hth_rpc_conn *c)
{
    return c->ssl != NULL && SSL_pending(c->ssl) > 0;
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
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
}
