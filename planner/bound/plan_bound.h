// SPDX-License-Identifier: Apache-2.0
// planner/bound/plan_bound.h - what no plan of a training step can beat. Part of hth_plan_train.
#ifndef HTH_PLANNER_BOUND_PLAN_BOUND_H
#define HTH_PLANNER_BOUND_PLAN_BOUND_H

#include "planner/plan_step.h"

// hth_step_bound stores a time (us) that every plan within `budget` needs at least; INFINITY: there
// is no plan, some stage's own tensors and smallest workspace are too large. upper_us: the time of
// a known plan, which guides the search of prices; each iteration is O(nodes + intervals).
// limit_ms, if more than 0, cuts it short, but for the last iterations, which prove *out. share, if
// not NULL, becomes how often the relaxation offloads and recomputes each interval in its last
// solutions: a search that starts from what it does mostly need not fit, but has not far to go;
// *out is a guess then.
// dual, if not NULL: where the one before on this step ended, NULL at first; the next one goes on
// from there, and it is the caller's to free.
typedef struct hth_dual hth_dual;
typedef struct hth_bound_share {
    float offload, recompute;
} hth_bound_share;
hth_err hth_step_bound(const hth_step *step, uint64_t budget, double upper_us, int iterations,
                       double limit_ms, hth_dual **dual, hth_bound_share *share, double *out);
void hth_dual_free(hth_dual *dual);

#endif
