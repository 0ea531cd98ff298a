// SPDX-License-Identifier: Apache-2.0
// server/rpc/dispatch.h - requests of hearth's own clients, from their message to their reply.
//
// Design notes
// A slot is one request, from the moment its message is whole until its reply is with its front
// end: it is made for it and freed after it. Front ends (rpc.h for sockets, inproc.h inside a
// process) hand in messages and take replies; the engine's `done` callback encodes the reply and
// hands it over on its own thread. A slot never waits for a peer: what nobody reads is the front
// end's to count and to drop.
//
//
// A training job that its client leaves to the server (the argument "detach") is answered as
// soon as the engine has taken it. From then on its slot is nobody's but the dispatcher's: it
// has no connection, no front end and no place, and ends with the job. limits.detached_jobs
// bounds them.
//
// Requests that need neither device nor store are answered in hth_dispatch_take. Others are SHORT
// (inferences, questions) or LONG (training that is waited for, imports, measurements). Both have
// places: a front end asks for one before it runs a slot. SHORT ones may wait for theirs; LONG ones
// are refused without, because they may last for hours. Who watches a training job needs none: it
// waits in a table of its own (job_watch.h), which has its limits. Some places are kept back for
// what local administrators ask, so that nobody else's requests can keep them out.
//
// Who moves a slot out of a state owns it: no field is touched by two threads at once, except
// `canceled`, the progress and the lists, under the dispatcher's lock.
#ifndef HTH_SERVER_RPC_DISPATCH_H
#define HTH_SERVER_RPC_DISPATCH_H

#include "client/wire.h"
#include "server/rpc/conn.h"
#include "engine/engine.h"
#include "runtime/store_worker.h"
#include "server/rpc/rings.h"

#include <nng/nng.h>

typedef struct hth_dispatch hth_dispatch;
typedef struct hth_job_watches hth_job_watches;
typedef struct hth_rpc_slot hth_rpc_slot;

typedef struct hth_dispatch_config {
    hth_store *store;
    hth_engine *engine;
    hth_store_worker *jobs;
    hth_auth *auth;
    hth_rings *rings;
    hth_job_watches *watches;
    hth_wire_limits limits;
} hth_dispatch_config;

// hth_dispatch_open: everything in the configuration must outlive the dispatcher.
hth_err hth_dispatch_open(const hth_dispatch_config *config, hth_dispatch **out);
// hth_dispatch_reload reads the limits of tenants again; on error they stay as they were.
hth_err hth_dispatch_reload(hth_dispatch *dispatch);
// hth_dispatch_refuse answers what comes from now on with HTH_ECANCELED, but for questions about
// other requests, and cancels the reading of stores.
void hth_dispatch_refuse(hth_dispatch *dispatch);
// hth_dispatch_stop does the same and returns when everything accepted is answered. HTH_ETIMEDOUT:
// that took longer than `limit_ns` (0: whatever it takes), and can be called again.
hth_err hth_dispatch_stop(hth_dispatch *dispatch, uint64_t limit_ns);
// hth_dispatch_cancel cancels what is being done, but for training jobs: those have checkpoints.
// Returns how many requests are not answered.
int hth_dispatch_cancel(hth_dispatch *dispatch);
// hth_dispatch_close frees; engine and job thread must have ended, and no front end may call any
// more. NULL is allowed.
void hth_dispatch_close(hth_dispatch *dispatch);
// hth_dispatch_gone cancels what a connection that ended had asked for.
void hth_dispatch_gone(hth_dispatch *dispatch, hth_conn *conn);
// hth_dispatch_detached is how many training jobs are at work or wait without their clients.
int hth_dispatch_detached(hth_dispatch *dispatch);
// hth_dispatch_count tells how many requests were answered, and how many of those were refused
// because the server stops.
void hth_dispatch_count(hth_dispatch *dispatch, uint64_t *answered, uint64_t *refused);

// ---- for front ends

// A request's frame, in memory that is the slot's from hth_dispatch_take on.
typedef struct hth_message {
    const uint8_t *frame;
    size_t bytes;
    void *owner;
    void (*free)(void *owner);
} hth_message;

// What a slot calls of its front end, with what that gave for it (`back`). Any thread; both may
// take locks but must not wait.
typedef struct hth_front {
    // answer is called once, when the message is freed and the slot needs its front end no more. It
    // takes `reply` over; NULL: there is none, because nobody is there to get it, or no memory.
    void (*answer)(void *back, nng_msg *reply);
    // reserve is called before a reply of so many bytes is made. HTH_EBUSY: there is none. NULL:
    // always
    hth_err (*reserve)(void *back, uint64_t bytes);
} hth_front;

typedef enum hth_rpc_slot_kind {
    HTH_RPC_SLOT_SHORT,
    HTH_RPC_SLOT_LONG,
    HTH_RPC_SLOT_WATCH,
    HTH_RPC_SLOT_KINDS
} hth_rpc_slot_kind;

// hth_dispatch_take decodes a message, checks whether its sender may ask that, and answers at once
// where it may not or where no engine is needed: then *out is NULL. Else *out is a slot in TAKEN,
// for hth_rpc_slot_run or hth_rpc_slot_fail. HTH_ENOMEM: nothing was taken, and nothing is
// answered. The message is freed in any case.
hth_err hth_dispatch_take(hth_dispatch *dispatch, hth_conn *conn, const hth_message *message,
                          const hth_front *front, void *back, hth_rpc_slot **out);
hth_rpc_slot_kind hth_rpc_slot_get_kind(const hth_rpc_slot *slot);
// hth_rpc_slot_is_admin: a local administrator asks, and it is no inference.
bool hth_rpc_slot_is_admin(const hth_rpc_slot *slot);
// hth_rpc_slot_place counts the slot among those that are worked on, until it ends. False: no place
// is free for it now.
bool hth_rpc_slot_place(hth_rpc_slot *slot);
void hth_rpc_slot_run(hth_rpc_slot *slot);
// hth_rpc_slot_fail answers with an error; hth_rpc_slot_drop ends a slot in TAKEN whose client is
// gone.
void hth_rpc_slot_fail(hth_rpc_slot *slot, hth_err err, const char *sentence);
void hth_rpc_slot_drop(hth_rpc_slot *slot);

// hth_dispatch_watch has `freed` called whenever a place becomes free; any thread, after the slot's
// answer. Before front ends start; at most HTH_DISPATCH_WATCHES.
#define HTH_DISPATCH_WATCHES 4
void hth_dispatch_watch(hth_dispatch *dispatch, void (*freed)(void *ctx), void *ctx);
// hth_dispatch_unwatch: `freed` is not called any more when it returns.
void hth_dispatch_unwatch(hth_dispatch *dispatch, void *ctx);

#endif
