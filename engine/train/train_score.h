// SPDX-License-Identifier: Apache-2.0
// engine/train/train_score.h - loss and metrics of a model's answers, summed over batches: pure
// functions of outputs and targets, in double.
#ifndef HTH_ENGINE_TRAIN_TRAIN_SCORE_H
#define HTH_ENGINE_TRAIN_TRAIN_SCORE_H

#include "graph/autodiff/train.h"

#include <jansson.h>

typedef struct hth_score {
    double loss, norm; // the loss that is trained: a sum, and what it is to be divided by
    double plain;      // softmax-xent without weights and smoothing, summed
    int64_t counted;   // labels, or elements
    int64_t right, top5;
    int64_t classes;
} hth_score;

// hth_score_add adds outputs `y` of shape `shape` for `target`, under the loss of `options`.
void hth_score_add(hth_score *score, const hth_train_options *options, const float *y,
                   const hth_shape *shape, const hth_tensor *target);
// hth_score_result is {"loss", "accuracy", "top5", "perplexity"}, as far as there are such: a loss
// that is not finite is left out, top-5 of five classes or less, and what the loss has not. NULL:
// no memory.
json_t *hth_score_result(const hth_score *score, const hth_train_options *options);

// hth_train_best looks through evaluations ([{"step", "epoch", "set", "loss", "accuracy"}, ..]) of
// the set that comes first.
typedef struct hth_best {
    int64_t step, epoch; // of the best one, -1: none had a finite loss
    int64_t stale;       // how many came after it
} hth_best;
hth_best hth_train_best(const json_t *held_out, bool accuracy);

#endif
