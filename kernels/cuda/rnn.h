// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/rnn.h - what recurrences and their gradients share: launches of the kernels of a
// time step, and places in a workspace. A step of such a sequence issues many launches and
// products by itself, because where they read changes with the time.
#ifndef HTH_KERNELS_CUDA_RNN_H
#define HTH_KERNELS_CUDA_RNN_H

#include "kernels/cuda/product.h"

hth_err hth_cuda_rnn_launch(const hth_cuda_seq *seq, hth_cuda_kernel_id id, uint64_t blocks,
                            size_t shared_bytes, const void *params);
// hth_cuda_rnn_copy copies the rows of a state; params->in NULL: zeros, params->out NULL: nothing.
hth_err hth_cuda_rnn_copy(const hth_cuda_seq *seq, const hth_rnn_state_params *params);

// What the address of an operand divides by, `floats` after its beginning.
uint32_t hth_cuda_rnn_align(size_t floats);
// hth_cuda_rnn_place reserves `bytes` at *at, which it moves after them.
size_t hth_cuda_rnn_place(size_t *at, size_t bytes);
float *hth_cuda_rnn_at(void *workspace, size_t at);

#endif
