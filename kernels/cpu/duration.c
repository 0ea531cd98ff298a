// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/duration.h"

#include "base/settings.h"
#include "graph/attention.h"

#include <string.h>

// Products that one core makes in a nanosecond.
#define DURATION_MATRIX          100.0 // as a product of matrices
#define DURATION_ROWS            30.0  // as one of few rows
#define DURATION_WINDOW          10.0  // each window for itself
#define DURATION_LARGE           1.0   // .. of more elements than the fast kernels are made for
#define DURATION_ELEMENTS        2048  // as many
#define DURATION_MATRIX_CHANNELS 16    // a window's product with so many filters is one of matrices

static const hth_shape *duration_shape(const hth_graph *graph, const int *values, int n, int k)
{
    static const hth_shape none = {.rank = 0};
    return k < n && values[k] >= 0 ? &graph->values[values[k]].shape : &none;
}

static double duration_elements(const hth_shape *shape)
{
    double n = 1;
    for (int i = 0; i < shape->rank; i++) {
        n *= (double)shape->dim[i];
    }
    return n;
}

// duration_filter is the time of `outputs` windows of filters `shape` (M, ..), of `per_output`
// channels.
static double duration_filter(double outputs, const hth_shape *shape, double per_output,
                              int64_t group)
{
    double window = 1;
    for (int i = 2; i < shape->rank; i++) {
        window *= (double)shape->dim[i];
    }
    double groups = group > 0 ? (double)group : 1;
    double channels = shape->rank > 0 ? (double)shape->dim[0] / groups : 0;
    double rate = channels < DURATION_MATRIX_CHANNELS ? DURATION_LARGE : DURATION_ROWS;
    rate = window <= DURATION_ELEMENTS ? DURATION_MATRIX : rate;
    return outputs * per_output * window / rate;
}

// duration_pool: of as many windows as `shape` has elements.
static double duration_pool(const hth_node *node, const hth_shape *shape)
{
    int64_t kernel[HTH_MAX_RANK];
    int rank = hth_node_ints(node, "kernel_shape", kernel, HTH_MAX_RANK);
    double window = 1;
    for (int i = 0; i < rank; i++) {
        window *= (double)kernel[i];
    }
    return duration_elements(shape) * window /
           (window <= DURATION_ELEMENTS ? DURATION_WINDOW : DURATION_LARGE);
}

// duration_matrix: of a product whose second factor is `b`.
static double duration_matrix(const hth_node *node, const hth_shape *b, const hth_shape *y)
{
    bool across = node->op == HTH_OP_GEMM && hth_node_int(node, "transB", 0) != 0;
    int along = b->rank - (b->rank < 2 || across ? 1 : 2);
    double sum = b->rank == 0 ? 0 : (double)b->dim[along];
    return duration_elements(y) * sum / DURATION_MATRIX;
}

// duration_cells: of T * B cells, whose two matrices are w and r.
static double duration_cells(const hth_shape *x, const hth_shape *w, const hth_shape *r)
{
    double cells = x->rank == 3 ? (double)x->dim[0] * (double)x->dim[1] : 0;
    return cells * (duration_elements(w) + duration_elements(r)) / DURATION_MATRIX;
}

static double duration_attention(const hth_graph *graph, const hth_node *node)
{
    hth_attention a;
    if (hth_attention_get(graph, node, &a) != HTH_OK) {
        return 0;
    }
    return (double)a.b0 * (double)a.b1 * (double)a.t * (double)a.s * (double)(a.d + a.e) /
           DURATION_MATRIX;
}

// duration_ns is the time of one core.
static double duration_ns(const hth_graph *graph, const hth_node *node)
{
    const hth_shape *x = duration_shape(graph, node->inputs, node->n_inputs, 0),
                    *w = duration_shape(graph, node->inputs, node->n_inputs, 1),
                    *r = duration_shape(graph, node->inputs, node->n_inputs, 2),
                    *y = duration_shape(graph, node->outputs, node->n_outputs, 0);
    int64_t group = hth_node_int(node, "group", 1);
    switch (node->op) {
    case HTH_OP_CONV:
        return duration_filter(duration_elements(y), w, w->rank > 1 ? (double)w->dim[1] : 1, group);
    case HTH_OP_CONV_TRANSPOSE: // each input element goes to a window of each output channel
        return duration_filter(duration_elements(x), w, w->rank > 1 ? (double)w->dim[1] : 1, 1);
    case HTH_OP_CONV_GRAD_DATA: // of dy and the filters
        return duration_filter(duration_elements(x), w, w->rank > 1 ? (double)w->dim[1] : 1, group);
    case HTH_OP_CONV_GRAD_FILTER: // of x and dy, the filters' gradient
        return duration_filter(duration_elements(w), y, y->rank > 1 ? (double)y->dim[1] : 1, group);
    case HTH_OP_MAT_MUL:
    case HTH_OP_GEMM:
        return duration_matrix(node, w, y);
    case HTH_OP_MAX_POOL:
    case HTH_OP_MAX_POOL_TRAIN:
    case HTH_OP_AVERAGE_POOL:
        return duration_pool(node, y);
    case HTH_OP_MAX_POOL_GRAD:
    case HTH_OP_AVERAGE_POOL_GRAD:
        return duration_pool(node, x);
    case HTH_OP_LRN:
    case HTH_OP_LRN_GRAD:
        return duration_elements(x) * (double)hth_node_int(node, "size", 1) / DURATION_LARGE;
    case HTH_OP_RNN:
    case HTH_OP_GRU:
    case HTH_OP_LSTM:
    case HTH_OP_RNN_GRAD:
        return duration_cells(x, w, r);
    case HTH_OP_FUSED_ATTENTION:
        return duration_attention(graph, node);
    default:
        return 0;
    }
}

double hth_cpu_duration_s(const hth_graph *graph, const hth_node *node, int threads)
{
    return duration_ns(graph, node) / (threads > 1 ? threads : 1) / 1e9;
}

hth_err hth_cpu_duration_check(const hth_device *device, const hth_graph *graph,
                               const hth_node *node)
{
    double s = hth_cpu_duration_s(graph, node, device->props.n_threads),
           most = hth_setting_real(HTH_SET_LIMIT_OPERATOR_SECONDS);
    bool cpu = strncmp(device->props.name, "cpu", 3) == 0; // others compute in a time of their own
    return !cpu || s <= most
               ? HTH_OK
               : hth_fail(HTH_EINVAL,
                          "node '%s' (%s) would compute for at least %.0f s on %d threads, where "
                          "nobody else is served; at most %.0f s are allowed "
                          "(limits.operator_seconds)",
                          node->name, hth_op_name(node->op), s, device->props.n_threads, most);
}
