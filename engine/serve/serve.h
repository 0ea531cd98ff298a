// SPDX-License-Identifier: Apache-2.0
// engine/serve/serve.h - requests on the engine's thread, from the mailbox to their answer:
// accepted, queued, joined, run, counted.
//
// Design notes
// Inferences wait in the batcher; those whose program is there are run on the loop's own stack, one
// run after the other. Everything that may take longer is a work (sched/work.h): queries and
// inferences whose model or program is not there yet, programs compiled on demand, measuring,
// loads and training jobs. One of them is in progress at a time, and the run queue decides between
// it and the requests that wait; while a training step computes in an instance, there may be
// another.
//
// What arrived is looked at at every preemption point, also between two operators of a run; so a
// request that is canceled or expires while it waits is answered although the thread is at work.
//
// Queries are answered before inferences that wait; what unloads a model is answered after them.
#ifndef HTH_ENGINE_SERVE_SERVE_H
#define HTH_ENGINE_SERVE_SERVE_H

#include "engine/serve/memory_wait.h"
#include "engine/serve/batch_run.h"
#include "engine/serve/instances.h"
#include "engine/serve/train_overlap.h"
#include "runtime/tenants/tenant.h"
#include "sched/turns.h"
#include "sched/work.h"

// What the batcher chose to be run at once.
typedef struct hth_pick {
    hth_infer_request *work[HTH_BATCH_ITEMS];
    int n;
    int64_t bucket, samples; // bucket 0: the one request, as it is
    uint64_t start_ns;
    hth_batch_bill bill;
} hth_pick;

// What the loop has done on a stack of its own.
typedef enum hth_serve_kind {
    HTH_SERVE_REQUESTED, // somebody waits for it: a query, a model to load, a program to compile
    HTH_SERVE_JOBS,      // a slice of loads and training jobs
    HTH_SERVE_COMPILE,   // a program that is demanded
    HTH_SERVE_MEASURE,   // a step towards measured algorithms
    HTH_SERVE_GUEST,     // as REQUESTED, while a training step computes in its instance
    HTH_SERVE_WORKS
} hth_serve_kind;

typedef struct hth_serve_work {
    hth_work work; // first
    // the models' tenant and request, while it is in progress
    const char *tenant;
    const hth_request *asks;
} hth_serve_work;

typedef struct hth_serve {
    // the engine's
    hth_models *ms;
    hth_request *(*mail)(void *ctx); // takes what has arrived; NULL: nothing
    void (*query)(void *ctx, hth_request *request);
    bool (*at_once)(void *ctx,
                    hth_request *request); // answers a query that computes nothing; false: not
    void (*answer)(hth_request *request, hth_err err);
    // waits for what arrives, at most so long or until wake, and takes it; false: nothing will
    bool (*wait)(void *ctx, uint64_t ns);
    void (*wake)(void *ctx); // any thread
    // due: loads or training jobs want a slice; job: runs one. false: it had nothing to do
    bool (*due)(void *ctx);
    bool (*job)(void *ctx);
    void *ctx;
    int queue;          // requests that may wait; half of them for memory
    hth_turns *turns;   // the tenants' accounts, for runs as for steps; NULL: nobody trains
    atomic_int waiting; // requests that were submitted and neither begun nor refused; any thread
    // its own
    hth_batcher batcher;
    hth_batch_run batch_run;
    hth_memory_wait memory_wait;
    hth_instances instances;
    hth_request *first, **last; // arrived, by `next`: queries, and inferences of models not loaded
    hth_model *demanded;        // held: has waited long enough for a larger program; NULL: none
    uint64_t polled_ns;
    // who computes next (serve_loop.c)
    hth_work_queue works;
    hth_run_item runs; // the requests that wait in the batcher
    hth_serve_work work[HTH_SERVE_WORKS];
    hth_train_overlap overlap;
    hth_pick pick;         // work.n > 0: to be run by a work, since its program is not there
    bool before;           // what waited for memory is run before anything else
    bool arrived;          // something in `first` that was not looked at
    bool answered;         // all requests that arrived since the last slice of a job
    bool jobless;          // the last slice of a job had nothing to do
    uint64_t requested_ns; // when something arrived, or was run, last
    uint64_t alone_ns;     // since when a step computes and nobody else does
    uint64_t guest_ns;     // what was compiled during a step took so far
    uint64_t measured_ns;  // when it is looked for something to measure next while requests come
} hth_serve;

// hth_serve_stop answers what waits for memory.
void hth_serve_stop(hth_serve *serve);

// hth_serve_init completes a serve whose upper half is set, and hooks it into the site.
void hth_serve_init(hth_serve *serve);
void hth_serve_fini(hth_serve *serve);

// hth_serve_pick takes the next from the queues; false: there is none before *wake_ns.
bool hth_serve_pick(hth_serve *serve, hth_batch_filter filter, hth_pick *out, uint64_t *wake_ns);
// hth_serve_settle charges the tenants of a run what it took until now.
void hth_serve_settle(hth_serve *serve, const hth_batch_bill *bill, uint64_t took_ns,
                      uint64_t now_ns);
// hth_serve_ran answers a request whose result stands in it, or has it wait for memory.
void hth_serve_ran(hth_serve *serve, hth_infer_request *infer);
// hth_serve_poll takes what has arrived and drops what waits no longer.
void hth_serve_poll(hth_serve *serve);
// hth_serve_take queues a request that arrived, or refuses it.
void hth_serve_take(hth_serve *serve, hth_request *request);
// hth_serve_here takes an inference on the thread that asks for it, which has the engine for as
// long (local.c). Where nothing else waits or is at work, and the model is small, it is answered
// when this returns; else *left says that the engine's thread has to be woken. false: nothing was
// done.
bool hth_serve_here(hth_serve *serve, hth_request *request, bool *left);
// hth_serve_iterate is one iteration of the loop: takes what arrived, and runs who is next.
// hurry: the engine stops; nothing waits for others, or begins that nobody waits for. false: there
// was nothing to do before *wake_ns.
bool hth_serve_iterate(hth_serve *serve, bool hurry, uint64_t *wake_ns);
// hth_serve_tuning says that algorithms are being measured for nobody in particular.
bool hth_serve_tuning(const hth_serve *serve);
// hth_serve_over says that nothing waits that could be run, and nothing is in progress.
bool hth_serve_over(const hth_serve *serve);

#endif
