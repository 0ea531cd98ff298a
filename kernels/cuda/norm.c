// SPDX-License-Identifier: Apache-2.0
// Normalisation by rows: layer, RMS, group, instance and local response norm, and their gradients.
#include "kernels/cuda/seq.h"

#include <math.h>

#define NORM_THREADS 256u

static void norm_bind(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node, size_t at,
                      bool in, int index)
{
    if ((in ? hth_cuda_in(graph, node, index) : hth_cuda_out(graph, node, index)) != NULL) {
        hth_cuda_bind(seq, at, in ? HTH_CUDA_IN : HTH_CUDA_OUT, index, 0);
    }
}

static hth_err norm_image(const hth_value *value, uint32_t *batch, uint32_t *channels,
                          uint32_t *size)
{
    if (value->shape.rank < 2) {
        return hth_fail(HTH_ENOTSUP, "no channels");
    }
    *batch = (uint32_t)value->shape.dim[0];
    *channels = (uint32_t)value->shape.dim[1];
    *size = *batch * *channels == 0 ? 0 : hth_cuda_count(value) / *batch / *channels;
    return HTH_OK;
}

// Which parameter belongs to which element (hth_rows_params).
static hth_err norm_rows_shape(const hth_graph *graph, const hth_node *node, const hth_value *value,
                               const hth_value *scale, hth_rows_params *params)
{
    bool layer = node->op == HTH_OP_LAYER_NORMALIZATION || node->op == HTH_OP_RMSNORMALIZATION ||
                 node->op == HTH_OP_LAYER_NORM_GRAD;
    int64_t count = hth_shape_elements(&scale->shape);
    params->eps = hth_node_float(node, "epsilon", 1e-5f);
    params->centre = node->op != HTH_OP_RMSNORMALIZATION;
    if (layer) {
        uint32_t along, inner;
        HTH_TRY(hth_cuda_axis(node, &value->shape, -1, &params->rows, &along, &inner));
        params->size = along * inner;
        params->groups = params->inner = 1;
        params->per = params->size;
        return count == (int64_t)params->size ? HTH_OK
                                              : hth_fail(HTH_ENOTSUP, "a scale that is broadcast");
    }
    uint32_t batch = 0, channels = 0, size = 0;
    HTH_TRY(norm_image(value, &batch, &channels, &size));
    bool instance = node->op == HTH_OP_INSTANCE_NORMALIZATION;
    params->groups = instance ? channels : (uint32_t)hth_node_int(node, "num_groups", 1);
    if (params->groups == 0 || channels % params->groups != 0 ||
        (count != (int64_t)channels && count != (int64_t)params->groups)) {
        return hth_fail(HTH_ENOTSUP, "channels, groups and scale do not agree");
    }
    params->rows = batch * params->groups;
    params->size = channels / params->groups * size;
    params->per = (uint32_t)(count / params->groups);
    params->inner = params->size / params->per;
    return HTH_OK;
}

// The first `images` inputs and output 0 may be bf16, parameters and moments are f32.
static hth_err norm_types(const hth_graph *graph, const hth_node *node, int images, int n_in,
                          int n_out)
{
    HTH_TRY(hth_cuda_need_float(graph, node, images, 1));
    for (int i = images; i < n_in + n_out; i++) {
        const hth_value *v =
            i < n_in ? hth_cuda_in(graph, node, i) : hth_cuda_out(graph, node, i - n_in);
        if (i != n_in && v != NULL && v->dtype != HTH_DT_F32) {
            return hth_fail(HTH_ENOTSUP, "parameters or moments that are not FP32");
        }
    }
    return HTH_OK;
}

hth_err hth_cuda_rows(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                      const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    hth_rows_params p = {.eps = 0};
    HTH_TRY(norm_types(graph, node, 1, 3, 3));
    HTH_TRY(norm_rows_shape(graph, node, x, hth_cuda_in(graph, node, 1), &p));
    p.half_x = hth_cuda_half(x);
    p.half_out = hth_cuda_half(hth_cuda_out(graph, node, 0));
    const hth_value *bias = hth_cuda_in(graph, node, 2);
    if (bias != NULL && hth_cuda_count(bias) != hth_cuda_count(hth_cuda_in(graph, node, 1))) {
        return hth_fail(HTH_ENOTSUP, "a bias that is broadcast");
    }
    unsigned threads = hth_cuda_row_threads((p.size + 3) / 4);
    hth_cuda_launch_add(seq, HTH_CUDA_hth_rows, p.rows, threads,
                        (2 * threads + 2 * HTH_FOLD) * sizeof(float), &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_rows_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_rows_params, scale), HTH_CUDA_IN, 1, 0);
    norm_bind(seq, graph, node, offsetof(hth_rows_params, bias), true, 2);
    norm_bind(seq, graph, node, offsetof(hth_rows_params, out), false, 0);
    norm_bind(seq, graph, node, offsetof(hth_rows_params, mean), false, 1);
    norm_bind(seq, graph, node, offsetof(hth_rows_params, inv), false, 2);
    seq->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(hth_cuda_out(graph, node, 0));
    return HTH_OK;
}

