// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/gather.cu - Gather along an axis, and its gradient. In the gradient one thread adds
// up one column of a slice, index after index: sums have one order, and rows that are named twice
// are not written by two threads. Bytes moved: the result twice and the indices; of the gradient dy,
// and the rows that are named twice.
#include "kernels/cuda/params.h"

// Index k, counted from the front; -1: out of range.
HTH_FN int64_t gather_index(const hth_gather_params *p, uint32_t k)
{
    int64_t at = p->wide ? ((const int64_t *)p->index)[k] : ((const int32_t *)p->index)[k];
    at += at < 0 ? p->along : 0;
    return at < 0 || at >= (int64_t)p->along ? -1 : at;
}

HTH_FN void gather_one(void *out, uint32_t to, const void *in, int64_t from, uint32_t element)
{
    switch (element) {
    case 1: ((uint8_t *)out)[to] = from < 0 ? 0 : ((const uint8_t *)in)[from]; break;
    case 2: ((uint16_t *)out)[to] = from < 0 ? 0 : ((const uint16_t *)in)[from]; break;
    case 4: ((uint32_t *)out)[to] = from < 0 ? 0 : ((const uint32_t *)in)[from]; break;
    case 8: ((uint64_t *)out)[to] = from < 0 ? 0 : ((const uint64_t *)in)[from]; break;
    default: {
        const hth_u4 zero = {{0, 0, 0, 0}};
        ((hth_u4 *)out)[to] = from < 0 ? zero : ((const hth_u4 *)in)[from];
    }
    }
}

HTH_KERNEL(hth_gather, hth_gather_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t row = i / p->inner, k = row % p->count;
        int64_t at = gather_index(p, k);
        int64_t from = ((int64_t)(row / p->count) * p->along + at) * p->inner + i % p->inner;
        gather_one(p->out, i, p->in, at < 0 ? -1 : from, p->element);
    }
}

// n: outer * inner columns; out was filled with zeros.
HTH_KERNEL(hth_gather_grad, hth_gather_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t outer = i / p->inner, column = i % p->inner;
        const float *dy = (const float *)p->in + (int64_t)outer * p->count * p->inner + column;
        float *dx = (float *)p->out + (int64_t)outer * p->along * p->inner + column;
        for (uint32_t k = 0; k < p->count; k++) {
            int64_t at = gather_index(p, k);
            if (at >= 0) {
                dx[at * p->inner] += dy[(int64_t)k * p->inner];
            }
        }
    }
}
