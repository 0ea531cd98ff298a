// SPDX-License-Identifier: Apache-2.0
// The link of the CPU device and of the fake one: plausible numbers, remembered; damaged ones are
// measured again; set rates are as they were set; copied is from and to the device's host memory; a
// failed allocation leaves nothing.
#include "convsel/link.h"

#include "base/alloc.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct text_cache {
    char value[2][128]; // measured alone, seen in steps
    char key[HTH_CONVSEL_KEY];
    int puts;
} text_cache;

static char *text_value(text_cache *cache, const char *key)
{
    return cache->value[strncmp(key, "link-in-situ", 12) == 0];
}

static hth_err text_get(void *ctx, const char *key, char *value, size_t cap)
{
    const char *text = text_value(ctx, key);
    snprintf(value, cap, "%s", text);
    return text[0] == '\0' ? HTH_ENOENT : HTH_OK;
}

static hth_err text_put(void *ctx, const char *key, const char *value)
{
    text_cache *c = ctx;
    snprintf(text_value(c, key), sizeof c->value[0], "%s", value);
    snprintf(c->key, sizeof c->key, "%s", key);
    c->puts++;
    return HTH_OK;
}

static void check_device(const char *spec)
{
    hth_device *d;
    hth_link a, b;
    text_cache memory = {.value = {"12 nonsense", "nor this"}};
    const hth_timing_cache cache = {.get = text_get, .put = text_put, .ctx = &memory};
    assert_int_equal(hth_device_open(spec, &d), HTH_OK);
    assert_int_equal(hth_link_measure(d, &cache, &a), HTH_OK);
    assert_int_equal(memory.puts, 1);
    assert_true(a.h2d_bytes_per_s > 1e6 && a.d2h_bytes_per_s > 1e6 && a.latency_us > 0);
    assert_true(d->props.inline_copies ? a.interference == 1
                                       : a.interference >= 0 && a.interference <= 2);
    assert_int_equal(hth_link_measure(d, &cache, &b), HTH_OK);
    assert_int_equal(memory.puts, 1);
    assert_true(b.latency_us > 0.99 * a.latency_us - 0.001);
    hth_device_close(d);
}

// What no device is, and what steps of none took, is as good as nothing.
static void impossible_is_measured_again(void **state)
{
    static const char *const alone[] = {
        "inf 1e9 1 0 1e9 1",  "0.1 1e9 1 0 1e9 1",   "1e9 1e9 inf 0 1e9 1", "1e9 1e9 1 0 inf 1",
        "1e9 1e16 1 0 1e9 1", "1e9 1e9 1 0 1e9 inf", "1e9 1e9 1 0 1e9 -1",  "1e9 1e9 1 0 1e9"};
    static const char *const seen[] = {"inf 1 inf 1",
                                       "0 1 0 1",
                                       "1e9 2147483647 1e9 1",
                                       "1e9 -1 1e9 1",
                                       "1e9 1 1e16 1",
                                       "",
                                       "",
                                       ""};
    hth_device *d;
    hth_link a, b;
    (void)state;
    assert_int_equal(hth_device_open("fake:mem=1MiB,seed=7", &d), HTH_OK);
    assert_int_equal(hth_link_measure(d, NULL, &a), HTH_OK);
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        text_cache memory = {.puts = 0};
        const hth_timing_cache cache = {.get = text_get, .put = text_put, .ctx = &memory};
        snprintf(memory.value[0], sizeof memory.value[0], "%s", alone[i]);
        snprintf(memory.value[1], sizeof memory.value[1], "%s", seen[i]);
        assert_int_equal(hth_link_measure(d, &cache, &b), HTH_OK);
        assert_int_equal(memory.puts, 1);
        assert_true(fabs(log(b.h2d_bytes_per_s / a.h2d_bytes_per_s)) < log(100)); // the fake's
        assert_true(fabs(log(b.d2h_bytes_per_s / a.d2h_bytes_per_s)) < log(100));
        assert_true(b.latency_us < 1e6 && isfinite(b.memory_bytes_per_s));
        assert_true(b.copy_us >= 0 && b.copy_us < 1e6);
    }
    hth_device_close(d);
}