static void norm_rows_grad_bind(hth_cuda_seq *seq, const hth_node *node, bool given, size_t mean,
                                size_t inv)
{
    hth_cuda_bind(seq, offsetof(hth_rows_params, dy), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_rows_params, x), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_rows_params, scale), HTH_CUDA_IN, 2, 0);
    if (given) {
        bool layer = node->op == HTH_OP_LAYER_NORM_GRAD;
        hth_cuda_from from = layer ? HTH_CUDA_IN : HTH_CUDA_WS;
        hth_cuda_bind(seq, offsetof(hth_rows_params, given_mean), from, 3, layer ? 0 : mean);
        hth_cuda_bind(seq, offsetof(hth_rows_params, given_inv), from, 4, layer ? 0 : inv);
    }
}

// LayerNormGrad knows its moments, GroupNormGrad computes them and keeps them for the parameters.
hth_err hth_cuda_rows_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 1);
    bool layer = node->op == HTH_OP_LAYER_NORM_GRAD;
    hth_rows_params p = {.eps = 0};
    HTH_TRY(norm_types(graph, node, 2, 5, 3));
    HTH_TRY(norm_rows_shape(graph, node, x, hth_cuda_in(graph, node, 2), &p));
    p.half_dy = hth_cuda_half(hth_cuda_in(graph, node, 0));
    p.half_x = hth_cuda_half(x);
    p.half_out = hth_cuda_half(hth_cuda_out(graph, node, 0));
    unsigned threads = hth_cuda_row_threads((p.size + 3) / 4);
    size_t bytes = p.rows * sizeof(float), mean = 0, inv = 0;
    if (!layer) {
        mean = hth_cuda_workspace(seq, bytes);
        inv = hth_cuda_workspace(seq, bytes);
    }
    hth_cuda_launch_add(seq, HTH_CUDA_hth_rows_grad, p.rows, threads,
                        (2 * threads + 4 * HTH_FOLD) * sizeof(float), &p, sizeof p);
    norm_rows_grad_bind(seq, node, layer, 0, 0);
    if (!layer) {
        hth_cuda_bind(seq, offsetof(hth_rows_params, mean), HTH_CUDA_WS, 0, mean);
        hth_cuda_bind(seq, offsetof(hth_rows_params, inv), HTH_CUDA_WS, 0, inv);
    }
    norm_bind(seq, graph, node, offsetof(hth_rows_params, out), false, 0);
    seq->moved_bytes += 3 * hth_cuda_bytes(x);
    if (hth_cuda_out(graph, node, 1) == NULL && hth_cuda_out(graph, node, 2) == NULL) {
        return HTH_OK;
    }
    hth_cuda_launch_add(seq, HTH_CUDA_hth_rows_grad_params, (uint64_t)p.groups * p.per,
                        NORM_THREADS, (2 * NORM_THREADS + 2 * HTH_FOLD) * sizeof(float), &p,
                        sizeof p);
    norm_rows_grad_bind(seq, node, true, mean, inv);
    norm_bind(seq, graph, node, offsetof(hth_rows_params, dscale), false, 1);
    norm_bind(seq, graph, node, offsetof(hth_rows_params, dbias), false, 2);
    seq->moved_bytes += 2 * hth_cuda_bytes(x);
    return HTH_OK;
}

hth_err hth_cuda_lrn(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                     const char *algorithm)
{
    bool grad = node->op == HTH_OP_LRN_GRAD;
    const hth_value *x = hth_cuda_in(graph, node, grad ? 1 : 0);
    int64_t size = hth_node_int(node, "size", 1);
    uint32_t batch;
    hth_lrn_params p = {.n = hth_cuda_count(x),
                        .before = (int32_t)((size - 1) / 2),
                        .after = (int32_t)(size / 2),
                        .alpha = hth_node_float(node, "alpha", 1e-4f) / (float)size,
                        .beta = hth_node_float(node, "beta", 0.75f),
                        .bias = hth_node_float(node, "bias", 1),
                        .half_x = hth_cuda_half(x),
                        .half_dy = hth_cuda_half(hth_cuda_in(graph, node, 0)),
                        .half_out = hth_cuda_half(hth_cuda_out(graph, node, 0))};
    HTH_TRY(hth_cuda_need_float(graph, node, 2, 1));
    HTH_TRY(norm_image(x, &batch, &p.channels, &p.inner));
    hth_cuda_launch_add(seq, grad ? HTH_CUDA_hth_lrn_grad : HTH_CUDA_hth_lrn,
                        hth_cuda_blocks(seq, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_lrn_params, x), HTH_CUDA_IN, grad ? 1 : 0, 0);
    if (grad) {
        hth_cuda_bind(seq, offsetof(hth_lrn_params, dy), HTH_CUDA_IN, 0, 0);
    }
    hth_cuda_bind(seq, offsetof(hth_lrn_params, out), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += hth_cuda_bytes(x) * (grad ? 3 : 2);
    return HTH_OK;
}
