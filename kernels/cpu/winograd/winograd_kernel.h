// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_kernel.h - a forward pass or data gradient by Winograd's algorithm:
// how its workspace is divided. Between winograd.c, which runs it, and winograd_reserve.c.
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_KERNEL_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_KERNEL_H

#include "kernels/cpu/conv_last.h"
#include "kernels/cpu/winograd/winograd.h"

typedef struct hth_wino_kernel {
    hth_kernel base;
    hth_packing packing;
    hth_wino_plan p;
    hth_conv_last last; // what the last transform does to results
    int n_threads;
    int mask; // input; -1: none
    float mask_low, mask_high;
    bool packed, apart;            // the filter comes transformed; threads take chunks of their own
    bool rolling;                  // the filter is transformed block by block of inputs
    size_t chunk, part, panels;    // tiles of a chunk, of M; panels of a group
    size_t depth;                  // blocks of inputs that are multiplied at once
    size_t u_floats, panel_floats; // of a group's filter, of a panel
    size_t block_floats;           // of `depth` blocks of a panel
    size_t v_step, v_floats, m_floats; // from point to point; of a chunk; of M
    size_t m_parts;                    // M's of a thread
    size_t filter_floats;              // of the workspace
} hth_wino_kernel;

static inline size_t hth_wino_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

// hth_wino_reserve divides the workspace that the plan allows, from `packed`, `panels`, `u_floats`
// and `panel_floats`: sets the sizes of chunks, parts and blocks, and base.workspace_bytes.
void hth_wino_reserve(hth_wino_kernel *kernel);

#endif
