// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/product.h - a product of matrices as a part of another operator.
#ifndef HTH_KERNELS_CUDA_PRODUCT_H
#define HTH_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/seq.h"

// c [m, n] = a b, a [m, k] ([k, m] if trans_a), b [k, n] ([n, k] if trans_b), all f32. row_*:
// elements from one row to the next, 0: dense. align_*: what an address divides by, 0:
// HTH_DEVICE_ALIGN, which the workspace's does. adds: to what c holds.
typedef struct hth_cuda_product_form {
    int64_t m, n, k, row_a, row_b, row_c;
    bool trans_a, trans_b, adds;
    uint32_t align_a, align_b, align_c;
} hth_cuda_product_form;
typedef struct hth_cuda_product hth_cuda_product;
hth_err hth_cuda_product_open(const hth_cuda *cuda, const hth_cuda_product_form *form,
                              hth_precision precision, hth_cuda_product **out);
void hth_cuda_product_close(const hth_cuda *cuda, hth_cuda_product *product); // NULL is allowed
size_t hth_cuda_product_workspace(const hth_cuda_product *product);
// hth_cuda_product_run issues it; workspace: hth_cuda_product_workspace bytes.
hth_err hth_cuda_product_run(const hth_cuda_seq *seq, const hth_cuda_product *product,
                             const float *a, const float *b, float *c, void *workspace);

#endif
