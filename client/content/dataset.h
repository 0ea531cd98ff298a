// SPDX-License-Identifier: Apache-2.0
// client/content/dataset.h - datasets to a server that is elsewhere, by content.
#ifndef HTH_CLIENT_CONTENT_DATASET_H
#define HTH_CLIENT_CONTENT_DATASET_H

#include "base/file.h"
#include "client/content/send.h"

#define HTH_CONTENT_UPLOAD 40 // bytes of the name of a dataset that came without one

typedef struct hth_content_dataset_result {
    uint64_t bytes, moved; // of all tensors; of those that were sent
    bool unchanged;        // the dataset was there, with the same tensors
} hth_content_dataset_result;

// hth_content_dataset stores the dataset in an open safetensors file as `name`; "": as one that is
// called after its content, which `upload` gets. about: a JSON object, or NULL. Blocks for as long
// as hashing and the link take. The file stays the caller's.
hth_err hth_content_dataset(hearth *handle, const char *name, const char *about,
                            const hth_file *file, const char *shown, const hth_watch *watch,
                            char upload[HTH_CONTENT_UPLOAD], hth_content_dataset_result *out);

#endif
