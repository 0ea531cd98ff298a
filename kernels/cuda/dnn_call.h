// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/dnn_call.h - calling cuDNN, for dnn*.c.
#ifndef HTH_KERNELS_CUDA_DNN_CALL_H
#define HTH_KERNELS_CUDA_DNN_CALL_H

#include "kernels/cuda/dnn.h"

// DNN(api, cudnnBackendFinalize, d) calls and maps the answer, with cuDNN's own sentence.
#define DNN(api, f, ...) hth_dnn_status(api, (api)->f(__VA_ARGS__), #f)

hth_err hth_dnn_status(const hth_cuda_api *api, cudnnStatus_t r, const char *call);

#endif
