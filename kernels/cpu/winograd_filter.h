// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd_filter.h - filters of 3x3 convolutions, transformed for F(4x4, 3x3).
#ifndef HTH_KERNELS_CPU_WINOGRAD_FILTER_H
#define HTH_KERNELS_CPU_WINOGRAD_FILTER_H

#include <stdbool.h>
#include <stddef.h>

// The plain filter is [out][in][3][3], or for `back` (a data gradient) [in][out][3][3], read turned
// around. The transformed one is U[36][blocks of out][in, filled up to blocks][16], padding zero.
typedef struct hth_wino_filter {
    size_t out, in;
    bool back;
} hth_wino_filter;

// The interpolation points are 0, +-A, +-B and infinity. 5/8 and 3/2 are exact in binary, and keep
// the transforms' factors nearer to 1 than the textbook's 1 and 2 do: errors are a fourth.
#define HTH_WINO_A 0.625F
#define HTH_WINO_B 1.5F

size_t hth_wino_filter_floats(const hth_wino_filter *f);
// hth_wino_filter_pack transforms in double, on the calling thread; hth_wino_filter_run in f32, on
// the team, for filters that change with every run.
void hth_wino_filter_pack(const hth_wino_filter *f, const float *w, float *u);
void hth_wino_filter_run(const hth_wino_filter *f, const float *w, float *u);

#endif
