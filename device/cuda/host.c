// SPDX-License-Identifier: Apache-2.0
// Slabs are pinned once and copied from and to at the link's rate. The ring serves what nobody
// pinned, such as weights in a mapped file: a piece is copied into a slot by the caller and sent
// from there, while the next slot is filled. A slot is filled again when its copy is done, so the
// ring bounds how much pinned memory that takes and how far the caller runs ahead. It is pinned
// with the first upload.
#include "device/cuda/host.h"

#include "base/alloc.h"
#include "device/cuda/cuda.h"

#include <string.h>

struct hth_cuda_slab {
    char *base;
    size_t bytes;
    hth_cuda_slab *next;
};

hth_err hth_cuda_host_reserve(hth_cuda *d, size_t bytes, void **base)
{
    void *p;
    HTH_TRY(hth_cuda_enter(d));
    hth_cuda_slab *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a host slab", d->base.props.name);
    }
    hth_err err = HTH_CUDA(d, cuMemHostAlloc, &p, bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (err != HTH_OK) {
        hth_free(s);
        return err;
    }
    *s = (hth_cuda_slab){p, bytes, d->host.slabs};
    d->host.slabs = s;
    *base = p;
    return HTH_OK;
}

void hth_cuda_host_release(hth_cuda *d, void *base)
{
    hth_cuda_slab **link = &d->host.slabs;
    while ((*link)->base != base) {
        link = &(*link)->next;
    }
    hth_cuda_slab *s = *link;
    *link = s->next;
    (void)hth_cuda_enter(d);
    (void)HTH_CUDA(d, cuCtxSynchronize); // a copy may be left over where a step was given up
    (void)HTH_CUDA(d, cuMemFreeHost, s->base);
    hth_free(s);
}

bool hth_cuda_host_pinned(const hth_cuda_host *h, const void *p, size_t bytes)
{
    for (const hth_cuda_slab *s = h->slabs; s != NULL; s = s->next) {
        uintptr_t at = (uintptr_t)p - (uintptr_t)s->base;
        if (at < s->bytes && bytes <= s->bytes - at) {
            return true;
        }
    }
    return false;
}

static hth_err host_slot_open(hth_cuda *d, unsigned i)
{
    if (d->host.slot[i].read == NULL) {
        HTH_TRY(HTH_CUDA(d, cuEventCreate, &d->host.slot[i].read, CU_EVENT_DISABLE_TIMING));
    }
    if (d->host.slot[i].memory == NULL) {
        HTH_TRY(HTH_CUDA(d, cuMemHostAlloc, &d->host.slot[i].memory, HTH_CUDA_SLOT_BYTES,
                         CU_MEMHOSTALLOC_PORTABLE));
    }
    return HTH_OK;
}

hth_err hth_cuda_host_upload(hth_cuda *d, CUstream s, CUdeviceptr dst, const void *src,
                             size_t bytes)
{
    HTH_TRY(hth_cuda_enter(d));
    for (size_t at = 0; at < bytes;) {
        unsigned i = d->host.turn++ % HTH_CUDA_SLOTS;
        size_t n = bytes - at < HTH_CUDA_SLOT_BYTES ? bytes - at : HTH_CUDA_SLOT_BYTES;
        HTH_TRY(host_slot_open(d, i));
        HTH_TRY(HTH_CUDA(d, cuEventSynchronize, d->host.slot[i].read));
        memcpy(d->host.slot[i].memory, (const char *)src + at, n);
        HTH_TRY(HTH_CUDA(d, cuMemcpyHtoDAsync, dst + at, d->host.slot[i].memory, n, s));
        hth_err err = HTH_CUDA(d, cuEventRecord, d->host.slot[i].read, s);
        if (err != HTH_OK) { // nothing tells when the slot may be filled again
            (void)d->api->cuStreamSynchronize(s);
            return err;
        }
        at += n;
    }
    return HTH_OK;
}

void hth_cuda_host_fini(hth_cuda *d)
{
    for (int i = 0; i < HTH_CUDA_SLOTS; i++) {
        if (d->host.slot[i].read != NULL) {
            (void)HTH_CUDA(d, cuEventDestroy, d->host.slot[i].read);
        }
        if (d->host.slot[i].memory != NULL) {
            (void)HTH_CUDA(d, cuMemFreeHost, d->host.slot[i].memory);
        }
    }
}
