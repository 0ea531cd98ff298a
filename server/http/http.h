// SPDX-License-Identifier: Apache-2.0
// server/http/http.h - the Open Inference Protocol (KServe v2) over HTTP/1.1.
//
// Design notes
// One thread runs libevent's loop. What needs the engine is submitted to it, as
// requests from nng are, and the loop goes on; the engine's `done` puts the call on a lock-free
// list and wakes the loop by an eventfd. Nothing of a connection is touched by another thread, so
// nothing is locked.
#ifndef HTH_SERVER_HTTP_HTTP_H
#define HTH_SERVER_HTTP_HTTP_H

#include "server/net/auth.h"
#include "engine/engine.h"
#include "runtime/store_worker.h"
#include "server/net/allowance.h"
#include "server/net/tls.h"
#include "server/rpc/dispatch.h"

typedef struct hth_http hth_http;

typedef struct hth_http_config {
    const char *address; // "127.0.0.1:8000", "https://[::1]:8000"; port 0: one that is free
    const char *metrics; // the same for /metrics; NULL: there is none
    bool client_shm;     // clients may register shared memory
    hth_engine *engine;  // these must outlive the front end
    hth_dispatch *dispatch;
    hth_conns *conns;
    hth_allowances *allowances;
    hth_auth *auth;
    hth_tls *tls; // NULL: neither address is https://
    hth_store *store;
    hth_store_worker *jobs;
} hth_http_config;

// hth_http_check: HTH_EINVAL says why `address` is none to listen at.
hth_err hth_http_check(const char *address);
// hth_http_open listens and starts the thread. Limits come from base/settings.h. HTH_EINVAL: the
// address is none; HTH_EBUSY, HTH_EIO: it cannot be listened on.
hth_err hth_http_open(const hth_http_config *config, hth_http **out);
int hth_http_port(const hth_http *http);
int hth_http_metrics_port(const hth_http *http); // 0: none
// hth_http_refuse answers new requests of connections that there are with 503 from now on; accepted
// ones go on.
void hth_http_refuse(hth_http *http);
// hth_http_busy tells whether an accepted request is not answered yet. Any thread.
bool hth_http_busy(hth_http *http);
// hth_http_cancel cancels all accepted requests, and returns how many there are. Any thread.
int hth_http_cancel(hth_http *http);
// hth_http_stop refuses new requests with 503, answers the accepted ones, and ends the thread. The
// engine must still run.
void hth_http_stop(hth_http *http);
// hth_http_count tells how many requests were answered, and how many of these only to say that the
// server stops. After hth_http_stop.
void hth_http_count(const hth_http *http, uint64_t *answered, uint64_t *refused);
void hth_http_close(hth_http *http); // stops if needed; NULL is allowed

#endif
