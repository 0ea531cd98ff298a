// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/fake/dnn.h - the fake cuDNN's convolutions: dnn.c makes them of descriptors,
// dnn_run.c computes them.
#ifndef HTH_KERNELS_CUDA_FAKE_DNN_H
#define HTH_KERNELS_CUDA_FAKE_DNN_H

#include "kernels/cuda/fake/fake.h"

#include "graph/graph.h"

typedef struct fake_problem {
    hth_op op;
    int rank;
    hth_shape x, w, y;
    int64_t pads[6], stride[3], dilation[3];
    bool bias, sum, relu;
    bool nhwc, half; // how all tensors lie, and that they are bf16
    int64_t engine, knob;
} fake_problem;

enum { RUN_X, RUN_W, RUN_Y, RUN_BIAS, RUN_SUM, RUN_TENSORS }; // a plan's tensors

typedef struct fake_run {
    fake_problem p;
    void *at[RUN_TENSORS];
    void *workspace;
} fake_run;

int64_t hth_cuda_fake_workspace(const fake_problem *problem);
// hth_cuda_fake_convolve computes a fake_run: what is issued to a stream.
hth_err hth_cuda_fake_convolve(void *run);

#endif
