// SPDX-License-Identifier: Apache-2.0
// Opened from the inside out (store, jobs, engine, dispatcher, front ends, listeners) and closed in
// the opposite order. Stop answers first and tears down later: what is answered gets a second to
// leave.
#include "server/server.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "server/net/accept_guard.h"
#include "server/rpc/descriptors.h"
#include "server/rpc/dispatch.h"
#include "server/http/http.h"
#include "engine/job_paths.h"
#include "server/rpc/inproc.h"
#include "server/rpc/job_watch.h"
#include "server/scrub.h"
#include "server/rpc/rpc.h"
#include "server/net/sockfile.h"
#include "engine/train/queue/train_ended.h"
#include "runtime/tenants/tenant_rules.h"
#include "server/net/tls.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SERVER_LINGER_NS  1000000000u
#define SERVER_MAX_LISTEN 16

typedef struct server_listener {
    char *url;
    int claim; // the socket file's, or -1
} server_listener;

struct hth_server {
    hth_store *store;
    hth_store_worker *jobs;
    hth_scrub *scrub; // NULL: the store is not this process's alone
    hth_engine *engine;
    hth_job_watches *watches;
    hth_auth *auth;
    hth_tls *tls; // NULL: nothing is listened to that needs it
    hth_conns *conns;
    hth_rings *rings;
    hth_descriptors *descriptors;
    hth_allowances *allowances;
    hth_dispatch *dispatch;
    hth_inproc *inproc;
    hth_rpc *local, *network; // a loop each: nothing on a network keeps local clients waiting
    hth_http *http;
    bool stopped, saved, abandoned;
    hth_request tenants;          // has the engine read its file of tenants again
    atomic_bool tenants_reported; // .. and is with it
    int store_claim;              // -1: none
    int n_listeners;
    server_listener listeners[SERVER_MAX_LISTEN];
};

static bool url_is_tls(const char *url)
{
    return strncmp(url, "tls+tcp://", 10) == 0 || strncmp(url, "https://", 8) == 0;
}

// server_tls reads the certificate when anything is listened to that needs one.
static hth_err server_tls(hth_server *server, const hth_server_config *config)
{
    bool needed = (config->http != NULL && url_is_tls(config->http)) ||
                  (config->metrics != NULL && url_is_tls(config->metrics));
    for (int i = 0; i < config->n_listen; i++) {
        needed = needed || url_is_tls(config->listen[i]);
    }
    return needed ? hth_tls_open(&server->tls) : HTH_OK;
}

// server_warn_open says so when everybody on a network may ask for inference.
static void server_warn_open(const hth_server *server, const char *url)
{
    const char *host = strstr(url, "://");
    host = host != NULL ? host + 3 : url;
    bool local = strncmp(url, "ipc://", 6) == 0 || strncmp(url, "inproc://", 9) == 0 ||
                 strncmp(host, "127.", 4) == 0 || strncmp(host, "[::1]", 5) == 0 ||
                 strncmp(host, "localhost:", 10) == 0;
    if (!local && !hth_auth_has_tokens(server->auth)) {
        hth_log(WARN, SERVER, "open",
                "url=%s: everyone who can reach it may run every model; auth.tokens_file (hearth "
                "token) restricts access",
                url);
    }
}

static hth_err server_listen(hth_server *server, const char *url)
{
    if (server->n_listeners == SERVER_MAX_LISTEN) {
        return hth_fail(HTH_EINVAL, "more than %d urls to listen on", SERVER_MAX_LISTEN);
    }
    server_listener *l = &server->listeners[server->n_listeners++];
    l->claim = -1;
    l->url = hth_strdup(url);
    if (l->url == NULL) {
        return hth_no_memory("a url");
    }
    HTH_TRY(hth_sockfile_claim(url, &l->claim));
    if (strncmp(url, "inproc://", 9) == 0) {
        HTH_TRY(hth_inproc_listen(server->inproc, url));
    } else {
        hth_rpc *r = strncmp(url, "ipc://", 6) == 0 ? server->local : server->network;
        HTH_TRY(hth_rpc_listen(r, url));
    }
    server_warn_open(server, url);
    hth_log(INFO, SERVER, "listening", "url=%s", url);
    return HTH_OK;
}

// server_claim keeps a second server that goes on with training jobs off the store: both would.
static hth_err server_claim(hth_server *server, const char *store)
{
    char *path = hth_asprintf("%s/hearthd.lock", store);
    char *taken = hth_asprintf("another hearthd uses the store %s", store);
    hth_err err = path != NULL && taken != NULL
                      ? hth_sockfile_lock(path, taken, &server->store_claim)
                      : hth_no_memory("a path");
    hth_free(path);
    hth_free(taken);
    return err;
}

