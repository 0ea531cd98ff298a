// SPDX-License-Identifier: Apache-2.0
// The chunk pool. A range reserves addresses and maps chunks into them one after the other, large
// ones first. The budget counts the bytes asked for, as on every device; what is held beyond them
// is the rounding of each range to 2 MiB, and free chunks, which go back to the driver as soon as
// they and a new chunk together would exceed the budget, or the driver has no more.
//
// Invariants: a chunk is in exactly one range or on the free list of its size. An unmap covers
// whole mappings. cuMemUnmap does not wait for kernels, so a release synchronizes the context
// first; ranges live as long as an engine or a model, so that costs nothing that counts.
#include "device/cuda/cuda.h"

#include "base/alloc.h"

struct hth_cuda_chunk {
    CUmemGenericAllocationHandle handle;
    int kind; // index of mem_sizes
    hth_cuda_chunk *next;
};

struct hth_cuda_range {
    CUdeviceptr base;
    size_t asked_bytes, bytes, mapped_bytes;
    hth_cuda_chunk *chunks;
    hth_cuda_range *next;
};

static const size_t mem_sizes[HTH_CUDA_N_SIZES] = {32 * HTH_CUDA_CHUNK, 8 * HTH_CUDA_CHUNK,
                                                   HTH_CUDA_CHUNK};

static CUmemAllocationProp mem_prop(const hth_cuda *cuda)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)cuda->device}};
}

// Memory of the device is not there now: evict and retry. Everything else is as elsewhere.
static hth_err mem_status(hth_cuda *cuda, CUresult r, const char *call)
{
    hth_err err = hth_cuda_status(cuda, r, call);
    return err == HTH_ENOMEM ? HTH_ENODEVMEM : err;
}

// Chunks.

static void mem_chunk_destroy(hth_cuda *cuda, int kind)
{
    hth_cuda_chunk *c = cuda->mem.free_chunks[kind];
    cuda->mem.free_chunks[kind] = c->next;
    cuda->mem.held_bytes -= mem_sizes[kind];
    (void)HTH_CUDA(cuda, cuMemRelease, c->handle);
    hth_free(c);
}

// Gives free chunks back, large ones first, until no more than `bytes` are held; returns whether
// one was.
static bool mem_trim(hth_cuda *cuda, uint64_t bytes)
{
    bool any = false;
    for (int k = 0; k < HTH_CUDA_N_SIZES; k++) {
        while (cuda->mem.free_chunks[k] != NULL && cuda->mem.held_bytes > bytes) {
            mem_chunk_destroy(cuda, k);
            any = true;
        }
    }
    return any;
}

static hth_err mem_chunk_create(hth_cuda *cuda, int kind, hth_cuda_chunk **out)
{
    size_t bytes = mem_sizes[kind];
    uint64_t budget = cuda->base.props.budget_bytes;
    CUmemAllocationProp prop = mem_prop(cuda);
    hth_cuda_chunk *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a chunk", cuda->base.props.name);
    }
    mem_trim(cuda, budget > bytes ? budget - bytes : 0);
    CUresult r = cuda->api->cuMemCreate(&c->handle, bytes, &prop, 0);
    if (r == CUDA_ERROR_OUT_OF_MEMORY && mem_trim(cuda, 0)) {
        r = cuda->api->cuMemCreate(&c->handle, bytes, &prop, 0);
    }
    hth_err err = mem_status(cuda, r, "cuMemCreate");
    if (err != HTH_OK) {
        hth_free(c);
        return err;
    }
    c->kind = kind;
    cuda->mem.held_bytes += bytes;
    *out = c;
    return HTH_OK;
}

static hth_err mem_chunk_take(hth_cuda *cuda, size_t left, hth_cuda_chunk **out)
{
    int kind = 0;
    while (mem_sizes[kind] > left) {
        kind++;
    }
    hth_cuda_chunk **list = &cuda->mem.free_chunks[kind];
    if (*list == NULL) {
        return mem_chunk_create(cuda, kind, out);
    }
    *out = *list;
    *list = (*out)->next;
    return HTH_OK;
}

// Ranges.

static void mem_unmap(hth_cuda *cuda, hth_cuda_range *range)
{
    if (range->mapped_bytes > 0) {
        (void)HTH_CUDA(cuda, cuMemUnmap, range->base, range->mapped_bytes);
    }
    if (range->base != 0) {
        (void)HTH_CUDA(cuda, cuMemAddressFree, range->base, range->bytes);
    }
    while (range->chunks != NULL) {
        hth_cuda_chunk *c = range->chunks;
        range->chunks = c->next;
        c->next = cuda->mem.free_chunks[c->kind];
        cuda->mem.free_chunks[c->kind] = c;
    }
}

