// SPDX-License-Identifier: Apache-2.0
// graph/infer.c - the table of what is known of each operator (inference of shapes, and how samples
// pass through it, follow.h), and the helpers that every inference rule uses.
//
// hth_infer_node looks up the node's rule and runs it over values whose shapes are known. A rule
// never guesses: it stores what the operator's specification says, fails with a sentence that names
// node, operator and shapes, or asks for the content of one input. Functions of their arguments;
// any thread that owns the graph.
#include "graph/infer.h"

#include "graph/follow.h"
#include "graph/specialize.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// What is known of an operator, besides kernels: its shapes, and how samples pass through it.
typedef struct op_rules {
    hth_infer_fn infer;
    hth_follow_row sample;
} op_rules;

#define READS(i) (1U << (i)) // the rule about samples reads input i's contents
#define MOVES    HTH_FOLLOW_MOVES
#define TAKES    HTH_FOLLOW_TAKES
#define BOUNDS   HTH_FOLLOW_BOUNDS

// Operators that only passes and autodiff write have no rule about samples: those are followed
// through model graphs.
// clang-format off
static const op_rules rules[HTH_N_OPS] = {
    [HTH_OP_ABS] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ACOS] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ACOSH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ADD] = {hth_infer_binary, {hth_through_add, 0, TAKES}},
    [HTH_OP_AND] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_ARG_MAX] = {hth_infer_arg, {hth_through_arg, 0, BOUNDS}},
    [HTH_OP_ARG_MIN] = {hth_infer_arg, {hth_through_arg, 0, BOUNDS}},
    [HTH_OP_ASIN] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ASINH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ATAN] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ATANH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ATTENTION] = {hth_infer_attention, {hth_through_attention, 0, 0}},
    [HTH_OP_AVERAGE_POOL] = {hth_infer_pool, {hth_through_pool, 0, 0}},
    [HTH_OP_BATCH_NORMALIZATION] = {hth_infer_batch_norm, {hth_through_batch_norm, 0, 0}},
    [HTH_OP_BIT_SHIFT] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_BITWISE_AND] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_BITWISE_NOT] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_BITWISE_OR] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_BITWISE_XOR] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_CAST] = {hth_infer_cast, {hth_through_first, 0, TAKES}},
    [HTH_OP_CAST_LIKE] = {hth_infer_cast_like, {hth_through_cast_like, READS(1), TAKES}},
    [HTH_OP_CEIL] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_CELU] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_CLIP] = {hth_infer_clip, {hth_through_first, 0, 0}},
    [HTH_OP_COMPRESS] = {hth_infer_compress, {hth_through_compress, 0, 0}},
    [HTH_OP_CONCAT] = {hth_infer_concat, {hth_through_concat, 0, TAKES}},
    [HTH_OP_CONSTANT] = {hth_infer_constant, {hth_through_constant, 0, 0}},
    [HTH_OP_CONSTANT_OF_SHAPE] = {hth_infer_constant_of_shape,
                                  {hth_through_constant_of_shape, READS(0), 0}},
    [HTH_OP_CONV] = {hth_infer_conv, {hth_through_conv, 0, 0}},
    [HTH_OP_CONV_TRANSPOSE] = {hth_infer_conv_transpose, {hth_through_conv, 0, 0}},
    [HTH_OP_COS] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_COSH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_CUM_SUM] = {hth_infer_same, {hth_through_along, READS(1), 0}},
    [HTH_OP_DEPTH_TO_SPACE] = {hth_infer_depth_to_space, {hth_through_blocks, 0, 0}},
    [HTH_OP_DET] = {hth_infer_det, {hth_through_matrix, 0, 0}},
    [HTH_OP_DIV] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_DROPOUT] = {hth_infer_dropout, {hth_through_dropout, 0, 0}},
    [HTH_OP_EINSUM] = {hth_infer_einsum, {hth_through_einsum, 0, 0}},
    [HTH_OP_ELU] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_EQUAL] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_ERF] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_EXP] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_EXPAND] = {hth_infer_expand, {hth_through_expand, READS(1), MOVES}},
    [HTH_OP_EYE_LIKE] = {hth_infer_eye_like, {hth_through_eye_like, 0, 0}},
    [HTH_OP_FLATTEN] = {hth_infer_flatten, {hth_through_flatten, 0, MOVES}},
    [HTH_OP_FLOOR] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_GRU] = {hth_infer_rnn, {hth_through_rnn, 0, 0}},
    [HTH_OP_GATHER] = {hth_infer_gather, {hth_through_gather, 0, TAKES}},
    [HTH_OP_GATHER_ELEMENTS] = {hth_infer_gather_elements, {hth_through_gather_elements, 0, 0}},
    [HTH_OP_GATHER_ND] = {hth_infer_gather_nd, {hth_through_gather_nd, 0, TAKES}},
    [HTH_OP_GELU] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_GEMM] = {hth_infer_gemm, {hth_through_gemm, 0, 0}},
    [HTH_OP_GLOBAL_AVERAGE_POOL] = {hth_infer_global_pool, {hth_through_pool, 0, 0}},
    [HTH_OP_GLOBAL_LP_POOL] = {hth_infer_global_pool, {hth_through_pool, 0, 0}},
    [HTH_OP_GLOBAL_MAX_POOL] = {hth_infer_global_pool, {hth_through_pool, 0, 0}},
    [HTH_OP_GREATER] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_GREATER_OR_EQUAL] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_GRID_SAMPLE] = {hth_infer_grid_sample, {hth_through_grid, 0, 0}},
    [HTH_OP_GROUP_NORMALIZATION] = {hth_infer_channels, {hth_through_per_channel, 0, 0}},
    [HTH_OP_HARD_SIGMOID] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_HARD_SWISH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_HARDMAX] = {hth_infer_same_axis, {hth_through_softmax, 0, 0}},
    [HTH_OP_IDENTITY] = {hth_infer_same, {hth_through_first, 0, TAKES}},
    [HTH_OP_INSTANCE_NORMALIZATION] = {hth_infer_channels, {hth_through_per_channel, 0, 0}},
    [HTH_OP_IS_INF] = {hth_infer_predicate, {hth_through_first, 0, 0}},
    [HTH_OP_IS_NA_N] = {hth_infer_predicate, {hth_through_first, 0, 0}},
    [HTH_OP_LRN] = {hth_infer_same, {hth_through_lrn, 0, 0}},
    [HTH_OP_LSTM] = {hth_infer_rnn, {hth_through_rnn, 0, 0}},
    [HTH_OP_LAYER_NORMALIZATION] = {hth_infer_layer_norm, {hth_through_layer_norm, 0, 0}},
    [HTH_OP_LEAKY_RELU] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_LESS] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_LESS_OR_EQUAL] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_LOG] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_LOG_SOFTMAX] = {hth_infer_same_axis, {hth_through_softmax, 0, 0}},
    [HTH_OP_LP_NORMALIZATION] = {hth_infer_same_axis, {hth_through_along, 0, 0}},
    [HTH_OP_LP_POOL] = {hth_infer_pool, {hth_through_pool, 0, 0}},
    [HTH_OP_MAT_MUL] = {hth_infer_matmul, {hth_through_matmul, 0, 0}},
    [HTH_OP_MAX] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_MAX_POOL] = {hth_infer_pool, {hth_through_pool, 0, 0}},
    [HTH_OP_MEAN] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_MEAN_VARIANCE_NORMALIZATION] = {hth_infer_same, {hth_through_mean_variance, 0, 0}},
    [HTH_OP_MIN] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_MISH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_MOD] = {hth_infer_binary, {hth_through_mod, 0, TAKES}},
    [HTH_OP_MUL] = {hth_infer_binary, {hth_through_mul, 0, TAKES}},
    [HTH_OP_NEG] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_NON_MAX_SUPPRESSION] = {hth_infer_nms, {hth_through_by_content, 0, 0}},
    [HTH_OP_NON_ZERO] = {hth_infer_non_zero, {hth_through_by_content, 0, 0}},
    [HTH_OP_NOT] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_ONE_HOT] = {hth_infer_one_hot, {hth_through_one_hot, READS(1), 0}},
    [HTH_OP_OR] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_PRELU] = {hth_infer_prelu, {hth_through_element, 0, 0}},
    [HTH_OP_PAD] = {hth_infer_pad, {hth_through_pad, READS(1) | READS(3), 0}},
    [HTH_OP_POW] = {hth_infer_pow, {hth_through_element, 0, 0}},
    [HTH_OP_RMSNORMALIZATION] = {hth_infer_layer_norm, {hth_through_layer_norm, 0, 0}},
    [HTH_OP_RNN] = {hth_infer_rnn, {hth_through_rnn, 0, 0}},
    [HTH_OP_RANGE] = {hth_infer_range, {hth_through_range, READS(0) | READS(1) | READS(2), BOUNDS}},
    [HTH_OP_RECIPROCAL] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_REDUCE_L1] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_L2] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_LOG_SUM] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_LOG_SUM_EXP] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_MAX] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_MEAN] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_MIN] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_PROD] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_SUM] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_REDUCE_SUM_SQUARE] = {hth_infer_reduce, {hth_through_reduce, READS(1), 0}},
    [HTH_OP_RELU] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_RESHAPE] = {hth_infer_reshape, {hth_through_reshape, READS(1), MOVES}},
    [HTH_OP_RESIZE] = {hth_infer_resize, {hth_through_resize, READS(1) | READS(2) | READS(3), 0}},
    [HTH_OP_REVERSE_SEQUENCE] = {hth_infer_same, {hth_through_reverse, 0, 0}},
    [HTH_OP_ROTARY_EMBEDDING] = {hth_infer_rotary, {hth_through_rotary, 0, 0}},
    [HTH_OP_ROUND] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SCATTER] = {hth_infer_scatter_elements, {hth_through_scatter_elements, 0, 0}},
    [HTH_OP_SCATTER_ELEMENTS] = {hth_infer_scatter_elements, {hth_through_scatter_elements, 0, 0}},
    [HTH_OP_SCATTER_ND] = {hth_infer_scatter_nd, {hth_through_scatter_nd, 0, TAKES}},
    [HTH_OP_SELU] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SHAPE] = {hth_infer_shape_of, {hth_through_shape_of, 0, TAKES}},
    [HTH_OP_SHRINK] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SIGMOID] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SIGN] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SIN] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SINH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SIZE] = {hth_infer_size, {hth_through_size, 0, TAKES}},
    [HTH_OP_SLICE] = {hth_infer_slice,
                      {hth_through_slice, READS(1) | READS(2) | READS(3) | READS(4), MOVES}},
    [HTH_OP_SOFTMAX] = {hth_infer_same_axis, {hth_through_softmax, 0, 0}},
    [HTH_OP_SOFTPLUS] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SOFTSIGN] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SPACE_TO_DEPTH] = {hth_infer_space_to_depth, {hth_through_blocks, 0, 0}},
    [HTH_OP_SPLIT] = {hth_infer_split, {hth_through_split, READS(1), MOVES}},
    [HTH_OP_SQRT] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_SQUEEZE] = {hth_infer_squeeze, {hth_through_squeeze, READS(1), MOVES}},
    [HTH_OP_SUB] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_SUM] = {hth_infer_binary, {hth_through_element, 0, 0}},
    [HTH_OP_SWISH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_TAN] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_TANH] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_THRESHOLDED_RELU] = {hth_infer_same, {hth_through_first, 0, 0}},
    [HTH_OP_TILE] = {hth_infer_tile, {hth_through_tile, READS(1), MOVES}},
    [HTH_OP_TOP_K] = {hth_infer_top_k, {hth_through_top_k, READS(1), BOUNDS}},
    [HTH_OP_TRANSPOSE] = {hth_infer_transpose, {hth_through_transpose, 0, MOVES}},
    [HTH_OP_TRILU] = {hth_infer_same, {hth_through_matrix, 0, 0}},
    [HTH_OP_UNSQUEEZE] = {hth_infer_unsqueeze, {hth_through_unsqueeze, READS(1), MOVES}},
    [HTH_OP_UPSAMPLE] = {hth_infer_resize, {NULL, 0, 0}},
    [HTH_OP_WHERE] = {hth_infer_where, {hth_through_element, 0, 0}},
    [HTH_OP_XOR] = {hth_infer_compare, {hth_through_element, 0, 0}},
    [HTH_OP_REORDER] = {hth_infer_same, {NULL, 0, 0}},
    [HTH_OP_SCALE_SHIFT] = {hth_infer_channels, {NULL, 0, 0}},
    [HTH_OP_FUSED_ATTENTION] = {hth_infer_fused_attention, {NULL, 0, 0}},
    [HTH_OP_CONV_GRAD_DATA] = {hth_infer_attr_shape, {NULL, 0, 0}},
    [HTH_OP_CONV_GRAD_FILTER] = {hth_infer_conv_grad_filter, {NULL, 0, 0}},
    [HTH_OP_MAX_POOL_TRAIN] = {hth_infer_max_pool_train, {NULL, 0, 0}},
    [HTH_OP_MAX_POOL_GRAD] = {hth_infer_attr_shape, {NULL, 0, 0}},
    [HTH_OP_AVERAGE_POOL_GRAD] = {hth_infer_attr_shape, {NULL, 0, 0}},
    [HTH_OP_BATCH_NORM_TRAIN] = {hth_infer_batch_norm_train, {NULL, 0, 0}},
    [HTH_OP_BATCH_NORM_GRAD] = {hth_infer_norm_grad, {NULL, 0, 0}},
    [HTH_OP_CONV_NORM_TRAIN] = {hth_infer_conv_norm_train, {NULL, 0, 0}},
    [HTH_OP_CONV_NORM_GRAD] = {hth_infer_conv_norm_grad, {NULL, 0, 0}},
    [HTH_OP_LAYER_NORM_GRAD] = {hth_infer_norm_grad, {NULL, 0, 0}},
    [HTH_OP_GROUP_NORM_GRAD] = {hth_infer_norm_grad, {NULL, 0, 0}},
    [HTH_OP_LRN_GRAD] = {hth_infer_first_of_two, {NULL, 0, 0}},
    [HTH_OP_RELU_GRAD] = {hth_infer_first_of_two, {NULL, 0, 0}},
    [HTH_OP_ELEMENT_GRAD] = {hth_infer_first_of_two, {NULL, 0, 0}},
    [HTH_OP_SOFTMAX_GRAD] = {hth_infer_first_of_two, {NULL, 0, 0}},
    [HTH_OP_LOG_SOFTMAX_GRAD] = {hth_infer_first_of_two, {NULL, 0, 0}},
    [HTH_OP_SOFTMAX_XENT] = {hth_infer_xent, {NULL, 0, 0}},
    [HTH_OP_SOFTMAX_XENT_GRAD] = {hth_infer_xent, {NULL, 0, 0}},
    [HTH_OP_MSE] = {hth_infer_mse, {NULL, 0, 0}},
    [HTH_OP_MSE_GRAD] = {hth_infer_mse, {NULL, 0, 0}},
    [HTH_OP_BCE] = {hth_infer_bce, {NULL, 0, 0}},
    [HTH_OP_BCE_GRAD] = {hth_infer_bce, {NULL, 0, 0}},
    [HTH_OP_DROPOUT_TRAIN] = {hth_infer_same, {NULL, 0, 0}},
    [HTH_OP_RESIZE_GRAD] = {hth_infer_attr_shape, {NULL, 0, 0}},
    [HTH_OP_GATHER_GRAD] = {hth_infer_attr_shape, {NULL, 0, 0}},
    [HTH_OP_GRID_SAMPLE_GRAD] = {hth_infer_like_operands, {NULL, 0, 0}},
    [HTH_OP_DET_GRAD] = {hth_infer_like_operands, {NULL, 0, 0}},
    [HTH_OP_SLICE_GRAD] = {hth_infer_attr_shape, {NULL, 0, 0}},
    [HTH_OP_RNN_GRAD] = {hth_infer_rnn_grad, {NULL, 0, 0}},
    [HTH_OP_CLIP_SCALE] = {hth_infer_clip_scale, {NULL, 0, 0}},
    [HTH_OP_SGD_STEP] = {hth_infer_step, {NULL, 0, 0}},
    [HTH_OP_ADAM_STEP] = {hth_infer_step, {NULL, 0, 0}},
};
// clang-format on