static hth_err server_auth(hth_server *server)
{
    char file[HTH_SETTING_TEXT], local[HTH_SETTING_TEXT];
    return hth_auth_open(hth_setting_text(HTH_SET_AUTH_TOKENS_FILE, file),
                         hth_setting_text(HTH_SET_AUTH_LOCAL, local), &server->auth);
}

// server_fronts makes everything through which requests come.
static hth_err server_fronts(hth_server *server, const hth_server_config *config,
                             const hth_wire_limits *limits)
{
    hth_rpc_config rpc = {.dispatch = server->dispatch,
                          .conns = server->conns,
                          .auth = server->auth,
                          .rings = server->rings,
                          .descriptors = server->descriptors,
                          .allowances = server->allowances,
                          .tls = server->tls,
                          .message_bytes = limits->message_bytes};
    for (int i = 0; i < config->n_listen; i++) {
        const char *url = config->listen[i];
        bool local = strncmp(url, "ipc://", 6) == 0;
        hth_rpc **r = local ? &server->local : &server->network;
        if (strncmp(url, "inproc://", 9) == 0) {
            HTH_TRY(server->inproc == NULL ? hth_inproc_open(server->dispatch, server->conns,
                                                             server->rings, &server->inproc)
                                           : HTH_OK);
        } else if (*r == NULL) {
            rpc.name = local ? "hth-local" : "hth-network";
            HTH_TRY(hth_rpc_open(&rpc, r));
        }
        HTH_TRY(server_listen(server, url));
    }
    HTH_TRY(server->local != NULL ? hth_rpc_start(server->local) : HTH_OK);
    return server->network != NULL ? hth_rpc_start(server->network) : HTH_OK;
}

static hth_err server_start(hth_server *server, const hth_server_config *config)
{
    hth_wire_limits limits = hth_wire_default_limits;
    limits.message_bytes = (uint64_t)hth_setting_int(HTH_SET_LIMIT_MESSAGE_BYTES);
    limits.rank = (uint32_t)hth_setting_int(HTH_SET_LIMIT_RANK);
    HTH_TRY(config->may_only_read ? hth_store_open_as_it_may(config->store, &server->store)
                                  : hth_store_open(config->store, true, false, &server->store));
    if (config->resume) {
        HTH_TRY(server_claim(server, config->store));
        if (hth_ended_lost(server->store) != HTH_OK) {
            hth_log(WARN, SERVER, "train", "lost jobs: %s", hth_err_detail());
        }
        if (hth_job_paths_begin(server->store) != HTH_OK) {
            hth_log(WARN, SERVER, "paths", "jobs may not find their data: %s", hth_err_detail());
        }
    }
    HTH_TRY(hth_store_worker_open(&server->jobs));
    HTH_TRY(server_auth(server));
    HTH_TRY(server_tls(server, config));
    HTH_TRY(hth_descriptors_open(&server->descriptors));
    HTH_TRY(hth_conns_open(server->auth, server->descriptors, &server->conns));
    HTH_TRY(hth_allowances_open(&server->allowances));
    HTH_TRY(hth_job_watches_open(&server->watches));
    hth_engine_config e = {.device = config->device,
                           .event = hth_job_watches_event,
                           .event_ctx = server->watches,
                           .resume = config->resume,
                           .child_store = config->child ? config->store : NULL};
    HTH_TRY(hth_engine_open(&e, server->store, &server->engine));
    HTH_TRY(hth_rings_open(server->engine, server->auth, &limits, &server->rings));
    hth_conns_share(server->conns, server->engine);
    hth_dispatch_config d = {.store = server->store,
                             .engine = server->engine,
                             .jobs = server->jobs,
                             .auth = server->auth,
                             .rings = server->rings,
                             .watches = server->watches,
                             .limits = limits};
    HTH_TRY(hth_dispatch_open(&d, &server->dispatch));
    HTH_TRY(server_fronts(server, config, &limits));
    if (config->http != NULL) {
        hth_http_config http = {.address = config->http,
                                .metrics = config->metrics,
                                .client_shm = config->client_shm,
                                .auth = server->auth,
                                .tls = server->tls,
                                .engine = server->engine,
                                .dispatch = server->dispatch,
                                .conns = server->conns,
                                .allowances = server->allowances,
                                .store = server->store,
                                .jobs = server->jobs};
        HTH_TRY(hth_http_open(&http, &server->http));
        server_warn_open(server, config->http);
    }
    hth_accept_measure();
    return config->resume ? hth_scrub_open(server->store, &server->scrub) : HTH_OK;
}

