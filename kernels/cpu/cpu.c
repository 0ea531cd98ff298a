// SPDX-License-Identifier: Apache-2.0
// The table of the CPU's kernels. An operator may have several rows; they are asked in order. The
// fall-back after them takes whatever is left, but only by default: an algorithm asked for by name
// is made by that name or not at all.
#include "kernels/cpu/cpu.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "kernels/cpu/blocked.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/duration.h"
#include "kernels/cpu/kmeans/kmeans_cpu.h"
#include "kernels/cpu/lowered.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/primitive.h"
#include "kernels/cpu/train/train.h"
#include "kernels/cpu/winograd/winograd.h"

#include <stdio.h>
#include <string.h>

typedef struct cpu_row {
    hth_op op;
    hth_cpu_prepare_fn prepare;
    // algorithms lists alternatives; NULL: one, "default".
    hth_err (*algorithms)(hth_device *device, const hth_graph *graph, const hth_node *node,
                          hth_choice *list, int cap, int *count);
    // The oracle's questions (graph/passes/pass.h); NULL: nothing can be fused, the layout is
    // plain.
    bool (*can_fuse)(hth_device *device, const hth_graph *graph, const hth_node *node,
                     const hth_post_op *post, int operand);
    hth_layout (*layout)(hth_device *device, const hth_graph *graph, const hth_node *node,
                         bool *any);
    bool (*reads_plain)(hth_device *device, const hth_graph *graph, const hth_node *node);
} cpu_row;

