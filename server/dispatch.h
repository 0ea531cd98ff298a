// SPDX-License-Identifier: Apache-2.0
// server/dispatch.h - takes requests from an nng socket, has them done, and sends the replies.
//
// Design notes
// A slot is an nng context with its aio and one request. Slots wait in receive; the aio's callback
// decodes the request and submits it to the engine at once, and the engine's `done` callback
// encodes the reply and sends it on the slot's context: no thread of our own stands in between.
// Requests that need no device run on the callback when they are short (cancel, progress, map,
// models) and on the job thread otherwise.
//
// A slot goes RECEIVING -> (callback) WORKING -> (done) SENDING -> (callback) RECEIVING. In WORKING
// it is listed as active under the dispatcher's lock, where cancel, progress and a lost connection
// find it. Who moves a slot out of a state owns it: no field of a slot is touched by two threads at
// once, except `canceled` and the progress, under the lock.
#ifndef HTH_SERVER_DISPATCH_H
#define HTH_SERVER_DISPATCH_H

#include "client/wire.h"
#include "server/conn.h"
#include "server/engine.h"
#include "server/jobs.h"
#include "server/rings.h"

typedef struct hth_dispatch hth_dispatch;

typedef struct hth_dispatch_config {
    nng_socket socket; // rep0
    hth_store *store;
    hth_engine *engine;
    hth_jobs *jobs;
    hth_conns *conns;
    hth_auth *auth;
    hth_rings *rings;
    hth_wire_limits limits;
    int slots; // requests in progress at once; 0: 256
} hth_dispatch_config;

// hth_dispatch_open starts receiving. Everything in the configuration must outlive the dispatcher.
hth_err hth_dispatch_open(const hth_dispatch_config *config, hth_dispatch **out);
// hth_dispatch_refuse answers what comes from now on with HTH_ECANCELED, but for questions about
// other requests.
void hth_dispatch_refuse(hth_dispatch *d);
// hth_dispatch_stop does the same and returns when everything accepted is answered. HTH_ETIMEDOUT:
// that took longer than `limit_ns` (0: whatever it takes), and can be called again.
hth_err hth_dispatch_stop(hth_dispatch *d, uint64_t limit_ns);
// hth_dispatch_cancel cancels what is being done, but for training jobs: those have checkpoints.
// Returns how many requests are not answered.
int hth_dispatch_cancel(hth_dispatch *d);
// hth_dispatch_halt ends all slots. Afterwards no call into nng is in progress: nng 1.5 does not
// survive closing a socket while another thread is inside nng_ctx_send. Engine and job thread must
// have ended.
void hth_dispatch_halt(hth_dispatch *d);
// hth_dispatch_close frees; after halt, and after the socket is closed. NULL is allowed.
void hth_dispatch_close(hth_dispatch *d);
// hth_dispatch_gone cancels what a lost connection had asked for.
void hth_dispatch_gone(hth_dispatch *d, const hth_conn *c);
// hth_dispatch_count tells how many requests were answered, and how many of those were refused
// because the server stops.
void hth_dispatch_count(hth_dispatch *d, uint64_t *answered, uint64_t *refused);
// hth_dispatch_large_reply_ns is when a reply larger than a socket's buffer was last sent; 0:
// never.
uint64_t hth_dispatch_large_reply_ns(hth_dispatch *d);

#endif
