// SPDX-License-Identifier: Apache-2.0
// The CUDA device over the fake driver: what every device must do, with chunks and with plain
// allocations, in several orders; then what is CUDA's own: pinned memory, the ring, event edges,
// lost devices, times. GPU work here is a function that the fake driver runs in its stream's order.
#include "base/err.h"
struct conformance;
static hth_err cuda_kernel(struct conformance *c);
#define CONFORMANCE_SPEC      "cuda:0,mem=1MiB"
#define CONFORMANCE_KERNEL(c) cuda_kernel(c)
#include "tests/rig/device_conformance.h"

#include "base/clock.h"
#include "device/cuda/cuda.h"
#include "device/cuda/fake/fake.h"

#include <stdio.h>

#define MIB ((size_t)1 << 20)

static hth_cuda_fake *driver;

static hth_err cuda_issue(hth_stream *stream, hth_cuda_fake_kernel *kernel, void *arg)
{
    CUfunction f;
    void *params[] = {&arg};
    memcpy(&f, &kernel, sizeof f);
    return HTH_CUDA((hth_cuda *)stream->device, cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0,
                    hth_cuda_stream_of(stream), params, NULL);
}

static hth_err cuda_kernel(struct conformance *c)
{
    return cuda_issue(c->compute, conformance_kernel, c);
}

// A driver afresh; what the last one made was given back.
static void fresh(uint64_t seed)
{
    if (driver != NULL) {
        assert_int_equal(driver->live, 0);
        assert_int_equal(driver->used_bytes, 0);
        hth_cuda_fake_close();
    }
    driver = hth_cuda_fake_open(seed);
    assert_non_null(driver);
    hth_plugin_use(hth_cuda_fake_plugin());
}

static void use_chunks(void **state)
{
    fresh(3);
}

static void use_plain(void **state)
{
    fresh(4);
    driver->no_vmm = true;
}

static void use_another_order(void **state)
{
    fresh(5);
}

