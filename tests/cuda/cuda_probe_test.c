// SPDX-License-Identifier: Apache-2.0
// What a CUDA device does, and how fast its memory and its links are: the conformance suite, with a
// kernel of its own; captures; the rates of copies; launches; then what is only asked of a real
// driver: cuDNN's description of the device (GPU_DEVICE_JSON names the file), memory at two
// addresses, handles as file descriptors, registration of mapped files, access rights.
#include "base/err.h"
struct conformance;
static hth_err probe_kernel(struct conformance *c);
#define CONFORMANCE_SPEC      "cuda:0,mem=1MiB"
#define CONFORMANCE_KERNEL(c) probe_kernel(c)
#include "tests/rig/device_conformance.h"

#include "tests/cuda/cuda_rig.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

// out[i + 256] = 3 in[i] for 256 words; whatever the GPU, its driver compiles this.
static const char triple_ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                                 ".visible .entry triple(.param .u64 p) {\n"
                                 ".reg .b64 %rd<4>; .reg .b32 %r<4>;\n"
                                 "mov.u32 %r1, %tid.x;\n"
                                 "ld.param.u64 %rd1, [p];\n"
                                 "cvta.to.global.u64 %rd1, %rd1;\n"
                                 "mul.wide.u32 %rd2, %r1, 4;\n"
                                 "add.u64 %rd3, %rd1, %rd2;\n"
                                 "ld.global.u32 %r2, [%rd3];\n"
                                 "mul.lo.u32 %r3, %r2, 3;\n"
                                 "st.global.u32 [%rd3+1024], %r3;\n"
                                 "ret;\n}\n";

static hth_cuda *device_of(hth_device *device)
{
    return (hth_cuda *)device;
}

static CUlibrary library; // of the device that was used last
static CUfunction triple;
static const hth_device *triple_on;

static hth_err triple_find(hth_device *base)
{
    hth_cuda *d = device_of(base);
    CUkernel kernel;
    if (triple_on == base) {
        return HTH_OK;
    }
    HTH_TRY(HTH_CUDA(d, cuLibraryLoadData, &library, triple_ptx, NULL, NULL, 0, NULL, NULL, 0));
    HTH_TRY(HTH_CUDA(d, cuLibraryGetKernel, &kernel, library, "triple"));
    memcpy(&triple, &kernel, sizeof triple);
    triple_on = base;
    return HTH_OK;
}

static void triple_forget(hth_device *base)
{
    if (triple_on == base && rig_real()) {
        (void)device_of(base)->api->cuLibraryUnload(library);
    }
    triple_on = NULL;
}

static hth_err fake_triple(void *at)
{
    uint32_t *word = at;
    for (int i = 0; i < CONFORMANCE_WORDS; i++) {
        word[CONFORMANCE_WORDS + i] = 3 * word[i];
    }
    return HTH_OK;
}

// Issues the kernel on the device's current stream, for an fn of hth_stream_launch.
static hth_err triple_issue(hth_device *base, void *memory)
{
    hth_cuda *d = device_of(base);
    void *params[] = {&memory};
    CUfunction f = triple;
    if (rig_real()) {
        HTH_TRY(triple_find(base));
        f = triple;
    } else {
        hth_cuda_fake_kernel *kernel = fake_triple;
        memcpy(&f, &kernel, sizeof f);
    }
    return HTH_CUDA(d, cuLaunchKernel, f, 1, 1, 1, CONFORMANCE_WORDS, 1, 1, 0, d->current, params,
                    NULL);
}

static hth_err probe_kernel(conformance *c)
{
    return triple_issue(c->device, c->arena);
}

// The suite's own teardown closes the device.
static int probe_teardown(void **state)
{
    triple_forget(((conformance *)*state)->device);
    return conformance_teardown(state);
}
#define conformance_teardown probe_teardown

// Captures.

typedef struct pipeline {
    hth_device *device;
    hth_stream *compute, *h2d, *d2h;
    hth_event *fork, *up, *computed, *down;
    uint32_t *memory, *host;
} pipeline;

