// SPDX-License-Identifier: Apache-2.0
// client/safetensors.h - safetensors files: u64 header bytes, a JSON header, the tensors' bytes.
#ifndef HTH_CLIENT_SAFETENSORS_H
#define HTH_CLIENT_SAFETENSORS_H

#include "client/hearth.h"

#include "base/err.h"
#include "base/file.h"

// hth_safetensors_write writes count tensors in the given order, each where its predecessor ends.
// The file is written under another name next to `path`, synced and renamed: `path` is whole or as
// it was. HTH_EINVAL: two tensors of one name.
hth_err hth_safetensors_write(const char *path, const hearth_tensor *tensors, int count);
// hth_safetensors_head makes what stands before the tensors' bytes; their `data` is not used. *head
// is the caller's, freed by hth_free.
hth_err hth_safetensors_head(const hearth_tensor *tensors, int count, char **head, size_t *bytes);

// What a file says of a tensor.
typedef struct hth_safetensors_entry {
    char *name;
    hearth_dtype dtype;
    int rank;
    int64_t shape[HEARTH_MAX_RANK];
    uint64_t at, bytes; // in the file
} hth_safetensors_entry;
// hth_safetensors_look reads the header of an open file: all tensors lie in it. HTH_EINVAL: no
// safetensors file, and the sentence tells nothing of what is in a file of another kind. The caller
// frees entries[0 .. *n) by hth_safetensors_looked.
hth_err hth_safetensors_look(const hth_file *file, const char *shown,
                             hth_safetensors_entry **entries, int *n);
void hth_safetensors_looked(hth_safetensors_entry *entries, int n);

#endif
