// SPDX-License-Identifier: Apache-2.0
// The ends of a training step: losses, the factor that clips gradients, optimizers, dropout. All
// sums have one order.
#include "kernels/cuda/seq.h"

#include "base/compare.h"
#include "kernels/philox.h"

#define TRAIN_THREADS 256u
#define TRAIN_PARTS   256u // blocks of a sum of squares
#define TRAIN_FOLDS   ((TRAIN_THREADS + 2 * HTH_FOLD) * sizeof(float))

static hth_err xent_params(const hth_graph *graph, const hth_node *node, hth_xent_params *params)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *labels = hth_cuda_in(graph, node, 1),
                    *weights = hth_cuda_in(graph, node, 2);
    bool grad = node->op == HTH_OP_SOFTMAX_XENT_GRAD;
    uint32_t outer;
    HTH_TRY(hth_cuda_need_f32(graph, node, 1, grad ? 0 : 1));
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    params->half = grad && hth_cuda_half(hth_cuda_out(graph, node, 0));
    if ((labels->dtype != HTH_DT_I64 && labels->dtype != HTH_DT_I32) || x->shape.rank < 2 ||
        hth_cuda_count(x) == 0) {
        return hth_fail(HTH_ENOTSUP, "labels are %s", hth_dtype_name(labels->dtype));
    }
    HTH_TRY(hth_cuda_axis(node, &x->shape, 1, &outer, &params->classes, &params->inner));
    if (weights != NULL &&
        (weights->dtype != HTH_DT_F32 || hth_cuda_count(weights) != params->classes)) {
        return hth_fail(HTH_ENOTSUP, "weights are not one FP32 per class");
    }
    params->wide = labels->dtype == HTH_DT_I64;
    params->n_rows = hth_cuda_count(labels);
    params->ignore = hth_node_int(node, "ignore_index", -100);
    params->smoothing = hth_node_float(node, "smoothing", 0);
    return HTH_OK;
}

static void loss_bind(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node, size_t at,
                      int input)
{
    if (hth_cuda_in(graph, node, input) != NULL) {
        hth_cuda_bind(seq, at, HTH_CUDA_IN, input, 0);
    }
}

static void xent_add(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                     hth_cuda_kernel_id id, const hth_xent_params *params, bool one, size_t counted)
{
    unsigned threads = one ? TRAIN_THREADS : hth_cuda_row_threads(params->classes);
    hth_cuda_launch_add(seq, id, one ? 1 : params->n_rows, threads,
                        (3 * threads + 3 * HTH_FOLD) * sizeof(float), params, sizeof *params);
    hth_cuda_bind(seq, offsetof(hth_xent_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_xent_params, labels), HTH_CUDA_IN, 1, 0);
    loss_bind(seq, graph, node, offsetof(hth_xent_params, weights), 2);
    loss_bind(seq, graph, node, offsetof(hth_xent_params, hyper), 3);
    hth_cuda_bind(seq, offsetof(hth_xent_params, counted), HTH_CUDA_WS, 0, counted);
}

hth_err hth_cuda_xent(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                      const char *algorithm)
{
    hth_xent_params p = {.n_rows = 0};
    HTH_TRY(xent_params(graph, node, &p));
    size_t counted = hth_cuda_workspace(seq, 2 * sizeof(float));
    if (node->op == HTH_OP_SOFTMAX_XENT_GRAD) {
        xent_add(seq, graph, node, HTH_CUDA_hth_xent_sum, &p, true, counted);
        xent_add(seq, graph, node, HTH_CUDA_hth_xent_grad, &p, false, counted);
        hth_cuda_bind(seq, offsetof(hth_xent_params, out), HTH_CUDA_OUT, 0, 0);
    } else {
        size_t rows = hth_cuda_workspace(seq, p.n_rows * sizeof(float));
        xent_add(seq, graph, node, HTH_CUDA_hth_xent_rows, &p, false, counted);
        hth_cuda_bind(seq, offsetof(hth_xent_params, rows), HTH_CUDA_WS, 0, rows);
        xent_add(seq, graph, node, HTH_CUDA_hth_xent_sum, &p, true, counted);
        hth_cuda_bind(seq, offsetof(hth_xent_params, rows), HTH_CUDA_WS, 0, rows);
        hth_cuda_bind(seq, offsetof(hth_xent_params, out), HTH_CUDA_OUT, 0, 0);
    }
    seq->moved_bytes += 2 * hth_cuda_bytes(hth_cuda_in(graph, node, 0));
    return HTH_OK;
}

// Sums of squares of input a (minus input b, if >= 0) into parts of the workspace; returns how
// many.
static uint32_t squares_add(hth_cuda_seq *seq, uint32_t n, int a, int b, size_t parts)
{
    uint32_t blocks = (n + 4 * TRAIN_THREADS - 1) / (4 * TRAIN_THREADS);
    blocks = (uint32_t)hth_clamp(blocks, 1, TRAIN_PARTS);
    hth_squares_params p = {.n = n};
    hth_cuda_launch_add(seq, HTH_CUDA_hth_squares, blocks, TRAIN_THREADS, TRAIN_FOLDS, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_squares_params, a), HTH_CUDA_IN, a, 0);
    if (b >= 0) {
        hth_cuda_bind(seq, offsetof(hth_squares_params, b), HTH_CUDA_IN, b, 0);
    }
    hth_cuda_bind(seq, offsetof(hth_squares_params, part), HTH_CUDA_WS, 0, parts);
    return blocks;
}