hth_infer_fn hth_infer_rule(hth_op op)
{
    return op > HTH_OP_NONE && op < HTH_N_OPS ? rules[op].infer : NULL;
}

const hth_follow_row *hth_follow_row_of(hth_op op)
{
    return &rules[op > HTH_OP_NONE && op < HTH_N_OPS ? op : HTH_OP_NONE].sample;
}

hth_err hth_infer_fail(const hth_infer *infer, hth_err err, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return hth_fail(err, "node '%s' (%s): %s", infer->n->name, hth_op_name(infer->n->op), text);
}

hth_err hth_infer_disagree(const hth_infer *infer, const char *a, int i, const char *b, int j)
{
    char sa[128], sb[128];
    return hth_infer_fail(infer, HTH_EINVAL, "%s %s and %s %s do not agree", a,
                          hth_shape_str(hth_infer_shape(infer, i), sa, sizeof sa), b,
                          hth_shape_str(hth_infer_shape(infer, j), sb, sizeof sb));
}

hth_err hth_infer_overflow(const hth_infer *infer)
{
    return hth_infer_fail(infer, HTH_ETOOBIG, "the result has too many elements");
}

bool hth_infer_has(const hth_infer *infer, int i)
{
    return i < infer->n_in && infer->n->inputs[i] >= 0;
}

