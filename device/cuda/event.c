// SPDX-License-Identifier: Apache-2.0
// Events and their times on the host's clock. CUDA tells the distance of two events as a float of
// milliseconds, exact to about half a microsecond as long as it is a few seconds. So the anchor, an
// event whose time on the host is known, is set anew once an event is that much later. Of events
// that are to be compared the last one is read first: then all have the same anchor.
#include "device/cuda/cuda.h"

#include "base/alloc.h"
#include "base/clock.h"

#define ANCHOR_FAR_MS 4000.0f // a float's last bit is then a quarter of a microsecond

typedef struct cuda_event {
    hth_event base;
    CUevent cu;
    bool recorded;
} cuda_event;

static hth_cuda *event_device(hth_event *event)
{
    return (hth_cuda *)event->device;
}

hth_err hth_cuda_event_open(hth_device *base, hth_event **out)
{
    hth_cuda *d = (hth_cuda *)base;
    HTH_TRY(hth_cuda_enter(d));
    cuda_event *e = hth_calloc(1, sizeof *e);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for an event", base->props.name);
    }
    hth_err err = HTH_CUDA(d, cuEventCreate, &e->cu, CU_EVENT_DEFAULT);
    if (err != HTH_OK) {
        hth_free(e);
        return err;
    }
    e->base.device = base;
    *out = &e->base;
    return HTH_OK;
}

void hth_cuda_event_close(hth_event *event)
{
    hth_cuda *d = event_device(event);
    (void)hth_cuda_enter(d);
    (void)HTH_CUDA(d, cuEventDestroy, ((cuda_event *)event)->cu);
    hth_free(event);
}

hth_err hth_cuda_record(hth_stream *stream, hth_event *base)
{
    cuda_event *e = (cuda_event *)base;
    hth_cuda *d = event_device(base);
    HTH_TRY(hth_cuda_enter(d));
    HTH_TRY(HTH_CUDA(d, cuEventRecord, e->cu, hth_cuda_stream_of(stream)));
    e->recorded = true;
    return HTH_OK;
}

hth_err hth_cuda_wait(hth_stream *stream, hth_event *event)
{
    hth_cuda *d = event_device(event);
    HTH_TRY(hth_cuda_enter(d));
    return HTH_CUDA(d, cuStreamWaitEvent, hth_cuda_stream_of(stream), ((cuda_event *)event)->cu,
                    CU_EVENT_WAIT_DEFAULT);
}

hth_err hth_cuda_event_sync(hth_event *event)
{
    hth_cuda *d = event_device(event);
    HTH_TRY(hth_cuda_enter(d));
    return HTH_CUDA(d, cuEventSynchronize, ((cuda_event *)event)->cu);
}

static hth_err anchor_set(hth_cuda *cuda)
{
    HTH_TRY(HTH_CUDA(cuda, cuEventRecord, cuda->anchor, cuda->anchor_stream));
    HTH_TRY(HTH_CUDA(cuda, cuEventSynchronize, cuda->anchor));
    cuda->anchor_ns = hth_now_ns();
    return HTH_OK;
}

hth_err hth_cuda_anchor_open(hth_cuda *cuda)
{
    HTH_TRY(HTH_CUDA(cuda, cuStreamCreate, &cuda->anchor_stream, CU_STREAM_NON_BLOCKING));
    HTH_TRY(HTH_CUDA(cuda, cuEventCreate, &cuda->anchor, CU_EVENT_DEFAULT));
    return anchor_set(cuda);
}

void hth_cuda_anchor_close(hth_cuda *cuda)
{
    if (cuda->anchor_stream != NULL) {
        (void)HTH_CUDA(cuda, cuStreamSynchronize, cuda->anchor_stream);
        (void)HTH_CUDA(cuda, cuStreamDestroy, cuda->anchor_stream);
    }
    if (cuda->anchor != NULL) {
        (void)HTH_CUDA(cuda, cuEventDestroy, cuda->anchor);
    }
}

uint64_t hth_cuda_event_time_ns(hth_event *base)
{
    const cuda_event *e = (cuda_event *)base;
    hth_cuda *d = event_device(base);
    float ms = 0;
    if (!e->recorded || hth_cuda_enter(d) != HTH_OK ||
        d->api->cuEventQuery(e->cu) != CUDA_SUCCESS ||
        HTH_CUDA(d, cuEventElapsedTime, &ms, d->anchor, e->cu) != HTH_OK) {
        return 0;
    }
    uint64_t t = d->anchor_ns + (uint64_t)(int64_t)(ms * 1e6);
    if (ms > ANCHOR_FAR_MS) { // an earlier event would be further from a new one
        (void)anchor_set(d);
    }
    return t;
}
