// SPDX-License-Identifier: Apache-2.0
// A connection's socket, plain or with TLS: read to where the caller wants it, written from c->out.
// The socket is watched for as long as the connection lasts; what is to go out is written at once,
// and only the rest waits until the socket has room.
//
// What a connection holds is counted from a request's first byte until its answer has left: what
// came of it, and the answer.
#include "server/http/http_call.h"

#include "base/clock.h"
#include "base/spin.h"
#include "base/stats.h"
#include "server/net/account.h"

#include <openssl/err.h>

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IO_WRITE   (1 << 20)  // bytes that are written in one turn of the loop
#define IO_RECORD  16384      // the most that one record of TLS holds
#define IO_SMALL   (64 << 10) // of a request: not worth closing a connection for
#define IO_BULK_NS 10000000u  // after some of a large body, more is to be expected for so long

void hth_http_io_bulk(void)
{
    hth_spin_suspend(hth_real_after(IO_BULK_NS));
}

static bool io_again(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

bool hth_http_io_secure(hth_http_conn *conn)
{
    conn->ssl = hth_tls_session(conn->h->tls, conn->fd, &conn->reads);
    return conn->ssl != NULL;
}

// io_failed says what a call of OpenSSL's meant that gave `rv`.
static int io_failed(hth_http_conn *conn, int rv)
{
    int why = SSL_get_error(conn->ssl, rv);
    ERR_clear_error();
    if (why == SSL_ERROR_WANT_WRITE) {
        event_add(conn->writable, NULL);
    }
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? HTH_HTTP_AGAIN : 0;
}

ssize_t hth_http_io_read(hth_http_conn *conn, void *memory, size_t bytes)
{
    if (conn->ssl != NULL && conn->at != HTH_HTTP_AT_LINGER) {
        int rv = SSL_read(conn->ssl, memory, bytes < INT_MAX ? (int)bytes : INT_MAX);
        return rv > 0 ? rv : io_failed(conn, rv);
    }
    ssize_t got = recv(conn->fd, memory, bytes, MSG_DONTWAIT);
    if (got >= 0) {
        return got;
    }
    return io_again() ? HTH_HTTP_AGAIN : 0;
}

size_t hth_http_io_send(hth_http_conn *conn, const void *memory, size_t bytes, bool *well)
{
    ssize_t sent;
    if (conn->ssl != NULL) {
        int rv = SSL_write(conn->ssl, memory, (int)(bytes < IO_RECORD ? bytes : IO_RECORD));
        sent = rv > 0 ? rv : io_failed(conn, rv);
        *well = sent != 0;
    } else {
        sent = send(conn->fd, memory, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        *well = sent >= 0 || io_again();
    }
    if (sent <= 0) {
        return 0;
    }
    hth_stat_add(HTH_STAT_HTTP_BYTES_OUT, (uint64_t)sent);
    conn->active_ns = hth_now_ns();
    return (size_t)sent;
}

// io_write_tls makes records of what is there: heads are short, and would be one each.
static bool io_write_tls(hth_http_conn *conn)
{
    char record[IO_RECORD];
    bool well = true;
    size_t sent = 1;
    for (int i = 0; i < IO_WRITE / IO_RECORD && sent > 0 && evbuffer_get_length(conn->out) > 0;
         i++) {
        ev_ssize_t n = evbuffer_copyout(conn->out, record, sizeof record);
        sent = n > 0 ? hth_http_io_send(conn, record, (size_t)n, &well) : 0;
        evbuffer_drain(conn->out, sent);
    }
    return well;
}

static bool io_write_plain(hth_http_conn *conn)
{
    int n = evbuffer_write_atmost(conn->out, conn->fd, IO_WRITE);
    if (n > 0) {
        hth_stat_add(HTH_STAT_HTTP_BYTES_OUT, (uint64_t)n);
        conn->active_ns = hth_now_ns();
    }
    return n >= 0 || io_again();
}

bool hth_http_io_write(hth_http_conn *conn)
{
    bool some = evbuffer_get_length(conn->out) > 0;
    bool well = !some || (conn->ssl != NULL ? io_write_tls(conn) : io_write_plain(conn));
    if (well && evbuffer_get_length(conn->out) > 0) {
        return event_add(conn->writable, NULL) == 0;
    }
    event_del(conn->writable);
    return well;
}

void hth_http_io_finish(hth_http_conn *conn)
{
    if (conn->ssl != NULL && SSL_is_init_finished(conn->ssl)) {
        SSL_shutdown(conn->ssl); // as far as that goes at once
        ERR_clear_error();
    }
    shutdown(conn->fd, SHUT_WR);
}

void hth_http_io_close(hth_http_conn *conn)
{
    if (conn->ssl != NULL) {
        if (SSL_is_init_finished(conn->ssl) && conn->at != HTH_HTTP_AT_LINGER) {
            SSL_shutdown(conn->ssl);
        }
        SSL_free(conn->ssl);
        ERR_clear_error();
    }
    if (conn->readable != NULL) {
        event_free(conn->readable);
    }
    if (conn->writable != NULL) {
        event_free(conn->writable);
    }
    if (conn->again != NULL) {
        event_free(conn->again);
    }
    close(conn->fd);
}

// ---- what a connection holds

void hth_http_io_came(hth_http_conn *conn, size_t bytes)
{
    uint64_t now = hth_now_ns();
    conn->h->events++;
    conn->active_ns = now;
    hth_stat_add(HTH_STAT_HTTP_BYTES_IN, bytes);
    if (conn->at == HTH_HTTP_AT_LINGER) {
        return;
    }
    conn->bytes += bytes;
    hth_account_add(bytes);
    conn->since_ns = conn->since_ns == 0 ? now : conn->since_ns;
    if (conn->bytes > IO_SMALL && hth_account_full()) {
        hth_http_conn_refuse(conn, 503, "the server holds too much for its clients");
    }
}

void hth_http_io_grew(hth_http_conn *conn, size_t bytes)
{
    conn->bytes += bytes;
    hth_account_add(bytes);
}

void hth_http_io_answers(hth_http_conn *conn, size_t bytes)
{
    conn->answer_ns = hth_now_ns();
    conn->sending += bytes;
    hth_account_add(bytes);
}
