// SPDX-License-Identifier: Apache-2.0
#include "memmgr/pool.h"

#include "base/alloc.h"
#include "device/fake/fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define POOL_BYTES ((size_t)1 << 20)

static hth_device *open_device(void)
{
    hth_device *d;
    assert_int_equal(hth_device_open("fake:mem=1MiB", &d), HTH_OK);
    return d;
}

static void test_ledger_is_exact(void **state)
{
    hth_device *d = open_device();
    hth_pool *p;
    hth_pool_ledger l;
    void *w, *a, *none = d;
    assert_int_equal(hth_pool_open(d, POOL_BYTES, &p), HTH_OK);
    assert_int_equal(hth_pool_alloc(p, 100, HTH_POOL_WEIGHT, &w), HTH_OK);
    assert_int_equal(hth_pool_alloc(p, 64, HTH_POOL_ARENA, &a), HTH_OK);
    hth_pool_ledger_get(p, &l);
    assert_int_equal(l.reserved_bytes, POOL_BYTES);
    assert_int_equal(l.used_bytes[HTH_POOL_WEIGHT], 100);
    assert_int_equal(l.used_bytes[HTH_POOL_ARENA], 64);
    assert_int_equal(l.padding_bytes, 28);
    assert_int_equal(l.free_bytes, POOL_BYTES - 192);
    assert_int_equal(l.largest_free_bytes, POOL_BYTES - 192);
    assert_true((char *)w < (char *)a); // weights low, arenas high
    assert_int_equal(hth_pool_alloc(p, POOL_BYTES - 191, HTH_POOL_ARENA, &none), HTH_ENODEVMEM);
    assert_null(none);
    assert_int_equal(hth_pool_alloc(p, POOL_BYTES + 1, HTH_POOL_ARENA, &none), HTH_ETOOBIG);
    assert_int_equal(hth_pool_alloc(p, 0, HTH_POOL_ARENA, &none), HTH_EINVAL);
    assert_int_equal(hth_pool_alloc(p, POOL_BYTES - 192, HTH_POOL_WORKSPACE, &none), HTH_OK);
    hth_pool_ledger_get(p, &l);
    assert_int_equal(l.free_bytes + l.largest_free_bytes, 0);
    hth_pool_free(p, w);
    hth_pool_free(p, a);
    hth_pool_free(p, none);
    hth_pool_free(p, NULL);
    hth_pool_ledger_get(p, &l);
    assert_int_equal(l.largest_free_bytes, POOL_BYTES);
    hth_pool_close(p);
    hth_pool_close(NULL);
    hth_device_close(d);
}

// Random operations against a byte map: what is handed out is aligned, never overlaps, and refused
// only when really no gap is large enough for a good fit.
static void test_random_operations(void **state)
{
    enum { SLOTS = 200, UNITS = POOL_BYTES / 64 };
    static uint8_t taken[UNITS];
    static struct {
        char *at;
        size_t bytes;
    } slot[SLOTS];
    hth_device *d = open_device();
    hth_pool *p;
    void *base;
    size_t used = 0;
    srand(11);
    assert_int_equal(hth_pool_open(d, POOL_BYTES, &p), HTH_OK);
    assert_int_equal(hth_pool_alloc(p, POOL_BYTES, HTH_POOL_ARENA, &base), HTH_OK);
    hth_pool_free(p, base);
    for (int op = 0; op < 20000; op++) {
        int i = rand() % SLOTS;
        if (slot[i].at != NULL) {
            size_t first = (size_t)(slot[i].at - (char *)base) / 64, n = (slot[i].bytes + 63) / 64;
            memset(taken + first, 0, n);
            hth_pool_free(p, slot[i].at);
            used -= slot[i].bytes;
            slot[i].at = NULL;
        } else {
            size_t bytes = 1 + (size_t)rand() % (rand() % 20 == 0 ? POOL_BYTES / 4 : 12000),
                   n = (bytes + 63) / 64;
            void *at;
            if (hth_pool_alloc(p, bytes, (hth_pool_use)(rand() % HTH_POOL_N_USES), &at) != HTH_OK) {
                hth_pool_ledger l;
                hth_pool_ledger_get(p, &l);
                assert_true(l.largest_free_bytes < n * 64);
                continue;
            }
            size_t first = (size_t)((char *)at - (char *)base) / 64;
            assert_int_equal((uintptr_t)at % 64, 0);
            assert_true(first + n <= UNITS);
            assert_null(memchr(taken + first, 1, n));
            memset(taken + first, 1, n);
            slot[i].at = at;
            slot[i].bytes = bytes;
            used += bytes;
        }
        if (op % 50 == 0) {
            hth_pool_ledger l;
            hth_pool_check(p);
            hth_pool_ledger_get(p, &l);
            assert_int_equal(l.used_bytes[0] + l.used_bytes[1] + l.used_bytes[2], used);
        }
    }
    hth_pool_close(p);
    hth_device_close(d);
}

static hth_err scenario(hth_device *device)
{
    hth_pool *p;
    void *a, *b = NULL;
    HTH_TRY(hth_pool_open(device, POOL_BYTES, &p));
    hth_err err = hth_pool_alloc(p, 1000, HTH_POOL_WEIGHT, &a);
    err = err ? err : hth_pool_alloc(p, 5000, HTH_POOL_ARENA, &b);
    hth_pool_check(p);
    hth_pool_free(p, b);
    hth_pool_close(p);
    return err;
}

static void test_faults(void **state)
{
    hth_device *d = open_device();
    hth_fake_control_of(d)->fail_reserve = 1;
    assert_int_equal(scenario(d), HTH_ENODEVMEM);
    for (uint64_t nth = 1;; nth++) {
        int64_t live = hth_alloc_live();
        hth_fault_alloc(nth);
        hth_err err = scenario(d);
        hth_fault_alloc(0);
        assert_int_equal(hth_alloc_live(), live);
        if (err == HTH_OK) {
            assert_true(nth > 5);
            break;
        }
        assert_int_equal(err, HTH_ENOMEM);
    }
    hth_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_is_exact),
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
