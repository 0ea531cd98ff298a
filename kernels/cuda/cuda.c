// SPDX-License-Identifier: Apache-2.0
// The table of CUDA's kernels: what builds each operator, or why there is nothing. In FP32 all
// tensors are plain (NCHW), which is what its engines want; else images have their channels last.
// An operator is refused with the reason, never run on the host behind the caller's back.
#include "kernels/cuda/cuda.h"

#include "kernels/cuda/handles.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

#define CUDA_MAX_ELEMENTS INT32_MAX // of a tensor: kernels count in 32 bits

typedef struct cuda_row {
    hth_cuda_build *build; // NULL: refused
    const char *why;
    bool fuses; // takes post ops
} cuda_row;

static const char cuda_parts[] =
    "of FP32 it becomes products and a Softmax before a device sees it; "
    "other types have no kernel";
static const char cuda_sized[] = "the size of its result depends on values: it is computed on the "
                                 "host, between the parts of a model before and after it";
static const char cuda_folded[] = "it becomes a constant before a device sees the model";
static const char cuda_resized[] = "it becomes a Resize when a model is read";

// clang-format off
#define CUDA_ROW(op, how)   [HTH_OP_##op] = {hth_cuda_##how, NULL, false}
#define CUDA_FUSE(op, how)  [HTH_OP_##op] = {hth_cuda_##how, NULL, true}
#define CUDA_NOT(op, why)   [HTH_OP_##op] = {NULL, cuda_##why, false}
static const cuda_row cuda_table[HTH_N_OPS] = {
    CUDA_FUSE(ABS, element), CUDA_FUSE(ACOS, element), CUDA_FUSE(ACOSH, element),
    CUDA_FUSE(ADD, element), CUDA_ROW(AND, typed), CUDA_ROW(ARG_MAX, reduce),
    CUDA_ROW(ARG_MIN, reduce), CUDA_FUSE(ASIN, element), CUDA_FUSE(ASINH, element),
    CUDA_FUSE(ATAN, element), CUDA_FUSE(ATANH, element), CUDA_NOT(ATTENTION, parts),
    CUDA_ROW(AVERAGE_POOL, pool), CUDA_FUSE(BATCH_NORMALIZATION, scale_shift),
    CUDA_ROW(BIT_SHIFT, typed), CUDA_ROW(BITWISE_AND, typed), CUDA_ROW(BITWISE_NOT, typed),
    CUDA_ROW(BITWISE_OR, typed), CUDA_ROW(BITWISE_XOR, typed), CUDA_ROW(CAST, cast),
    CUDA_ROW(CAST_LIKE, cast), CUDA_FUSE(CEIL, element), CUDA_FUSE(CELU, element),
    CUDA_FUSE(CLIP, element), CUDA_ROW(COMPRESS, compress), CUDA_ROW(CONCAT, concat),
    CUDA_NOT(CONSTANT, folded), CUDA_ROW(CONSTANT_OF_SHAPE, constant_of_shape),
    CUDA_FUSE(CONV, conv), CUDA_FUSE(CONV_TRANSPOSE, conv), CUDA_FUSE(COS, element),
    CUDA_FUSE(COSH, element), CUDA_ROW(CUM_SUM, cum_sum), CUDA_ROW(DEPTH_TO_SPACE, blocks_space),
    CUDA_ROW(DET, det), CUDA_FUSE(DIV, element), CUDA_ROW(DROPOUT, dropout_none),
    CUDA_ROW(EINSUM, einsum), CUDA_FUSE(ELU, element), CUDA_ROW(EQUAL, typed),
    CUDA_FUSE(ERF, element), CUDA_FUSE(EXP, element), CUDA_ROW(EXPAND, expand),
    CUDA_ROW(EYE_LIKE, eye_like), CUDA_ROW(FLATTEN, view), CUDA_FUSE(FLOOR, element),
    CUDA_ROW(GRU, rnn), CUDA_ROW(GATHER, gather), CUDA_ROW(GATHER_ELEMENTS, gather_elements),
    CUDA_ROW(GATHER_ND, gather_nd), CUDA_FUSE(GELU, element), CUDA_FUSE(GEMM, matmul),
    CUDA_ROW(GLOBAL_AVERAGE_POOL, global_pool), CUDA_ROW(GLOBAL_LP_POOL, global_pool),
    CUDA_ROW(GLOBAL_MAX_POOL, global_pool), CUDA_ROW(GREATER, typed),
    CUDA_ROW(GREATER_OR_EQUAL, typed), CUDA_ROW(GRID_SAMPLE, sample),
    CUDA_ROW(GROUP_NORMALIZATION, rows), CUDA_FUSE(HARD_SIGMOID, element),
    CUDA_FUSE(HARD_SWISH, element), CUDA_ROW(HARDMAX, hardmax), CUDA_ROW(IDENTITY, view),
    CUDA_ROW(INSTANCE_NORMALIZATION, rows), CUDA_ROW(IS_INF, typed), CUDA_ROW(IS_NA_N, typed),
    CUDA_ROW(LRN, lrn), CUDA_ROW(LSTM, rnn), CUDA_ROW(LAYER_NORMALIZATION, rows),
    CUDA_FUSE(LEAKY_RELU, element), CUDA_ROW(LESS, typed), CUDA_ROW(LESS_OR_EQUAL, typed),
    CUDA_FUSE(LOG, element), CUDA_ROW(LOG_SOFTMAX, softmax), CUDA_ROW(LP_NORMALIZATION, line_norm),
    CUDA_ROW(LP_POOL, pool), CUDA_FUSE(MAT_MUL, matmul), CUDA_FUSE(MAX, element),
    CUDA_ROW(MAX_POOL, pool), CUDA_FUSE(MEAN, element),
    CUDA_ROW(MEAN_VARIANCE_NORMALIZATION, line_norm), CUDA_FUSE(MIN, element),
    CUDA_FUSE(MISH, element), CUDA_ROW(MOD, typed), CUDA_FUSE(MUL, element),
    CUDA_FUSE(NEG, element), CUDA_NOT(NON_MAX_SUPPRESSION, sized), CUDA_NOT(NON_ZERO, sized),
    CUDA_ROW(NOT, typed), CUDA_ROW(ONE_HOT, one_hot), CUDA_ROW(OR, typed),
    CUDA_FUSE(PRELU, element), CUDA_ROW(PAD, pad), CUDA_FUSE(POW, element),
    CUDA_ROW(RMSNORMALIZATION, rows), CUDA_ROW(RNN, rnn), CUDA_ROW(RANGE, arange),
    CUDA_FUSE(RECIPROCAL, element), CUDA_ROW(REDUCE_L1, reduce), CUDA_ROW(REDUCE_L2, reduce),
    CUDA_ROW(REDUCE_LOG_SUM, reduce), CUDA_ROW(REDUCE_LOG_SUM_EXP, reduce),
    CUDA_ROW(REDUCE_MAX, reduce), CUDA_ROW(REDUCE_MEAN, reduce), CUDA_ROW(REDUCE_MIN, reduce),
    CUDA_ROW(REDUCE_PROD, reduce), CUDA_ROW(REDUCE_SUM, reduce),
    CUDA_ROW(REDUCE_SUM_SQUARE, reduce), CUDA_FUSE(RELU, element), CUDA_ROW(RESHAPE, view),
    CUDA_ROW(RESIZE, resize), CUDA_ROW(REVERSE_SEQUENCE, reverse_sequence),
    CUDA_ROW(ROTARY_EMBEDDING, rotary), CUDA_FUSE(ROUND, element),
    CUDA_ROW(SCATTER, scatter_elements), CUDA_ROW(SCATTER_ELEMENTS, scatter_elements),
    CUDA_ROW(SCATTER_ND, scatter_nd), CUDA_FUSE(SELU, element), CUDA_NOT(SHAPE, folded),
    CUDA_FUSE(SHRINK, element), CUDA_FUSE(SIGMOID, element), CUDA_FUSE(SIGN, element),
    CUDA_FUSE(SIN, element), CUDA_FUSE(SINH, element), CUDA_NOT(SIZE, folded),
    CUDA_ROW(SLICE, slice), CUDA_ROW(SOFTMAX, softmax), CUDA_FUSE(SOFTPLUS, element),
    CUDA_FUSE(SOFTSIGN, element), CUDA_ROW(SPACE_TO_DEPTH, blocks_space), CUDA_ROW(SPLIT, split),
    CUDA_FUSE(SQRT, element), CUDA_ROW(SQUEEZE, view), CUDA_FUSE(SUB, element),
    CUDA_FUSE(SUM, element), CUDA_FUSE(SWISH, element), CUDA_FUSE(TAN, element),
    CUDA_FUSE(TANH, element), CUDA_FUSE(THRESHOLDED_RELU, element), CUDA_ROW(TILE, tile),
    CUDA_ROW(TOP_K, top_k), CUDA_ROW(TRANSPOSE, transpose), CUDA_ROW(TRILU, trilu),
    CUDA_ROW(UNSQUEEZE, view), CUDA_NOT(UPSAMPLE, resized), CUDA_ROW(WHERE, typed),
    CUDA_ROW(XOR, typed), CUDA_ROW(REORDER, reorder), CUDA_FUSE(SCALE_SHIFT, scale_shift),
    CUDA_ROW(FUSED_ATTENTION, attention), CUDA_FUSE(CONV_GRAD_DATA, conv),
    CUDA_ROW(CONV_GRAD_FILTER, conv), CUDA_ROW(MAX_POOL_TRAIN, pool),
    CUDA_FUSE(MAX_POOL_GRAD, pool_grad), CUDA_FUSE(AVERAGE_POOL_GRAD, pool_grad),
    CUDA_FUSE(BATCH_NORM_TRAIN, batch_norm_train), CUDA_ROW(BATCH_NORM_GRAD, batch_norm_grad),
    CUDA_ROW(LAYER_NORM_GRAD, rows_grad), CUDA_ROW(GROUP_NORM_GRAD, rows_grad),
    CUDA_ROW(LRN_GRAD, lrn), CUDA_ROW(RELU_GRAD, element), CUDA_ROW(ELEMENT_GRAD, element),
    CUDA_ROW(SOFTMAX_GRAD, softmax_grad), CUDA_ROW(LOG_SOFTMAX_GRAD, softmax_grad),
    CUDA_ROW(SOFTMAX_XENT, xent), CUDA_ROW(SOFTMAX_XENT_GRAD, xent), CUDA_ROW(MSE, mse),
    CUDA_ROW(MSE_GRAD, mse), CUDA_ROW(BCE, bce), CUDA_ROW(BCE_GRAD, bce),
    CUDA_ROW(DROPOUT_TRAIN, dropout), CUDA_ROW(RESIZE_GRAD, resize),
    CUDA_ROW(GATHER_GRAD, gather_grad), CUDA_ROW(SLICE_GRAD, slice_grad),
    CUDA_ROW(GRID_SAMPLE_GRAD, sample_grad), CUDA_ROW(DET_GRAD, det), CUDA_ROW(RNN_GRAD, rnn_grad),
    CUDA_ROW(CLIP_SCALE, clip_scale), CUDA_ROW(SGD_STEP, step_op), CUDA_ROW(ADAM_STEP, step_op),
};
// clang-format on

