// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/gemm.h - C = epilogue(alpha * A B) in f32, B in panels; what MatMul, Gemm, attention
// and the recurrent networks compute with.
//
// Design notes
// Own code instead of oneDNN's: the product runs at the processor's multiply-add limit either way,
// but here everything that follows it (bias, Gelu, residual) is done on a tile that is still in the
// first-level cache, A may have any strides, and one packed form serves every batch size.
// B lies in panels of hth_gemm_width() columns, [panel][k][width], the last one filled with zeros.
#ifndef HTH_KERNELS_CPU_GEMM_H
#define HTH_KERNELS_CPU_GEMM_H

#include "kernels/cpu/epilogue.h"

#include <stddef.h>

typedef struct hth_gemm {
    size_t m, n, k;
    const float *a; // element (i, p) at a[i * a_row + p * a_col]
    size_t a_row, a_col;
    const float *b; // panels
    float *c; // element (i, j) at c[i * c_row + j]; must not overlap a, b or the operands of `post`
    size_t c_row;
    float alpha;
    const hth_epilogue *post; // NULL: none
    size_t first_row;         // of c, as post's operands count them
} hth_gemm;

int hth_gemm_width(void); // columns of a panel on this processor
size_t hth_gemm_panels(size_t n);
size_t hth_gemm_packed_bytes(size_t k, size_t n);
// hth_gemm_pack packs panels [first, last) of the k x n matrix with element (p, j) at
// b[p * row + j * col]; `dst` is where panel 0 lies.
void hth_gemm_pack(const float *b, size_t row, size_t col, size_t k, size_t n, size_t first,
                   size_t last, float *dst);
// Scratch of one thread for products of up to m rows: a multiple of 64 bytes, 64-byte aligned.
size_t hth_gemm_scratch_bytes(size_t m);
// hth_gemm_block computes rows [i0, i1) of panels [p0, p1) on the calling thread.
void hth_gemm_block(const hth_gemm *gemm, size_t i0, size_t i1, size_t p0, size_t p1,
                    float *scratch);
// hth_gemm_share computes thread i's part of n.
void hth_gemm_share(const hth_gemm *gemm, int i, int n, float *scratch);

#endif
