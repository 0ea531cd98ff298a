// SPDX-License-Identifier: Apache-2.0
// K-means in AVX-512: of 32 registers, 14 x 2 scores, 2 of points, 1 broadcast. Compiled with flags
// of its own, reached only where hth_isa_bytes says so.
#if defined(__AVX512F__)

#define WINO_LANES  16
#define KMEANS_MOST 14
#include "kernels/cpu/kmeans/kmeans_body.h"

const hth_kmeans_isa hth_kmeans_avx512 = KMEANS_TABLE("avx512");

#else
#include "kernels/cpu/kmeans/kmeans_cpu.h"

const hth_kmeans_isa hth_kmeans_avx512; // another architecture
#endif
