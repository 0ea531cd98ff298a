// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/window.h - the geometry of a sliding window, of pools and convolutions.
#ifndef HTH_KERNELS_CUDA_WINDOW_H
#define HTH_KERNELS_CUDA_WINDOW_H

#include "kernels/cuda/seq.h"

// Three dimensions; of fewer, the first have size 1.
typedef struct hth_cuda_window {
    int n_spatial;
    int32_t in[3], out[3], k[3], stride[3], pad[3], pad_end[3], dilation[3];
} hth_cuda_window;

// hth_cuda_window_get reads node's strides, dilations and pads for an image `in`, its result
// `out` and a window of kernel[0 .. rank - 3].
hth_err hth_cuda_window_get(const hth_node *node, const hth_shape *in, const hth_shape *out,
                            const int64_t *kernel, hth_cuda_window *window);

#endif
