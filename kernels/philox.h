// SPDX-License-Identifier: Apache-2.0
// kernels/philox.h - Philox 4x32-10, the counter-based generator of Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3" (SC 2011).
//
// A number is a function of counter and key alone: whoever computes a step's dropout, in whatever
// order and how often, gets the same mask. Every device uses hth_dropout_keeps' definition.
#ifndef HTH_KERNELS_PHILOX_H
#define HTH_KERNELS_PHILOX_H

#include <stdbool.h>
#include <stdint.h>

// nvcc makes functions of the device of them.
#ifdef __CUDACC__
#define HTH_PHILOX_FN static __device__ __forceinline__
#else
#define HTH_PHILOX_FN static inline
#endif

typedef struct hth_philox {
    uint32_t word[4];
} hth_philox;

HTH_PHILOX_FN hth_philox hth_philox_at(const uint32_t counter[4], uint32_t key0, uint32_t key1)
{
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p = UINT64_C(0xD2511F53) * a, q = UINT64_C(0xCD9E8D57) * c;
        uint32_t a1 = (uint32_t)(q >> 32) ^ b ^ key0, c1 = (uint32_t)(p >> 32) ^ d ^ key1;
        b = (uint32_t)q;
        d = (uint32_t)p;
        a = a1;
        c = c1;
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    hth_philox result = {{a, b, c, d}};
    return result;
}

// hth_dropout_words gives the four numbers of elements 4 * block .. 4 * block + 3 (counted
// row-major, whatever the layout) in step `step` of the node with `salt`.
HTH_PHILOX_FN hth_philox hth_dropout_words(uint64_t block, uint64_t step, uint64_t salt)
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)step,
                                 (uint32_t)(step >> 32)};
    return hth_philox_at(counter, (uint32_t)salt, (uint32_t)(salt >> 32));
}

// An element stays when its number is at least hth_dropout_threshold (0 <= ratio <= 1, and 1 drops
// everything).
HTH_PHILOX_FN uint64_t hth_dropout_threshold(float ratio)
{
    return (uint64_t)((double)ratio * 4294967296.0);
}

HTH_PHILOX_FN bool hth_dropout_keeps(const hth_philox *words, int i, uint64_t threshold)
{
    return words->word[i] >= threshold;
}

#endif
