// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/plain.h - operators on plain tensors that are loops of our own: what transformers and
// recurrent networks consist of.
#ifndef HTH_KERNELS_CPU_PLAIN_H
#define HTH_KERNELS_CPU_PLAIN_H

#include "kernels/cpu/primitive.h"

HTH_CPU_PREPARE(cpu_matmul_prepare); // MatMul, Gemm
HTH_CPU_PREPARE(cpu_attention_prepare);
// cpu_epilogue_can_fuse: post ops of all operators that use kernels/cpu/epilogue.h.
bool cpu_epilogue_can_fuse(hth_device *d, const hth_graph *g, const hth_node *n,
                           const hth_post_op *post, int operand);

#endif
