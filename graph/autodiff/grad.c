// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad.c - the table of gradients.
//
// Operators without a row have no gradient: a step that would need it is refused by name.
// (Attention, BatchNormalization and Dropout are other operators by then.) Bits of `fixed` name
// inputs that are settings (axes, bounds, scales): no gradient flows there, and an initializer that
// is only read there is not trainable.
#include "graph/autodiff/grad.h"

#define FROM_1 (~1u)
#define FLAT                                                                                       \
    {                                                                                              \
        .flat = true                                                                               \
    }
#define UNARY                                                                                      \
    {                                                                                              \
        hth_grad_unary, 0, false                                                                   \
    }

static const hth_grad_rule rules[HTH_N_OPS] = {
    // clang-format off
    [HTH_OP_ABS] = UNARY, [HTH_OP_ACOS] = UNARY, [HTH_OP_ACOSH] = UNARY, [HTH_OP_ASIN] = UNARY,
    [HTH_OP_ASINH] = UNARY, [HTH_OP_ATAN] = UNARY, [HTH_OP_ATANH] = UNARY, [HTH_OP_CELU] = UNARY,
    [HTH_OP_COS] = UNARY, [HTH_OP_COSH] = UNARY, [HTH_OP_ELU] = UNARY, [HTH_OP_ERF] = UNARY,
    [HTH_OP_EXP] = UNARY, [HTH_OP_GELU] = UNARY, [HTH_OP_HARD_SIGMOID] = UNARY,
    [HTH_OP_HARD_SWISH] = UNARY, [HTH_OP_LEAKY_RELU] = UNARY, [HTH_OP_LOG] = UNARY,
    [HTH_OP_MISH] = UNARY, [HTH_OP_RECIPROCAL] = UNARY, [HTH_OP_SELU] = UNARY,
    [HTH_OP_SHRINK] = UNARY, [HTH_OP_SIGMOID] = UNARY, [HTH_OP_SIN] = UNARY,
    [HTH_OP_SINH] = UNARY, [HTH_OP_SOFTPLUS] = UNARY, [HTH_OP_SOFTSIGN] = UNARY,
    [HTH_OP_SQRT] = UNARY, [HTH_OP_SWISH] = UNARY, [HTH_OP_TAN] = UNARY, [HTH_OP_TANH] = UNARY,
    [HTH_OP_THRESHOLDED_RELU] = UNARY,
    [HTH_OP_RELU] = {hth_grad_relu, 0, false}, [HTH_OP_CLIP] = {hth_grad_clip, FROM_1, false},
    [HTH_OP_IDENTITY] = {hth_grad_pass, 0, false}, [HTH_OP_NEG] = {hth_grad_neg, 0, false},
    [HTH_OP_CAST] = {hth_grad_cast, 0, false}, [HTH_OP_CAST_LIKE] = {hth_grad_cast, FROM_1, false},
    [HTH_OP_DROPOUT_TRAIN] = {hth_grad_dropout, FROM_1, false},
    [HTH_OP_ADD] = {hth_grad_add, 0, false}, [HTH_OP_SUM] = {hth_grad_add, 0, false},
    [HTH_OP_SUB] = {hth_grad_sub, 0, false}, [HTH_OP_MUL] = {hth_grad_mul, 0, false},
    [HTH_OP_DIV] = {hth_grad_div, 0, false}, [HTH_OP_POW] = {hth_grad_pow, 0, false},
    [HTH_OP_PRELU] = {hth_grad_prelu, 0, false}, [HTH_OP_MEAN] = {hth_grad_mean, 0, false},
    [HTH_OP_MAX] = {hth_grad_extreme, 0, false}, [HTH_OP_MIN] = {hth_grad_extreme, 0, false},
    [HTH_OP_WHERE] = {hth_grad_where, 1, false},
    [HTH_OP_MAT_MUL] = {hth_grad_matmul, 0, false}, [HTH_OP_GEMM] = {hth_grad_gemm, 0, false},
    [HTH_OP_EINSUM] = {hth_grad_einsum, 0, false},
    [HTH_OP_CONV] = {hth_grad_conv, 0, false},
    [HTH_OP_CONV_TRANSPOSE] = {hth_grad_conv_transpose, 0, false},
    [HTH_OP_MAX_POOL] = {hth_grad_max_pool, 0, false},
    [HTH_OP_AVERAGE_POOL] = {hth_grad_average_pool, 0, false},
    [HTH_OP_GLOBAL_AVERAGE_POOL] = {hth_grad_global_average, 0, false},
    [HTH_OP_GLOBAL_MAX_POOL] = {hth_grad_reduce_extreme, 0, false},
    [HTH_OP_RESIZE] = {hth_grad_resize, FROM_1, false},
    [HTH_OP_UPSAMPLE] = {hth_grad_resize, FROM_1, false},
    [HTH_OP_BATCH_NORM_TRAIN] = {hth_grad_batch_norm, 0x18, false},
    [HTH_OP_LAYER_NORMALIZATION] = {hth_grad_layer_norm, 0, false},
    [HTH_OP_RMSNORMALIZATION] = {hth_grad_rms_norm, 0, false},
    [HTH_OP_GROUP_NORMALIZATION] = {hth_grad_group_norm, 0, false},
    [HTH_OP_INSTANCE_NORMALIZATION] = {hth_grad_group_norm, 0, false},
    [HTH_OP_LRN] = {hth_grad_lrn, 0, false},
    [HTH_OP_LP_NORMALIZATION] = {hth_grad_lp_norm, 0, false},
    [HTH_OP_SOFTMAX] = {hth_grad_softmax, 0, false},
    [HTH_OP_LOG_SOFTMAX] = {hth_grad_softmax, 0, false},
    [HTH_OP_REDUCE_SUM] = {hth_grad_reduce_sum, FROM_1, false},
    [HTH_OP_REDUCE_MEAN] = {hth_grad_reduce_sum, FROM_1, false},
    [HTH_OP_REDUCE_L1] = {hth_grad_reduce_other, FROM_1, false},
    [HTH_OP_REDUCE_L2] = {hth_grad_reduce_other, FROM_1, false},
    [HTH_OP_REDUCE_LOG_SUM] = {hth_grad_reduce_other, FROM_1, false},
    [HTH_OP_REDUCE_LOG_SUM_EXP] = {hth_grad_reduce_other, FROM_1, false},
    [HTH_OP_REDUCE_PROD] = {hth_grad_reduce_other, FROM_1, false},
    [HTH_OP_REDUCE_SUM_SQUARE] = {hth_grad_reduce_other, FROM_1, false},
    [HTH_OP_REDUCE_MAX] = {hth_grad_reduce_extreme, FROM_1, false},
    [HTH_OP_REDUCE_MIN] = {hth_grad_reduce_extreme, FROM_1, false},
    [HTH_OP_CUM_SUM] = {hth_grad_cumsum, FROM_1, false},
    [HTH_OP_RESHAPE] = {hth_grad_reshape_back, FROM_1, false},
    [HTH_OP_FLATTEN] = {hth_grad_reshape_back, FROM_1, false},
    [HTH_OP_SQUEEZE] = {hth_grad_reshape_back, FROM_1, false},
    [HTH_OP_UNSQUEEZE] = {hth_grad_reshape_back, FROM_1, false},
    [HTH_OP_TRANSPOSE] = {hth_grad_transpose, 0, false},
    [HTH_OP_EXPAND] = {hth_grad_expand_back, FROM_1, false},
    [HTH_OP_TILE] = {hth_grad_tile, FROM_1, false},
    [HTH_OP_CONCAT] = {hth_grad_concat, 0, false}, [HTH_OP_SPLIT] = {hth_grad_split, FROM_1, false},
    [HTH_OP_SLICE] = {hth_grad_slice, FROM_1, false}, [HTH_OP_PAD] = {hth_grad_pad, FROM_1, false},
    [HTH_OP_DEPTH_TO_SPACE] = {hth_grad_blocks, 0, false},
    [HTH_OP_SPACE_TO_DEPTH] = {hth_grad_blocks, 0, false},
    [HTH_OP_TRILU] = {hth_grad_same_on_dy, FROM_1, false},
    [HTH_OP_REVERSE_SEQUENCE] = {hth_grad_same_on_dy, FROM_1, false},
    [HTH_OP_GATHER] = {hth_grad_gather, FROM_1, false},
    [HTH_OP_GATHER_ELEMENTS] = {hth_grad_gather_elements, FROM_1, false},
    [HTH_OP_GATHER_ND] = {hth_grad_gather_nd, FROM_1, false},
    [HTH_OP_COMPRESS] = {hth_grad_compress, FROM_1, false},
    [HTH_OP_GRID_SAMPLE] = {hth_grad_grid_sample, 0, false},
    [HTH_OP_DET] = {hth_grad_det, 0, false},
    [HTH_OP_SCATTER] = {hth_grad_scatter, 2, false},
    [HTH_OP_SCATTER_ELEMENTS] = {hth_grad_scatter, 2, false},
    [HTH_OP_SCATTER_ND] = {hth_grad_scatter, 2, false},
    [HTH_OP_LSTM] = {hth_grad_rnn, 0, false}, [HTH_OP_GRU] = {hth_grad_rnn, 0, false},
    [HTH_OP_RNN] = {hth_grad_rnn, 0, false},
    [HTH_OP_MEAN_VARIANCE_NORMALIZATION] = {hth_grad_mean_variance, 0, false},
    [HTH_OP_LP_POOL] = {hth_grad_lp_pool, 0, false},
    [HTH_OP_GLOBAL_LP_POOL] = {hth_grad_lp_pool, 0, false},
    [HTH_OP_MOD] = {hth_grad_mod, 0, false},
    [HTH_OP_ROTARY_EMBEDDING] = {hth_grad_rotary, FROM_1, false},
    [HTH_OP_TOP_K] = {hth_grad_top_k, FROM_1, false},
    [HTH_OP_CEIL] = FLAT, [HTH_OP_FLOOR] = FLAT, [HTH_OP_ROUND] = FLAT, [HTH_OP_SIGN] = FLAT,
    [HTH_OP_SHAPE] = FLAT, [HTH_OP_SIZE] = FLAT, [HTH_OP_ARG_MAX] = FLAT, [HTH_OP_ARG_MIN] = FLAT,
    [HTH_OP_EQUAL] = FLAT, [HTH_OP_GREATER] = FLAT, [HTH_OP_GREATER_OR_EQUAL] = FLAT,
    [HTH_OP_LESS] = FLAT, [HTH_OP_LESS_OR_EQUAL] = FLAT, [HTH_OP_IS_INF] = FLAT,
    [HTH_OP_IS_NA_N] = FLAT, [HTH_OP_HARDMAX] = FLAT, [HTH_OP_EYE_LIKE] = FLAT,
    [HTH_OP_ONE_HOT] = FLAT, [HTH_OP_CONSTANT_OF_SHAPE] = FLAT, [HTH_OP_RANGE] = FLAT,
    // clang-format on
};

const hth_grad_rule *hth_grad_rule_of(hth_op op)
{
    return &rules[(unsigned)op < HTH_N_OPS ? op : HTH_OP_NONE];
}

bool hth_grad_passes(const hth_graph *graph, const hth_node *node, int k)
{
    const hth_grad_rule *r = hth_grad_rule_of(node->op);
    int v = node->inputs[k];
    return v >= 0 && !r->flat && !(r->fixed >> (k < 31 ? k : 31) & 1) &&
           hth_dtype_is_float(graph->values[v].dtype);
}
