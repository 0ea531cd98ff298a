// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_softmax.c - Softmax, LogSoftmax, Hardmax.
//
// One row at a time is gathered, transformed and scattered, so that any axis costs the same.
// Attribute flatten = 1 is the meaning before opset 13: all dimensions from the axis on are one.
#include "kernels/ref/ref_num.h"

#include <math.h>

static void softmax_log_row(double *row, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        max = row[i] > max || row[i] != row[i] ? row[i] : max;
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp(row[i] - max);
    }
    for (int64_t i = 0; i < n; i++) {
        row[i] = row[i] - max - log(sum);
    }
}

static void softmax_hard_row(double *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        best = row[i] > row[best] ? i : best;
    }
    for (int64_t i = 0; i < n; i++) {
        row[i] = i == best;
    }
}

static hth_err softmax_body(ref_mem *mem, const hth_node *n, const hth_tensor *in, hth_tensor *out)
{
    void (*fn)(double *row, int64_t n) = softmax_hard_row;
    if (n->op == HTH_OP_SOFTMAX) {
        fn = ref_softmax_row;
    } else if (n->op == HTH_OP_LOG_SOFTMAX) {
        fn = softmax_log_row;
    }
    const hth_shape *s = &in[0].shape;
    int axis = ref_axis(hth_node_int(n, "axis", -1), s->rank);
    int64_t outer = 1, along = 1, inner = 1;
    double *x, *row;
    if (axis < 0 && s->rank > 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    if (s->rank > 0) {
        ref_around(s, axis, &outer, &along, &inner);
    }
    if (hth_node_int(n, "flatten", 0)) {
        along *= inner;
        inner = 1;
    }
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(REF_TAKE(mem, along, &row));
    for (int64_t i = 0; i < outer * inner && !hth_pace_over((uint64_t)along * 8); i++) {
        double *first = x + i / inner * along * inner + i % inner;
        for (int64_t k = 0; k < along; k++) {
            row[k] = first[k * inner];
        }
        fn(row, along);
        for (int64_t k = 0; k < along; k++) {
            first[k * inner] = row[k];
        }
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

REF_OP(ref_softmax, softmax_body)