static hth_err pipeline_triple(void *arg)
{
    const pipeline *p = arg;
    return triple_issue(p->device, p->memory);
}

static void pipeline_open(pipeline *p)
{
    p->device = rig_device("cuda:0,mem=64MiB");
    assert_int_equal(hth_stream_open(p->device, HTH_STREAM_COMPUTE, &p->compute), HTH_OK);
    assert_int_equal(hth_stream_open(p->device, HTH_STREAM_H2D, &p->h2d), HTH_OK);
    assert_int_equal(hth_stream_open(p->device, HTH_STREAM_D2H, &p->d2h), HTH_OK);
    assert_int_equal(hth_event_open(p->device, &p->fork), HTH_OK);
    assert_int_equal(hth_event_open(p->device, &p->up), HTH_OK);
    assert_int_equal(hth_event_open(p->device, &p->computed), HTH_OK);
    assert_int_equal(hth_event_open(p->device, &p->down), HTH_OK);
    assert_int_equal(hth_device_reserve(p->device, MIB, (void **)&p->memory), HTH_OK);
    assert_int_equal(hth_device_reserve_host(p->device, MIB, (void **)&p->host), HTH_OK);
    assert_int_equal(hth_stream_launch(p->compute, pipeline_triple, p), HTH_OK); // compiled
    assert_int_equal(hth_stream_sync(p->compute), HTH_OK);
}

static void pipeline_close(pipeline *p)
{
    triple_forget(p->device);
    hth_event_close(p->fork);
    hth_event_close(p->up);
    hth_event_close(p->computed);
    hth_event_close(p->down);
    hth_stream_close(p->compute);
    hth_stream_close(p->h2d);
    hth_stream_close(p->d2h);
    hth_device_release_host(p->device, p->host, MIB);
    hth_device_release(p->device, p->memory, MIB);
    hth_device_close(p->device);
}

// Upload, kernel, download on three streams.
static void pipeline_issue(pipeline *p)
{
    size_t bytes = CONFORMANCE_WORDS * sizeof *p->host;
    assert_int_equal(hth_stream_record(p->compute, p->fork), HTH_OK);
    assert_int_equal(hth_stream_wait(p->h2d, p->fork), HTH_OK);
    assert_int_equal(hth_stream_copy(p->h2d, p->memory, p->host, bytes), HTH_OK);
    assert_int_equal(hth_stream_record(p->h2d, p->up), HTH_OK);
    assert_int_equal(hth_stream_wait(p->compute, p->up), HTH_OK);
    assert_int_equal(hth_stream_launch(p->compute, pipeline_triple, p), HTH_OK);
    assert_int_equal(hth_stream_record(p->compute, p->computed), HTH_OK);
    assert_int_equal(hth_stream_wait(p->d2h, p->computed), HTH_OK);
    assert_int_equal(
        hth_stream_copy(p->d2h, p->host + CONFORMANCE_WORDS, p->memory + CONFORMANCE_WORDS, bytes),
        HTH_OK);
    assert_int_equal(hth_stream_record(p->d2h, p->down), HTH_OK);
    assert_int_equal(hth_stream_wait(p->compute, p->down), HTH_OK);
}

static void test_captures(void **state)
{
    pipeline p;
    hth_capture *c = NULL;
    pipeline_open(&p);
    for (int again = 0; again < 2; again++) { // the second time it is brought up to date
        assert_int_equal(hth_capture_begin(p.compute), HTH_OK);
        pipeline_issue(&p);
        if (hth_capture_end(p.compute, &c) != HTH_OK) {
            fail_msg("%s", hth_err_detail());
        }
        for (uint32_t round = 1; round < 20; round++) {
            for (uint32_t i = 0; i < CONFORMANCE_WORDS; i++) {
                p.host[i] = i * round;
                p.host[CONFORMANCE_WORDS + i] = 0xCBCBCBCB;
            }
            assert_int_equal(hth_capture_launch(c, p.compute), HTH_OK);
            assert_int_equal(hth_stream_sync(p.compute), HTH_OK);
            for (uint32_t i = 0; i < CONFORMANCE_WORDS; i++) {
                assert_int_equal(p.host[CONFORMANCE_WORDS + i], 3 * i * round);
            }
        }
    }
    // What may not be captured is an error, after which all works on.
    char pageable[64] = "";
    assert_int_equal(hth_capture_begin(p.compute), HTH_OK);
    assert_int_equal(hth_stream_copy(p.compute, p.memory, pageable, 64), HTH_ENOTSUP);
    assert_int_not_equal(hth_stream_sync(p.compute), HTH_OK);
    assert_int_not_equal(hth_capture_end(p.compute, &c), HTH_OK);
    assert_null(c);
    pipeline_issue(&p);
    assert_int_equal(hth_stream_sync(p.compute), HTH_OK);
    pipeline_close(&p);
}

