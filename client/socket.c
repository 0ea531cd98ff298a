// SPDX-License-Identifier: Apache-2.0
// The socket never blocks: what cannot be done at once is waited for with poll. OpenSSL reads and
// writes memory, and we the socket, so that a peer that is gone is an error and no SIGPIPE. The
// certificate is checked by us after the handshake, for a sentence with what it says of itself.
#include "client/socket.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "client/resolve.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_HOST  256
#define SOCKET_CHUNK 65536 // bytes between OpenSSL and the socket: four records to a system call

struct hth_socket {
    int fd;
    SSL_CTX *context; // NULL: no TLS
    SSL *ssl;
    BIO *in, *out;  // the SSL's: what came, what goes
    uint8_t *chunk; // SOCKET_CHUNK bytes that came, with TLS
};

typedef struct socket_place { // of a url
    bool tls;
    char host[SOCKET_HOST], port[8];
} socket_place;

static bool socket_is(const char *url, const char *scheme)
{
    return strncmp(url, scheme, strlen(scheme)) == 0;
}

// socket_poll waits for `events`. HTH_ETIMEDOUT.
static hth_err socket_poll(int fd, short events, uint64_t until_ns)
{
    for (;;) {
        uint64_t now = hth_now_ns(), left = until_ns > now ? (until_ns - now) / 1000000u + 1 : 0;
        struct pollfd p = {fd, events, 0};
        int n = poll(&p, 1, left < INT32_MAX ? (int)left : INT32_MAX);
        if (n > 0) {
            return HTH_OK;
        }
        if (n < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "cannot wait for a server");
        }
        if (left == 0) {
            return hth_fail(HTH_ETIMEDOUT, "timed out");
        }
    }
}

// ---- the socket

static hth_err socket_failed(int e)
{
    return hth_fail(e == EACCES || e == EPERM ? HTH_EDENIED : HTH_EIO, "%s", strerror(e));
}

static hth_err socket_connect(const struct sockaddr *a, socklen_t n, uint64_t until_ns, int *out)
{
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return hth_fail_errno(errno, "no socket");
    }
    hth_err err = HTH_OK;
    int failed = connect(fd, a, n) == 0 ? 0 : errno;
    if (failed == EINPROGRESS || failed == EINTR) {
        socklen_t size = sizeof failed;
        err = socket_poll(fd, POLLOUT, until_ns);
        if (err == HTH_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) {
            failed = errno;
        }
    }
    if (err == HTH_OK && failed != 0) {
        err = socket_failed(failed);
    }
    if (err != HTH_OK) {
        close(fd);
        return err;
    }
    *out = fd;
    return HTH_OK;
}

// local_connect waits for room in the server's queue, too: a Unix socket that does not block is
// refused where many connect at once, and poll knows nothing of it.
static hth_err local_connect(int fd, const struct sockaddr_un *a, uint64_t until_ns)
{
    for (;;) {
        uint64_t now = hth_now_ns(), us = until_ns > now ? (until_ns - now) / 1000u + 1 : 1;
        const struct timeval left = {(time_t)(us / 1000000u), (suseconds_t)(us % 1000000u)};
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left) != 0) {
            return hth_fail_errno(errno, "no socket");
        }
        if (connect(fd, (const struct sockaddr *)a, sizeof *a) == 0) {
            return fcntl(fd, F_SETFL, O_NONBLOCK) == 0 ? HTH_OK
                                                       : hth_fail_errno(errno, "no socket");
        }
        if (errno == EAGAIN) {
            return hth_fail(HTH_ETIMEDOUT, "its queue of connections is full");
        }
        if (errno != EINTR) {
            return socket_failed(errno);
        }
    }
}

static hth_err socket_local(const char *path, uint64_t until_ns, int *out)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (path[0] == 0 || strlen(path) >= sizeof a.sun_path) {
        return hth_fail(HTH_EINVAL, "a socket's path has 1 to %zu bytes", sizeof a.sun_path - 1);
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return hth_fail_errno(errno, "no socket");
    }
    hth_err err = local_connect(fd, &a, until_ns);
    if (err != HTH_OK) {
        close(fd);
        return err;
    }
    *out = fd;
    return HTH_OK;
}

