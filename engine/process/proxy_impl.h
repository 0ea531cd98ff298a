// SPDX-License-Identifier: Apache-2.0
// engine/process/proxy_impl.h - the inside of the engine's proxy: proxy.c (lifetime),
// proxy_supervisor.c (the thread that keeps a child), proxy_call.c (requests and answers),
// proxy_child.c (one child, from its start to its end, and what it loads again), proxy_region.c
// (memory that both see).
//
// The supervisor is the one thread that starts children (the kernel ends them when it ends). It
// receives from them and calls `place`, `progress` and `done` of requests, unless another thread
// that has requests of its own polls for their answers (proxy_take_now): whoever does holds
// `taking`.
#ifndef HTH_ENGINE_PROCESS_PROXY_IMPL_H
#define HTH_ENGINE_PROCESS_PROXY_IMPL_H

#include "engine/engine_ops.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/process/child_link.h"
#include "engine/process/proxy.h"

typedef struct hth_proxy hth_proxy;

// Children one after the other that did not start, or lived less than PROXY_LIVED_NS from then on.
#define PROXY_LOST     8
#define PROXY_LIVED_NS 10000000000u

typedef enum proxy_phase { PROXY_DOWN, PROXY_STARTING, PROXY_UP } proxy_phase;

// FREE -> FILLING -> (WAITING <->) SENT -> (RETAINED ->) FREE. What ends otherwise than by the
// child's answer is FILLING again until it is taken out.
typedef enum proxy_state {
    PROXY_FREE,
    PROXY_FILLING,
    PROXY_WAITING,
    PROXY_SENT,
    PROXY_RETAINED // answered; its outputs are read where the child put them
} proxy_state;

// The slab of one child's outputs: mapped until the last of them is given up, which may be after
// the child's end. Guarded by the proxy's lock.
typedef struct proxy_out {
    hth_slab *slab;
    int fd, refs;
} proxy_out;

typedef struct proxy_retained {
    hth_retained head;
    hth_proxy *p;
    proxy_out *out;
    int entry;
} proxy_retained;

typedef struct proxy_call {
    proxy_state state;
    hth_request *r;
    hth_ipc_record *record; // in the slab, the request's own or one that was made for it
    void *data;             // block of the slab: inputs that were copied; may be NULL
    uint64_t order;         // in which they are sent: that of submission, mostly
    bool again;             // ours: to load what was loaded
    int crashes;            // of children that had it and had not begun with it
    hth_err refused;        // why no child can be given it
    bool own;               // of the thread that polls
    int next;               // of the free list, -1: none
} proxy_call;

// A client's memory.
typedef struct proxy_region {
    const void *base;
    uint32_t number;
    int fd; // who shares it keeps it open
    uint64_t offset, bytes;
    uint64_t known; // number of the last child that got it; 0: none did
    struct proxy_region *next;
    UT_hash_handle hh;
} proxy_region;

typedef struct proxy_model {
    char spec[216];
    bool pinned, asked; // asked: a request of ours to load it is not answered
    UT_hash_handle hh;
} proxy_model;

typedef struct proxy_end {
    const char *word; // "signal", "exit"
    int number;
} proxy_end;

struct hth_proxy {
    hth_engine engine;
    char *device, *store;
    int queue;
    bool resume;
    void (*event)(void *ctx, const char *job, const char *what, uint64_t done, uint64_t total);
    void *event_ctx;
    hth_slab *in;
    int in_fd, in_reader; // the latter is the children's
    uint64_t in_bytes;
    pthread_t thread;
    bool running;
    _Atomic(const hth_poll_hook *) hook; // NULL: none
    pthread_mutex_t taking; // of messages, and of all that follows from one; before `lock`
    bool up;                // guarded by it: there is a child to receive from
    pthread_mutex_t lock;   // of all that follows, up to the supervisor's
    pthread_cond_t changed;
    proxy_phase phase;
    bool stopping, draining, opened;
    bool stop_sent, drain_sent; // to the child that is up
    hth_err open_err;
    char open_detail[512];
    pid_t pid;
    uint64_t child;      // its number, from 1 on: ids of processes come again
    hth_child_link link; // of a child that is starting or up
    int files;           // socket over which files are opened for it (child_files.h), -1: none
    pthread_t opener;    // that thread
    proxy_call *calls;
    int n_calls, high, first_free, in_flight; // high: calls from there on were never used
    int n_retained, n_waiting;                // calls whose state is RETAINED, WAITING
    int others;                               // of those in flight: not of the thread that polls
    pthread_t poller;                         // that thread, where there is one
    bool polling, polled; // there is one; it has said to the ring that nobody need be woken
    uint64_t order;
    proxy_region *regions;
    uint32_t last_region;
    proxy_region *forgotten; // by `next`: gone here, and the child is not told yet
    int crashes;             // so many, one after the other
    // the supervisor's
    proxy_model *models;
    proxy_out *out;             // of the child that is starting or up
    uint64_t started_ns, up_ns; // of the last child; 0: it is not up, and was not
    uint64_t next_start_ns, next_tick_ns, next_heartbeat_ns, heartbeats, settings;
    char filter[HTH_LOG_FILTER_TEXT];
    int missed, beats; // heartbeats that did not come; looks at them while it starts or ends
    bool loose; // children are not confined to the store: a GPU's driver does not start in one
    bool again; // .. which the first child has found out: the next one takes its place
    atomic_bool lost; // the child is to be ended: it lost its device, or says nonsense
};

