// SPDX-License-Identifier: Apache-2.0
// Memory of the fake driver. A handle is a memfd; reserving addresses maps nothing with no access;
// mapping a handle puts its pages there, still without access, until cuMemSetAccess. What the real
// driver refuses is refused: an offset, a handle over another, an unmap of part of a mapping.
#include "device/cuda/fake/impl.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAKE_MAX         1024
#define FAKE_POISON      0xCB
#define FAKE_GRANULARITY ((size_t)2 << 20)

typedef enum fake_kind {
    FAKE_NONE,
    FAKE_HANDLE, // at: memfd; of: the handle whose memory was imported, 0: its own
    FAKE_ADDRESSES,
    FAKE_MAPPING, // of: index of the handle
    FAKE_PLAIN,
    FAKE_HOST
} fake_kind;

typedef struct fake_item {
    fake_kind kind;
    uintptr_t at;
    size_t bytes;
    int of, n_mappings; // of a handle: imports of it, too
    bool released;      // a handle that only its mappings keep
    bool shared;        // a handle that can be exported
} fake_item;

static fake_item items[FAKE_MAX];

static fake_item *item_new(fake_kind kind, uintptr_t at, size_t bytes)
{
    for (int i = 1; i < FAKE_MAX; i++) {
        if (items[i].kind == FAKE_NONE) {
            items[i] = (fake_item){.kind = kind, .at = at, .bytes = bytes};
            hth_cuda_fake_state()->live++;
            return &items[i];
        }
    }
    return NULL;
}

static void item_end(fake_item *item)
{
    item->kind = FAKE_NONE;
    hth_cuda_fake_state()->live--;
}

// The item of that kind which has `at`.
static fake_item *item_at(fake_kind kind, uintptr_t at)
{
    for (int i = 1; i < FAKE_MAX; i++) {
        if (items[i].kind == kind && at >= items[i].at && at - items[i].at < items[i].bytes) {
            return &items[i];
        }
    }
    return NULL;
}

static fake_item *item_handle(CUmemGenericAllocationHandle h)
{
    return h > 0 && h < FAKE_MAX && items[h].kind == FAKE_HANDLE ? &items[h] : NULL;
}

bool hth_cuda_fake_pinned(const void *p)
{
    return item_at(FAKE_HOST, (uintptr_t)p) != NULL;
}

uint64_t hth_cuda_fake_count(bool (*is)(float value))
{
    uint64_t n = 0;
    for (int i = 1; i < FAKE_MAX; i++) {
        bool memory = items[i].kind == FAKE_MAPPING || items[i].kind == FAKE_PLAIN;
        const float *p = (const float *)items[i].at;
        for (size_t k = 0; memory && k < items[i].bytes / sizeof *p; k++) {
            n += is(p[k]);
        }
    }
    return n;
}

