// SPDX-License-Identifier: Apache-2.0
// kernels/ref/binary.c - element-wise operators of two or more operands, with numpy's broadcasting.
//
// A formula is written once and compiled for the types it is meant for: float, double, and 64-bit
// integers. Other integers pass through blocks of int64: every integer operator of ONNX gives the
// same low bits in 64 bits as in the operand's own width. Unsigned 64-bit operands need formulas of
// their own only where the sign bit matters. Integer division by zero gives 0, as in numpy. The
// result may overwrite an operand of the same shape.
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

typedef void (*binary_loop)(void *out, const void *a, int64_t sa, const void *b, int64_t sb,
                            int64_t n);

// One loop over out[i] = formula(x = a[i * sa], y = b[i * sb]); the cases that can be vectorised
// stand alone.
#define BINARY_LOOP(name, T, R, formula)                                                           \
    static void binary_##T##_##name(void *out, const void *a, int64_t sa, const void *b,           \
                                    int64_t sb, int64_t n)                                         \
    {                                                                                              \
        const T *p = a, *q = b;                                                                    \
        R *o = out;                                                                                \
        if (sa == 1 && sb == 1) {                                                                  \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T x = p[i], y = q[i];                                                              \
                o[i] = (R)(formula);                                                               \
            }                                                                                      \
        } else if (sa == 1 && sb == 0) {                                                           \
            T y = *q;                                                                              \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T x = p[i];                                                                        \
                o[i] = (R)(formula);                                                               \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T x = p[i * sa], y = q[i * sb];                                                    \
                o[i] = (R)(formula);                                                               \
            }                                                                                      \
        }                                                                                          \
    }

#define BINARY_COMPARISONS(X, T)                                                                   \
    X(EQUAL, T, x == y)                                                                            \
    X(GREATER, T, x > y)                                                                           \
    X(GREATER_OR_EQUAL, T, x >= y)                                                                 \
    X(LESS, T, x < y)                                                                              \
    X(LESS_OR_EQUAL, T, x <= y)
// Max and Min pass NaN on, as numpy's maximum does.
#define BINARY_FLOATS(X, T, mod, pow)                                                              \
    X(ADD, T, x + y)                                                                               \
    X(SUB, T, x - y)                                                                               \
    X(MUL, T, x *y)                                                                                \
    X(DIV, T, x / y)                                                                               \
    X(MAX, T, x > y || x != x ? x : y)                                                             \
    X(MIN, T, x < y || x != x ? x : y)                                                             \
    X(MOD, T, mod(x, y))                                                                           \
    X(POW, T, y == 2 ? x * x : pow(x, y))                                                          \
    X(PRELU, T, x < 0 ? x * y : x)
#define BINARY_UNSIGNED(X, T)                                                                      \
    X(DIV, T, y == 0 ? 0 : x / y)                                                                  \
    X(MAX, T, x > y ? x : y)                                                                       \
    X(MIN, T, x < y ? x : y)                                                                       \
    X(MOD, T, y == 0 ? 0 : x % y)                                                                  \
    X(PRELU, T, x | (y & 0))
// Sums and products are formed unsigned, where overflow is defined; -1 is no divisor, since
// INT64_MIN / -1 traps.
#define BINARY_SIGNED(X, T)                                                                        \
    X(ADD, T, (uint64_t)x + (uint64_t)y)                                                           \
    X(SUB, T, (uint64_t)x - (uint64_t)y)                                                           \
    X(MUL, T, (uint64_t)x *(uint64_t)y)                                                            \
    X(DIV, T, binary_divide(x, y))                                                                 \
    X(MAX, T, x > y ? x : y)                                                                       \
    X(MIN, T, x < y ? x : y)                                                                       \
    X(MOD, T, binary_floor_mod(x, y))                                                              \
    X(POW, T, binary_power(x, y))                                                                  \
    X(PRELU, T, x < 0 ? (uint64_t)x * (uint64_t)y : (uint64_t)x)                                   \
    X(AND, T, x &&y)                                                                               \
    X(OR, T, x || y)                                                                               \
    X(XOR, T, !x != !y)                                                                            \
    X(BITWISE_AND, T, x &y)                                                                        \
    X(BITWISE_OR, T, x | y)                                                                        \
    X(BITWISE_XOR, T, x ^ y)                                                                       \
    X(BIT_SHIFT, T, y<0 || y> 63 ? 0 : (uint64_t)x << y)