const char *hth_cuda_refusal(hth_op op)
{
    return cuda_table[op].build != NULL ? NULL : cuda_table[op].why;
}

static bool cuda_keeps_channels(const hth_graph *graph, const hth_node *node)
{
    const hth_shape *x = &hth_cuda_in(graph, node, 0)->shape,
                    *y = &hth_cuda_out(graph, node, 0)->shape;
    return x->rank >= 3 && x->rank <= 5 && x->dim[0] == y->dim[0] && x->dim[1] == y->dim[1];
}

// Which operators work on images with their channels last as well as on plain ones.
static bool cuda_any_layout(const hth_graph *graph, const hth_node *node)
{
    hth_cuda_build *b = cuda_table[node->op].build;
    const hth_value *y = node->outputs[0] >= 0 ? &graph->values[node->outputs[0]] : NULL;
    bool real = y == NULL || y->dtype == HTH_DT_F32 || y->dtype == HTH_DT_BF16;
    if (b == hth_cuda_pool) {
        return node->op == HTH_OP_MAX_POOL_TRAIN || hth_cuda_out(graph, node, 1) == NULL;
    }
    return (b == hth_cuda_element && real) || b == hth_cuda_scale_shift ||
           b == hth_cuda_batch_norm_train || b == hth_cuda_batch_norm_grad ||
           b == hth_cuda_pool_grad || b == hth_cuda_global_pool || b == hth_cuda_concat ||
           b == hth_cuda_split || (b == hth_cuda_resize && cuda_keeps_channels(graph, node));
}

