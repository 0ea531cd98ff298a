// SPDX-License-Identifier: Apache-2.0
// kernels/ref/scan.c - operators that walk along one axis: ArgMax, ArgMin, CumSum.
#include "kernels/ref/ref.h"

#define SCAN_TYPES(X)                                                                              \
    X(F32, float)                                                                                  \
    X(F64, double)                                                                                 \
    X(U8, uint8_t)                                                                                 \
    X(I8, int8_t)                                                                                  \
    X(U16, uint16_t)                                                                               \
    X(I16, int16_t)                                                                                \
    X(I32, int32_t)                                                                                \
    X(U32, uint32_t)                                                                               \
    X(I64, int64_t)                                                                                \
    X(U64, uint64_t)

typedef struct scan_order {
    bool smallest, last; // ArgMin; of equal ones the last
} scan_order;

// scan_best returns the position of the best of `count` elements; the first NaN wins, as in numpy.
#define SCAN_BEST(dt, T)                                                                           \
    static int64_t scan_best_##T(const T *x, int64_t step, int64_t count, scan_order order)        \
    {                                                                                              \
        int64_t best = 0;                                                                          \
        T top = x[0];                                                                              \
        for (int64_t i = 1; i < count && top == top; i++) {                                        \
            T v = x[i * step];                                                                     \
            if (v != v || (order.smallest ? v < top : v > top) || (order.last && v == top)) {      \
                top = v;                                                                           \
                best = i;                                                                          \
            }                                                                                      \
        }                                                                                          \
        return best;                                                                               \
    }
SCAN_TYPES(SCAN_BEST)

static int64_t scan_best(const hth_tensor *x, int64_t offset, int64_t step, int64_t count,
                         scan_order order)
{
    switch (x->dtype) {
#define SCAN_BEST_CASE(dt, T)                                                                      \
    case HTH_DT_##dt:                                                                              \
        return scan_best_##T((const T *)x->data + offset, step, count, order);
        SCAN_TYPES(SCAN_BEST_CASE)
    default:
        return -1;
    }
}

static hth_err scan_axis(int64_t axis, const hth_tensor *tensor, int *out)
{
    *out = ref_axis(axis, tensor->shape.rank);
    if (*out < 0) {
        return hth_fail(HTH_EINVAL, "there is no axis %lld", (long long)axis);
    }
    return tensor->dtype == HTH_DT_BOOL ? ref_no_dtype(tensor->dtype) : HTH_OK;
}

REF_KERNEL(ref_arg)
{
    scan_order order = {n->op == HTH_OP_ARG_MIN, hth_node_int(n, "select_last_index", 0) != 0};
    int axis;
    int64_t outer, along, inner;
    HTH_TRY(scan_axis(hth_node_int(n, "axis", 0), &in[0], &axis));
    ref_around(&in[0].shape, axis, &outer, &along, &inner);
    if (out[0].dtype != HTH_DT_I64 || ref_count(&out[0]) != outer * inner ||
        (along == 0 && outer * inner > 0)) {
        return hth_fail(HTH_EINVAL, "the output does not agree, or the axis is empty");
    }
    int64_t *y = out[0].data;
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            y[o * inner + i] = scan_best(&in[0], o * along * inner + i, inner, along, order);
        }
    }
    return HTH_OK;
}

typedef struct scan_walk {
    int64_t count, inner;
    bool exclusive, reverse;
} scan_walk;

// scan_sum sums along the axis, a row of `inner` neighbours at a time. Integers are summed
// unsigned, in 64 bits.
#define SCAN_SUM(T, A)                                                                             \
    static void scan_sum_##T(const T *x, T *y, const scan_walk *w)                                 \
    {                                                                                              \
        for (int64_t k = 0; k < w->count; k++) {                                                   \
            int64_t to = (w->reverse ? w->count - 1 - k : k) * w->inner;                           \
            int64_t before = to + (w->reverse ? w->inner : -w->inner);                             \
            for (int64_t i = 0; i < w->inner; i++) {                                               \
                A sum = k > 0 ? (A)y[before + i] : 0;                                              \
                A last = w->exclusive && k > 0 ? (A)x[before + i] : 0;                             \
                y[to + i] = (T)(sum + (w->exclusive ? last : (A)x[to + i]));                       \
            }                                                                                      \
        }                                                                                          \
    }
SCAN_SUM(float, float)
SCAN_SUM(double, double)
SCAN_SUM(int32_t, uint64_t)
SCAN_SUM(uint32_t, uint64_t)
SCAN_SUM(int64_t, uint64_t)
SCAN_SUM(uint64_t, uint64_t)

static bool scan_sum(const hth_tensor *x, hth_tensor *y, int64_t offset, const scan_walk *w)
{
    switch (x->dtype) {
#define SCAN_SUM_CASE(dt, T)                                                                       \
    case HTH_DT_##dt:                                                                              \
        scan_sum_##T((const T *)x->data + offset, (T *)y->data + offset, w);                       \
        return true;
        SCAN_SUM_CASE(F32, float)
        SCAN_SUM_CASE(F64, double)
        SCAN_SUM_CASE(I32, int32_t)
        SCAN_SUM_CASE(U32, uint32_t)
        SCAN_SUM_CASE(I64, int64_t)
        SCAN_SUM_CASE(U64, uint64_t)
    default:
        return false;
    }
}

REF_KERNEL(ref_cumsum)
{
    int axis;
    int64_t outer, along, inner;
    if (ref_count(&in[1]) != 1 || out[0].dtype != in[0].dtype ||
        !hth_shape_equal(&in[0].shape, &out[0].shape)) {
        return hth_fail(HTH_EINVAL, "input and output do not agree, or there is not one axis");
    }
    HTH_TRY(scan_axis(ref_get_i64(in[1].dtype, in[1].data, 0), &in[0], &axis));
    ref_around(&in[0].shape, axis, &outer, &along, &inner);
    scan_walk w = {along, inner, hth_node_int(n, "exclusive", 0) != 0,
                   hth_node_int(n, "reverse", 0) != 0};
    for (int64_t o = 0; o < outer; o++) {
        if (!scan_sum(&in[0], &out[0], o * along * inner, &w)) {
            return ref_no_dtype(in[0].dtype);
        }
    }
    return HTH_OK;
}