static hth_err mem_map_next(hth_cuda *cuda, hth_cuda_range *range)
{
    hth_cuda_chunk *c = NULL;
    HTH_TRY(mem_chunk_take(cuda, range->bytes - range->mapped_bytes, &c));
    c->next = range->chunks;
    range->chunks = c;
    HTH_TRY(HTH_CUDA(cuda, cuMemMap, range->base + range->mapped_bytes, mem_sizes[c->kind], 0,
                     c->handle, 0));
    range->mapped_bytes += mem_sizes[c->kind];
    return HTH_OK;
}

static hth_err mem_map(hth_cuda *cuda, hth_cuda_range *range)
{
    hth_err err;
    CUmemAccessDesc access = {mem_prop(cuda).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    range->bytes = (range->asked_bytes + HTH_CUDA_CHUNK - 1) / HTH_CUDA_CHUNK * HTH_CUDA_CHUNK;
    HTH_GOTO(HTH_CUDA(cuda, cuMemAddressReserve, &range->base, range->bytes, 0, 0, 0), fail);
    while (range->mapped_bytes < range->bytes) {
        HTH_GOTO(mem_map_next(cuda, range), fail);
    }
    HTH_GOTO(HTH_CUDA(cuda, cuMemSetAccess, range->base, range->bytes, &access, 1), fail);
    return HTH_OK;
fail:
    mem_unmap(cuda, range);
    return err;
}

static hth_err mem_plain(hth_cuda *cuda, hth_cuda_range *range)
{
    range->bytes = range->asked_bytes;
    return mem_status(cuda, cuda->api->cuMemAlloc(&range->base, range->bytes), "cuMemAlloc");
}

hth_err hth_cuda_mem_reserve(hth_cuda *cuda, size_t bytes, void **out)
{
    hth_cuda_mem *m = &cuda->mem;
    uint64_t budget = cuda->base.props.budget_bytes;
    if (bytes > budget - m->asked_bytes) {
        return hth_fail(HTH_ENODEVMEM, "device %s: %zu bytes requested, %llu of %llu are free",
                        cuda->base.props.name, bytes, (unsigned long long)(budget - m->asked_bytes),
                        (unsigned long long)budget);
    }
    HTH_TRY(hth_cuda_enter(cuda));
    hth_cuda_range *r = hth_calloc(1, sizeof *r);
    if (r == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a reservation",
                        cuda->base.props.name);
    }
    r->asked_bytes = bytes;
    hth_err err = m->mapped ? mem_map(cuda, r) : mem_plain(cuda, r);
    if (err != HTH_OK) {
        hth_free(r);
        return err;
    }
    r->next = m->ranges;
    m->ranges = r;
    m->asked_bytes += bytes;
    *out = (void *)(uintptr_t)r->base;
    return HTH_OK;
}

void hth_cuda_mem_release(hth_cuda *cuda, void *base)
{
    hth_cuda_range **link = &cuda->mem.ranges;
    while ((*link)->base != (CUdeviceptr)(uintptr_t)base) {
        link = &(*link)->next;
    }
    hth_cuda_range *r = *link;
    *link = r->next;
    cuda->mem.asked_bytes -= r->asked_bytes;
    (void)hth_cuda_enter(cuda);
    (void)HTH_CUDA(cuda, cuCtxSynchronize);
    if (cuda->mem.mapped) {
        mem_unmap(cuda, r);
    } else {
        (void)HTH_CUDA(cuda, cuMemFree, r->base);
    }
    hth_free(r);
}

bool hth_cuda_mem_holds(const hth_cuda_mem *mem, const void *p)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    const hth_cuda_range *r = mem->ranges;
    while (r != NULL && (at < r->base || at - r->base >= r->bytes)) {
        r = r->next;
    }
    return r != NULL;
}

hth_err hth_cuda_mem_init(hth_cuda *cuda)
{
    int managed = 0;
    size_t granularity = 0;
    CUmemAllocationProp prop = mem_prop(cuda);
    HTH_TRY(HTH_CUDA(cuda, cuDeviceGetAttribute, &managed,
                     CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, cuda->device));
    if (managed) {
        HTH_TRY(HTH_CUDA(cuda, cuMemGetAllocationGranularity, &granularity, &prop,
                         CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    }
    cuda->mem.mapped = granularity > 0 && HTH_CUDA_CHUNK % granularity == 0;
    return HTH_OK;
}

void hth_cuda_mem_fini(hth_cuda *cuda)
{
    mem_trim(cuda, 0);
}
