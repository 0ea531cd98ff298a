// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/chain.cu - element-wise operators, one after the other in registers: each element is
// read once and written once, whatever the number of steps. Bytes moved: the result's, and those of
// each operand. A thread handles four neighbours, in accesses of 16 bytes where an operand lies as
// the result does.
#include "graph/op.h"
#include "kernels/cuda/params.h"

HTH_FN float chain_clamp01(float v)
{
    if (v < 0) {
        return 0;
    }
    return v > 1 ? 1 : v;
}

HTH_FN float chain_softplus(float x)
{
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

HTH_FN float chain_sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

#define CHAIN_GELU_TANH 0.79788456080286535588f // sqrt(2 / pi)

HTH_FN float chain_gelu(float x, float tanh_form)
{
    return tanh_form != 0 ? x / 2 * (1 + tanhf(CHAIN_GELU_TANH * (x + 0.044715f * x * x * x)))
                          : x / 2 * erfcf(x * -0.70710678118654752440f);
}

HTH_FN float chain_trigonometric(int op, float x)
{
    switch (op) {
    case HTH_OP_ACOS: return acosf(x);
    case HTH_OP_ACOSH: return acoshf(x);
    case HTH_OP_ASIN: return asinf(x);
    case HTH_OP_ASINH: return asinhf(x);
    case HTH_OP_ATAN: return atanf(x);
    case HTH_OP_ATANH: return atanhf(x);
    case HTH_OP_COS: return cosf(x);
    case HTH_OP_COSH: return coshf(x);
    case HTH_OP_SIN: return sinf(x);
    case HTH_OP_SINH: return sinhf(x);
    case HTH_OP_TAN: return tanf(x);
    default: return NAN;
    }
}

HTH_FN float chain_unary(int op, float a, float b, float x)
{
    switch (op) {
    case HTH_OP_ABS: return fabsf(x);
    case HTH_OP_CEIL: return ceilf(x);
    case HTH_OP_CELU: return x > 0 ? x : a * expm1f(x / a);
    case HTH_OP_CLIP: x = x < a ? a : x; return x > b ? b : x;
    case HTH_OP_ELU: return x < 0 ? a * expm1f(x) : x;
    case HTH_OP_ERF: return erff(x);
    case HTH_OP_EXP: return expf(x);
    case HTH_OP_FLOOR: return floorf(x);
    case HTH_OP_GELU: return chain_gelu(x, a);
    case HTH_OP_HARD_SIGMOID: return chain_clamp01(a * x + b);
    case HTH_OP_HARD_SWISH: return x * chain_clamp01(x / 6 + 0.5f);
    case HTH_OP_LEAKY_RELU: return x < 0 ? a * x : x;
    case HTH_OP_LOG: return logf(x);
    case HTH_OP_MISH: return x * tanhf(chain_softplus(x));
    case HTH_OP_NEG: return -x;
    case HTH_OP_RECIPROCAL: return 1 / x;
    case HTH_OP_RELU: return x < 0 ? 0 : x;
    case HTH_OP_ROUND: return rintf(x);
    case HTH_OP_SELU: return b * (x > 0 ? x : a * expm1f(x));
    case HTH_OP_SHRINK:
        if (x < -b) {
            return x + a;
        }
        return x > b ? x - a : 0;
    case HTH_OP_SIGMOID: return chain_sigmoid(x);
    case HTH_OP_SIGN: return x != x ? x : (float)((x > 0) - (x < 0));
    case HTH_OP_SOFTPLUS: return chain_softplus(x);
    case HTH_OP_SOFTSIGN: return x / (1 + fabsf(x));
    case HTH_OP_SQRT: return sqrtf(x);
    case HTH_OP_SWISH: return x / (1 + expf(-a * x));
    case HTH_OP_TANH: return tanhf(x);
    case HTH_OP_THRESHOLDED_RELU: return x > a ? x : 0;
    default: return chain_trigonometric(op, x);
    }
}

HTH_FN float chain_gelu_slope(float x, float tanh_form)
{
    if (tanh_form == 0) {
        return 0.5f * erfcf(x * -0.70710678118654752440f) +
               x * expf(-x * x / 2) * 0.39894228040143267794f;
    }
    float t = tanhf(CHAIN_GELU_TANH * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * CHAIN_GELU_TANH * (1 + 0.134145f * x * x);
}

HTH_FN float chain_mish_slope(float x)
{
    float t = tanhf(chain_softplus(x));
    return t + x * (1 - t * t) * chain_sigmoid(x);
}

HTH_FN float chain_slope_trigonometric(int op, float z)
{
    switch (op) {
    case HTH_OP_SIN: return cosf(z);
    case HTH_OP_COS: return -sinf(z);
    case HTH_OP_TAN: return 1 + tanf(z) * tanf(z);
    case HTH_OP_SINH: return coshf(z);
    case HTH_OP_COSH: return sinhf(z);
    case HTH_OP_ASIN: return 1 / sqrtf(1 - z * z);
    case HTH_OP_ACOS: return -1 / sqrtf(1 - z * z);
    case HTH_OP_ATAN: return 1 / (1 + z * z);
    case HTH_OP_ASINH: return 1 / sqrtf(z * z + 1);
    case HTH_OP_ACOSH: return 1 / sqrtf(z * z - 1);
    case HTH_OP_ATANH: return 1 / (1 - z * z);
    default: return NAN;
    }
}

// f'(z); z is f's result or its input, as hth_grad_reads_result says (graph/autodiff/train.h).
HTH_FN float chain_slope(int op, float a, float b, float z)
{
    switch (op) {
    case HTH_OP_SIGMOID: return z * (1 - z);
    case HTH_OP_TANH: return 1 - z * z;
    case HTH_OP_EXP: return z;
    case HTH_OP_SQRT: return 0.5f / z;
    case HTH_OP_RECIPROCAL: return -z * z;
    case HTH_OP_ABS: return (float)((z > 0) - (z < 0));
    case HTH_OP_LOG: return 1 / z;
    case HTH_OP_ERF: return expf(-z * z) * 1.1283791670955126f;
    case HTH_OP_GELU: return chain_gelu_slope(z, a);
    case HTH_OP_SWISH: return chain_sigmoid(a * z) * (1 + a * z * (1 - chain_sigmoid(a * z)));
    case HTH_OP_HARD_SWISH:
        if (z <= -3) {
            return 0;
        }
        return z < 3 ? z / 3 + 0.5f : 1;
    case HTH_OP_HARD_SIGMOID: return a * z + b > 0 && a * z + b < 1 ? a : 0;
    case HTH_OP_LEAKY_RELU: return z > 0 ? 1 : a;
    case HTH_OP_ELU: return z > 0 ? 1 : a * expf(z);
    case HTH_OP_CELU: return z > 0 ? 1 : expf(z / a);
    case HTH_OP_SELU: return z > 0 ? b : b * a * expf(z);
    case HTH_OP_SOFTPLUS: return chain_sigmoid(z);
    case HTH_OP_SOFTSIGN: return 1 / ((1 + fabsf(z)) * (1 + fabsf(z)));
    case HTH_OP_MISH: return chain_mish_slope(z);
    case HTH_OP_THRESHOLDED_RELU: return z > a ? 1 : 0;
    case HTH_OP_SHRINK: return z < -b || z > b ? 1 : 0;
    default: return chain_slope_trigonometric(op, z);
    }
}

HTH_FN float chain_apply(const hth_chain_step *s, float x, float y)
{
    switch (s->op) {
    case HTH_OP_ADD: return x + s->alpha * y;
    case HTH_OP_SUB: return x - y;
    case HTH_OP_MUL: return x * y;
    case HTH_OP_DIV: return x / y;
    case HTH_OP_POW: return powf(x, y);
    case HTH_OP_MIN: return y < x || y != y ? y : x;
    case HTH_OP_MAX: return y > x || y != y ? y : x;
    case HTH_OP_PRELU: return x < 0 ? y * x : x;
    case HTH_OP_RELU_GRAD: return y > s->alpha && y < s->beta ? x : 0;
    case HTH_OP_ELEMENT_GRAD: return x * chain_slope(s->of, s->alpha, s->beta, y);
    case HTH_OP_BATCH_NORMALIZATION: return x / sqrtf(y + s->alpha);
    case HTH_OP_MEAN: return x * s->alpha;
    default: return chain_unary(s->op, s->alpha, s->beta, x);
    }
}

// Elements i .. i + 3 of an operand, `n` of them wanted.
HTH_FN hth_f4 chain_load(const hth_chain_params *p, const hth_chain_operand *o, uint32_t i,
                         uint32_t n)
{
    hth_f4 r = {{0, 0, 0, 0}};
    if (o->mode == HTH_CHAIN_SAME) {
        return hth_get4(o->data, i, n, o->half);
    }
    for (uint32_t k = 0; k < n; k++) {
        int64_t at = o->mode == HTH_CHAIN_ONE ? 0 : hth_offset(i + k, &p->dims, &o->steps);
        r.v[k] = hth_get(o->data, at, o->half);
    }
    return r;
}

HTH_KERNEL(hth_chain, hth_chain_params, 1)
{
    uint32_t i = hth_index(t) * 4;
    if (i >= p->n) {
        return;
    }
    uint32_t n = p->n - i < 4 ? p->n - i : 4;
    hth_f4 x = chain_load(p, &p->operand[0], i, n), y = x;
    for (int s = 0; s < p->n_steps; s++) {
        const hth_chain_step *step = &p->step[s];
        if (step->operand >= 0) {
            y = chain_load(p, &p->operand[step->operand], i, n);
        }
        for (int k = 0; k < 4; k++) {
            x.v[k] = chain_apply(step, x.v[k], y.v[k]);
        }
    }
    hth_set4(p->out, i, n, x, p->half);
}
