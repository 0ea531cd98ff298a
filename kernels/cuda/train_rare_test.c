// SPDX-License-Identifier: Apache-2.0
// The cases of kernels/cpu/train/train_rare_test.c, on CUDA's kernels.
#include "kernels/cuda/fixture.h"

#include "kernels/cpu/train/train_rare_test.c"
