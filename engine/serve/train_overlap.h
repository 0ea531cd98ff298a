// SPDX-License-Identifier: Apache-2.0
// engine/serve/train_overlap.h - inference beside a training job: a step runs in a compute space,
// and the engine's thread serves requests meanwhile, in memory of their own.
//
// Design notes
// Only requests for inference are served then; everything else waits for the step's end, because it
// may be about the job. Requests of priority 1 always come first; others as long as the job keeps
// its share. A step that a request meets is lowered at once, and so are those behind it while
// requests come: an operator that takes long delays nobody. While none do, steps have normal
// priority: on a machine that has other work, a job that nobody waits beside gets what every other
// process does. Threads cannot be raised again: the space is made anew then.
#ifndef HTH_ENGINE_SERVE_TRAIN_OVERLAP_H
#define HTH_ENGINE_SERVE_TRAIN_OVERLAP_H

#include "engine/serve/serve.h"
#include "engine/serve/instance.h"

typedef struct hth_train_overlap {
    hth_serve *serve;
    // its own
    hth_instance *space; // opened when it is first needed
    bool low;            // its priority
    uint64_t asked_ns;   // when a request was served last
    uint64_t alone_ns;   // since when the device is the step's
    double credit_ns;    // what requests of normal priority may take of steps
} hth_train_overlap;

// hth_train_overlap_init completes `b`, whose upper half is set, and hooks it into the site, if its
// device computes on the thread that asks it to. Engine's thread, like all of it.
void hth_train_overlap_init(hth_train_overlap *b);
void hth_train_overlap_fini(hth_train_overlap *b);

#endif
