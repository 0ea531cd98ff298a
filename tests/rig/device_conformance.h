// SPDX-License-Identifier: Apache-2.0
// tests/rig/device_conformance.h - what every device must do, as cmocka tests. A device's test file
// defines CONFORMANCE_SPEC (a specification with a budget of 1 MiB; the fake device's otherwise)
// and lists CONFORMANCE_TESTS among its own. Where a launch issues kernels instead of computing,
// it also defines CONFORMANCE_KERNEL(c), which issues conformance_kernel(c) to c->compute.
#ifndef HTH_TESTS_RIG_DEVICE_CONFORMANCE_H
#define HTH_TESTS_RIG_DEVICE_CONFORMANCE_H

#include "base/alloc.h"
#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#ifndef CONFORMANCE_SPEC
#define CONFORMANCE_SPEC "fake:mem=1MiB"
#endif
#define CONFORMANCE_BUDGET ((size_t)1 << 20)
#define CONFORMANCE_WORDS  256
#ifndef CONFORMANCE_KERNEL
#define CONFORMANCE_KERNEL(c) conformance_kernel(c)
#endif

typedef struct conformance {
    hth_device *device;
    hth_stream *compute, *h2d, *d2h;
    hth_event *up, *computed;
    uint32_t *arena; // CONFORMANCE_BUDGET bytes
    uint32_t host_in[CONFORMANCE_WORDS], host_out[CONFORMANCE_WORDS];
    int calls;
} conformance;

// Device memory is reached by copies: not every device's is visible here.
static void conformance_write(conformance *c, void *dst, const void *src, size_t bytes)
{
    assert_int_equal(hth_stream_copy(c->h2d, dst, src, bytes), HTH_OK);
    assert_int_equal(hth_stream_sync(c->h2d), HTH_OK);
}

static uint32_t conformance_read(conformance *c, const void *src)
{
    uint32_t word = 0;
    assert_int_equal(hth_stream_copy(c->d2h, &word, src, sizeof word), HTH_OK);
    assert_int_equal(hth_stream_sync(c->d2h), HTH_OK);
    return word;
}

static int conformance_setup(void **state)
{
    conformance *c = hth_calloc(1, sizeof *c);
    assert_non_null(c);
    assert_int_equal(hth_device_open(CONFORMANCE_SPEC, &c->device), HTH_OK);
    assert_int_equal(hth_stream_open(c->device, HTH_STREAM_COMPUTE, &c->compute), HTH_OK);
    assert_int_equal(hth_stream_open(c->device, HTH_STREAM_H2D, &c->h2d), HTH_OK);
    assert_int_equal(hth_stream_open(c->device, HTH_STREAM_D2H, &c->d2h), HTH_OK);
    assert_int_equal(hth_event_open(c->device, &c->up), HTH_OK);
    assert_int_equal(hth_event_open(c->device, &c->computed), HTH_OK);
    assert_int_equal(hth_device_reserve(c->device, CONFORMANCE_BUDGET, (void **)&c->arena), HTH_OK);
    *state = c;
    return 0;
}

static int conformance_teardown(void **state)
{
    conformance *c = *state;
    hth_device_release(c->device, c->arena, CONFORMANCE_BUDGET);
    hth_stream_close(c->compute);
    hth_stream_close(c->h2d);
    hth_stream_close(c->d2h);
    hth_event_close(c->up);
    hth_event_close(c->computed);
    hth_device_close(c->device);
    hth_free(c);
    return 0;
}

static void conformance_properties(void **state)
{
    const hth_device_props *p = &((conformance *)*state)->device->props;
    assert_true(p->name[0] && p->description[0] && p->fingerprint[0]);
    assert_int_equal(p->budget_bytes, CONFORMANCE_BUDGET);
    assert_true(p->total_bytes >= p->budget_bytes && p->n_threads >= 1);
}