static void squares_end(hth_cuda_seq *seq, const hth_squares_params *params, size_t parts)
{
    hth_cuda_launch_add(seq, HTH_CUDA_hth_squares_sum, 1, TRAIN_THREADS, TRAIN_FOLDS, params,
                        sizeof *params);
    hth_cuda_bind(seq, offsetof(hth_squares_params, part), HTH_CUDA_WS, 0, parts);
    hth_cuda_bind(seq, offsetof(hth_squares_params, out), HTH_CUDA_OUT, 0, 0);
}

hth_err hth_cuda_mse(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                     const char *algorithm)
{
    uint32_t count = hth_cuda_count(hth_cuda_in(graph, node, 0));
    hth_squares_params p = {.n = count, .factor = count > 0 ? 1 / (float)count : 0};
    bool grad = node->op == HTH_OP_MSE_GRAD;
    HTH_TRY(hth_cuda_need_f32(graph, node, 2, grad ? 0 : 1));
    HTH_TRY(hth_cuda_need_float(graph, node, 2, 1));
    seq->moved_bytes += 2 * (size_t)count * sizeof(float);
    if (grad) {
        p.half = hth_cuda_half(hth_cuda_out(graph, node, 0));
        seq->moved_bytes += hth_cuda_bytes(hth_cuda_out(graph, node, 0));
        hth_cuda_launch_add(seq, HTH_CUDA_hth_mse_grad, hth_cuda_blocks(seq, count, true), 0, 0, &p,
                            sizeof p);
        hth_cuda_bind(seq, offsetof(hth_squares_params, a), HTH_CUDA_IN, 0, 0);
        hth_cuda_bind(seq, offsetof(hth_squares_params, b), HTH_CUDA_IN, 1, 0);
        hth_cuda_bind(seq, offsetof(hth_squares_params, out), HTH_CUDA_OUT, 0, 0);
        return HTH_OK;
    }
    size_t parts = hth_cuda_workspace(seq, TRAIN_PARTS * sizeof(float));
    p.n_parts = squares_add(seq, count, 0, 1, parts);
    squares_end(seq, &p, parts);
    return HTH_OK;
}

static hth_err bce_params(const hth_graph *graph, const hth_node *node, hth_bce_params *params)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *weights = hth_cuda_in(graph, node, 2);
    uint32_t outer;
    HTH_TRY(hth_cuda_need_f32(graph, node, 3, node->op == HTH_OP_BCE_GRAD ? 0 : 1));
    HTH_TRY(hth_cuda_need_float(graph, node, 3, 1));
    params->n = hth_cuda_count(x);
    params->classes = params->inner = 1;
    params->factor = params->n > 0 ? 1 / (float)params->n : 0;
    if (weights == NULL || hth_cuda_count(weights) == 1) {
        return HTH_OK;
    }
    HTH_TRY(hth_cuda_axis(node, &x->shape, 1, &outer, &params->classes, &params->inner));
    return hth_cuda_count(weights) == params->classes
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "weights are not one per class");
}

hth_err hth_cuda_bce(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                     const char *algorithm)
{
    hth_bce_params p = {.n = 0};
    HTH_TRY(bce_params(graph, node, &p));
    bool grad = node->op == HTH_OP_BCE_GRAD;
    uint32_t blocks = (p.n + TRAIN_THREADS - 1) / TRAIN_THREADS;
    blocks = blocks > TRAIN_PARTS ? TRAIN_PARTS : blocks;
    blocks += blocks == 0;
    size_t parts = grad ? 0 : hth_cuda_workspace(seq, TRAIN_PARTS * sizeof(float));
    seq->moved_bytes += 2 * (size_t)p.n * sizeof(float);
    if (grad) {
        p.half = hth_cuda_half(hth_cuda_out(graph, node, 0));
        seq->moved_bytes += hth_cuda_bytes(hth_cuda_out(graph, node, 0));
        hth_cuda_launch_add(seq, HTH_CUDA_hth_bce_grad, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                            sizeof p);
        hth_cuda_bind(seq, offsetof(hth_bce_params, out), HTH_CUDA_OUT, 0, 0);
    } else {
        hth_cuda_launch_add(seq, HTH_CUDA_hth_bce, blocks, TRAIN_THREADS, TRAIN_FOLDS, &p,
                            sizeof p);
        hth_cuda_bind(seq, offsetof(hth_bce_params, part), HTH_CUDA_WS, 0, parts);
    }
    hth_cuda_bind(seq, offsetof(hth_bce_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_bce_params, y), HTH_CUDA_IN, 1, 0);
    loss_bind(seq, graph, node, offsetof(hth_bce_params, weights), 2);
    if (!grad) {
        squares_end(seq, &(hth_squares_params){.n_parts = blocks, .factor = p.factor}, parts);
    }
    return HTH_OK;
}

