// SPDX-License-Identifier: Apache-2.0
// GatherElements, GatherND, ScatterElements and ScatterND.
#include "graph/scatter.h"
#include "kernels/cuda/seq.h"

static hth_err scatter_op(const hth_node *node, hth_dtype dt, int32_t *op)
{
    hth_op by;
    if (!hth_scatter_reduction(node, &by)) {
        return hth_fail(HTH_ENOTSUP, "unknown reduction '%s'",
                        hth_node_str(node, "reduction", "none"));
    }
    *op = (int32_t)by;
    return by == HTH_OP_NONE || dt == HTH_DT_F32
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "reduction of %s", hth_dtype_name(dt));
}

// The axis, and steps of the data and of the indices over the indices' dimensions; along the axis
// 0 and, with `lines`, one element.
static hth_err scatter_dims(const hth_node *node, const hth_shape *data, const hth_shape *index,
                            bool lines, int *axis, hth_dims *dims, hth_steps *at_data,
                            hth_steps *at_index)
{
    int64_t own[HTH_MAX_RANK], dense[HTH_MAX_RANK], a = hth_node_int(node, "axis", 0);
    a += a < 0 ? data->rank : 0;
    if (a < 0 || a >= data->rank || index->rank != data->rank || data->rank > HTH_CUDA_RANK) {
        return hth_fail(HTH_ENOTSUP, "axis is out of range, or more than %d dimensions",
                        HTH_CUDA_RANK);
    }
    *axis = (int)a;
    hth_cuda_row_major(data, own);
    hth_cuda_row_major(index, dense);
    dims->rank = data->rank;
    for (int d = 0; d < data->rank; d++) {
        dims->dim[d] = lines && d == *axis ? 1 : (uint32_t)index->dim[d];
        at_data->step[d] = d == *axis ? 0 : own[d];
        at_index->step[d] = dense[d];
    }
    return HTH_OK;
}

hth_err hth_cuda_gather_elements(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                 const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *index = hth_cuda_in(graph, node, 1);
    hth_pick_params p = {.n = hth_cuda_count(index),
                         .element = (uint32_t)hth_dtype_bytes(x->dtype)};
    int64_t own[HTH_MAX_RANK];
    hth_steps unused;
    int axis;
    HTH_TRY(hth_cuda_wide(index, &p.wide));
    HTH_TRY(scatter_dims(node, &x->shape, &index->shape, false, &axis, &p.dims, &p.steps, &unused));
    hth_cuda_row_major(&x->shape, own);
    p.along = (uint32_t)x->shape.dim[axis];
    p.along_step = own[axis];
    hth_cuda_launch_add(seq, HTH_CUDA_hth_pick, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_pick_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_pick_params, index), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_pick_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += 2 * hth_cuda_bytes(hth_cuda_out(graph, node, 0)) + hth_cuda_bytes(index);
    return HTH_OK;
}

// Input 0 to the result, which then may be the same memory.
static hth_err scatter_begin(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node)
{
    const hth_value *updates = hth_cuda_in(graph, node, 2);
    HTH_TRY(hth_cuda_view(seq, graph, node, NULL));
    seq->base.inplace_input = -1;
    seq->moved_bytes += 2 * hth_cuda_bytes(updates) + hth_cuda_bytes(hth_cuda_in(graph, node, 1));
    return HTH_OK;
}

