// SPDX-License-Identifier: Apache-2.0
// planner/plan_schedule.h - what stays, what leaves, what is computed again: the decision of a
// training step, before it has addresses.
//
// Design notes
// A *stage* is the first execution of one node; node s runs in stage s. A buffer is owned for whole
// stages, so memory is exact whatever the copies' real speed. An *interval* is what lies between
// two consecutive uses of a tensor that are at least two stages apart, the time after its last use
// (where only recomputes can read it), or, for a weight or state that is there before the step, the
// time from its last use round to its first one in the next step. Each interval has a mode;
// everything else (when a buffer goes, when a copy is released, which stage recomputes what, which
// algorithm each node can afford) follows from the modes by hth_decode (plan_decode.c), which
// yields a *schedule*: segments (one stay of one tensor in one buffer) and reruns (recomputes), in
// stages.
//
// Rules of time. Three FIFO streams; s is a stage, E_s the end of its compute:
//   W_s = max(E_{s-1}, end of every save with last + 1 == s)
//   S_s = max(W_s, end of every fetch with need == s);  E_s = S_s + reruns of s + node s
//   a fetch starts at max(end of the fetch before it, W_first, end of the save that it reads back)
//   a save starts at max(end of the save before it, E_save)
// Sources: vDNN (Rhu 2016), Checkmate (Jain 2020), MONeT (Shah 2021), Capuchin (Peng 2020).
#ifndef HTH_PLANNER_PLAN_SCHEDULE_H
#define HTH_PLANNER_PLAN_SCHEDULE_H

#include "planner/plan_impl.h"

typedef enum hth_interval_mode {
    HTH_INTERVAL_KEEP,
    HTH_INTERVAL_OFFLOAD,
    HTH_INTERVAL_RECOMPUTE,     // once, at the first read after the interval's start; then it stays
    HTH_INTERVAL_REMATERIALIZE, // whenever it is read, and dropped in between
    HTH_N_INTERVAL_MODES
} hth_interval_mode;

typedef enum hth_origin {
    HTH_FROM_START, // there before stage 0
    HTH_FROM_NODE,  // written by node `first`
    HTH_FROM_RERUN, // written by a recompute of its producer in stage `first`
    HTH_FROM_HOST,  // prefetched: its buffer is owned from `first`, the copy is awaited by `need`
} hth_origin;

typedef struct hth_segment {
    int tensor;
    int first, last; // stages during which the buffer is owned, both included
    hth_origin origin;
    int need; // FROM_HOST: the stage whose reruns and node wait for the copy
    int save; // >= 0: leaves by a copy to the host, issued after the compute of stage `save`; the
              // compute of stage last + 1 (or the end of the step) waits for it. -1: dropped
    int inplace; // the segment whose buffer it takes over (that one's last == this one's first),
                 // -1: a buffer of its own
} hth_segment;

// A recompute of `node` in stage `stage`, before that stage's node, with the algorithm of its first
// execution, so that the bits are the same. Those of one stage run in the order of their nodes. Its
// outputs without a segment that begins there (origin FROM_RERUN) go to scratch of the stage, owned
// besides the workspace.
typedef struct hth_rerun {
    int stage, node, alt;
} hth_rerun;

typedef struct hth_schedule {
    int n_stages;
    int *alt; // per node: the alternative of its first execution
    int n_segments, n_reruns;
    hth_segment *segment;    // by tensor, then first; resident tensors that never leave have none
    hth_rerun *rerun;        // by stage, then node
    uint64_t resident_bytes; // weights and state that never leave
    uint64_t peak_bytes;     // resident_bytes + the largest stage
    double time_us;
    uint64_t height_bytes; // hth_plan_emit: of the addresses, before algorithms gave way
} hth_schedule;

void hth_schedule_fini(hth_schedule *schedule);

#endif