// clang-format off
static const cpu_row cpu_table[] = {
    {HTH_OP_CONV, cpu_conv_prepare, cpu_conv_algorithms, cpu_conv_can_fuse, cpu_conv_layout,
     cpu_conv_reads_plain},
    {HTH_OP_CONV, cpu_winograd_prepare, NULL, NULL, NULL, NULL},
    {HTH_OP_CONV, cpu_lowered_prepare, NULL, NULL, NULL, NULL},
    {HTH_OP_CONV_TRANSPOSE, cpu_conv_prepare, cpu_conv_algorithms, cpu_conv_can_fuse,
     cpu_conv_layout, NULL},
#define CPU_CONV_GRAD(op) \
    {HTH_OP_CONV_GRAD_##op, cpu_conv_grad_prepare, cpu_conv_grad_algorithms, \
     cpu_conv_grad_can_fuse, cpu_conv_grad_layout, cpu_conv_grad_reads_plain}, \
    {HTH_OP_CONV_GRAD_##op, cpu_winograd_prepare, NULL, NULL, NULL, NULL}
    CPU_CONV_GRAD(DATA), CPU_CONV_GRAD(FILTER),
#define CPU_POOL(op) {HTH_OP_##op, cpu_pool_prepare, NULL, NULL, cpu_pool_layout, NULL}
    CPU_POOL(MAX_POOL), CPU_POOL(AVERAGE_POOL), CPU_POOL(GLOBAL_MAX_POOL),
    CPU_POOL(GLOBAL_AVERAGE_POOL), CPU_POOL(REDUCE_MEAN),
#define CPU_BINARY(op) {HTH_OP_##op, cpu_binary_prepare, NULL, NULL, cpu_binary_layout, NULL}, \
                       {HTH_OP_##op, cpu_element_prepare, NULL, NULL, NULL, NULL}
    CPU_BINARY(ADD), CPU_BINARY(SUB), CPU_BINARY(MUL), CPU_BINARY(DIV), CPU_BINARY(MIN),
    CPU_BINARY(MAX),
#define CPU_UNARY(op) {HTH_OP_##op, cpu_element_prepare, NULL, NULL, cpu_any_layout, NULL}, \
                      {HTH_OP_##op, cpu_unary_prepare, NULL, NULL, NULL, NULL}
    CPU_UNARY(RELU), CPU_UNARY(LEAKY_RELU), CPU_UNARY(CLIP), CPU_UNARY(SIGMOID), CPU_UNARY(SWISH),
    CPU_UNARY(HARD_SWISH), CPU_UNARY(HARD_SIGMOID), CPU_UNARY(GELU), CPU_UNARY(TANH),
    CPU_UNARY(ELU), CPU_UNARY(ABS), CPU_UNARY(NEG), CPU_UNARY(SQRT), CPU_UNARY(EXP),
    CPU_UNARY(MISH),
    {HTH_OP_SCALE_SHIFT, cpu_scale_prepare, NULL, cpu_scale_can_fuse, cpu_any_layout, NULL},
    {HTH_OP_BATCH_NORMALIZATION, cpu_scale_prepare, NULL, NULL, cpu_any_layout, NULL},
    {HTH_OP_LRN, cpu_lrn_prepare, NULL, NULL, cpu_any_layout, NULL},
    {HTH_OP_SOFTMAX, cpu_rows_prepare, NULL, NULL, NULL, NULL},
    {HTH_OP_SOFTMAX, cpu_softmax_prepare, NULL, NULL, NULL, NULL},
    {HTH_OP_LOG_SOFTMAX, cpu_softmax_prepare, NULL, NULL, NULL, NULL},
    {HTH_OP_CONCAT, cpu_concat_prepare, NULL, NULL, cpu_concat_layout, NULL},
    {HTH_OP_SPLIT, cpu_split_prepare, NULL, NULL, cpu_split_layout, NULL},
    {HTH_OP_RESIZE, cpu_resize_prepare, NULL, NULL, cpu_resize_layout, NULL},
    {HTH_OP_RESIZE_GRAD, cpu_resize_prepare, NULL, NULL, cpu_resize_layout, NULL},
    {HTH_OP_MAT_MUL, cpu_matmul_prepare, NULL, cpu_epilogue_can_fuse, NULL, NULL},
    {HTH_OP_GEMM, cpu_matmul_prepare, NULL, cpu_epilogue_can_fuse, NULL, NULL},
    {HTH_OP_FUSED_ATTENTION, cpu_attention_prepare, NULL, NULL, NULL, NULL},
#define CPU_PLAIN(op, how) {HTH_OP_##op, cpu_##how##_prepare, NULL, NULL, NULL, NULL}
    CPU_PLAIN(LAYER_NORMALIZATION, norm), CPU_PLAIN(RMSNORMALIZATION, norm),
    CPU_PLAIN(GROUP_NORMALIZATION, norm), CPU_PLAIN(INSTANCE_NORMALIZATION, norm),
    CPU_PLAIN(ERF, element), CPU_PLAIN(RECIPROCAL, element), CPU_PLAIN(TRANSPOSE, move),
    CPU_PLAIN(SLICE, move), CPU_PLAIN(EXPAND, move), CPU_PLAIN(GATHER, gather),
    CPU_PLAIN(RESHAPE, view), CPU_PLAIN(SQUEEZE, view), CPU_PLAIN(UNSQUEEZE, view),
    CPU_PLAIN(FLATTEN, view), CPU_PLAIN(IDENTITY, view), CPU_PLAIN(LSTM, rnn), CPU_PLAIN(GRU, rnn),
    {HTH_OP_REDUCE_SUM, cpu_channel_sum_prepare, NULL, NULL, cpu_channel_sum_layout, NULL},
    CPU_PLAIN(REDUCE_SUM, rows), CPU_PLAIN(REDUCE_MEAN, rows), CPU_PLAIN(REDUCE_L2, rows),
    CPU_PLAIN(REDUCE_SUM_SQUARE, rows),
    {HTH_OP_BATCH_NORM_TRAIN, cpu_batch_norm_train_prepare, NULL, cpu_batch_norm_can_fuse,
     cpu_any_layout, NULL},
    {HTH_OP_CONV_NORM_TRAIN, cpu_conv_norm_prepare, cpu_conv_norm_algorithms, NULL, NULL, NULL},
    {HTH_OP_CONV_NORM_GRAD, cpu_conv_norm_prepare, cpu_conv_norm_algorithms, NULL, NULL, NULL},
    {HTH_OP_BATCH_NORM_GRAD, cpu_batch_norm_grad_prepare, NULL, NULL, cpu_any_layout, NULL},
    {HTH_OP_MAX_POOL_TRAIN, cpu_max_pool_train_prepare, NULL, NULL, cpu_any_layout, NULL},
    {HTH_OP_MAX_POOL_GRAD, cpu_pool_grad_prepare, NULL, cpu_pool_grad_can_fuse, cpu_any_layout,
     NULL},
    {HTH_OP_AVERAGE_POOL_GRAD, cpu_pool_grad_prepare, NULL, cpu_pool_grad_can_fuse, cpu_any_layout,
     NULL},
    {HTH_OP_RELU_GRAD, cpu_relu_grad_prepare, NULL, NULL, cpu_any_layout, NULL},
    CPU_PLAIN(SGD_STEP, step), CPU_PLAIN(ADAM_STEP, step), CPU_PLAIN(CLIP_SCALE, clip_scale),
    CPU_PLAIN(SOFTMAX_XENT, xent), CPU_PLAIN(SOFTMAX_XENT_GRAD, xent),
    CPU_PLAIN(DROPOUT_TRAIN, dropout), CPU_PLAIN(MSE, mse), CPU_PLAIN(MSE_GRAD, mse),
    CPU_PLAIN(BCE, bce), CPU_PLAIN(BCE_GRAD, bce), CPU_PLAIN(GROUP_NORM_GRAD, group_norm_grad),
    CPU_PLAIN(RNN_GRAD, rnn_grad),
    {HTH_OP_LRN_GRAD, cpu_lrn_grad_prepare, NULL, NULL, cpu_any_layout, NULL},
    CPU_PLAIN(LAYER_NORM_GRAD, layer_norm_grad), CPU_PLAIN(SOFTMAX_GRAD, softmax_grad),
    CPU_PLAIN(LOG_SOFTMAX_GRAD, softmax_grad), CPU_PLAIN(GATHER_GRAD, gather_grad),
    {HTH_OP_ELEMENT_GRAD, cpu_element_grad_prepare, NULL, NULL, cpu_any_layout, NULL},
    {HTH_OP_REORDER, cpu_reorder_prepare, NULL, NULL, NULL, NULL},
};
// clang-format on
#define CPU_ROWS (int)(sizeof cpu_table / sizeof cpu_table[0])

hth_err hth_cpu_kernel_made(const hth_node *node, const hth_kernel *kernel, size_t bytes,
                            hth_kernel **out)
{
    *out = hth_memdup(kernel, bytes);
    return *out != NULL ? HTH_OK : hth_no_memory("node '%s'", node->name);
}

void hth_cpu_kernel_free(hth_kernel *kernel)
{
    hth_free(kernel);
}

int hth_cpu_block(const hth_device *device, hth_layout *layout)
{
    int block = device->props.vector_bytes >= 64 ? 16 : 8;
    *layout = block == 16 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
    return block;
}

// What one core does in a nanosecond, roughly: multiply-adds of a product with long sums, of one
// with short sums, bytes moved. And the time under which waking a second thread costs more than it
// saves: of a node, and of a graph of several, between whose requests that thread would sleep, or
// look for work on a processor that the request's sender wants.
#define CPU_MACS_LONG           100
#define CPU_MACS_SHORT          15
#define CPU_BYTES               10
#define CPU_ONE_THREAD_NS       8000
#define CPU_ONE_THREAD_GRAPH_NS 32000

// cpu_node_ns estimates how long one core works on a node.
static double cpu_node_ns(const hth_graph *graph, const hth_node *node)
{
    double bytes = 0, macs = 0;
    for (int k = 0; k < node->n_inputs + node->n_outputs; k++) {
        int v = k < node->n_inputs ? node->inputs[k] : node->outputs[k - node->n_inputs];
        if (v >= 0) {
            bytes += (double)hth_shape_elements(&graph->values[v].shape) * 4;
        }
    }
    bool filter = node->op == HTH_OP_CONV_GRAD_FILTER;
    if (filter || node->op == HTH_OP_CONV_GRAD_DATA) {
        const hth_shape *dy = &graph->values[node->inputs[filter]].shape;
        const hth_shape *f = &graph->values[filter ? node->outputs[0] : node->inputs[1]].shape;
        macs = (double)hth_shape_elements(dy) * (double)hth_shape_elements(f) / (double)f->dim[0];
        return macs / CPU_MACS_SHORT + bytes / CPU_BYTES;
    }
    const hth_shape *y = node->outputs[0] < 0 ? NULL : &graph->values[node->outputs[0]].shape;
    const hth_shape *w =
        node->n_inputs < 2 || node->inputs[1] < 0 ? NULL : &graph->values[node->inputs[1]].shape;
    if (y == NULL || w == NULL || w->rank < 2) {
        return bytes / CPU_BYTES;
    }
    double sum = 0; // multiply-adds of one output element
    if (node->op == HTH_OP_CONV) {
        sum = (double)hth_shape_elements(w) / (double)w->dim[0];
    } else if (node->op == HTH_OP_CONV_TRANSPOSE) {
        sum = (double)w->dim[0] / (double)hth_node_int(node, "group", 1);
    } else if (node->op == HTH_OP_MAT_MUL || node->op == HTH_OP_GEMM) {
        sum = (double)w->dim[w->rank - (hth_node_int(node, "transB", 0) ? 1 : 2)];
    } else if (node->op == HTH_OP_FUSED_ATTENTION || node->op == HTH_OP_LSTM ||
               node->op == HTH_OP_GRU) {
        sum = 1e6; // never small enough to matter
    }
    macs = sum * (double)hth_shape_elements(y);
    return macs / (sum >= 64 ? CPU_MACS_LONG : CPU_MACS_SHORT) + bytes / CPU_BYTES;
}

// cpu_graph_is_small says that one core is to do all of a graph.
static bool cpu_graph_is_small(const hth_graph *graph)
{
    double ns = 0;
    for (int i = 0; i < graph->n_nodes && ns < CPU_ONE_THREAD_GRAPH_NS; i++) {
        ns += cpu_node_ns(graph, &graph->nodes[i]);
    }
    return graph->n_nodes > 1 && ns < CPU_ONE_THREAD_GRAPH_NS;
}

// cpu_share returns the device with as many threads as the node is worth: `*one` is made its
// single-threaded twin. Kernels read the properties while they are prepared and keep no pointer to
// the device.
static hth_device *cpu_share(hth_device *device, const hth_graph *graph, const hth_node *node,
                             hth_device *one)
{
    if (device->props.n_threads > 1 &&
        (cpu_node_ns(graph, node) < CPU_ONE_THREAD_NS || cpu_graph_is_small(graph))) {
        *one = *device;
        one->props.n_threads = 1;
        device = one;
    }
    hth_team_set(device->props.n_threads);
    return device;
}

static hth_err cpu_prepare(const hth_kernel_host *host, hth_device *device, const hth_graph *graph,
                           const hth_node *node, const char *algorithm, hth_kernel **out)
{
    hth_device one;
    HTH_TRY(hth_cpu_duration_check(device, graph, node));
    device = cpu_share(device, graph, node, &one);
    if (algorithm != NULL && strcmp(algorithm, "default") == 0) {
        algorithm = NULL;
    }
    for (int i = 0; i < CPU_ROWS; i++) {
        if (cpu_table[i].op != node->op) {
            continue;
        }
        hth_err err = cpu_table[i].prepare(device, graph, node, algorithm, out);
        if (err != HTH_ENOTSUP) {
            return err;
        }
    }
    if (algorithm != NULL && strcmp(algorithm, "ref") != 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s' (%s) has no algorithm '%s' on %s", node->name,
                        hth_op_name(node->op), algorithm, device->props.name);
    }
    if (hth_node_int(node, "share", -1) >= 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s' (%s): of a shard of a batch, FP32 only", node->name,
                        hth_op_name(node->op));
    }
    return cpu_fallback_prepare(device, graph, node, NULL, out);
}

static hth_err cpu_algorithms(const hth_kernel_host *host, hth_device *device,
                              const hth_graph *graph, const hth_node *node, bool first,
                              hth_choice *list, int cap, int *count)
{
    hth_device one;
    HTH_TRY(hth_cpu_duration_check(device, graph, node));
    device = cpu_share(device, graph, node, &one);
    for (int i = 0; i < CPU_ROWS; i++) {
        if (cpu_table[i].op == node->op && cpu_table[i].algorithms != NULL &&
            cpu_table[i].algorithms(device, graph, node, list, cap, count) == HTH_OK) {
            return HTH_OK;
        }
    }
    hth_kernel *k;
    HTH_TRY(cpu_prepare(host, device, graph, node, NULL, &k));
    *count = 0;
    if (cap > 0) {
        list[0] = (hth_choice){.workspace_bytes = k->workspace_bytes,
                               .time_us = -1,
                               .error = -1,
                               .split = 1,
                               .deterministic = true};
        snprintf(list[0].name, sizeof list[0].name, "default");
        *count = 1;
    }
    hth_kernel_close(k);
    return HTH_OK;
}

static bool cpu_can_fuse(void *ctx, const hth_graph *graph, const hth_node *node,
                         const hth_post_op *post, int operand)
{
    for (int i = 0; i < CPU_ROWS; i++) {
        if (cpu_table[i].op == node->op && cpu_table[i].can_fuse != NULL &&
            cpu_table[i].can_fuse(ctx, graph, node, post, operand)) {
            return true;
        }
    }
    return false;
}

static hth_layout cpu_layout(void *ctx, const hth_graph *graph, const hth_node *node, bool *any)
{
    for (int i = 0; i < CPU_ROWS; i++) {
        if (cpu_table[i].op == node->op && cpu_table[i].layout != NULL) {
            return cpu_table[i].layout(ctx, graph, node, any);
        }
    }
    *any = false;
    return HTH_LAYOUT_PLAIN;
}

static bool cpu_reads_plain(void *ctx, const hth_graph *graph, const hth_node *node)
{
    for (int i = 0; i < CPU_ROWS; i++) {
        if (cpu_table[i].op == node->op && cpu_table[i].reads_plain != NULL) {
            return cpu_table[i].reads_plain(ctx, graph, node);
        }
    }
    return false;
}

static const hth_fuse_oracle *cpu_oracle(hth_device *device)
{
    // One per thread: an oracle is used by the thread that asked for it, before it asks for another
    // device's.
    static _Thread_local hth_fuse_oracle oracle;
    hth_team_set(device->props.n_threads);
    oracle = (hth_fuse_oracle){cpu_can_fuse, cpu_layout, cpu_reads_plain, device};
    return &oracle;
}

static hth_err cpu_computes(hth_device *device, hth_precision precision)
{
    return precision == HTH_PRECISION_FP32
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "%s computes in fp32 only: precision %s needs a CUDA device",
                          device->props.name, hth_precision_name(precision));
}

const hth_kernel_ops hth_cpu_kernel_ops = {.prepare = cpu_prepare,
                                           .algorithms = cpu_algorithms,
                                           .oracle = cpu_oracle,
                                           .computes = cpu_computes,
                                           .kmeans = &hth_kmeans_cpu};
