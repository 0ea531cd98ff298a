// SPDX-License-Identifier: Apache-2.0
// engine/serve/serve.h - requests on the engine's thread, from the mailbox to their answer:
// accepted, queued, joined, run, counted.
//
// Design notes
// What arrived is looked at between two requests, between two operators of a run, and between two
// kernels that are prepared; so a request that is canceled or expires while it waits is answered
// although the thread is at work. While a program is compiled, requests that have theirs are
// served, one run at a time: making a larger bucket, or loading another model, stalls nobody for
// longer than one kernel takes to prepare. While algorithms are measured, they are served behind
// each piece: what one kernel takes to prepare, or two runs of it.
//
// Inferences wait in the batcher. Queries are answered before those that wait; what unloads a model
// is answered behind them.
#ifndef HTH_ENGINE_SERVE_SERVE_H
#define HTH_ENGINE_SERVE_SERVE_H

#include "engine/serve/memory_wait.h"
#include "engine/serve/batch_run.h"
#include "engine/serve/instances.h"

typedef struct hth_serve {
    // the engine's
    hth_models *ms;
    hth_request *(*mail)(void *ctx); // takes what has arrived; NULL: nothing
    void (*query)(void *ctx, hth_request *r);
    bool (*at_once)(void *ctx, hth_request *r); // answers a query that needs no turn; false: not
    void (*answer)(hth_request *r, hth_err err);
    // waits for what arrives, at most so long or until wake, and takes it; false: nothing will
    bool (*wait)(void *ctx, uint64_t ns);
    void (*wake)(void *ctx); // any thread
    void *ctx;
    int queue;          // requests that may wait; half of them for memory
    atomic_int waiting; // requests that were submitted and neither begun nor refused; any thread
    // its own
    hth_batcher batcher;
    hth_batch_run join;
    hth_memory_wait await;
    hth_instances spaces;
    hth_request *first, **last; // arrived, by `next`: queries, and inferences of models not loaded
    hth_model *wished;          // held: has waited long enough for a larger program; NULL: none
    uint64_t looked_ns;
    bool nested;         // serving inside a compilation or a measurement
    bool aside;          // inside what nobody waits for: a measurement's step, a wished program
    bool tuning, idle;   // inside a measurement's step; that began while nobody asked, and so far
    uint64_t piece_ns;   // when the thread last began with something that is not serving
    uint64_t aside_ns;   // since when something like that waits to begin; 0: nothing
    uint64_t tune_ns;    // when the next measurement may begin
    uint64_t compile_ns; // when a compilation may be interrupted for a run next
} hth_serve;

// hth_serve_stop answers what waits for memory.
void hth_serve_stop(hth_serve *s);

// hth_serve_init completes a serve whose upper half is set, and hooks it into the site.
void hth_serve_init(hth_serve *s);
void hth_serve_fini(hth_serve *s);

// What the batcher chose to be run at once.
typedef struct hth_pick {
    hth_infer_request *work[HTH_BATCH_ITEMS];
    int n;
    int64_t bucket, samples; // bucket 0: the one request, as it is
    uint64_t start_ns;
    hth_batch_bill bill;
} hth_pick;
// hth_serve_pick takes the next from the queues; false: there is none before *wake_ns.
bool hth_serve_pick(hth_serve *s, hth_batch_ask ask, hth_pick *out, uint64_t *wake_ns);
// hth_serve_ran answers a request whose result stands in it, or has it wait for memory.
void hth_serve_ran(hth_serve *s, hth_infer_request *w);
// hth_serve_look takes what has arrived and drops what waits no longer.
void hth_serve_look(hth_serve *s);
// hth_serve_take queues a request that arrived, or refuses it.
void hth_serve_take(hth_serve *s, hth_request *r);
// hth_serve_turn answers queries and one run's requests. hurry: waits for nobody. false: there was
// nothing to do before *wake_ns.
bool hth_serve_turn(hth_serve *s, bool hurry, uint64_t *wake_ns);
// hth_serve_between is a turn beside a training step: one run, for a request of at most
// this priority (1 is first); *priority: its. Queries wait. false: there was none.
bool hth_serve_between(hth_serve *s, uint32_t most, uint32_t *priority);
// hth_serve_empty says that nothing waits that could be run.
bool hth_serve_empty(const hth_serve *s);
// hth_serve_idle takes a step of what is done when nobody asks for anything. false: nothing is
// left, or somebody has asked meanwhile.
bool hth_serve_idle(hth_serve *s);
// hth_serve_tune takes a step towards measured algorithms while requests keep coming, in a
// twentieth of the time: a piece, and then requests until it is made up for.
void hth_serve_tune(hth_serve *s);

#endif
