// SPDX-License-Identifier: Apache-2.0
// K-means in AVX2 with FMA: of 16 registers, 6 x 2 scores, 2 of points, 1 broadcast. Compiled with
// flags of its own, reached only where hth_isa_bytes says so.
#if defined(__AVX2__)

#define WINO_LANES 8
#include "kernels/cpu/kmeans/kmeans_body.h"

const hth_kmeans_isa hth_kmeans_avx2 = KMEANS_TABLE("avx2");

#else
#include "kernels/cpu/kmeans/kmeans_cpu.h"

const hth_kmeans_isa hth_kmeans_avx2; // another architecture
#endif
