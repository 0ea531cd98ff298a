// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/topk.cu - TopK: one thread per element counts how many of its row come before it,
// which is its place; those of the first k write themselves there. That reads a row once per
// element, from caches, but needs neither memory nor an order between threads, and equal elements
// have the order of their places. NaN is above everything. Bytes moved: the input and the results.
#include "kernels/cuda/index.h"
#include "kernels/cuda/number.h"
#include "kernels/cuda/params.h"

// An integer with the element's order.
HTH_FN int64_t topk_key(const hth_topk_params *p, int64_t i)
{
    union {
        double f;
        int64_t bits;
    } v;
    if (!hth_number_is_float(p->type)) {
        int64_t k = hth_number_int(p->type, p->in, i);
        return p->type == HTH_DT_U64 ? (int64_t)((uint64_t)k ^ (uint64_t)1 << 63) : k;
    }
    v.f = hth_number_get(p->type, p->in, i).f;
    if (v.f != v.f) {
        return INT64_MAX;
    }
    if (v.f == 0) {
        return 0;
    }
    return v.bits < 0 ? INT64_MIN - v.bits : v.bits;
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
        if (p->out != NULL) {
            hth_element_copy(p->out, to, p->in, from, hth_number_bytes(p->type));
        }
        if (p->index != NULL) {
            p->index[to] = me;
        }
    }
}
