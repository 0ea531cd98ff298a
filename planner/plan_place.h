// SPDX-License-Identifier: Apache-2.0
// planner/plan_place.h - a forward pass's decision (plan_stream.h) as rectangles with addresses,
// and as instructions. Part of hth_plan_inference.
#ifndef HTH_PLANNER_PLAN_PLACE_H
#define HTH_PLANNER_PLAN_PLACE_H

#include "planner/plan_stream.h"

typedef struct hth_placement {
    const hth_problem *p;
    hth_buffers buffers;
    hth_stream_model model;
    hth_stream_decision decision;
    // Rectangles: buffers first, then the workspaces of stages and the places of fetches; -1: none.
    int n_rects;
    hth_rect *rect;
    int *of_stage, *of_use;
    uint64_t arena_bytes;
} hth_placement;

// hth_place_open checks the problem and makes its model. The problem must outlive it.
hth_err hth_place_open(const hth_problem *problem, hth_placement *placement);
void hth_place_close(hth_placement *placement);

// hth_place_assign gives the decision's rectangles addresses, below `target` if it can.
hth_err hth_place_assign(hth_placement *placement, uint64_t target);
// hth_place_minimal decides for the fewest bytes and places that: the floor.
hth_err hth_place_minimal(hth_placement *placement);
// hth_place_polish uses what the budget leaves free without moving anything: weights become
// resident where there is room besides the arena, and workspaces of faster algorithms are put into
// intervals of their stages.
hth_err hth_place_polish(hth_placement *placement);

static inline const hth_menu_item *hth_place_item(const hth_placement *placement, int s)
{
    return &placement->model.menu[placement->model.menu_start[s] + placement->decision.item[s]];
}
static inline uint64_t hth_place_bytes(const hth_placement *placement)
{
    return placement->decision.resident_bytes + placement->arena_bytes;
}

// hth_place_emit appends the placement's instructions to an empty plan.
hth_err hth_place_emit(hth_placement *placement, hth_plan *plan);

#endif