static inline hth_proxy *hth_proxy_of(hth_engine *engine)
{
    return (hth_proxy *)engine;
}

// The table's calls (engine_ops.h), and what proxy.h says of one.
hth_err hth_proxy_submit(hth_engine *engine, hth_request *request);
void hth_proxy_share(hth_engine *engine, int fd, uint64_t offset, const void *base, size_t bytes);
void hth_proxy_unshare(hth_engine *engine, const void *base);
void *hth_proxy_alloc(hth_engine *engine, size_t bytes);
bool hth_proxy_free(hth_engine *engine, void *block);

// ---- proxy_supervisor.c

// proxy_supervise is the supervisor's thread.
void proxy_supervise(void *proxy);
// proxy_tell_end has the child drain and stop, in that order, where that is wished and it was not
// told: after all that was accepted before. The ring may be full: the next tick tries again. Lock
// held.
void proxy_tell_end(hth_proxy *proxy);
// proxy_take_now is `poll` of the table: takes what the child has sent, on this thread, which goes
// on polling while `on`.
bool proxy_take_now(hth_engine *engine, bool on);
// proxy_stop_polling has the supervisor woken for answers; `lock` is held, and a child is up.
void proxy_stop_polling(hth_proxy *proxy);

// ---- proxy_call.c

// proxy_call_free gives the entry back, or keeps nothing but that where the state is RETAINED; lock
// held.
void proxy_call_free(hth_proxy *proxy, proxy_call *call);
// proxy_submit_again is hth_proxy_submit for what a child is to load again, before it is given
// anything: sent before what waits to be loaded, unloaded, pinned or unpinned.
hth_err proxy_submit_again(hth_proxy *proxy, hth_request *request);
// proxy_send_waiting sends what waits, in order of submission; HTH_EBUSY: there is no room for all
// of it. Lock held.
hth_err proxy_send_waiting(hth_proxy *proxy);
// proxy_tick does for requests what only time brings: cancellation, timeouts. Supervisor.
void proxy_tick(hth_proxy *proxy);
// proxy_message takes a message of the child. proxy->taking is held, here and below.
void proxy_message(hth_proxy *proxy, const hth_child_head *head, const char *body, size_t bytes);
// proxy_bury answers the requests that a dead child had begun with `sentence`, and has the others
// wait; all: those, too. Supervisor.
void proxy_bury(hth_proxy *proxy, const char *sentence, bool all);

// ---- proxy_child.c

hth_err proxy_start(hth_proxy *proxy); // supervisor
void proxy_greet(hth_proxy *proxy);    // sends HELLO, or has the child ended. Supervisor
void proxy_settings(hth_proxy *proxy); // sends them when they have changed. Supervisor
// proxy_ended tells whether the child has ended, and how; wait: until it has. Supervisor.
bool proxy_ended(hth_proxy *proxy, bool wait, proxy_end *how);
void proxy_forget_child(hth_proxy *proxy); // what is shared with it. Supervisor
// proxy_out_rele gives up one use of outputs; lock not held.
void proxy_out_rele(hth_proxy *proxy, proxy_out *out);

// What a new child is to load. proxy->taking is held.
void proxy_models_note(hth_proxy *proxy, const hth_request *request); // one that was answered well
void proxy_models_again(hth_proxy *proxy); // asks a new child for all, before it is up
void proxy_models_close(hth_proxy *proxy);

// ---- proxy_region.c

// proxy_locate says in *out where the child sees a tensor; false: it has to be copied.
bool proxy_locate(hth_proxy *proxy, const hth_tensor *tensor, hth_ipc_record_tensor *out);
// proxy_output_at is where an output lies: in the child's slab, or where the call's client has a
// place for one. NULL: in neither.
void *proxy_output_at(const hth_proxy *proxy, const proxy_call *call,
                      const hth_ipc_record_tensor *tensor);

// These with the lock held.

// proxy_region_send makes sure that the child has what a record needs.
hth_err proxy_region_send(hth_proxy *proxy, const hth_ipc_record *record);
// proxy_region_forget tells the child of what is gone, as far as there is room; known: there is
// nothing to tell, the child is new.
void proxy_region_forget(hth_proxy *proxy, bool known);
void proxy_region_close(hth_proxy *proxy); // all

#endif
