// SPDX-License-Identifier: Apache-2.0
// Winograd in AVX-512: of 32 registers, 14 x 2 sums, 2 of filters, 1 broadcast; for gradients 8 x
// 3, 3, 1. Compiled with -mavx512f, reached only where hth_isa_bytes says so.
#if defined(__AVX512F__)

#define WINO_LANES 16
#define WINO_BLOCK 16
#define WINO_ROWS  14
#define WINO_HALF  8
#define WINO_VECS  3
#include "kernels/cpu/winograd/winograd_body_grad.h"

const hth_wino_isa hth_wino_avx512 = WINO_TABLE("avx512");

#else
#include "kernels/cpu/winograd/winograd_tile.h"

const hth_wino_isa hth_wino_avx512; // another architecture
#endif
