// SPDX-License-Identifier: Apache-2.0
// TopK, CumSum, OneHot, Trilu, ReverseSequence.
#include "kernels/cuda/seq.h"

#include "base/compare.h"

hth_err hth_cuda_top_k(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                       const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    const hth_value *places = hth_cuda_out(graph, node, 1), *any = y != NULL ? y : places;
    int64_t axis = hth_node_int(node, "axis", -1);
    hth_topk_params p = {.type = (int32_t)x->dtype,
                         .largest = hth_node_int(node, "largest", 1) != 0};
    uint32_t outer;
    HTH_TRY(hth_cuda_axis(node, &x->shape, -1, &outer, &p.along, &p.inner));
    p.k = (uint32_t)any->shape.dim[axis < 0 ? axis + x->shape.rank : axis];
    p.n = hth_cuda_count(x);
    hth_cuda_launch_add(seq, HTH_CUDA_hth_topk, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_topk_params, in), HTH_CUDA_IN, 0, 0);
    if (y != NULL) {
        hth_cuda_bind(seq, offsetof(hth_topk_params, out), HTH_CUDA_OUT, 0, 0);
    }
    if (places != NULL) {
        hth_cuda_bind(seq, offsetof(hth_topk_params, index), HTH_CUDA_OUT, 1, 0);
    }
    seq->moved_bytes += hth_cuda_bytes(x) + 2 * hth_cuda_bytes(any);
    return HTH_OK;
}

hth_err hth_cuda_cum_sum(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    hth_scan_params p = {.type = (int32_t)x->dtype,
                         .exclusive = hth_node_int(node, "exclusive", 0) != 0,
                         .reverse = hth_node_int(node, "reverse", 0) != 0,
                         .inner = 1};
    int64_t axis;
    int count;
    HTH_TRY(hth_cuda_ints(graph, node, 1, &axis, 1, &count));
    axis += axis < 0 ? x->shape.rank : 0;
    if (count != 1 || axis < 0 || axis >= x->shape.rank) {
        return hth_fail(HTH_ENOTSUP, "axis is out of range");
    }
    if (x->dtype != HTH_DT_F32 && x->dtype != HTH_DT_F64 && x->dtype != HTH_DT_I32 &&
        x->dtype != HTH_DT_I64) {
        return hth_fail(HTH_ENOTSUP, "%s", hth_dtype_name(x->dtype));
    }
    for (int d = (int)axis + 1; d < x->shape.rank; d++) {
        p.inner *= (uint32_t)x->shape.dim[d];
    }
    p.along = (uint32_t)x->shape.dim[axis];
    p.n = hth_cuda_count(x) / p.along;
    hth_cuda_launch_add(seq, HTH_CUDA_hth_scan, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_scan_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_scan_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += 2 * hth_cuda_bytes(x);
    return HTH_OK;
}

// `in`, `index`: inputs; index -1: none.
static void select_launch(hth_cuda_seq *seq, hth_cuda_kernel_id id, const hth_select_params *params,
                          int in, int index)
{
    hth_cuda_launch_add(seq, id, hth_cuda_blocks(seq, params->n, true), 0, 0, params,
                        sizeof *params);
    hth_cuda_bind(seq, offsetof(hth_select_params, in), HTH_CUDA_IN, in, 0);
    if (index >= 0) {
        hth_cuda_bind(seq, offsetof(hth_select_params, index), HTH_CUDA_IN, index, 0);
    }
    hth_cuda_bind(seq, offsetof(hth_select_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += (size_t)params->n * params->element * (index >= 0 ? 1 : 2);
}

hth_err hth_cuda_one_hot(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    const hth_value *index = hth_cuda_in(graph, node, 0), *values = hth_cuda_in(graph, node, 2);
    const hth_value *y = hth_cuda_out(graph, node, 0);
    hth_select_params p = {.n = hth_cuda_count(y), .element = (uint32_t)hth_dtype_bytes(y->dtype)};
    uint32_t outer;
    HTH_TRY(hth_cuda_wide(index, &p.wide));
    HTH_TRY(hth_cuda_axis(node, &y->shape, -1, &outer, &p.along, &p.inner));
    if (values->dtype != y->dtype || hth_cuda_count(values) != 2) {
        return hth_fail(HTH_ENOTSUP, "values are not two of the result's type");
    }
    select_launch(seq, HTH_CUDA_hth_one_hot, &p, 2, 0);
    return HTH_OK;
}

hth_err hth_cuda_trilu(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                       const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    hth_select_params p = {.n = hth_cuda_count(x),
                           .element = (uint32_t)hth_dtype_bytes(x->dtype),
                           .upper = hth_node_int(node, "upper", 1) != 0};
    int64_t k = 0;
    int count;
    HTH_TRY(hth_cuda_ints(graph, node, 1, &k, 1, &count));
    if (x->shape.rank < 2) {
        return hth_fail(HTH_ENOTSUP, "%d dimensions", x->shape.rank);
    }
    p.rows = (uint32_t)x->shape.dim[x->shape.rank - 2];
    p.along = (uint32_t)x->shape.dim[x->shape.rank - 1];
    k = count < 1 ? 0 : k;
    p.k = hth_clamp(k, -(int64_t)p.rows, p.along);
    select_launch(seq, HTH_CUDA_hth_trilu, &p, 0, -1);
    return HTH_OK;
}

hth_err hth_cuda_reverse_sequence(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                                  const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    int64_t time = hth_node_int(node, "time_axis", 0), batch = hth_node_int(node, "batch_axis", 1);
    hth_select_params p = {.n = hth_cuda_count(x),
                           .element = (uint32_t)hth_dtype_bytes(x->dtype),
                           .inner = 1,
                           .upper = time == 0};
    HTH_TRY(hth_cuda_wide(hth_cuda_in(graph, node, 1), &p.wide));
    if (x->shape.rank < 2 || time + batch != 1 || time * batch != 0) {
        return hth_fail(HTH_ENOTSUP, "axes are not the first two");
    }
    p.rows = (uint32_t)x->shape.dim[batch];
    p.along = (uint32_t)x->shape.dim[time];
    for (int d = 2; d < x->shape.rank; d++) {
        p.inner *= (uint32_t)x->shape.dim[d];
    }
    select_launch(seq, HTH_CUDA_hth_reverse, &p, 0, 1);
    return HTH_OK;
}