// The budget is a limit: all of it can be reserved, not a byte more, and what is released can be
// reserved again.
static void conformance_budget(void **state)
{
    conformance *c = *state;
    void *p = c;
    assert_int_equal((uintptr_t)c->arena % HTH_DEVICE_ALIGN, 0);
    assert_int_equal(hth_device_reserve(c->device, 1, &p), HTH_ENODEVMEM);
    assert_null(p);
    assert_int_equal(hth_device_reserve(c->device, CONFORMANCE_BUDGET + 1, &p), HTH_ETOOBIG);
    assert_int_equal(hth_device_reserve(c->device, 0, &p), HTH_EINVAL);
    hth_device_release(c->device, c->arena, CONFORMANCE_BUDGET);
    void *half[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hth_device_reserve(c->device, CONFORMANCE_BUDGET / 2, &half[i]), HTH_OK);
    }
    char *pattern = hth_alloc(CONFORMANCE_BUDGET / 2);
    assert_non_null(pattern);
    for (int i = 0; i < 2; i++) {
        memset(pattern, i + 1, CONFORMANCE_BUDGET / 2);
        conformance_write(c, half[i], pattern, CONFORMANCE_BUDGET / 2);
    }
    hth_free(pattern);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(conformance_read(c, half[i]), 0x01010101 * (i + 1));
        assert_int_equal(conformance_read(c, (char *)half[i] + CONFORMANCE_BUDGET / 2 - 4),
                         0x01010101 * (i + 1));
    }
    hth_device_release(c->device, half[0], CONFORMANCE_BUDGET / 2);
    hth_device_release(c->device, half[1], CONFORMANCE_BUDGET / 2);
    assert_int_equal(hth_device_reserve(c->device, CONFORMANCE_BUDGET, (void **)&c->arena), HTH_OK);
}

// The kernel: host code, so for devices whose memory is visible to it.
static inline hth_err conformance_kernel(void *arg)
{
    conformance *c = arg;
    for (int i = 0; i < CONFORMANCE_WORDS; i++) {
        c->arena[CONFORMANCE_WORDS + i] = 3 * c->arena[i];
    }
    return HTH_OK;
}

static hth_err conformance_triple(void *arg)
{
    conformance *c = arg;
    c->calls++;
    return CONFORMANCE_KERNEL(c);
}

// Upload, compute, download, two events between three streams, the same buffers again and again:
// any order that loses an edge shows a stale value.
static void conformance_pipeline(void **state)
{
    conformance *c = *state;
    hth_event *down;
    assert_int_equal(hth_event_open(c->device, &down), HTH_OK);
    for (uint32_t round = 1; round <= 50; round++) {
        for (uint32_t i = 0; i < CONFORMANCE_WORDS; i++) {
            c->host_in[i] = round * 1000 + i;
        }
        assert_int_equal(hth_stream_copy(c->h2d, c->arena, c->host_in, sizeof c->host_in), HTH_OK);
        assert_int_equal(hth_stream_record(c->h2d, c->up), HTH_OK);
        assert_int_equal(hth_stream_wait(c->compute, c->up), HTH_OK);
        assert_int_equal(hth_stream_launch(c->compute, conformance_triple, c), HTH_OK);
        assert_int_equal(hth_stream_record(c->compute, c->computed), HTH_OK);
        assert_int_equal(hth_stream_wait(c->d2h, c->computed), HTH_OK);
        assert_int_equal(
            hth_stream_copy(c->d2h, c->host_out, c->arena + CONFORMANCE_WORDS, sizeof c->host_out),
            HTH_OK);
        assert_int_equal(hth_stream_record(c->d2h, down), HTH_OK);
        assert_int_equal(hth_event_sync(down), HTH_OK);
        for (uint32_t i = 0; i < CONFORMANCE_WORDS; i++) {
            assert_int_equal(c->host_out[i], 3 * (round * 1000 + i));
        }
    }
    assert_int_equal(c->calls, 50);
    assert_int_equal(hth_stream_sync(c->d2h), HTH_OK);
    hth_event_close(down);
}

