// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/reduce.cu - reductions over any axes. hth_reduce_block gives a result to a block:
// neighbouring threads read neighbouring elements where the last axis is reduced. hth_reduce_thread
// gives a result to a thread: the same where the last axis stays, and all of integers and F64.
// Bytes moved: the input's and the result's.
#include "graph/op.h"
#include "kernels/cuda/number.h"
#include "kernels/cuda/params.h"

HTH_FN float reduce_begin(int op)
{
    switch (op) {
    case HTH_OP_REDUCE_MAX: return -INFINITY;
    case HTH_OP_REDUCE_MIN: return INFINITY;
    case HTH_OP_REDUCE_PROD: return 1;
    default: return 0;
    }
}

HTH_FN float reduce_map(int op, float x, float power)
{
    switch (op) {
    case HTH_OP_GLOBAL_LP_POOL: return powf(fabsf(x), power);
    case HTH_OP_REDUCE_L1: return fabsf(x);
    case HTH_OP_REDUCE_L2:
    case HTH_OP_REDUCE_SUM_SQUARE: return x * x;
    default: return x;
    }
}

HTH_FN float reduce_join(int op, float a, float b)
{
    switch (op) {
    case HTH_OP_REDUCE_MAX: return b > a || b != b ? b : a;
    case HTH_OP_REDUCE_MIN: return b < a || b != b ? b : a;
    case HTH_OP_REDUCE_PROD: return a * b;
    default: return a + b;
    }
}

HTH_FN float reduce_end(int op, float x, uint32_t n, float power)
{
    switch (op) {
    case HTH_OP_GLOBAL_LP_POOL: return powf(x, 1 / power);
    case HTH_OP_REDUCE_MEAN: return x / (float)n;
    case HTH_OP_REDUCE_L2: return sqrtf(x);
    case HTH_OP_REDUCE_LOG_SUM: return logf(x);
    default: return x;
    }
}

// Element i of what begins at `base`.
HTH_FN float reduce_get(const hth_reduce_params *p, int64_t base, uint32_t i)
{
    return hth_get(p->in, base + hth_offset(i, &p->inner, &p->inner_steps), p->half_in);
}

HTH_KERNEL(hth_reduce_block, hth_reduce_params, 3)
{
    float *fold = shared + t->n_threads, acc = reduce_begin(p->op);
    if (phase == 0) {
        int64_t base = hth_offset(t->block, &p->outer, &p->outer_steps);
        for (uint32_t i = t->thread; i < p->n_in; i += t->n_threads) {
            float x = reduce_get(p, base, i);
            acc = reduce_join(p->op, acc, reduce_map(p->op, x, p->p));
        }
        shared[t->thread] = acc;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        for (uint32_t i = t->thread; i < t->n_threads; i += HTH_FOLD) {
            acc = reduce_join(p->op, acc, shared[i]);
        }
        fold[t->thread] = acc;
    } else if (phase == 2 && t->thread == 0) {
        for (int i = 0; i < HTH_FOLD; i++) {
            acc = reduce_join(p->op, acc, fold[i]);
        }
        hth_set(p->out, t->block, reduce_end(p->op, acc, p->n_in, p->p), p->half_out);
    }
}

HTH_FN float reduce_log_sum_exp(const hth_reduce_params *p, int64_t base)
{
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < p->n_in; i++) {
        max = reduce_join(HTH_OP_REDUCE_MAX, max, reduce_get(p, base, i));
    }
    float zero = isinf(max) ? 0 : max;
    for (uint32_t i = 0; i < p->n_in; i++) {
        sum += expf(reduce_get(p, base, i) - zero);
    }
    return logf(sum) + zero;
}

// What a maximum (`most`) or minimum of nothing is.
HTH_FN int64_t reduce_limit(int type, int most)
{
    switch (type) {
    case HTH_DT_BOOL: return !most;
    case HTH_DT_U8: return most ? 0 : UINT8_MAX;
    case HTH_DT_I8: return most ? INT8_MIN : INT8_MAX;
    case HTH_DT_U16: return most ? 0 : UINT16_MAX;
    case HTH_DT_I16: return most ? INT16_MIN : INT16_MAX;
    case HTH_DT_U32: return most ? 0 : UINT32_MAX;
    case HTH_DT_I32: return most ? INT32_MIN : INT32_MAX;
    case HTH_DT_U64: return most ? 0 : -1;
    default: return most ? INT64_MIN : INT64_MAX;
    }
}

HTH_FN int reduce_below(int type, int64_t a, int64_t b)
{
    return type == HTH_DT_U64 ? (uint64_t)a < (uint64_t)b : a < b;
}

HTH_FN int64_t reduce_integer_join(const hth_reduce_params *p, int64_t a, int64_t v)
{
    switch (p->op) {
    case HTH_OP_REDUCE_MAX: return reduce_below(p->type, v, a) ? a : v;
    case HTH_OP_REDUCE_MIN: return reduce_below(p->type, v, a) ? v : a;
    case HTH_OP_REDUCE_PROD: return (int64_t)((uint64_t)a * (uint64_t)v);
    case HTH_OP_REDUCE_SUM_SQUARE: return (int64_t)((uint64_t)a + (uint64_t)v * (uint64_t)v);
    case HTH_OP_REDUCE_L1:
        v = v < 0 && p->type != HTH_DT_U64 ? (int64_t)(0 - (uint64_t)v) : v;
        return (int64_t)((uint64_t)a + (uint64_t)v);
    default: return (int64_t)((uint64_t)a + (uint64_t)v);
    }
}

