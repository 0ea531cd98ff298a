// SPDX-License-Identifier: Apache-2.0
// client/data/data.h - reads datasets: safetensors, .npy, .npz, CSV, IDX pairs, image folders.
//
// Design notes
// A dataset is opened as a whole and its tensors are read by range. Nothing holds it in memory
// where the format has a place for every sample: safetensors, .npy, stored .npz members, plain IDX
// files (file ranges), images (one at a time), and what is deflated (as a stream: reading on is
// cheap, going back starts over). A CSV is held as the floats that it is read to, and an array in
// Fortran order as a whole. Files are opened with the rights of the caller (base/file.h), and
// nothing is mapped. All that a file says about sizes is compared with the file's own size before
// memory is allocated for it. One thread at a time.
#ifndef HTH_CLIENT_DATA_DATA_H
#define HTH_CLIENT_DATA_DATA_H

#include "client/hearth.h"

#include "base/err.h"

#define HTH_DATA_TENSORS 64 // most in one dataset

typedef struct hth_data_tensor {
    char *name; // "x", "y", or what the file calls it
    hearth_dtype dtype;
    int rank;                       // at least 1
    int64_t shape[HEARTH_MAX_RANK]; // shape[0]: samples
    uint64_t bytes;
} hth_data_tensor;

typedef struct hth_data_options {
    const char *label; // the column of a CSV that is y; NULL: y, label or target
    int height, width; // that images are resampled to; 0: all must have the same size
} hth_data_options;

// Read-only for its user.
typedef struct hth_data {
    char *path;         // absolute or as given; for messages
    const char *format; // "safetensors", "npy", "npz", "csv", "idx", "images"
    int64_t n_samples;  // of all tensors, at least 1
    int n_tensors;
    hth_data_tensor tensors[HTH_DATA_TENSORS];
    int n_classes; // names of the labels 0, 1, ..; 0: the format has none
    char **classes;
    const struct hth_data_reader *reader; // data_impl.h
    void *of;                             // .. its own
} hth_data;

// hth_data_open opens the dataset at `path`; options may be NULL. What kind it is follows from the
// file's first bytes, of a CSV from its extension (.csv, .tsv), of a folder from what it holds. The
// sentence of every error begins with the path. HTH_ENOENT and others by the system's reason;
// HTH_EINVAL: no dataset, or one that is not sound (the sentence names line, column, file or
// tensor); HTH_ENOTSUP: an element type or a variant of a format that is not read; HTH_ECORRUPT: a
// file is damaged or says more than it holds; HTH_ETOOBIG: a size beyond what is read. The caller
// closes *out; NULL on error.
hth_err hth_data_open(const char *path, const hth_data_options *options, hth_data **out);
void hth_data_close(hth_data *data); // NULL is allowed
// hth_data_format tells which of the formats it is, without looking further. Errors are those of
// hth_data_open, without the path.
hth_err hth_data_format(const char *path, const char **format);
// hth_data_size reads "HxW", as images are resampled to. HTH_EINVAL.
hth_err hth_data_size(const char *text, hth_data_options *options);

// hth_data_read reads n bytes of tensor i from byte `at` on, row-major and little-endian; at + n is
// at most its bytes. Fastest from the beginning to the end. HTH_EIO: the file changed, or cannot be
// read; HTH_ECORRUPT: what is compressed is damaged, which shows only here.
hth_err hth_data_read(hth_data *data, int i, uint64_t at, void *out, size_t n);

// hth_data_meta describes it in JSON: {"format", "samples", "classes": [..]} (classes only where
// there are names). Freed by hth_free; NULL: no memory.
char *hth_data_meta(const hth_data *data);

// hth_data_spool writes it as a safetensors file without a name below /tmp, and gives
// a descriptor of it, which the caller closes; *bytes (may be NULL): how large it is.
hth_err hth_data_spool(hth_data *data, int *fd, uint64_t *bytes);

#endif
