// SPDX-License-Identifier: Apache-2.0
// Winograd in AVX2 with FMA: of 16 registers, 6 x 2 sums, 2 of filters, 1 broadcast; for gradients
// 4 x 3, 3, 1. Compiled with -mavx2 -mfma, reached only where hth_isa_bytes says so.
#if defined(__AVX2__)

#define WINO_LANES 8
#define WINO_BLOCK 8
#define WINO_ROWS  6
#define WINO_HALF  4
#define WINO_VECS  3
#include "kernels/cpu/winograd/winograd_body_grad.h"

const hth_wino_isa hth_wino_avx2 = WINO_TABLE("avx2");

#else
#include "kernels/cpu/winograd/winograd_tile.h"

const hth_wino_isa hth_wino_avx2; // another architecture
#endif
