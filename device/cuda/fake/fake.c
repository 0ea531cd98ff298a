// SPDX-License-Identifier: Apache-2.0
// The fake driver's devices, streams, events, copies and launches. A CUstream is a stream of a fake
// device, a CUevent an event of it, so the order of execution is that device's.
#include "device/cuda/fake/fake.h"

#include "device/cuda/cuda.h"
#include "device/cuda/fake/impl.h"
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_STREAMS 64

// What a copy from pageable memory has read.
typedef struct fake_staged {
    struct fake_staged *next;
    void *dst;
    size_t bytes;
    char data[];
} fake_staged;

static struct {
    hth_cuda_fake control;
    hth_device *device; // of device/fake
    hth_cuda_api api;
    fake_staged *staged;
    hth_stream *streams[FAKE_STREAMS]; // NULL: free
} fake;

hth_cuda_fake *hth_cuda_fake_state(void)
{
    return &fake.control;
}

// Runs everything; returns whether a kernel failed.
static bool fake_drain(void)
{
    bool bad = false;
    for (int i = 0; i < FAKE_STREAMS; i++) {
        bad = (fake.streams[i] != NULL && hth_stream_sync(fake.streams[i]) != HTH_OK) || bad;
    }
    return bad;
}

CUresult hth_cuda_fake_enter(void)
{
    hth_cuda_fake *c = &fake.control;
    c->calls++;
    if (c->fail_nth > 0 && --c->fail_nth == 0) {
        if (c->sticky) { // nothing runs in a dead context: what was issued had run before
            c->fail_nth = 1;
            (void)fake_drain();
        }
        return c->fail_with;
    }
    return CUDA_SUCCESS;
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

#define FAKE_ENTER()                                                                               \
    do {                                                                                           \
        CUresult entered_ = hth_cuda_fake_enter();                                                 \
        if (entered_ != CUDA_SUCCESS) {                                                            \
            return entered_;                                                                       \
        }                                                                                          \
    } while (0)

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
    *out = r == CUDA_ERROR_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
           : r == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
           : r == CUDA_ERROR_NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
                                             : NULL;
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    return index < fake.control.n_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
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
    *out = which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? !fake.control.no_vmm
           : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT              ? 2
                                                                            : 1;
    return CUDA_SUCCESS;
}

static CUresult fake_device_total(size_t *out, CUdevice d)
{
    FAKE_ENTER();
    *out = fake.control.total_bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_context_retain(CUcontext *out, CUdevice d)
{
    FAKE_ENTER();
    fake.control.live++;
    *out = (CUcontext)(void *)&fake;
    return CUDA_SUCCESS;
}

static CUresult fake_context_release(CUdevice d)
{
    fake.control.live--;
    return hth_cuda_fake_enter();
}

static CUresult fake_context_current(CUcontext c)
{
    return hth_cuda_fake_enter();
}

// Streams and events.

static void kernel_fault(void)
{
    fake.control.fail_nth = 1;
    fake.control.fail_with = CUDA_ERROR_ILLEGAL_ADDRESS;
    fake.control.sticky = true;
}

static CUresult fake_stream_drain(CUstream s)
{
    if (hth_stream_sync((hth_stream *)(void *)s) != HTH_OK) {
        kernel_fault();
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}

static int stream_slot(const hth_stream *s)
{
    int i = 0;
    while (i < FAKE_STREAMS && fake.streams[i] != s) {
        i++;
    }
    return i < FAKE_STREAMS ? i : -1;
}

static CUresult fake_stream_create(CUstream *out, unsigned flags)
{
    FAKE_ENTER();
    int i = stream_slot(NULL);
    if (flags != CU_STREAM_NON_BLOCKING || i < 0 ||
        hth_stream_open(fake.device, HTH_STREAM_COMPUTE, &fake.streams[i]) != HTH_OK) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUstream)(void *)fake.streams[i];
    fake.control.live++;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream s)
{
    fake.streams[stream_slot((hth_stream *)(void *)s)] = NULL;
    hth_stream_close((hth_stream *)(void *)s);
    fake.control.live--;
    return hth_cuda_fake_enter();
}

static CUresult fake_stream_sync(CUstream s)
{
    FAKE_ENTER();
    return fake_stream_drain(s);
}

static CUresult fake_event_create(CUevent *out, unsigned flags)
{
    FAKE_ENTER();
    hth_event *e;
    if (hth_event_open(fake.device, &e) != HTH_OK) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUevent)(void *)e;
    fake.control.live++;
    return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent e)
{
    hth_event_close((hth_event *)(void *)e);
    fake.control.live--;
    return hth_cuda_fake_enter();
}

