// SPDX-License-Identifier: Apache-2.0
#include "server/net/mapped.h"

#include "base/settings.h"
#include "base/test.h"

#define MIB ((uint64_t)1 << 20)

static void test_limits(void **state)
{
    char who[32];
    assert_ok(hth_setting_set("shm.bytes", "64MiB"));
    assert_ok(hth_mapped_take("a", 40 * MIB));
    assert_err(hth_mapped_take("a", 25 * MIB), HTH_EBUSY, "exceed shm.bytes (67108864)");
    assert_err(hth_mapped_take("a", UINT64_MAX), HTH_EBUSY, "exceed shm.bytes");
    assert_ok(hth_mapped_take("a", 24 * MIB));
    for (int i = 1; i < 16; i++) {
        snprintf(who, sizeof who, "tenant %d", i);
        assert_ok(hth_mapped_take(who, 64 * MIB));
    }
    assert_err(hth_mapped_take("b", 1), HTH_EBUSY, "all clients together");
    hth_mapped_give("a", 40 * MIB);
    hth_mapped_give("a", 24 * MIB);
    assert_ok(hth_mapped_take("b", 64 * MIB));
    assert_ok(hth_setting_set("shm.bytes", "1MiB")); // less than there is: nothing new
    assert_err(hth_mapped_take("c", MIB), HTH_EBUSY, "all clients together");
    hth_mapped_give("b", 64 * MIB);
    for (int i = 1; i < 16; i++) {
        snprintf(who, sizeof who, "tenant %d", i);
        hth_mapped_give(who, 64 * MIB);
    }
    assert_ok(hth_mapped_take("c", MIB));
    hth_mapped_give("c", MIB);
    assert_int_equal(hth_alloc_live(), 0);
}

// Small mappings are bounded by their number.
static void test_regions(void **state)
{
    char who[32];
    assert_ok(hth_setting_set("shm.bytes", "64MiB"));
    for (int t = 0; t < 16; t++) {
        snprintf(who, sizeof who, "tenant %d", t);
        for (int i = 0; i < HTH_MAPPED_REGIONS; i++) {
            assert_ok(hth_mapped_take(who, 1));
        }
        assert_err(hth_mapped_take(who, 1), HTH_EBUSY,
                   "2048 buffers of shared memory are mapped: no tenant may have more");
    }
    assert_err(hth_mapped_take("b", 1), HTH_EBUSY,
               "all clients together have 32768 buffers of shared memory mapped");
    hth_mapped_give(who, 1);
    assert_ok(hth_mapped_take("b", 1));
    hth_mapped_give("b", 1);
    assert_ok(hth_mapped_take(who, 1));
    for (int t = 0; t < 16; t++) {
        snprintf(who, sizeof who, "tenant %d", t);
        for (int i = 0; i < HTH_MAPPED_REGIONS; i++) {
            hth_mapped_give(who, 1);
        }
    }
    assert_int_equal(hth_alloc_live(), 0);
}

static hth_err take_once(void)
{
    HTH_TRY(hth_mapped_take("a", 1));
    hth_mapped_give("a", 1);
    return HTH_OK;
}

static void test_allocation_faults(void **state)
{
    FAULT_LOOP(take_once());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_regions),
                                       cmocka_unit_test(test_allocation_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
