// SPDX-License-Identifier: Apache-2.0
// The fake driver's streams, events, copies and launches. A CUstream is a stream of a fake device,
// a CUevent an event of it, so the order of execution is that device's.
#include "device/cuda/fake/impl.h"

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What was issued with a copy of its parameters.
typedef struct fake_job {
    struct fake_job *next;
    hth_err (*fn)(void *job);
    _Alignas(16) char data[];
} fake_job;

static struct {
    hth_device *device; // of device/fake
    fake_job *jobs;
    hth_stream *streams[FAKE_STREAMS]; // NULL: free
    CUcontext context[FAKE_STREAMS];
} fake;

bool hth_cuda_fake_drain(void)
{
    bool bad = false;
    for (int i = 0; i < FAKE_STREAMS; i++) {
        bad = (fake.streams[i] != NULL && hth_stream_sync(fake.streams[i]) != HTH_OK) || bad;
    }
    return bad;
}

// Streams and events.

static void kernel_fault(void)
{
    hth_cuda_fake_state()->fail_nth = 1;
    hth_cuda_fake_state()->fail_with = CUDA_ERROR_ILLEGAL_ADDRESS;
    hth_cuda_fake_state()->sticky = true;
}

static CUresult fake_stream_drain(CUstream stream)
{
    if (hth_stream_sync((hth_stream *)(void *)stream) != HTH_OK) {
        kernel_fault();
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}

static int stream_slot(const hth_stream *stream)
{
    int i = 0;
    while (i < FAKE_STREAMS && fake.streams[i] != stream) {
        i++;
    }
    return i < FAKE_STREAMS ? i : -1;
}

int hth_cuda_fake_slot(CUstream stream)
{
    return stream != NULL ? stream_slot((hth_stream *)(void *)stream) : -1;
}

bool hth_cuda_fake_here(CUstream stream)
{
    int i = hth_cuda_fake_slot(stream);
    CUcontext current = hth_cuda_fake_current();
    return current != NULL && (i < 0 || fake.context[i] == current);
}

static CUresult fake_stream_create(CUstream *out, unsigned flags)
{
    FAKE_CURRENT();
    FAKE_ENTER();
    int i = stream_slot(NULL);
    if (flags != CU_STREAM_NON_BLOCKING || i < 0 ||
        hth_stream_open(fake.device, HTH_STREAM_COMPUTE, &fake.streams[i]) != HTH_OK) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake.context[i] = hth_cuda_fake_current();
    *out = (CUstream)(void *)fake.streams[i];
    hth_cuda_fake_state()->live++;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    FAKE_HERE(stream);
    fake.streams[stream_slot((hth_stream *)(void *)stream)] = NULL;
    hth_stream_close((hth_stream *)(void *)stream);
    hth_cuda_fake_state()->live--;
    return hth_cuda_fake_enter();
}

static CUresult fake_stream_sync(CUstream stream)
{
    FAKE_HERE(stream);
    FAKE_UNSAFE();
    FAKE_ENTER();
    return fake_stream_drain(stream);
}

static fake_event *event_of(CUevent e)
{
    return (fake_event *)(void *)e;
}

static CUresult fake_event_create(CUevent *out, unsigned flags)
{
    FAKE_CURRENT();
    FAKE_ENTER();
    fake_event *e = calloc(1, sizeof *e);
    if (e == NULL || hth_event_open(fake.device, &e->event) != HTH_OK) {
        free(e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUevent)(void *)e;
    hth_cuda_fake_state()->live++;
    return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent e)
{
    FAKE_CURRENT();
    hth_event_close(event_of(e)->event);
    free(e);
    hth_cuda_fake_state()->live--;
    return hth_cuda_fake_enter();
}

static CUresult as_result(hth_err err)
{
    return err == HTH_OK ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_stream_wait(CUstream stream, CUevent e, unsigned flags)
{
    bool taken;
    FAKE_HERE(stream);
    FAKE_ENTER();
    CUresult r = hth_cuda_fake_capture_wait(stream, event_of(e), &taken);
    return taken ? r : as_result(hth_stream_wait((hth_stream *)(void *)stream, event_of(e)->event));
}

static CUresult fake_event_record(CUevent e, CUstream stream)
{
    bool taken;
    FAKE_HERE(stream);
    FAKE_ENTER();
    CUresult r = hth_cuda_fake_capture_record(stream, event_of(e), &taken);
    return taken ? r
                 : as_result(hth_stream_record((hth_stream *)(void *)stream, event_of(e)->event));
}

static CUresult fake_event_query(CUevent e)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    FAKE_ENTER();
    if (event_of(e)->capture != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return hth_event_time_ns(event_of(e)->event) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_event_sync(CUevent e)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    FAKE_ENTER();
    if (event_of(e)->capture != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return as_result(hth_event_sync(event_of(e)->event));
}

static CUresult fake_event_elapsed(float *ms, CUevent a, CUevent b)
{
    FAKE_CURRENT();
    FAKE_ENTER();
    if (event_of(a)->capture != 0 || event_of(b)->capture != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    uint64_t from = hth_event_time_ns(event_of(a)->event),
             to = hth_event_time_ns(event_of(b)->event);
    *ms = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

// Copies and launches.

static hth_err job_run(void *arg)
{
    fake_job *t = arg, **link = &fake.jobs;
    while (*link != t) {
        link = &(*link)->next;
    }
    *link = t->next;
    hth_err err = t->fn(t->data);
    free(t);
    return err;
}

static fake_job *job_new(hth_err (*fn)(void *job), size_t bytes)
{
    fake_job *t = malloc(sizeof *t + bytes);
    if (t != NULL) {
        t->next = fake.jobs;
        t->fn = fn;
        fake.jobs = t;
    }
    return t;
}

CUresult hth_cuda_fake_run(CUstream stream, hth_err (*fn)(void *job), const void *job, size_t bytes)
{
    fake_job *t = job_new(fn, bytes);
    if (t == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(t->data, job, bytes);
    return as_result(hth_stream_launch((hth_stream *)(void *)stream, job_run, t));
}

CUresult hth_cuda_fake_issue(CUstream stream, hth_err (*fn)(void *job), const void *job,
                             size_t bytes)
{
    FAKE_HERE(stream);
    if (hth_cuda_fake_slot(stream) < 0) { // the default stream, which all others would wait for
        return hth_cuda_fake_capture_spoil() ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                             : CUDA_ERROR_INVALID_HANDLE;
    }
    return hth_cuda_fake_capturing(stream) ? hth_cuda_fake_capture_add(stream, fn, job, bytes)
                                           : hth_cuda_fake_run(stream, fn, job, bytes);
}

// A copy that reads when it runs.
typedef struct fake_transfer {
    void *dst;
    const void *src;
    size_t bytes;
} fake_transfer;

static hth_err transfer_run(void *job)
{
    const fake_transfer *t = job;
    memcpy(t->dst, t->src, t->bytes);
    return HTH_OK;
}

static CUresult fake_copy(void *dst, const void *src, size_t bytes, CUstream stream)
{
    fake_transfer t = {dst, src, bytes};
    return hth_cuda_fake_issue(stream, transfer_run, &t, sizeof t);
}

typedef struct fake_fill {
    void *dst;
    size_t bytes;
    unsigned char value;
} fake_fill;

static hth_err fill_run(void *job)
{
    const fake_fill *t = job;
    memset(t->dst, t->value, t->bytes);
    return HTH_OK;
}

static CUresult fake_memset(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    FAKE_ENTER();
    fake_fill t = {(void *)(uintptr_t)dst, bytes, value};
    return hth_cuda_fake_issue(stream, fill_run, &t, sizeof t);
}

// What a copy from pageable memory has read.
typedef struct fake_staged {
    void *dst;
    size_t bytes;
} fake_staged;

static hth_err staged_arrive(void *job)
{
    const fake_staged *t = job;
    memcpy(t->dst, t + 1, t->bytes);
    return HTH_OK;
}

static CUresult fake_upload(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    FAKE_HERE(stream);
    FAKE_ENTER();
    if (hth_cuda_fake_pinned(src)) {
        return fake_copy((void *)(uintptr_t)dst, src, bytes, stream);
    }
    if (hth_cuda_fake_capturing(stream)) {
        (void)hth_cuda_fake_capture_spoil();
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    fake_job *t = job_new(staged_arrive, sizeof(fake_staged) + bytes);
    if (t == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake_staged *head = (void *)t->data;
    *head = (fake_staged){(void *)(uintptr_t)dst, bytes};
    memcpy(head + 1, src, bytes);
    return as_result(hth_stream_launch((hth_stream *)(void *)stream, job_run, t));
}

static CUresult fake_download(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    FAKE_HERE(stream);
    FAKE_ENTER();
    if (hth_cuda_fake_capturing(stream) && !hth_cuda_fake_pinned(dst)) {
        (void)hth_cuda_fake_capture_spoil();
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CUresult r = fake_copy(dst, (void *)(uintptr_t)src, bytes, stream);
    return r == CUDA_SUCCESS && !hth_cuda_fake_pinned(dst) ? fake_stream_drain(stream) : r;
}

static CUresult fake_move(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    FAKE_ENTER();
    return fake_copy((void *)(uintptr_t)dst, (void *)(uintptr_t)src, bytes, stream);
}

static CUresult fake_context_sync(void)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    FAKE_ENTER();
    if (hth_cuda_fake_drain()) {
        kernel_fault();
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}

void hth_cuda_fake_fill_streams(hth_cuda_api *api)
{
    api->cuCtxSynchronize = fake_context_sync;
    api->cuMemcpyHtoDAsync = fake_upload;
    api->cuMemcpyDtoHAsync = fake_download;
    api->cuMemcpyDtoDAsync = fake_move;
    api->cuMemsetD8Async = fake_memset;
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
}

bool hth_cuda_fake_streams_open(uint64_t seed)
{
    char spec[64];
    memset(&fake, 0, sizeof fake);
    snprintf(spec, sizeof spec, "fake:mem=4KiB,seed=%llu", (unsigned long long)seed);
    return hth_device_open(spec, &fake.device) == HTH_OK;
}

void hth_cuda_fake_streams_close(void)
{
    while (fake.jobs != NULL) {
        fake_job *t = fake.jobs;
        fake.jobs = t->next;
        free(t);
    }
    hth_device_close(fake.device);
    fake.device = NULL;
}