static bool cuda_takes_last(const hth_graph *graph, const hth_node *node)
{
    hth_cuda_build *b = cuda_table[node->op].build;
    return b == hth_cuda_conv || b == hth_cuda_reorder || b == hth_cuda_cast ||
           b == hth_cuda_step_op || cuda_any_layout(graph, node);
}

static hth_err cuda_check_value(const hth_graph *graph, int v, bool last)
{
    if (v < 0) {
        return HTH_OK;
    }
    const hth_value *x = &graph->values[v];
    int64_t n = hth_shape_elements(&x->shape);
    if (x->layout != HTH_LAYOUT_PLAIN && !(last && x->layout == HTH_LAYOUT_NHWC)) {
        return hth_fail(HTH_ENOTSUP, "layout %s", hth_layout_name(x->layout));
    }
    if (n < 0 || n > CUDA_MAX_ELEMENTS) {
        return hth_fail(HTH_ENOTSUP, "a tensor of more than %d elements", CUDA_MAX_ELEMENTS);
    }
    return HTH_OK;
}

// Post ops that a builder left over: one more kernel over the result.
static hth_err cuda_posts(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node)
{
    hth_cuda_chain c;
    if (node->n_post == 0 || seq->posts_done) {
        return HTH_OK;
    }
    const hth_value *y = hth_cuda_out(graph, node, 0);
    hth_cuda_chain_begin(&c, y);
    (void)hth_cuda_chain_value(&c, y, HTH_CUDA_OUT, 0);
    hth_cuda_chain_posts(&c, graph, node);
    return hth_cuda_chain_end(seq, &c, 0);
}

