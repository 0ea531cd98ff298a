// SPDX-License-Identifier: Apache-2.0
// server/train_data.h - a dataset bound to a model's inputs: batches in the order of an epoch.
// Engine's thread only.
#ifndef HTH_SERVER_TRAIN_DATA_H
#define HTH_SERVER_TRAIN_DATA_H

#include "server/dataset.h"
#include "server/train.h"

#define HTH_TRAIN_MAX_INPUTS 16

typedef struct hth_train_data {
    hth_dataset set;
    int n_inputs;
    const hth_dataset_tensor *source[HTH_TRAIN_MAX_INPUTS], *target_source;
    hth_tensor input[HTH_TRAIN_MAX_INPUTS], target; // one batch
    int64_t *rows;                                  // the order of the epoch
} hth_train_data;

// hth_train_data_open maps spec->data and matches its tensors to the inputs of `m`; what is left is
// the target. HTH_EINVAL names what is missing or does not fit. Closed also on error.
hth_err hth_train_data_open(const hth_train_spec *spec, const hth_model *m, hth_train_data *d);
void hth_train_data_close(hth_train_data *d);

// hth_train_data_check_labels refuses labels that are neither classes nor -100.
hth_err hth_train_data_check_labels(const hth_train_data *d, int64_t classes);
// hth_train_data_shape makes inputs and target those of a batch of `n` samples, contents undefined.
void hth_train_data_shape(hth_train_data *d, int64_t n);
// hth_train_data_batch fills the batch that begins at `first` in the order of the epoch; the last
// one may be shorter.
void hth_train_data_batch(hth_train_data *d, int64_t first, int64_t batch);

#endif