static CUresult as_result(hth_err err)
{
    return err == HTH_OK ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_stream_wait(CUstream s, CUevent e, unsigned flags)
{
    FAKE_ENTER();
    return as_result(hth_stream_wait((hth_stream *)(void *)s, (hth_event *)(void *)e));
}

static CUresult fake_event_record(CUevent e, CUstream s)
{
    FAKE_ENTER();
    return as_result(hth_stream_record((hth_stream *)(void *)s, (hth_event *)(void *)e));
}

static CUresult fake_event_query(CUevent e)
{
    FAKE_ENTER();
    return hth_event_time_ns((hth_event *)(void *)e) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_event_sync(CUevent e)
{
    FAKE_ENTER();
    return as_result(hth_event_sync((hth_event *)(void *)e));
}

static CUresult fake_event_elapsed(float *ms, CUevent a, CUevent b)
{
    FAKE_ENTER();
    uint64_t from = hth_event_time_ns((hth_event *)(void *)a),
             to = hth_event_time_ns((hth_event *)(void *)b);
    *ms = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

// Copies and launches.

static CUresult fake_copy(void *dst, const void *src, size_t bytes, CUstream s)
{
    return as_result(hth_stream_copy((hth_stream *)(void *)s, dst, src, bytes));
}

static hth_err staged_arrive(void *arg)
{
    fake_staged *t = arg, **link = &fake.staged;
    while (*link != t) {
        link = &(*link)->next;
    }
    *link = t->next;
    memcpy(t->dst, t->data, t->bytes);
    free(t);
    return HTH_OK;
}

static CUresult fake_upload(CUdeviceptr dst, const void *src, size_t bytes, CUstream s)
{
    FAKE_ENTER();
    if (hth_cuda_fake_pinned(src)) {
        return fake_copy((void *)(uintptr_t)dst, src, bytes, s);
    }
    fake_staged *t = malloc(sizeof *t + bytes);
    if (t == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *t = (fake_staged){fake.staged, (void *)(uintptr_t)dst, bytes};
    memcpy(t->data, src, bytes);
    fake.staged = t;
    return as_result(hth_stream_launch((hth_stream *)(void *)s, staged_arrive, t));
}

static CUresult fake_download(void *dst, CUdeviceptr src, size_t bytes, CUstream s)
{
    FAKE_ENTER();
    CUresult r = fake_copy(dst, (void *)(uintptr_t)src, bytes, s);
    return r == CUDA_SUCCESS && !hth_cuda_fake_pinned(dst) ? fake_stream_drain(s) : r;
}

static CUresult fake_move(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
    FAKE_ENTER();
    return fake_copy((void *)(uintptr_t)dst, (void *)(uintptr_t)src, bytes, s);
}

static CUresult fake_launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream s, void **params,
                            void **extra)
{
    FAKE_ENTER();
    hth_cuda_fake_kernel *kernel;
    memcpy(&kernel, &f, sizeof kernel);
    return as_result(hth_stream_launch((hth_stream *)(void *)s, kernel, *(void **)params[0]));
}

static CUresult fake_context_sync(void)
{
    FAKE_ENTER();
    if (fake_drain()) {
        kernel_fault();
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
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
    api->cuInit = fake_init;
    api->cuDriverGetVersion = fake_driver_version;
    api->cuGetErrorName = api->cuGetErrorString = fake_error_name;
    api->cuDeviceGetCount = fake_device_count;
    api->cuDeviceGet = fake_device_get;
    api->cuDeviceGetName = fake_device_name;
    api->cuDeviceGetAttribute = fake_device_attribute;
    api->cuDeviceTotalMem = fake_device_total;
    api->cuDevicePrimaryCtxRetain = fake_context_retain;
    api->cuDevicePrimaryCtxRelease = fake_context_release;
    api->cuCtxSetCurrent = fake_context_current;
    api->cuCtxSynchronize = fake_context_sync;
    api->cuMemcpyHtoDAsync = fake_upload;
    api->cuMemcpyDtoHAsync = fake_download;
    api->cuMemcpyDtoDAsync = fake_move;
    api->cuStreamCreate = fake_stream_create;
    api->cuStreamDestroy = fake_stream_destroy;
    api->cuStreamSynchronize = fake_stream_sync;
    api->cuStreamWaitEvent = fake_stream_wait;
    api->cuEventCreate = fake_event_create;
    api->cuEventDestroy = fake_event_destroy;
    api->cuEventRecord = fake_event_record;
    api->cuEventQuery = fake_event_query;
    api->cuEventSynchronize = fake_event_sync;
    api->cuEventElapsedTime = fake_event_elapsed;
    api->cuLaunchKernel = fake_launch;
    api->cudnnGetVersion = fake_cudnn_version;
    api->cublasLtGetVersion = fake_cublaslt_version;
}

hth_cuda_fake *hth_cuda_fake_open(uint64_t seed)
{
    char spec[64];
    memset(&fake, 0, sizeof fake);
    snprintf(spec, sizeof spec, "fake:mem=4KiB,seed=%llu", (unsigned long long)seed);
    if (hth_device_open(spec, &fake.device) != HTH_OK) {
        return NULL;
    }
    fake_fill(&fake.api);
    fake.control = (hth_cuda_fake){
        .n_devices = 1, .total_bytes = (uint64_t)256 << 20, .fail_with = CUDA_ERROR_OUT_OF_MEMORY};
    return &fake.control;
}

void hth_cuda_fake_close(void)
{
    while (fake.staged != NULL) {
        fake_staged *t = fake.staged;
        fake.staged = t->next;
        free(t);
    }
    hth_device_close(fake.device);
    fake.device = NULL;
}

const hth_cuda_api *hth_cuda_fake_api(void)
{
    return &fake.api;
}

static hth_err fake_probe(const char *dirs, char *about, size_t cap)
{
    return hth_cuda_about(&fake.api, about, cap);
}

static hth_err fake_open(const hth_device_spec *s, hth_device **out)
{
    return hth_cuda_open_device(&fake.api, s, out);
}

const hth_plugin *hth_cuda_fake_plugin(void)
{
    static const hth_plugin plugin = {HTH_PLUGIN_ABI, fake_probe, fake_open};
    return &plugin;
}