const hth_shape *hth_infer_shape(const hth_infer *infer, int i)
{
    return &infer->g->values[infer->n->inputs[i]].shape;
}

hth_dtype hth_infer_dtype(const hth_infer *infer, int i)
{
    return infer->g->values[infer->n->inputs[i]].dtype;
}

hth_err hth_infer_out(hth_infer *infer, int i, hth_dtype dt, const hth_shape *shape)
{
    if (i >= infer->n->n_outputs || infer->n->outputs[i] < 0) {
        return HTH_OK;
    }
    hth_value *v = &infer->g->values[infer->n->outputs[i]];
    size_t bytes;
    if (hth_dtype_bytes(dt) == 0) {
        return hth_infer_fail(infer, HTH_ENOTSUP, "output type %s (%d) is not supported",
                              hth_dtype_name(dt), (int)dt);
    }
    // All bytes of a process fit in half of its address space; a larger tensor can never be.
    if (hth_shape_known(shape) &&
        (hth_tensor_bytes(dt, shape, HTH_LAYOUT_PLAIN, &bytes) != HTH_OK || bytes > SIZE_MAX / 2)) {
        return hth_infer_overflow(infer);
    }
    v->dtype = dt;
    v->shape = *shape;
    return HTH_OK;
}

hth_err hth_infer_push(hth_infer *infer, hth_shape *shape, int64_t dim)
{
    if (shape->rank == HTH_MAX_RANK) {
        return hth_infer_fail(infer, HTH_ENOTSUP, "the result has more than %d dimensions",
                              HTH_MAX_RANK);
    }
    shape->dim[shape->rank++] = dim;
    return HTH_OK;
}

