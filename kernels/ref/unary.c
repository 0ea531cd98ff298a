// SPDX-License-Identifier: Apache-2.0
// kernels/ref/unary.c - element-wise operators of one operand; the result may overwrite the
// operand.
//
// Every formula is written once and compiled for float and double (tgmath.h picks the function).
// The formulas avoid cancellation where the textbook form has it: expm1 in the Elu family, erfc in
// Gelu, log1p in Softplus.
#include "kernels/ref/ref.h"

#include <string.h>
#include <tgmath.h>

#define UNARY_SQRT_HALF 0.70710678118654752440
#define UNARY_GELU_TANH 0.79788456080286535588 // sqrt(2 / pi)

// v, at most m; y where v is above m, else 0.
#define UNARY_MOST(v, m)     ((v) > (m) ? (m) : (v))
#define UNARY_CLAMP01(v)     ((v) < 0 ? 0 : UNARY_MOST(v, 1))
#define UNARY_ABOVE(v, m, y) ((v) > (m) ? (y) : 0)
#define UNARY_SOFTPLUS(v)    ((v > 0 ? v : 0) + log1p(exp(-fabs(v))))

// X(operator, formula in x of type T, with the attributes alpha and beta). Constants are exact in
// both types or cast, and tgmath's arguments are all T: an int among them would mean double.
#define UNARY_OPS(X)                                                                               \
    X(ABS, fabs(x))                                                                                \
    X(ACOS, acos(x))                                                                               \
    X(ACOSH, acosh(x))                                                                             \
    X(ASIN, asin(x))                                                                               \
    X(ASINH, asinh(x))                                                                             \
    X(ATAN, atan(x))                                                                               \
    X(ATANH, atanh(x))                                                                             \
    X(CEIL, ceil(x))                                                                               \
    X(CELU, x > 0 ? x : alpha * expm1(x / alpha))                                                  \
    X(CLIP, x < alpha ? alpha : UNARY_MOST(x, beta))                                               \
    X(COS, cos(x))                                                                                 \
    X(COSH, cosh(x))                                                                               \
    X(ELU, x < 0 ? alpha * expm1(x) : x)                                                           \
    X(ERF, erf(x))                                                                                 \
    X(EXP, exp(x))                                                                                 \
    X(FLOOR, floor(x))                                                                             \
    X(GELU, alpha != 0 ? x / 2 * (1 + tanh((T)UNARY_GELU_TANH * (x + (T)0.044715 * x * x * x)))    \
                       : x / 2 * erfc(x * -(T)UNARY_SQRT_HALF))                                    \
    X(HARD_SIGMOID, UNARY_CLAMP01(alpha *x + beta))                                                \
    X(HARD_SWISH, x *UNARY_CLAMP01(x / 6 + (T)0.5))                                                \
    X(LEAKY_RELU, x < 0 ? alpha * x : x)                                                           \
    X(LOG, log(x))                                                                                 \
    X(MISH, x *tanh(UNARY_SOFTPLUS(x)))                                                            \
    X(NEG, -x)                                                                                     \
    X(RECIPROCAL, 1 / x)                                                                           \
    X(RELU, x < 0 ? 0 : x)                                                                         \
    X(ROUND, rint(x))                                                                              \
    X(SELU, beta *(x > 0 ? x : alpha * expm1(x)))                                                  \
    X(SHRINK, x < -beta ? x + alpha : UNARY_ABOVE(x, beta, x - alpha))                             \
    X(SIGMOID, 1 / (1 + exp(-x)))                                                                  \
    X(SIGN, x != x ? x : (T)((x > 0) - (x < 0)))                                                   \
    X(SIN, sin(x))                                                                                 \
    X(SINH, sinh(x))                                                                               \
    X(SOFTPLUS, UNARY_SOFTPLUS(x))                                                                 \
    X(SOFTSIGN, x / (1 + fabs(x)))                                                                 \
    X(SQRT, sqrt(x))                                                                               \
    X(SWISH, x / (1 + exp(-alpha * x)))                                                            \
    X(TAN, tan(x))                                                                                 \
    X(TANH, tanh(x))                                                                               \
    X(THRESHOLDED_RELU, x > alpha ? x : 0)

