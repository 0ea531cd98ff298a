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
#include "graph/tensor.h"
#include "modelstore/store.h"

#include <stdatomic.h>

typedef struct hth_engine hth_engine;

typedef struct hth_engine_config {
    const char *device; // "cpu:mem=2GiB,threads=2"; several, with blanks between: an engine for
                        // each, and requests go to one of them (router.h)
    int queue;          // requests that may wait; 0: 1024
    // what is told about training jobs (train.h), and {"state"} when it is another one; NULL:
    // nobody listens. Engine's thread; must not block
    void (*event)(void *ctx, const char *job, const char *what, uint64_t done, uint64_t total);
    void *event_ctx;
    bool resume; // go on with training jobs that an earlier engine on this store left behind
    // directory of the store: the engine is a child process that opens it (proxy.h); NULL: a
    // thread. The program must be one that begins with hth_child_asked. Of files that a query's
    // arguments name it opens those that the store has noted (job_paths.h)
    const char *child_store;
    // where the engine's thread notes when it looked for requests last (ns, CLOCK_MONOTONIC); NULL:
    // in the engine
    _Atomic uint64_t *turned_ns;
    bool inner; // of a router, or the process of another: that looked at what device is named
} hth_engine_config;

#define HTH_TENANT_OWN "hearth" // of what nobody asked for

// A tensor of a request. On an output t.data belongs to the submitter, always: NULL until `place`
// has set it.
#define HTH_REQUEST_FILES 2

typedef struct hth_request_tensor {
    const char *name; // borrowed; NULL on an input: the model's only one
    hth_tensor t;
    // of an output, while place is called: memory that holds the result already and that the
    // submitter may keep until hth_engine_release, by setting t.data to it; NULL: there is none
    void *offered;
} hth_request_tensor;

// From here on a tensor is worth being computed on where it lies in a client's memory.
#define HTH_SHARED_BYTES (64u << 10)

// hth_shared_in_place tells whether an input or output is computed on where it lies in memory into
// which its client may write at any time: large ones whose values never steer an address or a
// shape. All others are copied from there before anybody looks at them, and to there afterwards.
static inline bool hth_shared_in_place(const hth_tensor *t)
{
    return hth_dtype_is_float(t->dtype) && t->bytes > HTH_SHARED_BYTES;
}

typedef struct hth_request hth_request;
typedef struct hth_kept hth_kept; // outputs that stay where the engine's process put them

// Where a request is, for the router between several engines (router.h).
typedef struct hth_route {
    void *router, *model;
    void (*done)(hth_request *r); // the submitter's
    int device;
    uint32_t tried; // devices, by bits
    uint32_t later; // of these, that had no memory now, and did not have it wait
    int older;      // of a load: the version that still answers on a device where it failed
} hth_route;

struct hth_request {
    // what, filled by the submitter; everything borrowed until done
    const char *model; // "name" or "name:version"; NULL for a query
    const hth_request_tensor *inputs;
    int n_inputs;
    uint32_t priority;   // in the queue: 1 comes first; 0: the model's default
    uint64_t timeout_us; // to wait in the queue before HTH_ETIMEDOUT; 0: the model's default
    uint64_t waited_ns;  // before it was submitted: counts as waiting in the queue
    bool at_once;        // too little memory now is an answer, and not waited for
    // place is called once on the engine's thread when the outputs' names, dtypes, shapes and bytes
    // are known, and sets every out[i].t.data to memory of the submitter (64-byte alignment is
    // welcome, not needed) or to out[i].offered; in the former the results are written. The
    // submitter's memory must last until `done`.
    hth_err (*place)(hth_request *r, hth_request_tensor *out, int n_out);
    // The submitter can read outputs where another process has put them: they are offered to place.
    bool keeps;
    // outputs whose place is known before, in memory that was shared (hth_engine_share): name,
    // data, and bytes that there is room for; place has to say the same. Only a hint, may be NULL
    const hth_request_tensor *known;
    int n_known;
    // query: what to ask ("devices", "stats", "bench", "plan", "convsel", "model", "load",
    // "loaded", "unload", "batching", "precision", "train", "curve", "jobs", "job", "cancel",
    // "pause", "resume") with JSON arguments
    const char *query, *arguments;
    // of a query: descriptors that its arguments name by their index; borrowed until done
    int files[HTH_REQUEST_FILES], n_files;
    void (*progress)(hth_request *r, const char *what, uint64_t done,
                     uint64_t total); // may be NULL; engine's thread
    void (*done)(hth_request *r);     // called exactly once; r may be freed in it
    void *ctx;
    const char *tenant;  // who asks ("uid:1000", a token's name, "http"); NULL: the server itself
    bool admin;          // .. and may see and change jobs of others; set for queries
    bool own;            // the server asks in the tenant's name: nobody waits for the answer
    uint32_t deaths;     // of processes that were at work on it: "train" goes on where it was
    atomic_int canceled; // set by anyone: HTH_ECANCELED, at the latest at the next operator
    // answer
    hth_err err;
    char detail[512];
    hth_request_tensor *outputs; // what place filled; valid until done returns
    int n_outputs;
    hth_kept *kept; // not NULL: place took an offer; `done` takes it over (hth_engine_release)
    // of the model that answered; of a load that failed because a newer version was refused: the
    // one that still answers, 0: none
    int version;
    bool batched; // its outputs' first dimension is a batch
    char *json;   // answer of a query, hth_alloc'd: `done` takes it over
    uint64_t submitted_ns, started_ns, finished_ns;
    hth_request *next; // the engine's
    hth_route route;   // the router's
};

