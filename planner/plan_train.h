// SPDX-License-Identifier: Apache-2.0
// planner/plan_train.h - plans a training step: which tensors stay, leave or are computed again,
// and which algorithm every node can afford, as one joint decision.
#ifndef HTH_PLANNER_PLAN_TRAIN_H
#define HTH_PLANNER_PLAN_TRAIN_H

#include "planner/plan_schedule.h"
#include "planner/plan_work.h"

#include <stdatomic.h>

// Policies. All work on the same costs, in the same simulator and under the same time limit.
typedef enum hth_policy {
    HTH_POLICY_HEARTH,    // everything below, jointly
    HTH_POLICY_KEEP,      // nothing leaves
    HTH_POLICY_VDNN,      // offload, inputs of convolutions or everything (Rhu 2016)
    HTH_POLICY_CHEN,      // recompute between sqrt(n) checkpoints (Chen 2016)
    HTH_POLICY_CHECKMATE, // checkmate-auto: recompute, then the fastest algorithm that fits
    HTH_POLICY_STR,       // str-auto: offload and recompute, then the fastest algorithm that fits
    HTH_POLICY_MONET,     // recompute and algorithms (Shah 2021)
    HTH_POLICY_CAPUCHIN,  // swap first, then recompute, greedily (Peng 2020)
    HTH_POLICY_MOSOS,   // offload, recompute and algorithms; no stalls (its limit of one transfer a
                        // stage is not imposed, in its favour)
    HTH_POLICY_OPTIMAL, // the same decisions by an integer program (plan_optimal.h): small steps
                        // only, seconds to minutes
    HTH_N_POLICIES
} hth_policy;

// hth_policy_name: "hearth", "keep", "vdnn", "chen", "checkmate-auto", "str-auto", "monet",
// "capuchin", "mo-sos", "optimal". hth_policy_find is its inverse; HTH_EINVAL lists them.
const char *hth_policy_name(hth_policy policy);
hth_err hth_policy_find(const char *name, hth_policy *out);

typedef struct hth_plan_options {
    hth_policy policy;
    uint64_t seed;
    // Of the search, all rounds together, as work (plan_work.h; optimal: as time); 0: 100 (optimal:
    // 60,000), and for steps of more than 500 nodes so much more that 2,000 get 1,000. What a
    // search leaves of it goes to another one, with seed + 1 and other rules. Before a budget is
    // refused that may be enough, five times as much is spent once more; one below the proven floor
    // takes 5. hearth runs mo-sos's search concurrently, on a second thread with the same seed and
    // as much work, and takes the faster plan. Where that exceeds the certificate by more than 5 %,
    // it searches once more, three times as long, and concurrently str-auto's search, those that it
    // contains, and another one with seed + 2 run; not so with `from`, `limit_decodes`, `any` or
    // `alone`. A baseline that contains another search has as much for that, too.
    double limit_ms;
    const hth_plan *from; // a plan of the same step for other costs or another budget, or NULL: the
                          // search goes on from it, so that a third of the time is enough
    uint64_t limit_decodes; // .. and schedules tried in each round of the first search, which no
                            // other one follows then, the same on every machine; 0: any
    bool any; // the first plan that fits will do: nothing is spent on a faster one, nor on proving
              // how good it is, and a refusal costs the limit twice
    bool alone;               // search on the calling thread only; mo-sos gets a share of its work
    const atomic_int *cancel; // not 0: it ends soon, with a plan that is `stopped` or none; or NULL
    hth_plan_gate *gate;      // it waits while that is shut; or NULL
} hth_plan_options;

// hth_plan_limit_ms is the limit of a search (not optimal) whose options leave it open.
double hth_plan_limit_ms(const hth_problem *problem);

// hth_plan_train plans the step problem within problem->budget (external tensors are not counted).
// HTH_ETOOBIG: the policy finds nothing that fits; the detail is hth_plan_refuse's. Policy optimal:
// HTH_ENOTSUP when the step is too large for it or COIN-OR's cbc is not installed, HTH_ETIMEDOUT
// when nothing is proven in time; lower_bound_us is the proven optimum then. The same input gives
// the same plan, however busy the machine is, unless plan->stopped. Any thread.
hth_err hth_plan_train(const hth_problem *problem, const hth_plan_options *options, hth_plan **out);

// hth_plan_train_peak computes what the step takes unconstrained: nothing leaves, all algorithms
// their fastest, addresses assigned. Budgets given as a share are shares of it.
hth_err hth_plan_train_peak(const hth_problem *problem, uint64_t *bytes);
// hth_plan_train_floor computes bytes below which no schedule (plan_schedule.h) has room, proven:
// whatever leaves and is recomputed, some stage has them. With a link there is a schedule that has
// no more; its addresses may take a little more. Without a link there need not be one.
hth_err hth_plan_train_floor(const hth_problem *problem, uint64_t *bytes);

// hth_plan_emit turns a schedule into a plan with addresses. Where these exceed problem->budget,
// nodes are given algorithms that need less (in *schedule, too), if that helps; plan->arena_bytes +
// plan->resident_bytes may still exceed problem->budget (the caller then plans for less). hasty: in
// an eighth of the time.
hth_err hth_plan_emit(const hth_problem *problem, hth_schedule *schedule, bool hasty,
                      hth_plan **out);

#endif
