// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/reduce.cu - reductions over any axes. hth_reduce_block gives a result to a block:
// neighbouring threads read neighbouring elements where the last axis is reduced. hth_reduce_thread
// gives a result to a thread: the same where the last axis stays. Bytes moved: the input's and the
// result's.
#include "graph/op.h"
#include "kernels/cuda/params.h"

HTH_FN float reduce_begin(int op)
{
    return op == HTH_OP_REDUCE_MAX    ? -INFINITY
           : op == HTH_OP_REDUCE_MIN  ? INFINITY
           : op == HTH_OP_REDUCE_PROD ? 1
                                      : 0;
}

HTH_FN float reduce_map(int op, float x, float power)
{
    return op == HTH_OP_GLOBAL_LP_POOL ? powf(fabsf(x), power)
           : op == HTH_OP_REDUCE_L1                                     ? fabsf(x)
           : op == HTH_OP_REDUCE_L2 || op == HTH_OP_REDUCE_SUM_SQUARE ? x * x
                                                                      : x;
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

HTH_KERNEL(hth_reduce_thread, hth_reduce_params, 1)
{
    uint32_t o = hth_index(t);
    if (o >= p->n_out) {
        return;
    }
    int64_t base = hth_offset(o, &p->outer, &p->outer_steps);
    float acc = reduce_begin(p->op);
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

HTH_KERNEL(hth_arg, hth_reduce_params, 1)
{
    uint32_t o = hth_index(t), best = 0;
    if (o >= p->n_out) {
        return;
    }
    int64_t base = hth_offset(o, &p->outer, &p->outer_steps);
    float sign = p->op == HTH_OP_ARG_MAX ? 1 : -1, max = -INFINITY;
    for (uint32_t i = 0; i < p->n_in; i++) {
        float x = sign * reduce_get(p, base, i);
        if (i == 0 || x > max || (p->last && x == max)) {
            max = x;
            best = i;
        }
    }
    ((int64_t *)p->out)[o] = best;
}
