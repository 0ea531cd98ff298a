// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/primitive.h - operators that are a single oneDNN primitive.
#ifndef HTH_KERNELS_CPU_PRIMITIVE_H
#define HTH_KERNELS_CPU_PRIMITIVE_H

#include "kernels/cpu/cpu.h"

#define HTH_CPU_PREPARE(name)                                                                      \
    hth_err name(hth_device *d, const hth_graph *g, const hth_node *n, const char *algorithm,      \
                 hth_kernel **out)

HTH_CPU_PREPARE(cpu_unary_prepare); // activations that hth_cpu_eltwise knows
HTH_CPU_PREPARE(cpu_lrn_prepare);
HTH_CPU_PREPARE(cpu_softmax_prepare); // and LogSoftmax
HTH_CPU_PREPARE(cpu_reorder_prepare);
HTH_CPU_PREPARE(cpu_pool_prepare); // MaxPool, AveragePool, their global forms, ReduceMean over all
                                   // spatial dimensions

// Layouts: whatever the input has.
hth_layout cpu_any_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                          bool *any);
hth_layout cpu_pool_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                           bool *any);

#endif