static uint64_t binary_divide(int64_t x, int64_t y)
{
    if (y == -1) {
        return 0 - (uint64_t)x;
    }
    return y == 0 ? 0 : (uint64_t)(x / y);
}

// Mod without fmod has the sign of y, as in Python.
static int64_t binary_floor_mod(int64_t x, int64_t y)
{
    int64_t r = y == 0 || y == -1 ? 0 : x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static double binary_floor_modd(double x, double y)
{
    double r = fmod(x, y);
    if (r == 0) {
        return copysign(0, y);
    }
    return (r < 0) != (y < 0) ? r + y : r;
}

static float binary_floor_modf(float x, float y)
{
    float r = fmodf(x, y);
    if (r == 0) {
        return copysignf(0, y);
    }
    return (r < 0) != (y < 0) ? r + y : r;
}

static int64_t binary_power(int64_t x, int64_t y)
{
    if (y < 0 && x == -1) {
        return y & 1 ? -1 : 1;
    }
    if (y < 0) {
        return x == 1;
    }
    uint64_t r = 1, base = (uint64_t)x;
    for (; y > 0; y >>= 1) {
        r = y & 1 ? r * base : r;
        base *= base;
    }
    return (int64_t)r;
}

#define BINARY_SAME(name, T, formula)    BINARY_LOOP(name, T, T, formula)
#define BINARY_COMPARE(name, T, formula) BINARY_LOOP(name, T, bool, formula)
BINARY_FLOATS(BINARY_SAME, float, binary_floor_modf, powf)
BINARY_FLOATS(BINARY_SAME, double, binary_floor_modd, pow)
BINARY_SIGNED(BINARY_SAME, int64_t)
BINARY_UNSIGNED(BINARY_SAME, uint64_t)
BINARY_COMPARISONS(BINARY_COMPARE, float)
BINARY_COMPARISONS(BINARY_COMPARE, double)
BINARY_COMPARISONS(BINARY_COMPARE, int64_t)
BINARY_COMPARISONS(BINARY_COMPARE, uint64_t)
// Variants that an attribute chooses: Mod's fmod (the sign of x, as in C), BitShift's direction.
BINARY_LOOP(C_MOD, int64_t, int64_t, y == 0 || y == -1 ? 0 : x % y)
BINARY_LOOP(C_MOD, float, float, fmodf(x, y))
BINARY_LOOP(C_MOD, double, double, fmod(x, y))
BINARY_LOOP(SHIFT_RIGHT, int64_t, int64_t, x >> (y < 0 || y > 63 ? 63 : y))
BINARY_LOOP(SHIFT_RIGHT, uint64_t, uint64_t, y > 63 ? 0 : x >> y)

#define BINARY_ROW(name, T, formula) [HTH_OP_##name] = binary_##T##_##name,
static const binary_loop binary_f32[HTH_N_OPS] = {BINARY_FLOATS(BINARY_ROW, float, , )
                                                      BINARY_COMPARISONS(BINARY_ROW, float)};
static const binary_loop binary_f64[HTH_N_OPS] = {BINARY_FLOATS(BINARY_ROW, double, , )
                                                      BINARY_COMPARISONS(BINARY_ROW, double)};
static const binary_loop binary_i64[HTH_N_OPS] = {BINARY_SIGNED(BINARY_ROW, int64_t)
                                                      BINARY_COMPARISONS(BINARY_ROW, int64_t)};
static const binary_loop binary_u64[HTH_N_OPS] = {BINARY_UNSIGNED(BINARY_ROW, uint64_t)
                                                      BINARY_COMPARISONS(BINARY_ROW, uint64_t)};

static binary_loop binary_find(hth_op op, hth_dtype dt)
{
    switch (dt) {
    case HTH_DT_F32:
        return binary_f32[op];
    case HTH_DT_F64:
        return binary_f64[op];
    case HTH_DT_U64:
        return binary_u64[op] ? binary_u64[op] : binary_i64[op];
    case HTH_DT_F16:
    case HTH_DT_BF16:
        return NULL;
    default:
        return binary_i64[op];
    }
}

// binary_int runs a 64-bit loop on integers of any width; the loop writes `loop_bytes` per element
// (1: bool).
static void binary_int(binary_loop loop, bool compares, hth_dtype to, void *out, hth_dtype da,
                       const void *a, int64_t sa, hth_dtype db, const void *b, int64_t sb,
                       int64_t n)
{
    enum { BLOCK = 256 };
    int64_t x[BLOCK], y[BLOCK];
    int64_t to_bytes = (int64_t)hth_dtype_bytes(to);
    int64_t a_bytes = sa * (int64_t)hth_dtype_bytes(da),
            b_bytes = sb * (int64_t)hth_dtype_bytes(db);
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        ref_load_i64(da, (const char *)a + i * a_bytes, sa, m, x);
        ref_load_i64(db, (const char *)b + i * b_bytes, sb, m, y);
        char *o = (char *)out + i * to_bytes;
        if (compares) {
            loop(o, x, 1, y, 1, m);
        } else {
            loop(x, x, 1, y, 1, m);
            ref_store_i64(to, o, x, m);
        }
    }
}