hth_err hth_infer_rank(const hth_infer *infer, int i, int min, int max)
{
    char text[128];
    const hth_shape *s = hth_infer_shape(infer, i);
    if (s->rank >= min && s->rank <= max) {
        return HTH_OK;
    }
    return hth_infer_fail(infer, HTH_EINVAL, "input %d %s has %d dimensions, expected %d to %d", i,
                          hth_shape_str(s, text, sizeof text), s->rank, min, max);
}

hth_err hth_infer_same_dtype(const hth_infer *infer, int i, int j)
{
    if (hth_infer_dtype(infer, i) == hth_infer_dtype(infer, j)) {
        return HTH_OK;
    }
    return hth_infer_fail(infer, HTH_EINVAL, "input %d is %s and input %d is %s", i,
                          hth_dtype_name(hth_infer_dtype(infer, i)), j,
                          hth_dtype_name(hth_infer_dtype(infer, j)));
}

hth_err hth_infer_axis(const hth_infer *infer, int64_t axis, int rank, int *out)
{
    if (axis < -rank || axis >= rank) {
        return hth_infer_fail(infer, HTH_EINVAL, "axis %lld is outside of %d dimensions",
                              (long long)axis, rank);
    }
    *out = (int)(axis < 0 ? axis + rank : axis);
    return HTH_OK;
}

