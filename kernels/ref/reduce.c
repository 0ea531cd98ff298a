// SPDX-License-Identifier: Apache-2.0
// kernels/ref/reduce.c - ReduceSum, ReduceMax ...: folding axes away.
//
// One accumulator per output element, double for floats and int64 for integers (unsigned 64 bits by
// their bits), in memory taken per call. The loop runs over the input as it lies; where the
// innermost run is kept, a row of accumulators takes a row of input, where it is folded, eight
// partial results hide the latency of the addition. Axes of no elements leave the neutral element,
// as ONNX says.
#include "kernels/ref/ref.h"

#include "base/alloc.h"

#include <math.h>

typedef enum reduce_fold {
    FOLD_SUM,
    FOLD_ABS,
    FOLD_SQUARE,
    FOLD_EXP,
    FOLD_PROD,
    FOLD_MAX,
    FOLD_MIN
} reduce_fold;

static reduce_fold reduce_fold_of(hth_op op)
{
    switch (op) {
    case HTH_OP_REDUCE_L1:
        return FOLD_ABS;
    case HTH_OP_REDUCE_L2:
    case HTH_OP_REDUCE_SUM_SQUARE:
        return FOLD_SQUARE;
    case HTH_OP_REDUCE_LOG_SUM_EXP:
        return FOLD_EXP;
    case HTH_OP_REDUCE_PROD:
        return FOLD_PROD;
    case HTH_OP_REDUCE_MAX:
        return FOLD_MAX;
    case HTH_OP_REDUCE_MIN:
        return FOLD_MIN;
    default:
        return FOLD_SUM;
    }
}

// Y(fold, expression of the accumulator a and the element v); m is the maximum that LogSumExp
// subtracts.
#define REDUCE_FLOAT_FOLDS(Y)                                                                      \
    Y(FOLD_SUM, a + v)                                                                             \
    Y(FOLD_ABS, a + fabs(v))                                                                       \
    Y(FOLD_SQUARE, a + v * v)                                                                      \
    Y(FOLD_EXP, a + exp(v - m))                                                                    \
    Y(FOLD_PROD, a *v)                                                                             \
    Y(FOLD_MAX, a > v || a != a ? a : v)                                                           \
    Y(FOLD_MIN, a < v || a != a ? a : v)

// REDUCE_RUN folds a run of x into acc: all of it into acc[0] (sa = 0), or each element into its
// own.
#define REDUCE_CASE(fold, expression)                                                              \
    case fold:                                                                                     \
        if (sa == 0) {                                                                             \
            double part[8];                                                                        \
            int64_t i = 0;                                                                         \
            for (int k = 0; k < 8; k++) {                                                          \
                part[k] = neutral;                                                                 \
            }                                                                                      \
            for (; i + 8 <= n; i += 8) {                                                           \
                for (int k = 0; k < 8; k++) {                                                      \
                    double a = part[k], v = x[(i + k) * sx], m = *max;                             \
                    (void)m;                                                                       \
                    part[k] = expression;                                                          \
                }                                                                                  \
            }                                                                                      \
            for (; i < n; i++) {                                                                   \
                double a = part[0], v = x[i * sx], m = *max;                                       \
                (void)m;                                                                           \
                part[0] = expression;                                                              \
            }                                                                                      \
            for (int k = 0; k < 8; k++) {                                                          \
                *acc = reduce_join(fold, *acc, part[k]);                                           \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                double a = acc[i * sa], v = x[i * sx], m = max[i * sm];                            \
                (void)m;                                                                           \
                acc[i * sa] = expression;                                                          \
            }                                                                                      \
        }                                                                                          \
        break;
#define REDUCE_RUN(T)                                                                              \
    static void reduce_run_##T(reduce_fold fold, double neutral, double *acc, int64_t sa,          \
                               const T *x, int64_t sx, const double *max, int64_t sm, int64_t n)   \
    {                                                                                              \
        switch (fold) {                                                                            \
            REDUCE_FLOAT_FOLDS(REDUCE_CASE)                                                        \
        }                                                                                          \
    }

static double reduce_join(reduce_fold fold, double a, double v)
{
    switch (fold) {
    case FOLD_PROD:
        return a * v;
    case FOLD_MAX:
        return a > v || a != a ? a : v;
    case FOLD_MIN:
        return a < v || a != a ? a : v;
    default:
        return a + v;
    }
}
REDUCE_RUN(float)
REDUCE_RUN(double)

