// SPDX-License-Identifier: Apache-2.0
// server/rpc/rpc_slot_impl.h - the inside of the dispatcher: shared by dispatch.c (the state
// machine), rpc_slot.c (what the engine answers) and rpc_slot_store.c (what a thread answers from
// the store).
#ifndef HTH_SERVER_RPC_RPC_SLOT_IMPL_H
#define HTH_SERVER_RPC_RPC_SLOT_IMPL_H

#include "client/wire.h"
#include "graph/onnx/onnx.h"
#include "server/rpc/dispatch.h"
#include "server/rpc/job_watch.h"
#include "server/rpc/rpc_tensors.h"
#include "runtime/checkpoint_index.h"
#include "runtime/tenants/owner.h"

#include <pthread.h>

typedef struct hth_progress {
    char what[400];
    uint64_t done, total;
} hth_progress;

typedef enum hth_rpc_slot_state {
    HTH_RPC_SLOT_TAKEN,   // its front end's
    HTH_RPC_SLOT_WORKING, // the engine's or the job thread's
    HTH_RPC_SLOT_ENDED,
} hth_rpc_slot_state;

#define HTH_RPC_SLOT_DATA 3 // datasets of a job: those of "data", "eval" and "start"

struct hth_rpc_slot {
    hth_dispatch *d;
    hth_rpc_slot_state state;
    hth_rpc_slot_kind kind;
    hth_command_id command; // of a query; HTH_COMMAND_NONE: it is none, or asks for none there is
    bool placed, reserved;  // counted; among those of administrators
    const hth_front *front;
    void *back;
    hth_rpc_slot *newer, **older;  // of the same connection, in its list; under d->lock
    hth_rpc_slot *after, **before; // all
    hth_conn *conn;
    Hearth__Request *q;
    hth_request r;
    char tenant[HTH_TENANT];
    hth_progress progress; // under d->lock
    hth_message message;   // the request; q's data section lies in it
    const uint8_t *data;
    uint64_t data_bytes;
    hth_rpc_tensors_inputs in;
    nng_msg *reply; // made by place, sent by done
    hth_store_task job;
    int file;              // that an export writes to, passed by its client; -1: none
    hth_onnx_given *given; // files of an import that its client has passed
    int n_given;
    hth_put_result put;    // of an import
    const char *made;      // .. the name of its model
    char *arguments;       // .. and of its question to the engine
    char *changed;         // a query's arguments where they are not as they came, from json_dumps
    bool leaves;           // a training job that its client leaves as soon as it is taken
    bool detached;         // .. it is: no connection, no front end, no place; under d->lock
    hth_tenant_part *part; // .. of limits.detached_jobs; under d->lock
    uint64_t job_id, uid;  // .. its number; whose the files that were passed for it are
    char job_name[HTH_CHECKPOINT_JOB];
    bool keeps_data;              // a training job whose data was stored for it (rpc_slot_data.c)
    int claim[HTH_RPC_SLOT_DATA]; // .. its datasets, until the store has it, or it ends; -1: none
    int losses;                   // of the engine's process while it was asked
    hth_job_waiter watch;         // of a watch
    uint64_t watch_last;          // .. the event after which its job's are kept
};

typedef struct hth_dispatch_watcher {
    void (*freed)(void *ctx);
    void *ctx;
} hth_dispatch_watcher;

#define HTH_RPC_SLOT_LOSSES  3
#define HTH_DISPATCH_CONTENT 2 // threads for pieces of content

struct hth_dispatch {
    hth_store *store;
    hth_engine *engine;
    hth_store_worker *jobs;
    hth_store_worker *lists;  // of models, and jobs that begin: they wait for no import
    hth_store_worker *checks; // of all that is stored: they take long, and nobody waits for them
    hth_store_worker *content[HTH_DISPATCH_CONTENT];
    hth_tenant_rules tenants; // under `lock`
    hth_auth *auth;
    hth_rings *rings;
    hth_job_watches *watches;
    hth_wire_limits limits;
    pthread_rwlock_t watching; // guards `watch`
    hth_dispatch_watcher watch[HTH_DISPATCH_WATCHES];
    pthread_mutex_t lock;
    pthread_cond_t idle;
    hth_rpc_slot *slots;                          // all that are not ended
    int n_working;                                // of them
    int n_placed[HTH_RPC_SLOT_KINDS], n_reserved; // by kind; administrators' beyond the limits
    int n_detached;
    hth_tenant_parts parts; // of limits.detached_jobs
    bool stopping;
    uint64_t n_answered, n_refused;
};

// Each of these ends the request, and the slot: it is freed when they return.
void hth_rpc_slot_send(hth_rpc_slot *slot, nng_msg *msg);
void hth_rpc_slot_reply(hth_rpc_slot *slot, Hearth__Reply *reply);
void hth_rpc_slot_document(hth_rpc_slot *slot, const char *json);

