// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/vector.h - loops compiled for several instruction sets, and the functions inside
// them.
//
// Design notes
// A body is written once, as a loop that the compiler vectorises, and compiled three times; which
// one runs is asked at each call (base/isa.h). Not target_clones: those need
// run-time relocation, which the sanitizers do not survive, and cannot say "avx2 with fma".
// exp after S. Moshier's Cephes (expf.c); tanh and erf are the rational minimax approximations that
// Eigen uses (MathFunctionsImpl.h). Errors on every 2500th float, measured by elementwise_test: 1
// ulp for exp, 5 ulp for tanh, 3.3e-7 absolute for erf. exp gives 0 below -86.6, near where floats
// turn subnormal.
#ifndef HTH_KERNELS_CPU_VECTOR_H
#define HTH_KERNELS_CPU_VECTOR_H

#include "base/isa.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HTH_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define HTH_TARGET_512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#define HTH_TARGET_256 __attribute__((target("avx2,fma")))
#define HTH_HAS_512    (hth_isa_bytes() >= 64)
#define HTH_HAS_256    (hth_isa_bytes() >= 32)
#else
#define HTH_TARGET_512
#define HTH_TARGET_256
#define HTH_HAS_512 0
#define HTH_HAS_256 0
#endif

// HTH_VECTOR(name, (parameters), (arguments)) { body } defines the static void function `name`.
#define HTH_VECTOR(name, params, args)                                                             \
    HTH_INLINE void name##_body params;                                                            \
    HTH_TARGET_512 static void name##_512 params                                                   \
    {                                                                                              \
        name##_body args;                                                                          \
    }                                                                                              \
    HTH_TARGET_256 static void name##_256 params                                                   \
    {                                                                                              \
        name##_body args;                                                                          \
    }                                                                                              \
    static void name##_any params                                                                  \
    {                                                                                              \
        name##_body args;                                                                          \
    }                                                                                              \
    static void name params                                                                        \
    {                                                                                              \
        if (HTH_HAS_512) {                                                                         \
            name##_512 args;                                                                       \
        } else if (HTH_HAS_256) {                                                                  \
            name##_256 args;                                                                       \
        } else {                                                                                   \
            name##_any args;                                                                       \
        }                                                                                          \
    }                                                                                              \
    HTH_INLINE void name##_body params

HTH_INLINE float hth_clampf(float x, float low, float high) // NaN stays
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

HTH_INLINE float hth_expf(float x)
{
    const float round = 12582912.0F; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    float c = hth_clampf(x, -86.6F, 88.722839F), t = c * 1.44269504088896341F + round;
    float n = t - round, r = (c - n * 0.693359375F) + n * 2.12194440e-4F;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * (r * r) + r + 1.0F;
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 126U) << 23; // 2^(n-1); the last factor keeps 2^128 out
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    p = p * scale * 2.0F;
    p = x > 88.722839F ? INFINITY : p;
    return x < -86.6F ? 0.0F : p;
}

HTH_INLINE float hth_tanhf(float x)
{
    float c = hth_clampf(x, -7.90531110763549805F, 7.90531110763549805F), s = c * c;
    float p = -2.76076847742355e-16F;
    p = p * s + 2.00018790482477e-13F;
    p = p * s + -8.60467152213735e-11F;
    p = p * s + 5.12229709037114e-08F;
    p = p * s + 1.48572235717979e-05F;
    p = p * s + 6.37261928875436e-04F;
    p = p * s + 4.89352455891786e-03F;
    float q = 1.19825839466702e-06F;
    q = q * s + 1.18534705686654e-04F;
    q = q * s + 2.26843463243900e-03F;
    q = q * s + 4.89352518554385e-03F;
    return fabsf(x) < 0.0004F ? x : c * p / q;
}

HTH_INLINE float hth_erff(float x)
{
    float c = hth_clampf(x, -4.0F, 4.0F), s = c * c;
    float p = -2.72614225801306e-10F;
    p = p * s + 2.77068142495902e-08F;
    p = p * s + -2.10102402082508e-06F;
    p = p * s + -5.69250639462346e-05F;
    p = p * s + -7.34990630326855e-04F;
    p = p * s + -2.95459980854025e-03F;
    p = p * s + -1.60960333262415e-02F;
    float q = -1.45660718464996e-05F;
    q = q * s + -2.13374055278905e-04F;
    q = q * s + -1.68282697438203e-03F;
    q = q * s + -7.37332916720468e-03F;
    q = q * s + -1.42647390514189e-02F;
    return c * p / q;
}

HTH_INLINE float hth_sigmoidf(float x)
{
    return 1.0F / (1.0F + hth_expf(-x));
}

HTH_INLINE float hth_geluf(float x)
{
    return 0.5F * x * (1.0F + hth_erff(x * 0.70710678118654752F));
}

HTH_INLINE float hth_gelu_tanhf(float x)
{
    return 0.5F * x * (1.0F + hth_tanhf(0.79788456080286536F * (x + 0.044715F * x * x * x)));
}

#endif
