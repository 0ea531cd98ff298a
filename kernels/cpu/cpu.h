// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/cpu.h - kernels of the CPU device: one prepare function per operator family, joined
// by the table in cpu.c.
//
// Design notes
// A prepare function either makes a kernel or says HTH_ENOTSUP (this dtype, layout, attribute: not
// mine); then the next row of the table for that operator is asked, and after the last one stands
// the reference (fallback.c), which can everything. So a fast kernel needs to be right only for
// what it accepts. All of it runs on the device's owner thread.
#ifndef HTH_KERNELS_CPU_CPU_H
#define HTH_KERNELS_CPU_CPU_H

#include "kernels/kernel.h"

// `algorithm` NULL: the default.
typedef hth_err (*hth_cpu_prepare_fn)(hth_device *device, const hth_graph *graph,
                                      const hth_node *node, const char *algorithm,
                                      hth_kernel **out);

extern const hth_kernel_ops hth_cpu_kernel_ops; // of devices "cpu:*" and "fake:*"

// cpu_fallback_prepare wraps the reference kernel of any operator; blocked tensors are unpacked
// around it.
hth_err cpu_fallback_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const char *algorithm, hth_kernel **out);

// hth_cpu_kernel_made hands out a copy of kernel `kernel`, put together on the stack: a struct of
// `bytes` that begins with it. HTH_ENOMEM names node.
hth_err hth_cpu_kernel_made(const hth_node *node, const hth_kernel *kernel, size_t bytes,
                            hth_kernel **out);
// hth_cpu_kernel_free closes a kernel that owns nothing but itself.
void hth_cpu_kernel_free(hth_kernel *kernel);

// hth_cpu_block returns the channels per block of the device's blocked layout (16 or 8), *layout
// its name.
int hth_cpu_block(const hth_device *device, hth_layout *layout);

// hth_layout_block returns the channels per block: 8, 16, or 0 for layouts that do not block.
static inline int hth_layout_block(hth_layout layout)
{
    if (layout == HTH_LAYOUT_C16) {
        return 16;
    }
    return layout == HTH_LAYOUT_C8 ? 8 : 0;
}

// hth_cpu_alpha returns the node's attribute alpha, or what it is by default for operator `op`.
static inline float hth_cpu_alpha(const hth_node *node, hth_op op)
{
    float usual = op == HTH_OP_HARD_SIGMOID ? 0.2F : 1.0F;
    return hth_node_float(node, "alpha", op == HTH_OP_LEAKY_RELU ? 0.01F : usual);
}

// hth_layout_at returns the offset, in elements, of (n, c, first position) of a tensor with C
// channels and S positions, and the distance between neighbouring positions.
static inline size_t hth_layout_at(hth_layout layout, size_t C, size_t S, size_t n, size_t c,
                                   size_t *step)
{
    size_t b = (size_t)hth_layout_block(layout);
    if (b != 0) {
        *step = b;
        return (n * ((C + b - 1) / b) + c / b) * S * b + c % b;
    }
    *step = layout == HTH_LAYOUT_NHWC ? C : 1;
    return layout == HTH_LAYOUT_NHWC ? n * S * C + c : (n * C + c) * S;
}

// hth_cpu_relayout copies a tensor of `elem`-byte elements from one layout to another, zeroing the
// padding of a blocked destination. Uses the thread team.
void hth_cpu_relayout(size_t elem, const hth_shape *shape, hth_layout from, const void *src,
                      hth_layout to, void *dst);

#endif
