// SPDX-License-Identifier: Apache-2.0
// The cases of kernels/cpu/attention_test.c, on CUDA's kernels.
#include "kernels/cuda/fixture.h"

#include "kernels/cpu/attention_test.c"
