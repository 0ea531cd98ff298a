// SPDX-License-Identifier: Apache-2.0
// device/cuda/cuda.h - a CUDA device from inside: for the files next to it and for kernels.
//
// Design notes
// One owner thread drives a device, as everywhere. The primary context is used, the one that cuDNN
// and cublasLt find. Work is issued to CUstreams and nothing here waits for it but what says so: a
// sync, an upload from pageable memory (for a place in the ring), a download to pageable memory
// (the driver's rule), and the release of device memory.
#ifndef HTH_DEVICE_CUDA_CUDA_H
#define HTH_DEVICE_CUDA_CUDA_H

#include "device/cuda/driver.h"
#include "device/cuda/host.h"
#include "device/cuda/mem.h"
#include "device/device.h"
#include "device/spec.h"

// The first failure of launches that were left out since then, with its sentence.
typedef struct hth_cuda_kept {
    hth_err err;
    char detail[256];
} hth_cuda_kept;

struct hth_cuda_site;
typedef struct hth_cuda {
    hth_device base;
    const hth_cuda_api *api;
    CUdevice device;
    CUcontext context;
    char lost[256]; // the sentence of the first error that ended the context; "": none did
    hth_cuda_mem mem;
    hth_cuda_host host;
    // An event's time is its distance from the anchor, recorded on a stream of its own, whose time
    // on the host is known.
    CUstream anchor_stream;
    CUevent anchor;
    uint64_t anchor_ns;
    // What is being issued goes here: the stream of the launch whose fn runs, else one of the
    // device's own.
    CUstream current, own_stream;
    bool capturing;                // one of the streams is (capture.c)
    hth_cuda_kept recorded;        // what failed in a launch meanwhile
    struct hth_cuda_site *kernels; // kernels/cuda's; NULL: none were attached
    void (*kernels_close)(struct hth_cuda *d);
} hth_cuda;

// hth_cuda_about initialises the driver and writes versions and the number of devices to `about`.
// HTH_ENOTSUP: there is none.
hth_err hth_cuda_about(const hth_cuda_api *api, char *about, size_t cap);
// hth_cuda_open_device opens device spec->index; `api` outlives it.
hth_err hth_cuda_open_device(const hth_cuda_api *api, const hth_device_spec *spec,
                             hth_device **out);

// hth_cuda_stream_of returns what kernels are launched on, for an fn of hth_stream_launch.
CUstream hth_cuda_stream_of(hth_stream *stream);

// HTH_CUDA(d, cuStreamSynchronize, s) calls and maps the answer, with the call's name in the
// sentence.
#define HTH_CUDA(d, f, ...) hth_cuda_status(d, (d)->api->f(__VA_ARGS__), #f)

// hth_cuda_status maps a driver's answer. HTH_ENODEVMEM: out of memory; HTH_ENOTSUP; HTH_EDEVLOST:
// the context is dead (a kernel's bad access, an uncorrectable memory error) and from now on
// everything answers so, with the first sentence; HTH_EIO: the call failed otherwise.
hth_err hth_cuda_status(hth_cuda *cuda, CUresult r, const char *call);
// hth_cuda_fail makes the error and the sentence of `r`, which is not CUDA_SUCCESS.
hth_err hth_cuda_fail(const hth_cuda_api *api, const char *who, CUresult r, const char *call);

// hth_cuda_enter makes the device's context this thread's. Everything that calls the driver for a
// device begins so: a thread may have several devices, and closing one leaves none current.
static inline hth_err hth_cuda_enter(hth_cuda *cuda)
{
    return HTH_CUDA(cuda, cuCtxSetCurrent, cuda->context);
}

// From stream.c.
hth_err hth_cuda_anchor_open(hth_cuda *cuda);
void hth_cuda_anchor_close(hth_cuda *cuda);
hth_err hth_cuda_stream_open(hth_device *device, hth_stream_kind kind, hth_stream **out);
void hth_cuda_stream_close(hth_stream *stream);
hth_err hth_cuda_launch(hth_stream *stream, hth_err (*fn)(void *arg), void *arg);
hth_err hth_cuda_copy(hth_stream *stream, void *dst, const void *src, size_t bytes);
hth_err hth_cuda_zero(hth_stream *stream, void *dst, size_t bytes);
hth_err hth_cuda_sync(hth_stream *stream);

// From capture.c.
hth_err hth_cuda_capture_begin(hth_stream *stream);
hth_err hth_cuda_capture_end(hth_stream *stream, hth_capture **io);
hth_err hth_cuda_capture_launch(hth_capture *capture, hth_stream *stream);
void hth_cuda_capture_close(hth_capture *capture);

// From event.c.
hth_err hth_cuda_record(hth_stream *stream, hth_event *event);
hth_err hth_cuda_wait(hth_stream *stream, hth_event *event);
hth_err hth_cuda_event_open(hth_device *device, hth_event **out);
void hth_cuda_event_close(hth_event *event);
hth_err hth_cuda_event_sync(hth_event *event);
uint64_t hth_cuda_event_time_ns(hth_event *event);

#endif
