// SPDX-License-Identifier: Apache-2.0
// Connections: opened, closed, and what errors are called. hearth_status and hth_err are one
// numbering; the sentence of an error is the calling thread's. infer.c, query.c, load.c, store.c
// and jobs/ have the calls.
#include "client/hearth.h"

#include "base/alloc.h"
#include "client/infer/buffer.h"
#include "client/ring_exchange.h"
#include "client/default_url.h"
#include "client/descriptor.h"
#include "client/exchange.h"
#include "client/infer/submit.h"
#include "client/jobs/job_document.h"
#include "client/passed_files.h"
#include "client/socket_exchange.h"
#include "client/wire.h"

#include <nng/protocol/reqrep0/req.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLIENT_TIMEOUT_MS   (10u * 60 * 1000)
#define CLIENT_RECONNECT_MS 50
// Where Debian's ca-certificates keeps the authorities that the system trusts.
#define CLIENT_CA_FILE "/etc/ssl/certs/ca-certificates.crt"

_Static_assert((int)HEARTH_ETIMEDOUT == (int)HTH_ETIMEDOUT &&
                   (int)HEARTH_ENOMEM == (int)HTH_ENOMEM &&
                   (int)HTH_ETIMEDOUT + 1 == (int)HTH_N_ERR,
               "hearth_status and hth_err are one numbering");

const char *hearth_error(void)
{
    return hth_err_detail();
}

const char *hearth_strerror(hearth_status s)
{
    return hth_strerror((hth_err)s);
}

void hearth_free(void *p)
{
    hth_free(p);
}

static void client_pipe_changed(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    hearth *h = arg;
    if (ev == NNG_PIPE_EV_ADD_POST) {
        atomic_fetch_add(&h->generation, 1);
        atomic_fetch_add(&h->pipes, 1);
        atomic_store(&h->redials, 0);
    } else {
        atomic_fetch_sub(&h->pipes, 1);
        hth_ring_exchange_lost(h);
    }
}

static bool client_is(const char *url, const char *scheme)
{
    return strncmp(url, scheme, strlen(scheme)) == 0;
}

#define CLIENT_PATH_BYTES 107 // of a socket's path: sun_path with its end

static hth_err client_not_url(const char *url)
{
    if (client_is(url, "http://") || client_is(url, "https://")) {
        return hth_fail(HTH_EINVAL,
                        "%s is for clients of the Open Inference Protocol; this one takes "
                        "ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT",
                        url);
    }
    if (client_is(url, "ipc://") && strlen(url + 6) > CLIENT_PATH_BYTES) {
        return hth_fail(HTH_EINVAL, "'%s': a socket's path has at most %d bytes", url,
                        CLIENT_PATH_BYTES);
    }
    return hth_fail(HTH_EINVAL, "'%s' is not ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT",
                    url);
}

// client_unknown says why an address was not found: by its port, or by its host.
static hth_err client_unknown(const char *url)
{
    const char *port = strrchr(url, ':') + 1;
    size_t digits = strspn(port, "0123456789");
    if (digits == strlen(port) && (digits > 5 || atol(port) < 1 || atol(port) > UINT16_MAX)) {
        return hth_fail(HTH_EINVAL, "no server at %s: a port is a number from 1 to %d", url,
                        UINT16_MAX);
    }
    return hth_fail(HTH_EINVAL, "no server at %s: the host is not known, or no port is given", url);
}

// client_refused: nng says "refused" where there is no socket, too.
static hth_err client_refused(int rv, const char *url)
{
    if (rv == NNG_ECONNREFUSED && client_is(url, "ipc://") && access(url + 6, F_OK) != 0 &&
        errno == ENOENT) {
        return hth_fail(HTH_EIO, "no server at %s: there is no such socket", url);
    }
    return hth_wire_fail(rv, "no server at %s", url);
}

hearth_status hearth_local_url(const char *runtime_dir, char *url, size_t bytes)
{
    return (hearth_status)hth_default_url_find(runtime_dir, url, bytes);
}

static hth_err client_dial(hearth *h, const char *url)
{
    int rv = nng_req0_open(&h->socket);
    if (rv != 0) {
        return hth_wire_fail(rv, "cannot open a socket");
    }
    h->socket_open = true;
    if ((rv = nng_socket_set_ms(h->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE)) != 0 ||
        (rv = nng_socket_set_ms(h->socket, NNG_OPT_RECONNMINT, CLIENT_RECONNECT_MS)) != 0 ||
        (rv = nng_socket_set_ms(h->socket, NNG_OPT_RECONNMAXT, CLIENT_RECONNECT_MS)) != 0 ||
        (rv = nng_socket_set_size(h->socket, NNG_OPT_RECVMAXSZ, h->limits.message_bytes)) != 0 ||
        (rv = nng_pipe_notify(h->socket, NNG_PIPE_EV_ADD_POST, client_pipe_changed, h)) != 0 ||
        (rv = nng_pipe_notify(h->socket, NNG_PIPE_EV_REM_POST, client_pipe_changed, h)) != 0) {
        return hth_wire_fail(rv, "cannot set up a socket");
    }
    if ((rv = nng_dialer_create(&h->dialer, h->socket, url)) != 0) {
        return rv == NNG_EINVAL || rv == NNG_ENOTSUP || rv == NNG_EADDRINVAL
                   ? client_not_url(url)
                   : hth_wire_fail(rv, "cannot connect to %s", url);
    }
    rv = nng_dialer_start(h->dialer, 0);
    if (rv == NNG_EADDRINVAL) {
        return client_unknown(url);
    }
    if ((rv == NNG_ECONNSHUT || rv == NNG_ECONNRESET) && client_is(url, "tcp://")) {
        return hth_fail(HTH_EIO,
                        "no server at %s: the connection was closed; if TLS is spoken "
                        "there, it is tls+%s",
                        url, url);
    }
    return rv == 0 ? HTH_OK : client_refused(rv, url);
}