static bool binary_compares(hth_op op)
{
    return op == HTH_OP_EQUAL || op == HTH_OP_GREATER || op == HTH_OP_GREATER_OR_EQUAL ||
           op == HTH_OP_LESS || op == HTH_OP_LESS_OR_EQUAL;
}

bool ref_binary_run(hth_op op, hth_dtype dt, void *out, const void *a, int64_t sa, const void *b,
                    int64_t sb, int64_t n)
{
    binary_loop loop = binary_find(op, dt);
    if (loop == NULL) {
        return false;
    }
    if (ref_is_int(dt)) {
        binary_int(loop, binary_compares(op), dt, out, dt, a, sa, dt, b, sb, n);
    } else {
        loop(out, a, sa, b, sb, n);
    }
    return true;
}

// Pow of operands of different types, at least one of them a float.
static void binary_pow_mixed(hth_tensor *y, int64_t at, const hth_tensor *a, int64_t ia, int64_t sa,
                             const hth_tensor *b, int64_t ib, int64_t sb, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double v = pow(ref_get_f64(a->dtype, a->data, ia + i * sa),
                       ref_get_f64(b->dtype, b->data, ib + i * sb));
        ref_set_f64(y->dtype, y->data, at + i, v);
    }
}

static binary_loop binary_of_node(const hth_node *node, hth_dtype dt)
{
    if (node->op == HTH_OP_BIT_SHIFT &&
        strcmp(hth_node_str(node, "direction", "LEFT"), "RIGHT") == 0) {
        if (dt == HTH_DT_U64) {
            return binary_uint64_t_SHIFT_RIGHT;
        }
        return ref_is_int(dt) ? binary_int64_t_SHIFT_RIGHT : NULL;
    }
    if (node->op == HTH_OP_MOD && hth_node_int(node, "fmod", 0) != 0 && dt != HTH_DT_U64) {
        if (dt == HTH_DT_F32) {
            return binary_float_C_MOD;
        }
        return dt == HTH_DT_F64 ? binary_double_C_MOD : binary_int64_t_C_MOD;
    }
    return binary_find(node->op, dt);
}

