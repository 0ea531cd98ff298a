// SPDX-License-Identifier: Apache-2.0
// The chunk pool over the fake driver, and that the fake driver's memory behaves as memory.
#include "base/test.h"

#include "base/alloc.h"
#include "device/cuda/cuda.h"
#include "device/cuda/fake/fake.h"

#include <sys/uio.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static hth_cuda_fake *driver;
static hth_device *dev;

static void fresh(const char *spec)
{
    driver = hth_cuda_fake_open(1);
    assert_non_null(driver);
    hth_plugin_use(hth_cuda_fake_plugin());
    assert_ok(hth_device_open(spec, &dev));
}

static void finish(void)
{
    hth_device_close(dev);
    assert_int_equal(driver->live, 0);
    assert_int_equal(driver->used_bytes, 0);
    hth_plugin_use(NULL);
    hth_cuda_fake_close();
}

// 84 MiB are 64 + 16 + 2 + 2; what was given back is mapped again instead of made.
static void test_chunks_are_kept(void **state)
{
    void *a, *b;
    fresh("cuda:0,mem=128MiB");
    assert_ok(hth_device_reserve(dev, 83 * MIB, &a));
    assert_int_equal(driver->creates, 4);
    assert_int_equal(driver->used_bytes, 84 * MIB);
    memset(a, 1, 83 * MIB);
    hth_device_release(dev, a, 83 * MIB);
    assert_int_equal(driver->used_bytes, 84 * MIB);
    assert_ok(hth_device_reserve(dev, 64 * MIB, &a));
    assert_ok(hth_device_reserve(dev, 18 * MIB, &b));
    assert_int_equal(driver->creates, 4);
    assert_int_equal(((char *)b)[17 * MIB], 1); // old pages
    hth_device_release(dev, a, 64 * MIB);
    hth_device_release(dev, b, 18 * MIB);
    finish();
}

// Free chunks never keep what is held above the budget: sizes that alternate replace each other.
static void test_budget_bounds_what_is_held(void **state)
{
    fresh("cuda:0,mem=70MiB");
    for (int round = 0; round < 6; round++) {
        void *p[35];
        static const size_t mib[] = {70, 2, 14};
        size_t bytes = mib[round % 3] * MIB;
        int n = (int)(70 * MIB / bytes);
        for (int i = 0; i < n; i++) {
            assert_ok(hth_device_reserve(dev, bytes, &p[i]));
        }
        for (int i = 0; i < n; i++) {
            hth_device_release(dev, p[i], bytes);
        }
    }
    assert_int_equal(driver->peak_bytes, 70 * MIB);
    finish();
}

// When others hold the device's memory, free chunks are given back before the answer is "not now",
// and a half-made range leaves nothing.
static void test_shared_device(void **state)
{
    void *a, *b = NULL;
    fresh("cuda:0,mem=128MiB");
    driver->used_bytes += 180 * MIB; // of 256: somebody else's
    assert_ok(hth_device_reserve(dev, 64 * MIB, &a));
    hth_device_release(dev, a, 64 * MIB);
    assert_ok(hth_device_reserve(dev, 48 * MIB, &a)); // the 64 MiB chunk had to go
    hth_device_release(dev, a, 48 * MIB);
    int64_t live = hth_alloc_live();
    assert_err(hth_device_reserve(dev, 80 * MIB, &b), HTH_ENODEVMEM, "cuMemCreate answered");
    assert_null(b);
    assert_true(hth_alloc_live() <= live);
    assert_ok(hth_device_reserve(dev, 76 * MIB, &a));
    hth_device_release(dev, a, 76 * MIB);
    driver->used_bytes -= 180 * MIB;
    finish();
}

static bool readable(CUdeviceptr at)
{
    char byte;
    struct iovec local = {&byte, 1}, remote = {(void *)(uintptr_t)at, 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

static bool writable(CUdeviceptr at)
{
    char byte = 9;
    struct iovec local = {&byte, 1}, remote = {(void *)(uintptr_t)at, 1};
    return process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == 1;
}

// One handle at two addresses is the same memory, with rights of each address; unmapped is gone.
static void test_the_fake_is_memory(void **state)
{
    fresh("cuda:0");
    const hth_cuda_api *api = hth_cuda_fake_api();
    CUdeviceptr a, b;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc rw = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                    ro = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READ};
    assert_int_equal(api->cuMemAddressReserve(&a, 4 * MIB, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(api->cuMemAddressReserve(&b, 2 * MIB, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(api->cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_SUCCESS);
    assert_false(readable(a));
    assert_int_equal(api->cuMemMap(a + 2 * MIB, 2 * MIB, 0, h, 0), CUDA_SUCCESS);
    assert_int_equal(api->cuMemMap(a + 2 * MIB, 2 * MIB, 0, h, 0), CUDA_ERROR_ALREADY_MAPPED);
    assert_int_equal(api->cuMemMap(b, MIB, MIB, h, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(api->cuMemMap(b, 2 * MIB, 0, h, 0), CUDA_SUCCESS);
    assert_false(readable(b));
    assert_int_equal(api->cuMemSetAccess(a, 4 * MIB, &rw, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(api->cuMemSetAccess(a + 2 * MIB, 2 * MIB, &rw, 1), CUDA_SUCCESS);
    assert_int_equal(api->cuMemSetAccess(b, 2 * MIB, &ro, 1), CUDA_SUCCESS);
    assert_int_equal(((unsigned char *)(uintptr_t)b)[5], 0xCB);
    ((char *)(uintptr_t)(a + 2 * MIB))[5] = 42;
    assert_int_equal(((char *)(uintptr_t)b)[5], 42);
    assert_true(readable(b));
    assert_false(writable(b));
    assert_int_equal(api->cuMemAddressFree(b, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(api->cuMemUnmap(b, MIB), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(api->cuMemRelease(h), CUDA_SUCCESS); // the mappings keep it
    assert_int_equal(driver->used_bytes, 2 * MIB);
    assert_int_equal(api->cuMemUnmap(b, 2 * MIB), CUDA_SUCCESS);
    assert_false(readable(b));
    assert_int_equal(api->cuMemUnmap(a + 2 * MIB, 2 * MIB), CUDA_SUCCESS);
    assert_int_equal(driver->used_bytes, 0);
    assert_int_equal(api->cuMemAddressFree(a, 4 * MIB), CUDA_SUCCESS);
    assert_int_equal(api->cuMemAddressFree(b, 2 * MIB), CUDA_SUCCESS);
    assert_int_equal(api->cuMemCreate(&h, 512 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_are_kept),
        cmocka_unit_test(test_budget_bounds_what_is_held),
        cmocka_unit_test(test_shared_device),
        cmocka_unit_test(test_the_fake_is_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
