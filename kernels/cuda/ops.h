// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/ops.h - the table that a device carries (kernels/kernel.h). In the plug-in it hands
// the program's functions on (entry.c); where these files are linked with graph/ there is nothing
// to hand on (fake/).
#ifndef HTH_KERNELS_CUDA_OPS_H
#define HTH_KERNELS_CUDA_OPS_H

#include "kernels/kernel.h"

extern const struct hth_kernel_ops hth_cuda_kernel_ops;

#endif
