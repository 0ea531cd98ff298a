// SPDX-License-Identifier: Apache-2.0
// server/rpc/rings_impl.h - the inside of rings.h: shared by rings.c (the table, the threads) and
// ring_call.c (one request).
#ifndef HTH_SERVER_RPC_RINGS_IMPL_H
#define HTH_SERVER_RPC_RINGS_IMPL_H

#include "base/mailbox.h"
#include "base/ipc/ring.h"
#include "client/wire.h"
#include "server/rpc/rpc_tensors.h"
#include "server/rpc/rings.h"

#include <pthread.h>

typedef struct hth_ring_call hth_ring_call;
typedef struct hth_ring_client hth_ring_client;

struct hth_rings {
    hth_engine *engine;
    hth_auth *auth;
    hth_wire_limits limits;
    hth_poll_hook hook;
    pthread_mutex_t lock;     // guards `clients`
    hth_ring_client *clients; // not ended
    _Atomic int n_listed;     // of them
    _Atomic int n_clients;    // mapped, those included that are ending
    _Atomic int n_working;    // requests that are not answered
    _Atomic int n_retained;   // answers that are not fetched
    atomic_bool stopping;
    _Atomic uint64_t n_answered, n_refused;
};

// A call that was canceled before it was found: it may be among what was sent before.
typedef struct hth_ring_cancel {
    uint64_t call, before; // a position in the ring
} hth_ring_cancel;

// One client's ring.
struct hth_ring_client {
    hth_rings *t;
    hth_conn *conn; // held
    hth_ring_layout layout;
    void *memory;
    size_t bytes;
    _Atomic int refs;       // 1 of the list, 1 of its thread, 1 of each call
    pthread_mutex_t taking; // guards the next one
    hth_ring *requests;
    pthread_mutex_t lock;     // guards what follows
    hth_ring **replies;       // a channel each
    hth_ring_call *calls;     // in progress
    hth_ring_call *retained;  // answered, to be fetched
    int n_calls;              // of both
    uint64_t listed;          // the position up to which what came is a call
    hth_ring_cancel *cancels; // room for hth_ring_calls_most
    int n_cancels;
    bool ended; // nothing is kept any more
    hth_ring_client *next;
};

// hth_ring_serve takes the messages that are there, at most a few, and submits them, as long as the
// work is no more than *left bytes, which it counts off. Under `taking`. HTH_ETIMEDOUT: no more are
// there; HTH_EBUSY: the next one is more; HTH_ECANCELED, HTH_ECORRUPT and others: the ring is to be
// ended.
hth_err hth_ring_serve(hth_ring_client *client, uint64_t *left);
int hth_ring_calls_most(const hth_ring_client *client); // that there may be at a time
void hth_ring_client_rele(hth_ring_client *client);
// hth_ring_calls_end frees the replies that nobody fetched, and has no more kept.
void hth_ring_calls_end(hth_ring_client *client);
// hth_ring_calls_cancel cancels what is in progress; `call` 0: all. Returns how many. One call that
// is not may be in the ring yet, and is canceled when it comes.
int hth_ring_calls_cancel(hth_ring_client *client, uint64_t call);
nng_msg *hth_ring_calls_fetch(hth_ring_client *client, uint64_t call); // NULL: not there

// hth_ring_message checks the head of a message of `bytes`, of which as much was read as there is.
// HTH_ECORRUPT: it names no channel that could be answered; HTH_EINVAL: it has no room for a token.
// Its record is checked by wire.h.
hth_err hth_ring_message(const hth_ring_layout *layout, const hth_channel_head *head, size_t bytes);

#endif
