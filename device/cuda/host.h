// SPDX-License-Identifier: Apache-2.0
// device/cuda/host.h - pinned host memory: slabs that copies use directly, and a ring through which
// uploads from other memory go.
#ifndef HTH_DEVICE_CUDA_HOST_H
#define HTH_DEVICE_CUDA_HOST_H

#include "device/cuda/driver.h"

#include <stdbool.h>
#include <stdint.h>

#define HTH_CUDA_SLOTS      4
#define HTH_CUDA_SLOT_BYTES ((size_t)16 << 20) // long enough that issuing it costs nothing

struct hth_cuda;
typedef struct hth_cuda_slab hth_cuda_slab;

typedef struct hth_cuda_host {
    hth_cuda_slab *slabs;
    struct {
        void *memory;
        CUevent read; // the copy out of it is done
    } slot[HTH_CUDA_SLOTS];
    unsigned turn; // the slot that is filled next
} hth_cuda_host;

void hth_cuda_host_fini(struct hth_cuda *d); // every slab was released
// The same as hth_device_reserve_host and hth_device_release_host.
hth_err hth_cuda_host_reserve(struct hth_cuda *d, size_t bytes, void **base);
void hth_cuda_host_release(struct hth_cuda *d, void *base);
// hth_cuda_host_pinned says whether [p, p + bytes) lies in one slab.
bool hth_cuda_host_pinned(const hth_cuda_host *host, const void *p, size_t bytes);
// hth_cuda_host_upload copies from pageable memory, which may change when it returns; blocks while
// all slots are full.
hth_err hth_cuda_host_upload(struct hth_cuda *d, CUstream stream, CUdeviceptr dst, const void *src,
                             size_t bytes);

#endif