static hth_err conformance_bad(void *arg)
{
    ((conformance *)arg)->calls++;
    return hth_fail(HTH_ENOTSUP, "kernel 7 is out of order");
}

// A failed launch is kept until the sync; what follows it is skipped, events still come; afterwards
// all is well again.
static void conformance_failure(void **state)
{
    conformance *c = *state;
    assert_int_equal(hth_stream_launch(c->compute, conformance_bad, c), HTH_OK);
    assert_int_equal(hth_stream_launch(c->compute, conformance_triple, c), HTH_OK);
    assert_int_equal(hth_stream_record(c->compute, c->computed), HTH_OK);
    assert_int_equal(hth_event_sync(c->computed), HTH_OK);
    assert_int_equal(c->calls, 1);
    hth_fail(HTH_OK, "other");
    assert_int_equal(hth_stream_sync(c->compute), HTH_ENOTSUP);
    assert_string_equal(hth_err_detail(), "kernel 7 is out of order");
    assert_int_equal(hth_stream_sync(c->compute), HTH_OK);
    c->host_in[0] = 4;
    conformance_write(c, c->arena, c->host_in, 4);
    assert_int_equal(hth_stream_launch(c->h2d, conformance_bad, c), HTH_OK);
    c->host_in[0] = 5;
    assert_int_equal(hth_stream_copy(c->h2d, c->arena, c->host_in, 4), HTH_OK);
    assert_int_equal(hth_stream_sync(c->h2d), HTH_ENOTSUP);
    assert_int_equal(conformance_read(c, c->arena), 4);
    conformance_write(c, c->arena, c->host_in, 4);
    assert_int_equal(conformance_read(c, c->arena), 5);
}

// An event is not done before its record, is dated when it is, and a wait for a never recorded one
// does not block.
static void conformance_events(void **state)
{
    conformance *c = *state;
    assert_int_equal(hth_event_time_ns(c->up), 0);
    assert_int_equal(hth_stream_wait(c->compute, c->up), HTH_OK);
    assert_int_equal(hth_stream_sync(c->compute), HTH_OK);
    assert_int_equal(hth_stream_record(c->h2d, c->up), HTH_OK);
    assert_int_equal(hth_stream_copy(c->h2d, c->arena, c->host_in, sizeof c->host_in), HTH_OK);
    assert_int_equal(hth_stream_record(c->h2d, c->computed), HTH_OK);
    assert_int_equal(hth_stream_sync(c->h2d), HTH_OK);
    assert_true(hth_event_time_ns(c->up) > 0);
    assert_true(hth_event_time_ns(c->computed) >= hth_event_time_ns(c->up));
}

// More operations than any queue has room for, on both copy streams, each waiting for the other's
// last.
static void conformance_many(void **state)
{
    conformance *c = *state;
    for (int i = 0; i < 3000; i++) {
        hth_stream *s = i % 2 ? c->h2d : c->d2h;
        hth_event *mine = i % 2 ? c->up : c->computed, *theirs = i % 2 ? c->computed : c->up;
        assert_int_equal(hth_stream_wait(s, theirs), HTH_OK);
        assert_int_equal(hth_stream_copy(s, &c->arena[i % 2 ? 0 : 1], &c->arena[i % 2 ? 1 : 0], 4),
                         HTH_OK);
        assert_int_equal(hth_stream_record(s, mine), HTH_OK);
    }
    assert_int_equal(hth_stream_sync(c->h2d), HTH_OK);
    assert_int_equal(hth_stream_sync(c->d2h), HTH_OK);
}

