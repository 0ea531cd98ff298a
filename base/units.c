// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    double bytes;
} units_table[] = {
    {"", 1},       {"B", 1},        {"K", 0x1p10},   {"KiB", 0x1p10}, {"KB", 1e3},
    {"M", 0x1p20}, {"MiB", 0x1p20}, {"MB", 1e6},     {"G", 0x1p30},   {"GiB", 0x1p30},
    {"GB", 1e9},   {"T", 0x1p40},   {"TiB", 0x1p40}, {"TB", 1e12},
};

hth_err hth_parse_bytes(const char *text, uint64_t total, uint64_t *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || !(v >= 0)) {
        return hth_fail(HTH_EINVAL, "'%s' is not an amount of memory (2GiB, 512MiB, 60%%)", text);
    }
    while (*end == ' ') {
        end++;
    }
    if (strcmp(end, "%") == 0) {
        if (!(v > 0 && v <= 100)) {
            return hth_fail(HTH_EINVAL, "'%s': a percentage lies above 0 and at most at 100", text);
        }
        *out = (uint64_t)(v / 100 * (double)total);
        return HTH_OK;
    }
    for (size_t i = 0; i < sizeof units_table / sizeof *units_table; i++) {
        if (strcasecmp(end, units_table[i].name) == 0) {
            v *= units_table[i].bytes;
            if (v >= 0x1p63) {
                return hth_fail(HTH_EINVAL, "'%s' is more than any machine has", text);
            }
            *out = (uint64_t)v;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL,
                    "'%s': unknown unit '%s' (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB or %%)", text,
                    end);
}