// Launches.

#define LAUNCHES 200

static hth_err launches_plain(hth_stream *stream, void *arg)
{
    for (int i = 0; i < LAUNCHES; i++) {
        HTH_TRY(hth_stream_launch(stream, pipeline_triple, arg));
    }
    return HTH_OK;
}

static hth_err launches_captured(hth_stream *stream, void *capture)
{
    return hth_capture_launch(capture, stream);
}

static void test_launches(void **state)
{
    pipeline p;
    hth_capture *c = NULL;
    pipeline_open(&p);
    double plain = rig_time_us(p.compute, launches_plain, &p, 15);
    assert_int_equal(hth_capture_begin(p.compute), HTH_OK);
    assert_int_equal(launches_plain(p.compute, &p), HTH_OK);
    assert_int_equal(hth_capture_end(p.compute, &c), HTH_OK);
    double captured = rig_time_us(p.compute, launches_captured, c, 15);
    rig_result("a kernel of one block, launched", plain / LAUNCHES, "us");
    rig_result("a kernel of one block, in a graph", captured / LAUNCHES, "us");
    hth_capture_close(c);
    pipeline_close(&p);
}

// Copies.

typedef struct transfer {
    void *dst;
    const void *src;
    size_t bytes;
} transfer;

static hth_err transfer_issue(hth_stream *stream, void *arg)
{
    const transfer *t = arg;
    return hth_stream_copy(stream, t->dst, t->src, t->bytes);
}

static void rates(pipeline *p, size_t bytes, char *far, char *pinned, char *pageable)
{
    transfer within = {far, far + bytes, bytes}, up = {far, pinned, bytes},
             down = {pinned + bytes, far + bytes, bytes}, loose = {far, pageable, bytes};
    double b = (double)bytes / 1e3; // per microsecond: GB/s
    rig_result("device to device, bytes read and written",
               2 * b / rig_time_us(p->compute, transfer_issue, &within, 15), "GB/s");
    rig_result("host to device, pinned", b / rig_time_us(p->h2d, transfer_issue, &up, 9), "GB/s");
    rig_result("device to host, pinned", b / rig_time_us(p->d2h, transfer_issue, &down, 9), "GB/s");
    rig_result("host to device, pageable, through the ring",
               b / rig_time_us(p->h2d, transfer_issue, &loose, 5), "GB/s");
    double us[9];
    for (int i = 0; i < 9; i++) {
        uint64_t from = hth_now_ns();
        assert_int_equal(transfer_issue(p->h2d, &up), HTH_OK);
        assert_int_equal(transfer_issue(p->d2h, &down), HTH_OK);
        assert_int_equal(hth_stream_sync(p->h2d), HTH_OK);
        assert_int_equal(hth_stream_sync(p->d2h), HTH_OK);
        us[i] = (double)(hth_now_ns() - from) / 1e3;
    }
    rig_result("both ways at once, each", b / rig_median(us, 9), "GB/s");
}

