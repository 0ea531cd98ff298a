// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_vector.h - vectors of WINO_LANES floats, for files that are
// compiled once per instruction set and define it.
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_VECTOR_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_VECTOR_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef WINO_LANES
#define WINO_LANES 4
#endif

#define WINO_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define WINO_UNROLL _Pragma("unroll")
#else
#define WINO_UNROLL _Pragma("GCC unroll 8")
#endif

typedef float wino_vec __attribute__((vector_size(WINO_LANES * 4)));
typedef float wino_mem __attribute__((vector_size(WINO_LANES * 4), aligned(4), may_alias));

WINO_INLINE wino_vec wino_load(const float *p)
{
    return *(const wino_mem *)(const void *)p;
}

WINO_INLINE void wino_store(float *p, wino_vec v)
{
    *(wino_mem *)(void *)p = v;
}

WINO_INLINE wino_vec wino_all(float x)
{
    return x - (wino_vec){0};
}

// Operands in this order let a NaN through.
WINO_INLINE wino_vec wino_clamp(wino_vec y, float low, float high)
{
#if WINO_LANES == 16
    return _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), y));
#elif WINO_LANES == 8
    return _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), y));
#elif defined(__x86_64__)
    return _mm_min_ps(_mm_set1_ps(high), _mm_max_ps(_mm_set1_ps(low), y));
#else
    for (int i = 0; i < WINO_LANES; i++) {
        y[i] = y[i] < low ? low : y[i];
        y[i] = y[i] > high ? high : y[i];
    }
    return y;
#endif
}

#endif
