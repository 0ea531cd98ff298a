// SPDX-License-Identifier: Apache-2.0
// kernels/ref/scatter.c - ScatterElements and ScatterND: writing, or combining, at positions that
// are data.
//
// Where an index occurs twice, updates are applied in the order in which they stand: a run gives
// the same bits always.
#include "graph/scatter.h"
#include "kernels/ref/ref.h"

// scatter_reduction stores the operator that combines, HTH_OP_NONE for plain writing.
static hth_err scatter_reduction(const hth_node *node, hth_dtype dt, hth_op *op)
{
    if (!hth_scatter_reduction(node, op)) {
        return hth_fail(HTH_EINVAL, "unknown reduction '%s'",
                        hth_node_str(node, "reduction", "none"));
    }
    bool known = *op == HTH_OP_NONE || ref_binary_run(*op, dt, NULL, NULL, 1, NULL, 1, 0);
    return known ? HTH_OK : ref_no_dtype(dt);
}

static void scatter_run(hth_op op, hth_dtype dt, void *to, const void *from, int64_t count,
                        size_t bytes)
{
    if (op == HTH_OP_NONE) {
        ref_move(to, from, (size_t)count * bytes);
    } else {
        ref_binary_run(op, dt, to, to, 1, from, 1, count);
    }
}

// scatter_begin checks the dtypes, finds the reduction and fills the output with the data.
static hth_err scatter_begin(const hth_node *node, const hth_tensor *in, hth_tensor *out,
                             hth_op *op)
{
    HTH_TRY(scatter_reduction(node, in[0].dtype, op));
    if (in[2].dtype != in[0].dtype || !hth_shape_equal(&in[0].shape, &out[0].shape)) {
        return hth_fail(HTH_EINVAL, "data, updates and output do not agree");
    }
    return ref_broadcast_copy(&in[0], &out[0]);
}

REF_KERNEL(ref_scatter_elements)
{
    const hth_tensor *index = &in[1], *updates = &in[2];
    int axis = ref_axis(hth_node_int(n, "axis", 0), in[0].shape.rank);
    int64_t outer, along, inner;
    size_t bytes = hth_dtype_bytes(in[0].dtype);
    hth_op op = HTH_OP_NONE;
    bool more;
    ref_iter it;
    HTH_TRY(scatter_begin(n, in, out, &op));
    HTH_TRY(ref_elements_begin(&in[0].shape, &index->shape, axis, &it, &more));
    if (!hth_shape_equal(&index->shape, &updates->shape)) {
        return hth_fail(HTH_EINVAL, "indices and updates differ in shape");
    }
    ref_around(&in[0].shape, axis, &outer, &along, &inner);
    for (; more; more = ref_iter_next(&it)) {
        for (int64_t i = 0; i < it.count; i++) {
            int64_t from = it.offset[0] + i * it.stride[0];
            int64_t at = ref_get_i64(index->dtype, index->data, from), asked = at;
            if (!ref_index(&at, along)) {
                return ref_bad_index(asked, along);
            }
            int64_t to = it.offset[1] + i * it.stride[1] + at * inner;
            scatter_run(op, in[0].dtype, (char *)out[0].data + (size_t)to * bytes,
                        (const char *)updates->data + (size_t)from * bytes, 1, bytes);
        }
    }
    return HTH_OK;
}

REF_KERNEL(ref_scatter_nd)
{
    const hth_shape *s = &in[0].shape, *r = &in[1].shape;
    int64_t depth = r->rank > 0 ? r->dim[r->rank - 1] : -1, tuples = 1, slice = 1;
    size_t bytes = hth_dtype_bytes(in[0].dtype);
    hth_op op = HTH_OP_NONE;
    HTH_TRY(scatter_begin(n, in, out, &op));
    for (int d = 0; d < r->rank - 1; d++) {
        tuples *= r->dim[d];
    }
    for (int d = (int)depth; d >= 0 && d < s->rank; d++) {
        slice *= s->dim[d];
    }
    if (depth < 0 || depth > s->rank || ref_count(&in[2]) != tuples * slice) {
        return hth_fail(HTH_EINVAL, "the shapes of data, indices and updates do not agree");
    }
    for (int64_t i = 0; i < tuples; i++) {
        int64_t at;
        HTH_TRY(ref_tuple(s, 0, (int)depth, &in[1], i, &at));
        scatter_run(op, in[0].dtype, (char *)out[0].data + (size_t)(at * slice) * bytes,
                    (const char *)in[2].data + (size_t)(i * slice) * bytes, slice, bytes);
    }
    return HTH_OK;
}
