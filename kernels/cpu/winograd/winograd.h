// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd.h - 3x3 convolutions of stride 1 and their gradients by Winograd's
// algorithm, of our own.
//
// Design notes
// An algorithm is called "winograd_MxM:ISA[:BYTES][:run]": tiles of M x M results (2, 4, 6); the
// instruction set that the tensors' blocks are for (avx512: 16 channels; avx2, sse2: 8); the
// workspace that it should do with ("4M", "512K"; without: 8M), and whether a constant filter is
// transformed at each run instead of once. More workspace = more tiles between two readings of the
// filter. A layer has a least workspace, which may be more than its name says.
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/winograd/winograd_filter.h"

#define HTH_WINO_NAME 48

// What an algorithm's name and a node say.
typedef struct hth_wino_plan {
    char name[HTH_WINO_NAME];
    const hth_wino_isa *isa;
    int pairs;
    size_t points, bytes; // of a patch; workspace to do with
    bool run;             // a constant filter stays plain
    hth_wino_grid grid;
    hth_wino_filter filter;
} hth_wino_plan;

// cpu_winograd_prepare makes the kernel of a Conv or of one of its gradients. HTH_ENOTSUP: another
// algorithm's name, or not 3x3 of stride and dilation 1 in f32 and blocks.
hth_err cpu_winograd_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const char *algorithm, hth_kernel **out);
// cpu_winograd_names writes the algorithms that are worth trying on the node; returns their number,
// at most `cap`.
int cpu_winograd_names(hth_device *device, const hth_graph *graph, const hth_node *node,
                       char (*names)[HTH_WINO_NAME], int cap);
// cpu_winograd_fits says whether there is an algorithm for the node (a Conv, ConvTranspose or
// gradient) once its image and its result are in layout `layout`.
bool cpu_winograd_fits(const hth_graph *graph, const hth_node *node, hth_layout layout);

// Between winograd*.c.
hth_err hth_wino_describe(hth_device *device, const hth_graph *graph, const hth_node *node,
                          const char *algorithm, hth_wino_plan *plan);
hth_err hth_wino_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const hth_wino_plan *plan, hth_kernel **out);

#endif
