// SPDX-License-Identifier: Apache-2.0
// The step is the smallest round number of which five, and what the ends are rounded to, cover the
// range. Ticks are whole multiples of it, so that no rounding adds up.
#include "client/cli/axis.h"

#include <math.h>
#include <stdio.h>

#define AXIS_STEPS   5
#define AXIS_LARGEST 1e300 // of a value: its range is finite, then
#define AXIS_NEARLY  1e-9  // relative; what is so near a tick is on it
#define AXIS_PLAIN   1e6   // from here on numbers are written as 2e+06

static double axis_finite(double v)
{
    if (!(v == v)) {
        return 0;
    }
    return fmax(-AXIS_LARGEST, fmin(v, AXIS_LARGEST));
}

static double axis_step(hth_axis_kind kind, double range)
{
    double least = range / AXIS_STEPS * (1 - AXIS_NEARLY);
    if (kind == HTH_AXIS_BYTES) {
        return fmax(1, exp2(ceil(log2(least))));
    }
    double ten = pow(10, floor(log10(least))), step = 10 * ten;
    static const double round[] = {5, 2, 1};
    for (int i = 0; i < 3; i++) {
        step = round[i] * ten >= least ? round[i] * ten : step;
    }
    return kind == HTH_AXIS_WHOLE ? fmax(1, step) : step;
}

// axis_unit chooses the largest unit that the end has more than one of.
static void axis_unit(hth_axis *axis)
{
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    axis->unit = 1;
    for (; u < 4 && axis->most > 1024 * axis->unit; u++) {
        axis->unit *= 1024;
    }
    axis->name = names[u];
    axis->digits = -15;
}

// axis_digits has as many digits as tell two ticks apart.
static void axis_digits(hth_axis *axis)
{
    double largest = fmax(fabs(axis->least), fabs(axis->most));
    int power = (int)floor(log10(axis->step) + AXIS_NEARLY);
    axis->unit = 1;
    axis->name = "";
    axis->digits = power < 0 ? -power : 0;
    if (largest >= AXIS_PLAIN || power < -5) {
        int all = (int)floor(log10(largest) + AXIS_NEARLY) - power + 1;
        axis->digits = -(all < 15 ? all : 15);
    }
}

void hth_axis_make(hth_axis *out, hth_axis_kind kind, double least, double most)
{
    least = axis_finite(least);
    most = axis_finite(most);
    double largest = fmax(fabs(least), fabs(most));
    if (!(most - least > AXIS_NEARLY * largest) || most - least < 1 / AXIS_LARGEST) {
        most = least + fmax(1, largest / 2);
    }
    *out = (hth_axis){.step = axis_step(kind, most - least)};
    out->first = floor(least / out->step + AXIS_NEARLY);
    double last = fmax(out->first + 1, ceil(most / out->step - AXIS_NEARLY));
    out->n = (int)(last - out->first) + 1;
    out->least = out->first * out->step;
    out->most = last * out->step;
    if (kind == HTH_AXIS_BYTES) {
        axis_unit(out);
    } else {
        axis_digits(out);
    }
}

double hth_axis_share(const hth_axis *axis, double value)
{
    double share = (value - axis->least) / (axis->most - axis->least);
    return fmax(0, fmin(share, 1));
}

const char *hth_axis_label(const hth_axis *axis, int i, char *out, size_t cap)
{
    double v = (axis->first + i) * axis->step / axis->unit;
    if (axis->digits < 0) {
        snprintf(out, cap, "%.*g", -axis->digits, v);
    } else {
        snprintf(out, cap, "%.*f", axis->digits, v);
    }
    return out;
}