static double reduce_neutral(reduce_fold fold)
{
    switch (fold) {
    case FOLD_PROD:
        return 1;
    case FOLD_MAX:
        return -INFINITY;
    case FOLD_MIN:
        return INFINITY;
    default:
        return 0;
    }
}

// reduce_widened folds a run of integers as doubles: LogSumExp has no integer form.
static void reduce_widened(const ref_iter *it, reduce_fold fold, const hth_tensor *tensor,
                           double *acc, const double *max, int64_t sm)
{
    for (int64_t i = 0; i < it->count; i++) {
        double v = ref_get_f64(tensor->dtype, tensor->data, it->offset[0] + i * it->stride[0]);
        reduce_run_double(fold, reduce_neutral(fold), acc + i * it->stride[1], 0, &v, 1,
                          max + i * sm, 0, 1);
    }
}

// reduce_floats folds the whole loop into acc; max: one value per accumulator, for FOLD_EXP.
static void reduce_floats(ref_iter it, bool more, reduce_fold fold, const hth_tensor *tensor,
                          double *acc, int64_t n_acc, const double *max)
{
    static const double zero = 0;
    double neutral = reduce_neutral(fold);
    for (int64_t i = 0; i < n_acc; i++) {
        acc[i] = neutral;
    }
    for (; more; more = ref_iter_next(&it)) {
        const double *m = max ? max + it.offset[1] : &zero;
        double *a = acc + it.offset[1];
        if (tensor->dtype == HTH_DT_F32) {
            reduce_run_float(fold, neutral, a, it.stride[1],
                             (const float *)tensor->data + it.offset[0], it.stride[0], m,
                             max ? it.stride[1] : 0, it.count);
        } else if (ref_is_int(tensor->dtype)) {
            reduce_widened(&it, fold, tensor, a, m, max ? it.stride[1] : 0);
        } else {
            reduce_run_double(fold, neutral, a, it.stride[1],
                              (const double *)tensor->data + it.offset[0], it.stride[0], m,
                              max ? it.stride[1] : 0, it.count);
        }
    }
}

static double reduce_finish(hth_op op, double a, double max, int64_t folded)
{
    switch (op) {
    case HTH_OP_REDUCE_MEAN:
        return a / (double)folded;
    case HTH_OP_REDUCE_L2:
        return sqrt(a);
    case HTH_OP_REDUCE_LOG_SUM:
        return log(a);
    case HTH_OP_REDUCE_LOG_SUM_EXP:
        return log(a) + max;
    default:
        return a;
    }
}

static hth_err reduce_float(const hth_node *node, const hth_tensor *x, hth_tensor *y,
                            const ref_iter *it, bool more)
{
    int64_t count = ref_count(y);
    reduce_fold fold = reduce_fold_of(node->op);
    double *acc = hth_calloc((size_t)count * 2 + 1, sizeof *acc);
    if (acc == NULL) {
        return hth_no_memory("%lld accumulators", (long long)count);
    }
    double *max = fold == FOLD_EXP ? acc + count : NULL;
    if (max != NULL) {
        reduce_floats(*it, more, FOLD_MAX, x, max, count, NULL);
        for (int64_t i = 0; i < count; i++) {
            max[i] = isfinite(max[i]) ? max[i] : 0;
        }
    }
    reduce_floats(*it, more, fold, x, acc, count, max);
    int64_t folded = count > 0 ? ref_count(x) / count : 0;
    for (int64_t i = 0; i < count; i++) {
        ref_set_f64(y->dtype, y->data, i,
                    reduce_finish(node->op, acc[i], max ? max[i] : 0, folded));
    }
    hth_free(acc);
    return HTH_OK;
}

// reduce_limit is the smallest or largest value of an integer dtype, as an int64_t (u64: its bits).
static int64_t reduce_limit(hth_dtype dt, bool largest)
{
    int bits = (int)hth_dtype_bytes(dt) * 8;
    switch (dt) {
    case HTH_DT_BOOL:
        return largest;
    case HTH_DT_U8:
    case HTH_DT_U16:
    case HTH_DT_U32:
    case HTH_DT_U64:
        return largest ? (int64_t)(UINT64_MAX >> (64 - bits)) : 0;
    default:
        return largest ? INT64_MAX >> (64 - bits) : INT64_MIN >> (64 - bits);
    }
}