// What somebody else knew is not measured.
static void known_links_are_not_measured(void **state)
{
    const hth_link known = {1e9, 2e9, 3, 0.25, 1.5, 0};
    text_cache memory = {.puts = 0};
    const hth_timing_cache cache = {.get = text_get, .put = text_put, .ctx = &memory};
    hth_device *d;
    hth_link a;
    (void)state;
    assert_int_equal(hth_device_open("cpu:mem=1MiB,threads=1", &d), HTH_OK);
    assert_int_equal(hth_link_keep(d, &cache, &known), HTH_OK);
    assert_int_equal(hth_link_measure(d, &cache, &a), HTH_OK);
    assert_int_equal(memory.puts, 1);
    assert_memory_equal(&a, &known, sizeof a);
    hth_device_close(d);
}

static void links_are_measured_and_remembered(void **state)
{
    (void)state;
    check_device("cpu:mem=64MiB,threads=1"); // copies beside compute, where there are more
    check_device("cpu:mem=64MiB,threads=2");
    check_device("fake:mem=1MiB,seed=7");
}

// A device like the fake one with host memory of its own, as pinned memory is.
static struct {
    const hth_device_ops *ops; // the fake one's
    char *host;
    size_t bytes;
    int copies, elsewhere, live;
} own;

static hth_err own_reserve(hth_device *device, size_t bytes, void **base)
{
    (void)device;
    own.host = *base = hth_alloc_large(bytes);
    own.bytes = bytes;
    own.live++;
    return *base != NULL ? HTH_OK : HTH_ENOMEM;
}

static void own_release(hth_device *device, void *base)
{
    (void)device;
    assert_ptr_equal(base, own.host);
    own.live--;
    hth_free(base);
}

static bool own_holds(const char *p, size_t bytes)
{
    return p >= own.host && p + bytes <= own.host + own.bytes;
}

static hth_err own_copy(hth_stream *stream, void *dst, const void *src, size_t bytes)
{
    own.copies++;
    own.elsewhere += !own_holds(dst, bytes) && !own_holds(src, bytes);
    return own.ops->copy(stream, dst, src, bytes);
}

static void copied_is_what_the_device_gave(void **state)
{
    (void)state;
    hth_device *d;
    hth_link l;
    assert_int_equal(hth_device_open("fake:mem=1MiB,seed=7", &d), HTH_OK);
    own.ops = d->ops;
    hth_device_ops ops = *d->ops;
    ops.reserve_host = own_reserve;
    ops.release_host = own_release;
    ops.copy = own_copy;
    d->ops = &ops;
    assert_int_equal(hth_link_measure(d, NULL, &l), HTH_OK);
    assert_true(own.copies > 0);
    assert_int_equal(own.elsewhere, 0);
    assert_int_equal(own.live, 0);
    d->ops = own.ops;
    hth_device_close(d);
}

static void fail_allocations(const char *spec)
{
    hth_device *d;
    hth_link l;
    assert_int_equal(hth_device_open(spec, &d), HTH_OK);
    int64_t live = hth_alloc_live();
    hth_err err = HTH_ENOMEM;
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        hth_fault_alloc(nth);
        err = hth_link_measure(d, NULL, &l);
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        assert_int_equal(hth_alloc_live(), live);
    }
    hth_device_close(d);
}

static void failed_allocations_leave_nothing(void **state)
{
    (void)state;
    fail_allocations("cpu:mem=64MiB,threads=2");
    fail_allocations("cpu:mem=64MiB,threads=1,link=20GB/s");
}