hth_err hth_infer_attr(const hth_infer *infer, const char *name, int64_t *out, int cap, int *count)
{
    *count = hth_node_ints(infer->n, name, out, cap);
    if (*count > cap) {
        return hth_infer_fail(infer, HTH_EINVAL, "attribute '%s' has %d elements", name, *count);
    }
    return HTH_OK;
}

hth_err hth_infer_open(hth_infer *infer, int i, hth_infer_content *out)
{
    const hth_value *v = &infer->g->values[infer->n->inputs[i]];
    if (v->constant == NULL) {
        infer->wait = infer->n->inputs[i];
        return HTH_EBUSY;
    }
    *out = (hth_infer_content){v->constant, NULL, v->dtype, hth_shape_elements(&v->shape)};
    return hth_const_map(v->constant, &out->data);
}

void hth_infer_close(hth_infer_content *content)
{
    hth_const_unmap(content->from);
}

// Element k's bits. Contents that lie in a mapped file are aligned as the file left them: bytes are
// copied out.
static uint64_t load_bits(const hth_infer_content *content, int64_t k)
{
    uint64_t bits = 0; // little-endian: the low bytes come first
    size_t bytes = hth_dtype_bytes(content->dtype);
    memcpy(&bits, (const char *)content->data + (size_t)k * bytes, bytes);
    return bits;
}

