// SPDX-License-Identifier: Apache-2.0
// The calls that every implementation shares: arguments are checked here once, so that an
// implementation sees only what makes sense.
#include "device/device.h"

#include "base/alloc.h"
#include "base/pace.h"
#include "base/size.h"
#include "device/cpu/machine.h"
#include "device/quota.h"
#include "device/spec.h"

#include <stdio.h>

// Of the host, whatever the machine has: what measures the link, and the smallest steps.
#define DEVICE_HOST_MIN ((uint64_t)64 << 20)

hth_err hth_device_name(const char *spec, char *out, size_t cap)
{
    hth_device_spec s;
    HTH_TRY(hth_device_spec_parse(spec, &s));
    snprintf(out, cap, "%s:%d", s.kind, s.index);
    return HTH_OK;
}

hth_err hth_device_open(const char *spec, hth_device **out)
{
    if (out == NULL || spec == NULL) {
        return hth_fail(HTH_EINVAL,
                        "hth_device_open: no specification, or nowhere to put the device");
    }
    *out = NULL;
    hth_device_spec s;
    HTH_TRY(hth_device_spec_parse(spec, &s));
    HTH_TRY(hth_device_spec_open(&s, out));
    (*out)->plain = s.plain;
    atomic_store(&(*out)->quota_percent, s.quota);
    const hth_device_props *p = &(*out)->props;
    uint64_t all = hth_machine_memory(), own = p->host_visible ? p->budget_bytes : 0;
    (*out)->host_limit_bytes = all > own + DEVICE_HOST_MIN ? all - own : DEVICE_HOST_MIN;
    return HTH_OK;
}

void hth_device_close(hth_device *device)
{
    if (device != NULL) {
        hth_stream_close(device->up);
        hth_stream_close(device->down);
        device->ops->close(device);
    }
}

hth_err hth_device_quota(hth_device *device, int percent)
{
    if (!device->props.inline_compute) {
        return hth_fail(HTH_ENOTSUP, "device %s: only CPU devices have a quota",
                        device->props.name);
    }
    atomic_store(&device->quota_percent, percent);
    return HTH_OK;
}

int hth_device_quota_percent(const hth_device *device)
{
    int percent = atomic_load_explicit(&device->quota_percent, memory_order_relaxed);
    return percent > 0 ? percent : 100;
}

bool hth_device_pause(const hth_device *device)
{
    return hth_quota_pause(hth_device_quota_percent(device));
}

// A copy that is waited for, on a stream of the device's own.
static hth_err device_copy(hth_device *device, hth_stream_kind kind, void *dst, const void *src,
                           size_t bytes)
{
    hth_stream **s = kind == HTH_STREAM_H2D ? &device->up : &device->down;
    if (bytes == 0) {
        return HTH_OK;
    }
    if (device->props.host_visible && !hth_device_paced(device)) {
        return hth_pace_fill(dst, src, bytes);
    }
    HTH_TRY(*s == NULL ? hth_stream_open(device, kind, s) : HTH_OK);
    HTH_TRY(hth_stream_copy(*s, dst, src, bytes));
    return hth_stream_sync(*s);
}

hth_err hth_device_put(hth_device *device, void *far, const void *host, size_t bytes)
{
    return device_copy(device, HTH_STREAM_H2D, far, host, bytes);
}

hth_err hth_device_get(hth_device *device, void *host, const void *far, size_t bytes)
{
    return device_copy(device, HTH_STREAM_D2H, host, far, bytes);
}

hth_err hth_device_zero(hth_device *device, void *far, size_t bytes)
{
    static char zeros[1 << 20]; // never written
    if (device->props.host_visible) {
        return hth_pace_fill(far, NULL, bytes);
    }
    if (device->ops->zero != NULL && bytes > 0) {
        HTH_TRY(device->up == NULL ? hth_stream_open(device, HTH_STREAM_H2D, &device->up) : HTH_OK);
        HTH_TRY(device->ops->zero(device->up, far, bytes));
        return hth_stream_sync(device->up);
    }
    for (size_t at = 0; at < bytes; at += sizeof zeros) {
        size_t n = bytes - at < sizeof zeros ? bytes - at : sizeof zeros;
        HTH_TRY(hth_device_put(device, (char *)far + at, zeros, n));
    }
    return HTH_OK;
}

hth_err hth_device_reserve(hth_device *device, size_t bytes, void **base)
{
    *base = NULL;
    if (bytes == 0) {
        return hth_fail(HTH_EINVAL, "device %s: cannot reserve 0 bytes", device->props.name);
    }
    if (bytes > device->props.budget_bytes) {
        return hth_fail(HTH_ETOOBIG, "device %s: %zu bytes requested, the budget is %llu",
                        device->props.name, bytes, (unsigned long long)device->props.budget_bytes);
    }
    return device->ops->reserve(device, bytes, base);
}

