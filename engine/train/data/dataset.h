// SPDX-License-Identifier: Apache-2.0
// engine/train/data/dataset.h - training data: a safetensors file of `x` and `y`, or a dataset of
// the store; first dimension = samples.
//
// Design notes
// The file is checked as a whole when it is opened; samples are read row by row, so it may be
// larger than memory. It is not mapped: its owner may cut it meanwhile, which then is an error and
// not the end of the process. A read of a short row costs more than the row; tensors of such rows
// that are not large are kept in memory. The store's are mapped, for nobody cuts its files; the
// dataset is held meanwhile (modelstore/hold.h). Any thread; a dataset is read-only.
#ifndef HTH_ENGINE_TRAIN_DATA_DATASET_H
#define HTH_ENGINE_TRAIN_DATA_DATASET_H

#include "base/file.h"
#include "graph/tensor.h"
#include "modelstore/store.h"

typedef struct hth_dataset_tensor {
    char *name;
    hth_tensor t;    // data: all of it, where it is in memory or mapped, else NULL
    uint64_t at;     // in the file
    hth_const *view; // of the store; NULL: from a file
} hth_dataset_tensor;

typedef struct hth_dataset {
    char *name;        // for messages
    hth_file file;     // fd -1: from the store
    int hold;          // of the store's; -1: none
    int64_t n_samples; // of all tensors
    int n_tensors;
    hth_dataset_tensor *tensors;
} hth_dataset;

// hth_dataset_open opens `path`. HTH_ENOENT, HTH_EINVAL: no safetensors file (source: the format's
// description at github.com/huggingface/safetensors), a tensor outside of it, or tensors whose
// first dimensions differ; the sentence names what, and tells nothing of what is in a file of
// another kind.
hth_err hth_dataset_open(const char *path, hth_dataset *out);
// hth_dataset_open_fd is the same for a descriptor that was taken (base/file.h), and stays the
// caller's.
hth_err hth_dataset_open_fd(int fd, const char *name, hth_dataset *out);
// hth_dataset_open_stored opens the dataset `name` of a tenant's in the store, and holds it.
// HTH_ENOENT: the tenant has none of that name; HTH_ECORRUPT: it is damaged.
hth_err hth_dataset_open_stored(hth_store *store, const char *name, const char *tenant,
                                hth_dataset *out);
void hth_dataset_close(hth_dataset *dataset);

// hth_dataset_find returns the tensor of that name, NULL: none.
const hth_dataset_tensor *hth_dataset_find(const hth_dataset *dataset, const char *name);
// hth_dataset_gather reads samples rows[0 .. count) of `tensor` to `out`, one after the other.
// HTH_EIO: the file is shorter by now, or cannot be read. Blocks for as long as its file system
// does.
hth_err hth_dataset_gather(const hth_dataset *dataset, const hth_dataset_tensor *tensor,
                           const int64_t *rows, int64_t count, void *out);
// hth_dataset_order fills rows[0 .. count) with a random order that depends on seed and epoch only
// (Fisher and Yates, xorshift64*); unshuffled: 0, 1, 2, ..
void hth_dataset_order(int64_t count, bool shuffle, uint64_t seed, int64_t epoch, int64_t *rows);

#endif