static hth_err cuda_build(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                          const char *algorithm)
{
    bool made = false, last = cuda_takes_last(graph, node);
    for (int i = 0; i < node->n_inputs; i++) {
        HTH_TRY(cuda_check_value(graph, node->inputs[i], last));
    }
    for (int i = 0; i < node->n_outputs; i++) {
        HTH_TRY(cuda_check_value(graph, node->outputs[i], last));
        made = made || (node->outputs[i] >= 0 && hth_cuda_count(hth_cuda_out(graph, node, i)) > 0);
    }
    if (!made) { // empty results: nothing to do
        return HTH_OK;
    }
    HTH_TRY(cuda_table[node->op].build(seq, graph, node, algorithm));
    HTH_TRY(seq->err);
    HTH_TRY(cuda_posts(seq, graph, node));
    return seq->err;
}

static hth_err cuda_refuse(const hth_device *device, const hth_node *node, hth_err err)
{
    char why[512];
    snprintf(why, sizeof why, "%s", hth_err_detail());
    return hth_fail(err, "node '%s' (%s) on %s: %s", node->name, hth_op_name(node->op),
                    device->props.name, why);
}

// What lists an operator's alternatives, NULL: it has none.
static hth_cuda_lists *cuda_lists(hth_op op)
{
    hth_cuda_build *build = cuda_table[op].build;
    if (build == hth_cuda_conv) {
        return hth_cuda_conv_algorithms;
    }
    return build == hth_cuda_matmul ? hth_cuda_matmul_algorithms : NULL;
}

