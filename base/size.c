// SPDX-License-Identifier: Apache-2.0
#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

hth_size hth_size_of(uint64_t bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    hth_size s;
    double x = (double)bytes;
    int u = 0;
    for (; x >= 1024 && u < 4; u++) {
        x /= 1024;
    }
    snprintf(s.text, sizeof s.text, u == 0 ? "%.0f %s" : "%.1f %s", x, unit[u]);
    return s;
}

void hth_size_pair(uint64_t a, uint64_t b, hth_size *out_a, hth_size *out_b)
{
    *out_a = hth_size_of(a);
    *out_b = hth_size_of(b);
    if (a != b && strcmp(out_a->text, out_b->text) == 0) {
        snprintf(out_a->text, sizeof out_a->text, "%" PRIu64 " B", a);
        snprintf(out_b->text, sizeof out_b->text, "%" PRIu64 " B", b);
    }
}
