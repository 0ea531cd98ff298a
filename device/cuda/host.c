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

hth_err hth_cuda_host_reserve(hth_cuda *cuda, size_t bytes, void **base)
{
    void *p;
    HTH_TRY(hth_cuda_enter(cuda));
    hth_cuda_slab *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a host slab", cuda->base.props.name);
    }
    hth_err err = HTH_CUDA(cuda, cuMemHostAlloc, &p, bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (err != HTH_OK) {
        hth_free(s);
        return err;
    }
    *s = (hth_cuda_slab){p, bytes, cuda->host.slabs};
    cuda->host.slabs = s;
    *base = p;
    return HTH_OK;
}

void hth_cuda_host_release(hth_cuda *cuda, void *base)
{
    hth_cuda_slab **link = &cuda->host.slabs;
    while ((*link)->base != base) {
        link = &(*link)->next;
    }
    hth_cuda_slab *s = *link;
    *link = s->next;
    (void)hth_cuda_enter(cuda);
    (void)HTH_CUDA(cuda, cuCtxSynchronize); // a copy may be left over where a step was given up
    (void)HTH_CUDA(cuda, cuMemFreeHost, s->base);
    hth_free(s);
}

bool hth_cuda_host_pinned(const hth_cuda_host *host, const void *p, size_t bytes)
{
    for (const hth_cuda_slab *s = host->slabs; s != NULL; s = s->next) {
        uintptr_t at = (uintptr_t)p - (uintptr_t)s->base;
        if (at < s->bytes && bytes <= s->bytes - at) {
            return true;
        }
    }
    return false;
}

static hth_err host_slot_open(hth_cuda *cuda, unsigned i)
{
    if (cuda->host.slot[i].read == NULL) {
        HTH_TRY(HTH_CUDA(cuda, cuEventCreate, &cuda->host.slot[i].read, CU_EVENT_DISABLE_TIMING));
    }
    if (cuda->host.slot[i].memory == NULL) {
        HTH_TRY(HTH_CUDA(cuda, cuMemHostAlloc, &cuda->host.slot[i].memory, HTH_CUDA_SLOT_BYTES,
                         CU_MEMHOSTALLOC_PORTABLE));
    }
    return HTH_OK;
}

hth_err hth_cuda_host_upload(hth_cuda *cuda, CUstream stream, CUdeviceptr dst, const void *src,
                             size_t bytes)
{
    HTH_TRY(hth_cuda_enter(cuda));
    for (size_t at = 0; at < bytes;) {
        unsigned i = cuda->host.turn++ % HTH_CUDA_SLOTS;
        size_t n = bytes - at < HTH_CUDA_SLOT_BYTES ? bytes - at : HTH_CUDA_SLOT_BYTES;
        HTH_TRY(host_slot_open(cuda, i));
        HTH_TRY(HTH_CUDA(cuda, cuEventSynchronize, cuda->host.slot[i].read));
        memcpy(cuda->host.slot[i].memory, (const char *)src + at, n);
        HTH_TRY(HTH_CUDA(cuda, cuMemcpyHtoDAsync, dst + at, cuda->host.slot[i].memory, n, stream));
        hth_err err = HTH_CUDA(cuda, cuEventRecord, cuda->host.slot[i].read, stream);
        if (err != HTH_OK) { // nothing tells when the slot may be filled again
            (void)cuda->api->cuStreamSynchronize(stream);
            return err;
        }
        at += n;
    }
    return HTH_OK;
}

void hth_cuda_host_fini(hth_cuda *cuda)
{
    for (int i = 0; i < HTH_CUDA_SLOTS; i++) {
        if (cuda->host.slot[i].read != NULL) {
            (void)HTH_CUDA(cuda, cuEventDestroy, cuda->host.slot[i].read);
        }
        if (cuda->host.slot[i].memory != NULL) {
            (void)HTH_CUDA(cuda, cuMemFreeHost, cuda->host.slot[i].memory);
        }
    }
}
