// SPDX-License-Identifier: Apache-2.0
// graph/infer_train.c - the operators of a training step.
//
// Only autodiff writes them, from nodes whose shapes are known; the rules keep kernels from reading
// outside of their tensors whatever a pass did in between.
#include "graph/infer.h"

// Gradients whose size the inputs do not say: attribute `shape`.
hth_err hth_infer_attr_shape(hth_infer *infer)
{
    int64_t dim[HTH_MAX_RANK];
    hth_shape s = {0};
    int count;
    HTH_TRY(hth_infer_attr(infer, "shape", dim, HTH_MAX_RANK, &count));
    if (count < 0) {
        return hth_infer_fail(infer, HTH_EINVAL, "attribute 'shape' is missing");
    }
    for (int i = 0; i < count; i++) {
        HTH_TRY(hth_infer_push(infer, &s, dim[i]));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

// x [N, C, ..], dy [N, M, ..] -> dw [M, C / group, kernel_shape..], db [M]
hth_err hth_infer_conv_grad_filter(hth_infer *infer)
{
    int64_t kernel[HTH_MAX_RANK], group = hth_node_int(infer->n, "group", 1);
    int count;
    const hth_shape *x = hth_infer_shape(infer, 0), *dy = hth_infer_shape(infer, 1);
    HTH_TRY(hth_infer_rank(infer, 0, 3, HTH_MAX_RANK));
    HTH_TRY(hth_infer_attr(infer, "kernel_shape", kernel, HTH_MAX_RANK - 2, &count));
    if (x->rank != dy->rank || x->dim[0] != dy->dim[0] || count != x->rank - 2 || group < 1 ||
        x->dim[1] % group != 0 || dy->dim[1] % group != 0) {
        return hth_infer_disagree(infer, "X", 0, "dY", 1);
    }
    hth_shape s = {.rank = x->rank, .dim = {dy->dim[1], x->dim[1] / group}};
    for (int i = 0; i < count; i++) {
        s.dim[i + 2] = kernel[i];
    }
    HTH_TRY(hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s));
    return hth_infer_out(infer, 1, hth_infer_dtype(infer, 0), &(hth_shape){1, {dy->dim[1]}});
}

hth_err hth_infer_max_pool_train(hth_infer *infer)
{
    int64_t kernel[HTH_MAX_RANK], taps = 1;
    int count;
    HTH_TRY(hth_infer_pool(infer));
    HTH_TRY(hth_infer_attr(infer, "kernel_shape", kernel, HTH_MAX_RANK - 2, &count));
    for (int i = 0; i < count; i++) {
        if (hth_dim_mul(taps, kernel[i], &taps) || taps > UINT8_MAX) {
            return hth_infer_fail(infer, HTH_ENOTSUP, "its window has more than 255 positions");
        }
    }
    const hth_shape s = infer->g->values[infer->n->outputs[0]].shape;
    return hth_infer_out(infer, 1, HTH_DT_U8, &s);
}

hth_err hth_infer_batch_norm_train(hth_infer *infer)
{
    HTH_TRY(hth_infer_channels(infer));
    for (int i = 1; i < 5; i++) {
        if (!hth_shape_equal(hth_infer_shape(infer, i), hth_infer_shape(infer, 1))) {
            return hth_infer_disagree(infer, "scale", 1, "a parameter per channel", i);
        }
        HTH_TRY(hth_infer_out(infer, i, hth_infer_dtype(infer, i), hth_infer_shape(infer, i)));
    }
    return HTH_OK;
}

hth_err hth_infer_first_of_two(hth_infer *infer)
{
    if (!hth_shape_equal(hth_infer_shape(infer, 0), hth_infer_shape(infer, 1))) {
        return hth_infer_disagree(infer, "dY", 0, "Y", 1);
    }
    return hth_infer_same(infer);
}

// dy, x, scale, .. -> dx, dscale, dbias
hth_err hth_infer_norm_grad(hth_infer *infer)
{
    HTH_TRY(hth_infer_first_of_two(infer));
    HTH_TRY(hth_infer_out(infer, 1, hth_infer_dtype(infer, 2), hth_infer_shape(infer, 2)));
    return hth_infer_out(infer, 2, hth_infer_dtype(infer, 2), hth_infer_shape(infer, 2));
}

// a, w, bias, scale, .. -> y, of which attribute `shape` tells the shape, and parameters
hth_err hth_infer_conv_norm_train(hth_infer *infer)
{
    HTH_TRY(hth_infer_attr_shape(infer));
    for (int i = 1; i < 5; i++) {
        HTH_TRY(hth_infer_out(infer, i, hth_infer_dtype(infer, 3), hth_infer_shape(infer, 3)));
    }
    return HTH_OK;
}

// dy, a, w, bias, scale, .. -> dx, dscale, dbias
hth_err hth_infer_conv_norm_grad(hth_infer *infer)
{
    HTH_TRY(hth_infer_same(infer));
    HTH_TRY(hth_infer_out(infer, 1, hth_infer_dtype(infer, 4), hth_infer_shape(infer, 4)));
    return hth_infer_out(infer, 2, hth_infer_dtype(infer, 4), hth_infer_shape(infer, 4));
}

// A loss is a scalar; its gradient is like what it compares.
static hth_err loss_or_grad(hth_infer *infer, bool grad)
{
    return grad ? hth_infer_same(infer)
                : hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &(hth_shape){.rank = 0});
}

