// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/typed.cu - element-wise operators with types besides f32: comparisons, logic, Where,
// Cast, arithmetic. Small tensors, mostly, so a value travels as i64 or double and no access is
// wide. Bytes moved: each operand and the result.
#include "graph/op.h"
#include "kernels/cuda/number.h"
#include "kernels/cuda/params.h"

// Truncates; what no integer holds becomes the least one, as on x86.
HTH_FN int64_t typed_truncate(double f)
{
    return f >= -9223372036854775808.0 && f < 9223372036854775808.0 ? (int64_t)f : INT64_MIN;
}

HTH_FN int64_t typed_divide(int64_t a, int64_t b)
{
    if (b == -1) {
        return (int64_t)(0 - (uint64_t)a);
    }
    return b == 0 ? 0 : a / b;
}

// The remainder with the divisor's sign, or with the dividend's.
HTH_FN int64_t typed_modulo(int64_t a, int64_t b, int as_c)
{
    int64_t r = b == 0 || b == -1 ? 0 : a % b;
    return r != 0 && !as_c && (r < 0) != (b < 0) ? r + b : r;
}

HTH_FN int64_t typed_shift(int64_t a, int64_t b, int left)
{
    int far = b < 0 || b > 63;
    if (!left) {
        return a >> (far ? 63 : b);
    }
    return far ? 0 : (int64_t)((uint64_t)a << b);
}

HTH_FN int64_t typed_power(int64_t x, int64_t y)
{
    if (y < 0 && x == -1) {
        return (y & 1) != 0 ? -1 : 1;
    }
    if (y < 0) {
        return x == 1;
    }
    uint64_t r = 1, base = (uint64_t)x;
    for (; y > 0; y >>= 1) {
        r = (y & 1) != 0 ? r * base : r;
        base *= base;
    }
    return (int64_t)r;
}

// Where the sign matters, of u64.
HTH_FN int64_t typed_unsigned(int op, uint64_t a, uint64_t b, int flags, int64_t otherwise)
{
    switch (op) {
    case HTH_OP_MOD: return (int64_t)(b == 0 ? 0 : a % b);
    case HTH_OP_DIV: return (int64_t)(b == 0 ? 0 : a / b);
    case HTH_OP_MIN: return (int64_t)(a < b ? a : b);
    case HTH_OP_MAX: return (int64_t)(a > b ? a : b);
    case HTH_OP_SIGN: return a != 0;
    case HTH_OP_ABS:
    case HTH_OP_RELU: return (int64_t)a;
    case HTH_OP_BIT_SHIFT:
        if (b > 63) {
            return 0;
        }
        return (int64_t)((flags & 8) != 0 ? a << b : a >> b);
    default: return otherwise;
    }
}

// Of F16 and F64, and of all floats what a chain has not.
HTH_FN double typed_real(int op, double a, double b, int flags)
{
    double r;
    switch (op) {
    case HTH_OP_ADD: return a + b;
    case HTH_OP_SUB: return a - b;
    case HTH_OP_MUL: return a * b;
    case HTH_OP_DIV: return a / b;
    case HTH_OP_MIN: return a < b || a != a ? a : b;
    case HTH_OP_MAX: return a > b || a != a ? a : b;
    case HTH_OP_NEG: return -a;
    case HTH_OP_ABS: return fabs(a);
    case HTH_OP_RELU: return a < 0 ? 0 : a;
    case HTH_OP_POW: return b == 2 ? a * a : pow(a, b);
    case HTH_OP_MOD:
        r = fmod(a, b);
        if ((flags & 4) != 0) {
            return r;
        }
        if (r == 0) {
            return copysign(0.0, b);
        }
        return (r < 0) != (b < 0) ? r + b : r;
    default: return 0;
    }
}

HTH_FN int64_t typed_arithmetic(int op, int64_t a, int64_t b, int flags)
{
    switch (op) {
    case HTH_OP_POW: return typed_power(a, b);
    case HTH_OP_MOD: return typed_modulo(a, b, flags & 4);
    case HTH_OP_BIT_SHIFT: return typed_shift(a, b, flags & 8);
    case HTH_OP_BITWISE_AND: return a & b;
    case HTH_OP_BITWISE_OR: return a | b;
    case HTH_OP_BITWISE_XOR: return a ^ b;
    case HTH_OP_BITWISE_NOT: return ~a;
    case HTH_OP_ADD: return (int64_t)((uint64_t)a + (uint64_t)b);
    case HTH_OP_SUB: return (int64_t)((uint64_t)a - (uint64_t)b);
    case HTH_OP_MUL: return (int64_t)((uint64_t)a * (uint64_t)b);
    case HTH_OP_DIV: return typed_divide(a, b);
    case HTH_OP_MIN: return a < b ? a : b;
    case HTH_OP_MAX: return a > b ? a : b;
    case HTH_OP_NEG: return (int64_t)(0 - (uint64_t)a);
    case HTH_OP_ABS: return a < 0 ? (int64_t)(0 - (uint64_t)a) : a;
    case HTH_OP_SIGN: return (a > 0) - (a < 0);
    case HTH_OP_RELU: return a < 0 ? 0 : a;
    case HTH_OP_NOT: return !a;
    case HTH_OP_AND: return a != 0 && b != 0;
    case HTH_OP_OR: return a != 0 || b != 0;
    case HTH_OP_XOR: return (a != 0) != (b != 0);
    default: return 0;
    }
}

