// SPDX-License-Identifier: Apache-2.0
// engine/engine_ops.h - what an implementation of an engine is: a table of calls, and the head of
// its state. There are three: a thread of this process (local/), a child process (process/), and
// the engines of several devices as one (router/). engine.c calls them through the table; each call
// promises what the one of its name in engine.h does.
#ifndef HTH_ENGINE_ENGINE_OPS_H
#define HTH_ENGINE_ENGINE_OPS_H

#include "engine/engine.h"

typedef struct hth_engine_ops {
    hth_err (*submit)(hth_engine *engine, hth_request *request);
    // false: it is to be submitted; NULL: always
    bool (*here)(hth_engine *engine, hth_request *request);
    void (*set_poll_hook)(hth_engine *engine, const hth_poll_hook *hook);
    bool (*poll)(hth_engine *engine, bool on);
    void (*drain)(hth_engine *engine);
    void (*stop)(hth_engine *engine);
    void (*close)(hth_engine *engine); // stops if needed, and frees it
    bool (*ready)(hth_engine *engine);
    uint64_t (*stalled_ns)(hth_engine *engine);
    void (*share)(hth_engine *engine, int fd, uint64_t offset, const void *base, size_t bytes);
    void (*unshare)(hth_engine *engine, const void *base);
    void *(*alloc)(hth_engine *engine,
                   size_t bytes); // NULL: it has no memory of its own for requests
    bool (*free)(hth_engine *engine, void *memory); // false: it is not from alloc
} hth_engine_ops;

// The first member of each implementation's state.
struct hth_engine {
    const hth_engine_ops *ops;
    char name[64];    // of its device, the only one of the server; "": there are others
    hth_store *store; // where aliases are looked up; NULL: requests come from who has done so
};

// The head of what keeps outputs that a request has left (hth_engine_release).
struct hth_retained {
    void (*release)(hth_retained *retained);
};

// hth_poll_age_ns is how long ago a turn was noted; 0: none was.
uint64_t hth_poll_age_ns(const _Atomic uint64_t *polled_ns);

#endif