int64_t hth_infer_int_at(const hth_infer_content *content, int64_t k)
{
    uint64_t bits = load_bits(content, k);
    switch (content->dtype) {
    case HTH_DT_I32:
        return (int32_t)bits;
    case HTH_DT_I16:
        return (int16_t)bits;
    case HTH_DT_I8:
        return (int8_t)bits;
    default: // unsigned, or all 64 bits
        return (int64_t)bits;
    }
}

// An element of any dtype.
static double infer_real_at(const hth_infer_content *content, int64_t k)
{
    uint64_t bits = load_bits(content, k);
    float f;
    double d;
    switch (content->dtype) {
    case HTH_DT_F32:
        memcpy(&f, &bits, sizeof f);
        return f;
    case HTH_DT_F64:
        memcpy(&d, &bits, sizeof d);
        return d;
    case HTH_DT_F16:
        return hth_f16_to_f32((uint16_t)bits);
    case HTH_DT_BF16:
        return hth_bf16_to_f32((uint16_t)bits);
    default:
        return (double)hth_infer_int_at(content, k);
    }
}

static hth_err open_list(hth_infer *infer, int i, int cap, hth_infer_content *content)
{
    HTH_TRY(hth_infer_open(infer, i, content));
    if (content->n <= cap) {
        return HTH_OK;
    }
    hth_infer_close(content);
    return hth_infer_fail(infer, HTH_EINVAL, "input %d has %lld elements, at most %d make sense", i,
                          (long long)content->n, cap);
}

hth_err hth_infer_ints(hth_infer *infer, int i, int64_t *out, int cap, int *count)
{
    hth_infer_content v;
    if (hth_dtype_is_float(hth_infer_dtype(infer, i))) {
        return hth_infer_fail(infer, HTH_EINVAL, "input %d is %s, expected integers", i,
                              hth_dtype_name(hth_infer_dtype(infer, i)));
    }
    HTH_TRY(open_list(infer, i, cap, &v));
    for (int k = 0; k < (int)v.n; k++) {
        out[k] = hth_infer_int_at(&v, k);
    }
    *count = (int)v.n;
    hth_infer_close(&v);
    return HTH_OK;
}

