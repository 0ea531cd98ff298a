// SPDX-License-Identifier: Apache-2.0
// Values are doubles: every count and size up to 2^53 is exact, and all ranges end below.
#include "base/settings.h"

#include <ctype.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const hth_setting_info setting_table[HTH_N_SETTINGS] = {
#define SETTING_ROW(id, name, kind, dflt, least, most, help)                                       \
    {name, HTH_KIND_##kind, dflt, least, most, help},
    HTH_SETTINGS(SETTING_ROW)
#undef SETTING_ROW
};

static _Atomic double setting_value[HTH_N_SETTINGS] = {
#define SETTING_DEFAULT(id, name, kind, dflt, least, most, help) dflt,
    HTH_SETTINGS(SETTING_DEFAULT)
#undef SETTING_DEFAULT
};

static const char size_units[] = "KMGT"; // 2^10, 2^20, ..

const hth_setting_info *hth_setting_get_info(hth_setting s)
{
    return &setting_table[s];
}

double hth_setting_real(hth_setting s)
{
    return atomic_load_explicit(&setting_value[s], memory_order_relaxed);
}

int64_t hth_setting_int(hth_setting s)
{
    return (int64_t)hth_setting_real(s);
}

void hth_setting_reset(void)
{
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        atomic_store(&setting_value[i], setting_table[i].dflt);
    }
}

// parse_number reads a plain non-negative decimal number (no hexadecimal, sign, infinity) and what
// follows it.
static bool parse_number(const char *text, double *out, const char **rest)
{
    if (!isdigit((unsigned char)text[0]) || tolower((unsigned char)text[1]) == 'x') {
        return false;
    }
    char *end;
    *out = strtod(text, &end);
    *rest = end;
    return isfinite(*out);
}

// parse_unit reads "", "B", "K", "KB", "KiB", .. to a factor; 0 when it is none of them.
static double parse_unit(const char *unit)
{
    double factor = 1;
    const char *u = *unit ? strchr(size_units, toupper((unsigned char)*unit)) : NULL;
    if (u != NULL) {
        factor = ldexp(1.0, 10 * (int)(u - size_units + 1));
        unit++;
        unit += tolower((unsigned char)unit[0]) == 'i';
    }
    unit += toupper((unsigned char)unit[0]) == 'B';
    return *unit == '\0' ? factor : 0;
}

hth_err hth_parse_size(const char *text, uint64_t whole, uint64_t *out)
{
    double v, factor;
    const char *rest;
    if (!parse_number(text, &v, &rest)) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not a size such as 512MiB or 2GiB%s", text,
                        whole ? " or 60%" : "");
    }
    if (strcmp(rest, "%") == 0) {
        if (whole == 0 || v > 100) {
            return hth_fail(
                HTH_EINVAL,
                whole ? "'%.80s' is more than all" : "'%.80s': a share is not possible here", text);
        }
        *out = (uint64_t)(v / 100 * (double)whole);
        return HTH_OK;
    }
    factor = parse_unit(rest);
    if (factor == 0 || v * factor > 9007199254740992.0) {
        return hth_fail(HTH_EINVAL,
                        factor == 0 ? "'%.80s': the unit is not one of B, KiB, MiB, GiB, TiB"
                                    : "'%.80s' is too big for a size",
                        text);
    }
    *out = (uint64_t)(v * factor);
    return HTH_OK;
}

const char *hth_setting_format(hth_setting_kind kind, double value, char *out, size_t cap)
{
    static const char *const suffix[] = {"", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    if (kind == HTH_KIND_BYTES) {
        while (u < 4 && value >= 1024 && fmod(value, 1024) == 0) {
            value /= 1024;
            u++;
        }
    }
    snprintf(out, cap, kind == HTH_KIND_REAL ? "%.9g%s" : "%.0f%s", value, suffix[u]);
    return out;
}

static int setting_find(const char *name)
{
    int i = 0;
    while (i < HTH_N_SETTINGS && strcmp(setting_table[i].name, name) != 0) {
        i++;
    }
    return i;
}

static hth_err setting_unknown(const char *name)
{
    return hth_fail(HTH_ENOENT, "no setting '%.80s'", name);
}

static hth_err setting_parse(const hth_setting_info *t, const char *text, double *out)
{
    if (t->kind == HTH_KIND_BYTES) {
        uint64_t bytes;
        HTH_TRY(hth_parse_size(text, 0, &bytes));
        *out = (double)bytes;
        return HTH_OK;
    }
    const char *rest;
    if (!parse_number(text, out, &rest) || *rest != '\0' ||
        (t->kind == HTH_KIND_COUNT && *out != floor(*out))) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not a %s", text,
                        t->kind == HTH_KIND_COUNT ? "whole number" : "number");
    }
    return HTH_OK;
}

hth_err hth_setting_set(const char *name, const char *text)
{
    int i = setting_find(name);
    if (i == HTH_N_SETTINGS) {
        return setting_unknown(name);
    }
    const hth_setting_info *t = &setting_table[i];
    double v;
    hth_err err = setting_parse(t, text, &v);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "%s", name);
    }
    if (!(v >= t->least && v <= t->most)) {
        char lo[32], hi[32];
        return hth_fail(HTH_EINVAL, "%s: '%.80s' is not between %s and %s", name, text,
                        hth_setting_format(t->kind, t->least, lo, sizeof lo),
                        hth_setting_format(t->kind, t->most, hi, sizeof hi));
    }
    atomic_store(&setting_value[i], v);
    return HTH_OK;
}

hth_err hth_setting_get(const char *name, char *out, size_t cap)
{
    int i = setting_find(name);
    if (i == HTH_N_SETTINGS) {
        return setting_unknown(name);
    }
    hth_setting_format(setting_table[i].kind, setting_value[i], out, cap);
    return HTH_OK;
}
