// SPDX-License-Identifier: Apache-2.0
// planner/plan.h - the planning problem and the plan. Pure data: no device is ever seen here.
//
// Design notes
// A problem is nodes in execution order with their tensors and alternatives, a link, and a budget.
// A plan is a list of instructions in issue order: {compute, alloc, free, offload, prefetch} with
// the stream, the earlier instructions it waits for, and the arena offset of every buffer. The
// executor (run.h) walks it and decides nothing. Both are files too (plan_file.c), so that every
// decision can be replayed.
#ifndef HTH_PLANNER_PLAN_H
#define HTH_PLANNER_PLAN_H

#include "base/err.h"
#include "convsel/choice.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum hth_mem_class {
    HTH_MEM_WEIGHT,     // read-only, re-creatable: dropping is free, coming back is one copy
    HTH_MEM_ACTIVATION, // offload or recompute
    HTH_MEM_GRADIENT,
    HTH_MEM_STATE, // offload writes back
    HTH_MEM_INPUT,
    HTH_MEM_OUTPUT,
} hth_mem_class;

typedef struct hth_plan_tensor {
    char *name;
    uint64_t bytes; // device bytes, multiple of the alignment not required
    hth_mem_class cls;
    int producer;  // node, -1: there before the run
    bool external; // lives in a buffer of the caller (bound at run time): takes no arena
    int replaces; // external: 1 + the external tensor whose buffer this one's is too (a parameter's
                  // new value, written in place), 0: none
} hth_plan_tensor;

typedef struct hth_plan_node {
    char *name, *op;
    int n_inputs, n_outputs;
    int *inputs, *outputs; // tensors
    int n_inplace;
    int (*inplace)[2]; // {input, output}: the output may take over the input's place; each tensor
                       // in one pair at most
    int n_alternatives;
    hth_choice *alternatives;
    bool recomputable; // running it again gives the same outputs, updates excepted, and changes
                       // nothing else: what it updates itself may have its new content by then
} hth_plan_node;

typedef struct hth_problem {
    uint64_t budget; // bytes for everything: resident weights, arena, workspaces
    char device[160];
    double h2d_bytes_per_s, d2h_bytes_per_s, latency_us;
    double copy_interference; // share of a copy's time that compute loses while it runs: 0 on a
                              // GPU, more where copies and compute share processors
    double copy_us; // what compute loses for a copy however few its bytes: to issue it and to wait
                    // for it. 0 where another thread does both
    bool loose; // the alternatives are not all there are, and weights may have other forms: neither
                // proves how much memory is needed (hth_plan_min)
    int n_tensors, n_nodes;
    hth_plan_tensor *tensors;
    hth_plan_node *nodes; // execution order
} hth_problem;

typedef enum hth_instr_kind {
    HTH_INSTR_COMPUTE,
    HTH_INSTR_ALLOC,
    HTH_INSTR_FREE,
    HTH_INSTR_OFFLOAD,
    HTH_INSTR_PREFETCH
} hth_instr_kind;

typedef struct hth_instr {
    hth_instr_kind kind;
    int tensor;      // alloc, free, offload, prefetch
    int node, alt;   // compute
    uint64_t offset; // alloc, prefetch: in the arena; compute: of the workspace; offload: in the
                     // host slab
    bool recompute;
    int n_waits;
    int *waits;              // indices of earlier instructions
    double start_us, end_us; // predicted
} hth_instr;

typedef struct hth_plan {
    char policy[24];
    uint64_t seed;
    double plan_ms;
    bool stopped;             // the clock ended the search, not its work (plan_work.h)
    uint64_t arena_bytes;     // everything in the arena: activations, workspaces, streamed weights
    uint64_t resident_bytes;  // weights that stay for the whole run (kept by residency, shared
                              // between plans)
    uint64_t live_peak_bytes; // the largest sum of live arena bytes: arena_bytes can never be less
    uint64_t host_bytes;
    double predicted_us, lower_bound_us;
    int n_instrs;
    hth_instr *instrs;
    bool *streamed;      // per tensor: a weight that is prefetched and dropped instead of resident
    uint8_t *mode;       // of a training step: what the search decided, for another to start from;
    int n_modes;         // NULL, 0: not known
    uint64_t mode_bytes; // .. and the memory that it decided for, addresses aside; 0: the budget
    bool hurries;        // .. with copies that give way to faster algorithms
} hth_plan;