hth_err hth_server_open(const hth_server_config *config, hth_server **out)
{
    *out = NULL;
    hth_server *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("a server");
    }
    s->store_claim = -1;
    hth_err err = server_start(s, config);
    if (err != HTH_OK) {
        hth_server_close(s);
        return err;
    }
    *out = s;
    return HTH_OK;
}

static void server_unlisten(hth_server *server)
{
    for (int i = 0; i < server->n_listeners; i++) {
        hth_sockfile_release(server->listeners[i].url, server->listeners[i].claim);
        hth_free(server->listeners[i].url);
    }
    server->n_listeners = 0;
}

static void server_tenants_done(hth_request *request)
{
    hth_server *s = request->ctx;
    if (request->err != HTH_OK) {
        hth_log(ERROR, SERVER, "tenants", "%s", request->detail);
    }
    hth_free(request->json);
    atomic_store(&s->tenants_reported, false);
}

// The engine reads the file when it comes to it; one with a mistake is refused before.
static hth_err server_tenants(hth_server *server)
{
    char file[HTH_SETTING_TEXT];
    hth_tenant_rules rules;
    HTH_TRY(hth_tenant_rules_read(hth_setting_text(HTH_SET_TENANT_FILE, file), &rules));
    hth_tenant_rules_fini(&rules);
    if (file[0] == 0 || atomic_exchange(&server->tenants_reported, true)) {
        return HTH_OK;
    }
    server->tenants = (hth_request){.command = HTH_COMMAND_TENANTS,
                                    .arguments = "{\"read\":true}",
                                    .done = server_tenants_done,
                                    .ctx = server};
    hth_err err = hth_engine_submit(server->engine, &server->tenants);
    if (err != HTH_OK) {
        atomic_store(&server->tenants_reported, false);
    }
    return err;
}

hth_err hth_server_reload(hth_server *server)
{
    hth_err err = hth_auth_reload(server->auth);
    if (err == HTH_OK) {
        err = server_tenants(server);
    }
    if (err == HTH_OK) {
        err = hth_dispatch_reload(server->dispatch);
    }
    if (err != HTH_OK || server->tls == NULL) {
        return err;
    }
    return hth_tls_reload(server->tls);
}

hth_err hth_server_infer(hth_server *server, const char *token, char *tenant, bool here,
                         hth_request *request)
{
    hth_auth_tenant(server->auth, token, "embedded", tenant, HTH_TENANT);
    request->tenant = tenant;
    return here ? hth_engine_here(server->engine, request)
                : hth_engine_submit(server->engine, request);
}

int hth_server_http_port(const hth_server *server)
{
    return server->http != NULL ? hth_http_port(server->http) : 0;
}

int hth_server_metrics_port(const hth_server *server)
{
    return server->http != NULL ? hth_http_metrics_port(server->http) : 0;
}

