// SPDX-License-Identifier: Apache-2.0
// The ends of a training step: losses, the factor that clips gradients, optimizers, dropout. All
// sums have one order.
#include "kernels/cuda/seq.h"

#include "base/compare.h"
#include "kernels/philox.h"

#define TRAIN_THREADS 256u
#define TRAIN_PARTS   256u // blocks of a sum of squares
#define TRAIN_FOLDS   ((TRAIN_THREADS + 2 * HTH_FOLD) * sizeof(float))

static hth_err xent_params(const hth_graph *g, const hth_node *n, hth_xent_params *p)
{
    const hth_value *x = hth_cuda_in(g, n, 0), *labels = hth_cuda_in(g, n, 1),
                    *weights = hth_cuda_in(g, n, 2);
    bool grad = n->op == HTH_OP_SOFTMAX_XENT_GRAD;
    uint32_t outer;
    HTH_TRY(hth_cuda_need_f32(g, n, 1, grad ? 0 : 1));
    HTH_TRY(hth_cuda_need_float(g, n, 1, 1));
    p->half = grad && hth_cuda_half(hth_cuda_out(g, n, 0));
    if ((labels->dtype != HTH_DT_I64 && labels->dtype != HTH_DT_I32) || x->shape.rank < 2 ||
        hth_cuda_count(x) == 0) {
        return hth_fail(HTH_ENOTSUP, "labels are %s", hth_dtype_name(labels->dtype));
    }
    HTH_TRY(hth_cuda_axis(n, &x->shape, 1, &outer, &p->classes, &p->inner));
    if (weights != NULL &&
        (weights->dtype != HTH_DT_F32 || hth_cuda_count(weights) != p->classes)) {
        return hth_fail(HTH_ENOTSUP, "weights are not one FP32 per class");
    }
    p->wide = labels->dtype == HTH_DT_I64;
    p->n_rows = hth_cuda_count(labels);
    p->ignore = hth_node_int(n, "ignore_index", -100);
    p->smoothing = hth_node_float(n, "smoothing", 0);
    return HTH_OK;
}

static void loss_bind(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, size_t at, int input)
{
    if (hth_cuda_in(g, n, input) != NULL) {
        hth_cuda_bind(s, at, HTH_CUDA_IN, input, 0);
    }
}

static void xent_add(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, hth_cuda_kernel_id id,
                     const hth_xent_params *p, bool one, size_t counted)
{
    unsigned threads = one ? TRAIN_THREADS : hth_cuda_row_threads(p->classes);
    hth_cuda_launch_add(s, id, one ? 1 : p->n_rows, threads,
                        (3 * threads + 3 * HTH_FOLD) * sizeof(float), p, sizeof *p);
    hth_cuda_bind(s, offsetof(hth_xent_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_xent_params, labels), HTH_CUDA_IN, 1, 0);
    loss_bind(s, g, n, offsetof(hth_xent_params, weights), 2);
    loss_bind(s, g, n, offsetof(hth_xent_params, hyper), 3);
    hth_cuda_bind(s, offsetof(hth_xent_params, counted), HTH_CUDA_WS, 0, counted);
}

hth_err hth_cuda_xent(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const char *algorithm)
{
    hth_xent_params p = {.n_rows = 0};
    HTH_TRY(xent_params(g, n, &p));
    size_t counted = hth_cuda_workspace(s, 2 * sizeof(float));
    if (n->op == HTH_OP_SOFTMAX_XENT_GRAD) {
        xent_add(s, g, n, HTH_CUDA_hth_xent_sum, &p, true, counted);
        xent_add(s, g, n, HTH_CUDA_hth_xent_grad, &p, false, counted);
        hth_cuda_bind(s, offsetof(hth_xent_params, out), HTH_CUDA_OUT, 0, 0);
    } else {
        size_t rows = hth_cuda_workspace(s, p.n_rows * sizeof(float));
        xent_add(s, g, n, HTH_CUDA_hth_xent_rows, &p, false, counted);
        hth_cuda_bind(s, offsetof(hth_xent_params, rows), HTH_CUDA_WS, 0, rows);
        xent_add(s, g, n, HTH_CUDA_hth_xent_sum, &p, true, counted);
        hth_cuda_bind(s, offsetof(hth_xent_params, rows), HTH_CUDA_WS, 0, rows);
        hth_cuda_bind(s, offsetof(hth_xent_params, out), HTH_CUDA_OUT, 0, 0);
    }
    s->moved_bytes += 2 * hth_cuda_bytes(hth_cuda_in(g, n, 0));
    return HTH_OK;
}

