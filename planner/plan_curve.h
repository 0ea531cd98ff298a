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
// problem; HTH_ECANCELED: *options->cancel is not 0.
hth_err hth_plan_curve(const hth_problem *problem, const hth_plan_options *options, hth_curve *out);

// What plans for one budget. *fits: there is a plan, and *out is filled. Errors end the curve.
typedef hth_err (*hth_curve_plan)(void *ctx, uint64_t budget, hth_curve_point *out, bool *fits);

// hth_curve_point_of plans the step for one budget; *plan is the caller's (NULL when it does not
// fit; plan NULL: not wanted). HTH_ECANCELED: *options->cancel is not 0.
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

// A job that is admitted: it gets one point of its curve.
typedef struct hth_admit_job {
    const hth_curve *curve;
    double weight; // of its slowdown
    double turn;   // the part of the time in which its steps run. They have the link then, too
} hth_admit_job;

// hth_curve_admit chooses a point for each job: those with the least sum of weight * time / fastest
// time whose bytes fit `device_bytes` and whose copies fit each direction of the link: the sum of
// turn * link time / step time is at most 1. Where all steps run at the same time (turns of 1), two
// jobs whose copies take more than half of their time cannot both hide them; where turns add up to
// 1, each has the link for itself. Exact for as many choices as HTH_ADMIT_CHOICES that none of the
// others beats in everything (plan_curve.c), close to it beyond. chosen[j]: the point of job j.
// HTH_ETOOBIG: no choice fits both; *link says that the bytes alone would (may be NULL).
#define HTH_ADMIT_CHOICES 512
hth_err hth_curve_admit(const hth_admit_job *jobs, int n, uint64_t device_bytes, int *chosen,
                        bool *link);

#endif
