// SPDX-License-Identifier: Apache-2.0
// planner/plan_address_impl.h - what the two searches of hth_address_assign share: the rectangles,
// who shares a stage with whom, and the best placement so far.
#ifndef HTH_PLANNER_PLAN_ADDRESS_IMPL_H
#define HTH_PLANNER_PLAN_ADDRESS_IMPL_H

#include "planner/plan_impl.h"

typedef struct hth_address_span {
    uint64_t lo, hi;
} hth_address_span;

typedef struct hth_address {
    hth_rect *r;
    int n, n_stages;
    const uint64_t *load;     // per stage: bytes of its rectangles
    int *start, *neighbour;   // adjacency, neighbours of i: neighbour[start[i] .. start[i + 1])
    int *order;               // placing order
    uint64_t *key;            // sort keys of the current order
    hth_address_span *placed; // hi == 0: not placed yet (or without bytes)
    hth_address_span *near;   // scratch: placed neighbours of one rectangle
    uint64_t *best;           // offsets of the best placement
    uint64_t best_height, goal, peak;
    int64_t visits, most; // steps so far (neighbours looked at); where the search ends
} hth_address;

static inline bool hth_address_done(const hth_address *address)
{
    return address->best_height <= address->goal || address->visits > address->most;
}

// hth_address_pass places all in a->order, each into the tightest interval between its placed
// neighbours (or, with `lowest`, into the first), and keeps the placement if it is the lowest so
// far.
void hth_address_pass(hth_address *address, bool lowest);
// hth_address_stream places all as they are born and die (numbers of the rectangles, by first and
// by last stage), once.
hth_err hth_address_stream(hth_address *address, const int *by_first, const int *by_last);
// hth_address_skyline looks for orders, and passes them, until hth_address_done.
hth_err hth_address_skyline(hth_address *address);

#endif