// Weights are a vector along the axis of the classes; `one`: or a single element.
static hth_err loss_weights(hth_infer *infer, int axis, bool one)
{
    if (!hth_infer_has(infer, 2)) {
        return HTH_OK;
    }
    const hth_shape *w = hth_infer_shape(infer, 2);
    int64_t classes = axis < 0 ? 1 : hth_infer_shape(infer, 0)->dim[axis];
    bool single = one && w->rank == 1 && w->dim[0] == 1;
    if (!single && (w->rank != 1 || w->dim[0] != classes)) {
        return hth_infer_disagree(infer, "logits", 0, "weights", 2);
    }
    return hth_infer_same_dtype(infer, 0, 2);
}

// The attribute `axis` of the classes, counted from the front; -1: the logits have no such axis.
static int loss_axis(hth_infer *infer)
{
    int rank = hth_infer_shape(infer, 0)->rank;
    int64_t axis = hth_node_int(infer->n, "axis", 1);
    axis += axis < 0 ? rank : 0;
    return axis >= 0 && axis < rank ? (int)axis : -1;
}

// logits [.., C, ..] with the classes along `axis`; labels like them, without it
hth_err hth_infer_xent(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 2, HTH_MAX_RANK));
    const hth_shape *x = hth_infer_shape(infer, 0), *labels = hth_infer_shape(infer, 1);
    int axis = loss_axis(infer);
    bool agree = labels->rank == x->rank - 1 && axis >= 0;
    for (int i = 0; agree && i < labels->rank; i++) {
        agree = labels->dim[i] == x->dim[i < axis ? i : i + 1];
    }
    if (!agree) {
        return hth_infer_disagree(infer, "logits", 0, "labels", 1);
    }
    if (hth_infer_dtype(infer, 1) != HTH_DT_I64 && hth_infer_dtype(infer, 1) != HTH_DT_I32) {
        return hth_infer_fail(infer, HTH_EINVAL, "labels are %s, expected INT64 or INT32",
                              hth_dtype_name(hth_infer_dtype(infer, 1)));
    }
    HTH_TRY(loss_weights(infer, axis, false));
    return loss_or_grad(infer, infer->n->op == HTH_OP_SOFTMAX_XENT_GRAD);
}

hth_err hth_infer_bce(hth_infer *infer)
{
    HTH_TRY(hth_infer_same_dtype(infer, 0, 1));
    if (!hth_shape_equal(hth_infer_shape(infer, 0), hth_infer_shape(infer, 1))) {
        return hth_infer_disagree(infer, "logits", 0, "target", 1);
    }
    HTH_TRY(loss_weights(infer, loss_axis(infer), true));
    return loss_or_grad(infer, infer->n->op == HTH_OP_BCE_GRAD);
}

hth_err hth_infer_mse(hth_infer *infer)
{
    HTH_TRY(hth_infer_same_dtype(infer, 0, 1));
    if (!hth_shape_equal(hth_infer_shape(infer, 0), hth_infer_shape(infer, 1))) {
        return hth_infer_disagree(infer, "output", 0, "target", 1);
    }
    return loss_or_grad(infer, infer->n->op == HTH_OP_MSE_GRAD);
}

// dy, operands.. -> their gradients
hth_err hth_infer_like_operands(hth_infer *infer)
{
    for (int i = 0; i < infer->n->n_outputs; i++) {
        HTH_TRY(
            hth_infer_out(infer, i, hth_infer_dtype(infer, i + 1), hth_infer_shape(infer, i + 1)));
    }
    return HTH_OK;
}

// Each gradient is like the input that it belongs to.
hth_err hth_infer_rnn_grad(hth_infer *infer)
{
    for (int i = 0; i < 6; i++) {
        if (hth_infer_has(infer, i)) {
            HTH_TRY(hth_infer_out(infer, i, hth_infer_dtype(infer, i), hth_infer_shape(infer, i)));
        } else if (i < infer->n->n_outputs && infer->n->outputs[i] >= 0) {
            HTH_TRY(hth_infer_out(infer, i, hth_infer_dtype(infer, 0), &(hth_shape){1, {0}}));
        }
    }
    return HTH_OK;
}

hth_err hth_infer_clip_scale(hth_infer *infer)
{
    return hth_infer_out(infer, 0, HTH_DT_F32, &(hth_shape){1, {1}});
}

// param, grad, state.., hyper, clip, copy -> param', state'.., param' in bf16
hth_err hth_infer_step(hth_infer *infer)
{
    if (!hth_shape_equal(hth_infer_shape(infer, 0), hth_infer_shape(infer, 1))) {
        return hth_infer_disagree(infer, "parameter", 0, "gradient", 1);
    }
    int copy = infer->n->op == HTH_OP_ADAM_STEP ? 3 : 2;
    for (int i = 0; i < infer->n->n_outputs; i++) {
        hth_dtype dt = i == copy ? HTH_DT_BF16 : hth_infer_dtype(infer, 0);
        HTH_TRY(hth_infer_out(infer, i, dt, hth_infer_shape(infer, 0)));
    }
    return HTH_OK;
}
