// SPDX-License-Identifier: Apache-2.0
// Lowered convolutions in AVX-512: of 32 registers, 14 x 2 sums, 2 of filters, 1 broadcast.
// Compiled with flags of its own, reached only where hth_isa_bytes says so.
#if defined(__AVX512F__)

#define WINO_LANES   16
#define LOWERED_ROWS 14
#include "kernels/cpu/lowered_body.h"

const hth_lowered_isa hth_lowered_avx512 = {.name = "avx512",
                                            .block = WINO_LANES,
                                            .rows = LOWERED_ROWS,
                                            .even = 1,
                                            .product = lowered_rows,
                                            .patches = lowered_patches};

#else
#include "kernels/cpu/lowered.h"

const hth_lowered_isa hth_lowered_avx512; // another architecture
#endif
