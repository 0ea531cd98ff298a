// SPDX-License-Identifier: Apache-2.0
// The cases of kernels/cpu/elementwise_test.c, on CUDA's kernels.
#include "kernels/cuda/fixture.h"

#include "kernels/cpu/elementwise_test.c"
