// SPDX-License-Identifier: Apache-2.0
#include "client/export_format.h"

#include <string.h>
#include <strings.h>

hth_err hth_export_format_of(const char *path, hth_export_format *out)
{
    static const char *const extension[] = {
        [HTH_EXPORT_ONNX] = ".onnx", [HTH_EXPORT_SAFETENSORS] = ".safetensors"};
    size_t n = strlen(path);
    for (int i = HTH_EXPORT_ONNX; i <= HTH_EXPORT_SAFETENSORS; i++) {
        size_t m = strlen(extension[i]);
        if (n > m && strcasecmp(path + n - m, extension[i]) == 0) {
            *out = (hth_export_format)i;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL,
                    "'%s': an export is an ONNX model or a safetensors file: give it a name that "
                    "ends in .onnx or .safetensors",
                    path);
}