REF_KERNEL(ref_binary)
{
    const hth_tensor *a = &in[0], *b = &in[1];
    hth_tensor *y = &out[0];
    binary_loop loop = binary_of_node(n, a->dtype);
    bool compares = binary_compares(n->op);
    bool mixed = n->op == HTH_OP_POW && a->dtype != b->dtype &&
                 !(ref_is_int(a->dtype) && ref_is_int(b->dtype));
    if (loop == NULL) {
        return ref_no_dtype(a->dtype);
    }
    if (y->dtype != (compares ? HTH_DT_BOOL : a->dtype) ||
        (b->dtype != a->dtype && n->op != HTH_OP_POW)) {
        return hth_fail(HTH_EINVAL, "dtypes %s, %s and %s do not go together",
                        hth_dtype_name(a->dtype), hth_dtype_name(b->dtype),
                        hth_dtype_name(y->dtype));
    }
    HTH_TRY(ref_can_broadcast(&a->shape, &y->shape));
    HTH_TRY(ref_can_broadcast(&b->shape, &y->shape));
    const hth_shape *shapes[] = {&y->shape, &a->shape, &b->shape};
    int64_t ya = (int64_t)hth_dtype_bytes(a->dtype), yb = (int64_t)hth_dtype_bytes(b->dtype);
    int64_t yy = (int64_t)hth_dtype_bytes(y->dtype);
    ref_iter it;
    for (bool more = ref_iter_broadcast(&it, &y->shape, 3, shapes); more;
         more = ref_iter_next(&it)) {
        void *to = (char *)y->data + it.offset[0] * yy;
        const void *p = (const char *)a->data + it.offset[1] * ya,
                   *q = (const char *)b->data + it.offset[2] * yb;
        if (mixed) {
            binary_pow_mixed(y, it.offset[0], a, it.offset[1], it.stride[1], b, it.offset[2],
                             it.stride[2], it.count);
        } else if (ref_is_int(a->dtype)) {
            binary_int(loop, compares, y->dtype, to, a->dtype, p, it.stride[1], b->dtype, q,
                       it.stride[2], it.count);
        } else {
            loop(to, p, it.stride[1], q, it.stride[2], it.count);
        }
    }
    return HTH_OK;
}

// binary_into computes y = op(y, x), x broadcast to y.
hth_err ref_binary_into(hth_op op, const hth_tensor *x, hth_tensor *y)
{
    if (x->dtype != y->dtype || !ref_binary_run(op, y->dtype, NULL, NULL, 1, NULL, 1, 0)) {
        return ref_no_dtype(x->dtype);
    }
    HTH_TRY(ref_can_broadcast(&x->shape, &y->shape));
    const hth_shape *shapes[] = {&y->shape, &x->shape};
    int64_t size = (int64_t)hth_dtype_bytes(y->dtype);
    ref_iter it;
    for (bool more = ref_iter_broadcast(&it, &y->shape, 2, shapes); more;
         more = ref_iter_next(&it)) {
        void *to = (char *)y->data + it.offset[0] * size;
        ref_binary_run(op, y->dtype, to, to, it.stride[0],
                       (const char *)x->data + it.offset[1] * size, it.stride[1], it.count);
    }
    return HTH_OK;
}

// Sum, Mean, Max, Min of any number of operands.
REF_KERNEL(ref_variadic)
{
    int count = ref_n_inputs(n);
    bool adds = n->op == HTH_OP_SUM || n->op == HTH_OP_MEAN;
    HTH_TRY(ref_broadcast_copy(&in[0], &out[0]));
    for (int i = 1; i < count; i++) {
        HTH_TRY(ref_binary_into(adds ? HTH_OP_ADD : n->op, &in[i], &out[0]));
    }
    if (n->op == HTH_OP_MEAN) {
        char value[8];
        ref_set_i64(out[0].dtype, value, 0, count);
        hth_tensor divisor = {.dtype = out[0].dtype, .data = value, .bytes = sizeof value};
        HTH_TRY(ref_binary_into(HTH_OP_DIV, &divisor, &out[0]));
    }
    return HTH_OK;
}
