// SPDX-License-Identifier: Apache-2.0
// engine/serve/instance.h - an instance: a thread with a compute team of its own that walks
// runs, so that the engine's thread can go on serving meanwhile.
//
// Design notes
// Pool, residency, programs and plans stay the engine's. An instance is given work whose memory
// is there: a run whose pointers are bound, a batch to gather. It does it and says how that went.
// It takes no memory of the device and decides nothing. An instance of low priority computes while
// nothing else wants the processors: the system takes them from it at once, in the middle of an
// operator.
#ifndef HTH_ENGINE_SERVE_INSTANCE_H
#define HTH_ENGINE_SERVE_INSTANCE_H

#include "base/err.h"

#include <stdbool.h>

typedef struct hth_instance hth_instance;

typedef struct hth_instance_config {
    const char *name;        // of its thread
    int threads;             // of its team
    void (*done)(void *ctx); // work is done; on the instance's thread
    void *ctx;
} hth_instance_config;

// hth_instance_open starts the thread. HTH_ENOMEM.
hth_err hth_instance_open(const hth_instance_config *config, hth_instance **out);
void hth_instance_close(hth_instance *instance); // waits for its work; NULL is allowed
// hth_instance_start has an idle instance call work(arg); nobody else touches what that works on
// until hth_instance_wait has returned.
void hth_instance_start(hth_instance *instance, hth_err (*work)(void *arg), void *arg);
bool hth_instance_busy(const hth_instance *instance);
// hth_instance_lower makes it one of low priority, from now on, also what it is at work on.
void hth_instance_lower(hth_instance *instance);
// hth_instance_wait waits for the end of what was started last and returns its result, with its
// sentence.
hth_err hth_instance_wait(hth_instance *instance);

#endif
