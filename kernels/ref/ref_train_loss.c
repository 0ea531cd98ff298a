// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_loss.c - losses and their gradients, softmax's gradients.
//
// The losses are PyTorch's with reduction "mean": cross-entropy over the labels that are not
// ignore_index, divided by their weights (where those are 0 it is 0: train.h); mean squared error
// and binary cross-entropy over all elements.
#include "graph/autodiff/train_hyper.h"
#include "kernels/ref/ref_num.h"

#include <math.h>

static hth_err softmax_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                 hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int axis = ref_axis(hth_node_int(node, "axis", -1), s->rank);
    bool logs = node->op == HTH_OP_LOG_SOFTMAX_GRAD;
    int64_t outer, along, inner;
    double *dy, *y;
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    ref_around(s, axis, &outer, &along, &inner);
    if (hth_node_int(node, "flatten", 0)) {
        along *= inner;
        inner = 1;
    }
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(ref_wide(mem, &in[1], &y));
    for (int64_t i = 0; i < outer * inner; i++) {
        int64_t first = i / inner * along * inner + i % inner;
        double sum = 0;
        for (int64_t k = first; k < first + along * inner; k += inner) {
            sum += logs ? dy[k] : dy[k] * y[k];
        }
        for (int64_t k = first; k < first + along * inner; k += inner) {
            dy[k] = logs ? dy[k] - exp(y[k]) * sum : y[k] * (dy[k] - sum);
        }
    }
    ref_round(dy, &out[0]);
    return HTH_OK;
}

typedef struct xent {
    int64_t classes, inner, ignore;
    double smoothing, norm; // norm: what the sum is divided by
    double *weights;        // of the classes
    double total;           // their sum
} xent;

// The weights of the labels; HTH_EINVAL: one is neither a class nor ignored.
static hth_err xent_labels(const hth_tensor *labels, const xent *x, double *sum)
{
    *sum = 0;
    for (int64_t i = 0; i < ref_count(labels); i++) {
        int64_t label = ref_get_i64(labels->dtype, labels->data, i);
        if (label != x->ignore && (label < 0 || label >= x->classes)) {
            return hth_fail(HTH_EINVAL, "label %lld is outside of %lld classes", (long long)label,
                            (long long)x->classes);
        }
        *sum += label != x->ignore ? x->weights[label] : 0;
    }
    return HTH_OK;
}

static hth_err xent_open(ref_mem *mem, const hth_node *node, const hth_tensor *in, xent *x,
                         int64_t *rows)
{
    int axis = ref_axis(hth_node_int(node, "axis", 1), in[0].shape.rank);
    int64_t outer;
    HTH_TRY(ref_need_rank(&in[0], 2));
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    x->ignore = hth_node_int(node, "ignore_index", -100);
    x->smoothing = (double)hth_node_float(node, "smoothing", 0);
    ref_around(&in[0].shape, axis, &outer, &x->classes, &x->inner);
    *rows = outer * x->inner;
    HTH_TRY(ref_need_count(&in[1], *rows));
    if (node->n_inputs > 2 && node->inputs[2] >= 0) {
        HTH_TRY(ref_need_count(&in[2], x->classes));
        HTH_TRY(ref_wide(mem, &in[2], &x->weights));
    } else {
        HTH_TRY(REF_TAKE(mem, x->classes, &x->weights));
        for (int64_t k = 0; k < x->classes; k++) {
            x->weights[k] = 1;
        }
    }
    for (int64_t k = 0; k < x->classes; k++) {
        x->total += x->weights[k];
    }
    HTH_TRY(xent_labels(&in[1], x, &x->norm));
    if (node->n_inputs > 3 && node->inputs[3] >= 0) {
        x->norm = ref_f64_at(&in[3], HTH_HYPER_LOSS_NORM);
    }
    x->norm = x->norm == 0 ? INFINITY : x->norm;
    return HTH_OK;
}

