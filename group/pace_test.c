// SPDX-License-Identifier: Apache-2.0
// A member's time for a sample: not known at first, not moved by one slow pass, and the new one
// three passes after the device's speed changed.
#include "group/pace.h"

#include "base/test.h"

static double add_all(hth_pace *pace, int64_t samples, const double *us, int n)
{
    double out = 0;
    for (int i = 0; i < n; i++) {
        out = hth_pace_add(pace, samples, us[i]);
    }
    return out;
}

static void test_median(void **state)
{
    static const double us[] = {40, 44, 48, 36, 400, 40};
    hth_pace pace = {0};
    assert_true(hth_pace_add(&pace, 4, us[0]) == 0);
    assert_true(hth_pace_add(&pace, 4, us[1]) == 0);
    assert_true(hth_pace_add(&pace, 4, us[2]) == 11);
    assert_true(hth_pace_add(&pace, 4, us[3]) == 11); // 36, 40, 44, 48
    assert_true(hth_pace_add(&pace, 4, us[4]) == 11); // one slow pass
    assert_true(hth_pace_add(&pace, 4, us[5]) == 11); // 36, 40, 44, 48, 400
    assert_true(hth_pace_add(&pace, 4, 40) == 10);    // 36, 40, 40, 48, 400
}

static void test_changed(void **state)
{
    static const double before[] = {40, 40, 40, 40, 40, 40};
    static const double after[][3] = {{80, 84, 88}, {20, 21, 22}};
    for (int i = 0; i < 2; i++) {
        hth_pace pace = {0};
        assert_true(add_all(&pace, 4, before, 6) == 10);
        assert_true(hth_pace_add(&pace, 4, after[i][0]) == 10);
        assert_true(hth_pace_add(&pace, 4, after[i][1]) == 0);
        assert_true(hth_pace_add(&pace, 4, after[i][2]) == after[i][1] / 4);
    }
}

// Two passes that are off to different sides, or by less, are noise.
static void test_noise(void **state)
{
    static const double us[] = {40, 40, 40, 20, 80, 40, 49, 49, 49};
    hth_pace pace = {0};
    assert_true(add_all(&pace, 4, us, 5) == 10);
    (void)add_all(&pace, 4, us + 5, 2);
    assert_int_equal(pace.passes, HTH_PACE_PASSES);
    assert_true(hth_pace_add(&pace, 4, 49) == 49. / 4);
    assert_int_equal(pace.passes, HTH_PACE_PASSES);
}

static void test_other_samples(void **state)
{
    static const double us[] = {40, 40, 40};
    hth_pace pace = {0};
    assert_true(add_all(&pace, 4, us, 3) == 10);
    assert_true(hth_pace_add(&pace, 8, 72) == 0);
    assert_true(hth_pace_add(&pace, 8, 72) == 0);
    assert_true(hth_pace_add(&pace, 8, 72) == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_other_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
