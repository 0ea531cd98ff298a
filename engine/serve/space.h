// SPDX-License-Identifier: Apache-2.0
// engine/serve/space.h - a compute space: a thread with a compute team of its own that walks runs, so
// that the engine's thread can go on serving meanwhile.
//
// Design notes
// Pool, residency, programs and plans stay the engine's. What a space is given is work whose memory
// is there: a run whose pointers are bound, a batch to gather. It does it and says how that went.
// It takes no memory of the device and decides nothing. A space of low priority computes while
// nothing else wants the processors: the system takes them from it at once, in the middle of an
// operator.
#ifndef HTH_ENGINE_SERVE_SPACE_H
#define HTH_ENGINE_SERVE_SPACE_H

#include "base/err.h"

#include <stdbool.h>

typedef struct hth_space hth_space;

typedef struct hth_space_config {
    const char *name;        // of its thread
    int threads;             // of its team
    void (*done)(void *ctx); // work is done; on the space's thread
    void *ctx;
} hth_space_config;

// hth_space_open starts the thread. HTH_ENOMEM.
hth_err hth_space_open(const hth_space_config *config, hth_space **out);
void hth_space_close(hth_space *s); // waits for its work; NULL is allowed
// hth_space_start has an idle space call work(arg); nobody else touches what that works on until
// hth_space_wait has returned.
void hth_space_start(hth_space *s, hth_err (*work)(void *arg), void *arg);
bool hth_space_busy(const hth_space *s);
// hth_space_lower makes it one of low priority, from now on, also what it is at work on.
void hth_space_lower(hth_space *s);
// hth_space_wait waits for the end of what was started last and returns its result, with its
// sentence.
hth_err hth_space_wait(hth_space *s);

#endif
