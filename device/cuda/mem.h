// SPDX-License-Identifier: Apache-2.0
// device/cuda/mem.h - device memory: ranges of addresses, backed by physical chunks from a pool.
//
// Design notes
// cuMemCreate takes milliseconds and a chunk can be mapped anywhere, so a chunk that is given back
// is kept on the free list of its size and mapped into the next range. Sizes are 2, 16 and 64 MiB:
// the large ones cost fewer calls, the small one bounds what is rounded away. Where a device has no
// virtual memory management a range is one cuMemAlloc; nobody above sees which.
#ifndef HTH_DEVICE_CUDA_MEM_H
#define HTH_DEVICE_CUDA_MEM_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_CUDA_CHUNK   ((size_t)2 << 20) // the driver's granularity on every device so far
#define HTH_CUDA_N_SIZES 3

struct hth_cuda;
typedef struct hth_cuda_chunk hth_cuda_chunk;
typedef struct hth_cuda_range hth_cuda_range;

typedef struct hth_cuda_mem {
    bool mapped;                                   // chunks; false: plain allocations
    uint64_t asked_bytes;                          // what the budget counts
    uint64_t held_bytes;                           // chunks that exist, mapped or free
    hth_cuda_chunk *free_chunks[HTH_CUDA_N_SIZES]; // by size: 64, 16, 2 MiB
    hth_cuda_range *ranges;
} hth_cuda_mem;

// hth_cuda_mem_init asks the device which way it has memory. fini returns free chunks to the
// driver; every range was released.
hth_err hth_cuda_mem_init(struct hth_cuda *d);
void hth_cuda_mem_fini(struct hth_cuda *d);
// The same as hth_device_reserve and hth_device_release; release waits for all work of the device.
hth_err hth_cuda_mem_reserve(struct hth_cuda *d, size_t bytes, void **base);
void hth_cuda_mem_release(struct hth_cuda *d, void *base);
// hth_cuda_mem_holds says whether p is device memory of this device.
bool hth_cuda_mem_holds(const hth_cuda_mem *mem, const void *p);

#endif