// Sums of squares of input a (minus input b, if >= 0) into parts of the workspace; returns how
// many.
static uint32_t squares_add(hth_cuda_seq *s, uint32_t n, int a, int b, size_t parts)
{
    uint32_t blocks = (n + 4 * TRAIN_THREADS - 1) / (4 * TRAIN_THREADS);
    blocks = (uint32_t)hth_clamp(blocks, 1, TRAIN_PARTS);
    hth_squares_params p = {.n = n};
    hth_cuda_launch_add(s, HTH_CUDA_hth_squares, blocks, TRAIN_THREADS, TRAIN_FOLDS, &p, sizeof p);
    hth_cuda_bind(s, offsetof(hth_squares_params, a), HTH_CUDA_IN, a, 0);
    if (b >= 0) {
        hth_cuda_bind(s, offsetof(hth_squares_params, b), HTH_CUDA_IN, b, 0);
    }
    hth_cuda_bind(s, offsetof(hth_squares_params, part), HTH_CUDA_WS, 0, parts);
    return blocks;
}

static void squares_end(hth_cuda_seq *s, const hth_squares_params *p, size_t parts)
{
    hth_cuda_launch_add(s, HTH_CUDA_hth_squares_sum, 1, TRAIN_THREADS, TRAIN_FOLDS, p, sizeof *p);
    hth_cuda_bind(s, offsetof(hth_squares_params, part), HTH_CUDA_WS, 0, parts);
    hth_cuda_bind(s, offsetof(hth_squares_params, out), HTH_CUDA_OUT, 0, 0);
}

hth_err hth_cuda_mse(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const char *algorithm)
{
    uint32_t count = hth_cuda_count(hth_cuda_in(g, n, 0));
    hth_squares_params p = {.n = count, .factor = count > 0 ? 1 / (float)count : 0};
    bool grad = n->op == HTH_OP_MSE_GRAD;
    HTH_TRY(hth_cuda_need_f32(g, n, 2, grad ? 0 : 1));
    HTH_TRY(hth_cuda_need_float(g, n, 2, 1));
    s->moved_bytes += 2 * (size_t)count * sizeof(float);
    if (grad) {
        p.half = hth_cuda_half(hth_cuda_out(g, n, 0));
        s->moved_bytes += hth_cuda_bytes(hth_cuda_out(g, n, 0));
        hth_cuda_launch_add(s, HTH_CUDA_hth_mse_grad, hth_cuda_blocks(s, count, true), 0, 0, &p,
                            sizeof p);
        hth_cuda_bind(s, offsetof(hth_squares_params, a), HTH_CUDA_IN, 0, 0);
        hth_cuda_bind(s, offsetof(hth_squares_params, b), HTH_CUDA_IN, 1, 0);
        hth_cuda_bind(s, offsetof(hth_squares_params, out), HTH_CUDA_OUT, 0, 0);
        return HTH_OK;
    }
    size_t parts = hth_cuda_workspace(s, TRAIN_PARTS * sizeof(float));
    p.n_parts = squares_add(s, count, 0, 1, parts);
    squares_end(s, &p, parts);
    return HTH_OK;
}

