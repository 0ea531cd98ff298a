// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/gather.cu - Gather along an axis, and its gradient. In the gradient one thread adds
// up one column of a slice, index after index: sums have one order, and rows that are named twice
// are not written by two threads. Bytes moved: the result twice and the indices; of the gradient
// dy, and the rows that are named twice.
#include "kernels/cuda/index.h"
#include "kernels/cuda/params.h"

HTH_KERNEL(hth_gather, hth_gather_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t row = i / p->inner, k = row % p->count;
        int64_t at = hth_index_at(p->index, p->wide, k, p->along);
        int64_t from = ((int64_t)(row / p->count) * p->along + at) * p->inner + i % p->inner;
        hth_element_copy(p->out, i, p->in, at < 0 ? -1 : from, p->element);
    }
}

// n: outer * inner columns; out was filled with zeros.
HTH_KERNEL(hth_gather_grad, hth_gather_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t outer = i / p->inner, column = i % p->inner;
        int64_t dy = (int64_t)outer * p->count * p->inner + column;
        float *dx = (float *)p->out + (int64_t)outer * p->along * p->inner + column;
        for (uint32_t k = 0; k < p->count; k++) {
            int64_t at = hth_index_at(p->index, p->wide, k, p->along);
            if (at >= 0) {
                dx[at * p->inner] += hth_get(p->in, dy + (int64_t)k * p->inner, p->half);
            }
        }
    }
}
