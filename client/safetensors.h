// SPDX-License-Identifier: Apache-2.0
// client/safetensors.h - writes safetensors files: u64 header bytes, a JSON header, the tensors'
// bytes.
#ifndef HTH_CLIENT_SAFETENSORS_H
#define HTH_CLIENT_SAFETENSORS_H

#include "client/hearth.h"

#include "base/err.h"

// hth_safetensors_write writes count tensors in the given order, each where its predecessor ends.
// The file is written under another name next to `path`, synced and renamed: `path` is whole or as
// it was. HTH_EINVAL: two tensors of one name.
hth_err hth_safetensors_write(const char *path, const hearth_tensor *tensors, int count);
// hth_safetensors_head makes what stands before the tensors' bytes; their `data` is not used. *head
// is the caller's, freed by hth_free.
hth_err hth_safetensors_head(const hearth_tensor *tensors, int count, char **head, size_t *bytes);

#endif