HTH_FN int64_t reduce_integer(const hth_reduce_params *p, int64_t base)
{
    int most = p->op == HTH_OP_REDUCE_MAX;
    int64_t acc = most || p->op == HTH_OP_REDUCE_MIN ? reduce_limit(p->type, most)
                                                     : p->op == HTH_OP_REDUCE_PROD;
    for (uint32_t i = 0; i < p->n_in; i++) {
        int64_t at = base + hth_offset(i, &p->inner, &p->inner_steps);
        acc = reduce_integer_join(p, acc, hth_number_int(p->type, p->in, at));
    }
    if (p->op != HTH_OP_REDUCE_MEAN) {
        return acc;
    }
    if (p->n_in == 0) {
        return 0;
    }
    return p->type == HTH_DT_U64 ? (int64_t)((uint64_t)acc / p->n_in) : acc / (int64_t)p->n_in;
}

HTH_FN double reduce_wide_join(int op, double a, double v, double max)
{
    switch (op) {
    case HTH_OP_REDUCE_MAX: return a > v || a != a ? a : v;
    case HTH_OP_REDUCE_MIN: return a < v || a != a ? a : v;
    case HTH_OP_REDUCE_PROD: return a * v;
    case HTH_OP_REDUCE_L1: return a + fabs(v);
    case HTH_OP_REDUCE_L2:
    case HTH_OP_REDUCE_SUM_SQUARE: return a + v * v;
    case HTH_OP_REDUCE_LOG_SUM_EXP: return a + exp(v - max);
    default: return a + v;
    }
}

HTH_FN double reduce_wide_fold(const hth_reduce_params *p, int64_t base, int op, double max)
{
    double acc = reduce_begin(op);
    for (uint32_t i = 0; i < p->n_in; i++) {
        int64_t at = base + hth_offset(i, &p->inner, &p->inner_steps);
        acc = reduce_wide_join(op, acc, hth_number_get(p->type, p->in, at).f, max);
    }
    return acc;
}

// Of F64 and F16.
HTH_FN double reduce_wide(const hth_reduce_params *p, int64_t base)
{
    double max = 0, acc;
    if (p->op == HTH_OP_REDUCE_LOG_SUM_EXP) {
        max = reduce_wide_fold(p, base, HTH_OP_REDUCE_MAX, 0);
        max = isfinite(max) ? max : 0;
    }
    acc = reduce_wide_fold(p, base, p->op, max);
    switch (p->op) {
    case HTH_OP_REDUCE_MEAN: return acc / p->n_in;
    case HTH_OP_REDUCE_L2: return sqrt(acc);
    case HTH_OP_REDUCE_LOG_SUM:
    case HTH_OP_REDUCE_LOG_SUM_EXP: return log(acc) + max;
    default: return acc;
    }
}

HTH_KERNEL(hth_reduce_thread, hth_reduce_params, 1)
{
    uint32_t o = hth_index(t);
    if (o >= p->n_out) {
        return;
    }
    int64_t base = hth_offset(o, &p->outer, &p->outer_steps);
    float acc = reduce_begin(p->op);
    if (p->type != 0) {
        const int real = hth_number_is_float(p->type);
        hth_number v = {0, 0};
        if (real) {
            v.f = reduce_wide(p, base);
        } else {
            v.i = reduce_integer(p, base);
        }
        hth_number_set(p->type, p->out, o, v);
        return;
    }
    if (p->op == HTH_OP_REDUCE_LOG_SUM_EXP) {
        hth_set(p->out, o, reduce_log_sum_exp(p, base), p->half_out);
        return;
    }
    for (uint32_t i = 0; i < p->n_in; i++) {
        float x = reduce_get(p, base, i);
        acc = reduce_join(p->op, acc, reduce_map(p->op, x, p->p));
    }
    hth_set(p->out, o, reduce_end(p->op, acc, p->n_in, p->p), p->half_out);
}

// Whether v takes the place of `best`; the first NaN does, and keeps it.
HTH_FN int arg_better(const hth_reduce_params *p, hth_number best, hth_number v)
{
    if (!hth_number_is_float(p->type)) {
        int above = p->op == HTH_OP_ARG_MAX ? reduce_below(p->type, best.i, v.i)
                                            : reduce_below(p->type, v.i, best.i);
        return above || (p->last && v.i == best.i);
    }
    int above = p->op == HTH_OP_ARG_MAX ? v.f > best.f : v.f < best.f;
    return best.f == best.f && (v.f != v.f || above || (p->last && v.f == best.f));
}

HTH_KERNEL(hth_arg, hth_reduce_params, 1)
{
    uint32_t o = hth_index(t), at = 0;
    if (o >= p->n_out) {
        return;
    }
    int64_t base = hth_offset(o, &p->outer, &p->outer_steps);
    hth_number best = hth_number_get(p->type, p->in, base);
    for (uint32_t i = 1; i < p->n_in; i++) {
        const hth_number v =
            hth_number_get(p->type, p->in, base + hth_offset(i, &p->inner, &p->inner_steps));
        if (arg_better(p, best, v)) {
            best = v;
            at = i;
        }
    }
    ((int64_t *)p->out)[o] = at;
}
