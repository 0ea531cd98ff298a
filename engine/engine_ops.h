// SPDX-License-Identifier: Apache-2.0
// engine/engine_ops.h - what an implementation of an engine is: a table of calls, and the head of
// its state. There are three: a thread of this process (local/), a child process (process/), and
// the engines of several devices as one (router/). engine.c calls them through the table; each call
// promises what the one of its name in engine.h does.
#ifndef HTH_ENGINE_ENGINE_OPS_H
#define HTH_ENGINE_ENGINE_OPS_H

#include "engine/engine.h"

typedef struct hth_engine_ops {
    hth_err (*submit)(hth_engine *e, hth_request *r);
    void (*watch)(hth_engine *e, const hth_poll_hook *w);
    bool (*look)(hth_engine *e, bool on);
    void (*drain)(hth_engine *e);
    void (*stop)(hth_engine *e);
    void (*close)(hth_engine *e); // stops if needed, and frees e
    bool (*ready)(hth_engine *e);
    uint64_t (*stalled_ns)(hth_engine *e);
    void (*share)(hth_engine *e, int fd, uint64_t offset, const void *base, size_t bytes);
    void (*unshare)(hth_engine *e, const void *base);
    void *(*alloc)(hth_engine *e, size_t bytes); // NULL: it has no memory of its own for requests
    bool (*free)(hth_engine *e, void *p);        // false: p is not from alloc
} hth_engine_ops;

// The first member of each implementation's state.
struct hth_engine {
    const hth_engine_ops *ops;
    char name[64]; // of its device, the only one of the server; "": there are others
};

// hth_turn_age_ns is how long ago a turn was noted; 0: none was.
uint64_t hth_turn_age_ns(const _Atomic uint64_t *turned_ns);

#endif