// socket_host splits "HOST:PORT", "[::1]:PORT".
static hth_err socket_host(const char *text, socket_place *place)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : 0;
    bool bracketed = n > 2 && text[0] == '[' && text[n - 1] == ']';
    text += bracketed;
    n -= bracketed ? 2 : 0;
    if (n == 0 || n >= sizeof place->host || colon[1] == 0 ||
        strlen(colon + 1) >= sizeof place->port ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1)) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not HOST:PORT", text);
    }
    snprintf(place->host, sizeof place->host, "%.*s", (int)n, text);
    snprintf(place->port, sizeof place->port, "%s", colon + 1);
    return HTH_OK;
}

static hth_err socket_remote(const socket_place *place, uint64_t until_ns, int *out)
{
    struct addrinfo *list = NULL;
    int rv = hth_resolve(place->host, place->port, &(struct addrinfo){.ai_socktype = SOCK_STREAM},
                         &list);
    if (rv != 0) {
        return hth_fail(HTH_EINVAL, "unknown host: %s", gai_strerror(rv));
    }
    hth_err err = HTH_EIO;
    for (const struct addrinfo *a = list; a != NULL && err != HTH_OK; a = a->ai_next) {
        err = socket_connect(a->ai_addr, a->ai_addrlen, until_ns, out);
    }
    freeaddrinfo(list);
    if (err == HTH_OK) {
        // a request's last, short segment must not wait for an acknowledgment of the one before it
        const int one = 1;
        (void)setsockopt(*out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    return err;
}

static hth_err socket_send(int fd, const uint8_t *data, size_t n, int flags, uint64_t until_ns)
{
    while (n > 0) {
        ssize_t w = send(fd, data, n, MSG_NOSIGNAL | flags);
        if (w < 0 && (errno == EAGAIN || errno == EINTR)) {
            HTH_TRY(socket_poll(fd, POLLOUT, until_ns));
        } else if (w < 0) {
            return hth_fail(HTH_EIO, "%s", strerror(errno));
        } else {
            data += w;
            n -= (size_t)w;
        }
    }
    return HTH_OK;
}

// socket_receive reads what there is, at least a byte, at most n. *n: how many.
static hth_err socket_receive(int fd, void *data, size_t *n, uint64_t until_ns)
{
    for (;;) {
        ssize_t r = recv(fd, data, *n, 0);
        if (r > 0) {
            *n = (size_t)r;
            return HTH_OK;
        }
        if (r == 0) {
            return hth_fail(HTH_EIO, "the connection was closed");
        }
        if (errno != EAGAIN && errno != EINTR) {
            return hth_fail(HTH_EIO, "%s", strerror(errno));
        }
        HTH_TRY(socket_poll(fd, POLLIN, until_ns));
    }
}

// ---- TLS

static const char *tls_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return reason != NULL ? reason : "no reason is given";
}

// tls_flush sends what OpenSSL has for the other side.
static hth_err tls_flush(hth_socket *socket, uint64_t until_ns)
{
    char *data;
    long n = BIO_get_mem_data(socket->out, &data);
    if (n > 0) {
        HTH_TRY(socket_send(socket->fd, (const uint8_t *)data, (size_t)n, 0, until_ns));
        (void)BIO_reset(socket->out);
    }
    return HTH_OK;
}

// tls_go_on does what OpenSSL waits for after a call that returned rv <= 0.
static hth_err tls_go_on(hth_socket *socket, int rv, uint64_t until_ns)
{
    size_t n = SOCKET_CHUNK;
    int why = SSL_get_error(socket->ssl, rv);
    HTH_TRY(tls_flush(socket, until_ns)); // an alert, perhaps
    if (why == SSL_ERROR_ZERO_RETURN) {
        return hth_fail(HTH_EIO, "the connection was closed");
    }
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        return hth_fail(HTH_EIO, "TLS failed (%s)", tls_reason());
    }
    HTH_TRY(socket_receive(socket->fd, socket->chunk, &n, until_ns));
    return BIO_write(socket->in, socket->chunk, (int)n) == (int)n ? HTH_OK : hth_no_memory("TLS");
}

// tls_write encrypts n bytes; they lie in memory then.
static hth_err tls_write(hth_socket *socket, const void *data, int n, uint64_t until_ns)
{
    int rv;
    while ((rv = SSL_write(socket->ssl, data, n)) <= 0) {
        HTH_TRY(tls_go_on(socket, rv, until_ns));
    }
    return HTH_OK; // all of them: partial writes are not allowed
}

