// SPDX-License-Identifier: Apache-2.0
// kernels/ref/gather.c - Gather, GatherElements, GatherND: reading at positions that are data.
//
// No index is used before it is known to be in range: a request may carry any, and gets HTH_EINVAL
// with the index.
#include "kernels/ref/ref.h"

hth_err ref_bad_index(int64_t index, int64_t dim)
{
    return hth_fail(HTH_EINVAL, "index %lld is outside of a dimension of %lld elements",
                    (long long)index, (long long)dim);
}

bool ref_index(int64_t *index, int64_t dim)
{
    if (*index < -dim || *index >= dim) {
        return false;
    }
    *index += *index < 0 ? dim : 0;
    return true;
}

static hth_err gather_disagree(void)
{
    return hth_fail(HTH_EINVAL, "the shapes of data, indices and output do not agree");
}

REF_KERNEL(ref_gather)
{
    const hth_tensor *x = &in[0], *index = &in[1];
    int axis = ref_axis(hth_node_int(n, "axis", 0), x->shape.rank);
    int64_t outer, along, inner, count = ref_count(index);
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "there is no axis %lld", (long long)hth_node_int(n, "axis", 0));
    }
    ref_around(&x->shape, axis, &outer, &along, &inner);
    if (ref_count(&out[0]) != outer * count * inner || out[0].dtype != x->dtype) {
        return gather_disagree();
    }
    size_t row = (size_t)inner * hth_dtype_bytes(x->dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = ref_get_i64(index->dtype, index->data, i), asked = at;
        if (!ref_index(&at, along)) {
            return ref_bad_index(asked, along);
        }
        for (int64_t o = 0; o < outer; o++) {
            ref_move((char *)out[0].data + (size_t)(o * count + i) * row,
                     (const char *)x->data + (size_t)(o * along + at) * row, row);
        }
    }
    return HTH_OK;
}

hth_err ref_elements_begin(const hth_shape *data, const hth_shape *index, int axis, ref_iter *it,
                           bool *more)
{
    int64_t step[HTH_MAX_RANK][REF_MAX_OPERANDS] = {{0}}, own[HTH_MAX_RANK], dense[HTH_MAX_RANK];
    if (axis < 0 || index->rank != data->rank) {
        return gather_disagree();
    }
    ref_steps(data, own);
    ref_steps(index, dense);
    for (int d = 0; d < data->rank; d++) {
        if (d != axis && index->dim[d] > data->dim[d]) {
            return gather_disagree();
        }
        step[d][0] = dense[d];
        step[d][1] = d == axis ? 0 : own[d];
    }
    *more = ref_iter_strided(it, data->rank, index->dim, 2, step);
    return HTH_OK;
}

REF_KERNEL(ref_gather_elements)
{
    const hth_tensor *x = &in[0], *index = &in[1];
    int axis = ref_axis(hth_node_int(n, "axis", 0), x->shape.rank);
    int64_t outer, along, inner;
    bool more;
    ref_iter it;
    HTH_TRY(ref_elements_begin(&x->shape, &index->shape, axis, &it, &more));
    if (!hth_shape_equal(&index->shape, &out[0].shape) || out[0].dtype != x->dtype) {
        return gather_disagree();
    }
    ref_around(&x->shape, axis, &outer, &along, &inner);
    size_t bytes = hth_dtype_bytes(x->dtype);
    for (; more; more = ref_iter_next(&it)) {
        for (int64_t i = 0; i < it.count; i++) {
            int64_t to = it.offset[0] + i * it.stride[0];
            int64_t at = ref_get_i64(index->dtype, index->data, to), asked = at;
            if (!ref_index(&at, along)) {
                return ref_bad_index(asked, along);
            }
            int64_t from = it.offset[1] + i * it.stride[1] + at * inner;
            ref_move((char *)out[0].data + (size_t)to * bytes,
                     (const char *)x->data + (size_t)from * bytes, bytes);
        }
    }
    return HTH_OK;
}

hth_err ref_tuple(const hth_shape *shape, int first, int depth, const hth_tensor *index,
                  int64_t tuple, int64_t *offset)
{
    *offset = 0;
    for (int k = 0; k < depth; k++) {
        int64_t at = ref_get_i64(index->dtype, index->data, tuple * depth + k), asked = at;
        if (!ref_index(&at, shape->dim[first + k])) {
            return ref_bad_index(asked, shape->dim[first + k]);
        }
        *offset = *offset * shape->dim[first + k] + at;
    }
    return HTH_OK;
}

REF_KERNEL(ref_gather_nd)
{
    const hth_tensor *x = &in[0], *index = &in[1];
    const hth_shape *s = &x->shape, *r = &index->shape;
    int64_t batch_dims = hth_node_int(n, "batch_dims", 0);
    int64_t depth = r->rank > 0 ? r->dim[r->rank - 1] : -1;
    if (depth < 0 || batch_dims < 0 || batch_dims >= r->rank || batch_dims > s->rank ||
        depth > s->rank - batch_dims) {
        return gather_disagree();
    }
    int first = (int)batch_dims;
    int64_t batches = 1, tuples = 1, inside = 1, slice = 1;
    for (int d = 0; d < r->rank - 1; d++) {
        if (d < first && r->dim[d] != s->dim[d]) {
            return gather_disagree();
        }
        *(d < first ? &batches : &tuples) *= r->dim[d];
    }
    for (int d = first; d < s->rank; d++) {
        *(d < first + depth ? &inside : &slice) *= s->dim[d];
    }
    if (ref_count(&out[0]) != batches * tuples * slice || out[0].dtype != x->dtype) {
        return gather_disagree();
    }
    size_t bytes = (size_t)slice * hth_dtype_bytes(x->dtype);
    for (int64_t i = 0; i < batches * tuples; i++) {
        int64_t at;
        HTH_TRY(ref_tuple(s, first, (int)depth, index, i, &at));
        at += i / tuples * inside;
        ref_move((char *)out[0].data + (size_t)i * bytes,
                 (const char *)x->data + (size_t)at * bytes, bytes);
    }
    return HTH_OK;
}
