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
// hth_safetensors_put writes them to a descriptor, which is at its file's beginning; `shown` is for
// messages.
hth_err hth_safetensors_put(int fd, const char *shown, const hearth_tensor *tensors, int count);

#endif
