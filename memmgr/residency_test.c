// SPDX-License-Identifier: Apache-2.0
#include "memmgr/residency.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

typedef struct fixture {
    hth_device *device;
    hth_pool *pool;
    hth_residency *r;
    int fills;
    hth_err fill_err;
} fixture;

static hth_err fill(void *ctx, void *dst, size_t bytes)
{
    fixture *f = ctx;
    f->fills++;
    memset(dst, f->fills, bytes);
    return f->fill_err ? hth_fail(f->fill_err, "the weight's file is gone") : HTH_OK;
}

static hth_err hold(fixture *f, int id, const char *form, size_t bytes, hth_resident **out)
{
    return hth_residency_hold(f->r, &(hth_id){.byte = {(uint8_t)id}}, form, bytes, fill, f, out);
}

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    assert_int_equal(hth_device_open("fake:mem=64KiB", &f->device), HTH_OK);
    assert_int_equal(hth_pool_open(f->device, 65536, &f->pool), HTH_OK);
    assert_int_equal(hth_residency_open(f->pool, &f->r), HTH_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    hth_residency_close(f->r);
    hth_pool_close(f->pool);
    hth_device_close(f->device);
    hth_free(f);
    return 0;
}

static void test_one_copy_whoever_uses_it(void **state)
{
    fixture *f = *state;
    hth_resident *a, *b, *c;
    assert_int_equal(hold(f, 1, "plain", 1000, &a), HTH_OK);
    assert_int_equal(hold(f, 1, "plain", 1000, &b), HTH_OK);
    assert_int_equal(hold(f, 1, "blocked", 2000, &c), HTH_OK);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_int_equal(f->fills, 2);
    assert_int_equal(hth_resident_holders(a), 2);
    assert_int_equal(((char *)hth_resident_data(a))[999], 1);
    hth_residency_stats s;
    hth_residency_stats_get(f->r, &s);
    assert_int_equal(s.entries, 2);
    assert_int_equal(s.resident_bytes, 3000);
    assert_int_equal(s.held_bytes, 3000);
    assert_int_equal(hold(f, 1, "plain", 999, &b), HTH_EINVAL);
    hth_residency_rele(f->r, a);
    hth_residency_rele(f->r, a);
    hth_residency_rele(f->r, c);
    hth_residency_rele(f->r, NULL);
    hth_residency_stats_get(f->r, &s);
    assert_int_equal(s.resident_bytes, 3000);
    assert_int_equal(s.held_bytes, 0);
}

// Idle entries go least recently used first, held ones never.
static void test_eviction(void **state)
{
    fixture *f = *state;
    hth_resident *e[5], *again;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hold(f, i, "plain", 16384, &e[i]), HTH_OK);
    }
    assert_int_equal(hold(f, 4, "plain", 16384, &e[4]), HTH_ENODEVMEM);
    assert_null(e[4]);
    hth_residency_rele(f->r, e[2]);
    hth_residency_rele(f->r, e[1]);
    hth_residency_rele(f->r, e[3]);
    assert_int_equal(hold(f, 2, "plain", 16384, &again), HTH_OK); // used again: now the youngest
    hth_residency_rele(f->r, again);
    assert_int_equal(f->fills, 4);
    assert_int_equal(hold(f, 4, "plain", 16384, &e[4]), HTH_OK); // takes the place of 1
    assert_int_equal(hold(f, 2, "plain", 16384, &e[2]), HTH_OK);
    assert_int_equal(hold(f, 3, "plain", 16384, &e[3]), HTH_OK);
    assert_int_equal(f->fills, 5);
    hth_residency_stats s;
    hth_residency_stats_get(f->r, &s);
    assert_int_equal(s.evictions, 1);
    hth_residency_rele(f->r, e[3]);
    void *p;
    assert_int_equal(hth_residency_alloc(f->r, 16384, HTH_POOL_ARENA, &p), HTH_OK);
    assert_int_equal(hth_residency_evict(f->r, 1), 0);
    hth_pool_free(f->pool, p);
    hth_residency_rele(f->r, e[0]);
    hth_residency_rele(f->r, e[2]);
    assert_int_equal(hth_residency_evict(f->r, 1), 16384);
    assert_int_equal(hth_residency_evict(f->r, UINT64_MAX), 16384);
    hth_residency_rele(f->r, e[4]);
}

static void test_failed_fill_leaves_nothing(void **state)
{
    fixture *f = *state;
    hth_resident *e;
    f->fill_err = HTH_EIO;
    assert_int_equal(hold(f, 1, "plain", 40000, &e), HTH_EIO);
    assert_string_equal(hth_err_detail(), "the weight's file is gone");
    assert_null(e);
    hth_pool_ledger l;
    hth_pool_ledger_get(f->pool, &l);
    assert_int_equal(l.free_bytes, 65536);
    f->fill_err = HTH_OK;
    assert_int_equal(hold(f, 1, "plain", 40000, &e), HTH_OK);
    hth_residency_rele(f->r, e);
}

static void test_allocation_faults(void **state)
{
    fixture *f = *state;
    hth_resident *e;
    for (uint64_t nth = 1;; nth++) {
        hth_pool_ledger l;
        int64_t live = hth_alloc_live();
        hth_fault_alloc(nth);
        hth_err err = hold(f, 1, "plain", 5000, &e);
        hth_fault_alloc(0);
        hth_pool_check(f->pool);
        if (err == HTH_OK) {
            hth_residency_rele(f->r, e);
            assert_true(nth > 4);
            return;
        }
        assert_int_equal(err, HTH_ENOMEM);
        hth_pool_ledger_get(f->pool, &l);
        assert_int_equal(l.free_bytes, 65536);
        assert_int_equal(hth_alloc_live(), live);
    }
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_one_copy_whoever_uses_it),
        TEST(test_eviction),
        TEST(test_failed_fill_leaves_nothing),
        TEST(test_allocation_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
