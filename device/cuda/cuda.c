// SPDX-License-Identifier: Apache-2.0
// A CUDA device: open, properties, close, and the table that device.h wants.
#include "device/cuda/cuda.h"

#include "base/alloc.h"

#include <stdio.h>

static hth_err cuda_count(const hth_cuda_api *api, int *n, int *driver)
{
    *n = *driver = 0;
    CUresult r = api->cuInit(0);
    if (r != CUDA_SUCCESS) {
        (void)hth_cuda_fail(api, "NVIDIA's driver", r, "cuInit");
        return HTH_ENOTSUP; // whatever it is: no device can be had
    }
    r = api->cuDriverGetVersion(driver);
    if (r != CUDA_SUCCESS) {
        return hth_cuda_fail(api, "NVIDIA's driver", r, "cuDriverGetVersion");
    }
    r = api->cuDeviceGetCount(n);
    return r == CUDA_SUCCESS ? HTH_OK
                             : hth_cuda_fail(api, "NVIDIA's driver", r, "cuDeviceGetCount");
}

static void cuda_versions(const hth_cuda_api *api, int driver, char *out, size_t cap)
{
    size_t dnn = api->cudnnGetVersion(), blas = api->cublasLtGetVersion();
    snprintf(out, cap, "driver %d.%d, cuDNN %zu.%zu.%zu, cublasLt %zu.%zu.%zu", driver / 1000,
             driver % 1000 / 10, dnn / 10000, dnn / 100 % 100, dnn % 100, blas / 10000,
             blas / 100 % 100, blas % 100);
}

hth_err hth_cuda_about(const hth_cuda_api *api, char *about, size_t cap)
{
    int n, driver;
    char versions[96];
    HTH_TRY(cuda_count(api, &n, &driver));
    if (n == 0) {
        return hth_fail(HTH_ENOTSUP, "NVIDIA's driver has no device");
    }
    cuda_versions(api, driver, versions, sizeof versions);
    snprintf(about, cap, "%d device%s, %s", n, n == 1 ? "" : "s", versions);
    return HTH_OK;
}

static int cuda_attribute(hth_cuda *cuda, CUdevice_attribute which)
{
    int v = 0;
    return cuda->api->cuDeviceGetAttribute(&v, which, cuda->device) == CUDA_SUCCESS && v > 0 ? v
                                                                                             : 0;
}

static hth_err cuda_uuid(hth_cuda *cuda)
{
    CUuuid id = {{0}};
    char *out = cuda->base.props.uuid;
    HTH_TRY(HTH_CUDA(cuda, cuDeviceGetUuid, &id, cuda->device));
    out += sprintf(out, "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        out += sprintf(out, "%s%02x", dash ? "-" : "", (unsigned)(unsigned char)id.bytes[i]);
    }
    return HTH_OK;
}

