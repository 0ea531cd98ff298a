// SPDX-License-Identifier: Apache-2.0
// planner/plan_refine.h - goes on looking for a faster plan for a step that has one, slice by
// slice: what is done while a job runs with the plan that it began with. A slice's work is bounded,
// and so is that of all. The same step, start and options give the same plan after the same number
// of slices, on any machine. One thread at a time; nothing is shared but *options.cancel.
#ifndef HTH_PLANNER_PLAN_REFINE_H
#define HTH_PLANNER_PLAN_REFINE_H

#include "planner/plan_train.h"

typedef struct hth_refine {
    const hth_problem *problem; // the caller's
    hth_plan_options options;   // of the last slice
    double slice_ms, limit_ms;  // of a slice, of all of them, as work
    double work_ms;             // done
    int slices;
    hth_plan from;   // no more than the modes of the plan to go on from
    double us;       // the predicted time of the best plan, best's or what it began with
    double bound_us; // no plan is faster
    hth_plan *best;  // NULL: none is faster than what it began with
} hth_refine;

// hth_refine_open begins to look for a plan of `problem` within its budget that is faster than
// `from`, one of the same step within that budget; predicted_us and modes of that count, which may
// be none. Slices are searches as options has them, but for limits: slice_ms, 0: a first search's,
// and at most limit_ms for all of them together; and for the seed, which goes up from options->seed
// + 1. HTH_ENOMEM.
hth_err hth_refine_open(hth_refine *refine, const hth_problem *problem,
                        const hth_plan_options *options, const hth_plan *from, double slice_ms,
                        double limit_ms);
void hth_refine_close(hth_refine *refine); // refine->best goes, too; all zero: nothing to do
// hth_refine_over: no slice is left, or nothing that is worth it to find.
bool hth_refine_over(const hth_refine *refine);
// hth_refine_slice does one more slice, and returns whether refine->best is another plan now, which
// is faster than all before. One that was canceled finds nothing.
bool hth_refine_slice(hth_refine *refine);

#endif