#define UNARY_LOOP(op, type, formula)                                                              \
    static void unary_##type##_##op(type a, type b, const type *px, type *py, int64_t n)           \
    {                                                                                              \
        typedef type T;                                                                            \
        const T alpha = a, beta = b;                                                               \
        (void)alpha, (void)beta;                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x = px[i];                                                                           \
            py[i] = formula;                                                                       \
        }                                                                                          \
    }
#define UNARY_F32(op, formula) UNARY_LOOP(op, float, formula)
#define UNARY_F64(op, formula) UNARY_LOOP(op, double, formula)
UNARY_OPS(UNARY_F32)
UNARY_OPS(UNARY_F64)

bool ref_unary_f32(hth_op op, float alpha, float beta, const float *x, float *y, int64_t n)
{
    switch (op) {
#define UNARY_CALL(op, formula)                                                                    \
    case HTH_OP_##op:                                                                              \
        unary_float_##op(alpha, beta, x, y, n);                                                    \
        return true;
        UNARY_OPS(UNARY_CALL)
#undef UNARY_CALL
    default:
        return false;
    }
}

static bool unary_f64(hth_op op, double alpha, double beta, const double *x, double *y, int64_t n)
{
    switch (op) {
#define UNARY_CALL(op, formula)                                                                    \
    case HTH_OP_##op:                                                                              \
        unary_double_##op(alpha, beta, x, y, n);                                                   \
        return true;
        UNARY_OPS(UNARY_CALL)
#undef UNARY_CALL
    default:
        return false;
    }
}

static int64_t unary_i64(hth_op op, bool is_unsigned, int64_t x)
{
    switch (op) {
    case HTH_OP_ABS:
        return x < 0 && !is_unsigned ? (int64_t)(0 - (uint64_t)x) : x;
    case HTH_OP_NEG:
        return (int64_t)(0 - (uint64_t)x);
    case HTH_OP_RELU:
        return x < 0 && !is_unsigned ? 0 : x;
    case HTH_OP_SIGN:
        return is_unsigned ? x != 0 : (x > 0) - (x < 0);
    case HTH_OP_BITWISE_NOT:
        return ~x;
    default:
        return !x; // Not
    }
}

// Shrink's attributes are floats, so it goes by way of double, as numpy does.
static void unary_shrink_int(float bias, float lambd, const hth_tensor *x, hth_tensor *y)
{
    for (int64_t i = 0; i < ref_count(x); i++) {
        double v, of = ref_get_f64(x->dtype, x->data, i);
        unary_double_SHRINK(bias, lambd, &of, &v, 1);
        ref_set_f64(x->dtype, y->data, i, v);
    }
}

static hth_err unary_int(hth_op op, const hth_tensor *x, hth_tensor *y)
{
    bool known = op == HTH_OP_ABS || op == HTH_OP_NEG || op == HTH_OP_RELU || op == HTH_OP_SIGN ||
                 op == HTH_OP_BITWISE_NOT || op == HTH_OP_NOT;
    if (!known) {
        return ref_no_dtype(x->dtype);
    }
    bool is_unsigned = x->dtype == HTH_DT_U64;
    for (int64_t i = 0; i < ref_count(x); i++) {
        int64_t v = ref_get_i64(x->dtype, x->data, i);
        ref_set_i64(x->dtype, y->data, i, unary_i64(op, is_unsigned, v));
    }
    return HTH_OK;
}

