// SPDX-License-Identifier: Apache-2.0
// planner/bound/plan_bound_impl.h - the dual problem of a training step. Part of hth_step_bound.
//
// Design notes
// Lagrangian relaxation. A price per stage for memory takes the budget into the objective, and the
// time is bounded from below by a mixture of *paths* through the events of the step, whose weights
// (a point of the simplex) are part of the dual, too. Under prices and weights everything separates
// into one choice per node (its algorithm) and one per tensor (what happens in its intervals).
//
// A path follows compute, but for arcs over one of the copy streams (events: plan_schedule.h):
//   out (from, to)   E_from -> W_to: the copies out of what was made at `from` or later and is
//                    away by `to` lie between; the stages from + 1 .. to - 1 do not count
//   in (from, to)    W_from -> S_to: the copies in of what is away until `from` or later and needed
//                    by `to` lie between; the stages from .. to - 1 do not count
// Beside the paths there is `busy`: compute and copies together, as far as copies slow compute.
//
// Large tensors are tied to a stage whose fastest algorithms they leave no room for: such a stage's
// algorithm and what its tensors do are one choice. Without that a relaxation has half of both.
//
// Whatever is counted, a schedule pays at least that much: what an interval pays for a path depends
// on when its tensor leaves and comes back, so each interval chooses that, too, and pays for the
// stages in which it then stays.
#ifndef HTH_PLANNER_BOUND_PLAN_BOUND_IMPL_H
#define HTH_PLANNER_BOUND_PLAN_BOUND_IMPL_H

#include "planner/bound/plan_bound.h"

#define BOUND_PATHS 32
#define BOUND_ARCS  8 // of a path
#define BOUND_BUSY  BOUND_PATHS
#define BOUND_SMALL 256 // stages of a problem that gets more iterations, and paths of many arcs
#define BOUND_ROOM  (1 + 1e-9) // of the budget; sums of shares are rounded

typedef struct hth_arc {
    int from, to;
    bool in;
    double weight;
} hth_arc;

typedef struct hth_bound_path {
    hth_arc arc[BOUND_ARCS];
    int n_arcs;
    int age; // the iteration that found it
} hth_bound_path;

// What a recompute reads although nobody else needs it any more: it must be kept since its last
// use, come by the link, or be computed again itself, from what `reads` lists.
typedef struct hth_dead {
    int tensor, since;
    double share,
        save; // of the cost that this interval pays, and of a copy out; others need the same
    int next, reads;
    int leave;  // the first stage after `since` that it finds no room in
    bool taken; // its buffer may be taken over: nothing more in the stage of the recompute
    // The minimiser: where it is moved, for a recompute in stage `at`; and how often, on average.
    bool moved;
    int at, away, back;
    double mean;
} hth_dead;

// What the ways through an interval cost. Each that leaves chooses its stages, too.
typedef struct hth_way {
    double residency; // kept or computed again
    double move;      // moved when the far side has a copy
    double first;     // moved when it has none
    double before;    // what staying costs in the tensor's intervals before it
    bool again;       // staying is computing again
    int stage;        // .. in this stage
    int away, back;   // of a move; `away` when it has to copy out
} hth_way;

// How something dead is had again in stage s.
typedef struct hth_had {
    double us;
    hth_interval_mode mode;
    int stage; // where it is computed again
    int away, back;
} hth_had;

// What the minimiser does in an interval.
typedef struct hth_choice_of_interval {
    hth_interval_mode mode;
    int away, back; // OFFLOAD: absent in [away, back)
    int stage;      // RECOMPUTE: where
    bool saved;     // OFFLOAD: with a copy out of its own
} hth_choice_of_interval;

