// SPDX-License-Identifier: Apache-2.0
// client/infer/dlpack.h - the structures of DLPack 1.0 as its dlpack.h lays them out
// (https://dmlc.github.io/dlpack/latest/c_api.html). Debian 12 has 0.6 (libdlpack-dev), from before
// the versioned one; tests/cxx/dlpack.cpp is compiled with a dlpack.h of others.
#ifndef HTH_CLIENT_INFER_DLPACK_H
#define HTH_CLIENT_INFER_DLPACK_H

#include "client/hearth.h"

#define HTH_DL_MAJOR 1
#define HTH_DL_MINOR 0

// DLDeviceType, as far as its memory is read or its name is said.
enum {
    HTH_DL_CPU = 1,
    HTH_DL_CUDA = 2,
    HTH_DL_CUDA_HOST = 3, // pinned memory of the host
    HTH_DL_METAL = 8,
    HTH_DL_ROCM = 10,
    HTH_DL_ROCM_HOST = 11, // pinned memory of the host
    HTH_DL_CUDA_MANAGED = 13,
    HTH_DL_ONEAPI = 14
};

// DLDataTypeCode, up to those that hearth has.
enum {
    HTH_DL_INT,
    HTH_DL_UINT,
    HTH_DL_FLOAT,
    HTH_DL_HANDLE,
    HTH_DL_BFLOAT,
    HTH_DL_COMPLEX,
    HTH_DL_BOOL
};

typedef struct hth_dl_tensor { // DLTensor
    void *data;
    int32_t device_type, device_id; // DLDevice
    int32_t ndim;
    uint8_t code, bits; // DLDataType, with `lanes`
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; // in elements; NULL, before 1.2: row-major without gaps
    uint64_t byte_offset;
} hth_dl_tensor;

struct DLManagedTensorVersioned {
    uint32_t major, minor; // DLPackVersion
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self); // NULL: there is nothing to give back
    uint64_t flags;                                         // 1: not to be written
    hth_dl_tensor dl_tensor;
};

struct DLManagedTensor {
    hth_dl_tensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
};

#endif
