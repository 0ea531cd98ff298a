// SPDX-License-Identifier: Apache-2.0
// server/slot.h - the inside of the dispatcher: shared by dispatch.c (the state machine) and
// request.c (what takes long).
#ifndef HTH_SERVER_SLOT_H
#define HTH_SERVER_SLOT_H

#include "client/msg.h"
#include "server/dispatch.h"
#include "server/frame.h"
#include "server/tenant_rules.h"

#include <pthread.h>

typedef struct hth_progress {
    char what[400];
    uint64_t done, total;
} hth_progress;

typedef struct hth_slot {
    hth_dispatch *d;
    nng_ctx ctx;
    nng_aio *aio;
    bool sending; // what the aio is doing
    bool active;  // guarded by d->lock, as is what follows up to `progress`
    hth_conn *conn;
    Hearth__Request *q;
    hth_request r;
    char tenant[HTH_TENANT];
    hth_progress progress;
    nng_msg *msg; // the request; q's data section lies in it
    const uint8_t *data;
    uint64_t data_bytes;
    hth_frame_inputs in;
    nng_msg *reply; // made by place, sent by done
    hth_job job;
    hth_put_result put; // of an import
    char *arguments;    // .. and of its question to the engine
} hth_slot;

struct hth_dispatch {
    hth_store *store;
    hth_engine *engine;
    hth_jobs *jobs;
    hth_conns *conns;
    hth_auth *auth;
    hth_rings *rings;
    hth_wire_limits limits;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int n_working; // requests taken and not yet sent
    bool stopping;
    uint64_t large_reply_ns, n_answered, n_refused;
    int n_slots;
    hth_slot *slots;
};

// Each of these ends the request: the slot belongs to the next one when they return.
void hth_slot_send(hth_slot *s, nng_msg *msg);
void hth_slot_reply(hth_slot *s, Hearth__Reply *r);
void hth_slot_fail(hth_slot *s, hth_err err, const char *sentence);
void hth_slot_document(hth_slot *s, const char *json);

void hth_slot_infer(hth_slot *s);
void hth_slot_query(hth_slot *s);
void hth_slot_job(hth_slot *s); // import, export, remove, gc

void hth_slot_set_progress(hth_slot *s, const char *what, uint64_t done, uint64_t total);
void hth_slot_reset(hth_slot *s, nng_msg *msg); // an empty request around `msg`
void hth_slot_clear(hth_slot *s);               // frees what the request holds

#endif