typedef struct hth_bound {
    const hth_step *m;
    double budget;
    // Facts: plan_bound_facts.c
    double *fixed;   // per stage: bytes that are there in every plan, / budget
    double crest;    // the largest of them with the smallest workspace
    double *fast_us; // per stage: its fastest algorithm that can ever fit
    double *rerun;   // per stage: what a recompute of it reads, but what it takes over, / budget
    int *last_use;   // per tensor, -1: none
    int *n_made;     // per stage: outputs that live in the arena
    int *leave,
        *come; // per interval: where it finds no room: it is away from `leave` on and until `come`
    bool *leaves; // per interval: there is such a stage
    int *apart_interval,
        *apart_at; // per tensor: an interval and a stage in it that it is tied to, -1: none
    int *apart_head, *apart_next; // per stage: first tensor that is tied to it; per tensor
    int *dead_of;                 // per interval: first of `dead`, -1: none
    hth_dead *dead;
    int n_dead, cap_dead;
    // The dual: prices in us per budget
    double *price, *sum; // per stage; prefix sums
    hth_bound_path path[BOUND_PATHS];
    int n_paths;
    double weight[BOUND_PATHS + 1]; // of the paths, and of `busy`
    // What follows from the weights: plan_bound_path.c
    hth_arc *in, *out; // arcs with weight: in by `from` descending, out by `to` ascending
    int n_in, n_out;
    double *share; // per stage: weights of the paths in which it counts
    double *in_at; // per stage: weight of the arcs that count a copy in that is needed there
    int *dip;      // stages after which share rises, ascending
    int n_dips;
    // The minimiser: plan_bound_value.c
    hth_way *way, *way_apart; // per interval; if its tensor is away in the stage that it is tied to
    double (*apart_cost)[2];  // per tensor: what these cost
    int (*apart_first)[2];    // .. and the first interval in which it leaves
    hth_choice_of_interval *choice; // per interval
    double *use;         // per stage: change of the bytes that its intervals take, / budget
    double *over;        // per stage: what it takes over the budget, / budget
    double *us, *us_sum; // per stage: compute; prefix sums
    double length[BOUND_PATHS + 1]; // of the paths, and `busy`
    // The certificate: plan_bound_exact.c
    bool exact;    // every stage is tried for a recompute, not only those that may be the cheapest
    double *table; // for what is dead in one interval
    // Averages of the minimisers: plan_bound_path.c
    double *mean_in, *mean_out; // per interval: how often
    double *mean_again;
    double *mean_us; // per stage
} hth_bound;

static inline bool hth_bound_counts(const hth_step *step, const hth_interval *interval)
{
    return interval->cyclic || interval->q < step->n_stages; // after the last use nothing is needed
}
static inline double hth_bound_bytes(const hth_bound *bound, int t)
{
    return (double)bound->m->bytes[t] / bound->budget;
}
// The first stage that arc a leaves out; the last one is a->to - 1.
static inline int hth_arc_first(const hth_arc *arc)
{
    return arc->in ? arc->from : arc->from + 1;
}
// Whether `bytes` (/ budget) find room in stage s besides what is there in every plan.
static inline bool hth_bound_room(const hth_bound *bound, int s, double bytes)
{
    return bound->fixed[s] + bytes <= BOUND_ROOM;
}
// hth_bound_reruns says whether node v may find room to be computed again in stage s besides what
// is there in every plan, what it reads, and `own` bytes (/ budget) of its result.
bool hth_bound_reruns(const hth_bound *bound, int v, int s, double own);
// hth_bound_rerun returns the last stage from `first` to s in which it may, first - 1: in none.
// After many stages without, one that may have room counts as one that has.
int hth_bound_rerun(const hth_bound *bound, int v, int first, int s, double own, double own_before);
// hth_bound_come returns the first stage, not before `first`, from which on tensor u finds room
// until stage s.
int hth_bound_come(const hth_bound *bound, int u, int first, int s);
// hth_bound_between adds to a difference array over the stages inside interval.
void hth_bound_between(const hth_step *step, const hth_interval *interval, double *per_stage,
                       double add);

// hth_bound_facts fills the facts; HTH_ENOMEM. hth_bound_value fills everything below `dual` and
// returns the dual's value: no plan is faster. INFINITY: there is none, a stage does not fit.
hth_err hth_bound_facts(hth_bound *bound);
double hth_bound_value(hth_bound *bound);

// hth_bound_exact returns the cost of computing interval g's tensor again, not before stage
// `first`, in whichever *stage of all is the cheapest, hth_bound_exact_had how something dead is
// had there. hth_bound_exact_table allocates what they need.
double hth_bound_exact(const hth_bound *bound, int g, int first, int *stage);
hth_had hth_bound_exact_had(const hth_bound *bound, const hth_dead *dead, int s);
hth_err hth_bound_exact_table(hth_bound *bound);

// hth_bound_way returns what can happen in interval g; apart: while its tensor is away in the stage
// that it is tied to. hth_bound_had returns the cheapest way to have x again in stage s,
// hth_bound_moved what moving it costs.
hth_way hth_bound_way(const hth_bound *bound, int g, bool apart);
hth_had hth_bound_had(const hth_bound *bound, const hth_dead *dead, int s);
hth_had hth_bound_moved(const hth_bound *bound, const hth_dead *dead, int come, int s);

// Paths. hth_bound_path_begin sets the ones to start with; hth_bound_arcs follows the weights;
// hth_bound_average adds the last minimiser with weight `by` to the averages; hth_bound_path_add
// adds the longest paths under the averages.
void hth_bound_path_begin(hth_bound *bound);
void hth_bound_arcs(hth_bound *bound);
void hth_bound_average(hth_bound *bound, double by);
hth_err hth_bound_path_add(hth_bound *bound, int iteration);

#endif
