// SPDX-License-Identifier: Apache-2.0
#include "device/rate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RATE_MIN 1e3 // a terabyte takes 32 years then, which nanoseconds still count
#define RATE_MAX 1e15

static const struct {
    const char *unit;
    double factor;
} rate_units[] = {
    {"B/s", 1},       {"kB/s", 1e3},       {"MB/s", 1e6},         {"GB/s", 1e9},
    {"KiB/s", 0x400}, {"MiB/s", 0x100000}, {"GiB/s", 0x40000000},
};
#define N_UNITS (sizeof rate_units / sizeof *rate_units)

static double rate_factor(const char *unit)
{
    for (size_t i = 0; i < N_UNITS; i++) {
        if (strcmp(unit, rate_units[i].unit) == 0) {
            return rate_units[i].factor;
        }
    }
    return 0;
}

hth_err hth_rate_read(const char *option, const char *text, double *bytes_per_s)
{
    size_t digits = strspn(text, "0123456789.");
    char *end;
    double v = strtod(text, &end); // no sign, no exponent, no "inf"
    double factor = digits > 0 && end == text + digits ? rate_factor(end) : 0;
    if (factor == 0) {
        return hth_fail(HTH_EINVAL,
                        "device option %s=%.40s: expected a rate such as 1.5GB/s (B/s, kB/s, MB/s, "
                        "GB/s, KiB/s, MiB/s or GiB/s)",
                        option, text);
    }
    if (!(v * factor >= RATE_MIN) || v * factor > RATE_MAX) {
        return hth_fail(HTH_EINVAL,
                        "device option %s=%.40s: expected at least 1kB/s and at most 1000000GB/s",
                        option, text);
    }
    *bytes_per_s = v * factor;
    return HTH_OK;
}

const char *hth_rate_write(double bytes_per_s, char *out, size_t cap)
{
    int u = 0;
    while (u < 3 && bytes_per_s >= 1000) {
        bytes_per_s /= 1000;
        u++;
    }
    snprintf(out, cap, "%.3g %s", bytes_per_s, rate_units[u].unit);
    return out;
}