hth_err hth_cuda_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    *out = NULL;
    if (cuda_table[node->op].build == NULL) {
        (void)hth_fail(HTH_ENOTSUP, "%s", cuda_table[node->op].why);
        return cuda_refuse(device, node, HTH_ENOTSUP);
    }
    bool named = algorithm != NULL && strcmp(algorithm, "default") != 0;
    if (named && cuda_lists(node->op) == NULL) {
        return hth_fail(HTH_ENOTSUP, "node '%s' (%s) has no algorithm '%s' on %s", node->name,
                        hth_op_name(node->op), algorithm, device->props.name);
    }
    hth_cuda_seq *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    s->d = (hth_cuda *)device;
    s->base =
        (hth_kernel){.run = hth_cuda_seq_run, .close = hth_cuda_seq_close, .inplace_input = -1};
    snprintf(s->name, sizeof s->name, "cuda");
    s->base.implementation = s->name;
    hth_err err = cuda_build(s, graph, node, named ? algorithm : NULL);
    if (err != HTH_OK) {
        hth_cuda_seq_close(&s->base);
        return cuda_refuse(device, node, err);
    }
    *out = &s->base;
    return HTH_OK;
}

hth_err hth_cuda_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                            bool first, hth_choice *list, int cap, int *count)
{
    hth_kernel *k;
    *count = 0;
    hth_cuda_lists *lists = cuda_lists(node->op);
    if (lists != NULL) {
        hth_err err = lists((hth_cuda *)device, graph, node, first, list, cap, count);
        return err == HTH_OK ? HTH_OK : cuda_refuse(device, node, err);
    }
    HTH_TRY(hth_cuda_prepare(device, graph, node, NULL, &k));
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

static bool cuda_can_fuse(void *ctx, const hth_graph *graph, const hth_node *node,
                          const hth_post_op *post, int operand)
{
    const hth_value *y =
        node->n_outputs > 0 && node->outputs[0] >= 0 ? &graph->values[node->outputs[0]] : NULL;
    hth_post_op p = *post;
    p.input = operand >= 0 ? 0 : -1;
    // An operator of several inputs may fill a chain's operands.
    return y != NULL && cuda_table[node->op].fuses && hth_cuda_chain_takes(&p) &&
           y->dtype == HTH_DT_F32 && node->n_inputs < HTH_CHAIN_OPERANDS - 2 &&
           node->n_post + 5 < HTH_CHAIN_STEPS;
}

// FP32 is fastest as it comes, TF32 and BF16 with channels last: what lies between convolutions
// follows them.
static hth_layout cuda_layout(void *ctx, const hth_graph *graph, const hth_node *node, bool *any)
{
    *any = false;
    if (graph->precision == HTH_PRECISION_FP32) {
        return HTH_LAYOUT_PLAIN;
    }
    if (cuda_table[node->op].build == hth_cuda_conv) {
        return hth_cuda_conv_last(ctx, graph, node) ? HTH_LAYOUT_NHWC : HTH_LAYOUT_PLAIN;
    }
    *any = cuda_any_layout(graph, node);
    return HTH_LAYOUT_PLAIN;
}

const hth_fuse_oracle *hth_cuda_oracle(hth_device *device)
{
    // One per thread: an oracle is used by the thread that asked for it, before it asks for another
    // device's.
    static _Thread_local hth_fuse_oracle oracle;
    oracle = (hth_fuse_oracle){cuda_can_fuse, cuda_layout, NULL, device};
    return &oracle;
}

// Tensor cores round to TF32 and take bf16 from Ampere on, which is what kernels are made for, too.
hth_err hth_cuda_computes(hth_device *device, hth_precision precision)
{
    return HTH_OK;
}

// Kernels that only move elements, or whose result is of the input's type.
static bool cuda_half_alike(const hth_node *node)
{
    hth_cuda_build *b = cuda_table[node->op].build;
    return b == hth_cuda_pool || b == hth_cuda_pool_grad || b == hth_cuda_resize ||
           b == hth_cuda_concat || b == hth_cuda_split || b == hth_cuda_view ||
           b == hth_cuda_transpose || b == hth_cuda_slice || b == hth_cuda_expand ||
           b == hth_cuda_tile || b == hth_cuda_blocks_space || b == hth_cuda_slice_grad ||
           b == hth_cuda_gather || b == hth_cuda_gather_elements || b == hth_cuda_gather_nd;
}

// Of operators that have parameters, which input is one: those are FP32.
static bool cuda_half_parameter(const hth_node *node, int k)
{
    hth_cuda_build *b = cuda_table[node->op].build;
    if (b == hth_cuda_conv) {
        return (k == 1 && node->op != HTH_OP_CONV_GRAD_FILTER) ||
               (k == 2 && (node->op == HTH_OP_CONV || node->op == HTH_OP_CONV_TRANSPOSE));
    }
    return (b == hth_cuda_scale_shift && k >= 1 && k <= (node->op == HTH_OP_SCALE_SHIFT ? 2 : 4)) ||
           (b == hth_cuda_batch_norm_train && k >= 1 && k <= 4) ||
           (b == hth_cuda_batch_norm_grad && k >= 2) || (b == hth_cuda_rows && k >= 1) ||
           (b == hth_cuda_rows_grad && k >= 2);
}

// An angle of some thousands has no fraction left in bf16.
static bool cuda_half_periodic(hth_op op)
{
    return op == HTH_OP_SIN || op == HTH_OP_COS || op == HTH_OP_TAN;
}

// Kernels that read each operand and write output 0 in a type of its own.
static bool cuda_half_each(const hth_graph *graph, const hth_node *node, bool in)
{
    hth_cuda_build *b = cuda_table[node->op].build;
    bool real = node->outputs[0] < 0 || hth_dtype_is_float(graph->values[node->outputs[0]].dtype);
    if (b == hth_cuda_element || b == hth_cuda_reduce) { // .. ArgMax compares in f32
        return real && !(in && cuda_half_periodic(node->op));
    }
    if (b == hth_cuda_gather_grad) { // sums are added up in the result
        return in;
    }
    if (node->op == HTH_OP_SOFTMAX_XENT_GRAD || node->op == HTH_OP_MSE_GRAD ||
        node->op == HTH_OP_BCE_GRAD) { // of losses in f32
        return !in;
    }
    return b == hth_cuda_conv || b == hth_cuda_matmul || b == hth_cuda_scale_shift ||
           b == hth_cuda_batch_norm_train || b == hth_cuda_batch_norm_grad ||
           b == hth_cuda_global_pool || b == hth_cuda_reorder || b == hth_cuda_rows ||
           b == hth_cuda_rows_grad || b == hth_cuda_lrn || b == hth_cuda_softmax ||
           b == hth_cuda_softmax_grad || b == hth_cuda_attention || b == hth_cuda_dropout;
}

// The gradient of a filter is what an optimizer reads: FP32, though it was computed of bf16.
bool hth_cuda_takes_half(void *ctx, const hth_graph *graph, const hth_node *node, bool in, int k,
                         bool *alike)
{
    hth_cuda_build *b = cuda_table[node->op].build;
    if (in) { // operands of post ops are read by a chain, whatever the operator
        for (int i = 0; i < node->n_post; i++) {
            if (node->post[i].input == k) {
                return true;
            }
        }
    }
    if (cuda_half_alike(node)) {
        bool where = b == hth_cuda_pool && node->op != HTH_OP_MAX_POOL_TRAIN &&
                     hth_cuda_out(graph, node, 1) != NULL;
        *alike = k == 0 || b == hth_cuda_concat || b == hth_cuda_split;
        return *alike && !where;
    }
    bool first = in ? !cuda_half_parameter(node, k) : k == 0 && node->op != HTH_OP_CONV_GRAD_FILTER;
    return first && cuda_half_each(graph, node, in);
}