static hth_err bce_params(const hth_graph *g, const hth_node *n, hth_bce_params *p)
{
    const hth_value *x = hth_cuda_in(g, n, 0), *weights = hth_cuda_in(g, n, 2);
    uint32_t outer;
    HTH_TRY(hth_cuda_need_f32(g, n, 3, n->op == HTH_OP_BCE_GRAD ? 0 : 1));
    HTH_TRY(hth_cuda_need_float(g, n, 3, 1));
    p->n = hth_cuda_count(x);
    p->classes = p->inner = 1;
    p->factor = p->n > 0 ? 1 / (float)p->n : 0;
    if (weights == NULL || hth_cuda_count(weights) == 1) {
        return HTH_OK;
    }
    HTH_TRY(hth_cuda_axis(n, &x->shape, 1, &outer, &p->classes, &p->inner));
    return hth_cuda_count(weights) == p->classes
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "weights are not one per class");
}

hth_err hth_cuda_bce(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const char *algorithm)
{
    hth_bce_params p = {.n = 0};
    HTH_TRY(bce_params(g, n, &p));
    bool grad = n->op == HTH_OP_BCE_GRAD;
    uint32_t blocks = (p.n + TRAIN_THREADS - 1) / TRAIN_THREADS;
    blocks = blocks == 0 ? 1 : blocks > TRAIN_PARTS ? TRAIN_PARTS : blocks;
    size_t parts = grad ? 0 : hth_cuda_workspace(s, TRAIN_PARTS * sizeof(float));
    s->moved_bytes += 2 * (size_t)p.n * sizeof(float);
    if (grad) {
        p.half = hth_cuda_half(hth_cuda_out(g, n, 0));
        s->moved_bytes += hth_cuda_bytes(hth_cuda_out(g, n, 0));
        hth_cuda_launch_add(s, HTH_CUDA_hth_bce_grad, hth_cuda_blocks(s, p.n, true), 0, 0, &p,
                            sizeof p);
        hth_cuda_bind(s, offsetof(hth_bce_params, out), HTH_CUDA_OUT, 0, 0);
    } else {
        hth_cuda_launch_add(s, HTH_CUDA_hth_bce, blocks, TRAIN_THREADS, TRAIN_FOLDS, &p, sizeof p);
        hth_cuda_bind(s, offsetof(hth_bce_params, part), HTH_CUDA_WS, 0, parts);
    }
    hth_cuda_bind(s, offsetof(hth_bce_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_bce_params, y), HTH_CUDA_IN, 1, 0);
    loss_bind(s, g, n, offsetof(hth_bce_params, weights), 2);
    if (!grad) {
        squares_end(s, &(hth_squares_params){.n_parts = blocks, .factor = p.factor}, parts);
    }
    return HTH_OK;
}

hth_err hth_cuda_clip_scale(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                            const char *algorithm)
{
    hth_squares_params p = {.max_norm = hth_node_float(n, "max_norm", 1)};
    HTH_TRY(hth_cuda_need_f32(g, n, n->n_inputs, 1));
    size_t parts = hth_cuda_workspace(s, (size_t)n->n_inputs * TRAIN_PARTS * sizeof(float));
    for (int i = 1; i < n->n_inputs; i++) {
        uint32_t count = hth_cuda_count(hth_cuda_in(g, n, i));
        p.n_parts += squares_add(s, count, i, -1, parts + p.n_parts * sizeof(float));
        s->moved_bytes += count * sizeof(float);
    }
    squares_end(s, &p, parts);
    hth_cuda_bind(s, offsetof(hth_squares_params, hyper), HTH_CUDA_IN, 0, 0);
    return HTH_OK;
}

static void step_bind(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, size_t at, bool in,
                      int index)
{
    if (index >= 0 && (in ? hth_cuda_in(g, n, index) : hth_cuda_out(g, n, index)) != NULL) {
        hth_cuda_bind(s, at, in ? HTH_CUDA_IN : HTH_CUDA_OUT, index, 0);
    }
}

