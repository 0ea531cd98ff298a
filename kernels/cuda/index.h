// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/index.h - indices that are data, and copies of one element, for .cu files.
#ifndef HTH_KERNELS_CUDA_INDEX_H
#define HTH_KERNELS_CUDA_INDEX_H

#include "device/cuda/grid.h"

// Index k of a list (wide: i64, else i32) into `along` elements, counted from the front; -1: out of
// range.
HTH_FN int64_t hth_index_at(const void *index, int wide, int64_t k, int64_t along)
{
    int64_t at = wide ? ((const int64_t *)index)[k] : ((const int32_t *)index)[k];
    at += at < 0 ? along : 0;
    return at < 0 || at >= along ? -1 : at;
}

// `element` bytes; from -1: zeros.
HTH_FN void hth_element_copy(void *out, int64_t to, const void *in, int64_t from, uint32_t element)
{
    switch (element) {
    case 1:
        ((uint8_t *)out)[to] = from < 0 ? 0 : ((const uint8_t *)in)[from];
        break;
    case 2:
        ((uint16_t *)out)[to] = from < 0 ? 0 : ((const uint16_t *)in)[from];
        break;
    case 4:
        ((uint32_t *)out)[to] = from < 0 ? 0 : ((const uint32_t *)in)[from];
        break;
    case 8:
        ((uint64_t *)out)[to] = from < 0 ? 0 : ((const uint64_t *)in)[from];
        break;
    default: {
        const hth_u4 zero = {{0, 0, 0, 0}};
        ((hth_u4 *)out)[to] = from < 0 ? zero : ((const hth_u4 *)in)[from];
    }
    }
}

#endif
