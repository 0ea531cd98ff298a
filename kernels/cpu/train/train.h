// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/train/train.h - operators of a training step that are loops of our own, on plain and
// blocked tensors: batch norm, pools with their gradients, element-wise gradients, losses,
// optimizers. One prepare function each; f32 only.
#ifndef HTH_KERNELS_CPU_TRAIN_TRAIN_H
#define HTH_KERNELS_CPU_TRAIN_TRAIN_H

#include "kernels/cpu/blocked.h"
#include "kernels/cpu/primitive.h"
#include "kernels/cpu/vector.h"

HTH_CPU_PREPARE(cpu_batch_norm_train_prepare);
HTH_CPU_PREPARE(cpu_batch_norm_grad_prepare);
HTH_CPU_PREPARE(cpu_conv_norm_prepare); // ConvNormTrain, ConvNormGrad
HTH_CPU_PREPARE(cpu_max_pool_train_prepare);
HTH_CPU_PREPARE(cpu_pool_grad_prepare); // MaxPoolGrad, AveragePoolGrad
HTH_CPU_PREPARE(cpu_relu_grad_prepare);
HTH_CPU_PREPARE(cpu_step_prepare); // SgdStep, AdamStep
HTH_CPU_PREPARE(cpu_clip_scale_prepare);
HTH_CPU_PREPARE(cpu_xent_prepare); // SoftmaxXent and its gradient
HTH_CPU_PREPARE(cpu_mse_prepare);  // Mse and its gradient
HTH_CPU_PREPARE(cpu_bce_prepare);  // BceWithLogits and its gradient
HTH_CPU_PREPARE(cpu_dropout_prepare);
HTH_CPU_PREPARE(cpu_layer_norm_grad_prepare);
HTH_CPU_PREPARE(cpu_group_norm_grad_prepare); // of InstanceNormalization, too
HTH_CPU_PREPARE(cpu_lrn_grad_prepare);
HTH_CPU_PREPARE(cpu_rnn_grad_prepare);     // RNN, GRU, LSTM
HTH_CPU_PREPARE(cpu_softmax_grad_prepare); // and LogSoftmaxGrad, over the last axis
HTH_CPU_PREPARE(cpu_gather_grad_prepare);  // along axis 0
HTH_CPU_PREPARE(cpu_element_grad_prepare);
HTH_CPU_PREPARE(cpu_channel_sum_prepare); // ReduceSum over all axes but 1
hth_layout cpu_channel_sum_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                                  bool *any);

// cpu_batch_norm_can_fuse: one Add of a tensor like the output, then one Relu or Clip.
bool cpu_batch_norm_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const hth_post_op *post, int operand);

// A batch norm's two halves, for slices of the batch; the kernel's node has a `share`.
// cpu_batch_norm_sums writes two sums of each channel of a slice to `own`, cpu_batch_norm_write
// normalises a slice by the sums of all, after which the number of a channel's elements stands.
void cpu_batch_norm_sums(const hth_kernel *kernel, const hth_kernel_args *args, double *own);
void cpu_batch_norm_write(const hth_kernel *kernel, const hth_kernel_args *args, double *all);
hth_err cpu_conv_norm_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                                 hth_choice *list, int cap, int *count);

// cpu_pool_grad_can_fuse: one ReluGrad.
bool cpu_pool_grad_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                            const hth_post_op *post, int operand);

// hth_cpu_relu_grad writes dy, plus `more` where there is such a tensor, where low < y < high, and
// 0 elsewhere, on the team. dx may be dy or more.
void hth_cpu_relu_grad(int n_threads, const float *dy, const float *y, const float *more, float *dx,
                       size_t n, float low, float high);

// Sixteen floats, wherever they stand: what the loops of these kernels work on. One vector of
// AVX-512, two of AVX2.
typedef float hth_v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t hth_v16i __attribute__((vector_size(64), aligned(4), may_alias));

// hth_open16 leaves *dy where low < *y < high, else 0. Bits in the place of a comparison: of those
// gcc 12 makes scalar code, and of a plain loop loads that wait for one another. low - y and y -
// high are both negative where v16 is open.
HTH_INLINE void hth_open16(hth_v16 *dy, const hth_v16 *v16, float low, float high)
{
    hth_v16 above = low - *v16, below = *v16 - high;
    // cppcheck-suppress shiftTooManyBitsSigned ; of a vector's 32-bit lanes
    hth_v16i both = ((hth_v16i)above & (hth_v16i)below) >> 31;
    *dy = (hth_v16)((hth_v16i)*dy & both);
}

#endif