// The attributes that the formulas call alpha and beta, and their defaults.
static void unary_params(const hth_node *node, float *alpha, float *beta)
{
    static const struct {
        hth_op op;
        const char *a, *b;
        float alpha, beta;
    } table[] = {
        {HTH_OP_CELU, "alpha", NULL, 1, 0},
        {HTH_OP_ELU, "alpha", NULL, 1, 0},
        {HTH_OP_HARD_SIGMOID, "alpha", "beta", 0.2f, 0.5f},
        {HTH_OP_LEAKY_RELU, "alpha", NULL, 0.01f, 0},
        {HTH_OP_SELU, "alpha", "gamma", 1.67326319217681884765625f, 1.05070102214813232421875f},
        {HTH_OP_SHRINK, "bias", "lambd", 0, 0.5f},
        {HTH_OP_SWISH, "alpha", NULL, 1, 0},
        {HTH_OP_THRESHOLDED_RELU, "alpha", NULL, 1, 0},
    };
    *alpha = *beta = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].op == node->op) {
            *alpha = hth_node_float(node, table[i].a, table[i].alpha);
            *beta = table[i].b ? hth_node_float(node, table[i].b, table[i].beta) : 0;
        }
    }
    if (node->op == HTH_OP_GELU) {
        *alpha = strcmp(hth_node_str(node, "approximate", "none"), "tanh") == 0;
    }
}

static hth_err unary_same(const hth_tensor *x, const hth_tensor *y, hth_dtype dt)
{
    if (ref_count(x) != ref_count(y) || y->dtype != dt) {
        return hth_fail(HTH_EINVAL, "input and output do not agree");
    }
    return HTH_OK;
}

#define UNARY_PART ((int64_t)1 << 18) // elements between two looks at whether to go on
#define UNARY_WORK 8 // of an element: many are functions of the mathematics library

REF_KERNEL(ref_unary)
{
    float alpha, beta;
    bool done = false;
    HTH_TRY(unary_same(&in[0], &out[0], in[0].dtype));
    unary_params(n, &alpha, &beta);
    if (ref_is_int(in[0].dtype) && n->op == HTH_OP_SHRINK) {
        unary_shrink_int(alpha, beta, &in[0], &out[0]);
        return HTH_OK;
    }
    if (ref_is_int(in[0].dtype)) {
        return unary_int(n->op, &in[0], &out[0]);
    }
    for (int64_t i = 0, count = ref_count(&in[0]); i < count || i == 0; i += UNARY_PART) {
        int64_t part = count - i < UNARY_PART ? count - i : UNARY_PART;
        if (in[0].dtype == HTH_DT_F32) {
            done = ref_unary_f32(n->op, alpha, beta, (const float *)in[0].data + i,
                                 (float *)out[0].data + i, part);
        } else if (in[0].dtype == HTH_DT_F64) {
            done = unary_f64(n->op, alpha, beta, (const double *)in[0].data + i,
                             (double *)out[0].data + i, part);
        }
        if (!done || hth_pace_over((uint64_t)part * UNARY_WORK)) {
            break;
        }
    }
    return done ? HTH_OK : ref_no_dtype(in[0].dtype);
}

// IsNaN and IsInf: float to bool.
REF_KERNEL(ref_is_special)
{
    HTH_TRY(unary_same(&in[0], &out[0], HTH_DT_BOOL));
    if (!hth_dtype_is_float(in[0].dtype)) {
        return ref_no_dtype(in[0].dtype);
    }
    bool positive = hth_node_int(n, "detect_positive", 1) != 0;
    bool negative = hth_node_int(n, "detect_negative", 1) != 0;
    bool *y = out[0].data;
    for (int64_t i = 0; i < ref_count(&in[0]); i++) {
        double x = ref_get_f64(in[0].dtype, in[0].data, i);
        bool infinite = isinf(x) && (x > 0 ? positive : negative);
        y[i] = n->op == HTH_OP_IS_NA_N ? isnan(x) : infinite;
    }
    return HTH_OK;
}