static hth_err client_embed(const hearth_options *options, hth_embedded **out)
{
    if (options == NULL || options->store == NULL) {
        return hth_fail(HTH_EINVAL, "inproc:// needs options with the store's directory");
    }
    hearth_embed_options embed = {.store = options->store, .device = options->device};
    return hth_embed_open(&embed, out);
}

// `embed` NULL: an engine in this process is opened as `options` say.
static hth_err client_start(hearth *h, const char *url, const hearth_options *options,
                            const hearth_embed_options *embed)
{
    bool embedded = strcmp(url, "inproc://") == 0, tls = client_is(url, "tls+tcp://");
    hth_forked_begin();
    h->forks = hth_forks();
    h->by_socket = tls || h->forks > 0;
    bool inside = client_is(url, "inproc://");
    if (!inside && !tls && !client_is(url, "ipc://") && !client_is(url, "tcp://")) {
        return client_not_url(url);
    }
    if (inside && h->forks > 0) {
        return hth_fail(HTH_ENOTSUP,
                        "this process was forked from one that used hearth, and an engine's "
                        "threads do not survive a fork: use a server, or start a new process");
    }
    h->timeout_ms =
        options != NULL && options->timeout_ms != 0 ? options->timeout_ms : CLIENT_TIMEOUT_MS;
    h->timeout_ms = h->timeout_ms < INT32_MAX ? h->timeout_ms : INT32_MAX;
    h->same_machine = client_is(url, "ipc://") || client_is(url, "inproc://");
    h->shared_memory = !h->by_socket && client_is(url, "ipc://") &&
                       (options == NULL || !options->no_shared_memory);
    h->rings = h->shared_memory && (options == NULL || !options->no_ring);
    h->limits = hth_wire_default_limits;
    if (embedded) {
        HTH_TRY(embed != NULL ? hth_embed_open(embed, &h->embedded)
                              : client_embed(options, &h->embedded));
        url = hth_embed_url(h->embedded);
    }
    bool token = options != NULL && options->token != NULL && options->token[0] != 0;
    h->url = hth_strdup(url);
    h->token = token ? hth_strdup(options->token) : NULL;
    h->ca_file =
        hth_strdup(options != NULL && options->ca_file != NULL ? options->ca_file : CLIENT_CA_FILE);
    if (h->url == NULL || h->ca_file == NULL || (token && h->token == NULL)) {
        return hth_no_memory("a connection");
    }
    return h->by_socket ? hth_socket_exchange_open(h) : client_dial(h, url);
}

static hearth_status client_open(const char *url, const hearth_options *options,
                                 const hearth_embed_options *embed, hearth **out)
{
    *out = NULL;
    hearth *h = hth_calloc(1, sizeof *h);
    if (h == NULL) {
        return (hearth_status)hth_no_memory("a connection");
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->dialing, NULL);
    pthread_mutex_init(&h->mapping, NULL);
    pthread_mutex_init(&h->passing, NULL);
    pthread_cond_init(&h->idle, NULL);
    h->passing_fd = -1;
    hth_err err = client_start(h, url, options, embed);
    if (err != HTH_OK) {
        hearth_close(h);
        return (hearth_status)err;
    }
    *out = h;
    return HEARTH_OK;
}

hearth_status hearth_open(const char *url, const hearth_options *options, hearth **out)
{
    return client_open(url, options, NULL, out);
}

hearth_status hearth_embed(const hearth_embed_options *options, hearth **out)
{
    hearth_embed_options o;
    *out = NULL;
    if (options == NULL || options->store == NULL) {
        return (hearth_status)hth_fail(HTH_EINVAL, "an engine needs options with a store");
    }
    if (hth_options_read(options, &o, sizeof o, sizeof o) != HTH_OK) {
        return HEARTH_ENOTSUP;
    }
    hearth_options more = {.timeout_ms = o.timeout_ms};
    return client_open("inproc://", &more, &o, out);
}

void hearth_close(hearth *h)
{
    if (h == NULL || h->forks != hth_forks()) {
        return; // what it has is the parent's: locks that a thread there may hold, sockets, threads
    }
    if (!hth_submit_end(h)) {
        return; // a callback of its calls: it is closed after that
    }
    pthread_mutex_lock(&h->lock);
    while (h->in_flight > 0) {
        pthread_cond_wait(&h->idle, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    hth_ring_exchange_fini(h);
    hth_exchange_fini(h);
    hth_socket_exchange_fini(h);
    if (h->socket_open) {
        nng_close(h->socket);
    }
    hth_buffer_fini(h);
    hth_descriptor_fini(h);
    hth_embed_close(h->embedded);
    hth_passed_fini(h);
    pthread_cond_destroy(&h->idle);
    pthread_mutex_destroy(&h->passing);
    pthread_mutex_destroy(&h->mapping);
    pthread_mutex_destroy(&h->dialing);
    pthread_mutex_destroy(&h->lock);
    hth_free(h->url);
    hth_free(h->token);
    hth_free(h->ca_file);
    hth_free(h);
}
