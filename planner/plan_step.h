// SPDX-License-Identifier: Apache-2.0
// planner/plan_step.h - the model of a training step that the planner's search works on: uses,
// intervals and menus. Part of hth_plan_train.
#ifndef HTH_PLANNER_PLAN_STEP_H
#define HTH_PLANNER_PLAN_STEP_H

#include "planner/plan_schedule.h"

// What lies between two uses (plan_schedule.h). q == n_stages: after the last use. A cyclic
// interval goes from the last use p round to the first use q < p of the next step.
typedef struct hth_interval {
    int tensor, p, q;
    bool cyclic, can_offload, can_rerun;
} hth_interval;

typedef struct hth_step {
    const hth_problem *p;
    int n_stages, n_intervals, n_backward, n_roots;
    int *backward; // tensors with intervals: those of the last node first, those without a producer
                   // (n_roots of them) at the end
    int *use_start, *use; // per tensor: stages of its uses, ascending, the producer's first
    int *interval_start;  // per tensor: its intervals, ascending
    hth_interval *interval;
    int *menu_start, *menu_end; // per stage: its menu, fastest first
    int *menu_whole;            // per stage: where it starts when it is not trimmed
    hth_menu_item *menu_free;   // per stage: its fastest without the workspace, after the menus
    hth_menu_item *menu;
    int *pair; // per tensor: the input whose buffer it may take over, -1: none
    int *heir; // per tensor: who takes its buffer over while nothing is computed again, -1: none
    int *first, *last; // per tensor: its stay while everything is kept; of arena tensors
    int64_t *kept;     // per stage: change of live bytes while everything is kept
    int *updated; // per tensor: the stage that updates it in place (resident ones), n_stages: never
    bool *dirty;  // per tensor: changes within a step, so the host's copy must be written again
    uint64_t *bytes; // per tensor: rounded; 0 when it takes nothing (the caller's)
    bool *arena;     // per tensor
    double *h2d_us, *d2h_us;
    uint64_t resident_bytes; // all weights and state
    uint64_t floor_bytes;    // no schedule has less in every stage (plan_floor.c)
    double fastest_us;       // every node at its fastest
} hth_step;

hth_err hth_step_init(hth_step *step, const hth_problem *problem);
void hth_step_fini(hth_step *step);
// hth_step_floor sets step->floor_bytes. Part of hth_step_init.
hth_err hth_step_floor(hth_step *step);
// hth_step_may_rerun: whether node v may run again in stage s. What it reads has not been updated
// in place by then, except by itself, which its other outputs do not depend on.
bool hth_step_may_rerun(const hth_step *step, int v, int s);

// hth_step_trim leaves every node one algorithm only, the smallest or the fastest without its
// workspace, or gives it all of them again.
typedef enum hth_trim { HTH_TRIM_NONE, HTH_TRIM_SMALLEST, HTH_TRIM_FREE } hth_trim;
void hth_step_trim(hth_step *step, hth_trim how);

static inline const hth_menu_item *hth_step_fastest(const hth_step *step, int s)
{
    return &step->menu[step->menu_start[s]];
}
static inline const hth_menu_item *hth_step_smallest(const hth_step *step, int s)
{
    return &step->menu[step->menu_end[s] - 1];
}

#endif