hth_err hth_cuda_scatter_elements(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                  const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *index = hth_cuda_in(graph, node, 1);
    hth_put_params p = {.element = (uint32_t)hth_dtype_bytes(x->dtype)};
    int64_t own[HTH_MAX_RANK], dense[HTH_MAX_RANK];
    int axis;
    HTH_TRY(hth_cuda_wide(index, &p.wide));
    HTH_TRY(scatter_op(node, x->dtype, &p.op));
    HTH_TRY(scatter_dims(node, &x->shape, &index->shape, true, &axis, &p.dims, &p.steps,
                         &p.index_steps));
    HTH_TRY(scatter_begin(seq, graph, node));
    if (hth_cuda_count(index) == 0) {
        return HTH_OK;
    }
    hth_cuda_row_major(&x->shape, own);
    hth_cuda_row_major(&index->shape, dense);
    p.count = (uint32_t)index->shape.dim[axis];
    p.n = hth_cuda_count(index) / p.count;
    p.along = (uint32_t)x->shape.dim[axis];
    p.along_step = own[axis];
    p.index_step = dense[axis];
    hth_cuda_launch_add(seq, HTH_CUDA_hth_put, hth_cuda_blocks(seq, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_put_params, index), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_put_params, updates), HTH_CUDA_IN, 2, 0);
    hth_cuda_bind(seq, offsetof(hth_put_params, out), HTH_CUDA_OUT, 0, 0);
    return HTH_OK;
}

// Tuples of the last dimension of `index`, into data after its first `batch` dimensions.
static hth_err tuple_params(const hth_value *value, const hth_value *index, int batch,
                            hth_tuple_params *params, uint32_t *batches)
{
    const hth_shape *s = &value->shape, *r = &index->shape;
    int64_t depth = r->rank > 0 ? r->dim[r->rank - 1] : -1;
    if (depth < 0 || batch < 0 || batch >= r->rank || depth > s->rank - batch ||
        depth > HTH_CUDA_RANK) {
        return hth_fail(HTH_ENOTSUP, "tuples of %lld indices", (long long)depth);
    }
    HTH_TRY(hth_cuda_wide(index, &params->wide));
    params->element = (uint32_t)hth_dtype_bytes(value->dtype);
    params->depth = (uint32_t)depth;
    params->tuples = params->slice = 1;
    params->inside = 1;
    *batches = 1;
    for (int d = 0; d < r->rank - 1; d++) {
        *(d < batch ? batches : &params->tuples) *= (uint32_t)r->dim[d];
    }
    for (int d = batch; d < s->rank; d++) {
        if (d < batch + depth) {
            params->dim[d - batch] = (uint32_t)s->dim[d];
            params->inside *= s->dim[d];
        } else {
            params->slice *= (uint32_t)s->dim[d];
        }
    }
    return HTH_OK;
}

static void tuple_widen(hth_tuple_params *params)
{
    while (params->element < 16 && params->slice % 2 == 0 && params->slice > 0) {
        params->element *= 2;
        params->slice /= 2;
    }
}

hth_err hth_cuda_gather_nd(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *index = hth_cuda_in(graph, node, 1);
    hth_tuple_params p = {.n = 0};
    uint32_t batches;
    HTH_TRY(tuple_params(x, index, (int)hth_node_int(node, "batch_dims", 0), &p, &batches));
    tuple_widen(&p);
    p.n = batches * p.tuples * p.slice;
    hth_cuda_launch_add(seq, HTH_CUDA_hth_pick_tuples, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_tuple_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_tuple_params, index), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_tuple_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += 2 * hth_cuda_bytes(hth_cuda_out(graph, node, 0)) + hth_cuda_bytes(index);
    return HTH_OK;
}

hth_err hth_cuda_scatter_nd(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                            const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *index = hth_cuda_in(graph, node, 1);
    hth_tuple_params p = {.n = 0};
    uint32_t batches;
    HTH_TRY(tuple_params(x, index, 0, &p, &batches));
    HTH_TRY(scatter_op(node, x->dtype, &p.op));
    HTH_TRY(scatter_begin(seq, graph, node));
    if (p.op == HTH_OP_NONE) {
        tuple_widen(&p);
    }
    p.n = p.op == HTH_OP_NONE ? p.tuples * p.slice : p.slice;
    if (p.n == 0 || p.tuples == 0) {
        return HTH_OK;
    }
    hth_cuda_launch_add(seq, HTH_CUDA_hth_put_tuples, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_tuple_params, index), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_tuple_params, in), HTH_CUDA_IN, 2, 0);
    hth_cuda_bind(seq, offsetof(hth_tuple_params, out), HTH_CUDA_OUT, 0, 0);
    return HTH_OK;
}
