// SPDX-License-Identifier: Apache-2.0
#define CONFORMANCE_SPEC "fake:mem=1MiB,seed=7"
#include "tests/rig/device_conformance.h"

#include "base/clock.h"
#include "device/fake/fake.h"

#include <stdio.h>

static void test_faults(void **state)
{
    conformance *c = *state;
    hth_fake_control *f = hth_fake_control_of(c->device);
    void *p;
    hth_device_release(c->device, c->arena, CONFORMANCE_BUDGET);
    f->fail_reserve = 2;
    assert_int_equal(hth_device_reserve(c->device, 64, &p), HTH_OK);
    hth_device_release(c->device, p, 64);
    assert_int_equal(hth_device_reserve(c->device, 64, &p), HTH_ENODEVMEM);
    assert_int_equal(hth_device_reserve(c->device, CONFORMANCE_BUDGET, (void **)&c->arena), HTH_OK);
    f->fail_copy = f->fail_launch = 1;
    assert_int_equal(hth_stream_copy(c->h2d, c->arena, c->host_in, 4), HTH_EDEVLOST);
    assert_int_equal(hth_stream_launch(c->compute, conformance_triple, c), HTH_EDEVLOST);
    f->fail_copy_run = f->fail_launch_run = 1;
    assert_int_equal(hth_stream_copy(c->h2d, c->arena, c->host_in, 4), HTH_OK);
    assert_int_equal(hth_stream_launch(c->compute, conformance_triple, c), HTH_OK);
    assert_int_equal(hth_stream_sync(c->h2d), HTH_EDEVLOST);
    assert_int_equal(hth_stream_sync(c->compute), HTH_EDEVLOST);
    assert_int_equal(c->calls, 0);
}

// Without an event edge the order is open: over some seeds both orders are seen, and the same seed
// repeats itself.
static void test_order_is_random_and_repeatable(void **state)
{
    int seen[2] = {0};
    for (int seed = 0; seed < 40; seed++) {
        uint32_t first = 0;
        for (int again = 0; again < 2; again++) {
            char spec[40];
            snprintf(spec, sizeof spec, "fake:mem=4KiB,seed=%d", seed);
            hth_device *d;
            hth_stream *a, *b;
            uint32_t one = 1, two = 2, target = 0;
            assert_int_equal(hth_device_open(spec, &d), HTH_OK);
            assert_int_equal(hth_stream_open(d, HTH_STREAM_H2D, &a), HTH_OK);
            assert_int_equal(hth_stream_open(d, HTH_STREAM_D2H, &b), HTH_OK);
            assert_int_equal(hth_stream_copy(a, &target, &one, 4), HTH_OK);
            assert_int_equal(hth_stream_copy(b, &target, &two, 4), HTH_OK);
            assert_int_equal(hth_stream_sync(a), HTH_OK);
            assert_int_equal(hth_stream_sync(b), HTH_OK);
            assert_true(again == 0 || target == first);
            first = target;
            hth_stream_close(a);
            hth_stream_close(b);
            hth_device_close(d);
        }
        seen[first - 1]++;
    }
    assert_true(seen[0] > 5 && seen[1] > 5);
}

static void test_clock(void **state)
{
    conformance *c = *state;
    hth_fake_control *f = hth_fake_control_of(c->device);
    *f = (hth_fake_control){.now_ns = 100, .copy_ns = 10, .copy_ns_per_kib = 1};
    hth_clock_inject(hth_fake_clock, f);
    assert_int_equal(hth_stream_copy(c->h2d, c->arena, c->host_in, sizeof c->host_in), HTH_OK);
    assert_int_equal(hth_stream_record(c->h2d, c->up), HTH_OK);
    assert_int_equal(hth_event_sync(c->up), HTH_OK);
    hth_clock_inject(NULL, NULL);
    assert_int_equal(hth_event_time_ns(c->up), 100 + 10 + sizeof c->host_in / 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFORMANCE_TESTS,
        CONFORMANCE_TEST(test_faults),
        CONFORMANCE_TEST(test_clock),
        cmocka_unit_test(test_order_is_random_and_repeatable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