// SgdStep: p, g, momentum?, hyper, clip?, copy?. AdamStep: p, g, m, v, hyper, clip?, copy?. The
// last output that each may have is the new parameter in bf16, which takes the place of `copy`.
hth_err hth_cuda_step_op(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                         const char *algorithm)
{
    bool adam = n->op == HTH_OP_ADAM_STEP;
    int copy = adam ? 3 : 2, hyper = copy + 1;
    const hth_value *rounded = hth_cuda_out(g, n, copy);
    uint32_t count = hth_cuda_count(hth_cuda_in(g, n, 0));
    hth_step_params p = {.n = count,
                         .flag = hth_node_int(n, adam ? "decoupled" : "nesterov", 0) != 0};
    HTH_TRY(hth_cuda_need_f32(g, n, hyper + 2, copy));
    if (rounded != NULL && rounded->dtype != HTH_DT_BF16) {
        return hth_fail(HTH_ENOTSUP, "a copy that is %s", hth_dtype_name(rounded->dtype));
    }
    if (rounded != NULL && rounded->layout == HTH_LAYOUT_NHWC) {
        p.rows = (uint32_t)rounded->shape.dim[1];
        p.cols = count / p.rows / (uint32_t)rounded->shape.dim[0];
    }
    hth_cuda_launch_add(s, adam ? HTH_CUDA_hth_adam : HTH_CUDA_hth_sgd,
                        hth_cuda_blocks(s, (count + 3) / 4, true), 0, 0, &p, sizeof p);
    step_bind(s, g, n, offsetof(hth_step_params, p), true, 0);
    step_bind(s, g, n, offsetof(hth_step_params, g), true, 1);
    step_bind(s, g, n, offsetof(hth_step_params, m), true, 2);
    step_bind(s, g, n, offsetof(hth_step_params, v), true, adam ? 3 : -1);
    step_bind(s, g, n, offsetof(hth_step_params, hyper), true, hyper);
    step_bind(s, g, n, offsetof(hth_step_params, clip), true, hyper + 1);
    step_bind(s, g, n, offsetof(hth_step_params, new_p), false, 0);
    step_bind(s, g, n, offsetof(hth_step_params, new_m), false, 1);
    step_bind(s, g, n, offsetof(hth_step_params, new_v), false, adam ? 2 : -1);
    step_bind(s, g, n, offsetof(hth_step_params, copy), false, copy);
    s->moved_bytes += rounded != NULL ? hth_cuda_bytes(rounded) : 0;
    s->moved_bytes += (size_t)count * sizeof(float) * (adam ? 7 : 5);
    return HTH_OK;
}

hth_err hth_cuda_dropout(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                         const char *algorithm)
{
    float ratio = hth_node_float(n, "ratio", 0.5f);
    const hth_value *x = hth_cuda_in(g, n, 0), *y = hth_cuda_out(g, n, 0);
    uint32_t count = hth_cuda_count(x);
    hth_dropout_params p = {.n = count,
                            .half_x = hth_cuda_half(x),
                            .half_y = hth_cuda_half(y),
                            .scale = ratio < 1 ? (float)(1 / (1 - (double)ratio)) : 0,
                            .salt = (uint64_t)hth_node_int(n, "salt", 0),
                            .threshold = hth_dropout_threshold(ratio)};
    HTH_TRY(hth_cuda_need_float(g, n, 1, 1));
    hth_cuda_launch_add(s, HTH_CUDA_hth_dropout, hth_cuda_blocks(s, (count + 3) / 4, true), 0, 0,
                        &p, sizeof p);
    hth_cuda_bind(s, offsetof(hth_dropout_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_dropout_params, y), HTH_CUDA_OUT, 0, 0);
    hth_cuda_bind(s, offsetof(hth_dropout_params, step), HTH_CUDA_IN, 1, 0);
    s->base.inplace_input = x->dtype == y->dtype ? 0 : -1;
    s->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y);
    return HTH_OK;
}
