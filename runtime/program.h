// SPDX-License-Identifier: Apache-2.0
// runtime/program.h - a model made ready for given input shapes: graph, kernels, plan, run.
// Engine's thread only.
//
// Design notes
// compile: specialize -> passes -> one kernel per node -> planning problem -> plan. A program is
// *active* while it holds its weights in residency; idle programs can be made inactive when another
// needs the room, and become active again by fetching what is missing. Only one program runs at a
// time on a device, so all share one arena. A model whose shapes depend on computed values has a
// chain of stages: program -> rest -> program -> ..
#ifndef HTH_RUNTIME_PROGRAM_H
#define HTH_RUNTIME_PROGRAM_H

#include "convsel/in_step_times.h"
#include "graph/autodiff/train.h"
#include "graph/specialize.h"
#include "memmgr/run.h"
#include "memmgr/spill.h"
#include "planner/plan_train.h"
#include "runtime/request.h"
#include "runtime/site.h"

#define HTH_PROGRAMS 16 // of one graph

// Where programs of one graph come from: a model, or what is left of one after a stage.
typedef struct hth_source {
    hth_graph *graph;      // owned
    hth_program *programs; // most recently used first
    int n_programs;
    bool batched; // its samples are proven independent, and nobody forbids runs of several requests
    const hth_account *account; // of its programs; outlives them. NULL: nobody's
} hth_source;

#define HTH_INSTANCES 4 // runs of one program at a time, at most

// The weight of one kernel input in one form.
typedef struct hth_weight {
    hth_const *content;       // borrowed from the graph
    const hth_kernel *kernel; // whose packing makes the form; NULL: plain
    const hth_packing *packing;
    char form[96];
    size_t bytes;
    bool in_place; // the store's mapping serves as it is
    bool streamed;
    bool fresh;          // was brought to the device by the hold that `entry` is of
    hth_resident *entry; // while active, when resident
    hth_run_far far;     // while streamed
} hth_weight;

struct hth_program {
    hth_program *next;        // in the source's list
    hth_program *active_next; // in the site's list
    hth_program *site_next;   // .. of all
    hth_source *source;
    const hth_account *account; // NULL: nobody's
    int n_like; // while it is compiled: of programs whose forms of weights it is to share
    hth_program *like[HTH_PROGRAMS];
    int held; // calls in progress that go on with it: requests served in between leave it there
    const void *followed; // the newer version that was made ready for these inputs, too
    hth_tensor *key;      // the inputs it was made for; data: of those in value_inputs, in contents
    uint64_t value_inputs;
    hth_const **contents; // per input, NULL where only dtype and shape count
    int n_contents;
    uint64_t content_bytes; // of them and of what was computed of them when it was compiled
    hth_graph *graph;       // concrete
    hth_source rest;        // graph NULL: none
    int n_final, *final_index;
    int *same_output;     // per output: the first one that is the same value
    hth_kernel **kernels; // per node
    hth_cache_model heat; // of a training step: what its nodes find in the caches
    hth_problem problem;
    hth_plan *plan;
    hth_run *run;
    int n_weights;
    hth_weight *weights;
    int *weight_tensor;        // per weight: its plan tensor
    int *value_tensor;         // per value: plan tensor, -1: constant
    int **node_in, **node_out; // per node and slot: plan tensor
    int *n_in, *n_out;
    void **fixed;               // per plan tensor
    const hth_run_far **far_of; // per plan tensor: where it is when it is away
    bool leads;                 // it chose forms of weights anew, for all programs of its source
    bool stale; // .. this one has others: it serves while it is active, until it is made again
    bool active, tuned, filled; // filled: far copies of streamed weights are made
    bool running, pinned;       // it stays active: while it runs, until it is unpinned
    bool pinned_ahead; // .. as an older version's program is, whose place it has not taken yet
    int64_t slice;     // samples per run of the program that serves this one in slices; 0: itself
    bool sliced;       // whether slices were compared
    bool disturbed;    // timings that it was made from were: they are to be taken again ..
    int again_node;    // .. from this node on, ..
    bool again;        // .. and some were
    uint64_t budget, runs, used_at;
    uint64_t overhead_bytes;  // host memory for its operators (overhead.h)
    uint64_t n_timed, run_ns; // requests that it computed; what one takes, 0: not known yet
    double compile_ms;
    // a training step (hth_program_compile_step); NULL: inference
    const hth_train_graph *train;
    hth_plan_options options; // of its plan
    uint64_t peak_bytes;      // what it takes when nothing is short
    const hth_run_far *far;   // per slot: where its content is when it is not on the device
    const bool *retained;     // per slot: the caller has it on the device; NULL: none
    const char *spill;        // directory of the files that offloads go to; NULL: memory
    hth_spill_speed spill_speed;
    const hth_profile *profile; // costs and link of another device, NULL: of this one
    const hth_program *kin;     // hth_step_spec's, while it is compiled
    double kin_scale;
    bool plan_only;           // there is no run, and nothing but the first kernels is prepared
    hth_spill *spill_weights; // streamed weights
    void *arena;              // the caller's, for the plan's arena; NULL: the site's
    // the same for teams of fewer threads, which run concurrently in instances (instances.h):
    // owned, their weights are this one's. no_instances: there cannot be any
    hth_program *instance[HTH_INSTANCES];
    int n_instances;
    // .. and one for a caller's thread alone (engine/serve/serve_here.c); NULL: none yet
    hth_program *narrow;
    bool no_instances;
    uint32_t chances; // to run them
    int threads;      // of such a one; 0: all of the device
};