hth_err hth_infer_reals(hth_infer *infer, int i, double *out, int cap, int *count)
{
    hth_infer_content v;
    HTH_TRY(open_list(infer, i, cap, &v));
    for (int k = 0; k < (int)v.n; k++) {
        out[k] = infer_real_at(&v, k);
    }
    *count = (int)v.n;
    hth_infer_close(&v);
    return HTH_OK;
}

hth_err hth_infer_axes(hth_infer *infer, int i, int rank, int *list, int *count)
{
    int64_t axes[HTH_MAX_RANK];
    unsigned seen = 0;
    *count = -1;
    if (!hth_infer_has(infer, i)) {
        return HTH_OK;
    }
    HTH_TRY(hth_infer_ints(infer, i, axes, HTH_MAX_RANK, count));
    for (int k = 0; k < *count; k++) {
        HTH_TRY(hth_infer_axis(infer, axes[k], rank, &list[k]));
        if (seen & 1U << list[k]) {
            return hth_infer_fail(infer, HTH_EINVAL, "axis %d is given twice", list[k]);
        }
        seen |= 1U << list[k];
    }
    return HTH_OK;
}

// Inputs must be there as the operator's table says, with a dtype that can be held and a known
// shape.
static hth_err check_inputs(const hth_infer *infer)
{
    const hth_op_info *info = hth_op_info_of(infer->n->op);
    if (infer->n_in < info->min_inputs || infer->n_in > info->max_inputs) {
        return hth_infer_fail(infer, HTH_EINVAL, "has %d inputs, expected %d to %d", infer->n_in,
                              info->min_inputs, info->max_inputs);
    }
    for (int i = 0; i < infer->n->n_inputs; i++) {
        if (infer->n->inputs[i] < 0) {
            if (i < info->min_inputs) {
                return hth_infer_fail(infer, HTH_EINVAL, "input %d is missing", i);
            }
            continue;
        }
        const hth_value *v = &infer->g->values[infer->n->inputs[i]];
        if (hth_dtype_bytes(v->dtype) == 0) {
            return hth_infer_fail(infer, HTH_ENOTSUP, "input '%s' has type %s (%d)", v->name,
                                  hth_dtype_name(v->dtype), (int)v->dtype);
        }
        if (!hth_shape_known(&v->shape)) {
            return hth_infer_fail(infer, HTH_EINVAL, "the shape of input '%s' is not known",
                                  v->name);
        }
    }
    return HTH_OK;
}

// Whatever a rule overlooked: nothing is computed into a result that has no type or shape.
static hth_err check_outputs(const hth_infer *infer)
{
    hth_op op = infer->n->op;
    bool sized = op == HTH_OP_NON_ZERO || op == HTH_OP_COMPRESS || op == HTH_OP_NON_MAX_SUPPRESSION;
    for (int i = 0; i < infer->n->n_outputs; i++) {
        const hth_value *v =
            infer->n->outputs[i] < 0 ? NULL : &infer->g->values[infer->n->outputs[i]];
        if (v != NULL &&
            (hth_dtype_bytes(v->dtype) == 0 || !(sized || hth_shape_known(&v->shape)))) {
            return hth_infer_fail(infer, HTH_EINVAL,
                                  "output %d cannot be inferred from these inputs", i);
        }
    }
    return HTH_OK;
}

hth_err hth_infer_node(hth_graph *graph, int node, int *wait)
{
    hth_infer c = {graph, &graph->nodes[node], graph->nodes[node].n_inputs, -1};
    for (int i = 0; i < c.n->n_post; i++) {
        if (c.n->post[i].input >= 0 && c.n->post[i].input < c.n_in) {
            c.n_in = c.n->post[i].input;
        }
    }
    hth_infer_fn rule = hth_infer_rule(c.n->op);
    if (rule == NULL) {
        return hth_infer_fail(&c, HTH_ENOTSUP, "the operator has no shape inference");
    }
    HTH_TRY(check_inputs(&c));
    hth_err err = rule(&c);
    *wait = c.wait;
    HTH_TRY(err);
    return check_outputs(&c);
}
