// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/scatter.cu - GatherElements, GatherND, ScatterElements, ScatterND. The scatters find
// the data already copied to the result. What may meet at one place is one thread's, which goes
// through the updates in their order: sums have one order, and of plain writes along an axis the
// last one stays. Plain writes of ScatterND, whose places ONNX wants to differ, are all at once.
// Bytes moved: the result or the updates twice, and the indices.
#include "graph/op.h"
#include "kernels/cuda/index.h"
#include "kernels/cuda/params.h"

HTH_KERNEL(hth_pick, hth_pick_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int64_t at = hth_index_at(p->index, p->wide, i, p->along);
        int64_t from = hth_offset(i, &p->dims, &p->steps) + at * p->along_step;
        hth_element_copy(p->out, i, p->in, at < 0 ? -1 : from, p->element);
    }
}

HTH_FN float scatter_combine(int op, float a, float b)
{
    switch (op) {
    case HTH_OP_ADD: return a + b;
    case HTH_OP_MUL: return a * b;
    case HTH_OP_MAX: return a > b || a != a ? a : b;
    default: return a < b || a != a ? a : b;
    }
}

HTH_FN void scatter_one(int op, void *out, int64_t to, const void *in, int64_t from,
                        uint32_t element)
{
    if (op == HTH_OP_NONE) {
        hth_element_copy(out, to, in, from, element);
    } else {
        float *x = (float *)out + to;
        *x = scatter_combine(op, *x, ((const float *)in)[from]);
    }
}

// One thread per line of the indices along the axis.
HTH_KERNEL(hth_put, hth_put_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int64_t from = hth_offset(i, &p->dims, &p->index_steps);
        int64_t to = hth_offset(i, &p->dims, &p->steps);
        for (uint32_t k = 0; k < p->count; k++) {
            int64_t place = from + k * p->index_step;
            int64_t at = hth_index_at(p->index, p->wide, place, p->along);
            if (at >= 0) {
                scatter_one(p->op, p->out, to + at * p->along_step, p->updates, place, p->element);
            }
        }
    }
}

// Where tuple r points, in slices; -1: out of range.
HTH_FN int64_t tuple_place(const hth_tuple_params *p, uint32_t r)
{
    int64_t at = 0;
    for (uint32_t k = 0; k < p->depth; k++) {
        int64_t one = hth_index_at(p->index, p->wide, (int64_t)r * p->depth + k, p->dim[k]);
        if (one < 0) {
            return -1;
        }
        at = at * p->dim[k] + one;
    }
    return at;
}

HTH_KERNEL(hth_pick_tuples, hth_tuple_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t r = i / p->slice;
        int64_t at = tuple_place(p, r);
        int64_t from = ((int64_t)(r / p->tuples) * p->inside + at) * p->slice + i % p->slice;
        hth_element_copy(p->out, i, p->in, at < 0 ? -1 : from, p->element);
    }
}

HTH_FN void tuple_put(const hth_tuple_params *p, uint32_t r, uint32_t column)
{
    int64_t at = tuple_place(p, r);
    if (at >= 0) {
        scatter_one(p->op, p->out, at * p->slice + column, p->in, (int64_t)r * p->slice + column,
                    p->element);
    }
}

// n: elements of the updates, or, where they are combined, of a slice.
HTH_KERNEL(hth_put_tuples, hth_tuple_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        if (p->op == HTH_OP_NONE) {
            tuple_put(p, i / p->slice, i % p->slice);
            continue;
        }
        for (uint32_t r = 0; r < p->tuples; r++) {
            tuple_put(p, r, i);
        }
    }
}