// tls_names lists whom a certificate is for.
static void tls_names(X509 *cert, char *out, size_t cap)
{
    size_t at = 0;
    GENERAL_NAMES *list = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    out[0] = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(list) && at + 1 < cap; i++) {
        const GENERAL_NAME *g = sk_GENERAL_NAME_value(list, i);
        char address[INET6_ADDRSTRLEN] = "";
        const unsigned char *text = (const unsigned char *)address;
        if (g->type == GEN_IPADD) {
            int n = ASN1_STRING_length(g->d.iPAddress);
            if (n == 4 || n == 16) {
                inet_ntop(n == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(g->d.iPAddress),
                          address, sizeof address);
            }
        } else if (g->type == GEN_DNS) {
            text = ASN1_STRING_get0_data(g->d.dNSName);
        }
        if (text[0] != 0) {
            int n = snprintf(out + at, cap - at, "%s%.100s", at > 0 ? ", " : "", text);
            at += n > 0 ? (size_t)n : 0;
        }
    }
    GENERAL_NAMES_free(list);
    if (out[0] == 0) {
        X509_NAME_oneline(X509_get_subject_name(cert), out, (int)cap);
    }
    for (char *p = out; *p != 0; p++) { // whatever a stranger wrote into it
        *p = (unsigned char)*p < ' ' || *p == 0x7f ? '?' : *p;
    }
}

// tls_check judges the certificate that the server has shown.
static hth_err tls_check(const hth_socket *socket, const socket_place *place)
{
    char names[400];
    X509 *cert = SSL_get1_peer_certificate(socket->ssl);
    long why = SSL_get_verify_result(socket->ssl);
    if (cert == NULL) {
        return hth_fail(HTH_EDENIED, "the server presents no certificate");
    }
    tls_names(cert, names, sizeof names);
    X509_free(cert);
    switch (why) {
    case X509_V_OK:
        return HTH_OK;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return hth_fail(HTH_EDENIED, "its certificate is for %s, not for %s", names, place->host);
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return hth_fail(HTH_EDENIED, "its certificate is not valid now: %s",
                        X509_verify_cert_error_string(why));
    default:
        return hth_fail(HTH_EDENIED,
                        "its certificate (of %s) is not trusted: %s; give its certificate "
                        "authority with --ca FILE (in a program: ca_file)",
                        names, X509_verify_cert_error_string(why));
    }
}

static hth_err tls_prepare(hth_socket *socket, const socket_place *place, const char *ca_file)
{
    unsigned char address[16];
    bool is_address = inet_pton(AF_INET, place->host, address) == 1 ||
                      inet_pton(AF_INET6, place->host, address) == 1;
    ERR_clear_error();
    socket->context = SSL_CTX_new(TLS_client_method());
    if (socket->context == NULL ||
        SSL_CTX_set_min_proto_version(socket->context, TLS1_2_VERSION) != 1) {
        return hth_fail(HTH_ENOMEM, "no TLS (%s)", tls_reason());
    }
    // a server of TLS 1.2 that asks for another handshake gets none: writing would wait for it
    SSL_CTX_set_options(socket->context, SSL_OP_NO_RENEGOTIATION);
    if (SSL_CTX_load_verify_locations(socket->context, ca_file, NULL) != 1) {
        return access(ca_file, R_OK) != 0
                   ? hth_fail(HTH_EINVAL, "cannot verify servers by %s: %s", ca_file,
                              strerror(errno))
                   : hth_fail(HTH_EINVAL,
                              "cannot verify servers by %s: no certificates in PEM (%s)", ca_file,
                              tls_reason());
    }
    socket->ssl = SSL_new(socket->context);
    socket->in = BIO_new(BIO_s_mem());
    socket->out = BIO_new(BIO_s_mem());
    socket->chunk = hth_alloc(SOCKET_CHUNK);
    if (socket->ssl == NULL || socket->in == NULL || socket->out == NULL || socket->chunk == NULL) {
        BIO_free(socket->in);
        BIO_free(socket->out);
        socket->in = socket->out = NULL;
        return hth_no_memory("TLS");
    }
    SSL_set_bio(socket->ssl, socket->in, socket->out); // the SSL's from now on
    SSL_set_verify(socket->ssl, SSL_VERIFY_NONE, NULL);
    X509_VERIFY_PARAM *param = SSL_get0_param(socket->ssl);
    bool set = is_address ? X509_VERIFY_PARAM_set1_ip_asc(param, place->host) == 1
                          : SSL_set1_host(socket->ssl, place->host) == 1 &&
                                SSL_set_tlsext_host_name(socket->ssl, place->host) == 1;
    return set ? HTH_OK : hth_fail(HTH_EINVAL, "'%s' is not a host name", place->host);
}