// The loss of one position, whose logits become their gradients.
static double xent_row(const xent *x, double *first, double *row, int64_t label)
{
    double max = -INFINITY, sum = 0, loss = 0, even = x->smoothing / (double)x->classes;
    for (int64_t k = 0; k < x->classes; k++) {
        max = fmax(max, first[k * x->inner]);
    }
    for (int64_t k = 0; k < x->classes; k++) {
        row[k] = exp(first[k * x->inner] - max);
        sum += row[k];
    }
    for (int64_t k = 0; k < x->classes; k++) {
        double own = k == label ? (1 - x->smoothing) * x->weights[k] : 0;
        double share = own + even * x->weights[k];
        loss += share != 0 ? share * (log(sum) + max - first[k * x->inner]) : 0;
        row[k] /= sum;
        first[k * x->inner] = -share;
    }
    double all = (1 - x->smoothing) * x->weights[label] + even * x->total;
    for (int64_t k = 0; k < x->classes; k++) {
        first[k * x->inner] = (all * row[k] + first[k * x->inner]) / x->norm;
    }
    return loss;
}

static hth_err softmax_xent_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                 hth_tensor *out)
{
    xent x = {.norm = 0};
    int64_t rows = 0;
    double *logits, *row;
    double loss = 0;
    HTH_TRY(xent_open(mem, node, in, &x, &rows));
    HTH_TRY(ref_wide(mem, &in[0], &logits));
    HTH_TRY(REF_TAKE(mem, x.classes, &row));
    for (int64_t i = 0; i < rows; i++) {
        double *first = logits + i / x.inner * x.classes * x.inner + i % x.inner;
        int64_t label = ref_get_i64(in[1].dtype, in[1].data, i);
        if (label != x.ignore) {
            loss += xent_row(&x, first, row, label);
            continue;
        }
        for (int64_t k = 0; k < x.classes; k++) {
            first[k * x.inner] = 0;
        }
    }
    loss /= x.norm;
    ref_round(node->op == HTH_OP_SOFTMAX_XENT_GRAD ? logits : &loss, &out[0]);
    return HTH_OK;
}

// Binary cross-entropy of the sigmoid, the positive part weighted. 1 - sigmoid(x) and the logarithm
// of both come from exp(-|x|), which never overflows.
static hth_err bce_body(ref_mem *mem, const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int axis = ref_axis(hth_node_int(node, "axis", 1), s->rank);
    bool weighted = node->n_inputs > 2 && node->inputs[2] >= 0;
    bool each = weighted && ref_count(&in[2]) > 1;
    int64_t count = ref_count(&in[0]), outer, classes = 1, inner = count;
    double *x, *target, *weights = NULL;
    double loss = 0;
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    if (each && axis < 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    if (each) {
        ref_around(s, axis, &outer, &classes, &inner);
        HTH_TRY(ref_need_count(&in[2], classes));
    }
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(ref_wide(mem, &in[1], &target));
    HTH_TRY(weighted ? ref_wide(mem, &in[2], &weights) : HTH_OK);
    for (int64_t i = 0; i < count; i++) {
        int64_t class = each ? i / inner % classes : 0;
        double w = weighted ? weights[class] : 1;
        double positive = w * target[i], negative = 1 - target[i], e = exp(-fabs(x[i]));
        double under = x[i] < 0 ? 1 / (1 + e) : e / (1 + e); // 1 - sigmoid
        loss += (negative * fmax(x[i], 0) + positive * fmax(-x[i], 0) +
                 (negative + positive) * log1p(e)) /
                (double)count;
        x[i] = (negative * (1 - under) - positive * under) / (double)count;
    }
    ref_round(node->op == HTH_OP_BCE_GRAD ? x : &loss, &out[0]);
    return HTH_OK;
}

static hth_err mse_body(ref_mem *mem, const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    int64_t count = ref_count(&in[0]);
    double *y, *target;
    double loss = 0;
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &y));
    HTH_TRY(ref_wide(mem, &in[1], &target));
    for (int64_t i = 0; i < count; i++) {
        double d = y[i] - target[i];
        loss += d * d / (double)count;
        y[i] = 2 * d / (double)count;
    }
    ref_round(node->op == HTH_OP_MSE_GRAD ? y : &loss, &out[0]);
    return HTH_OK;
}

REF_OP(ref_softmax_grad, softmax_grad_body)
REF_OP(ref_softmax_xent, softmax_xent_body)
REF_OP(ref_mse, mse_body)
REF_OP(ref_bce, bce_body)
