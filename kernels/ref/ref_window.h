// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_window.h - the sliding window of convolutions and pooling, always as three
// spatial dimensions.
#ifndef HTH_KERNELS_REF_REF_WINDOW_H
#define HTH_KERNELS_REF_REF_WINDOW_H

#include "graph/graph.h"

// Dimensions d, h, w; missing ones in front have size 1. Input position of output o and tap k is
// o * stride - pad + k * dilation; for ConvTranspose input and output change places.
typedef struct ref_window {
    int64_t batch, channels;     // of the input
    int64_t in[3], out[3], k[3]; // sizes
    int64_t stride[3], dilation[3];
    int64_t pad[3], pad_end[3];
    int64_t n_in, n_out, n_taps; // products
} ref_window;

// ref_window_init reads strides, dilations, pads and auto_pad of `node`. `kernel` is the window's
// shape: `n_kernel` sizes, one per spatial dimension. HTH_ENOTSUP: more than three spatial
// dimensions; HTH_EINVAL: sizes do not agree.
hth_err ref_window_init(ref_window *window, const hth_node *node, const hth_shape *in,
                        const hth_shape *out, const int64_t *kernel, int n_kernel);
// ref_window_position turns number `p` into a position of a (d, h, w) grid.
void ref_window_position(const int64_t size[3], int64_t p, int64_t at[3]);
// ref_window_touch returns the number in grid `to` that tap `tap` of position `at` touches, -1
// outside.
int64_t ref_window_touch(const ref_window *window, const int64_t to[3], const int64_t at[3],
                         const int64_t tap[3]);

#endif
