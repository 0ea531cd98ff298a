// SPDX-License-Identifier: Apache-2.0
// planner/exact/plan_optimal.h - the exact planner of small training steps: an integer program,
// solved by COIN-OR CBC in a child process. Part of hth_plan_train.
#ifndef HTH_PLANNER_EXACT_PLAN_OPTIMAL_H
#define HTH_PLANNER_EXACT_PLAN_OPTIMAL_H

#include "planner/search/plan_search.h"

#include <stdio.h>

#define HTH_OPTIMAL_NODES 72 // largest step: about 14 forward nodes, their gradients and updates
#define HTH_OPTIMAL_GAPS  96
#define HTH_OPTIMAL_MENU  256     // alternatives of a node
#define HTH_OPTIMAL_MS    60000.0 // its limit, if options say none

// What a solution says; per interval, per interval, per interval, per node. hth_decode_fixed reads
// it.
typedef struct hth_optimal {
    hth_fixed fixed;
    double objective_us;
    bool feasible;
} hth_optimal;

// hth_optimal_write writes the program of step under `budget` in the LP format. horizon_us: the
// time of a known plan, or of one that is surely slower than the best.
hth_err hth_optimal_write(FILE *file, const hth_step *step, uint64_t budget, double horizon_us);
// hth_optimal_value takes one variable of a solution into *out; names that say nothing are ignored.
void hth_optimal_value(const hth_step *step, const char *name, double value, hth_fixed *out);

// hth_search_optimal puts the best plan under search->d.budget into the decoder, as
// hth_search_policy does, and its proven time into search->proven_us. Blocks for options->limit_ms
// (0: HTH_OPTIMAL_MS) at most. HTH_ENOTSUP: the step is too large, or there is no cbc; HTH_ETOOBIG:
// cbc proved that it has no solution; HTH_ETIMEDOUT: nothing is proven when the time is up.
hth_err hth_search_optimal(hth_search *search, hth_step *step, const hth_plan_options *options,
                           hth_outcome *out);

#endif