void hth_problem_fini(hth_problem *problem);
// hth_problem_copy copies everything, of the alternatives of node i only number only[i] where
// `only` is given. On error *out is empty.
hth_err hth_problem_copy(const hth_problem *problem, const int *only, hth_problem *out);
void hth_plan_free(hth_plan *plan); // NULL is allowed

// hth_plan_inference plans a forward pass: liveness, in-place, arena offsets, one algorithm per
// node (the fastest whose workspace fits), and, when weights + arena exceed the budget, which
// weights are streamed and when they are prefetched. resident_bytes + arena_bytes <= budget, each
// weight rounded up to 64 bytes. Without a link (h2d_bytes_per_s <= 0) nothing is streamed, and
// never what a node updates. Inputs that are not external are allocated by the first instructions
// and filled by the caller; a weight that no node reads or updates counts as streamed and is never
// fetched. Unmeasured alternatives are taken in their order. HTH_ETOOBIG: not even the floor fits;
// the detail is hth_plan_refuse's. Any thread; a function of its input.
hth_err hth_plan_inference(const hth_problem *problem, hth_plan **out);

// hth_plan_floor computes the bytes of the smallest plan that hth_plan_inference finds: it succeeds
// with them. That proves nothing about less (hth_plan_min does).
hth_err hth_plan_floor(const hth_problem *problem, uint64_t *bytes);

// hth_plan_min returns bytes that every plan of problem needs, whoever makes it: what one node
// holds while it runs (*node), or what is there at the end (-1; may be NULL). Below it there is no
// plan that hth_plan_verify accepts; above it there need not be one. 0: no memory to look. problem
// has been checked.
uint64_t hth_plan_min(const hth_problem *problem, int *node);
// What to say when nothing fits: either what hth_plan_min proves, or that no plan was found; with
// the budget, and the bytes of a plan that was found, where there is one.
typedef struct hth_shortage {
    uint64_t budget, least, found; // found 0: not known
    const char *node, *policy;     // that `least` is of; NULL: not said
} hth_shortage;
// hth_shortage_fail returns HTH_ETOOBIG: "needs at least L .., the budget is B", only where B is
// below `least`, else "no plan was found for a budget of B"; then "; one was found for F", and what
// is proven: "; none fits below L". `least` is rounded down, `found` up.
hth_err hth_shortage_fail(const hth_shortage *shortage);
// hth_plan_refuse is hth_shortage_fail for problem->budget. policy NULL: not said.
hth_err hth_plan_refuse(const hth_problem *problem, uint64_t found, const char *policy);

// hth_plan_verify replays the plan's events and checks that no two live rectangles of the arena
// intersect (copies in flight included), that every read finds its tensor, that waits point
// backwards, and that the budget holds.
hth_err hth_plan_verify(const hth_problem *problem, const hth_plan *plan);

// Files. Reading validates everything (indices, order, sizes); unknown keys are ignored.
hth_err hth_plan_write(const char *path, const hth_problem *problem, const hth_plan *plan);
hth_err hth_problem_read(const char *path, hth_problem *out);
// hth_plan_write_trace writes the predicted (and, where measured_us is given, the measured)
// timeline as Chrome/Perfetto trace JSON. measured_us: [n_instrs][2], may be NULL.
hth_err hth_plan_write_trace(const char *path, const hth_problem *problem, const hth_plan *plan,
                             const double (*measured_us)[2]);

#endif
