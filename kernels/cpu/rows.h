// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/rows.h - what is computed from one row of numbers: softmax, sums. Sums run in 32
// lanes that are joined at the end: as accurate as pairwise summation of short rows, and fast.
#ifndef HTH_KERNELS_CPU_ROWS_H
#define HTH_KERNELS_CPU_ROWS_H

#include <stddef.h>

// hth_softmax_row writes exp(x - max) / sum to y, which may be x; a row of -inf becomes `hidden`.
void hth_softmax_row(const float *x, float *y, size_t n, float hidden);
// hth_softmax_mask adds n elements of a mask, `step` apart.
void hth_softmax_mask(float *x, const float *mask, size_t step, size_t n);
float hth_row_sum(const float *x, size_t n);
// hth_row_squares returns the sum of (x - mean)^2.
float hth_row_squares(const float *x, size_t n, float mean);

#endif