hth_err hth_cuda_clip_scale(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                            const char *algorithm)
{
    hth_squares_params p = {.max_norm = hth_node_float(node, "max_norm", 1)};
    HTH_TRY(hth_cuda_need_f32(graph, node, node->n_inputs, 1));
    size_t parts = hth_cuda_workspace(seq, (size_t)node->n_inputs * TRAIN_PARTS * sizeof(float));
    for (int i = 1; i < node->n_inputs; i++) {
        uint32_t count = hth_cuda_count(hth_cuda_in(graph, node, i));
        p.n_parts += squares_add(seq, count, i, -1, parts + p.n_parts * sizeof(float));
        seq->moved_bytes += count * sizeof(float);
    }
    squares_end(seq, &p, parts);
    hth_cuda_bind(seq, offsetof(hth_squares_params, hyper), HTH_CUDA_IN, 0, 0);
    return HTH_OK;
}

static void step_bind(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node, size_t at,
                      bool in, int index)
{
    if (index >= 0 &&
        (in ? hth_cuda_in(graph, node, index) : hth_cuda_out(graph, node, index)) != NULL) {
        hth_cuda_bind(seq, at, in ? HTH_CUDA_IN : HTH_CUDA_OUT, index, 0);
    }
}

// SgdStep: p, graph, momentum?, hyper, clip?, copy?. AdamStep: p, graph, m, v, hyper, clip?, copy?.
// The last output that each may have is the new parameter in bf16, which takes the place of `copy`.
hth_err hth_cuda_step_op(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    bool adam = node->op == HTH_OP_ADAM_STEP;
    int copy = adam ? 3 : 2, hyper = copy + 1;
    const hth_value *rounded = hth_cuda_out(graph, node, copy);
    uint32_t count = hth_cuda_count(hth_cuda_in(graph, node, 0));
    hth_step_params p = {.n = count,
                         .flag = hth_node_int(node, adam ? "decoupled" : "nesterov", 0) != 0};
    HTH_TRY(hth_cuda_need_f32(graph, node, hyper + 2, copy));
    if (rounded != NULL && rounded->dtype != HTH_DT_BF16) {
        return hth_fail(HTH_ENOTSUP, "a copy that is %s", hth_dtype_name(rounded->dtype));
    }
    if (rounded != NULL && rounded->layout == HTH_LAYOUT_NHWC) {
        p.rows = (uint32_t)rounded->shape.dim[1];
        p.cols = count / p.rows / (uint32_t)rounded->shape.dim[0];
    }
    hth_cuda_launch_add(seq, adam ? HTH_CUDA_hth_adam : HTH_CUDA_hth_sgd,
                        hth_cuda_blocks(seq, (count + 3) / 4, true), 0, 0, &p, sizeof p);
    step_bind(seq, graph, node, offsetof(hth_step_params, p), true, 0);
    step_bind(seq, graph, node, offsetof(hth_step_params, g), true, 1);
    step_bind(seq, graph, node, offsetof(hth_step_params, m), true, 2);
    step_bind(seq, graph, node, offsetof(hth_step_params, v), true, adam ? 3 : -1);
    step_bind(seq, graph, node, offsetof(hth_step_params, hyper), true, hyper);
    step_bind(seq, graph, node, offsetof(hth_step_params, clip), true, hyper + 1);
    step_bind(seq, graph, node, offsetof(hth_step_params, new_p), false, 0);
    step_bind(seq, graph, node, offsetof(hth_step_params, new_m), false, 1);
    step_bind(seq, graph, node, offsetof(hth_step_params, new_v), false, adam ? 2 : -1);
    step_bind(seq, graph, node, offsetof(hth_step_params, copy), false, copy);
    seq->moved_bytes += rounded != NULL ? hth_cuda_bytes(rounded) : 0;
    seq->moved_bytes += (size_t)count * sizeof(float) * (adam ? 7 : 5);
    return HTH_OK;
}

hth_err hth_cuda_dropout(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    float ratio = hth_node_float(node, "ratio", 0.5f);
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    uint32_t count = hth_cuda_count(x);
    hth_dropout_params p = {.n = count,
                            .half_x = hth_cuda_half(x),
                            .half_y = hth_cuda_half(y),
                            .scale = ratio < 1 ? (float)(1 / (1 - (double)ratio)) : 0,
                            .salt = (uint64_t)hth_node_int(node, "salt", 0),
                            .threshold = hth_dropout_threshold(ratio)};
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    hth_cuda_launch_add(seq, HTH_CUDA_hth_dropout, hth_cuda_blocks(seq, (count + 3) / 4, true), 0,
                        0, &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_dropout_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_dropout_params, y), HTH_CUDA_OUT, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_dropout_params, step), HTH_CUDA_IN, 1, 0);
    seq->base.inplace_input = x->dtype == y->dtype ? 0 : -1;
    seq->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y);
    return HTH_OK;
}
