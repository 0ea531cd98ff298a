// SPDX-License-Identifier: Apache-2.0
// Reductions, pooling over all positions, Softmax. What is reduced last decides the kernel: a block
// per result where neighbours are reduced, a thread per result where neighbours are results, or
// where numbers are other than FP32 and bf16.
#include "kernels/cuda/seq.h"

#include <string.h>

#define REDUCE_FEW 512 // results: too few threads to fill a device with one each

static hth_err reduce_axes(const hth_graph *graph, const hth_node *node, int rank, bool reduced[])
{
    int64_t axes[HTH_MAX_RANK];
    int count;
    HTH_TRY(hth_cuda_ints(graph, node, 1, axes, HTH_MAX_RANK, &count));
    if (count < 0) {
        count = hth_node_ints(node, "axes", axes, HTH_MAX_RANK);
    }
    bool all = count <= 0 && hth_node_int(node, "noop_with_empty_axes", 0) == 0;
    for (int d = 0; d < rank; d++) {
        reduced[d] = all;
    }
    for (int i = 0; i < count; i++) {
        int64_t a = axes[i] < 0 ? axes[i] + rank : axes[i];
        if (a < 0 || a >= rank) {
            return hth_fail(HTH_ENOTSUP, "axis %lld is out of range", (long long)axes[i]);
        }
        reduced[a] = true;
    }
    return HTH_OK;
}

// The loops over results and over what each consists of.
static hth_err reduce_loops(hth_reduce_params *params, const hth_value *value, const bool *reduced)
{
    const hth_shape *s = &value->shape;
    int64_t step[HTH_MAX_RANK];
    hth_cuda_steps(s, value->layout, step);
    for (int pass = 0; pass < 2; pass++) {
        hth_cuda_loop l = {.n = 1};
        int64_t count = 1;
        for (int d = 0; d < s->rank; d++) {
            if (reduced[d] == (pass == 1)) {
                l.dim[l.rank] = s->dim[d];
                l.step[0][l.rank++] = step[d];
                count *= s->dim[d];
            }
        }
        hth_cuda_loop_fold(&l);
        if (pass == 0) {
            params->n_out = (uint32_t)count;
            HTH_TRY(hth_cuda_loop_store(&l, &params->outer, &params->outer_steps));
        } else {
            params->n_in = (uint32_t)count;
            HTH_TRY(hth_cuda_loop_store(&l, &params->inner, &params->inner_steps));
        }
    }
    return HTH_OK;
}

