// SPDX-License-Identifier: Apache-2.0
// The team: every index runs exactly once, ranges cover everything, the size is what was set.
#include "device/cpu/team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static atomic_int seen[64];
static atomic_int members;

static void mark(void *arg, int i, int n)
{
    (void)arg;
    atomic_store(&members, n);
    size_t begin, end;
    hth_team_range(64, i, n, &begin, &end);
    for (size_t k = begin; k < end; k++) {
        atomic_fetch_add(&seen[k], 1);
    }
}

static void team_covers_every_index_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) {
        hth_team_set(n);
        assert_int_equal(hth_team_size(), n);
        for (int k = 0; k < 64; k++) {
            atomic_store(&seen[k], 0);
        }
        hth_team_run(mark, NULL);
        assert_in_range(atomic_load(&members), 1, n);
        for (int k = 0; k < 64; k++) {
            assert_int_equal(atomic_load(&seen[k]), 1);
        }
    }
}

static void team_never_has_less_than_one(void **state)
{
    (void)state;
    hth_team_set(0);
    assert_int_equal(hth_team_size(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(team_covers_every_index_once),
        cmocka_unit_test(team_never_has_less_than_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
