// SPDX-License-Identifier: Apache-2.0
// engine/train/data/train_data.h - a dataset bound to a model's inputs: batches in the order of an
// epoch. Engine's thread only.
#ifndef HTH_ENGINE_TRAIN_DATA_TRAIN_DATA_H
#define HTH_ENGINE_TRAIN_DATA_TRAIN_DATA_H

#include "engine/train/data/dataset.h"
#include "engine/train/train.h"

#define HTH_TRAIN_MAX_INPUTS 16
#define HTH_TRAIN_IGNORED    (-100) // a label that counts for nothing (PyTorch's ignore_index)

// Which samples of a file are used. A share of them, at least one, is held out: the same ones for
// one seed and number of samples.
typedef struct hth_train_part {
    const char *path; // or, with a descriptor, its name; with a store the dataset's
    int64_t batch;    // samples in one, at most
    double share;
    uint64_t seed;
    bool held;          // the ones that are held out, else the others
    hth_site *site;     // where files are read concurrently with requests (hth_work_elsewhere)
    int fd;             // of the file, which stays the caller's; -1: `path` is opened
    hth_store *store;   // that has the dataset; NULL: it is a file
    const char *tenant; // .. whose it is
    const hth_train_scale *scale; // for bytes where the model reads floats, or images; NULL: none
    const hth_augment *augment;   // what images get anew in each epoch; NULL: nothing
} hth_train_part;

typedef struct hth_train_data {
    hth_dataset set;
    hth_site *site;
    int64_t classes;   // labels are below it; 0: not known
    int64_t n_samples; // that are used
    int64_t *used;     // which; NULL: all
    int n_inputs;
    const hth_dataset_tensor *source[HTH_TRAIN_MAX_INPUTS], *target_source;
    hth_tensor input[HTH_TRAIN_MAX_INPUTS], target; // one batch
    int64_t *rows;                                  // the order of the epoch
    hth_augment augment;
    int image;     // the input that it changes
    uint64_t seed; // as the order has them
    int64_t epoch;
} hth_train_data;

// hth_train_data_open opens a part's file and matches its tensors to the inputs of `model`; what is
// left is the target. A sample may be flat, or lack or have dimensions of 1: it is reshaped. Bytes
// stay bytes in data->input. HTH_EINVAL names what is missing or does not fit: for images that are
// flipped, cropped or normalised that is any but one input [N, C, H, W]. Closed also on error.
hth_err hth_train_data_open(const hth_train_part *part, const hth_model *model,
                            hth_train_data *data);
void hth_train_data_close(hth_train_data *data);

// hth_train_data_order sets the order of an epoch, and what images get in it.
void hth_train_data_order(hth_train_data *data, bool shuffle, uint64_t seed, int64_t epoch);
// hth_train_data_label is element i of labels, which need not be aligned.
int64_t hth_train_data_label(const hth_tensor *tensor, size_t index);
// hth_train_data_check_labels refuses labels that are neither classes nor HTH_TRAIN_IGNORED, here
// and in each batch: the file may be another one by then.
hth_err hth_train_data_check_labels(hth_train_data *data, int64_t classes);
// hth_train_data_shape makes inputs and target those of a batch of `count` samples, contents
// undefined.
void hth_train_data_shape(hth_train_data *data, int64_t count);
// hth_train_data_batch reads the batch that begins at `first` in the order of the epoch; the last
// one may be shorter. Requests are served meanwhile (hth_work_elsewhere). HTH_EIO: the file changed
// or cannot be read; HTH_EINVAL: there is no such sample, or a label that was none when it was
// opened.
hth_err hth_train_data_batch(hth_train_data *data, int64_t first, int64_t batch);

#endif
