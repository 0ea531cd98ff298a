// SPDX-License-Identifier: Apache-2.0
// Lowered convolutions in AVX2 with FMA: of 16 registers, 6 x 2 sums, 2 of filters, 1 broadcast.
// Compiled with flags of its own, reached only where hth_isa_bytes says so.
#if defined(__AVX2__)

#define WINO_LANES   8
#define LOWERED_ROWS 6
#include "kernels/cpu/lowered_body.h"

const hth_lowered_isa hth_lowered_avx2 = {.name = "avx2",
                                          .block = WINO_LANES,
                                          .rows = LOWERED_ROWS,
                                          .even = 1,
                                          .product = lowered_rows,
                                          .patches = lowered_patches};

#else
#include "kernels/cpu/lowered.h"

const hth_lowered_isa hth_lowered_avx2; // another architecture
#endif