static int64_t reduce_int_step(reduce_fold fold, bool is_unsigned, int64_t a, int64_t v)
{
    bool less = is_unsigned ? (uint64_t)v < (uint64_t)a : v < a;
    switch (fold) {
    case FOLD_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)v);
    case FOLD_MAX:
        return less ? a : v;
    case FOLD_MIN:
        return less ? v : a;
    case FOLD_ABS:
        return (int64_t)((uint64_t)a + (v < 0 && !is_unsigned ? 0 - (uint64_t)v : (uint64_t)v));
    case FOLD_SQUARE:
        return (int64_t)((uint64_t)a + (uint64_t)v * (uint64_t)v);
    default:
        return (int64_t)((uint64_t)a + (uint64_t)v);
    }
}

// The mean of `n` integers with this sum, of which none has none.
static int64_t reduce_int_mean(int64_t sum, int64_t n, bool is_unsigned)
{
    if (n == 0) {
        return 0;
    }
    return is_unsigned ? (int64_t)((uint64_t)sum / (uint64_t)n) : sum / n;
}

static hth_err reduce_int(const hth_node *node, const hth_tensor *x, hth_tensor *y,
                          const ref_iter *start, bool more)
{
    int64_t count = ref_count(y);
    reduce_fold fold = reduce_fold_of(node->op);
    bool is_unsigned = x->dtype == HTH_DT_U64;
    int64_t neutral = fold == FOLD_PROD;
    if (fold == FOLD_MAX || fold == FOLD_MIN) {
        neutral = reduce_limit(x->dtype, fold == FOLD_MIN);
    }
    ref_iter it = *start;
    int64_t *acc = hth_calloc((size_t)count + 1, sizeof *acc);
    if (acc == NULL) {
        return hth_no_memory("%lld accumulators", (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        acc[i] = neutral;
    }
    for (; more; more = ref_iter_next(&it)) {
        for (int64_t i = 0; i < it.count; i++) {
            int64_t *a = &acc[it.offset[1] + i * it.stride[1]];
            int64_t v = ref_get_i64(x->dtype, x->data, it.offset[0] + i * it.stride[0]);
            *a = reduce_int_step(fold, is_unsigned, *a, v);
        }
    }
    int64_t folded = count > 0 ? ref_count(x) / count : 0;
    for (int64_t i = 0; i < count; i++) {
        if (node->op == HTH_OP_REDUCE_MEAN) {
            ref_set_i64(y->dtype, y->data, i, reduce_int_mean(acc[i], folded, is_unsigned));
        } else if (node->op == HTH_OP_REDUCE_L2 || node->op == HTH_OP_REDUCE_LOG_SUM) {
            ref_set_f64(y->dtype, y->data, i, reduce_finish(node->op, (double)acc[i], 0, folded));
        } else {
            ref_set_i64(y->dtype, y->data, i, acc[i]);
        }
    }
    hth_free(acc);
    return HTH_OK;
}

// reduce_axes finds the axes that are folded: input 1, or all when it is absent or empty.
static hth_err reduce_axes(const hth_node *node, const hth_tensor *in, int rank,
                           bool mask[HTH_MAX_RANK])
{
    const hth_tensor *axes = ref_in(node, in, 1);
    if (axes != NULL && ref_count(axes) > 0) {
        return ref_axes(axes, rank, mask);
    }
    for (int d = 0; d < HTH_MAX_RANK; d++) {
        mask[d] = hth_node_int(node, "noop_with_empty_axes", 0) == 0;
    }
    return HTH_OK;
}

REF_KERNEL(ref_reduce)
{
    const hth_shape *s = &in[0].shape;
    bool mask[HTH_MAX_RANK];
    int64_t step[HTH_MAX_RANK][REF_MAX_OPERANDS] = {{0}}, own[HTH_MAX_RANK], kept = 1;
    HTH_TRY(reduce_axes(n, in, s->rank, mask));
    ref_steps(s, own);
    for (int d = s->rank - 1; d >= 0; d--) {
        step[d][0] = own[d];
        step[d][1] = mask[d] ? 0 : kept;
        kept *= mask[d] ? 1 : s->dim[d];
    }
    if (ref_count(&out[0]) != kept || out[0].dtype != in[0].dtype) {
        return hth_fail(HTH_EINVAL, "the output does not agree with the axes");
    }
    ref_iter it;
    bool more = ref_iter_strided(&it, s->rank, s->dim, 2, step);
    bool whole = ref_is_int(in[0].dtype) && n->op != HTH_OP_REDUCE_LOG_SUM_EXP;
    return (whole ? reduce_int : reduce_float)(n, &in[0], &out[0], &it, more);
}