// hth_source_match finds a program for these inputs (model's order), or NULL.
hth_program *hth_source_match(hth_source *source, const hth_tensor *inputs);
// hth_source_unpin_ahead unpins those of its programs that are pinned_ahead.
void hth_source_unpin_ahead(hth_site *site, hth_source *source);
void hth_source_fini(hth_site *site, hth_source *source);

// hth_program_takes says that program was made for these n inputs, values where they count
// included.
bool hth_program_takes(const hth_program *program, const hth_tensor *inputs, int n);
// hth_program_evict_stale has stale programs but `keep` leave the device that do not run; false:
// none did.
bool hth_program_evict_stale(hth_site *site, const hth_program *keep);
// hth_program_free also removes it from its source and the site, and from the device those of its
// weights that no active program uses.
void hth_program_free(hth_site *site, hth_program *program);
// hth_program_drop_problem drops what planning has made, which is made again for each plan.
void hth_program_drop_problem(hth_program *program);

// hth_program_activate makes a program ready to run: its weights and an arena are in device memory
// when it returns. On error no byte is there that was not before. hth_program_run does it, too.
hth_err hth_program_activate(hth_site *site, hth_program *program);
void hth_program_deactivate(hth_site *site, hth_program *program);
// hth_program_evict does so and takes the weights that nobody else uses off the device.
void hth_program_evict(hth_site *site, hth_program *program);
// hth_program_pin keeps an active program active, whoever needs the room; false: no longer.
void hth_program_pin(hth_site *site, hth_program *program, bool on);
// hth_program_pin_move has `to` be active and pinned in from's place; there need not be room for
// both. On error `from` is pinned as before.
hth_err hth_program_pin_move(hth_site *site, hth_program *from, hth_program *to);

// hth_program_instead is what the device has for a program that takes this one's place, with the
// memory that this one's pin keeps.
uint64_t hth_program_instead(hth_site *site, hth_program *program);
// hth_program_squeezed: not all of its weights stay on the device.
bool hth_program_squeezed(const hth_program *program);

// hth_program_run runs once. inputs: as compiled; out[i].data: where output i of program->graph
// goes.
hth_err hth_program_run(hth_site *site, hth_program *program, const hth_tensor *inputs,
                        const hth_tensor *out, const atomic_int *canceled);
// hth_program_begin is what hth_program_run does before program->run is executed, hth_program_end
// what it does after; who executes it sees to it that program stays active meanwhile (`running`).
hth_err hth_program_begin(hth_site *site, hth_program *program, const hth_tensor *inputs,
                          const hth_tensor *out);
hth_err hth_program_end(hth_site *site, hth_program *program, const hth_tensor *inputs,
                        const hth_tensor *out);
// hth_program_output describes output i of program->graph (data NULL).
hth_tensor hth_program_output(const hth_program *program, int i);

// Ledger of one program: bytes of its weights, of those only it uses, of its arena.
void hth_program_ledger(const hth_program *program, uint64_t *weight_bytes, uint64_t *arena_bytes);

#endif
