// SPDX-License-Identifier: Apache-2.0
// runtime/compile/compile.h - makes programs: from a model's graph and concrete inputs, or a
// training step's graph, to kernels and a plan; another plan for one that is there. Engine's thread
// only.
#ifndef HTH_RUNTIME_COMPILE_COMPILE_H
#define HTH_RUNTIME_COMPILE_COMPILE_H

#include "runtime/program.h"

// hth_program_compile makes a program for concrete inputs (data needed where the model asks for
// values) under `budget` bytes and puts it at the head of the source's list. tune: measure
// convolution candidates that the cache lacks. progress may be NULL.
hth_err hth_program_compile(hth_site *site, hth_source *source, const hth_tensor *inputs,
                            uint64_t budget, bool tune, hth_request *progress, hth_program **out);
// hth_program_compile_instance makes the same program for a team of so many threads, of which
// *out, an instance[] or narrow of it, is the place. On error *out stays. HTH_ENOTSUP: program has
// stages or streams weights, or other forms of weights would be wanted.
hth_err hth_program_compile_instance(hth_site *site, hth_program *program, int threads,
                                     hth_program **out);

// What a training step is compiled for.
typedef struct hth_step_spec {
    const hth_train_graph *train; // must outlive the program
    const hth_account *account;   // .. too; may be NULL
    const char *budget;       // "512MiB", "60%" (of what it takes when nothing is short), NULL: all
    uint64_t *budget_bytes;   // what `budget` comes to is left here; not 0: counts in its place
    uint64_t available_bytes; // without `budget` this; one that is more is HTH_ENODEVMEM. 0: all
    hth_plan_options options;
    // slots that are on the device whatever the plan says, in the caller's memory, which is
    // retained_bytes of the budget; NULL: none. Outlive the program, like far
    const bool *retained;
    uint64_t retained_bytes;
    const hth_run_far *far; // per slot: where it is when it is not on the device
    const char *spill;      // directory: what leaves goes to a file there; NULL: to memory
    bool problem_only;      // stop before planning: no plan, no run
    // a compiled step of other samples, of which this one has kin_scale times as many: what was not
    // measured costs what its nodes do, in proportion; NULL: it is measured
    const hth_program *kin;
    double kin_scale;
    uint64_t slice_bytes; // batch norms of more are computed in slices; 0: where nothing else fits
    const hth_profile *profile; // where costs and link come from; what it lacks is measured here.
                                // NULL: all is. Outlives the program
    bool plan_only; // with profile: for problem and plan only; what it lacks is an error, and its
                    // memory the limit
} hth_step_spec;

// hth_program_compile_step makes the program of one training step. Its slots' inputs and outputs
// are bound by hth_program_run (data NULL for those that p->plan->streamed says live far away),
// its arena is p->arena. p->budget is without retained_bytes.
// Where no plan fits, batch norms are taken in slices of the batch (hth_pass_conv_norm).
// Belongs to no source. HTH_ETOOBIG says how many bytes the budget is short.
hth_err hth_program_compile_step(hth_site *site, const hth_step_spec *spec, bool tune,
                                 hth_request *progress, hth_program **out);
// hth_program_replan gives a step another plan for a problem with the same tensors and nodes, where
// every node has only the algorithm that it has now. Takes *problem and *plan over; on error the
// program is as before.
hth_err hth_program_replan(hth_site *site, hth_program *program, hth_problem *problem,
                           hth_plan **plan);
// hth_program_remember keeps what the nodes of a step took, seen[i] of node i, and the problem's
// speeds of copies out and in where copied[way] > 0 ({in, out}), for steps that are compiled from
// now on. What is planned for another device or a disk says nothing about this one's link.
hth_err hth_program_remember(hth_site *site, const hth_program *program,
                             const hth_in_step_times *seen, const double copied[2]);
// hth_program_slot is the plan tensor of slot i's input, -1 when no node uses it.
int hth_program_slot(const hth_program *program, int i);

// hth_program_measured says that nothing is left to measure for node i: it has no alternatives, or
// their timings are known.
bool hth_program_measured(hth_site *site, const hth_graph *graph, int i);
// hth_program_extra is how many bytes program's weights take in forms that the other programs of
// its source do not have, while they have the same weights in others.
uint64_t hth_program_extra(const hth_program *program);
// hth_program_room says that program, which is not active, runs without driving others out of the
// device's memory.
bool hth_program_room(const hth_site *site, const hth_program *program);

#endif