static void test_properties(void **state)
{
    hth_device *d;
    assert_int_equal(hth_device_open("cuda:0,mem=75%", &d), HTH_OK);
    assert_string_equal(d->props.name, "cuda:0");
    assert_string_equal(d->props.description, "fake CUDA device, 2 SMs, compute capability 1.1");
    assert_non_null(strstr(d->props.fingerprint, "cuDNN 9."));
    assert_int_equal(d->props.total_bytes, 256 * MIB);
    assert_string_equal(d->props.uuid, "GPU-00f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
    uint64_t total, rest;
    void *some;
    assert_int_equal(hth_device_reserve(d, 64 * MIB, &some), HTH_OK);
    assert_int_equal(hth_device_memory(d, &total, &rest), HTH_OK);
    assert_int_equal(total, 256 * MIB);
    assert_int_equal(total - rest, driver->used_bytes);
    assert_true(driver->used_bytes >= 64 * MIB);
    hth_device_release(d, some, 64 * MIB);
    assert_int_equal(d->props.budget_bytes, 192 * MIB);
    assert_false(d->props.host_visible || d->props.inline_compute || d->props.inline_copies);
    hth_device_close(d);
}

static void assert_refused(const char *spec, hth_err want, const char *words)
{
    hth_device *d = (hth_device *)&d;
    assert_int_equal(hth_device_open(spec, &d), want);
    assert_null(d);
    if (strstr(hth_err_detail(), words) == NULL) {
        fail_msg("'%s': no '%s' in '%s'", spec, words, hth_err_detail());
    }
}

static void test_refusals(void **state)
{
    fresh(1);
    assert_refused("cuda:1", HTH_ENOTSUP, "device cuda:1: there is 1 CUDA device, number 0");
    assert_refused("cuda:0,mem=1GiB", HTH_EINVAL, "machine's 256.0 MiB");
    assert_refused("cuda:0,threads=2", HTH_EINVAL, "no option 'threads'");
    assert_refused("cuda:0,graphs=no", HTH_EINVAL, "expected on or off");
    fresh(1);
    driver->n_devices = 0;
    assert_refused("cuda:0", HTH_ENOTSUP,
                   "no CUDA device: NVIDIA's driver: cuInit answered "
                   "CUDA_ERROR_NO_DEVICE");
    uint64_t calls = driver->calls;
    assert_refused("cuda:0", HTH_ENOTSUP, "no CUDA device"); // asked once
    assert_int_equal(driver->calls, calls);
    fresh(1);
}

// Upload, kernel, download through pinned memory; `edge` 0: all events, 1, 2: one wait is missing.
// Returns how many results were wrong.
static int pipeline(uint64_t seed, int edge)
{
    fresh(seed);
    void *state;
    uint32_t *host;
    int wrong = 0;
    conformance_setup(&state);
    conformance *c = state;
    size_t bytes = CONFORMANCE_WORDS * sizeof *host;
    assert_int_equal(hth_device_reserve_host(c->device, 2 * bytes, (void **)&host), HTH_OK);
    for (uint32_t i = 0; i < CONFORMANCE_WORDS; i++) {
        host[i] = i + 1;
    }
    assert_int_equal(hth_stream_copy(c->h2d, c->arena, host, bytes), HTH_OK);
    assert_int_equal(hth_stream_record(c->h2d, c->up), HTH_OK);
    assert_int_equal(edge == 1 ? HTH_OK : hth_stream_wait(c->compute, c->up), HTH_OK);
    assert_int_equal(hth_stream_launch(c->compute, conformance_triple, c), HTH_OK);
    assert_int_equal(hth_stream_record(c->compute, c->computed), HTH_OK);
    assert_int_equal(edge == 2 ? HTH_OK : hth_stream_wait(c->d2h, c->computed), HTH_OK);
    assert_int_equal(
        hth_stream_copy(c->d2h, host + CONFORMANCE_WORDS, c->arena + CONFORMANCE_WORDS, bytes),
        HTH_OK);
    assert_int_equal(hth_stream_sync(c->d2h), HTH_OK);
    for (uint32_t i = 0; i < CONFORMANCE_WORDS; i++) {
        wrong += host[CONFORMANCE_WORDS + i] != 3 * (i + 1);
    }
    assert_int_equal(hth_stream_sync(c->h2d), HTH_OK); // what no wait tied to the download
    assert_int_equal(hth_stream_sync(c->compute), HTH_OK);
    hth_device_release_host(c->device, host, 2 * bytes);
    conformance_teardown(&state);
    return wrong;
}

// A missing wait shows within a few orders; a complete program is right in all of them.
static void test_missing_edges_show(void **state)
{
    int shown[3] = {0};
    for (uint64_t seed = 0; seed < 40; seed++) {
        for (int edge = 0; edge < 3; edge++) {
            shown[edge] += pipeline(seed, edge) > 0;
        }
    }
    assert_int_equal(shown[0], 0);
    assert_true(shown[1] > 5 && shown[2] > 5);
}

// More than the ring holds, from memory that changes as soon as the copy returns.
static void test_ring(void **state)
{
    size_t bytes = HTH_CUDA_SLOTS * HTH_CUDA_SLOT_BYTES + 5 * MIB + 12;
    fresh(2);
    hth_device *d;
    hth_stream *up;
    void *base;
    uint32_t *from = hth_alloc(bytes);
    assert_non_null(from);
    assert_int_equal(hth_device_open("cuda:0", &d), HTH_OK);
    assert_int_equal(hth_stream_open(d, HTH_STREAM_H2D, &up), HTH_OK);
    assert_int_equal(hth_device_reserve(d, bytes, &base), HTH_OK);
    for (size_t i = 0; i < bytes / 4; i++) {
        from[i] = (uint32_t)(i * 2654435761u);
    }
    int64_t live = driver->live;
    assert_int_equal(hth_stream_copy(up, base, from, bytes), HTH_OK);
    assert_int_equal(driver->live, live + 2 * HTH_CUDA_SLOTS); // slots and their events
    memset(from, 0, bytes);
    assert_int_equal(hth_stream_copy(up, from, base, bytes), HTH_OK); // the same stream: in order
    assert_int_equal(hth_stream_sync(up), HTH_OK);
    for (size_t i = 0; i < bytes / 4; i++) {
        assert_int_equal(from[i], (uint32_t)(i * 2654435761u));
    }
    assert_int_equal(hth_stream_copy(up, from, from + 1, 4), HTH_EINVAL);
    hth_device_release(d, base, bytes);
    hth_stream_close(up);
    hth_device_close(d);
    hth_free(from);
    fresh(2);
}

static hth_err bad_access(void *arg)
{
    return hth_fail(HTH_EINVAL, "a kernel wrote where nothing is");
}

static hth_err launch_bad(void *arg)
{
    return cuda_issue(arg, bad_access, NULL);
}

// A kernel's bad access ends the context: everything says so from then on, with one sentence, and
// closing gives all back.
static void test_lost(void **state)
{
    fresh(6);
    void *st, *p;
    conformance_setup(&st);
    conformance *c = st;
    hth_stream *s;
    assert_int_equal(hth_stream_launch(c->compute, launch_bad, c->compute), HTH_OK);
    assert_int_equal(hth_stream_sync(c->compute), HTH_EDEVLOST);
    assert_string_equal(hth_err_detail(),
                        "cuda:0: cuStreamSynchronize answered "
                        "CUDA_ERROR_ILLEGAL_ADDRESS (CUDA_ERROR_ILLEGAL_ADDRESS)");
    char first[200];
    snprintf(first, sizeof first, "%s", hth_err_detail());
    assert_int_equal(hth_stream_copy(c->h2d, c->arena, c->host_in, 4), HTH_EDEVLOST);
    assert_int_equal(hth_stream_record(c->h2d, c->up), HTH_EDEVLOST);
    assert_int_equal(hth_stream_open(c->device, HTH_STREAM_D2H, &s), HTH_EDEVLOST);
    assert_int_equal(hth_device_reserve_host(c->device, 4096, &p), HTH_EDEVLOST);
    hth_device_release(c->device, c->arena, CONFORMANCE_BUDGET);
    c->arena = NULL;
    assert_int_equal(hth_device_reserve(c->device, 4096, &p), HTH_EDEVLOST);
    assert_string_equal(hth_err_detail(), first);
    assert_int_equal(hth_event_time_ns(c->up), 0);
    conformance_teardown(&st);
    fresh(6);
}

static uint64_t test_clock(void *ctx)
{
    return *(uint64_t *)ctx;
}

// Times are on the host's clock, also an hour after the device was opened.
static void test_times(void **state)
{
    uint64_t now = 1000000000, hour = 3600000000000u;
    hth_clock_inject(test_clock, &now);
    fresh(7);
    void *st;
    conformance_setup(&st);
    conformance *c = st;
    for (int i = 0; i < 3; i++) {
        now += i == 1 ? hour : 1234567;
        assert_int_equal(hth_stream_record(c->h2d, c->up), HTH_OK);
        assert_int_equal(hth_event_sync(c->up), HTH_OK);
        uint64_t t = hth_event_time_ns(c->up), exact = i == 1 ? 1000000000 : 1000;
        assert_in_range(t, now - exact, now + exact);
    }
    conformance_teardown(&st);
    hth_clock_inject(NULL, NULL);
    fresh(7);
}

// Opens, reserves, copies and computes; the first failure ends it. Everything is closed.
static hth_err scenario(uint32_t *pageable, size_t bytes)
{
    hth_device *d = NULL;
    hth_stream *s = NULL;
    hth_event *e = NULL;
    void *base = NULL, *more = NULL, *host = NULL;
    hth_err err;
    HTH_GOTO(hth_device_open("cuda:0,mem=100MiB", &d), out);
    HTH_GOTO(hth_stream_open(d, HTH_STREAM_H2D, &s), out);
    HTH_GOTO(hth_event_open(d, &e), out);
    HTH_GOTO(hth_device_reserve(d, 20 * MIB, &base), out);
    HTH_GOTO(hth_device_reserve(d, 3 * MIB, &more), out);
    HTH_GOTO(hth_device_reserve_host(d, MIB, &host), out);
    HTH_GOTO(hth_stream_copy(s, base, pageable, bytes), out);
    HTH_GOTO(hth_stream_copy(s, more, base, MIB), out);
    HTH_GOTO(hth_stream_copy(s, host, more, MIB), out);
    HTH_GOTO(hth_stream_record(s, e), out);
    HTH_GOTO(hth_stream_wait(s, e), out);
    HTH_GOTO(hth_event_sync(e), out);
    HTH_GOTO(hth_stream_sync(s), out);
    err = ((uint32_t *)host)[MIB / 4 - 1] == pageable[MIB / 4 - 1] ? HTH_OK : HTH_ECORRUPT;
out:
    hth_device_release_host(d, host, MIB);
    hth_device_release(d, more, 3 * MIB);
    hth_device_release(d, base, 20 * MIB);
    hth_event_close(e);
    hth_stream_close(s);
    hth_device_close(d);
    return err;
}

// Whichever call of the driver fails, once or for good: the error has the right code and nothing
// stays behind.
static void fault_loop(bool plain, CUresult with, bool sticky)
{
    size_t bytes = 17 * MIB;
    uint32_t *pageable = hth_calloc(bytes, 1);
    assert_non_null(pageable);
    pageable[MIB / 4 - 1] = 77;
    int failures = 0;
    for (uint64_t nth = 1;; nth++) {
        fresh(nth);
        driver->no_vmm = plain;
        int64_t live = hth_alloc_live();
        uint64_t calls = driver->calls;
        driver->fail_nth = nth;
        driver->fail_with = with;
        driver->sticky = sticky;
        hth_err err = scenario(pageable, bytes);
        assert_int_equal(hth_alloc_live(), live);
        assert_int_equal(driver->live, 0);
        assert_int_equal(driver->used_bytes, 0);
        if (driver->calls - calls < nth) {
            assert_int_equal(err, HTH_OK);
            break;
        }
        failures += err != HTH_OK;
        assert_true(err == HTH_OK || err == HTH_ENOTSUP || // cuInit: no device
                    (sticky ? err == HTH_EDEVLOST || err == HTH_EIO
                            : err == HTH_ENOMEM || err == HTH_ENODEVMEM));
    }
    assert_true(failures > 25); // the calls before the first that only gives back
    hth_free(pageable);
    fresh(1);
}

static void test_faults(void **state)
{
    fault_loop(false, CUDA_ERROR_OUT_OF_MEMORY, false);
    fault_loop(true, CUDA_ERROR_OUT_OF_MEMORY, false);
    fault_loop(false, CUDA_ERROR_ILLEGAL_ADDRESS, true);
}

typedef struct other_device {
    hth_device *d;
    hth_stream *s;
    hth_event *e;
    void *arena, *pinned;
} other_device;

static void other_open(other_device *device, const char *spec)
{
    assert_int_equal(hth_device_open(spec, &device->d), HTH_OK);
    assert_int_equal(hth_stream_open(device->d, HTH_STREAM_COMPUTE, &device->s), HTH_OK);
    assert_int_equal(hth_event_open(device->d, &device->e), HTH_OK);
    assert_int_equal(hth_device_reserve(device->d, MIB, &device->arena), HTH_OK);
    assert_int_equal(hth_device_reserve_host(device->d, MIB, &device->pinned), HTH_OK);
}

static void other_close(other_device *device)
{
    hth_event_close(device->e);
    hth_stream_close(device->s);
    hth_device_release(device->d, device->arena, MIB);
    hth_device_release_host(device->d, device->pinned, MIB);
    hth_device_close(device->d);
}

static hth_err other_work(hth_stream *stream, other_device *device)
{
    HTH_TRY(hth_stream_copy(stream, device->arena, device->pinned, 64));
    return stream->device->ops->zero(stream, device->arena, 64);
}

// Everything that is issued to a device, one call of it, after what made another device's context
// this thread's or took it away.
static hth_err other_call(other_device *device, int call)
{
    uint64_t total, rest;
    hth_capture *c = NULL;
    switch (call) {
    case 0:
        return hth_stream_copy(device->s, device->arena, device->pinned, 64);
    case 1:
        return hth_stream_copy(device->s, device->pinned, device->arena, 64);
    case 2:
        return device->d->ops->zero(device->s, device->arena, 64);
    case 3:
        return hth_stream_record(device->s, device->e);
    case 4:
        return hth_stream_wait(device->s, device->e);
    case 5:
        return hth_event_sync(device->e);
    case 6:
        return hth_event_time_ns(device->e) > 0 ? HTH_OK : HTH_EIO;
    case 7:
        return hth_stream_sync(device->s);
    case 8:
        return hth_device_memory(device->d, &total, &rest);
    default:
        HTH_TRY(hth_capture_begin(device->s));
        HTH_TRY(other_work(device->s, device));
        HTH_TRY(hth_capture_end(device->s, &c));
        HTH_TRY(hth_capture_launch(c, device->s));
        hth_capture_close(c);
        return hth_stream_sync(device->s);
    }
}

// A thread may have several devices, and closing one leaves no context current.
static void test_contexts(void **state)
{
    for (int how = 0; how < 2; how++) {
        other_device a, b;
        fresh(1);
        driver->n_devices = 2;
        other_open(&a, "cuda:0,mem=4MiB");
        assert_int_equal(hth_stream_record(a.s, a.e), HTH_OK);
        for (int call = 0; call < 10; call++) {
            other_open(&b, "cuda:1,mem=4MiB");
            if (how == 1) {
                other_close(&b);
            }
            if (other_call(&a, call) != HTH_OK) {
                fail_msg("call %d: %s", call, hth_err_detail());
            }
            if (how == 0) {
                assert_int_equal(other_call(&b, 0), HTH_OK);
                assert_int_equal(other_call(&a, 8), HTH_OK); // a's context again
                other_close(&b);
            }
        }
        assert_int_equal(hth_device_open("cuda:1,mem=4MiB", &b.d), HTH_OK);
        hth_device_close(b.d);
        other_close(&a);
    }
    fresh(1);
}

static int group_end(void **state)
{
    hth_plugin_use(NULL);
    hth_cuda_fake_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(use_chunks),
        CONFORMANCE_TESTS,
        cmocka_unit_test(use_plain),
        CONFORMANCE_TESTS,
        cmocka_unit_test(use_another_order),
        CONFORMANCE_TESTS,
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_missing_edges_show),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_contexts),
    };
    return cmocka_run_group_tests(tests, NULL, group_end);
}
