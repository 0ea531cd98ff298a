// SPDX-License-Identifier: Apache-2.0
// planner/plan_walk.h - what a walk of a plan needs to know of it: where each tensor has its
// memory, on which stream an instruction runs, when it is predicted to, and what is live then.
#ifndef HTH_PLANNER_PLAN_WALK_H
#define HTH_PLANNER_PLAN_WALK_H

#include "planner/plan.h"

#define HTH_PLAN_ALIGN 64u // offsets and sizes in the arena; device.h's HTH_DEVICE_ALIGN

static inline uint64_t hth_plan_round(uint64_t bytes)
{
    return (bytes + HTH_PLAN_ALIGN - 1) / HTH_PLAN_ALIGN * HTH_PLAN_ALIGN;
}

// How a tensor gets its memory.
typedef enum hth_home { HTH_HOME_CALLER, HTH_HOME_RESIDENT, HTH_HOME_ARENA } hth_home;
// hth_plan_home: external tensors are the caller's; weights and state that were there before the
// run are resident (or streamed); everything else lives in the arena.
hth_home hth_plan_home(const hth_plan_tensor *tensor);

// hth_plan_workspace is what alternative `alt` of a node needs, in bytes.
static inline uint64_t hth_plan_workspace(const hth_plan_node *node, int alt)
{
    return alt < node->n_alternatives ? node->alternatives[alt].workspace_bytes : 0;
}

// Streams of the executor and of the simulator.
typedef enum hth_lane { HTH_LANE_COMPUTE, HTH_LANE_H2D, HTH_LANE_D2H, HTH_N_LANES } hth_lane;
static inline hth_lane hth_instr_lane(const hth_instr *in)
{
    if (in->kind == HTH_INSTR_PREFETCH) {
        return HTH_LANE_H2D;
    }
    return in->kind == HTH_INSTR_OFFLOAD ? HTH_LANE_D2H : HTH_LANE_COMPUTE;
}

// hth_plan_simulate fills start_us and end_us of every instruction and predicted_us: three FIFO
// streams and the waits, then hth_plan_slowed.
void hth_plan_simulate(const hth_problem *problem, hth_plan *plan);

// What of the arena is live, instruction by instruction.
#define HTH_N_MEM_CLASSES (HTH_MEM_OUTPUT + 1)
typedef struct hth_live {
    const hth_problem *problem;
    struct live_account *at;                     // per tensor
    int *pair;                                   // hth_plan_pairs
    bool *filled;                                // per tensor: has content, or no place
    uint64_t of_class[HTH_N_MEM_CLASSES], bytes; // tensors', and their sum
    uint64_t scratch; // of the last instruction, while it runs: workspace, and outputs that nobody
                      // needs
} hth_live;
// hth_live_open: nothing is live yet. hth_live_step takes the next one in issue order; an offloaded
// tensor stays until it is freed, and a prefetched one is there from then on. On error nothing is
// held.
hth_err hth_live_open(const hth_problem *problem, hth_live *out);
void hth_live_step(hth_live *live, const hth_instr *in);
void hth_live_close(hth_live *live);

#endif
