// SPDX-License-Identifier: Apache-2.0
// Streams. A launch calls fn at once, on the owner: fn issues kernels to the CUstream, and the
// stream's order is theirs. A failing fn issued nothing that counts, so what is issued after it, up
// to the next sync, is left out here, on the host. What a kernel itself does wrong ends the context
// (status.c).
//
// Streams do not synchronize with the default stream. Copies are told apart by where their ends
// are: device memory, pinned memory, or any other.
#include "device/cuda/cuda.h"

#include "base/alloc.h"

#include <stdio.h>

// The driver itself stages pageable uploads up to this size, without waiting for them.
#define STREAM_SMALL ((size_t)64 << 10)

typedef struct cuda_stream {
    hth_stream base;
    CUstream cu;
    hth_cuda_kept kept; // of the first fn that failed since the last sync
} cuda_stream;

static hth_cuda *stream_device(hth_stream *stream)
{
    return (hth_cuda *)stream->device;
}

CUstream hth_cuda_stream_of(hth_stream *stream)
{
    return ((cuda_stream *)stream)->cu;
}

hth_err hth_cuda_stream_open(hth_device *base, hth_stream_kind kind, hth_stream **out)
{
    hth_cuda *d = (hth_cuda *)base;
    HTH_TRY(hth_cuda_enter(d));
    cuda_stream *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a stream", base->props.name);
    }
    hth_err err = HTH_CUDA(d, cuStreamCreate, &s->cu, CU_STREAM_NON_BLOCKING);
    if (err != HTH_OK) {
        hth_free(s);
        return err;
    }
    s->base = (hth_stream){base, kind};
    *out = &s->base;
    return HTH_OK;
}

void hth_cuda_stream_close(hth_stream *stream)
{
    hth_cuda *d = stream_device(stream);
    (void)hth_cuda_enter(d);
    (void)HTH_CUDA(d, cuStreamSynchronize, hth_cuda_stream_of(stream));
    (void)HTH_CUDA(d, cuStreamDestroy, hth_cuda_stream_of(stream));
    hth_free(stream);
}

hth_err hth_cuda_launch(hth_stream *base, hth_err (*fn)(void *arg), void *arg)
{
    cuda_stream *s = (cuda_stream *)base;
    hth_cuda *d = stream_device(base);
    hth_cuda_kept *kept = d->capturing ? &d->recorded : &s->kept;
    if (kept->err == HTH_OK) {
        kept->err = hth_cuda_enter(d);
        d->current = s->cu;
        if (kept->err == HTH_OK) {
            kept->err = fn(arg);
        }
        d->current = d->own_stream;
        if (kept->err != HTH_OK) {
            snprintf(kept->detail, sizeof kept->detail, "%s", hth_err_detail());
        }
    }
    return HTH_OK;
}

hth_err hth_cuda_copy(hth_stream *base, void *dst, const void *src, size_t bytes)
{
    const cuda_stream *s = (cuda_stream *)base;
    hth_cuda *d = stream_device(base);
    bool to = hth_cuda_mem_holds(&d->mem, dst), from = hth_cuda_mem_holds(&d->mem, src);
    CUdeviceptr to_at = (CUdeviceptr)(uintptr_t)dst, from_at = (CUdeviceptr)(uintptr_t)src;
    if (s->kept.err != HTH_OK) {
        return HTH_OK;
    }
    HTH_TRY(hth_cuda_enter(d));
    if (to && from) {
        return HTH_CUDA(d, cuMemcpyDtoDAsync, to_at, from_at, bytes, s->cu);
    }
    if (d->capturing && (to || from) && !hth_cuda_host_pinned(&d->host, from ? dst : src, bytes)) {
        return hth_fail(HTH_ENOTSUP,
                        "device %s: a copy of %zu bytes whose host memory is not pinned",
                        d->base.props.name, bytes);
    }
    if (from) {
        return HTH_CUDA(d, cuMemcpyDtoHAsync, dst, from_at, bytes, s->cu);
    }
    if (!to) {
        return hth_fail(HTH_EINVAL, "device %s: neither end of a copy of %zu bytes is on it",
                        d->base.props.name, bytes);
    }
    if (bytes > STREAM_SMALL && !hth_cuda_host_pinned(&d->host, src, bytes)) {
        return hth_cuda_host_upload(d, s->cu, to_at, src, bytes);
    }
    return HTH_CUDA(d, cuMemcpyHtoDAsync, to_at, src, bytes, s->cu);
}

hth_err hth_cuda_zero(hth_stream *base, void *dst, size_t bytes)
{
    const cuda_stream *s = (cuda_stream *)base;
    hth_cuda *d = stream_device(base);
    if (s->kept.err != HTH_OK) {
        return HTH_OK;
    }
    HTH_TRY(hth_cuda_enter(d));
    return HTH_CUDA(d, cuMemsetD8Async, (CUdeviceptr)(uintptr_t)dst, 0, bytes, s->cu);
}

hth_err hth_cuda_sync(hth_stream *base)
{
    cuda_stream *s = (cuda_stream *)base;
    hth_cuda *d = stream_device(base);
    hth_err kept = s->kept.err;
    s->kept.err = HTH_OK;
    HTH_TRY(hth_cuda_enter(d));
    HTH_TRY(HTH_CUDA(d, cuStreamSynchronize, s->cu));
    return hth_err_restore(kept, s->kept.detail);
}
