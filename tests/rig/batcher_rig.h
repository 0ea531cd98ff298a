// SPDX-License-Identifier: Apache-2.0
// tests/rig/batcher_rig.h - a batcher whose runs take what the test says.
#ifndef HTH_TESTS_RIG_BATCHER_RIG_H
#define HTH_TESTS_RIG_BATCHER_RIG_H

#include "base/test.h"
#include "engine/serve/batcher.h"

#include <string.h>

#define MS 1000000u
#define US 1000u

// A model: what a run of so many samples takes (index: samples), 0: not timed, NONE: no program.
typedef struct rig {
    hth_batcher b;
    hth_batch_queue q, other;
    uint64_t time_ns[65];
    int64_t wanted; // last
    int64_t most;   // no program of more samples can be had; 0: all can
    int n_wants;
} rig;

static inline uint64_t rig_time(void *ctx, const hth_batch_item *like, int64_t samples)
{
    const rig *r = ctx;
    return samples <= 64 ? r->time_ns[samples] : HTH_BATCH_NONE;
}

// Items of different parity of their timeouts are of different shapes.
static inline bool rig_alike(void *ctx, const hth_batch_item *a, const hth_batch_item *b)
{
    return a->timeout_ns % 2 == b->timeout_ns % 2;
}

static inline bool rig_want(void *ctx, const hth_batch_item *like, int64_t samples)
{
    rig *r = ctx;
    if (r->most > 0 && samples > r->most) {
        return false;
    }
    r->wanted = samples;
    r->n_wants++;
    return true;
}

static inline void rig_init(rig *r)
{
    memset(r, 0, sizeof *r);
    hth_batch_oracle o = {rig_time, rig_alike, rig_want, r};
    hth_batcher_init(&r->b, &o);
    r->q.policy = r->other.policy = (hth_batch_policy){.max_samples = 32, .priority = 100};
    for (int i = 0; i <= 64; i++) {
        r->time_ns[i] = HTH_BATCH_NONE;
    }
    for (int i = 1; i <= 32; i *= 2) { // 1 ms, and 0.5 ms for each further sample
        r->time_ns[i] = (uint64_t)(i + 1) * MS / 2;
    }
}

static inline hth_batch_item item(int64_t samples, uint64_t arrived_ns)
{
    return (hth_batch_item){.samples = samples, .joins = true, .arrived_ns = arrived_ns};
}

#endif
