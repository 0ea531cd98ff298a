// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/topk.cu - TopK: one thread per element counts how many of its row come before it,
// which is its place; those of the first k write themselves there. That reads a row once per
// element, from caches, but needs neither memory nor an order between threads, and equal elements
// have the order of their places. NaN is above everything. Bytes moved: the input and the results.
#include "graph/tensor.h"
#include "kernels/cuda/params.h"

// An integer with the element's order.
HTH_FN int64_t topk_key(const hth_topk_params *p, int64_t i)
{
    if (p->type == HTH_DT_I64) {
        return ((const int64_t *)p->in)[i];
    }
    if (p->type == HTH_DT_I32) {
        return ((const int32_t *)p->in)[i];
    }
    float v = ((const float *)p->in)[i];
    int32_t bits = ((const int32_t *)p->in)[i];
    return v != v ? INT64_MAX : v == 0 ? 0 : bits < 0 ? (int64_t)INT32_MIN - bits : bits;
}

HTH_KERNEL(hth_topk, hth_topk_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t line = i / p->along, me = i % p->along, place = 0;
        int64_t row = (int64_t)(line / p->inner) * p->along * p->inner + line % p->inner;
        int64_t key = topk_key(p, row + (int64_t)me * p->inner);
        for (uint32_t k = 0; k < p->along && place < p->k; k++) {
            int64_t other = topk_key(p, row + (int64_t)k * p->inner);
            place += (p->largest ? other > key : other < key) || (other == key && k < me);
        }
        if (place >= p->k) {
            continue;
        }
        int64_t to = ((int64_t)(line / p->inner) * p->k + place) * p->inner + line % p->inner;
        int64_t from = row + (int64_t)me * p->inner;
        if (p->out != NULL && p->type == HTH_DT_I64) {
            ((int64_t *)p->out)[to] = ((const int64_t *)p->in)[from];
        } else if (p->out != NULL) {
            ((uint32_t *)p->out)[to] = ((const uint32_t *)p->in)[from];
        }
        if (p->index != NULL) {
            p->index[to] = me;
        }
    }
}
