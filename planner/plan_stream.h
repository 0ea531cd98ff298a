// SPDX-License-Identifier: Apache-2.0
// planner/plan_stream.h - what a forward pass does with its memory: which algorithm each node uses,
// which weights stay, which are streamed and when each fetch may begin. Part of hth_plan_inference.
#ifndef HTH_PLANNER_PLAN_STREAM_H
#define HTH_PLANNER_PLAN_STREAM_H

#include "planner/plan_impl.h"

typedef struct hth_streamable {
    int tensor;
    uint64_t bytes; // rounded
    double copy_us;
} hth_streamable;

// A run of adjacent stages that use a weight. Sorted by `need`, which is the order of the link.
typedef struct hth_stream_use {
    int weight; // index of a hth_streamable
    int need, last;
    int previous; // the weight's use before, -1: none
} hth_stream_use;

typedef struct hth_stream_model {
    const hth_problem *p;
    const hth_buffers *buffers;
    int n_stages, n_weights, n_uses;
    uint64_t *base;  // bytes of live buffers per stage
    int *menu_start; // [n_stages + 1]
    hth_menu_item *menu;
    hth_streamable *weight;
    hth_stream_use *use;
    uint64_t resident_bytes; // with nothing streamed
    uint64_t fixed_bytes;    // resident that cannot be streamed
    // scratch of the decoder, [n_stages + 1] and [n_uses]
    uint64_t *used, *used_base;
    double *end_us, *latest_us;
} hth_stream_model;

typedef struct hth_stream_decision {
    bool *stream;   // per weight
    int *item;      // per stage: of its menu
    bool *fetched;  // per use: false when kept from the use before (or when not streamed)
    int *begin;     // per use: stage from which its bytes are taken
    double time_us; // INFINITY: does not fit
    double cost_us; // time and what the copies take from compute: what is minimised
    uint64_t link_bytes, resident_bytes;
} hth_stream_decision;

hth_err hth_stream_model_init(hth_stream_model *model, const hth_problem *problem,
                              const hth_buffers *buffers);
void hth_stream_model_fini(hth_stream_model *model);
hth_err hth_stream_decision_init(const hth_stream_model *model, hth_stream_decision *decision);
void hth_stream_decision_fini(hth_stream_decision *decision);

// hth_stream_minimal sets the decision that needs the fewest bytes, and returns how many that are.
uint64_t hth_stream_minimal(hth_stream_model *model, hth_stream_decision *decision);
// hth_stream_keep_all decides for all weights resident and, within `budget`, the fastest
// algorithms; time_us tells whether it fits. *fastest: nothing had to be degraded.
void hth_stream_keep_all(hth_stream_model *model, uint64_t budget, hth_stream_decision *decision,
                         bool *fastest);
// hth_stream_search finds the fastest decision for `budget` that it can; decision->time_us is
// INFINITY when there is none. warm: what `decision` streams is taken over, and searched no
// further, if it still fits. Deterministic.
hth_err hth_stream_search(hth_stream_model *model, uint64_t budget, uint64_t seed, bool warm,
                          hth_stream_decision *decision);

#endif
