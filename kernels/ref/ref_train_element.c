// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_element.c - gradients of element-wise operators, and dropout in training.
//
// ElementGrad computes dy * f'. What f' is computed from, f's result or its input, is
// hth_grad_reads_result's choice: the result where it says as much, because a result may be
// computed in place of its input.
#include "graph/autodiff/train.h"
#include "kernels/philox.h"
#include "kernels/ref/ref_num.h"

#include <math.h>

static hth_err relu_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                              hth_tensor *out)
{
    float low = hth_node_float(node, "low", 0), high = hth_node_float(node, "high", INFINITY);
    double *dy, *y, *more = NULL;
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(ref_wide(mem, &in[1], &y));
    if (ref_in(node, in, 2) != NULL) {
        HTH_TRY(ref_need_same(&in[2], &in[0]));
        HTH_TRY(ref_wide(mem, &in[2], &more));
    }
    for (int64_t i = 0; i < ref_count(&in[0]); i++) {
        double sum = dy[i] + (more != NULL ? more[i] : 0);
        dy[i] = y[i] > low && y[i] < high ? sum : 0;
    }
    ref_round(dy, &out[0]);
    return HTH_OK;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_slope(double x, bool tanh_form)
{
    const double pi = 3.14159265358979323846, k = sqrt(2 / pi), a = 0.044715;
    if (!tanh_form) {
        return 0.5 * (1 + erf(x / sqrt(2))) + x * exp(-x * x / 2) / sqrt(2 * pi);
    }
    double t = tanh(k * (x + a * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * a * x * x);
}

static double mish_slope(double x)
{
    double t = tanh(log1p(exp(-fabs(x))) + fmax(x, 0)); // tanh(softplus(x))
    return t + x * (1 - t * t) * sigmoid(x);
}

// f'(x), or f' from y = f(x) for operators whose gradient reads the result.
static double element_slope(hth_op op, double a, double b, double z)
{
    switch (op) {
    case HTH_OP_SIGMOID:
        return z * (1 - z);
    case HTH_OP_TANH:
        return 1 - z * z;
    case HTH_OP_EXP:
        return z;
    case HTH_OP_SQRT:
        return 0.5 / z;
    case HTH_OP_RECIPROCAL:
        return -z * z;
    case HTH_OP_ABS:
        return (z > 0) - (z < 0);
    case HTH_OP_LOG:
        return 1 / z;
    case HTH_OP_ERF:
        return exp(-z * z) * 1.1283791670955126; // 2 / sqrt(pi)
    case HTH_OP_SIN:
        return cos(z);
    case HTH_OP_COS:
        return -sin(z);
    case HTH_OP_TAN:
        return 1 + tan(z) * tan(z);
    case HTH_OP_SINH:
        return cosh(z);
    case HTH_OP_COSH:
        return sinh(z);
    case HTH_OP_ASIN:
        return 1 / sqrt(1 - z * z);
    case HTH_OP_ACOS:
        return -1 / sqrt(1 - z * z);
    case HTH_OP_ATAN:
        return 1 / (1 + z * z);
    case HTH_OP_ASINH:
        return 1 / sqrt(z * z + 1);
    case HTH_OP_ACOSH:
        return 1 / sqrt(z * z - 1);
    case HTH_OP_ATANH:
        return 1 / (1 - z * z);
    case HTH_OP_GELU:
        return gelu_slope(z, a != 0);
    case HTH_OP_SWISH:
        return sigmoid(a * z) * (1 + a * z * (1 - sigmoid(a * z)));
    case HTH_OP_HARD_SWISH: // PyTorch's: 0 at -3, 1 at 3
        if (z <= -3) {
            return 0;
        }
        return z < 3 ? z / 3 + 0.5 : 1;
    case HTH_OP_HARD_SIGMOID:
        return a * z + b > 0 && a * z + b < 1 ? a : 0;
    case HTH_OP_LEAKY_RELU:
        return z > 0 ? 1 : a;
    case HTH_OP_ELU:
        return z > 0 ? 1 : a * exp(z);
    case HTH_OP_CELU:
        return z > 0 ? 1 : exp(z / a);
    case HTH_OP_SELU:
        return z > 0 ? b : b * a * exp(z);
    case HTH_OP_SOFTPLUS:
        return sigmoid(z);
    case HTH_OP_SOFTSIGN:
        return 1 / ((1 + fabs(z)) * (1 + fabs(z)));
    case HTH_OP_MISH:
        return mish_slope(z);
    case HTH_OP_THRESHOLDED_RELU:
        return z > a;
    case HTH_OP_SHRINK: // a: bias, b: lambd
        return z < -b || z > b;
    default:
        return NAN;
    }
}

// The operator's attributes in the order of element_slope.
static void element_attributes(const hth_node *node, hth_op op, double *a, double *b)
{
    static const struct {
        hth_op op;
        float alpha, beta;
        const char *second;
    } table[] = {{HTH_OP_SWISH, 1, 0, "beta"},
                 {HTH_OP_HARD_SIGMOID, 0.2f, 0.5f, "beta"},
                 {HTH_OP_LEAKY_RELU, 0.01f, 0, ""},
                 {HTH_OP_ELU, 1, 0, ""},
                 {HTH_OP_CELU, 1, 0, ""},
                 {HTH_OP_SELU, 1.67326319f, 1.05070102f, "gamma"},
                 {HTH_OP_THRESHOLDED_RELU, 1, 0, ""}};
    *a = *b = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].op == op) {
            *a = hth_node_float(node, "alpha", table[i].alpha);
            *b = hth_node_float(node, table[i].second, table[i].beta);
        }
    }
    if (op == HTH_OP_GELU) {
        *a = hth_node_str(node, "approximate", "none")[0] == 't';
    } else if (op == HTH_OP_SHRINK) {
        *b = hth_node_float(node, "lambd", 0.5f);
    }
}

static hth_err element_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                 hth_tensor *out)
{
    hth_op op = hth_op_find(hth_node_str(node, "of", ""));
    double *dy, *z;
    double a, b;
    element_attributes(node, op, &a, &b);
    if (!hth_grad_is_element(op)) {
        return hth_fail(HTH_ENOTSUP, "operator '%s' has no element-wise gradient",
                        hth_node_str(node, "of", ""));
    }
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(ref_wide(mem, &in[1], &z));
    for (int64_t i = 0; i < ref_count(&in[0]); i++) {
        dy[i] *= element_slope(op, a, b, z[i]);
    }
    ref_round(dy, &out[0]);
    return HTH_OK;
}

static hth_err dropout_train_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                  hth_tensor *out)
{
    float ratio = hth_node_float(node, "ratio", 0.5f);
    uint64_t salt = (uint64_t)hth_node_int(node, "salt", 0),
             threshold = hth_dropout_threshold(ratio);
    uint64_t step = (uint64_t)ref_i64_at(&in[1], 0);
    double *x;
    double scale = ratio < 1 ? 1 / (1 - (double)ratio) : 0;
    hth_philox words = {{0}};
    HTH_TRY(ref_wide(mem, &in[0], &x));
    for (int64_t i = 0; i < ref_count(&in[0]); i++) {
        if (i % 4 == 0) {
            words = hth_dropout_words((uint64_t)i / 4, step, salt);
        }
        x[i] = hth_dropout_keeps(&words, (int)(i % 4), threshold) ? x[i] * scale : 0;
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

REF_OP(ref_relu_grad, relu_grad_body)
REF_OP(ref_element_grad, element_grad_body)
REF_OP(ref_dropout_train, dropout_train_body)