static hth_err cuda_props(hth_cuda *cuda, const hth_device_spec *spec, int driver)
{
    hth_device_props *p = &cuda->base.props;
    char name[64] = "", versions[64];
    size_t total = 0;
    HTH_TRY(HTH_CUDA(cuda, cuDeviceGetName, name, (int)sizeof name - 1, cuda->device));
    HTH_TRY(HTH_CUDA(cuda, cuDeviceTotalMem, &total, cuda->device));
    HTH_TRY(cuda_uuid(cuda));
    cuda_versions(cuda->api, driver, versions, sizeof versions);
    p->total_bytes = total;
    p->n_threads = cuda_attribute(cuda, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    p->core_cache_bytes =
        (uint64_t)cuda_attribute(cuda, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    p->cache_bytes = (uint64_t)cuda_attribute(cuda, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    p->vector_bytes = 16; // the widest access of one thread
    snprintf(p->description, sizeof p->description, "%s, %d SMs, compute capability %d.%d", name,
             p->n_threads, cuda_attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
             cuda_attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    snprintf(p->fingerprint, sizeof p->fingerprint, "%s; %d SMs; %s", name, p->n_threads, versions);
    return hth_device_spec_budget(spec, p->total_bytes, "90%", &p->budget_bytes);
}

static void cuda_close(hth_device *base)
{
    hth_cuda *d = (hth_cuda *)base;
    if (d->context != NULL) {
        (void)hth_cuda_enter(d);
        if (d->kernels_close != NULL) {
            d->kernels_close(d);
        }
        if (d->own_stream != NULL) {
            (void)HTH_CUDA(d, cuStreamSynchronize, d->own_stream);
            (void)HTH_CUDA(d, cuStreamDestroy, d->own_stream);
        }
        hth_cuda_anchor_close(d);
        hth_cuda_host_fini(d);
        hth_cuda_mem_fini(d);
        (void)HTH_CUDA(d, cuCtxSetCurrent, NULL);
        (void)HTH_CUDA(d, cuDevicePrimaryCtxRelease, d->device);
    }
    hth_free(d);
}

static hth_err cuda_memory(hth_device *base, uint64_t *total, uint64_t *free)
{
    hth_cuda *d = (hth_cuda *)base;
    size_t all = 0, rest = 0;
    HTH_TRY(hth_cuda_enter(d)); // whose device's memory it is
    HTH_TRY(HTH_CUDA(d, cuMemGetInfo, &rest, &all));
    *total = all;
    *free = rest;
    return HTH_OK;
}

static hth_err cuda_reserve(hth_device *device, size_t bytes, void **base)
{
    return hth_cuda_mem_reserve((hth_cuda *)device, bytes, base);
}

static void cuda_release(hth_device *device, void *base, size_t bytes)
{
    hth_cuda_mem_release((hth_cuda *)device, base);
}

static hth_err cuda_reserve_host(hth_device *device, size_t bytes, void **base)
{
    return hth_cuda_host_reserve((hth_cuda *)device, bytes, base);
}

static void cuda_release_host(hth_device *device, void *base)
{
    hth_cuda_host_release((hth_cuda *)device, base);
}

static const hth_device_ops cuda_ops = {
    .close = cuda_close,
    .memory = cuda_memory,
    .reserve = cuda_reserve,
    .release = cuda_release,
    .reserve_host = cuda_reserve_host,
    .release_host = cuda_release_host,
    .stream_open = hth_cuda_stream_open,
    .stream_close = hth_cuda_stream_close,
    .launch = hth_cuda_launch,
    .copy = hth_cuda_copy,
    .zero = hth_cuda_zero,
    .record = hth_cuda_record,
    .wait = hth_cuda_wait,
    .sync = hth_cuda_sync,
    .event_open = hth_cuda_event_open,
    .event_close = hth_cuda_event_close,
    .event_sync = hth_cuda_event_sync,
    .event_time_ns = hth_cuda_event_time_ns,
    .capture_begin = hth_cuda_capture_begin,
    .capture_end = hth_cuda_capture_end,
    .capture_launch = hth_cuda_capture_launch,
    .capture_close = hth_cuda_capture_close,
};

static hth_err cuda_setup(hth_cuda *cuda, const hth_device_spec *spec)
{
    int n, driver;
    HTH_TRY(cuda_count(cuda->api, &n, &driver));
    if (spec->index >= n) {
        const char *name = cuda->base.props.name;
        return n == 1 ? hth_fail(HTH_ENOTSUP, "device %s: there is 1 CUDA device, number 0", name)
                      : hth_fail(HTH_ENOTSUP, "device %s: there are %d CUDA devices", name, n);
    }
    HTH_TRY(HTH_CUDA(cuda, cuDeviceGet, &cuda->device, spec->index));
    HTH_TRY(cuda_props(cuda, spec, driver));
    HTH_TRY(HTH_CUDA(cuda, cuDevicePrimaryCtxRetain, &cuda->context, cuda->device));
    HTH_TRY(hth_cuda_enter(cuda));
    HTH_TRY(hth_cuda_mem_init(cuda));
    HTH_TRY(HTH_CUDA(cuda, cuStreamCreate, &cuda->own_stream, CU_STREAM_NON_BLOCKING));
    cuda->current = cuda->own_stream;
    return hth_cuda_anchor_open(cuda);
}

hth_err hth_cuda_open_device(const hth_cuda_api *api, const hth_device_spec *spec, hth_device **out)
{
    hth_cuda *d = hth_calloc(1, sizeof *d);
    if (d == NULL) {
        return hth_fail(HTH_ENOMEM, "device cuda:%d: no memory to open it", spec->index);
    }
    d->base.ops = &cuda_ops;
    d->api = api;
    snprintf(d->base.props.name, sizeof d->base.props.name, "cuda:%d", spec->index);
    hth_err err = cuda_setup(d, spec);
    if (err != HTH_OK) {
        cuda_close(&d->base);
        return err;
    }
    *out = &d->base;
    return HTH_OK;
}
