// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/blas.h - a product in cublasLt's terms, and the algorithms that it can be computed
// by.
//
// Design notes
// An algorithm is named by its number and its settings ("m21:15,4,2,0,0,9,0,0"), in the order of
// cublasLt's attributes, which is all that is needed to make it again without a search. Algorithms
// whose parts of a split sum are added up in the order in which they end are never taken: the same
// bits every time. cublasLt wants its workspace at a multiple of 256 bytes, hearth's memory is at
// multiples of HTH_DEVICE_ALIGN: so more is reserved, and the address is rounded up. Its heuristics
// are told how operands are aligned; unasked they assume 256 bytes, too.
#ifndef HTH_KERNELS_CUDA_BLAS_H
#define HTH_KERNELS_CUDA_BLAS_H

#include "kernels/cuda/handles.h"

// What cublasLt is asked: C' = B' A', column-major.
typedef struct hth_blas_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t b, a, c;
    cublasComputeType_t compute;
    cudaDataType_t factors, result;
    uint32_t align_b, align_a, align_c; // bytes that addresses divide by, 0: HTH_DEVICE_ALIGN
} hth_blas_product;

#define HTH_BLAS_ALIGN 256u // of a workspace
// hth_blas_reserved is what to reserve for a workspace of `bytes`.
static inline size_t hth_blas_reserved(size_t bytes)
{
    return bytes > 0 ? bytes + HTH_BLAS_ALIGN - HTH_DEVICE_ALIGN : 0;
}

typedef struct hth_blas_algo {
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
} hth_blas_algo;

#define BLAS(api, f, ...) hth_blas_status((api)->f(__VA_ARGS__), #f)
hth_err hth_blas_status(cublasStatus_t r, const char *call);

// hth_blas_choose finds the algorithm called `name`, NULL: the library's first choice. HTH_ENOTSUP:
// it cannot compute this product.
hth_err hth_blas_choose(const hth_cuda *cuda, const hth_blas_product *product, const char *name,
                        hth_blas_algo *out);
// hth_blas_list stores the library's choices for several limits of workspace, each name once, its
// first choice first. `few`: one for each limit.
hth_err hth_blas_list(const hth_cuda *cuda, const hth_blas_product *product, bool few,
                      hth_choice *list, int cap, int *count);

#endif
