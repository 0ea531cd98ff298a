// SPDX-License-Identifier: Apache-2.0
// memmgr/run_impl.h - the inside of a run: what run_open.c makes of a plan, and run.c walks.
#ifndef HTH_MEMMGR_RUN_IMPL_H
#define HTH_MEMMGR_RUN_IMPL_H

#include "planner/plan_walk.h"
#include "memmgr/run.h"

#define RUN_NOWHERE UINT64_MAX // no place in the arena

// Where one pointer of one step comes from.
typedef struct run_slot {
    int tensor; // -1: a place in the arena
    uint64_t offset;
} run_slot;

typedef struct run_step {
    struct hth_run *run;
    const hth_instr *instr;
    hth_lane lane;
    const hth_kernel *kernel; // compute
    hth_kernel_args args;
    void **scratch; // .. and the pointer to its workspace
    void **device;  // copies: the pointer on the device's side
    // copies: the other side, which is the tensor's own far place, a place in the host slab, or
    // (both NULL) `at` of the spill file
    const hth_run_far *far;
    void *host;
    uint64_t at;
    size_t bytes;
    int first_wait, n_waits;
    hth_event *done;      // NULL: nobody on another stream waits for it
    hth_event *from, *to; // measuring, when it does not run on the caller
} run_step;

// A tensor that somebody waits for (run_watch.c).
typedef struct run_watched {
    int step;        // that writes it last
    int which;       // of the caller's tensors
    void *const *at; // where it is then
} run_watched;

// The captured run (run_capture.c).
typedef struct run_capture {
    hth_capture *captured;
    hth_event *edge[HTH_N_LANES]; // compute's: where all lanes begin; the others': where they end
    void **far;                   // [n_steps], far memory as captured
    bool valid;                   // `captured` has the addresses that are bound
    bool off;                     // something in it cannot be captured
    unsigned repeats, after;      // executions with these addresses; how many before a capture
    uint64_t launches;
} run_capture;

struct hth_run {
    hth_run_spec spec;
    bool inline_compute, inline_copies;
    hth_stream *stream[HTH_N_LANES]; // NULL: nothing runs there
    int n_steps, n_slots, n_waits;
    run_step *steps;
    run_slot *slots;
    void **pointers;   // [n_slots], what the slots resolve to
    hth_event **waits; // events, in slices of the steps
    void *host_slab;
    uint64_t host_bytes;    // of it
    hth_spill *spill;       // in its place
    void **bound;           // [n_tensors], as bound last
    uint64_t *first, *last; // [n_tensors], where in the arena a tensor is at first, at last
    char *arena;
    bool is_bound, measuring;
    double (*times)[2]; // [n_instrs]
    const atomic_int *canceled;
    uint64_t stall_ns; // of the last execution
    hth_run_between_fn between;
    void *between_ctx;
    int *wanted; // [n_wanted], tensors as they were asked for
    int n_wanted;
    run_watched *watched; // [n_watched], by step
    int n_watched, reported;
    hth_run_written_fn written;
    void *written_ctx;
    run_capture capture;
};

// From run.c. run_issue_all issues every step; run_drain waits for all streams and returns the
// first failure, `err` before any, with its sentence.
hth_err run_issue_all(hth_run *run, uint64_t origin_ns);
hth_err run_drain(hth_run *run, hth_err err);
bool run_canceled(const hth_run *run);

// From run_watch.c. run_written reports what the kernel of `step`, which has run, wrote last.
void run_written(hth_run *run, const run_step *step);

// From run_capture.c. run_capture_execute returns true if it ran the plan, or failed for good, with
// *err; else the plan is to be issued. run_capture_moved: addresses have changed.
bool run_capture_possible(const hth_run *run);
bool run_capture_execute(hth_run *run, hth_err *err);
void run_capture_moved(hth_run *run);
void run_capture_close(hth_run *run);

#endif
