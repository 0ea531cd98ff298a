// SPDX-License-Identifier: Apache-2.0
// Winograd for every processor, SSE2 on x86: two vectors to a block of 8 channels. Without fused
// multiply-add a product needs a register more: 6 x 2 sums, 2 of filters, 2 of products; for
// gradients 4 x 2.
#include "kernels/cpu/winograd/winograd_body_grad.h"

const hth_wino_isa hth_wino_sse2 = WINO_TABLE("sse2");
