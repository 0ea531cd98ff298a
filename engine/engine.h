// SPDX-License-Identifier: Apache-2.0
// engine/engine.h - the owner of one device: a thread that takes requests from a mailbox and
// answers them.
//
// Design notes
// Nothing outside this thread touches the device, the pool, residency or a program. Requests come
// in by hth_engine_submit from any thread and leave by their `done` callback on the engine's
// thread; the callback must not block. Hence the engine can be a thread (embedded, tests) or the
// body of a child process (daemon) alike.
#ifndef HTH_ENGINE_ENGINE_H
#define HTH_ENGINE_ENGINE_H

#include "base/mailbox.h"
#include "modelstore/store.h"
#include "runtime/request.h"

typedef struct hth_engine hth_engine;

typedef struct hth_engine_config {
    const char *device; // "cpu:mem=2GiB,threads=2"; several, with blanks between: an engine for
                        // each, and requests go to one of them (router.h)
    int queue;          // requests that may wait; 0: queue.length
    // what is told about training jobs (train.h), and {"state"} when it is another one; NULL:
    // nobody listens. Engine's thread; must not block
    void (*event)(void *ctx, const char *job, const char *what, uint64_t done, uint64_t total);
    void *event_ctx;
    bool resume; // go on with training jobs that an earlier engine on this store left behind
    // directory of the store: the engine is a child process that opens it (proxy.h); NULL: a
    // thread. The program must be one that begins with hth_child_requested. Of files that a query's
    // arguments name it opens those that the store has noted (job_paths.h)
    const char *child_store;
    // where the engine's thread notes when it looked for requests last (ns, CLOCK_MONOTONIC); NULL:
    // in the engine
    _Atomic uint64_t *polled_ns;
    bool inner; // of a router, or the process of another: that looked at what device is named
} hth_engine_config;

// hth_engine_open opens the device and starts the thread; `store` must outlive the engine.
hth_err hth_engine_open(const hth_engine_config *config, hth_store *store, hth_engine **out);
// hth_engine_set_poll_hook has the engine's thread look into `hook` while it waits for requests
// (spin.h); where the engine is a child process, the thread that waits for that. `hook` must
// outlive it. Once.
void hth_engine_set_poll_hook(hth_engine *engine, const hth_poll_hook *hook);
// hth_engine_poll has the calling thread take what an engine that is a child process has answered,
// so that `done` and the other callbacks of requests, its own above all, come here and now. `on`:
// it looks again soon, and as long as all requests are its own nobody else is woken for answers;
// false before it sleeps or works on something else for long. One thread, at most one at a time.
// Returns whether anything came.
bool hth_engine_poll(hth_engine *engine, bool on);
// hth_engine_drain has all training jobs end with a checkpoint, after what was submitted before;
// it does not wait. Once, by the owner.
void hth_engine_drain(hth_engine *engine);
// hth_engine_stop refuses new requests, answers the accepted ones, and waits for the thread.
void hth_engine_stop(hth_engine *engine);
void hth_engine_close(hth_engine *engine); // stops if needed; NULL is allowed

// hth_engine_submit hands a request over. HTH_EBUSY: the queue is full, HTH_ECANCELED: stopping;
// then done is not called. HTH_EDEVLOST: the engine's process keeps dying.
hth_err hth_engine_submit(hth_engine *engine, hth_request *request);
// hth_engine_here is the same for an inference that its caller waits for: where the engine is a
// thread of this process that has nothing else to do, and the model is small, the calling thread
// computes, and `done` was called on it when this returns.
hth_err hth_engine_here(hth_engine *engine, hth_request *request);
// hth_engine_ready tells whether requests are worked on now: a child process may be away for a
// moment, and requests wait. Any thread.
bool hth_engine_ready(hth_engine *engine);
// hth_engine_stalled_ns is for how long the engine's thread has not looked for requests, of several
// engines the shortest time; 0: not known. A kernel or a benchmark may keep it for long, and nobody
// is served meanwhile. Any thread.
uint64_t hth_engine_stalled_ns(hth_engine *engine);
// hth_engine_share tells that [base, base + bytes) is mapped from `fd` at `offset`, so that a child
// process can map it, too, and inputs that lie there are not copied; until hth_engine_unshare, when
// no request uses it any more. `fd` is the caller's, who closes it only after that. Any thread.
void hth_engine_share(hth_engine *engine, int fd, uint64_t offset, const void *base, size_t bytes);
void hth_engine_unshare(hth_engine *engine, const void *base);
// hth_engine_alloc gives memory for a request's tensors, aligned to 64 bytes, where a child process
// sees it, too, so that inputs there are not copied. NULL: there is none. Any thread.
void *hth_engine_alloc(hth_engine *engine, size_t bytes);
void hth_engine_free(hth_engine *engine,
                     void *memory); // before the engine is closed; NULL is allowed
// hth_engine_release gives up outputs that a request has left. Any thread, before the engine is
// closed; NULL is allowed.
void hth_engine_release(hth_retained *retained);

#endif
