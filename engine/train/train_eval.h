// SPDX-License-Identifier: Apache-2.0
// engine/train/train_eval.h - a training job's loss and accuracy over data that it is not trained
// on.
//
// Design notes
// The model runs as it is served (batch norm with its running statistics, no dropout), with the
// trainer's parameters as inputs: read where the host has them, not copied into a model of their
// own. Loss and metrics are computed of its output (train_score.h), summed over samples: a last,
// smaller batch counts as what it is. Engine's thread only.
#ifndef HTH_ENGINE_TRAIN_TRAIN_EVAL_H
#define HTH_ENGINE_TRAIN_TRAIN_EVAL_H

#include "engine/train/data/train_data.h"

typedef struct hth_evaluator hth_evaluator;

// hth_evaluator_open makes everything ready to evaluate `trainer`, whose current step is prepared,
// over `data`, which it takes over, also on error. All must outlive it. Its batches are halved
// until they fit into the memory that its steps compute in; HTH_ETOOBIG, where the model's samples
// depend on each other: then they are never halved, for another batch has another loss. HTH_EINVAL:
// a label is out of range.
hth_err hth_evaluator_open(hth_models *ms, const hth_train_spec *spec, hth_trainer *trainer,
                           hth_train_data *data, hth_request *request, hth_evaluator **out);
void hth_evaluator_close(hth_evaluator *evaluator); // NULL is allowed

// hth_evaluator_refit makes everything ready again where the trainer has less memory by now; errors
// as hth_evaluator_open, and the next turn tries again. An evaluation that was begun begins anew.
hth_err hth_evaluator_refit(hth_evaluator *evaluator);

// hth_evaluator_slice runs one batch; after the last one, *done and *result (hth_score_result) with
// the trainer's parameters as they are.
hth_err hth_evaluator_slice(hth_evaluator *evaluator, bool *done, json_t **result);

// hth_train_held_out is the last evaluation, in a list of them, of the set that comes first; NULL:
// there is none.
const json_t *hth_train_held_out(const json_t *list);
// hth_train_details adds to a job's document, from where the job stands, what rows of `jobs` have
// no column for: "steps_per_epoch", "lr", "held_out_step", "top5", "perplexity", as far as known,
// and what it was asked to do with images.
void hth_train_details(const json_t *state, json_t *doc);

#endif
