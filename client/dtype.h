// SPDX-License-Identifier: Apache-2.0
// client/dtype.h - what the public API's element types are called in each of the formats that
// clients meet.
#ifndef HTH_CLIENT_DTYPE_H
#define HTH_CLIENT_DTYPE_H

#include "client/hearth.h"

#include "base/err.h"

typedef struct hth_dtype_names {
    hearth_dtype dtype;
    size_t bytes;     // of one element
    const char *name; // Open Inference Protocol: "FP32"
    const char
        *npy; // numpy's descr: "<f4"; bfloat16 has none and is kept as its 16-bit pattern, "<u2"
    const char *safetensors; // "F32"
} hth_dtype_names;

// hth_dtype_names_of returns the row of `dtype`, or NULL when it is no type that hearth holds.
// Constant.
const hth_dtype_names *hth_dtype_names_of(int dtype);
// hth_dtype_of_name returns the row called "FP32", or NULL.
const hth_dtype_names *hth_dtype_of_name(const char *name);
// hth_dtype_of_npy returns the row whose numpy descr is `descr`, or NULL.
const hth_dtype_names *hth_dtype_of_npy(const char *descr);
// hth_dtype_of_safetensors returns the row of that name in safetensors files, or NULL.
const hth_dtype_names *hth_dtype_of_safetensors(const char *name);
// hth_dtype_bytes_of stores elements * size for a dense tensor. HTH_EINVAL: unknown type, rank or
// dimension out of range; HTH_ETOOBIG: the product overflows.
hth_err hth_dtype_bytes_of(int dtype, int rank, const int64_t *shape, uint64_t *out);
// hth_dtype_value returns element `index` of a dense tensor as a double.
double hth_dtype_value(int dtype, const void *data, size_t index);
// hth_dtype_half returns the binary16 nearest to `v`, ties to even; what is too large is infinite.
uint16_t hth_dtype_half(double v);

#endif
