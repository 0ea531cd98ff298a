// SPDX-License-Identifier: Apache-2.0
// client/export_format.h - what an export is written as: its file's extension says it.
#ifndef HTH_CLIENT_EXPORT_FORMAT_H
#define HTH_CLIENT_EXPORT_FORMAT_H

#include "base/err.h"

typedef enum hth_export_format {
    HTH_EXPORT_ONNX,        // .onnx: the model
    HTH_EXPORT_SAFETENSORS, // .safetensors: its tensors
} hth_export_format;

// hth_export_format_of: HTH_EINVAL, another extension; of any case.
hth_err hth_export_format_of(const char *path, hth_export_format *out);

#endif
