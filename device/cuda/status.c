// SPDX-License-Identifier: Apache-2.0
// What the driver answers, as hth_err. An error that ends the context is sticky in CUDA: every
// later call repeats it or worse. So the first one is kept, and its sentence is what everybody
// hears until the device is opened anew, in a new process.
#include "device/cuda/cuda.h"

#include <stdio.h>

static bool status_ends_context(CUresult r)
{
    switch (r) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

static hth_err status_code(CUresult r)
{
    switch (r) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return HTH_ENOMEM; // device memory has its own code where it is asked for, in mem.c
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
    case CUDA_ERROR_CAPTURED_EVENT:
        return HTH_ENOTSUP;
    default:
        return HTH_EIO;
    }
}

hth_err hth_cuda_fail(const hth_cuda_api *api, const char *who, CUresult r, const char *call)
{
    const char *name = NULL, *text = NULL;
    api->cuGetErrorName(r, &name);
    api->cuGetErrorString(r, &text);
    name = name != NULL ? name : "an unknown error";
    text = text != NULL ? text : "no text";
    return hth_fail(status_code(r), "%s: %s answered %s (%s)", who, call, name, text);
}

hth_err hth_cuda_status(hth_cuda *cuda, CUresult r, const char *call)
{
    if (r == CUDA_SUCCESS && cuda->lost[0] == '\0') {
        return HTH_OK;
    }
    if (cuda->lost[0] == '\0') {
        hth_err err = hth_cuda_fail(cuda->api, cuda->base.props.name, r, call);
        if (!status_ends_context(r)) {
            return err;
        }
        snprintf(cuda->lost, sizeof cuda->lost, "%s", hth_err_detail());
    }
    return hth_fail(HTH_EDEVLOST, "%s", cuda->lost);
}
