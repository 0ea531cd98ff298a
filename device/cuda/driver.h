// SPDX-License-Identifier: Apache-2.0
// device/cuda/driver.h - the entry points of CUDA's driver, cuDNN and cublasLt that hearth calls,
// as one table filled at run time.
//
// Design notes
// The driver API, not cudart: a program linked with -lcuda does not start without a driver. Types
// come from the vendor's headers. A name is stringified after macro expansion, so cuMemAlloc is
// looked up as cuMemAlloc_v2, as a linker would. build-aux/cuda_symbols.sh checks the names against
// the toolkit's libraries. A test puts a driver of its own into the table (fake/).
#ifndef HTH_DEVICE_CUDA_DRIVER_H
#define HTH_DEVICE_CUDA_DRIVER_H

#include "base/err.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cudnn.h>

#include <stddef.h>

// libcuda.so.1
#define HTH_CUDA_DRIVER(X)                                                                         \
    X(cuInit)                                                                                      \
    X(cuDriverGetVersion)                                                                          \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDeviceTotalMem)                                                                            \
    X(cuDeviceGetUuid)                                                                             \
    X(cuMemGetInfo)                                                                                \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxSetCurrent)                                                                             \
    X(cuCtxSynchronize)                                                                            \
    X(cuMemGetAllocationGranularity)                                                               \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemCreate)                                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)                                                                              \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuMemcpyHtoDAsync)                                                                           \
    X(cuMemcpyDtoHAsync)                                                                           \
    X(cuMemcpyDtoDAsync)                                                                           \
    X(cuMemsetD8Async)                                                                             \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphInstantiate)                                                                          \
    X(cuGraphExecUpdate)                                                                           \
    X(cuGraphLaunch)                                                                               \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphDestroy)                                                                              \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamWaitEvent)                                                                           \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy)                                                                              \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuEventSynchronize)                                                                          \
    X(cuEventElapsedTime)                                                                          \
    X(cuLibraryLoadData)                                                                           \
    X(cuLibraryUnload)                                                                             \
    X(cuLibraryGetKernel)                                                                          \
    X(cuLaunchKernel)

// libcudnn.so.9: the graph API
#define HTH_CUDA_CUDNN(X)                                                                          \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

// libcublasLt.so.13
#define HTH_CUDA_CUBLASLT(X)                                                                       \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoInit)                                                                      \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoConfigSetAttribute)                                                        \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)

typedef struct hth_cuda_api {
#define HTH_CUDA_MEMBER(f) __typeof__(f) *f;
    HTH_CUDA_DRIVER(HTH_CUDA_MEMBER)
    HTH_CUDA_CUDNN(HTH_CUDA_MEMBER)
    HTH_CUDA_CUBLASLT(HTH_CUDA_MEMBER)
#undef HTH_CUDA_MEMBER
} hth_cuda_api;

// hth_cuda_load fills *out from the libraries, each looked for in `dirs` ("/a:/b", a toolkit, a
// library folder or a site-packages folder of Python), then where the loader looks, then in
// /usr/local/cuda. They stay open. HTH_ENOTSUP: the sentence names the library that is missing, of
// another version, or incomplete; *out is of no use then.
hth_err hth_cuda_load(const char *dirs, hth_cuda_api *out);

#endif
