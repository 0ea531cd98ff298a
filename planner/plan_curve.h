// SPDX-License-Identifier: Apache-2.0
// planner/plan_curve.h - the memory/time curve of a training step, and who gets which point of it.
#ifndef HTH_PLANNER_PLAN_CURVE_H
#define HTH_PLANNER_PLAN_CURVE_H

#include "planner/plan_train.h"

#define HTH_CURVE_POINTS 16

typedef struct hth_curve_point {
    uint64_t budget_bytes; // planned for
    uint64_t device_bytes; // needed
    uint64_t host_bytes;
    double time_us, lower_bound_us;
    double h2d_us, d2h_us; // what the step keeps each direction of the link busy
    int source;            // the point whose plan serves this one: itself, or one for less memory
    int parts;             // that the batch is taken in
} hth_curve_point;

typedef struct hth_curve {
    int n; // by budget, ascending
    hth_curve_point point[HTH_CURVE_POINTS];
    uint64_t floor_bytes, peak_bytes;
} hth_curve;

// hth_plan_curve plans the step for budgets from its peak down to where nothing fits any more. Time
// never grows with memory: a plan for less memory is valid for more, so where the search found a
// faster one there, that one counts. options->limit_ms is for each point. HTH_EINVAL: a bad
// problem.
hth_err hth_plan_curve(const hth_problem *problem, const hth_plan_options *options, hth_curve *out);

// What plans for one budget. *fits: there is a plan, and *out is filled. Errors end the curve.
typedef hth_err (*hth_curve_plan)(void *ctx, uint64_t budget, hth_curve_point *out, bool *fits);

// hth_curve_point_of plans the step for one budget; *plan is the caller's (NULL when it does not
// fit; plan NULL: not wanted).
hth_err hth_curve_point_of(const hth_problem *problem, const hth_plan_options *options,
                           uint64_t budget, hth_curve_point *out, bool *fits, hth_plan **plan);
// hth_plan_curve_by is hth_plan_curve of whatever `plan` plans, from `peak` bytes down to `floor`.
hth_err hth_plan_curve_by(hth_curve_plan plan, void *ctx, uint64_t peak, uint64_t floor,
                          hth_curve *out);
// hth_curve_min looks for the plan with the least memory between `floor`, below which there is
// none, and `peak`: halving what is left, so *bytes, what the plan found needs, is within
// HTH_CURVE_MIN of the least budget for which one is found. HTH_ETOOBIG: none, not for `peak`
// either.
#define HTH_CURVE_MIN 0.01 // of the peak
hth_err hth_curve_min(hth_curve_plan plan, void *ctx, uint64_t peak, uint64_t floor,
                      uint64_t *bytes);

// One point for each job: the choice with the least sum of weight * time / fastest time whose bytes
// fit `device_bytes` and whose link times fit `link_us` per second of work (a multiple-choice
// knapsack, solved exactly over the points' bytes rounded up to 1/4096 of the device). chosen[j]:
// the point of curve j. HTH_ETOOBIG: even the smallest points do not fit.
hth_err hth_curve_admit(const hth_curve *const *curves, const double *weight, int n,
                        uint64_t device_bytes, double link_share, int *chosen);

#endif
