// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/plain.h - operators on plain tensors that are loops of our own: what transformers and
// recurrent networks consist of. One prepare function each.
#ifndef HTH_KERNELS_CPU_PLAIN_H
#define HTH_KERNELS_CPU_PLAIN_H

#include "device/cpu/team.h"
#include "kernels/cpu/primitive.h"

HTH_CPU_PREPARE(cpu_matmul_prepare); // MatMul, Gemm
HTH_CPU_PREPARE(cpu_attention_prepare);
HTH_CPU_PREPARE(cpu_norm_prepare);    // LayerNorm, RMSNorm, GroupNorm, InstanceNorm
HTH_CPU_PREPARE(cpu_rows_prepare);    // Softmax over the last axis; ReduceSum, Mean, L2 of f32
HTH_CPU_PREPARE(cpu_element_prepare); // element-wise, one or two operands, any broadcast
HTH_CPU_PREPARE(cpu_move_prepare);    // Transpose, Slice, Expand
HTH_CPU_PREPARE(cpu_view_prepare);    // Reshape and its kin: the same bytes
HTH_CPU_PREPARE(cpu_gather_prepare);
HTH_CPU_PREPARE(cpu_rnn_prepare); // LSTM, GRU
// cpu_epilogue_can_fuse: post ops of all operators that use kernels/cpu/epilogue.h.
bool cpu_epilogue_can_fuse(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const hth_post_op *post, int operand);

// cpu_reduce_axes returns the axes that a Reduce* node reduces as bits, 0 when they are computed or
// none.
unsigned cpu_reduce_axes(const hth_graph *graph, const hth_node *node, int rank);

// cpu_plain_f32 says whether all tensors of a node (`inputs` of its inputs) are plain, f32, not
// empty.
bool cpu_plain_f32(const hth_graph *graph, const hth_node *node, int inputs);

// hth_cpu_floats returns the floats `bytes` after `base`: a place in a workspace.
static inline float *hth_cpu_floats(const void *base, size_t bytes)
{
    const void *p = (const char *)base + bytes;
    return (float *)p;
}

// hth_cpu_share calls fn on the team, or for less than HTH_CPU_SERIAL operations on this thread: an
// estimate of where handing work over begins to pay.
#define HTH_CPU_SERIAL 32768
static inline void hth_cpu_share(int n_threads, size_t operations,
                                 void (*fn)(void *arg, int i, int n), void *arg)
{
    if (operations < HTH_CPU_SERIAL || n_threads == 1) {
        fn(arg, 0, 1);
    } else {
        hth_team_set(n_threads);
        hth_team_run(fn, arg);
    }
}

#endif