static void test_rates(void **state)
{
    size_t bytes = rig_real() ? 512 * MIB : 4 * MIB;
    char *far, *pinned, *pageable = hth_alloc(bytes);
    assert_non_null(pageable);
    hth_device *d = rig_device(rig_real() ? "cuda:0,mem=4GiB" : "cuda:0,mem=64MiB");
    assert_int_equal(hth_device_reserve(d, 2 * bytes, (void **)&far), HTH_OK);
    assert_int_equal(hth_device_reserve_host(d, 2 * bytes, (void **)&pinned), HTH_OK);
    for (size_t i = 0; i < bytes / 4; i++) { // no zeros
        ((uint32_t *)pinned)[i] = ((uint32_t *)pageable)[i] = (uint32_t)i * 2654435761u;
    }
    pipeline q = {.device = d};
    assert_int_equal(hth_stream_open(d, HTH_STREAM_COMPUTE, &q.compute), HTH_OK);
    assert_int_equal(hth_stream_open(d, HTH_STREAM_H2D, &q.h2d), HTH_OK);
    assert_int_equal(hth_stream_open(d, HTH_STREAM_D2H, &q.d2h), HTH_OK);
    assert_int_equal(hth_device_put(d, far, pinned, bytes), HTH_OK);
    assert_int_equal(hth_device_put(d, far + bytes, pinned, bytes), HTH_OK);
    rates(&q, bytes, far, pinned, pageable);
    assert_memory_equal(pinned, pinned + bytes, bytes); // all of them carried the same words
    hth_stream_close(q.compute);
    hth_stream_close(q.h2d);
    hth_stream_close(q.d2h);
    hth_device_release_host(d, pinned, 2 * bytes);
    hth_device_release(d, far, 2 * bytes);
    hth_device_close(d);
    hth_free(pageable);
}

// What the driver says when asked directly.

static void *driver_symbol(const char *name)
{
    if (!rig_real()) {
        return hth_cuda_fake_symbol(name);
    }
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    return lib != NULL ? dlsym(lib, name) : NULL;
}

static void said(const char *what, CUresult r)
{
    print_message("# %s: answered %d, %s\n", what, (int)r,
                  r == CUDA_SUCCESS ? "it can" : "it cannot");
    rig_result(what, r == CUDA_SUCCESS, "yes/no");
}

// By the device's number, else by a handle.
static cudnnBackendDescriptor_t describe(const hth_cuda_api *api, cudnnHandle_t *handle)
{
    cudnnBackendDescriptor_t desc = NULL;
    int32_t id = 0;
    for (int way = 0; way < 2; way++) {
        assert_int_equal(
            api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &desc), 0);
        cudnnStatus_t r = way == 0
                              ? api->cudnnBackendSetAttribute(desc, CUDNN_ATTR_DEVICEPROP_DEVICE_ID,
                                                              CUDNN_TYPE_INT32, 1, &id)
                              : api->cudnnBackendSetAttribute(desc, CUDNN_ATTR_DEVICEPROP_HANDLE,
                                                              CUDNN_TYPE_HANDLE, 1, handle);
        r = r == CUDNN_STATUS_SUCCESS ? api->cudnnBackendFinalize(desc) : r;
        if (r == CUDNN_STATUS_SUCCESS) {
            return desc;
        }
        print_message("# device JSON, way %d: cuDNN answered %d\n", way, (int)r);
        (void)api->cudnnBackendDestroyDescriptor(desc);
    }
    fail_msg("cuDNN describes no device");
    return NULL;
}

static void test_device_json(void **state)
{
    const char *path = getenv("GPU_DEVICE_JSON");
    hth_device *base = rig_device("cuda:0,mem=64MiB");
    const hth_cuda_api *api = device_of(base)->api;
    cudnnHandle_t handle;
    int64_t bytes = 0;
    if (!rig_real()) {
        print_message("# device JSON: not asked for\n");
        hth_device_close(base);
        return;
    }
    assert_int_equal(api->cudnnCreate(&handle), 0);
    cudnnBackendDescriptor_t desc = describe(api, &handle);
    assert_int_equal(api->cudnnBackendGetAttribute(desc, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                   CUDNN_TYPE_CHAR, 0, &bytes, NULL),
                     0);
    char *text = hth_calloc((size_t)bytes + 1, 1);
    assert_non_null(text);
    assert_int_equal(api->cudnnBackendGetAttribute(desc, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                   CUDNN_TYPE_CHAR, bytes, &bytes, text),
                     0);
    FILE *f = path != NULL ? fopen(path, "w") : NULL;
    if (f != NULL) {
        fprintf(f, "%s\n", text);
        fclose(f);
    }
    print_message("# device JSON: %s\n", text);
    (void)api->cudnnBackendDestroyDescriptor(desc);
    (void)api->cudnnDestroy(handle);
    hth_free(text);
    hth_device_close(base);
}

