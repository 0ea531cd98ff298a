// SPDX-License-Identifier: Apache-2.0
// A device's specification as text: "KIND[:ITEM,...]", an ITEM being a number or option=value.
#include "device/spec.h"

#include "base/isa.h"
#include "base/settings.h"
#include "base/size.h"
#include "device/quota.h"
#include "device/rate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *kind;
    const char *options; // for people and for the check, comma separated
    hth_err (*open)(const hth_device_spec *spec, hth_device **out);
} spec_kinds[] = {
    {"cpu", "mem,threads,isa,quota,link,h2d,d2h", hth_cpu_open},
    {"fake", "mem,seed", hth_fake_open},
    {"cuda", "mem,graphs", hth_cuda_open},
};
#define N_KINDS (sizeof spec_kinds / sizeof *spec_kinds)

static int spec_kind_find(const char *kind)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kind, spec_kinds[i].kind) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static bool spec_option_known(int kind, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = spec_kinds[kind].options; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, len) == 0 && (p[len] == ',' || p[len] == '\0')) {
            return len > 0;
        }
    }
    return false;
}

static hth_err spec_number(const char *name, const char *value, uint64_t max, uint64_t *out)
{
    char *end;
    *out = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0' || *out > max) {
        return hth_fail(HTH_EINVAL, "device option %s=%s: expected a number of at most %llu", name,
                        value, (unsigned long long)max);
    }
    return HTH_OK;
}

static hth_err spec_threads(const char *value, int *out)
{
    uint64_t v;
    HTH_TRY(spec_number("threads", value, 1024, &v));
    if (v == 0) {
        return hth_fail(HTH_EINVAL, "device option threads=0: at least one thread is needed");
    }
    *out = (int)v;
    return HTH_OK;
}

static hth_err spec_isa(const char *value, int *out)
{
    *out = hth_isa_find(value);
    return *out > 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "device option isa=%s: expected sse2, avx2 or avx512", value);
}

// The rate that an option sets; NULL: it sets none.
static double *spec_rate(hth_device_spec *spec, const char *option)
{
    if (strcmp(option, "link") == 0) {
        return &spec->link_bytes_per_s;
    }
    if (strcmp(option, "h2d") == 0) {
        return &spec->h2d_bytes_per_s;
    }
    return strcmp(option, "d2h") == 0 ? &spec->d2h_bytes_per_s : NULL;
}

// A direction without a rate of its own has the link's.
static hth_err spec_link(hth_device_spec *spec)
{
    static const char *const option[2] = {"h2d", "d2h"};
    double *rate[2] = {&spec->h2d_bytes_per_s, &spec->d2h_bytes_per_s};
    for (int i = 0; i < 2; i++) {
        *rate[i] = *rate[i] > 0 ? *rate[i] : spec->link_bytes_per_s;
    }
    for (int i = 0; i < 2; i++) {
        if (*rate[i] > 0 && *rate[1 - i] <= 0) {
            return hth_fail(HTH_EINVAL,
                            "device option %s=: %s= is missing; link=RATE sets both directions",
                            option[i], option[1 - i]);
        }
    }
    return HTH_OK;
}

static hth_err spec_item(int kind, char *item, hth_device_spec *spec)
{
    uint64_t v;
    char *value = strchr(item, '=');
    if (value == NULL) {
        HTH_TRY(spec_number("number", item, 1023, &v));
        spec->index = (int)v;
        return HTH_OK;
    }
    *value++ = '\0';
    if (!spec_option_known(kind, item)) {
        return hth_fail(HTH_EINVAL, "device '%s' has no option '%s' (it has: %s)", spec->kind, item,
                        spec_kinds[kind].options);
    }
    if (strcmp(item, "mem") == 0) {
        HTH_TRY(hth_err_prefix(hth_parse_size(value, 100, &v), "device option mem"));
        if (snprintf(spec->mem, sizeof spec->mem, "%s", value) >= (int)sizeof spec->mem) {
            return hth_fail(HTH_EINVAL, "device option mem=%s is too long", value);
        }
    } else if (strcmp(item, "threads") == 0) {
        HTH_TRY(spec_threads(value, &spec->threads));
    } else if (strcmp(item, "isa") == 0) {
        HTH_TRY(spec_isa(value, &spec->isa));
    } else if (spec_rate(spec, item) != NULL) {
        HTH_TRY(hth_rate_read(item, value, spec_rate(spec, item)));
    } else if (strcmp(item, "quota") == 0) {
        HTH_TRY(hth_quota_read(value, &spec->quota));
    } else if (strcmp(item, "graphs") == 0) {
        spec->plain = strcmp(value, "off") == 0;
        if (!spec->plain && strcmp(value, "on") != 0) {
            return hth_fail(HTH_EINVAL, "device option graphs=%s: expected on or off", value);
        }
    } else {
        HTH_TRY(spec_number(item, value, UINT64_MAX, &spec->seed));
    }
    return HTH_OK;
}

hth_err hth_device_spec_parse(const char *text, hth_device_spec *out)
{
    char buf[256];
    char *save = NULL;
    if (snprintf(buf, sizeof buf, "%s", text) >= (int)sizeof buf) {
        return hth_fail(HTH_EINVAL, "the device specification is longer than %zu bytes",
                        sizeof buf - 1);
    }
    *out = (hth_device_spec){.quota = 100};
    char *items = strchr(buf, ':');
    if (items != NULL) {
        *items++ = '\0';
    }
    int kind = spec_kind_find(buf);
    if (kind < 0) {
        char known[128] = "";
        for (size_t i = 0; i < N_KINDS; i++) {
            size_t n = strlen(known);
            snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", spec_kinds[i].kind);
        }
        return hth_fail(HTH_EINVAL, "unknown device '%s' (known here: %s)", buf, known);
    }
    snprintf(out->kind, sizeof out->kind, "%s", spec_kinds[kind].kind);
    for (char *item = items ? strtok_r(items, ",", &save) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &save)) {
        HTH_TRY(spec_item(kind, item, out));
    }
    return spec_link(out);
}

hth_err hth_device_spec_budget(const hth_device_spec *spec, uint64_t total, const char *dflt,
                               uint64_t *out)
{
    HTH_TRY(hth_parse_size(spec->mem[0] ? spec->mem : dflt, total, out));
    if (*out < 4096 || *out > total) {
        hth_size asked, there;
        hth_size_pair(*out, total, &asked, &there);
        return hth_fail(HTH_EINVAL,
                        "device memory %s: %s, which is not between 4 KiB and the machine's %s",
                        spec->mem[0] ? spec->mem : dflt, asked.text, there.text);
    }
    return HTH_OK;
}

hth_err hth_device_spec_open(const hth_device_spec *spec, hth_device **out)
{
    return spec_kinds[spec_kind_find(spec->kind)].open(spec, out);
}
