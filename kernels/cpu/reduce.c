// SPDX-License-Identifier: Apache-2.0
// Reductions of plain f32 tensors: Softmax over the last axis, ReduceSum,
// ReduceMean, ReduceL2 and ReduceSumSquare over neighbouring axes. Over the last axes a row becomes
// a number; over axes in the middle, rows are added to each other.
#include "kernels/cpu/plain.h"

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector.h"

typedef struct rows_kernel {
    hth_kernel base;
    int n_threads;
    hth_op op;
    size_t outer, along, inner;
} rows_kernel;

typedef struct rows_job {
    const rows_kernel *k;
    const float *x;
    float *y;
} rows_job;

HTH_VECTOR(rows_add, (const float *x, float *y, size_t n, bool square), (x, y, n, square))
{
    if (square) {
        for (size_t i = 0; i < n; i++) {
            y[i] += x[i] * x[i];
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

HTH_VECTOR(rows_finish, (float *y, size_t n, float scale, bool root), (y, n, scale, root))
{
    for (size_t i = 0; i < n; i++) {
        y[i] = root ? sqrtf(y[i]) : y[i] * scale;
    }
}

static void rows_one(const rows_job *job, size_t r)
{
    const rows_kernel *k = job->k;
    const float *x = job->x + r * k->along * k->inner;
    bool square = k->op == HTH_OP_REDUCE_L2 || k->op == HTH_OP_REDUCE_SUM_SQUARE;
    float *y = job->y + r * k->inner;
    if (k->op == HTH_OP_SOFTMAX) {
        hth_softmax_row(x, job->y + r * k->along, k->along, NAN);
        return;
    }
    if (k->inner == 1) {
        *y = square ? hth_row_squares(x, k->along, 0) : hth_row_sum(x, k->along);
    } else {
        memset(y, 0, k->inner * sizeof *y);
        for (size_t i = 0; i < k->along; i++) {
            rows_add(x + i * k->inner, y, k->inner, square);
        }
    }
    if (k->op == HTH_OP_REDUCE_MEAN || k->op == HTH_OP_REDUCE_L2) {
        rows_finish(y, k->inner, 1.0F / (float)k->along, k->op == HTH_OP_REDUCE_L2);
    }
}

static void rows_share(void *arg, int i, int n)
{
    const rows_job *j = arg;
    size_t begin, end;
    hth_team_range(j->k->outer, i, n, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        rows_one(j, r);
    }
}

static hth_err rows_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const rows_kernel *k = (const rows_kernel *)base;
    rows_job j = {k, args->in[0], args->out[0]};
    size_t cost = k->op == HTH_OP_SOFTMAX ? 8 : 1;
    hth_cpu_share(k->n_threads, k->outer * k->along * k->inner * cost, rows_share, &j);
    return HTH_OK;
}

// The axes that are reduced, as a bit each; 0: not known now.
unsigned cpu_reduce_axes(const hth_graph *graph, const hth_node *node, int rank)
{
    unsigned all = (1U << rank) - 1, mask = 0;
    if (node->op == HTH_OP_SOFTMAX) {
        int64_t axis = hth_node_int(node, "axis", -1);
        return 1U << (axis < 0 ? axis + rank : axis);
    }
    if (node->n_inputs < 2 || node->inputs[1] < 0) {
        return hth_node_int(node, "noop_with_empty_axes", 0) != 0 ? 0 : all;
    }
    const hth_const *c = graph->values[node->inputs[1]].constant;
    if (c == NULL || c->data == NULL || c->dtype != HTH_DT_I64) {
        return 0;
    }
    for (size_t i = 0; i < c->bytes / sizeof(int64_t); i++) {
        int64_t axis = ((const int64_t *)c->data)[i];
        axis += axis < 0 ? rank : 0;
        if (axis < 0 || axis >= rank) {
            return 0;
        }
        mask |= 1U << axis;
    }
    return mask;
}

hth_err cpu_rows_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    rows_kernel k = {
        .n_threads = device->props.n_threads, .op = node->op, .outer = 1, .along = 1, .inner = 1};
    const hth_shape *s = &graph->values[node->inputs[0]].shape;
    unsigned axes =
        algorithm == NULL && node->n_post == 0 && s->rank > 0 && cpu_plain_f32(graph, node, 1)
            ? cpu_reduce_axes(graph, node, s->rank)
            : 0;
    for (int i = 0; i < s->rank && axes != 0; i++) {
        size_t dim = (size_t)s->dim[i];
        if ((axes >> i & 1) != 0) {
            k.along *= dim;
            if (k.inner > 1) {
                axes = 0; // not neighbours
            }
        } else if (axes >> i != 0 && k.along == 1) {
            k.outer *= dim;
        } else {
            k.inner *= dim;
        }
    }
    if (axes == 0 || (node->op == HTH_OP_SOFTMAX && k.inner != 1)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or axes", node->name);
    }
    k.base = (hth_kernel){.run = rows_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "rows",
                          .inplace_input = -1};
    k.base.inplace_input = node->op == HTH_OP_SOFTMAX ? 0 : -1;
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
