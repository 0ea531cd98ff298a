// SPDX-License-Identifier: Apache-2.0
// engine/train/queue/train_kind.h - the kinds of jobs that the queue runs: a row for each, found by
// the argument "kind" that a job is submitted with; without one it trains a model.
#ifndef HTH_ENGINE_TRAIN_QUEUE_TRAIN_KIND_H
#define HTH_ENGINE_TRAIN_QUEUE_TRAIN_KIND_H

#include "engine/train/job.h"
#include "engine/train/train.h"

// hth_train_kind_open makes a job ready, as its arguments say: what can be wrong is told before any
// step runs. `request` must outlive it. HTH_EINVAL: there is no such kind; HTH_ENODEVMEM: there is
// too little memory now.
hth_err hth_train_kind_open(hth_models *ms, hth_request *request, hth_train_events events,
                            hth_job **out);
// hth_train_kind_check looks at the options of a job that begins later: what else can be wrong,
// with its model and its data, is told then. HTH_EINVAL says which option is.
hth_err hth_train_kind_check(const char *arguments);
// hth_train_kind_does says what a job with these arguments does: "trains 'NAME'"; `job`: its name,
// where they do not say it.
void hth_train_kind_does(const json_t *args, const char *job, char *out, size_t cap);

#endif
