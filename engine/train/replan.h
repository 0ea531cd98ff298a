// SPDX-License-Identifier: Apache-2.0
// engine/train/replan.h - what a job's steps really take, against what was planned, and better
// plans found meanwhile. Engine's thread only, but for the search itself.
//
// Design notes
// The plan that a job begins with was found in a second, with times of nodes that were measured
// alone. While the job runs, two things make it better. A thread of low priority goes on searching
// (planner/plan_refine.h), for a bounded work, and for no more than a small share of the time that
// the job's steps will take (train.replan_share); what it finds ends it, and it goes on from there.
// Before a slice it rests while requests meet the job's steps. And where the median of the last
// steps is further from the predicted time than REPLAN_OFF, a few steps are measured instruction by
// instruction, the nodes' times become what they take in this step, the link's speeds what it has
// in this step, and the search begins again with those. A plan that is predicted to be better by
// REPLAN_GAIN, and by more in the steps that are left than changing over costs, takes the place of
// the old one between two steps. Of a batch in parts, that is the step that adds up gradients: all
// but one part run it, and the slots that other steps rely on are not its own. Nodes
// keep their algorithms: whatever is offloaded or computed again instead, all bits stay the same.
// For the same reason a job leaves nothing of this behind: what one took must not choose the
// algorithms of the next, nor of the same one when it goes on from a checkpoint. `bench`, which is
// asked to measure, does (hth_replan_remember).
//
// The same search gives a job that runs more or less memory (trainer_resize.c).
#ifndef HTH_ENGINE_TRAIN_REPLAN_H
#define HTH_ENGINE_TRAIN_REPLAN_H

#include "planner/plan_refine.h"
#include "runtime/program.h"
#include "engine/train/train.h"

#include <pthread.h>

#define HTH_REPLAN_STEPS   8               // whose median counts
#define HTH_REPLAN_SAMPLES HTH_TRAIN_STEPS // steps that are measured by instruction

typedef struct hth_replan {
    bool on;
    double us[HTH_REPLAN_STEPS];        // of the last updates, a ring
    double one_us[HTH_REPLAN_STEPS];    // .. and of the plan that is watched, once
    int n_us;                           // steps since the plan changed
    int n_samples, want;                // measured ones so far, of how many; -1: not measuring
    int *runs;                          // per node: in one step
    double *sample[HTH_REPLAN_SAMPLES]; // per node: its compute
    double bytes[HTH_REPLAN_SAMPLES][2], copy_us[HTH_REPLAN_SAMPLES][2]; // of copies in and out
    double busy_us[2];                  // .. of the samples that count
    double wall_us[HTH_REPLAN_SAMPLES]; // .. and of the steps
    double sampled_us;                  // median of those, of the last correction; 0: none yet
    uint64_t delay_ns;                  // hth_thread_delay_ns, then
    bool busy[HTH_REPLAN_SAMPLES];      // it waited for processors, or was held back
    bool calm;                          // most of the steps agreed, and nothing else ran
    bool once;                          // the search is one slice, and is waited for
    bool only;                          // no search at all: what is measured is only learned
    bool refined, searching;            // refined: a search with the present times was begun
    bool resizes, unwanted; // the search is for more or less memory; it is for nothing by now
    int64_t steps_left;     // .. of a job that makes so many steps more; 0: less
    int corrections, swaps;
    int64_t steps;            // that the job makes in all; 0: not known
    hth_train_swap last;      // the last better plan
    double work_ms, total_ms; // that searches did with the present times; and since the job began
    int slices;               // that they were: each has a seed of its own
    // the search
    pthread_t thread;
    atomic_int done, stop, rests; // rests: it let requests pass at least once
    hth_problem problem;          // with the algorithms in use only
    hth_refine refine;            // of that problem; best: what was found
    double enough_us;             // a plan that is so fast ends it
} hth_replan;

struct hth_trainer;
// hth_replan_step counts an update of a whole batch, which took `us`, with `one_us` for the last
// run of the plan that is watched, and takes a better plan over when there is one.
hth_err hth_replan_step(struct hth_trainer *trainer, double us, double one_us);
// hth_replan_correct has the next HTH_REPLAN_SAMPLES steps (of batches in one part) measured, and
// at the end of the last one does for once what a job does: times become the measured ones, and a
// plan that the search finds with these in one slice of the time that the first plan had is taken
// over.
hth_err hth_replan_correct(struct hth_trainer *trainer);
// hth_replan_see has the next `steps` (of batches in one part, at most HTH_REPLAN_SAMPLES)
// measured; the times become what they took, the plan stays.
hth_err hth_replan_see(struct hth_trainer *trainer, int steps);
// hth_replan_remember leaves what was measured last, nodes and copies, to plans that are made from
// now on, in this process and, through the store, in others. Nothing changes where nothing was
// measured, or where in most of the steps other processes ran on the same processors.
hth_err hth_replan_remember(struct hth_trainer *trainer);
// hth_replan_measures says whether every run of `program` is measured now, for the watch.
bool hth_replan_measures(const struct hth_trainer *trainer, const hth_program *program);
// hth_replan_search begins a search, of one slice, for a plan with which the job takes `bytes` of
// the device at most. hth_replan_take has the plan that was found take the place of the present
// one, hth_replan_end ends a search that is done. On error all is as before; HTH_ENOTSUP: it is no
// plan for this job.
hth_err hth_replan_search(struct hth_trainer *trainer, uint64_t bytes);
hth_err hth_replan_take(struct hth_trainer *trainer);
void hth_replan_end(struct hth_trainer *trainer);
// hth_replan_stop ends the search; before the program that is watched goes.
void hth_replan_stop(struct hth_trainer *trainer);

#endif
