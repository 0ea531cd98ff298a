// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/conv.h - Conv and ConvTranspose on the CPU, by oneDNN.
#ifndef HTH_KERNELS_CPU_CONV_H
#define HTH_KERNELS_CPU_CONV_H

#include "kernels/cpu/cpu.h"

hth_err cpu_conv_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out);
// cpu_conv_algorithms lists the implementations that are worth trying, oneDNN's first choice first.
hth_err cpu_conv_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                            hth_choice *list, int cap, int *count);
// The same for the gradients of Conv.
hth_err cpu_conv_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const char *algorithm, hth_kernel **out);
hth_err cpu_conv_grad_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                                 hth_choice *list, int cap, int *count);
hth_layout cpu_conv_grad_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                                bool *any);
bool cpu_conv_grad_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const hth_post_op *post, int operand);
bool cpu_conv_grad_reads_plain(hth_device *device, const hth_graph *graph, const hth_node *node);
bool cpu_conv_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                       const hth_post_op *post, int operand);
hth_layout cpu_conv_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                           bool *any);
bool cpu_conv_reads_plain(hth_device *device, const hth_graph *graph, const hth_node *node);

#endif
