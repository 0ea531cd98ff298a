// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/select.cu - results whose elements are each one of few: OneHot, Trilu,
// ReverseSequence. Bytes moved: the result, and of the latter two the input.
#include "kernels/cuda/index.h"
#include "kernels/cuda/params.h"

// in: off and on. Element (o, class, i): index (o, i).
HTH_KERNEL(hth_one_hot, hth_select_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t row = i / p->inner, one = row % p->along;
        int64_t k = (int64_t)(row / p->along) * p->inner + i % p->inner;
        int64_t at = hth_index_at(p->index, p->wide, k, p->along);
        hth_element_copy(p->out, i, p->in, at == (int64_t)one, p->element);
    }
}

// Matrices [rows, along]: on and above (upper), or on and below diagonal `k`.
HTH_KERNEL(hth_trilu, hth_select_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int64_t row = i / p->along % p->rows, column = i % p->along;
        int keep = p->upper ? column >= row + p->k : column <= row + p->k;
        hth_element_copy(p->out, i, p->in, keep ? (int64_t)i : -1, p->element);
    }
}

// [rows, along, inner] or, with `upper`, [along, rows, inner]: along axis `along`, the first
// index[row] elements backwards.
HTH_KERNEL(hth_reverse, hth_select_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t inside = i % p->inner, b = i / p->inner % (p->upper ? p->rows : p->along);
        uint32_t a = i / p->inner / (p->upper ? p->rows : p->along);
        uint32_t row = p->upper ? b : a;
        uint32_t time = p->upper ? a : b;
        int64_t length = p->wide ? ((const int64_t *)p->index)[row]
                                 : ((const int32_t *)p->index)[row];
        int64_t at = time < length && length <= (int64_t)p->along ? length - 1 - time : time;
        int64_t from = p->upper ? (at * p->rows + row) * p->inner
                                : (row * (int64_t)p->along + at) * p->inner;
        hth_element_copy(p->out, i, p->in, from + inside, p->element);
    }
}
