// SPDX-License-Identifier: Apache-2.0
#include "base/size.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// `round` is for tenths of the unit.
static hth_size size_rounded(uint64_t bytes, double (*round)(double))
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    hth_size s;
    double x = (double)bytes;
    int u = 0;
    for (; x >= 1024 && u < 4; u++) {
        x /= 1024;
    }
    x = u > 0 && round != NULL ? round(x * 10) / 10 : x;
    snprintf(s.text, sizeof s.text, u == 0 ? "%.0f %s" : "%.1f %s", x, unit[u]);
    return s;
}

hth_size hth_size_of(uint64_t bytes)
{
    return size_rounded(bytes, NULL);
}

hth_size hth_size_up(uint64_t bytes)
{
    return size_rounded(bytes, ceil);
}

hth_size hth_size_down(uint64_t bytes)
{
    return size_rounded(bytes, floor);
}

hth_size hth_size_exact(uint64_t bytes)
{
    hth_size s;
    snprintf(s.text, sizeof s.text, "%" PRIu64 " B", bytes);
    return s;
}

void hth_size_pair(uint64_t a, uint64_t b, hth_size *out_a, hth_size *out_b)
{
    *out_a = hth_size_of(a);
    *out_b = hth_size_of(b);
    if (a != b && strcmp(out_a->text, out_b->text) == 0) {
        *out_a = hth_size_exact(a);
        *out_b = hth_size_exact(b);
    }
}
