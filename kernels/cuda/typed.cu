// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/typed.cu - element-wise operators with types beside f32: comparisons, logic, Where,
// Cast, integer arithmetic. Small tensors, mostly, so a value travels as i64 or double and no access
// is wide. Bytes moved: each operand and the result.
#include "graph/op.h"
#include "graph/tensor.h"
#include "kernels/cuda/params.h"

typedef struct typed_value {
    int64_t i;
    double f;
} typed_value;

HTH_FN int typed_is_float(int type)
{
    return type == HTH_DT_F32 || type == HTH_DT_F64;
}

HTH_FN int64_t typed_load_int(int type, const void *p, int64_t i)
{
    switch (type) {
    case HTH_DT_BOOL:
    case HTH_DT_U8: return ((const uint8_t *)p)[i];
    case HTH_DT_I8: return ((const int8_t *)p)[i];
    case HTH_DT_U16: return ((const uint16_t *)p)[i];
    case HTH_DT_I16: return ((const int16_t *)p)[i];
    case HTH_DT_I32: return ((const int32_t *)p)[i];
    case HTH_DT_U32: return ((const uint32_t *)p)[i];
    default: return ((const int64_t *)p)[i];
    }
}

HTH_FN typed_value typed_load(int type, const void *p, int64_t i)
{
    typed_value v = {0, 0};
    if (typed_is_float(type)) {
        v.f = type == HTH_DT_F32 ? ((const float *)p)[i] : ((const double *)p)[i];
    } else {
        v.i = typed_load_int(type, p, i);
        v.f = (double)v.i;
    }
    return v;
}

HTH_FN void typed_store(int type, void *p, uint32_t i, typed_value v)
{
    switch (type) {
    case HTH_DT_F32: ((float *)p)[i] = (float)v.f; break;
    case HTH_DT_F64: ((double *)p)[i] = v.f; break;
    case HTH_DT_BOOL: ((uint8_t *)p)[i] = v.i != 0; break;
    case HTH_DT_U8:
    case HTH_DT_I8: ((uint8_t *)p)[i] = (uint8_t)v.i; break;
    case HTH_DT_U16:
    case HTH_DT_I16: ((uint16_t *)p)[i] = (uint16_t)v.i; break;
    case HTH_DT_I32:
    case HTH_DT_U32: ((uint32_t *)p)[i] = (uint32_t)v.i; break;
    default: ((int64_t *)p)[i] = v.i; break;
    }
}

// Truncates; what no integer holds becomes the least one, as on x86.
HTH_FN int64_t typed_truncate(double f)
{
    return f >= -9223372036854775808.0 && f < 9223372036854775808.0 ? (int64_t)f : INT64_MIN;
}

HTH_FN int64_t typed_divide(int64_t a, int64_t b)
{
    return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
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
    return !left ? a >> (far ? 63 : b) : far ? 0 : (int64_t)((uint64_t)a << b);
}

HTH_FN int64_t typed_arithmetic(int op, int64_t a, int64_t b, int flags)
{
    switch (op) {
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

HTH_FN int64_t typed_compare(int op, int floats, typed_value a, typed_value b)
{
    int less = floats ? a.f < b.f : a.i < b.i, equal = floats ? a.f == b.f : a.i == b.i;
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

HTH_FN typed_value typed_cast(const hth_typed_params *p, typed_value a)
{
    if (typed_is_float(p->type[0]) && !typed_is_float(p->out_type)) {
        a.i = p->out_type == HTH_DT_BOOL ? a.f != 0 : typed_truncate(a.f);
        if (p->out_type == HTH_DT_I32 && !(a.f > -2147483649.0 && a.f < 2147483648.0)) {
            a.i = INT32_MIN;
        }
    }
    return a;
}

HTH_KERNEL(hth_typed, hth_typed_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        typed_value v[3] = {{0, 0}, {0, 0}, {0, 0}}, r;
        for (int k = 0; k < p->n_operands; k++) {
            v[k] = typed_load(p->type[k], p->in[k], hth_offset(i, &p->dims, &p->steps[k]));
        }
        r = v[0];
        if (p->op == HTH_OP_WHERE) {
            r = v[0].i != 0 ? v[1] : v[2];
        } else if (p->op == HTH_OP_CAST || p->op == HTH_OP_CAST_LIKE) {
            r = typed_cast(p, v[0]);
        } else if (typed_is_comparison(p->op)) {
            r.i = typed_compare(p->op, typed_is_float(p->type[0]), v[0], v[1]);
        } else if (p->op == HTH_OP_IS_NA_N) {
            r.i = v[0].f != v[0].f;
        } else if (p->op == HTH_OP_IS_INF) {
            r.i = isinf(v[0].f) && (p->flags & (v[0].f > 0 ? 1 : 2)) != 0;
        } else {
            r.i = typed_arithmetic(p->op, v[0].i, v[1].i, p->flags);
            r.f = p->op == HTH_OP_MOD ? fmod(v[0].f, v[1].f) : 0;
        }
        typed_store(p->out_type, p->out, i, r);
    }
}
