// SPDX-License-Identifier: Apache-2.0
// planner/search/plan_rounds.h - one search of a policy, to the end: modes, their addresses, and
// again for fewer bytes where the addresses come out higher. Part of hth_plan_train, which says
// which searches there are.
#ifndef HTH_PLANNER_PLAN_ROUNDS_H
#define HTH_PLANNER_PLAN_ROUNDS_H

#include "planner/bound/plan_bound.h"
#include "planner/plan_train.h"

// The first one, one with what that left of its limit, or one before a refusal. The other one has
// other rules: whatever fits comes first, and copies give way to faster algorithms.
typedef enum hth_rounds { HTH_ROUNDS_FIRST, HTH_ROUNDS_OTHER, HTH_ROUNDS_LAST } hth_rounds;

// hth_rounds_search searches as `rounds` and options say, and sets *out to the plan that it finds,
// the caller's, for which there has to be none so far. HTH_ETOOBIG: *out stays NULL; *found is
// lowered to the bytes of the least plan that was seen. *dual: where the certificate's dual ended,
// for the next one (hth_step_bound). `concurrent`: mo-sos searches on another thread, so hearth
// spends no work on that.
hth_err hth_rounds_search(const hth_problem *problem, hth_step *step,
                          const hth_plan_options *options, hth_rounds rounds, bool concurrent,
                          hth_dual **dual, uint64_t *found, hth_plan **out);

// hth_rounds_limit_ms is the work that a search may do. hth_rounds_canceled: it is to end.
// hth_rounds_too_big refuses the budget; found: the bytes of a plan. hth_rounds_faster takes *plan
// for *best if there is none or it is faster, and frees the other.
double hth_rounds_limit_ms(const hth_problem *problem, const hth_plan_options *options);
bool hth_rounds_canceled(const hth_plan_options *options);
hth_err hth_rounds_too_big(const hth_problem *problem, const hth_plan_options *options,
                           uint64_t found);
void hth_rounds_faster(hth_plan **plan, hth_plan **best);

#endif
