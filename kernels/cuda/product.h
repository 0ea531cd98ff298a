// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/product.h - a product of matrices as a part of another operator.
#ifndef HTH_KERNELS_CUDA_PRODUCT_H
#define HTH_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/seq.h"

// c [m, n] = a [m, k] b', b [n, k], all f32 and dense; b's address divides by align_b, those of
// others and of the workspace by HTH_DEVICE_ALIGN.
typedef struct hth_cuda_product hth_cuda_product;
hth_err hth_cuda_product_open(const hth_cuda *d, int64_t m, int64_t n, int64_t k, uint32_t align_b,
                              hth_precision precision, hth_cuda_product **out);
void hth_cuda_product_close(const hth_cuda *d, hth_cuda_product *p); // NULL is allowed
size_t hth_cuda_product_workspace(const hth_cuda_product *p);
// hth_cuda_product_run issues it; workspace: hth_cuda_product_workspace bytes.
hth_err hth_cuda_product_run(const hth_cuda_seq *s, const hth_cuda_product *p, const float *a,
                             const float *b, float *c, void *workspace);

#endif
