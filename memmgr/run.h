// SPDX-License-Identifier: Apache-2.0
// memmgr/run.h - walks a plan on a device's streams. Called only by the device's owner thread, but
// for hth_run_execute: on a device with inline_compute any thread that has a compute team may do
// that, one at a time for each run.
//
// The folder memmgr/ executes plans in the bytes of one device: the pool gives them out (pool.h),
// residency keeps one copy of each weight (residency.h), a run does what its plan says, and spill.h
// is the disk that offloads may go to. What to do was decided in planner/.
//
// Design notes
// Binding resolves every pointer once: arena base + offset, resident weights, buffers of the
// caller. Running then is a loop over the instructions: launch, copy, record, wait; it allocates
// nothing and decides nothing.
#ifndef HTH_MEMMGR_RUN_H
#define HTH_MEMMGR_RUN_H

#include "kernels/kernel.h"
#include "planner/plan.h"
#include "memmgr/spill.h"

#include <stdatomic.h>

typedef struct hth_run hth_run;

// Where a resident tensor is while it is away: memory, or a place in a file (memory NULL). What
// stands here may change between executions.
typedef struct hth_run_far {
    void *memory;
    hth_spill *file;
    uint64_t at; // a multiple of HTH_SPILL_ALIGN
} hth_run_far;

typedef struct hth_run_spec {
    hth_device *device;
    const hth_problem *problem; // must outlive the run, like plan and kernels
    const hth_plan *plan;
    hth_kernel *const *kernels; // [n_nodes], prepared with the plan's alternative
    const int *const
        *node_in; // per node: tensor of each kernel input (-1: absent), n_in[i] of them
    const int *n_in;
    const int *const *node_out; // per node: tensor of each kernel output (-1: absent)
    const int *n_out;
    const hth_run_far *const *far; // per tensor: where a streamed weight or state comes from and
                                   // goes to, NULL otherwise; outlives the run
    // directory of a file (spill.h) that takes the place of the host slab; NULL: memory. Files need
    // a device whose memory the host sees
    const char *spill_dir;
} hth_run_spec;

// hth_run_open also takes the host's side, once for all executions: page-aligned memory, all of it
// touched, or the spill file.
hth_err hth_run_open(const hth_run_spec *spec, hth_run **out);
void hth_run_close(hth_run *run); // NULL is allowed

// hth_run_bind sets where tensors live: `arena` (plan->arena_bytes) and, per tensor, `fixed[t]` for
// resident weights and external tensors (NULL: in the arena). Cheap when nothing changed since the
// last call.
hth_err hth_run_bind(hth_run *run, void *arena, void *const *fixed);
// hth_run_filled is where the caller puts the content of a tensor that is there before the run and
// was bound to no memory, hth_run_left where one that stays behind it lies; NULL: not in the arena.
// After hth_run_bind.
void *hth_run_filled(const hth_run *run, int tensor);
void *hth_run_left(const hth_run *run, int tensor);
// hth_run_execute runs the plan once and returns when the results are there. `canceled` (may be
// NULL) is looked at between instructions, and within kernels that count their work (base/pace.h):
// HTH_ECANCELED. On any error the streams are drained before it returns.
hth_err hth_run_execute(hth_run *run, const atomic_int *canceled);
// hth_run_stall_ns is how long the last execution's kernels waited for copies, the end included; 0
// on devices whose kernels do not run on the caller.
uint64_t hth_run_stall_ns(const hth_run *run);
// hth_run_replays is how many executions were launches of captured work.
uint64_t hth_run_replays(const hth_run *run);
// hth_run_between has fn(ctx) called by the executing thread in front of every kernel, and now and
// then within long ones, on devices whose kernels run there; NULL: nothing.
typedef void (*hth_run_between_fn)(void *ctx);
void hth_run_between(hth_run *run, hth_run_between_fn fn, void *ctx);
// hth_run_watch has fn(ctx, i, content) called by the executing thread as soon as tensors[i] (-1:
// none) has been written for the last time in an execution, in the order in which that happens, on
// devices whose kernels run there (HTH_ENOTSUP: not this one's). One that no kernel writes is not
// reported. n 0: nothing is.
typedef void (*hth_run_written_fn)(void *ctx, int i, const void *content);
hth_err hth_run_watch(hth_run *run, const int *tensors, int n, hth_run_written_fn fn, void *ctx);
// hth_run_group gives kernels what their args have as `group`, which outlives the executions to
// come; NULL: nothing.
void hth_run_group(hth_run *run, const hth_kernel_group *group);
// hth_run_measure makes later executions record start and end of every instruction; hth_run_times
// returns them ([n_instrs][2], microseconds from the start), valid until the next execution.
void hth_run_measure(hth_run *run, bool on);
const double (*hth_run_times(const hth_run *run))[2];

#endif