HTH_FN int64_t typed_compare(int op, int type, hth_number a, hth_number b)
{
    int floats = hth_number_is_float(type);
    if (type == HTH_DT_U64) { // in the order of i64 with the top bit turned
        a.i = (int64_t)((uint64_t)a.i ^ (uint64_t)1 << 63);
        b.i = (int64_t)((uint64_t)b.i ^ (uint64_t)1 << 63);
    }
    int equal = floats ? a.f == b.f : a.i == b.i;
    int less = floats ? a.f < b.f : a.i < b.i;
    int more = floats ? a.f > b.f : a.i > b.i;
    switch (op) {
    case HTH_OP_EQUAL: return equal;
    case HTH_OP_LESS: return less;
    case HTH_OP_LESS_OR_EQUAL: return less || equal;
    case HTH_OP_GREATER: return more;
    default: return more || equal;
    }
}

HTH_FN int typed_is_comparison(int op)
{
    return op == HTH_OP_EQUAL || op == HTH_OP_LESS || op == HTH_OP_LESS_OR_EQUAL ||
           op == HTH_OP_GREATER || op == HTH_OP_GREATER_OR_EQUAL;
}

HTH_FN hth_number typed_cast(const hth_typed_params *p, hth_number a)
{
    if (hth_number_is_float(p->type[0]) && !hth_number_is_float(p->out_type)) {
        a.i = p->out_type == HTH_DT_BOOL ? a.f != 0 : typed_truncate(a.f);
        if (p->out_type == HTH_DT_I32 && !(a.f > -2147483649.0 && a.f < 2147483648.0)) {
            a.i = INT32_MIN;
        }
    }
    return a;
}

// The smaller of x and the upper bound, at least the lower one; either may be absent.
HTH_FN hth_number typed_clip(const hth_typed_params *p, const hth_number *v)
{
    hth_number r = v[0];
    if (p->in[1] != NULL && typed_compare(HTH_OP_LESS, p->type[0], r, v[1])) {
        r = v[1];
    }
    return p->in[2] != NULL && typed_compare(HTH_OP_GREATER, p->type[0], r, v[2]) ? v[2] : r;
}

HTH_FN hth_number typed_combine(const hth_typed_params *p, hth_number a, hth_number b)
{
    hth_number r = {0, 0};
    int real = hth_number_is_float(p->type[0]) ||
               (p->n_operands > 1 && hth_number_is_float(p->type[1]));
    if (real) {
        r.f = typed_real(p->op, a.f, b.f, p->flags);
        r.i = typed_truncate(r.f);
    } else {
        r.i = typed_arithmetic(p->op, a.i, b.i, p->flags);
        r.i = p->type[0] != HTH_DT_U64
                  ? r.i
                  : typed_unsigned(p->op, (uint64_t)a.i, (uint64_t)b.i, p->flags, r.i);
        r.f = (double)r.i;
    }
    return r;
}

HTH_KERNEL(hth_typed, hth_typed_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        hth_number v[3] = {{0, 0}, {0, 0}, {0, 0}}, r;
        for (int k = 0; k < p->n_operands; k++) {
            if (p->in[k] != NULL) {
                v[k] = hth_number_get(p->type[k], p->in[k], hth_offset(i, &p->dims, &p->steps[k]));
            }
        }
        r = v[0];
        if (p->op == HTH_OP_WHERE) {
            r = v[0].i != 0 ? v[1] : v[2];
        } else if (p->op == HTH_OP_CLIP) {
            r = typed_clip(p, v);
        } else if (p->op == HTH_OP_CAST || p->op == HTH_OP_CAST_LIKE) {
            r = typed_cast(p, v[0]);
        } else if (typed_is_comparison(p->op)) {
            r.i = typed_compare(p->op, p->type[0], v[0], v[1]);
        } else if (p->op == HTH_OP_IS_NA_N) {
            r.i = v[0].f != v[0].f;
        } else if (p->op == HTH_OP_IS_INF) {
            r.i = isinf(v[0].f) && (p->flags & (v[0].f > 0 ? 1 : 2)) != 0;
        } else {
            r = typed_combine(p, v[0], v[1]);
        }
        hth_number_set(p->out_type, p->out, i, r);
    }
}