static hth_err tls_open(hth_socket *socket, const socket_place *place, const char *ca_file,
                        uint64_t until_ns)
{
    HTH_TRY(tls_prepare(socket, place, ca_file));
    int rv;
    while ((rv = SSL_connect(socket->ssl)) <= 0) {
        hth_err err = tls_go_on(socket, rv, until_ns);
        if (err != HTH_OK) {
            bool theirs = err == HTH_EIO || err == HTH_ETIMEDOUT;
            return theirs ? hth_err_prefix(err, "the server does not use TLS") : err;
        }
    }
    HTH_TRY(tls_check(socket, place));
    return tls_flush(socket, until_ns);
}

// ---- both

hth_err hth_socket_open(const char *url, const char *ca_file, uint64_t until_ns, hth_socket **out)
{
    socket_place place = {.tls = socket_is(url, "tls+tcp://")};
    *out = NULL;
    hth_socket *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("a connection");
    }
    s->fd = -1;
    hth_err err;
    if (socket_is(url, "ipc://")) {
        err = socket_local(url + 6, until_ns, &s->fd);
    } else if (place.tls || socket_is(url, "tcp://")) {
        err = socket_host(strstr(url, "://") + 3, &place);
        if (err == HTH_OK) {
            err = socket_remote(&place, until_ns, &s->fd);
        }
    } else {
        err = hth_fail(HTH_EINVAL, "a server is at ipc://PATH, tcp://HOST:PORT or "
                                   "tls+tcp://HOST:PORT");
    }
    if (err == HTH_OK && place.tls) {
        err = tls_open(s, &place, ca_file, until_ns);
    }
    if (err != HTH_OK) {
        hth_socket_close(s);
        return err;
    }
    *out = s;
    return HTH_OK;
}

void hth_socket_close(hth_socket *socket)
{
    if (socket == NULL) {
        return;
    }
    if (socket->ssl != NULL && SSL_is_init_finished(socket->ssl) == 1) {
        SSL_shutdown(socket->ssl);
        tls_flush(socket, 0);
    }
    SSL_free(socket->ssl);
    SSL_CTX_free(socket->context);
    if (socket->fd >= 0) {
        close(socket->fd);
    }
    ERR_clear_error();
    hth_free(socket->chunk);
    hth_free(socket);
}

hth_err hth_socket_head(hth_socket *socket, const void *data, size_t bytes, uint64_t until_ns)
{
    if (socket->ssl == NULL) {
        return socket_send(socket->fd, data, bytes, MSG_MORE, until_ns);
    }
    return tls_write(socket, data, (int)bytes, until_ns);
}

hth_err hth_socket_write(hth_socket *socket, const void *data, size_t bytes, uint64_t until_ns)
{
    const uint8_t *p = data;
    if (socket->ssl == NULL) {
        return socket_send(socket->fd, p, bytes, 0, until_ns);
    }
    while (bytes > 0) { // by pieces: what is encrypted waits in memory
        int piece = bytes < SOCKET_CHUNK ? (int)bytes : SOCKET_CHUNK;
        HTH_TRY(tls_write(socket, p, piece, until_ns));
        HTH_TRY(tls_flush(socket, until_ns));
        p += piece;
        bytes -= (size_t)piece;
    }
    return HTH_OK;
}

hth_err hth_socket_read(hth_socket *socket, void *data, size_t bytes, uint64_t until_ns)
{
    uint8_t *p = data;
    while (bytes > 0) {
        size_t got = bytes;
        if (socket->ssl != NULL) {
            int rv = SSL_read(socket->ssl, p, bytes < INT32_MAX ? (int)bytes : INT32_MAX);
            if (rv <= 0) {
                HTH_TRY(tls_go_on(socket, rv, until_ns));
                continue;
            }
            got = (size_t)rv;
        } else {
            HTH_TRY(socket_receive(socket->fd, p, &got, until_ns));
        }
        p += got;
        bytes -= got;
    }
    return HTH_OK;
}

bool hth_socket_wait(hth_socket *socket, uint64_t until_ns)
{
    while (socket->ssl != NULL) { // what comes may be for TLS alone
        char c;
        int rv = SSL_peek(socket->ssl, &c, 1);
        hth_err err = rv > 0 ? HTH_OK : tls_go_on(socket, rv, until_ns);
        if (rv > 0 || err != HTH_OK) {
            return err != HTH_ETIMEDOUT;
        }
    }
    return socket_poll(socket->fd, POLLIN, until_ns) == HTH_OK;
}
