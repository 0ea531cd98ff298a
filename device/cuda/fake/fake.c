// SPDX-License-Identifier: Apache-2.0
// The fake driver's state, its calls' failures, its devices and versions.
#include "device/cuda/fake/fake.h"

#include "device/cuda/cuda.h"
#include "device/cuda/fake/impl.h"

#include <stdio.h>
#include <string.h>

#define FAKE_DEVICES 16

static struct {
    hth_cuda_fake control;
    hth_cuda_api api;
    char context[FAKE_DEVICES]; // the primary ones, by device
} fake;
static _Thread_local CUcontext fake_current;

hth_cuda_fake *hth_cuda_fake_state(void)
{
    return &fake.control;
}

CUresult hth_cuda_fake_enter(void)
{
    hth_cuda_fake *c = &fake.control;
    c->calls++;
    if (c->fail_nth > 0 && --c->fail_nth == 0) {
        if (c->sticky) { // nothing runs in a dead context: what was issued had run before
            c->fail_nth = 1;
            (void)hth_cuda_fake_drain();
        }
        return c->fail_with;
    }
    return CUDA_SUCCESS;
}

CUcontext hth_cuda_fake_current(void)
{
    return fake_current;
}

bool hth_cuda_fake_take(int64_t bytes)
{
    hth_cuda_fake *c = &fake.control;
    if (bytes > 0 && (uint64_t)bytes > c->total_bytes - c->used_bytes) {
        return false;
    }
    c->used_bytes += (uint64_t)bytes;
    c->peak_bytes = c->used_bytes > c->peak_bytes ? c->used_bytes : c->peak_bytes;
    return true;
}

// Devices.

static CUresult fake_init(unsigned flags)
{
    FAKE_ENTER();
    return fake.control.n_devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static CUresult fake_driver_version(int *out)
{
    FAKE_ENTER();
    *out = CUDA_VERSION;
    return CUDA_SUCCESS;
}

static CUresult fake_error_name(CUresult r, const char **out)
{
    switch (r) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        *out = "CUDA_ERROR_OUT_OF_MEMORY";
        return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
        *out = "CUDA_ERROR_ILLEGAL_ADDRESS";
        return CUDA_SUCCESS;
    case CUDA_ERROR_NO_DEVICE:
        *out = "CUDA_ERROR_NO_DEVICE";
        return CUDA_SUCCESS;
    default:
        *out = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult fake_device_count(int *out)
{
    FAKE_ENTER();
    *out = fake.control.n_devices;
    return CUDA_SUCCESS;
}

static CUresult fake_device_get(CUdevice *out, int index)
{
    FAKE_ENTER();
    *out = index;
    return index < fake.control.n_devices && index < FAKE_DEVICES ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult fake_device_name(char *out, int cap, CUdevice d)
{
    FAKE_ENTER();
    snprintf(out, (size_t)cap, "fake CUDA device");
    return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int *out, CUdevice_attribute which, CUdevice d)
{
    FAKE_ENTER();
    *out = which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 2 : 1;
    if (which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
        *out = !fake.control.no_vmm;
    }
    return CUDA_SUCCESS;
}

static CUresult fake_device_total(size_t *out, CUdevice d)
{
    FAKE_ENTER();
    *out = fake.control.total_bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_device_uuid(CUuuid *out, CUdevice d)
{
    FAKE_ENTER();
    for (int i = 0; i < 16; i++) {
        out->bytes[i] = (char)(i == 0 ? d : 0xf0 | i);
    }
    return CUDA_SUCCESS;
}

static CUresult fake_memory_info(size_t *free, size_t *total)
{
    FAKE_CURRENT();
    FAKE_ENTER();
    *total = fake.control.total_bytes;
    *free = fake.control.total_bytes - fake.control.used_bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_context_retain(CUcontext *out, CUdevice d)
{
    FAKE_ENTER();
    fake.control.live++;
    *out = (CUcontext)(void *)&fake.context[d];
    return CUDA_SUCCESS;
}

static CUresult fake_context_release(CUdevice d)
{
    fake.control.live--;
    return hth_cuda_fake_enter();
}

static CUresult fake_context_current(CUcontext c)
{
    fake_current = c;
    return hth_cuda_fake_enter();
}

static size_t fake_cudnn_version(void)
{
    return CUDNN_VERSION;
}

static size_t fake_cublaslt_version(void)
{
    return 130000;
}

static void fake_fill(hth_cuda_api *api)
{
    hth_cuda_fake_fill_mem(api);
    hth_cuda_fake_fill_streams(api);
    hth_cuda_fake_fill_kernels(api);
    hth_cuda_fake_fill_graphs(api);
    api->cuInit = fake_init;
    api->cuDriverGetVersion = fake_driver_version;
    api->cuGetErrorName = api->cuGetErrorString = fake_error_name;
    api->cuDeviceGetCount = fake_device_count;
    api->cuDeviceGet = fake_device_get;
    api->cuDeviceGetName = fake_device_name;
    api->cuDeviceGetAttribute = fake_device_attribute;
    api->cuDeviceTotalMem = fake_device_total;
    api->cuDeviceGetUuid = fake_device_uuid;
    api->cuMemGetInfo = fake_memory_info;
    api->cuDevicePrimaryCtxRetain = fake_context_retain;
    api->cuDevicePrimaryCtxRelease = fake_context_release;
    api->cuCtxSetCurrent = fake_context_current;
    api->cudnnGetVersion = fake_cudnn_version;
    api->cublasLtGetVersion = fake_cublaslt_version;
}

hth_cuda_fake *hth_cuda_fake_open(uint64_t seed)
{
    memset(&fake, 0, sizeof fake);
    fake_current = NULL;
    if (!hth_cuda_fake_streams_open(seed)) {
        return NULL;
    }
    hth_cuda_fake_kernels_open(seed);
    hth_cuda_fake_captures_open(seed);
    fake_fill(&fake.api);
    fake.control = (hth_cuda_fake){
        .n_devices = 1, .total_bytes = (uint64_t)256 << 20, .fail_with = CUDA_ERROR_OUT_OF_MEMORY};
    return &fake.control;
}

void hth_cuda_fake_close(void)
{
    hth_cuda_fake_streams_close();
}

const hth_cuda_api *hth_cuda_fake_api(void)
{
    return &fake.api;
}

hth_cuda_api *hth_cuda_fake_table(void)
{
    return &fake.api;
}

static hth_err fake_probe(const char *dirs, char *about, size_t cap)
{
    return hth_cuda_about(&fake.api, about, cap);
}

static hth_err fake_open(const hth_device_spec *spec, hth_device **out)
{
    return hth_cuda_open_device(&fake.api, spec, out);
}

const hth_plugin *hth_cuda_fake_plugin(void)
{
    static const hth_plugin plugin = {HTH_PLUGIN_ABI, fake_probe, fake_open};
    return &plugin;
}
