// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/cuda.h - the kernels of a CUDA device: what the plug-in and tests over the fake
// driver open.
#ifndef HTH_KERNELS_CUDA_CUDA_H
#define HTH_KERNELS_CUDA_CUDA_H

#include "device/cuda/cuda.h"
#include "kernels/kernel.h"

// hth_cuda_kernels_attach gives device `cuda` its kernels: loads those of ours, makes the handles
// of cuDNN and cublasLt. They are closed with the device. On error cuda stays without kernels.
hth_err hth_cuda_kernels_attach(hth_cuda *cuda);

hth_err hth_cuda_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out);
hth_err hth_cuda_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                            bool first, hth_choice *list, int cap, int *count);
const hth_fuse_oracle *hth_cuda_oracle(hth_device *device);
hth_err hth_cuda_computes(hth_device *device, hth_precision precision); // hth_kernel_computes
// hth_cuda_takes_half is an hth_half_fn.
bool hth_cuda_takes_half(void *ctx, const hth_graph *graph, const hth_node *node, bool in, int k,
                         bool *alike);

// hth_cuda_refusal says why an operator has no kernel here, NULL: it has one.
const char *hth_cuda_refusal(hth_op op);

// The images of our kernels, as nvcc made them; a test's are empty. hth_cuda_n_images of them.
typedef struct hth_cuda_image {
    const char *file; // "chain"
    const void *data;
} hth_cuda_image;
extern const hth_cuda_image hth_cuda_images[];
extern const int hth_cuda_n_images;

#endif
