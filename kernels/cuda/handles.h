// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/handles.h - what the kernels of one device share: the functions of our own kernels,
// and the libraries' handles.
#ifndef HTH_KERNELS_CUDA_HANDLES_H
#define HTH_KERNELS_CUDA_HANDLES_H

#include "kernels/cuda/seq.h"

typedef struct hth_cuda_site {
    CUlibrary *libraries;
    int n_libraries;
    CUfunction kernel[HTH_CUDA_N_KERNELS];
    cudnnHandle_t dnn;
    cublasLtHandle_t blas;
} hth_cuda_site;

static inline hth_cuda_site *hth_cuda_site_of(const hth_cuda *cuda)
{
    return cuda->kernels;
}

#endif
