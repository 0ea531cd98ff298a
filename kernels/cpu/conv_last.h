// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/conv_last.h - what the convolutions of our own do to their sums: bias, one sum, one
// clamp; other post ops run after them.
#ifndef HTH_KERNELS_CPU_CONV_LAST_H
#define HTH_KERNELS_CPU_CONV_LAST_H

#include "kernels/cpu/cpu.h"

typedef struct hth_conv_last {
    int bias, add; // inputs; -1: none
    float add_scale, low, high;
    hth_kernel *tail; // the other post ops, in place; NULL: none
} hth_conv_last;

// hth_conv_last_open reads bias and post ops of a Conv (of a gradient: none). On error nothing is
// held; hth_conv_last_close frees the tail.
hth_err hth_conv_last_open(hth_device *device, const hth_graph *graph, const hth_node *node,
                           hth_conv_last *out);
void hth_conv_last_close(hth_conv_last *last);
// hth_conv_last_finish sets what of kernel `kernel` follows from it: the input that may share the
// output's buffer, and at least the tail's workspace.
void hth_conv_last_finish(const hth_conv_last *last, hth_kernel *kernel);
// hth_conv_last_run runs the tail after a kernel that ran.
static inline hth_err hth_conv_last_run(const hth_conv_last *last, const hth_kernel_args *args)
{
    return last->tail == NULL ? HTH_OK : last->tail->run(last->tail, args);
}

#endif
