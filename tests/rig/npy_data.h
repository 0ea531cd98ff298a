// SPDX-License-Identifier: Apache-2.0
// tests/rig/npy_data.h - the test data's .npy files as tensors.
#ifndef HTH_TESTS_RIG_NPY_DATA_H
#define HTH_TESTS_RIG_NPY_DATA_H

#include "base/test.h"
#include "client/npy.h"
#include "graph/tensor.h"

// npy_data reads `path`; false when there is no such file, anything else wrong fails the test.
// hth_free the data.
static inline bool npy_data(const char *path, hth_tensor *tensor)
{
    hearth_tensor f;
    memset(tensor, 0, sizeof *tensor);
    hth_err err = hth_npy_read(path, &f);
    if (err == HTH_ENOENT) {
        return false;
    }
    assert_ok(err);
    *tensor = (hth_tensor){
        .dtype = (hth_dtype)f.dtype, .shape = {.rank = f.rank}, .data = f.data, .bytes = f.bytes};
    memcpy(tensor->shape.dim, f.shape, sizeof f.shape);
    return true;
}

#endif
