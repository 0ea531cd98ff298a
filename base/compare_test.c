// SPDX-License-Identifier: Apache-2.0
#include "base/compare.h"

#include "base/test.h"

static void middles(void **state)
{
    const double v[] = {1, 3, 7, 100};
    assert_true(hth_median(v, 1) == 1 && hth_median(v, 2) == 2);
    assert_true(hth_median(v, 3) == 3 && hth_median(v, 4) == 5);
}

// The nearest rank: of few values the 99th percentile is the last one.
static void ranks(void **state)
{
    double v[200];
    for (int i = 0; i < 200; i++) {
        v[i] = i + 1;
    }
    assert_true(hth_percentile(v, 1, 99) == 1 && hth_percentile(v, 3, 99) == 3);
    assert_true(hth_percentile(v, 100, 99) == 99 && hth_percentile(v, 101, 99) == 100);
    assert_true(hth_percentile(v, 200, 99) == 198 && hth_percentile(v, 200, 50) == 100);
    assert_true(hth_percentile(v, 200, 0) == 1 && hth_percentile(v, 200, 100) == 200);
}

static void bounds(void **state)
{
    assert_true(hth_clamp(5, 1, 3) == 3 && hth_clamp(-5, 1, 3) == 1 && hth_clamp(2, 1, 3) == 2);
    assert_true(hth_clamp(0, 2, 1) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(middles),
        cmocka_unit_test(ranks),
        cmocka_unit_test(bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
