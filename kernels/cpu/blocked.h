// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/blocked.h - operators on blocked (and plain) tensors that are loops of our own:
// broadcasts of every kind, scale and shift per channel, concatenation, splitting, resizing. One
// prepare function each; f32 only.
#ifndef HTH_KERNELS_CPU_BLOCKED_H
#define HTH_KERNELS_CPU_BLOCKED_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitive.h"

// A tensor as rows: [n][blocks of channels][s][b]; b is 1 for plain tensors, whose channels are
// blocks of one.
typedef struct hth_rows {
    size_t n, c, s, b, blocks;
} hth_rows;

// hth_rows_of describes a tensor of rank >= 2; false for other layouts (NHWC) and ranks.
bool hth_rows_of(const hth_shape *shape, hth_layout layout, hth_rows *out);
// hth_rows_clear zeroes the padding lanes of a row of block `block`.
void hth_rows_clear(const hth_rows *rows, size_t block, float *row);

HTH_CPU_PREPARE(cpu_binary_prepare); // Add, Sub, Mul, Div, Min, Max with a blocked output
// ScaleShift, inference BatchNormalization; ReLU and Clip after it
HTH_CPU_PREPARE(cpu_scale_prepare);
HTH_CPU_PREPARE(cpu_concat_prepare);
HTH_CPU_PREPARE(cpu_split_prepare);
HTH_CPU_PREPARE(cpu_resize_prepare); // nearest and linear over the spatial dimensions; ResizeGrad

hth_layout cpu_binary_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                             bool *any);
hth_layout cpu_concat_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                             bool *any);
hth_layout cpu_split_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                            bool *any);
hth_layout cpu_resize_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                             bool *any);
bool cpu_scale_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                        const hth_post_op *post, int operand);

#endif