// Whatever copies are seen to take. Other traffic has the memory's rate. Kept apart from what the
// device has without it.
static void set_rates_stay(void **state)
{
    (void)state;
    hth_device *d;
    hth_link a, b;
    text_cache memory = {.puts = 0};
    const hth_timing_cache cache = {.get = text_get, .put = text_put, .ctx = &memory};
    assert_int_equal(hth_device_open("cpu:mem=64MiB,threads=1,h2d=40MB/s,d2h=20MB/s", &d), HTH_OK);
    assert_int_equal(hth_link_measure(d, &cache, &a), HTH_OK);
    assert_true(a.h2d_bytes_per_s == 40e6 && a.d2h_bytes_per_s == 20e6);
    assert_true(a.latency_us == d->props.link_latency_us && a.latency_us > 0);
    assert_true(a.interference >= 0 && a.interference <= 2);
    assert_true(a.copy_us > 0 && a.copy_us < 1e4);
    assert_true(a.memory_bytes_per_s > 2 * a.h2d_bytes_per_s);
    assert_non_null(strstr(memory.key, "set 40000000 20000000 "));
    assert_int_equal(hth_link_learn(d, &cache, 1e6, 1e6, &a), HTH_OK);
    assert_true(a.h2d_bytes_per_s == 40e6 && a.d2h_bytes_per_s == 20e6);
    assert_int_equal(memory.puts, 1);
    assert_int_equal(hth_link_measure(d, &cache, &b), HTH_OK);
    assert_int_equal(memory.puts, 1);
    assert_true(b.h2d_bytes_per_s == 40e6 && b.d2h_bytes_per_s == 20e6);
    assert_true(fabs(b.memory_bytes_per_s / a.memory_bytes_per_s - 1) < 1e-3);
    hth_device_close(d);
    assert_int_equal(hth_device_open("cpu:mem=64MiB,threads=1,link=100000GB/s", &d), HTH_OK);
    assert_int_equal(hth_link_measure(d, NULL, &a), HTH_OK); // what memory gives
    assert_true(a.h2d_bytes_per_s > 1e7 && a.h2d_bytes_per_s < 1e13);
    assert_true(a.d2h_bytes_per_s > 1e7 && a.d2h_bytes_per_s < 1e13);
    hth_device_close(d);
}

// Speeds of steps count instead, one way at a time, and move in bounded steps.
static void steps_correct_the_link(void **state)
{
    (void)state;
    hth_device *d;
    hth_link a, b, c;
    text_cache memory = {.puts = 0};
    const hth_timing_cache cache = {.get = text_get, .put = text_put, .ctx = &memory};
    assert_int_equal(hth_device_open("fake:mem=1MiB,seed=7", &d), HTH_OK);
    assert_int_equal(hth_link_measure(d, &cache, &a), HTH_OK);
    b = a;
    assert_int_equal(hth_link_learn(d, &cache, a.h2d_bytes_per_s * 0.8, 0, &b), HTH_OK);
    assert_true(fabs(b.h2d_bytes_per_s / a.h2d_bytes_per_s - 0.8) < 1e-3);
    assert_true(b.d2h_bytes_per_s == a.d2h_bytes_per_s);
    assert_int_equal(hth_link_measure(d, &cache, &c), HTH_OK);
    assert_true(fabs(c.h2d_bytes_per_s / b.h2d_bytes_per_s - 1) < 1e-3);
    assert_true(fabs(c.d2h_bytes_per_s / a.d2h_bytes_per_s - 1) < 1e-3);
    assert_true(fabs(c.latency_us - a.latency_us) < 1e-3);
    for (int i = 0; i < 60; i++) { // what is far off gets there in bounded steps
        double before = b.d2h_bytes_per_s;
        assert_int_equal(hth_link_learn(d, &cache, 0, a.d2h_bytes_per_s * 3, &b), HTH_OK);
        assert_true(b.d2h_bytes_per_s / before < 1.51);
    }
    assert_true(fabs(b.d2h_bytes_per_s / a.d2h_bytes_per_s / 3 - 1) < 0.01);
    assert_true(fabs(b.h2d_bytes_per_s / a.h2d_bytes_per_s - 0.8) < 1e-3);
    hth_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_links_are_not_measured),
        cmocka_unit_test(links_are_measured_and_remembered),
        cmocka_unit_test(impossible_is_measured_again),
        cmocka_unit_test(copied_is_what_the_device_gave),
        cmocka_unit_test(set_rates_stay),
        cmocka_unit_test(steps_correct_the_link),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
