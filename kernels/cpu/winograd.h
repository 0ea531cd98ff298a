// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd.h - 3x3 convolutions by Winograd's F(4x4, 3x3), of our own.
#ifndef HTH_KERNELS_CPU_WINOGRAD_H
#define HTH_KERNELS_CPU_WINOGRAD_H

#include "kernels/cpu/cpu.h"

#define HTH_WINOGRAD_NAME "winograd_4x4:avx512"

// cpu_winograd_prepare makes the kernel of a Conv or of one of its gradients when `algorithm` is
// HTH_WINOGRAD_NAME, for ConvGradFilter also "NAME/k" (winograd_grad.c). HTH_ENOTSUP: not 3x3,
// stride 1, dilation 1, one group, 16-channel blocks; or no AVX-512 here.
hth_err cpu_winograd_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                             const char *algorithm, hth_kernel **out);

hth_err cpu_winograd_grad_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                                  const char *algorithm, hth_kernel **out);

#endif
