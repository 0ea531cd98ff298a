// SPDX-License-Identifier: Apache-2.0
// engine/serve/train_overlap.h - where training steps compute: a thread with a team of its own, so
// that the engine's thread serves requests meanwhile, in memory of their own.
//
// Design notes
// A step that a request meets is lowered at once, and so are those after it while requests come: an
// operator that takes long delays nobody. While none do, steps have normal priority: on a machine
// that has other work, a job gets what every other process does. Threads cannot be raised again:
// the instance is made anew then. How much requests may take of a step's time is up to the run
// queue (serve_loop.c). Engine's thread, like all of it.
#ifndef HTH_ENGINE_SERVE_TRAIN_OVERLAP_H
#define HTH_ENGINE_SERVE_TRAIN_OVERLAP_H

#include "engine/serve/instance.h"
#include "sched/work.h"

typedef struct hth_train_overlap {
    // the owner's
    int threads;             // of the device
    void (*wake)(void *ctx); // wakes the engine's thread: a step has ended. Any thread
    void *ctx;
    // its own
    hth_work_other other;   // for the device's run queue
    hth_instance *instance; // opened when it is first needed
    bool low;               // its priority
    uint64_t requested_ns;  // when a request was served last
} hth_train_overlap;

// hth_train_overlap_init completes `overlap`, whose upper half is set.
void hth_train_overlap_init(hth_train_overlap *overlap);
void hth_train_overlap_fini(hth_train_overlap *overlap);
// hth_train_overlap_lower keeps the step at work out of the way of requests, which wait: of the
// processors, and of spinning threads, which would yield it theirs. Again while they do.
void hth_train_overlap_lower(hth_train_overlap *overlap);

#endif