void hth_rpc_slot_infer(hth_rpc_slot *slot);
void hth_rpc_slot_query(hth_rpc_slot *slot);
void hth_rpc_slot_watch(hth_rpc_slot *slot);   // the query "watch"
void hth_rpc_slot_train(hth_rpc_slot *slot);   // the query "train"
void hth_rpc_slot_job(hth_rpc_slot *slot);     // import, export, remove, gc
void hth_rpc_slot_verify(hth_rpc_slot *slot);  // the query "verify"
void hth_rpc_slot_models(hth_rpc_slot *slot);  // the list of models
void hth_rpc_slot_alias(hth_rpc_slot *slot);   // the query "alias"
void hth_rpc_slot_content(hth_rpc_slot *slot); // content by ids; hth_rpc_slot_is_content, or commit
bool hth_rpc_slot_is_content(const Hearth__Request *request);
// hth_rpc_slot_stored goes on with a version of the model `name` that slot->put has put.
void hth_rpc_slot_stored(hth_rpc_slot *slot, const char *name, bool no_wait);
// hth_rpc_slot_plain is a sentence as the slot's peer may read it.
void hth_rpc_slot_plain(const hth_rpc_slot *slot, const char *sentence, char *out, size_t cap);
// hth_rpc_slot_is_dataset: the query is about datasets of the store, which hth_rpc_slot_dataset
// answers.
bool hth_rpc_slot_is_dataset(const hth_rpc_slot *slot);
void hth_rpc_slot_dataset(hth_rpc_slot *slot);
// hth_rpc_slot_caller finds out who asks for something of the store, and sets slot->tenant.
hth_caller hth_rpc_slot_caller(hth_rpc_slot *slot);
// hth_rpc_slot_know finds out who asks; hth_rpc_slot_files takes what came with a query and checks
// its arguments.
void hth_rpc_slot_know(hth_rpc_slot *slot);
hth_err hth_rpc_slot_files(hth_rpc_slot *slot);
// hth_rpc_slot_keep_data stores the datasets that were passed with a training job, and names them
// in its arguments. It blocks.
hth_err hth_rpc_slot_keep_data(hth_rpc_slot *slot, json_t *args);
// hth_rpc_slot_claim_data keeps a training job's datasets for it, however long it waits before it
// reads them: one that its client leaves has them by its checkpoint then, of another nothing else
// says so. HTH_ENOENT: what its client has sent for it is not there any more.
hth_err hth_rpc_slot_claim_data(hth_rpc_slot *slot, const json_t *args);
void hth_rpc_slot_unclaim_data(hth_rpc_slot *slot);
// hth_rpc_slot_has_data tells whether it has claimed or stored any. hth_rpc_slot_drop_data has it
// let go of them, when the job was refused or has ended, and removes those that came with it and
// that no other job needs. It blocks.
bool hth_rpc_slot_has_data(const hth_rpc_slot *slot);
void hth_rpc_slot_drop_data(hth_rpc_slot *slot);
// hth_rpc_slot_close_files closes what its client has passed for a request.
void hth_rpc_slot_close_files(hth_rpc_slot *slot);
// hth_rpc_slot_kind_of says what a request is that is not answered at once.
hth_rpc_slot_kind hth_rpc_slot_kind_of(const Hearth__Request *request, hth_command_id command);

// hth_rpc_slot_told answers with a document, and frees it; one that tells about this machine
// without that, to peers elsewhere.
void hth_rpc_slot_told(hth_rpc_slot *slot, char *json, bool tells);
// hth_rpc_slot_read finds out who asks, and checks a query's arguments; where they are not as they
// came, slot->changed has them. "watch" always has them there.
hth_err hth_rpc_slot_read(hth_rpc_slot *slot);
// hth_rpc_slot_refused answers with the error of a command. About jobs of others nobody learns more
// than about jobs that are not there.
void hth_rpc_slot_refused(hth_rpc_slot *slot, hth_err err, const char *sentence);
// hth_rpc_slot_may_name: HTH_EDENIED where the peer may not have the server open files by their
// paths.
hth_err hth_rpc_slot_may_name(const hth_rpc_slot *slot);
// hth_rpc_slot_detach answers with what is known of a job that is taken, and lets its client go;
// nothing happens where that is gone, or has canceled it.
void hth_rpc_slot_detach(hth_rpc_slot *slot, const char *state);
// hth_rpc_slot_taken is that answer, NULL: no memory for it.
nng_msg *hth_rpc_slot_taken(const hth_rpc_slot *slot, const char *state);

void hth_rpc_slot_set_progress(hth_rpc_slot *slot, const char *what, uint64_t done, uint64_t total);

#endif
