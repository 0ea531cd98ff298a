// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_loss.c - losses and their gradients, softmax's gradients.
//
// The losses are PyTorch's with reduction "mean": cross-entropy over the labels that are not
// ignore_index (none left: 0 / 0), mean squared error over all elements.
#include "kernels/ref/ref_num.h"

#include <math.h>

static hth_err softmax_grad_body(ref_mem *m, const hth_node *n, const hth_tensor *in,
                                 hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int axis = ref_axis(hth_node_int(n, "axis", -1), s->rank);
    bool logs = n->op == HTH_OP_LOG_SOFTMAX_GRAD;
    int64_t outer, along, inner;
    double *dy, *y;
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    ref_around(s, axis, &outer, &along, &inner);
    if (hth_node_int(n, "flatten", 0)) {
        along *= inner;
        inner = 1;
    }
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(m, &in[0], &dy));
    HTH_TRY(ref_wide(m, &in[1], &y));
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

// The number of labels that count; HTH_EINVAL: one is neither a class nor ignored.
static hth_err xent_labels(const hth_tensor *labels, int64_t classes, int64_t ignore, int64_t *n)
{
    *n = 0;
    for (int64_t i = 0; i < ref_count(labels); i++) {
        int64_t label = ref_get_i64(labels->dtype, labels->data, i);
        if (label != ignore && (label < 0 || label >= classes)) {
            return hth_fail(HTH_EINVAL, "label %lld is outside of %lld classes", (long long)label,
                            (long long)classes);
        }
        *n += label != ignore;
    }
    return HTH_OK;
}

static hth_err softmax_xent_body(ref_mem *m, const hth_node *n, const hth_tensor *in,
                                 hth_tensor *out)
{
    bool grad = n->op == HTH_OP_SOFTMAX_XENT_GRAD;
    int64_t ignore = hth_node_int(n, "ignore_index", -100), counted, outer, classes, inner;
    double *x, *row, loss = 0;
    HTH_TRY(ref_need_rank(&in[0], 2));
    ref_around(&in[0].shape, 1, &outer, &classes, &inner);
    HTH_TRY(ref_need_count(&in[1], outer * inner));
    HTH_TRY(xent_labels(&in[1], classes, ignore, &counted));
    HTH_TRY(ref_wide(m, &in[0], &x));
    HTH_TRY(REF_TAKE(m, classes, &row));
    for (int64_t i = 0; i < outer * inner; i++) {
        double *first = x + i / inner * classes * inner + i % inner;
        int64_t label = ref_get_i64(in[1].dtype, in[1].data, i);
        double max = -INFINITY, sum = 0;
        for (int64_t k = 0; k < classes; k++) {
            max = fmax(max, first[k * inner]);
        }
        for (int64_t k = 0; k < classes; k++) {
            row[k] = exp(first[k * inner] - max);
            sum += row[k];
        }
        loss += label == ignore ? 0 : log(sum) + max - first[label * inner];
        for (int64_t k = 0; k < classes; k++) {
            double g = (row[k] / sum - (k == label)) / (double)counted;
            first[k * inner] = label == ignore ? 0 : g;
        }
    }
    loss /= (double)counted;
    ref_round(grad ? x : &loss, &out[0]);
    return HTH_OK;
}

static hth_err mse_body(ref_mem *m, const hth_node *n, const hth_tensor *in, hth_tensor *out)
{
    int64_t count = ref_count(&in[0]);
    double *y, *target, loss = 0;
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(m, &in[0], &y));
    HTH_TRY(ref_wide(m, &in[1], &target));
    for (int64_t i = 0; i < count; i++) {
        double d = y[i] - target[i];
        loss += d * d / (double)count;
        y[i] = 2 * d / (double)count;
    }
    ref_round(n->op == HTH_OP_MSE_GRAD ? y : &loss, &out[0]);
    return HTH_OK;
}

REF_OP(ref_softmax_grad, softmax_grad_body)
REF_OP(ref_softmax_xent, softmax_xent_body)
REF_OP(ref_mse, mse_body)
