// SPDX-License-Identifier: Apache-2.0
// planner/plan_lay.h - a schedule on its way to being a plan: segments, their rectangles, and lists
// of what happens when. Part of hth_plan_emit.
#ifndef HTH_PLANNER_PLAN_LAY_H
#define HTH_PLANNER_PLAN_LAY_H

#include "planner/plan_train.h"

typedef struct hth_lay {
    const hth_problem *p;
    hth_schedule *s;
    hth_plan_builder builder;
    hth_rect *rect;
    int n_rects;
    int *of_segment, *of_stage; // rectangles; of_stage -1: no workspace
    int *host_rect;             // per tensor: its rectangle among `slab`, -1: none
    hth_rect *slab;
    int n_slab;
    int *first_at, *next_first; // segments by first stage
    int *last_at, *next_last;   // .. by last stage
    int *save_at, *next_save;   // .. by the stage of their save
    int *need_at, *next_need;   // .. by need
    int *instr;                 // per segment: its fetch
    int *saved;                 // per tensor: its save, -1: none yet
    int *waits;
    int next_rerun;
} hth_lay;

// hth_lay_rerun_bytes: workspace and scratch of a rerun, that is, of what has no segment beginning
// there.
uint64_t hth_lay_rerun_bytes(const hth_lay *lay, const hth_rerun *rerun);

// hth_lay_squeeze makes the addresses fit in `room` where giving way of workspaces is enough: sets
// x->rect, algorithms in lay->s, and *height; else everything stays as it is. hasty: the rectangles
// are not placed anew.
hth_err hth_lay_squeeze(hth_lay *lay, uint64_t room, bool hasty, uint64_t *height);

#endif