static hth_err reduce_add(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                          hth_op op, const bool *reduced)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    hth_reduce_params p = {.op = op,
                           .last = hth_node_int(node, "select_last_index", 0) != 0,
                           .p = (float)hth_node_int(node, "p", 2)};
    HTH_TRY(reduce_loops(&p, x, reduced));
    p.half_in = hth_cuda_half(x);
    p.half_out = hth_cuda_half(hth_cuda_out(graph, node, 0));
    bool arg = op == HTH_OP_ARG_MAX || op == HTH_OP_ARG_MIN;
    if (arg && p.n_in == 0) {
        return hth_fail(HTH_ENOTSUP, "the axis is empty");
    }
    bool last = p.inner.rank > 0 && p.inner_steps.step[p.inner.rank - 1] == 1;
    bool real = x->dtype == HTH_DT_F32 || x->dtype == HTH_DT_BF16;
    bool block = !arg && real && op != HTH_OP_REDUCE_LOG_SUM_EXP && (last || p.n_out < REDUCE_FEW);
    p.type = arg || !real ? (int32_t)x->dtype : 0;
    if (block) {
        unsigned threads = hth_cuda_row_threads(p.n_in);
        hth_cuda_launch_add(seq, HTH_CUDA_hth_reduce_block, p.n_out, threads,
                            (threads + HTH_FOLD) * sizeof(float), &p, sizeof p);
    } else {
        hth_cuda_launch_add(seq, arg ? HTH_CUDA_hth_arg : HTH_CUDA_hth_reduce_thread,
                            hth_cuda_blocks(seq, p.n_out, false), 0, 0, &p, sizeof p);
    }
    hth_cuda_bind(seq, offsetof(hth_reduce_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_reduce_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(hth_cuda_out(graph, node, 0));
    return HTH_OK;
}

// Of FP32 and bf16 either may become the other; else the result is of the input's type.
static hth_err reduce_types(const hth_graph *graph, const hth_node *node, bool arg)
{
    hth_dtype dt = hth_cuda_in(graph, node, 0)->dtype;
    bool root = node->op == HTH_OP_REDUCE_L2 || node->op == HTH_OP_REDUCE_LOG_SUM ||
                node->op == HTH_OP_REDUCE_LOG_SUM_EXP;
    if (arg || (dt != HTH_DT_F32 && dt != HTH_DT_BF16)) {
        return hth_dtype_is_float(dt) || !root ? HTH_OK
                                               : hth_fail(HTH_ENOTSUP, "%s", hth_dtype_name(dt));
    }
    return hth_cuda_need_float(graph, node, 1, 1);
}

hth_err hth_cuda_reduce(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    bool reduced[HTH_MAX_RANK] = {false},
         arg = node->op == HTH_OP_ARG_MAX || node->op == HTH_OP_ARG_MIN;
    HTH_TRY(reduce_types(graph, node, arg));
    if (arg) {
        int64_t axis = hth_node_int(node, "axis", 0);
        reduced[axis < 0 ? axis + x->shape.rank : axis] = true;
    } else {
        HTH_TRY(reduce_axes(graph, node, x->shape.rank, reduced));
    }
    return reduce_add(seq, graph, node, node->op, reduced);
}

hth_err hth_cuda_global_pool(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                             const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    bool reduced[HTH_MAX_RANK];
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    for (int d = 0; d < HTH_MAX_RANK; d++) {
        reduced[d] = d >= 2 && d < x->shape.rank;
    }
    hth_op op = node->op == HTH_OP_GLOBAL_LP_POOL ? node->op : HTH_OP_REDUCE_MEAN;
    if (node->op == HTH_OP_GLOBAL_MAX_POOL) {
        op = HTH_OP_REDUCE_MAX;
    }
    return reduce_add(seq, graph, node, op, reduced);
}

// LpNormalization along an axis, MeanVarianceNormalization over several.
hth_err hth_cuda_line_norm(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    hth_reduce_params p = {.op = node->op, .p = (float)hth_node_int(node, "p", 2)};
    bool reduced[HTH_MAX_RANK] = {false}, moments = node->op == HTH_OP_MEAN_VARIANCE_NORMALIZATION;
    int64_t axes[HTH_MAX_RANK] = {0, 2, 3};
    int count = moments ? hth_node_ints(node, "axes", axes, HTH_MAX_RANK) : 1;
    HTH_TRY(hth_cuda_need_f32(graph, node, 1, 1));
    axes[0] = moments ? axes[0] : hth_node_int(node, "axis", -1);
    for (int i = 0; i < (count < 0 ? 3 : count); i++) {
        int64_t a = axes[i] < 0 ? axes[i] + x->shape.rank : axes[i];
        if (a < 0 || a >= x->shape.rank) {
            return hth_fail(HTH_ENOTSUP, "axis %lld is out of range", (long long)axes[i]);
        }
        reduced[a] = true;
    }
    HTH_TRY(reduce_loops(&p, x, reduced));
    unsigned threads = hth_cuda_row_threads(p.n_in);
    hth_cuda_launch_add(seq, HTH_CUDA_hth_line_norm, p.n_out, threads,
                        (threads + 2 * HTH_FOLD) * sizeof(float), &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_reduce_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_reduce_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += (moments ? 4 : 3) * hth_cuda_bytes(x);
    return HTH_OK;
}

static hth_err softmax_add(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           bool grad)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    uint32_t outer;
    hth_softmax_params p = {.logs = node->op == HTH_OP_LOG_SOFTMAX ||
                                    node->op == HTH_OP_LOG_SOFTMAX_GRAD};
    const hth_value *result = hth_cuda_in(graph, node, 1), *y = hth_cuda_out(graph, node, 0);
    HTH_TRY(hth_cuda_need_float(graph, node, 2, 1));
    HTH_TRY(hth_cuda_axis(node, &x->shape, -1, &outer, &p.along, &p.inner));
    p.half_x = hth_cuda_half(x);
    p.half_y = grad && hth_cuda_half(result);
    p.half_out = hth_cuda_half(y);
    unsigned threads = hth_cuda_row_threads((p.along + 3) / 4);
    hth_cuda_launch_add(seq, grad ? HTH_CUDA_hth_softmax_grad : HTH_CUDA_hth_softmax,
                        (uint64_t)outer * p.inner, threads,
                        (threads + 2 * HTH_FOLD) * sizeof(float), &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_softmax_params, x), HTH_CUDA_IN, 0, 0);
    if (grad) {
        hth_cuda_bind(seq, offsetof(hth_softmax_params, y), HTH_CUDA_IN, 1, 0);
    }
    hth_cuda_bind(seq, offsetof(hth_softmax_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y) + (grad ? hth_cuda_bytes(result) : 0);
    return HTH_OK;
}

hth_err hth_cuda_softmax(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    return softmax_add(seq, graph, node, false);
}

hth_err hth_cuda_softmax_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                              const char *algorithm)
{
    return softmax_add(seq, graph, node, true);
}
