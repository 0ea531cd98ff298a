// SPDX-License-Identifier: Apache-2.0
// client/data/data_impl.h - what the readers of formats share.
#ifndef HTH_CLIENT_DATA_DATA_IMPL_H
#define HTH_CLIENT_DATA_DATA_IMPL_H

#include "client/data/data.h"

#include <stdbool.h>
#include <stddef.h>

// A reader fills d's tensors, n_samples excepted, and d->of; what it has filled by the time of an
// error its `close` frees, which is called in any case. Tensors' names are d's.
typedef struct hth_data_reader {
    const char *format;
    hth_err (*open)(hth_data *data, const hth_data_options *options);
    hth_err (*read)(hth_data *data, int i, uint64_t at, void *out, size_t n);
    void (*close)(hth_data *data);
} hth_data_reader;

extern const hth_data_reader hth_data_safetensors, hth_data_npy, hth_data_npz, hth_data_csv,
    hth_data_idx, hth_data_images;

// hth_data_add adds a tensor and counts its bytes. HTH_EINVAL: there are too many, or another of
// that name.
hth_err hth_data_add(hth_data *data, const char *name, int dtype, int rank, const int64_t *shape);

// hth_data_is_idx, .._is_image look at a file's name alone.
bool hth_data_is_idx(const char *name);
bool hth_data_is_image(const char *name);

// hth_data_names lists what is in a folder, sorted by bytes, without what begins with a dot.
// names[0 .. *n) and the list are the caller's (hth_data_names_free).
hth_err hth_data_names(const char *folder, char ***names, size_t *n);
void hth_data_names_free(char **names, size_t n);
bool hth_data_is_folder(const char *path);

#endif
