// SPDX-License-Identifier: Apache-2.0
// engine/process/child_impl.h - the inside of the engine's process: child.c (messages, settings,
// the process), child_call.c (requests and answers), child_region.c (clients' memory),
// child_confine.c (what it may open).
#ifndef HTH_ENGINE_PROCESS_CHILD_IMPL_H
#define HTH_ENGINE_PROCESS_CHILD_IMPL_H

#include "base/hash.h"
#include "base/log.h"
#include "base/mailbox.h"
#include "engine/process/child.h"
#include "engine/process/child_link.h"
#include "engine/process/sandbox.h"

#include <jansson.h>

typedef struct child child;

typedef struct child_call {
    child *c;
    const hth_ipc_record *record; // in the slab `in`
    hth_child_ask ask;
    hth_request_tensor *inputs; // and after them the places of outputs that are known
    void *data, *far;           // blocks of the slab: outputs, a large answer; guarded by c->lock
    bool answered;              // guarded by c->lock
    uint64_t reported_ns;
} child_call;

typedef struct child_region {
    uint32_t number;
    char *data;
    uint64_t bytes;
    bool writable;
    int guard; // -1: cannot shrink
    UT_hash_handle hh;
} child_region;

struct child {
    const hth_child_config *config;
    hth_child_link link;
    json_t *hello; // what `open` points into
    struct {
        const char *store, *device;
        int queue, resume, loose; // loose: it may open what it likes, and nothing else
    } open;
    hth_sandbox sandbox;
    hth_store *store;
    hth_engine *engine;
    child_call *calls;
    child_region *regions;
    hth_poll_hook hook;
    pthread_mutex_t taking; // of messages
    pthread_mutex_t lock;
    atomic_bool ended;
};

// ---- child_call.c

// child_take submits the request of a message, or answers it. process->taking is held.
void child_take(child *process, const hth_child_head *head, const char *body, size_t bytes);
// child_release gives the blocks of an answer back; c->lock is held.
void child_release(child_call *call);

// ---- child_confine.c

// child_is_confined tells whether this process is to be confined.
bool child_is_confined(void);
// child_confine has users' files opened by hearthd, and gives up everything but what this process
// needs, where it is to be confined. Before there is another thread.
hth_err child_confine(child *process);

// ---- child_region.c: c->taking is held

// child_region_at is the address of what a tensor says of a region; NULL: it is not there.
void *child_region_at(child *process, const hth_ipc_record_tensor *tensor, bool write);
// child_region_take maps what hearthd passes on. A request that needs what could not be mapped says
// so.
void child_region_take(child *process, const hth_child_head *head);
void child_region_forget(child *process, uint32_t number);
void child_region_close(child *process); // all

#endif
