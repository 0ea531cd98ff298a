// SPDX-License-Identifier: Apache-2.0
// engine/train/replan_impl.h - the inside of watching a job's steps: shared by replan.c,
// trainer_measure.c and trainer_resize.c only.
#ifndef HTH_ENGINE_TRAIN_REPLAN_IMPL_H
#define HTH_ENGINE_TRAIN_REPLAN_IMPL_H

#include "engine/train/trainer_impl.h"

// The step that is watched.
const hth_trainer_phase *hth_replan_phase(const hth_trainer *trainer);
hth_program *hth_replan_program(const hth_trainer *trainer);
// The middle one of at most HTH_REPLAN_STEPS.
double hth_replan_median(const double *values, int count);
// hth_replan_choices allocates the algorithm that each node has now.
hth_err hth_replan_choices(const hth_program *program, int **out);

// hth_replan_cost_us is about what changing over to another plan costs.
double hth_replan_cost_us(const hth_trainer *trainer);

// hth_replan_evaluates: with that plan in the place of the one that is watched, and `bytes` of the
// device, the job has room for its evaluations.
bool hth_replan_evaluates(const hth_trainer *trainer, const hth_plan *plan, uint64_t bytes);

// hth_replan_measure begins to measure `steps` steps; hth_replan_sample takes one of them over,
// which took `us`; hth_replan_learn, after the last one, has the problem's times be the measured
// ones.
hth_err hth_replan_measure(hth_trainer *trainer, int steps);
void hth_replan_sample(hth_trainer *trainer, double us);
hth_err hth_replan_learn(hth_trainer *trainer);
void hth_replan_samples_free(hth_replan *replan); // none is being taken then

#endif