#define CHUNK (2 * MIB)

static CUmemAllocationProp chunk_prop(const hth_cuda *cuda, bool exported)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->device}};
    p.requestedHandleTypes = exported ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
    return p;
}

static CUresult chunk_map(const hth_cuda *cuda, CUdeviceptr at, CUmemGenericAllocationHandle h,
                          CUmemAccess_flags access)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->device},
                            .flags = access};
    CUresult r = cuda->api->cuMemMap(at, CHUNK, 0, h, 0);
    return r == CUDA_SUCCESS ? cuda->api->cuMemSetAccess(at, CHUNK, &desc, 1) : r;
}

// One handle at two addresses, then as a file descriptor at a third, then without the right to
// write: that comes last, for it may cost the context.
static void test_chunks(void **state)
{
    hth_device *base = rig_device("cuda:0,mem=64MiB");
    hth_cuda *d = device_of(base);
    const hth_cuda_api *api = d->api;
    CUmemGenericAllocationHandle h, imported;
    CUdeviceptr at;
    uint32_t *pinned;
    assert_int_equal(hth_device_reserve_host(base, MIB, (void **)&pinned), HTH_OK);
    CUmemAllocationProp prop = chunk_prop(d, true);
    assert_int_equal(api->cuMemAddressReserve(&at, 4 * CHUNK, 0, 0, 0), 0);
    CUresult r = api->cuMemCreate(&h, CHUNK, &prop, 0);
    said("device memory that can be exported", r);
    if (r != CUDA_SUCCESS) {
        prop = chunk_prop(d, false);
        assert_int_equal(api->cuMemCreate(&h, CHUNK, &prop, 0), 0);
    }
    assert_int_equal(chunk_map(d, at, h, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), 0);
    CUresult alias = chunk_map(d, at + CHUNK, h, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    said("one handle at two addresses", alias);
    assert_int_equal(alias, 0);
    pinned[0] = 12345;
    assert_int_equal(api->cuMemcpyHtoDAsync(at, pinned, 4, d->own_stream), 0);
    assert_int_equal(api->cuMemcpyDtoHAsync(pinned + 1, at + CHUNK, 4, d->own_stream), 0);
    assert_int_equal(api->cuStreamSynchronize(d->own_stream), 0);
    assert_int_equal(pinned[1], 12345);
    CUresult (*out)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                    unsigned long long);
    CUresult (*in)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
    *(void **)&out = driver_symbol("cuMemExportToShareableHandle");
    *(void **)&in = driver_symbol("cuMemImportFromShareableHandle");
    if (out != NULL && in != NULL && r == CUDA_SUCCESS) {
        int fd = -1;
        r = out(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        said("a handle as a file descriptor", r);
        r = r == CUDA_SUCCESS
                ? in(&imported, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                : r;
        said("a handle from a file descriptor", r);
        if (r == CUDA_SUCCESS) {
            CUresult too =
                chunk_map(d, at + 2 * CHUNK, imported, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
            said("mapping that one, too", too);
            if (too == CUDA_SUCCESS) {
                pinned[1] = 0;
                assert_int_equal(
                    api->cuMemcpyDtoHAsync(pinned + 1, at + 2 * CHUNK, 4, d->own_stream), 0);
                assert_int_equal(api->cuStreamSynchronize(d->own_stream), 0);
                assert_int_equal(pinned[1], 12345);
            }
            (void)api->cuMemUnmap(at + 2 * CHUNK, CHUNK);
            (void)api->cuMemRelease(imported);
        }
        assert_true(rig_real() || r == CUDA_SUCCESS);
        (void)(fd >= 0 && close(fd));
    }
    CUresult reading = chunk_map(d, at + 3 * CHUNK, h, CU_MEM_ACCESS_FLAGS_PROT_READ);
    said("device memory without the right to write", reading);
    if (reading == CUDA_SUCCESS && rig_real()) {
        said("reading there", api->cuMemcpyDtoHAsync(pinned + 2, at + 3 * CHUNK, 4, d->own_stream));
        r = api->cuMemcpyHtoDAsync(at + 3 * CHUNK, pinned, 4, d->own_stream);
        r = r == CUDA_SUCCESS ? api->cuStreamSynchronize(d->own_stream) : r;
        said("writing there by a copy, which should be refused", r);
    }
    (void)api->cuMemUnmap(at + 3 * CHUNK, CHUNK); // whatever it says now: the context may be lost
    (void)api->cuMemUnmap(at, CHUNK);
    (void)api->cuMemUnmap(at + CHUNK, CHUNK);
    (void)api->cuMemRelease(h);
    (void)api->cuMemAddressFree(at, 4 * CHUNK);
    hth_device_release_host(base, pinned, MIB);
    hth_device_close(base);
}

// A mapped file of weights, made known to the driver, as a source of copies.
static void test_registration(void **state)
{
    CUresult (*enroll)(void *, size_t, unsigned) = NULL;
    CUresult (*leave)(void *) = NULL;
    *(void **)&enroll = driver_symbol("cuMemHostRegister_v2");
    *(void **)&leave = driver_symbol("cuMemHostUnregister");
    if (enroll == NULL || leave == NULL) {
        print_message("# registration of mapped files: not asked for\n");
        return;
    }
    size_t bytes = 256 * MIB;
    char path[] = "/tmp/hearth-registered.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    (void)unlink(path);
    static const struct {
        const char *name;
        int prot, flags;
        unsigned how;
    } ways[] = {
        {"registering a private mapping of a file, for reading", PROT_READ, MAP_PRIVATE,
         CU_MEMHOSTREGISTER_READ_ONLY},
        {"registering a shared mapping of a file, for reading", PROT_READ, MAP_SHARED,
         CU_MEMHOSTREGISTER_READ_ONLY},
        {"registering a shared mapping of a file, writable", PROT_READ | PROT_WRITE, MAP_SHARED, 0},
    };
    hth_device *base = rig_device("cuda:0,mem=1GiB");
    hth_cuda *d = device_of(base);
    hth_stream *s;
    void *far;
    assert_int_equal(hth_stream_open(base, HTH_STREAM_H2D, &s), HTH_OK);
    assert_int_equal(hth_device_reserve(base, bytes, &far), HTH_OK);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char *p = mmap(NULL, bytes, ways[i].prot, ways[i].flags | MAP_POPULATE, fd, 0);
        assert_true(p != MAP_FAILED);
        uint64_t from = hth_now_ns();
        CUresult r = enroll(p, bytes, ways[i].how);
        uint64_t ns = hth_now_ns() - from;
        said(ways[i].name, r);
        if (r == CUDA_SUCCESS) {
            rig_result("registering 256 MiB takes", (double)ns / 1e6, "ms");
            from = hth_now_ns();
            assert_int_equal(d->api->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)far, p, bytes,
                                                       hth_cuda_stream_of(s)),
                             0);
            assert_int_equal(hth_stream_sync(s), HTH_OK);
            rig_result("host to device, a registered mapping",
                       (double)bytes / (double)(hth_now_ns() - from), "GB/s");
            (void)leave(p);
        }
        munmap(p, bytes);
    }
    close(fd);
    hth_device_release(base, far, bytes);
    hth_stream_close(s);
    hth_device_close(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFORMANCE_TESTS,
        cmocka_unit_test(test_captures),
        cmocka_unit_test(test_device_json),
        cmocka_unit_test(test_launches),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_registration),
        cmocka_unit_test(test_chunks),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
