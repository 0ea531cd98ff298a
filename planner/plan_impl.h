// SPDX-License-Identifier: Apache-2.0
// planner/plan_impl.h - what planners are made of: checks, liveness, addresses, emission, the
// simulated timeline.
//
// Design notes
// A *stage* is the execution of one node of the problem; a buffer is owned for whole stages, so
// memory is exact at plan time whatever the copies' real speed. Every policy decides *what* is
// where and when, as rectangles {stages, bytes}; everything after that (offsets, instructions,
// predicted times, verification) is shared by all of them.
#ifndef HTH_PLANNER_PLAN_IMPL_H
#define HTH_PLANNER_PLAN_IMPL_H

#include "planner/plan_walk.h"

typedef struct hth_rect {
    int first, last; // stages, both included
    uint64_t bytes;  // multiple of HTH_PLAN_ALIGN
    uint64_t offset;
} hth_rect;

// hth_problem_check verifies indices, topological order, sizes and times; HTH_EINVAL says what is
// wrong.
hth_err hth_problem_check(const hth_problem *problem);

// hth_plan_time is the duration of alternative `alt` of a node; unmeasured ones count 0.
double hth_plan_time(const hth_plan_node *node, int alt);
// hth_plan_pairs sets of[t], per tensor, to the input of its producer whose place it may take over,
// -1: none.
static inline void hth_plan_pairs(const hth_problem *problem, int *of)
{
    for (int t = 0; t < problem->n_tensors; t++) {
        of[t] = -1;
    }
    for (int i = 0; i < problem->n_nodes; i++) {
        for (int j = 0; j < problem->nodes[i].n_inplace; j++) {
            of[problem->nodes[i].inplace[j][1]] = problem->nodes[i].inplace[j][0];
        }
    }
}

// One alternative worth having: a stage's menu is fastest first, workspaces falling.
typedef struct hth_menu_item {
    int alt;
    double time_us;
    uint64_t workspace; // rounded
} hth_menu_item;

// hth_plan_menu writes the alternatives worth having into out[] (room for one at least, else one
// per alternative) and returns how many. Unmeasured ones come last, in the given order, at the time
// of the slowest measured one (0 if none is), so that a missing measurement never looks fast.
int hth_plan_menu(const hth_plan_node *node, hth_menu_item *out);

// Buffers of the tensors that live in the arena, from the producer's stage to the last use's;
// in-place pairs share one.
typedef struct hth_buffers {
    int n;
    hth_rect *rect;
    int *of_tensor;            // buffer of each tensor, -1: none
    int *first_use, *last_use; // stages of each tensor's life, weights included; first_use >
                               // last_use: never used
} hth_buffers;
hth_err hth_plan_buffers(const hth_problem *problem, hth_buffers *out);
void hth_buffers_fini(hth_buffers *buffers);

// hth_address_assign sets offsets so that rectangles sharing a stage do not overlap, and stores the
// height. It stops searching when the height is `target` or the peak, whichever is higher (a little
// later where that is far above the peak), or after about 2 ms (`effort` 0); 1: after 10 ms if the
// target is no less than the peak; with more that many times as late. Deterministic.
hth_err hth_address_assign(hth_rect *rect, int n, uint64_t target, int effort, uint64_t *height);

// hth_address_squeeze moves what sticks out above `room`: hard rectangles into intervals between
// hard ones, soft ones (of one stage each) into the largest hole of their stage, with fewer bytes
// if that is smaller. *fits: every hard one found an interval.
hth_err hth_address_squeeze(hth_rect *rect, const bool *soft, int n, uint64_t room, bool *fits);

// Emission. `in` is copied, waits too; *index (may be NULL) gets the instruction's number.
typedef struct hth_plan_builder {
    hth_plan *plan;
    int cap;
} hth_plan_builder;
hth_err hth_plan_add(hth_plan_builder *builder, hth_instr in, const int *waits, int n_waits,
                     int *index);

// hth_plan_slowed adds to a step's time what its copies take from compute: while both run
// (copy_interference), and each of them (copy_us). `time` without that, of which `compute` is busy;
// `link`: sum of the copies.
double hth_plan_slowed(const hth_problem *problem, double time_us, double compute_us,
                       double link_us, int copies);
// hth_plan_live_peak returns the largest sum of live arena bytes over the plan's instructions.
hth_err hth_plan_live_peak(const hth_problem *problem, const hth_plan *plan, uint64_t *peak);

#endif
