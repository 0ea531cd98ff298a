// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_nn.h - the kernels that compute in double: convolution, pooling, normalisation,
// products, recurrent, resampling, attention, selection by score. X(operator, kernel, flags of the
// dispatch table).
#ifndef HTH_KERNELS_REF_REF_NN_H
#define HTH_KERNELS_REF_REF_NN_H

#include "kernels/ref/ref.h"

// clang-format off
#define REF_NN_ROWS(X) \
    X(CONV, ref_conv, 0) \
    X(CONV_TRANSPOSE, ref_conv_transpose, 0) \
    X(AVERAGE_POOL, ref_average_pool, 0) \
    X(LP_POOL, ref_lp_pool, 0) \
    X(MAX_POOL, ref_max_pool, 0) \
    X(GLOBAL_AVERAGE_POOL, ref_global_pool, 0) \
    X(GLOBAL_LP_POOL, ref_global_pool, 0) \
    X(GLOBAL_MAX_POOL, ref_global_pool, 0) \
    X(BATCH_NORMALIZATION, ref_batch_normalization, 0) \
    X(INSTANCE_NORMALIZATION, ref_instance_normalization, 0) \
    X(GROUP_NORMALIZATION, ref_group_normalization, 0) \
    X(LAYER_NORMALIZATION, ref_layer_normalization, 0) \
    X(RMSNORMALIZATION, ref_layer_normalization, 0) \
    X(LP_NORMALIZATION, ref_lp_normalization, 0) \
    X(MEAN_VARIANCE_NORMALIZATION, ref_mean_variance_normalization, 0) \
    X(LRN, ref_lrn, 0) \
    X(SCALE_SHIFT, ref_scale_shift, 0) \
    X(GEMM, ref_gemm, 0) \
    X(MAT_MUL, ref_matmul, 0) \
    X(EINSUM, ref_einsum, 0) \
    X(RNN, ref_rnn, 0) \
    X(GRU, ref_gru, 0) \
    X(LSTM, ref_lstm, 0) \
    X(SOFTMAX, ref_softmax, 0) \
    X(LOG_SOFTMAX, ref_softmax, 0) \
    X(HARDMAX, ref_softmax, 0) \
    X(RESIZE, ref_resize, 0) \
    X(UPSAMPLE, ref_resize, 0) \
    X(ATTENTION, ref_attention, 0) \
    X(FUSED_ATTENTION, ref_fused_attention, 0) \
    X(ROTARY_EMBEDDING, ref_rotary_embedding, 0) \
    X(TOP_K, ref_topk, 0) \
    X(NON_MAX_SUPPRESSION, ref_non_max_suppression, 0) \
    X(GRID_SAMPLE, ref_grid_sample, 0) \
    X(DEPTH_TO_SPACE, ref_depth_to_space, 0) \
    X(SPACE_TO_DEPTH, ref_space_to_depth, 0) \
    X(ONE_HOT, ref_one_hot, 0) \
    X(REVERSE_SEQUENCE, ref_reverse_sequence, 0) \
    X(DET, ref_det, 0) \
    X(DROPOUT, ref_dropout, 0) \
    X(REORDER, ref_reorder, LAYOUT)

// The operators of a training step.
#define REF_TRAIN_ROWS(X) \
    X(CONV_GRAD_DATA, ref_conv_grad_data, 0) \
    X(CONV_GRAD_FILTER, ref_conv_grad_filter, 0) \
    X(MAX_POOL_TRAIN, ref_max_pool_train, 0) \
    X(MAX_POOL_GRAD, ref_max_pool_grad, 0) \
    X(AVERAGE_POOL_GRAD, ref_average_pool_grad, 0) \
    X(BATCH_NORM_TRAIN, ref_batch_norm_train, 0) \
    X(BATCH_NORM_GRAD, ref_batch_norm_grad, 0) \
    X(CONV_NORM_TRAIN, ref_conv_norm_train, 0) \
    X(CONV_NORM_GRAD, ref_conv_norm_grad, 0) \
    X(LAYER_NORM_GRAD, ref_layer_norm_grad, 0) \
    X(GROUP_NORM_GRAD, ref_group_norm_grad, 0) \
    X(LRN_GRAD, ref_lrn_grad, 0) \
    X(RELU_GRAD, ref_relu_grad, 0) \
    X(ELEMENT_GRAD, ref_element_grad, 0) \
    X(SOFTMAX_GRAD, ref_softmax_grad, 0) \
    X(LOG_SOFTMAX_GRAD, ref_softmax_grad, 0) \
    X(SOFTMAX_XENT, ref_softmax_xent, 0) \
    X(SOFTMAX_XENT_GRAD, ref_softmax_xent, 0) \
    X(MSE, ref_mse, 0) \
    X(MSE_GRAD, ref_mse, 0) \
    X(BCE, ref_bce, 0) \
    X(BCE_GRAD, ref_bce, 0) \
    X(DROPOUT_TRAIN, ref_dropout_train, 0) \
    X(RESIZE_GRAD, ref_resize_grad, 0) \
    X(GATHER_GRAD, ref_gather_grad, 0) \
    X(SLICE_GRAD, ref_slice_grad, 0) \
    X(GRID_SAMPLE_GRAD, ref_grid_sample_grad, 0) \
    X(DET_GRAD, ref_det_grad, 0) \
    X(RNN_GRAD, ref_rnn_grad, 0) \
    X(CLIP_SCALE, ref_clip_scale, 0) \
    X(SGD_STEP, ref_sgd_step, 0) \
    X(ADAM_STEP, ref_adam_step, 0)
// clang-format on

#define REF_NN_DECLARE(op, kernel, flags) REF_KERNEL(kernel);
REF_NN_ROWS(REF_NN_DECLARE)
REF_TRAIN_ROWS(REF_NN_DECLARE)
#undef REF_NN_DECLARE

#endif
