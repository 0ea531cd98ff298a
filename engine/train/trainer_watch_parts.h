// SPDX-License-Identifier: Apache-2.0
// engine/train/trainer_watch_parts.h - the inside of watching a job's steps: shared by trainer_watch.c
// and trainer_measure.c only.
#ifndef HTH_ENGINE_TRAIN_TRAINER_WATCH_PARTS_H
#define HTH_ENGINE_TRAIN_TRAINER_WATCH_PARTS_H

#include "engine/train/trainer.h"

// The step that is watched.
hth_program *hth_watch_program(const hth_trainer *t);
// The middle one of at most HTH_WATCH_STEPS.
double hth_watch_median(const double *v, int n);
// hth_watch_choices allocates the algorithm that each node has now.
hth_err hth_watch_choices(const hth_program *p, int **out);

// hth_watch_measure begins to measure `steps` steps; hth_watch_sample takes one of them over, which
// took `us`; hth_watch_learn, behind the last one, has the problem's times be the measured ones.
hth_err hth_watch_measure(hth_trainer *t, int steps);
void hth_watch_sample(hth_trainer *t, double us);
hth_err hth_watch_learn(hth_trainer *t);
void hth_watch_samples_free(hth_watch *w); // none is being taken then

#endif