static void *map_anonymous(size_t bytes, int access)
{
    void *p = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static CUresult fake_granularity(size_t *out, const CUmemAllocationProp *prop,
                                 CUmemAllocationGranularity_flags option)
{
    CUresult r = hth_cuda_fake_enter();
    *out = FAKE_GRANULARITY;
    return r;
}

static CUresult fake_address_reserve(CUdeviceptr *out, size_t bytes, size_t align, CUdeviceptr at,
                                     unsigned long long flags)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    if (bytes == 0 || bytes % FAKE_GRANULARITY != 0 || at != 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *p = map_anonymous(bytes, PROT_NONE);
    if (p == NULL || item_new(FAKE_ADDRESSES, (uintptr_t)p, bytes) == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

static CUresult fake_address_free(CUdeviceptr at, size_t bytes)
{
    FAKE_UNSAFE();
    CUresult r = hth_cuda_fake_enter();
    fake_item *a = item_at(FAKE_ADDRESSES, at);
    for (int i = 1; a != NULL && i < FAKE_MAX; i++) {
        if (items[i].kind == FAKE_MAPPING && items[i].at - a->at < a->bytes) {
            return CUDA_ERROR_INVALID_VALUE; // still mapped
        }
    }
    if (a == NULL || a->at != at || a->bytes != bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap((void *)(uintptr_t)at, bytes);
    item_end(a);
    return r;
}

static CUresult fake_create(CUmemGenericAllocationHandle *out, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    if (bytes == 0 || bytes % FAKE_GRANULARITY != 0 || flags != 0 ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!hth_cuda_fake_take((int64_t)bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    int fd = memfd_create("hearth-cuda-fake", MFD_CLOEXEC);
    void *p = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0
                  ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
    if (p == MAP_FAILED) {
        close(fd);
        hth_cuda_fake_take(-(int64_t)bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(p, FAKE_POISON, FAKE_GRANULARITY); // the rest of a large one is zero: time
    munmap(p, bytes);
    fake_item *h = item_new(FAKE_HANDLE, (uintptr_t)fd, bytes);
    h->shared = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    *out = (CUmemGenericAllocationHandle)(h - items);
    hth_cuda_fake_state()->creates++;
    return CUDA_SUCCESS;
}

static void handle_settle(fake_item *item)
{
    fake_item *origin = &items[item->of];
    if (!item->released || item->n_mappings > 0) {
        return;
    }
    close((int)item->at);
    item_end(item);
    if (origin == items) {
        hth_cuda_fake_take(-(int64_t)item->bytes);
    } else if (--origin->n_mappings == 0) {
        handle_settle(origin);
    }
}

static CUresult fake_export(void *out, CUmemGenericAllocationHandle handle,
                            CUmemAllocationHandleType type, unsigned long long flags)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    fake_item *h = item_handle(handle);
    if (h == NULL || h->released || !h->shared || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = fcntl((int)h->at, F_DUPFD_CLOEXEC, 0);
    *(int *)out = fd;
    return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// The handle, no import itself, whose memory that file is.
static fake_item *item_file(int fd)
{
    struct stat is, that;
    for (int i = 1; i < FAKE_MAX && fstat(fd, &is) == 0; i++) {
        if (items[i].kind == FAKE_HANDLE && items[i].of == 0 &&
            fstat((int)items[i].at, &that) == 0 && that.st_dev == is.st_dev &&
            that.st_ino == is.st_ino) {
            return &items[i];
        }
    }
    return NULL;
}

static CUresult fake_import(CUmemGenericAllocationHandle *out, void *file,
                            CUmemAllocationHandleType type)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    int fd = (int)(intptr_t)file;
    fake_item *origin = item_file(fd), *h;
    if (origin == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    h = fd >= 0 ? item_new(FAKE_HANDLE, (uintptr_t)fd, origin->bytes) : NULL;
    if (h == NULL) {
        (void)(fd >= 0 && close(fd));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    h->of = (int)(origin - items);
    origin->n_mappings++;
    *out = (CUmemGenericAllocationHandle)(h - items);
    return CUDA_SUCCESS;
}

void *hth_cuda_fake_symbol(const char *name)
{
    void *p = NULL;
    if (strcmp(name, "cuMemExportToShareableHandle") == 0) {
        *(__typeof__(&fake_export) *)&p = fake_export;
    } else if (strcmp(name, "cuMemImportFromShareableHandle") == 0) {
        *(__typeof__(&fake_import) *)&p = fake_import;
    }
    return p;
}

static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
    FAKE_UNSAFE();
    CUresult r = hth_cuda_fake_enter();
    fake_item *h = item_handle(handle);
    if (h == NULL || h->released) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    h->released = true;
    handle_settle(h);
    return r;
}

static CUresult fake_map(CUdeviceptr at, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    fake_item *h = item_handle(handle), *a = item_at(FAKE_ADDRESSES, at);
    if (h == NULL || h->released || a == NULL || bytes > a->bytes - (at - a->at) ||
        bytes != h->bytes || offset != 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (uintptr_t p = at; p < at + bytes; p += FAKE_GRANULARITY) {
        if (item_at(FAKE_MAPPING, p) != NULL) {
            return CUDA_ERROR_ALREADY_MAPPED;
        }
    }
    if (mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h->at, 0) ==
        MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    item_new(FAKE_MAPPING, at, bytes)->of = (int)(h - items);
    h->n_mappings++;
    return CUDA_SUCCESS;
}

// Calls each(mapping, arg) for the mappings that fill [at, at + bytes); false, and nothing called,
// unless whole mappings fill it.
static bool each_mapping(CUdeviceptr at, size_t bytes, void (*each)(fake_item *, int), int arg)
{
    for (int pass = 0; pass < 2; pass++) {
        for (uintptr_t p = at; p < at + bytes;) {
            fake_item *m = item_at(FAKE_MAPPING, p);
            if (m == NULL || m->at != p || m->bytes > at + bytes - p) {
                return false;
            }
            p += m->bytes;
            if (pass == 1) {
                each(m, arg);
            }
        }
    }
    return true;
}

static void mapping_end(fake_item *item, int unused)
{
    fake_item *h = &items[item->of];
    (void)mmap((void *)item->at, item->bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    item_end(item);
    h->n_mappings--;
    handle_settle(h);
}

static CUresult fake_unmap(CUdeviceptr at, size_t bytes)
{
    FAKE_UNSAFE();
    CUresult r = hth_cuda_fake_enter();
    return each_mapping(at, bytes, mapping_end, 0) ? r : CUDA_ERROR_INVALID_VALUE;
}

static void mapping_protect(fake_item *item, int access)
{
    (void)mprotect((void *)item->at, item->bytes, access);
}

static CUresult fake_set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t n)
{
    FAKE_UNSAFE();
    FAKE_ENTER();
    int access = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_NONE;
    if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        access = PROT_READ | PROT_WRITE;
    }
    return n == 1 && each_mapping(at, bytes, mapping_protect, access) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_alloc(CUdeviceptr *out, size_t bytes)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    FAKE_ENTER();
    if (!hth_cuda_fake_take((int64_t)bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *p = map_anonymous(bytes, PROT_READ | PROT_WRITE);
    if (p == NULL) {
        hth_cuda_fake_take(-(int64_t)bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    item_new(FAKE_PLAIN, (uintptr_t)p, bytes);
    memset(p, FAKE_POISON, bytes);
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

static CUresult fake_free(CUdeviceptr at)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    CUresult r = hth_cuda_fake_enter();
    fake_item *i = item_at(FAKE_PLAIN, at);
    if (i == NULL || i->at != at) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap((void *)i->at, i->bytes);
    hth_cuda_fake_take(-(int64_t)i->bytes);
    item_end(i);
    return r;
}

static CUresult fake_host_alloc(void **out, size_t bytes, unsigned flags)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    FAKE_ENTER();
    *out = map_anonymous(bytes, PROT_READ | PROT_WRITE);
    if (*out == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    item_new(FAKE_HOST, (uintptr_t)*out, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_free_host(void *p)
{
    FAKE_CURRENT();
    FAKE_UNSAFE();
    CUresult r = hth_cuda_fake_enter();
    fake_item *i = item_at(FAKE_HOST, (uintptr_t)p);
    if (i == NULL || i->at != (uintptr_t)p) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(p, i->bytes);
    item_end(i);
    return r;
}

void hth_cuda_fake_fill_mem(hth_cuda_api *api)
{
    api->cuMemGetAllocationGranularity = fake_granularity;
    api->cuMemAddressReserve = fake_address_reserve;
    api->cuMemAddressFree = fake_address_free;
    api->cuMemCreate = fake_create;
    api->cuMemRelease = fake_release;
    api->cuMemMap = fake_map;
    api->cuMemUnmap = fake_unmap;
    api->cuMemSetAccess = fake_set_access;
    api->cuMemAlloc = fake_alloc;
    api->cuMemFree = fake_free;
    api->cuMemHostAlloc = fake_host_alloc;
    api->cuMemFreeHost = fake_free_host;
}