// server_drain_http waits until HTTP has answered everything, until `end_ns`.
static hth_err server_drain_http(hth_server *server, uint64_t end_ns)
{
    while (server->http != NULL && hth_http_busy(server->http)) {
        if (hth_now_ns() >= end_ns) {
            return hth_fail(HTH_ETIMEDOUT, "requests over HTTP are not answered");
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return HTH_OK;
}

// server_drain_rpc waits until requests over rings and sockets are answered, until `limit_ns`
// after `start_ns`. Rings first: what is too large for them is fetched over the socket.
static hth_err server_drain_rpc(hth_server *server, uint64_t start_ns, uint64_t limit_ns)
{
    uint64_t gone_ns = hth_now_ns() - start_ns;
    HTH_TRY(hth_rings_stop(server->rings, gone_ns < limit_ns ? limit_ns - gone_ns : 1));
    gone_ns = hth_now_ns() - start_ns;
    return hth_dispatch_stop(server->dispatch, gone_ns < limit_ns ? limit_ns - gone_ns : 1);
}

// server_refuse accepts no more requests. The socket's come last: who is refused there is refused
// everywhere.
static void server_refuse(hth_server *server)
{
    hth_rings_refuse(server->rings);
    if (server->http != NULL) {
        hth_http_refuse(server->http);
    }
    hth_dispatch_refuse(server->dispatch);
}

// server_save has training jobs saved and ended, once.
static void server_save(hth_server *server)
{
    if (!server->saved) {
        server->saved = true;
        hth_engine_drain(server->engine);
    }
}

// server_answer waits until every accepted request is answered, until `limit_ns` from now; what
// runs after five sixths of that is canceled.
static hth_err server_answer(hth_server *server, uint64_t limit_ns)
{
    uint64_t cancel_ns = limit_ns / 6 * 5, start_ns = hth_now_ns();
    hth_err err = server_drain_rpc(server, start_ns, cancel_ns);
    if (err == HTH_OK) {
        err = server_drain_http(server, start_ns + cancel_ns);
    }
    if (err == HTH_ETIMEDOUT) {
        int n = hth_dispatch_cancel(server->dispatch) + hth_rings_cancel_all(server->rings);
        if (server->http != NULL) {
            n += hth_http_cancel(server->http);
        }
        hth_log(WARN, SERVER, "canceling", "requests=%d", n);
        server_save(server); // a request for training ends with its job
        err = server_drain_rpc(server, start_ns, limit_ns);
        if (err == HTH_OK) {
            err = server_drain_http(server, start_ns + limit_ns);
        }
    }
    return err;
}

hth_err hth_server_drain(hth_server *server, uint64_t limit_ns)
{
    hth_log(INFO, SERVER, "draining", "seconds=%" PRIu64, limit_ns / 1000000000u);
    server_refuse(server);
    server_save(server);
    return server_answer(server, limit_ns);
}

// server_disconnect ends the front ends of hearth's own clients.
static void server_disconnect(hth_server *server)
{
    if (server->local != NULL) {
        hth_rpc_stop(server->local, SERVER_LINGER_NS);
    }
    if (server->network != NULL) {
        hth_rpc_stop(server->network, SERVER_LINGER_NS);
    }
}

static void server_stopped(const hth_server *server)
{
    uint64_t answered, refused, ring_answered, ring_refused, http_answered = 0, http_refused = 0;
    hth_dispatch_count(server->dispatch, &answered, &refused);
    hth_rings_count(server->rings, &ring_answered, &ring_refused);
    if (server->http != NULL) {
        hth_http_count(server->http, &http_answered, &http_refused);
    }
    answered += ring_answered + http_answered;
    refused += ring_refused + http_refused;
    hth_log(INFO, SERVER, "stopped", "answered=%" PRIu64 " refused=%" PRIu64, answered, refused);
}

hth_err hth_server_stop(hth_server *server)
{
    uint64_t limit_ns = (uint64_t)hth_setting_int(HTH_SET_DRAIN_SECONDS) * 1000000000u;
    if (server->stopped) {
        return server->abandoned ? hth_fail(HTH_ETIMEDOUT, "requests are not answered") : HTH_OK;
    }
    server->stopped = true;
    hth_scrub_close(server->scrub);
    server->scrub = NULL;
    if (server->dispatch != NULL) {
        server_refuse(server);
        if (hth_dispatch_detached(server->dispatch) > 0) { // nobody waits for these
            server_save(server);
        }
        hth_err err = server_answer(server, limit_ns);
        if (err != HTH_OK) {
            server->abandoned = true;
            hth_log(ERROR, SERVER, "abandoned", "drain.seconds exceeded: %s", hth_err_detail());
            server_disconnect(server);
            server_unlisten(server);
            return hth_fail(err, "drain.seconds exceeded, and requests are not answered");
        }
    }
    if (server->http != NULL) {
        hth_http_stop(server->http);
    }
    server_disconnect(server);
    if (server->engine != NULL) {
        hth_engine_stop(server->engine);
    }
    hth_store_worker_close(server->jobs);
    server->jobs = NULL;
    if (server->inproc != NULL) {
        hth_inproc_halt(server->inproc);
    }
    if (server->dispatch != NULL) {
        server_stopped(server);
    }
    server_unlisten(server);
    return HTH_OK;
}

void hth_server_close(hth_server *server)
{
    if (server == NULL) {
        return;
    }
    if (hth_server_stop(server) != HTH_OK) {
        return; // threads still work in it
    }
    hth_http_close(server->http);
    hth_store_worker_close(
        server->jobs); // its thread may still be inside the call that sent the last answer
    hth_inproc_close(server->inproc);
    hth_rpc_close(server->local);
    hth_rpc_close(server->network);
    hth_dispatch_close(server->dispatch);
    hth_rings_close(server->rings);
    hth_engine_close(server->engine);
    hth_job_watches_close(server->watches);
    hth_descriptors_close(server->descriptors);
    hth_allowances_close(server->allowances);
    hth_conns_close(server->conns);
    hth_tls_close(server->tls);
    hth_auth_close(server->auth);
    hth_store_close(server->store);
    if (server->store_claim >= 0) {
        close(server->store_claim);
    }
    hth_free(server);
}
