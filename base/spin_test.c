// SPDX-License-Identifier: Apache-2.0
// Looking before sleeping: for as long as is asked, unless the process rests.
#include "base/spin.h"
#include "base/clock.h"
#include "base/test.h"

#include <math.h>

static bool looks(void *ctx)
{
    ++*(int *)ctx;
    return true;
}

static bool found(void *ctx)
{
    return ++*(int *)ctx < 3;
}

static void spins_until(void **state)
{
    (void)state;
    int n = 0;
    uint64_t until_ns = hth_real_after(200000000); // others may have the processor for a while
    hth_spin(looks, &n, until_ns);
    assert_true(hth_real_ns() >= until_ns);
    assert_true(n > 1);
    n = 0;
    hth_spin(found, &n, HTH_FOREVER);
    assert_int_equal(n, 3);
}

static void rests(void **state)
{
    (void)state;
    int n = 0;
    uint64_t until_ns = hth_real_after(3000000000); // it must not be over before it is looked
    hth_spin_suspend(until_ns);
    hth_spin_suspend(until_ns - 2000000000); // earlier: nothing new
    hth_spin_suspend(0);
    assert_true(hth_spin_suspended_until() == until_ns);
    hth_spin(looks, &n, HTH_FOREVER);
    assert_int_equal(n, 1); // what is there is found all the same
    while (hth_real_ns() < until_ns) {
    }
    n = 0;
    hth_spin(found, &n, HTH_FOREVER);
    assert_int_equal(n, 3);
}

static void computed_times_do_not_overflow(void **state)
{
    assert_int_equal(hth_ns_of(1.5e9), 1500000000);
    assert_int_equal(hth_ns_of(-1), 0);
    assert_int_equal(hth_ns_of(NAN), 0);
    assert_true(hth_ns_of(8.9e19) == 9000000000000000000u);
    assert_true(hth_now_ns() + hth_ns_of(INFINITY) > hth_now_ns());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spins_until),
        cmocka_unit_test(rests),
        cmocka_unit_test(computed_times_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
