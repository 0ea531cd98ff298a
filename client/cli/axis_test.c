// SPDX-License-Identifier: Apache-2.0
// Axes of ranges of all sizes: the values have a place, ticks are round, labels differ.
#include "client/cli/axis.h"

#include "base/test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

// All labels of an axis, in one text.
static const char *labels(const hth_axis *axis)
{
    static char out[400];
    char label[40];
    out[0] = 0;
    for (int i = 0; i < axis->n; i++) {
        strcat(strcat(out, i > 0 ? " " : ""), hth_axis_label(axis, i, label, sizeof label));
    }
    return out;
}

static const char *made(hth_axis_kind kind, double least, double most)
{
    hth_axis axis;
    hth_axis_make(&axis, kind, least, most);
    return labels(&axis);
}

static void test_round(void **state)
{
    assert_string_equal(made(HTH_AXIS_REAL, 0, 1), "0.0 0.2 0.4 0.6 0.8 1.0");
    assert_string_equal(made(HTH_AXIS_REAL, 0, 2.31), "0.0 0.5 1.0 1.5 2.0 2.5");
    assert_string_equal(made(HTH_AXIS_REAL, 1, 1.87), "1.0 1.2 1.4 1.6 1.8 2.0");
    assert_string_equal(made(HTH_AXIS_REAL, 1, 1.05), "1.00 1.01 1.02 1.03 1.04 1.05");
    assert_string_equal(made(HTH_AXIS_REAL, -0.7, 4), "-1 0 1 2 3 4");
    assert_string_equal(made(HTH_AXIS_REAL, 0, 3e6), "0 1e+06 2e+06 3e+06");
    assert_string_equal(made(HTH_AXIS_REAL, 0, 1e-7), "0 2e-08 4e-08 6e-08 8e-08 1e-07");
    assert_string_equal(made(HTH_AXIS_WHOLE, 0, 3), "0 1 2 3");
    assert_string_equal(made(HTH_AXIS_WHOLE, 0, 1), "0 1");
    assert_string_equal(made(HTH_AXIS_WHOLE, 0, 1234), "0 500 1000 1500");
}

static void test_bytes(void **state)
{
    static const struct {
        double most;
        const char *name, *labels;
    } cases[] = {{1000, "bytes", "0 256 512 768 1024"},
                 {100 << 10, "KiB", "0 32 64 96 128"},
                 {1.5 * (1 << 30), "GiB", "0 0.5 1 1.5"},
                 {141e9, "GiB", "0 32 64 96 128 160"},
                 {24.0 * (1 << 20), "MiB", "0 8 16 24"},
                 {3e13, "TiB", "0 8 16 24 32"},
                 {0, "bytes", "0 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_axis axis;
        hth_axis_make(&axis, HTH_AXIS_BYTES, 0, cases[i].most);
        assert_string_equal(axis.name, cases[i].name);
        assert_string_equal(labels(&axis), cases[i].labels);
    }
}

// Ranges of many sizes and places, of single values, and of none.
static void test_any(void **state)
{
    static const double starts[] = {0, 1, -1, 5, -123.456, 1e9, 1e-12, -1e15, 1e300, -1e308};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        for (double range = 1e-12; range < 1e305; range *= 7.3) {
            for (int kind = HTH_AXIS_REAL; kind <= HTH_AXIS_BYTES; kind++) {
                hth_axis a;
                double least = kind == HTH_AXIS_BYTES ? fabs(starts[s]) : starts[s];
                hth_axis_make(&a, kind, least, least + range);
                assert_in_range(a.n, 2, 8);
                assert_true(isfinite(a.least) && isfinite(a.most) && a.least < a.most);
                double room = 1e-6 * (a.most - a.least);
                assert_true(a.least <= fmax(-1e300, fmin(least, 1e300)) + room);
                assert_true(a.most + room >= fmin(least + range, 1e300) || range > 1e300);
                char before[40] = "", label[40];
                for (int i = 0; i < a.n; i++) {
                    assert_string_not_equal(hth_axis_label(&a, i, label, sizeof label), before);
                    assert_null(strpbrk(label, "ni")); // nan, inf
                    strcpy(before, label);
                }
                double ten = a.step / pow(10, floor(log10(a.step) + 1e-9));
                bool round = fabs(ten - 1) < 1e-6 || fabs(ten - 2) < 1e-6 || fabs(ten - 5) < 1e-6;
                assert_true(kind == HTH_AXIS_BYTES ? exp2(rint(log2(a.step))) == a.step : round);
                assert_true(kind != HTH_AXIS_WHOLE || a.step >= 1);
                assert_float_equal(hth_axis_share(&a, a.least), 0, 0);
                assert_float_equal(hth_axis_share(&a, a.most), 1, 0);
                assert_float_equal(hth_axis_share(&a, INFINITY), 1, 0);
            }
        }
    }
    hth_axis a;
    hth_axis_make(&a, HTH_AXIS_REAL, NAN, INFINITY);
    assert_true(isfinite(a.most) && a.n >= 2);
    hth_axis_make(&a, HTH_AXIS_REAL, 7, 7);
    assert_true(a.least <= 7 && a.most > 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round), cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_any)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
