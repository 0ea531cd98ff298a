// SPDX-License-Identifier: Apache-2.0
// convsel/successive_halving.h - which of a node's choices are worth timing, and how often.
#ifndef HTH_CONVSEL_SUCCESSIVE_HALVING_H
#define HTH_CONVSEL_SUCCESSIVE_HALVING_H

#include "base/err.h"
#include "convsel/choice.h"

#define HTH_RACE_SAMPLES 40

// The runs of one choice.
typedef struct hth_samples {
    double clean[HTH_RACE_SAMPLES]; // us, of runs that nothing was seen to disturb
    double all[HTH_RACE_SAMPLES];   // .. and of all
    int n_clean, n, turns;
} hth_samples;

// hth_samples_add keeps a run's time; what there is no room for is forgotten.
void hth_samples_add(hth_samples *samples, double us, bool clean);
// hth_samples_time is what the runs say together: of a step, whose times add up to a prediction,
// the one in the middle; else the lower quartile, for a disturbance only ever adds. samples->n > 0.
double hth_samples_time(const hth_samples *samples, bool step);
// hth_samples_disturbed says that this rests on runs that were disturbed, or that do not repeat.
bool hth_samples_disturbed(const hth_samples *samples);

typedef struct hth_racer {
    // turn runs `c` one or a few times more and adds their times to s. It may fill c->error.
    hth_err (*turn)(void *ctx, hth_choice *choice, hth_samples *samples);
    // check fills c->error where it is not known.
    hth_err (*check)(void *ctx, hth_choice *choice);
    void *ctx;
    double tolerance;     // of errors: what is less exact beats nothing
    uint64_t slack_bytes; // of workspace that make no difference to a plan
    bool step;            // times are of a step's node
} hth_racer;

// hth_race times the choices of `list` (workspace and resident bytes filled), at most
// HTH_MAX_CHOICES: those that may be on the front two to five times, until their times repeat, the
// others until it is clear that one of these is faster and needs no more memory. Fills time_us, and
// `disturbed`.
// What cannot be run, and what is certain to be beaten before its first run, leaves the list.
// *whole: nothing did for want of memory. When nothing is left: what the last choice returned.
hth_err hth_race(const hth_racer *racer, hth_choice *list, int *count, bool *whole);

#endif