void hth_device_release(hth_device *device, void *base, size_t bytes)
{
    if (base != NULL) {
        device->ops->release(device, base, bytes);
    }
}

static hth_err device_host(hth_device *device, size_t bytes, void **base)
{
    if (device->ops->reserve_host != NULL) {
        return device->ops->reserve_host(device, bytes, base);
    }
    *base = hth_alloc_large(bytes);
    return *base != NULL ? HTH_OK
                         : hth_fail(HTH_ENOMEM, "device %s: no %zu bytes of host memory",
                                    device->props.name, bytes);
}

hth_err hth_device_reserve_host(hth_device *device, size_t bytes, void **base)
{
    *base = NULL;
    uint64_t left = device->host_limit_bytes > device->host_taken_bytes
                        ? device->host_limit_bytes - device->host_taken_bytes
                        : 0;
    if (bytes > left) {
        hth_size need, there;
        hth_size_pair(bytes, left, &need, &there);
        return hth_fail(HTH_ENOMEM,
                        "device %s: %s of host memory are needed for offloading, but the machine "
                        "has %s left; use a smaller batch, or --spill DIR",
                        device->props.name, need.text, there.text);
    }
    HTH_TRY(device_host(device, bytes, base));
    device->host_taken_bytes += bytes;
    return HTH_OK;
}

void hth_device_release_host(hth_device *device, void *base, size_t bytes)
{
    if (base == NULL) {
        return;
    }
    device->host_taken_bytes -= bytes;
    if (device->ops->release_host != NULL) {
        device->ops->release_host(device, base);
    } else {
        hth_free(base);
    }
}

hth_err hth_stream_open(hth_device *device, hth_stream_kind kind, hth_stream **out)
{
    *out = NULL;
    if ((unsigned)kind > HTH_STREAM_D2H) {
        return hth_fail(HTH_EINVAL, "device %s: no stream of kind %d", device->props.name,
                        (int)kind);
    }
    return device->ops->stream_open(device, kind, out);
}

void hth_stream_close(hth_stream *stream)
{
    if (stream != NULL) {
        stream->device->ops->stream_close(stream);
    }
}

hth_err hth_stream_launch(hth_stream *stream, hth_err (*fn)(void *arg), void *arg)
{
    if (fn == NULL) {
        return hth_fail(HTH_EINVAL, "device %s: nothing to launch", stream->device->props.name);
    }
    return stream->device->ops->launch(stream, fn, arg);
}

hth_err hth_stream_copy(hth_stream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0 && (dst == NULL || src == NULL)) {
        return hth_fail(HTH_EINVAL, "device %s: copy of %zu bytes from or to nowhere",
                        stream->device->props.name, bytes);
    }
    return bytes == 0 ? HTH_OK : stream->device->ops->copy(stream, dst, src, bytes);
}

static hth_err device_same(const hth_stream *stream, const hth_event *event)
{
    return stream->device == event->device
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the event belongs to device %s, the stream to %s",
                          event->device->props.name, stream->device->props.name);
}

hth_err hth_stream_record(hth_stream *stream, hth_event *event)
{
    HTH_TRY(device_same(stream, event));
    return stream->device->ops->record(stream, event);
}

hth_err hth_stream_wait(hth_stream *stream, hth_event *event)
{
    HTH_TRY(device_same(stream, event));
    return stream->device->ops->wait(stream, event);
}

hth_err hth_stream_sync(hth_stream *stream)
{
    return stream->device->ops->sync(stream);
}

hth_err hth_event_open(hth_device *device, hth_event **out)
{
    *out = NULL;
    return device->ops->event_open(device, out);
}

void hth_event_close(hth_event *event)
{
    if (event != NULL) {
        event->device->ops->event_close(event);
    }
}

hth_err hth_event_sync(hth_event *event)
{
    return event->device->ops->event_sync(event);
}

uint64_t hth_event_time_ns(hth_event *event)
{
    return event->device->ops->event_time_ns(event);
}

hth_err hth_device_memory(hth_device *device, uint64_t *total, uint64_t *free)
{
    *total = *free = 0;
    return device->ops->memory != NULL
               ? device->ops->memory(device, total, free)
               : hth_fail(HTH_ENOTSUP, "%s has no memory of its own", device->props.name);
}

bool hth_device_captures(const hth_device *device)
{
    return device->ops->capture_begin != NULL && !device->plain;
}

hth_err hth_capture_begin(hth_stream *stream)
{
    return stream->device->ops->capture_begin(stream);
}

hth_err hth_capture_end(hth_stream *stream, hth_capture **io)
{
    return stream->device->ops->capture_end(stream, io);
}

hth_err hth_capture_launch(hth_capture *capture, hth_stream *stream)
{
    return capture->device->ops->capture_launch(capture, stream);
}

void hth_capture_close(hth_capture *capture)
{
    if (capture != NULL) {
        capture->device->ops->capture_close(capture);
    }
}