// hth_engine_open opens the device and starts the thread; `store` must outlive the engine.
hth_err hth_engine_open(const hth_engine_config *config, hth_store *store, hth_engine **out);
// hth_engine_watch has the engine's thread look into `w` while it waits for requests (spin.h);
// where the engine is a child process, the thread that waits for that. `w` must outlive it. Once.
void hth_engine_watch(hth_engine *e, const hth_poll_hook *w);
// hth_engine_look has the calling thread take what an engine that is a child process has answered,
// so that `done` and the other callbacks of requests, its own above all, come here and now. `on`:
// it looks again soon, and as long as all requests are its own nobody else is woken for answers;
// false before it sleeps or works on something else for long. One thread, at most one at a time.
// Returns whether anything came.
bool hth_engine_look(hth_engine *e, bool on);
// hth_engine_drain has all training jobs end with a checkpoint, behind what was submitted before;
// it does not wait. Once, by the owner.
void hth_engine_drain(hth_engine *e);
// hth_engine_stop refuses new requests, answers the accepted ones, and waits for the thread.
void hth_engine_stop(hth_engine *e);
void hth_engine_close(hth_engine *e); // stops if needed; NULL is allowed

// hth_engine_submit hands a request over. HTH_EBUSY: the queue is full, HTH_ECANCELED: stopping;
// then done is not called. HTH_EDEVLOST: the engine's process keeps dying.
hth_err hth_engine_submit(hth_engine *e, hth_request *r);
// hth_engine_ready tells whether requests are worked on now: a child process may be away for a
// moment, and requests wait. Any thread.
bool hth_engine_ready(hth_engine *e);
// hth_engine_stalled_ns is for how long the engine's thread has not looked for requests, of several
// engines the shortest time; 0: not known. A kernel or a benchmark may keep it for long, and nobody
// is served meanwhile. Any thread.
uint64_t hth_engine_stalled_ns(hth_engine *e);
// hth_engine_share tells that [base, base + bytes) is mapped from `fd` at `offset`, so that a child
// process can map it, too, and inputs that lie there are not copied; until hth_engine_unshare, when
// no request uses it any more. `fd` stays the caller's. Any thread.
void hth_engine_share(hth_engine *e, int fd, uint64_t offset, const void *base, size_t bytes);
void hth_engine_unshare(hth_engine *e, const void *base);
// hth_engine_alloc gives memory for a request's tensors, aligned to 64 bytes, where a child process
// sees it, too, so that inputs there are not copied. NULL: there is none. Any thread.
void *hth_engine_alloc(hth_engine *e, size_t bytes);
void hth_engine_free(hth_engine *e, void *p); // before the engine is closed; NULL is allowed
// hth_engine_release gives up outputs that a request has left. Any thread, before the engine is
// closed; NULL is allowed.
void hth_engine_release(hth_kept *kept);

#endif
