// SPDX-License-Identifier: Apache-2.0
// Slices in turn go on from the best plan, and begin anew with another seed: the first are sure to
// be where good plans are, the others get out of where the search is stuck. See plan_refine.h.
#include "planner/plan_refine.h"

#include "base/alloc.h"
#include "planner/plan_work.h"

#include <math.h>

#define REFINE_NEAR 1e-3 // of the time above what no plan can beat: not worth a search

hth_err hth_refine_open(hth_refine *refine, const hth_problem *problem,
                        const hth_plan_options *options, const hth_plan *from, double slice_ms,
                        double limit_ms)
{
    size_t n = (size_t)from->n_modes;
    *refine = (hth_refine){.problem = problem,
                           .options = *options,
                           .slice_ms = slice_ms > 0 ? slice_ms : hth_plan_limit_ms(problem),
                           .limit_ms = limit_ms,
                           .us = from->predicted_us,
                           .bound_us = from->lower_bound_us};
    refine->options.limit_decodes = 0;
    refine->options.alone = true;
    if (n > 0) {
        refine->from.mode = hth_memdup(from->mode, n);
        refine->from.n_modes = from->n_modes;
        refine->from.hurries = from->hurries;
        refine->from.mode_bytes = from->mode_bytes;
    }
    return n == 0 || refine->from.mode != NULL ? HTH_OK : hth_no_memory("planning a step");
}

void hth_refine_close(hth_refine *refine)
{
    hth_free(refine->from.mode);
    hth_plan_free(refine->best);
    *refine = (hth_refine){.problem = NULL};
}

bool hth_refine_over(const hth_refine *refine)
{
    return refine->work_ms + refine->slice_ms > refine->limit_ms ||
           refine->us <= refine->bound_us * (1 + REFINE_NEAR);
}

bool hth_refine_slice(hth_refine *refine)
{
    hth_plan_options *o = &refine->options;
    hth_plan *plan;
    bool on = refine->slices % 2 == 0;
    uint64_t start_ns = hth_plan_work_now_ns();
    o->from = refine->best != NULL ? refine->best : &refine->from;
    o->from = on && o->from->n_modes > 0 ? o->from : NULL;
    o->limit_ms = refine->slice_ms;
    o->seed++;
    refine->slices++;
    hth_err err = hth_plan_train(refine->problem, o, &plan);
    refine->work_ms += (double)(hth_plan_work_now_ns() - start_ns) / 1e6;
    // Without memory it may not even begin: tried again and again it is to end all the same.
    refine->work_ms += err != HTH_OK && err != HTH_ETOOBIG ? refine->slice_ms : 0;
    if (err != HTH_OK) {
        return false; // nothing found this time
    }
    bool canceled = o->cancel != NULL && *o->cancel != 0;
    refine->bound_us = fmax(refine->bound_us, plan->lower_bound_us);
    if (canceled || plan->predicted_us >= refine->us) {
        hth_plan_free(plan);
        return false;
    }
    hth_plan_free(refine->best);
    refine->best = plan;
    refine->us = plan->predicted_us;
    return true;
}