// Host memory for copies is memory, and taking it has nothing to do with the budget.
static void conformance_host_memory(void **state)
{
    conformance *c = *state;
    size_t bytes = 3 * CONFORMANCE_BUDGET;
    void *p = NULL;
    assert_int_equal(hth_device_reserve_host(c->device, bytes, &p), HTH_OK);
    memset(p, 0x5A, bytes);
    conformance_write(c, c->arena, (char *)p + bytes - CONFORMANCE_BUDGET, CONFORMANCE_BUDGET);
    memset(p, 0, bytes);
    assert_int_equal(hth_stream_copy(c->d2h, p, c->arena, CONFORMANCE_BUDGET), HTH_OK);
    assert_int_equal(hth_stream_sync(c->d2h), HTH_OK);
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(((char *)p)[i], i < CONFORMANCE_BUDGET ? 0x5A : 0);
    }
    hth_device_release_host(c->device, p, bytes);
    hth_device_release_host(c->device, NULL, 0);
}

// .. but with what the machine has beside the device: one sentence says what is left of it.
static void conformance_host_limit(void **state)
{
    conformance *c = *state;
    hth_device *d = c->device;
    uint64_t limit = d->host_limit_bytes;
    void *p, *q;
    assert_true(limit > 0);
    d->host_limit_bytes = d->host_taken_bytes + 2 * CONFORMANCE_BUDGET;
    assert_int_equal(hth_device_reserve_host(d, CONFORMANCE_BUDGET, &p), HTH_OK);
    assert_int_equal(hth_device_reserve_host(d, 2 * CONFORMANCE_BUDGET, &q), HTH_ENOMEM);
    assert_null(q);
    assert_non_null(strstr(hth_err_detail(), "are needed for offloading, but the machine has"));
    hth_device_release_host(d, p, CONFORMANCE_BUDGET);
    assert_int_equal(hth_device_reserve_host(d, 2 * CONFORMANCE_BUDGET, &q), HTH_OK);
    hth_device_release_host(d, q, 2 * CONFORMANCE_BUDGET);
    d->host_limit_bytes = limit;
}

static void conformance_arguments(void **state)
{
    conformance *c = *state;
    hth_stream *s;
    assert_int_equal(hth_stream_open(c->device, (hth_stream_kind)9, &s), HTH_EINVAL);
    assert_null(s);
    assert_int_equal(hth_stream_launch(c->compute, NULL, c), HTH_EINVAL);
    assert_int_equal(hth_stream_copy(c->h2d, NULL, c->host_in, 4), HTH_EINVAL);
    assert_int_equal(hth_stream_copy(c->h2d, NULL, NULL, 0), HTH_OK);
    hth_stream_close(NULL);
    hth_event_close(NULL);
    hth_device_close(NULL);
}

// Whatever host allocation fails, opening says so and nothing stays behind.
static void conformance_open_faults(void **state)
{
    for (uint64_t nth = 1;; nth++) {
        int64_t live = hth_alloc_live();
        hth_device *d = NULL;
        hth_stream *s = NULL;
        hth_event *e = NULL;
        hth_fault_alloc(nth);
        hth_err err = hth_device_open(CONFORMANCE_SPEC, &d);
        err = err ? err : hth_stream_open(d, HTH_STREAM_D2H, &s);
        err = err ? err : hth_event_open(d, &e);
        hth_fault_alloc(0);
        hth_event_close(e);
        hth_stream_close(s);
        hth_device_close(d);
        assert_int_equal(hth_alloc_live(), live);
        if (err == HTH_OK) {
            assert_true(nth > 3);
            return;
        }
        assert_int_equal(err, HTH_ENOMEM);
    }
}

#define CONFORMANCE_TEST(f)                                                                        \
    cmocka_unit_test_setup_teardown(f, conformance_setup, conformance_teardown)
#define CONFORMANCE_TESTS                                                                          \
    CONFORMANCE_TEST(conformance_properties), CONFORMANCE_TEST(conformance_budget),                \
        CONFORMANCE_TEST(conformance_pipeline), CONFORMANCE_TEST(conformance_failure),             \
        CONFORMANCE_TEST(conformance_events), CONFORMANCE_TEST(conformance_many),                  \
        CONFORMANCE_TEST(conformance_host_memory), CONFORMANCE_TEST(conformance_host_limit),       \
        CONFORMANCE_TEST(conformance_arguments), cmocka_unit_test(conformance_open_faults)

#endif
