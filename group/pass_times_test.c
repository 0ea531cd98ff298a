// SPDX-License-Identifier: Apache-2.0
// A member's times: not known at first, not moved by one slow pass, the new ones three passes after
// the device's speed changed, and what a pass takes whatever its samples are.
#include "group/pass_times.h"

#include "base/test.h"

static void add_all(hth_pass_times *times, int64_t samples, const double *us, int n)
{
    for (int i = 0; i < n; i++) {
        hth_pass_times_add(times, samples, us[i]);
    }
}

static void add_same(hth_pass_times *times, int64_t samples, double us, int n)
{
    for (int i = 0; i < n; i++) {
        hth_pass_times_add(times, samples, us);
    }
}

// sample_us is a sample's time where nothing is fixed; 0: not known.
static double sample_us(const hth_pass_times *times)
{
    double sample = 0, fixed = 0;
    bool known = hth_pass_times_fit(times, &sample, &fixed);
    assert_true(fixed == 0 && known == (sample > 0));
    return sample;
}

static void test_median(void **state)
{
    static const double us[] = {40, 44, 48, 36, 400, 40, 40};
    static const double want[] = {0, 0, 11, 11, 11, 11, 10};
    hth_pass_times times = {0};
    for (int i = 0; i < 7; i++) {
        hth_pass_times_add(&times, 4, us[i]);
        assert_true(sample_us(&times) == want[i]);
    }
}

static void test_changed(void **state)
{
    static const double after[][3] = {{80, 84, 88}, {20, 21, 22}};
    for (int i = 0; i < 2; i++) {
        hth_pass_times times = {0};
        add_same(&times, 4, 40, 6);
        assert_true(sample_us(&times) == 10);
        hth_pass_times_add(&times, 4, after[i][0]);
        assert_true(sample_us(&times) == 10);
        hth_pass_times_add(&times, 4, after[i][1]);
        assert_true(sample_us(&times) == 0);
        hth_pass_times_add(&times, 4, after[i][2]);
        assert_true(sample_us(&times) == after[i][1] / 4);
    }
}

// Two passes that are off to different sides, or by less, are noise.
static void test_noise(void **state)
{
    static const double us[] = {40, 40, 40, 20, 80, 40, 49, 49, 49};
    hth_pass_times times = {0};
    add_all(&times, 4, us, 5);
    assert_true(sample_us(&times) == 10);
    add_all(&times, 4, us + 5, 2);
    assert_int_equal(times.passes, HTH_PASS_TIMES);
    hth_pass_times_add(&times, 4, 49);
    assert_true(sample_us(&times) == 49. / 4);
    assert_int_equal(times.passes, HTH_PASS_TIMES);
}

// 10 us whatever the samples are, and 5 for each of them.
static void test_fixed(void **state)
{
    double sample, fixed;
    hth_pass_times times = {0};
    add_same(&times, 8, 50, 3);
    assert_true(sample_us(&times) == 50. / 8);
    add_same(&times, 2, 20, 2);
    assert_false(hth_pass_times_fit(&times, &sample, &fixed));
    hth_pass_times_add(&times, 2, 20);
    assert_true(hth_pass_times_fit(&times, &sample, &fixed));
    assert_true(sample == 5 && fixed == 10);
    add_same(&times, 3, 25, 3); // 2 tell more than 8 did: they are later ones
    assert_true(hth_pass_times_fit(&times, &sample, &fixed));
    assert_true(sample == 5 && fixed == 10 && times.other == 2);
}

// Numbers that are close together tell nothing: those before them are kept. So they are over the
// few samples in the end of an epoch.
static void test_close(void **state)
{
    double sample, fixed;
    hth_pass_times times = {0};
    add_same(&times, 4, 30, 3);
    add_same(&times, 8, 50, 3);
    add_same(&times, 9, 55, 3);
    assert_int_equal(times.other, 4);
    assert_true(hth_pass_times_fit(&times, &sample, &fixed));
    assert_true(sample == 5 && fixed == 10);
    add_same(&times, 1, 15, 1);
    add_same(&times, 9, 55, 3);
    assert_int_equal(times.other, 9);
    assert_true(sample_us(&times) == 55. / 9);
}

// The first pass over so many samples, which touches memory that no other has, is no other speed.
static void test_cold(void **state)
{
    double sample, fixed;
    hth_pass_times times = {0};
    add_same(&times, 8, 50, 3);
    add_same(&times, 2, 90, 1);
    add_same(&times, 2, 20, 3);
    assert_true(hth_pass_times_fit(&times, &sample, &fixed));
    assert_true(sample == 5 && fixed == 10);
}

// Passes over another number of samples at another speed make no line with these.
static void test_unsound(void **state)
{
    hth_pass_times times = {0};
    add_same(&times, 8, 50, 3);
    add_same(&times, 4, 60, 3); // fewer that take longer
    assert_true(sample_us(&times) == 15);
    add_same(&times, 8, 200, 3); // more than so many times as long
    assert_true(sample_us(&times) == 25);
    add_same(&times, 8, 40, 3); // another speed: what was measured at that before counts no more
    assert_int_equal(times.other, 0);
    assert_true(sample_us(&times) == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median),  cmocka_unit_test(test_changed),
        cmocka_unit_test(test_noise),   cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_close),   cmocka_unit_test(test_cold),
        cmocka_unit_test(test_unsound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
