// SPDX-License-Identifier: Apache-2.0
// The specification parser and the calls that every implementation shares: arguments are checked
// here once, so that an implementation sees only what makes sense.
#include "device/device.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"
#include "device/cpu/machine.h"
#include "device/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of the host, whatever the machine has: what measures the link, and the smallest steps.
#define DEVICE_HOST_MIN ((uint64_t)64 << 20)

static const struct {
    const char *kind;
    const char *options; // for people and for the check, comma separated
    hth_err (*open)(const hth_device_spec *s, hth_device **out);
} device_kinds[] = {
    {"cpu", "mem,threads", hth_cpu_open},
    {"fake", "mem,seed", hth_fake_open},
    {"cuda", "mem,graphs", hth_cuda_open},
};
#define N_KINDS (sizeof device_kinds / sizeof *device_kinds)

static int device_kind_find(const char *kind)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kind, device_kinds[i].kind) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static bool device_option_known(int kind, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = device_kinds[kind].options; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, len) == 0 && (p[len] == ',' || p[len] == '\0')) {
            return len > 0;
        }
    }
    return false;
}

static hth_err device_number(const char *name, const char *value, uint64_t max, uint64_t *out)
{
    char *end;
    *out = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0' || *out > max) {
        return hth_fail(HTH_EINVAL, "device option %s=%s: expected a number of at most %llu", name,
                        value, (unsigned long long)max);
    }
    return HTH_OK;
}

static hth_err device_item(int kind, char *item, hth_device_spec *s)
{
    uint64_t v;
    char *value = strchr(item, '=');
    if (value == NULL) {
        HTH_TRY(device_number("number", item, 1023, &v));
        s->index = (int)v;
        return HTH_OK;
    }
    *value++ = '\0';
    if (!device_option_known(kind, item)) {
        return hth_fail(HTH_EINVAL, "device '%s' has no option '%s' (it has: %s)", s->kind, item,
                        device_kinds[kind].options);
    }
    if (strcmp(item, "mem") == 0) {
        HTH_TRY(hth_parse_size(value, 100, &v));
        if (snprintf(s->mem, sizeof s->mem, "%s", value) >= (int)sizeof s->mem) {
            return hth_fail(HTH_EINVAL, "device option mem=%s is too long", value);
        }
    } else if (strcmp(item, "threads") == 0) {
        HTH_TRY(device_number(item, value, 1024, &v));
        if (v == 0) {
            return hth_fail(HTH_EINVAL, "device option threads=0: at least one thread is needed");
        }
        s->threads = (int)v;
    } else if (strcmp(item, "graphs") == 0) {
        s->plain = strcmp(value, "off") == 0;
        if (!s->plain && strcmp(value, "on") != 0) {
            return hth_fail(HTH_EINVAL, "device option graphs=%s: expected on or off", value);
        }
    } else {
        HTH_TRY(device_number(item, value, UINT64_MAX, &s->seed));
    }
    return HTH_OK;
}

// Reads "KIND[:ITEM,...]", an ITEM being a device number or option=value.
static hth_err device_spec_parse(const char *text, hth_device_spec *out)
{
    char buf[256], *save = NULL;
    if (snprintf(buf, sizeof buf, "%s", text) >= (int)sizeof buf) {
        return hth_fail(HTH_EINVAL, "the device specification is longer than %zu bytes",
                        sizeof buf - 1);
    }
    memset(out, 0, sizeof *out);
    char *items = strchr(buf, ':');
    if (items != NULL) {
        *items++ = '\0';
    }
    int kind = device_kind_find(buf);
    if (kind < 0) {
        char known[128] = "";
        for (size_t i = 0; i < N_KINDS; i++) {
            size_t n = strlen(known);
            snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", device_kinds[i].kind);
        }
        return hth_fail(HTH_EINVAL, "unknown device '%s' (known here: %s)", buf, known);
    }
    snprintf(out->kind, sizeof out->kind, "%s", device_kinds[kind].kind);
    for (char *item = items ? strtok_r(items, ",", &save) : NULL; item != NULL;
         item = strtok_r(NULL, ",", &save)) {
        HTH_TRY(device_item(kind, item, out));
    }
    return HTH_OK;
}

hth_err hth_device_spec_budget(const hth_device_spec *s, uint64_t total, const char *dflt,
                               uint64_t *out)
{
    HTH_TRY(hth_parse_size(s->mem[0] ? s->mem : dflt, total, out));
    if (*out < 4096 || *out > total) {
        hth_size asked, there;
        hth_size_pair(*out, total, &asked, &there);
        return hth_fail(HTH_EINVAL,
                        "device memory %s: %s, which is not between 4 KiB and the machine's %s",
                        s->mem[0] ? s->mem : dflt, asked.text, there.text);
    }
    return HTH_OK;
}

hth_err hth_device_name(const char *spec, char *out, size_t cap)
{
    hth_device_spec s;
    HTH_TRY(device_spec_parse(spec, &s));
    snprintf(out, cap, "%s:%d", s.kind, s.index);
    return HTH_OK;
}

hth_err hth_device_open(const char *spec, hth_device **out)
{
    if (out == NULL || spec == NULL) {
        return hth_fail(HTH_EINVAL,
                        "hth_device_open: no specification, or nowhere to put the device");
    }
    *out = NULL;
    hth_device_spec s;
    HTH_TRY(device_spec_parse(spec, &s));
    HTH_TRY(device_kinds[device_kind_find(s.kind)].open(&s, out));
    (*out)->plain = s.plain;
    const hth_device_props *p = &(*out)->props;
    uint64_t all = hth_machine_memory(), own = p->host_visible ? p->budget_bytes : 0;
    (*out)->host_limit_bytes = all > own + DEVICE_HOST_MIN ? all - own : DEVICE_HOST_MIN;
    return HTH_OK;
}

void hth_device_close(hth_device *d)
{
    if (d != NULL) {
        hth_stream_close(d->up);
        hth_stream_close(d->down);
        d->ops->close(d);
    }
}

// A copy that is waited for, on a stream of the device's own.
static hth_err device_copy(hth_device *d, hth_stream_kind kind, void *dst, const void *src,
                           size_t bytes)
{
    hth_stream **s = kind == HTH_STREAM_H2D ? &d->up : &d->down;
    if (bytes == 0) {
        return HTH_OK;
    }
    if (d->props.host_visible) {
        memcpy(dst, src, bytes);
        return HTH_OK;
    }
    HTH_TRY(*s == NULL ? hth_stream_open(d, kind, s) : HTH_OK);
    HTH_TRY(hth_stream_copy(*s, dst, src, bytes));
    return hth_stream_sync(*s);
}

hth_err hth_device_put(hth_device *d, void *far, const void *host, size_t bytes)
{
    return device_copy(d, HTH_STREAM_H2D, far, host, bytes);
}

hth_err hth_device_get(hth_device *d, void *host, const void *far, size_t bytes)
{
    return device_copy(d, HTH_STREAM_D2H, host, far, bytes);
}

hth_err hth_device_zero(hth_device *d, void *far, size_t bytes)
{
    static char zeros[1 << 20]; // never written
    if (d->props.host_visible) {
        memset(far, 0, bytes);
        return HTH_OK;
    }
    if (d->ops->zero != NULL && bytes > 0) {
        HTH_TRY(d->up == NULL ? hth_stream_open(d, HTH_STREAM_H2D, &d->up) : HTH_OK);
        HTH_TRY(d->ops->zero(d->up, far, bytes));
        return hth_stream_sync(d->up);
    }
    for (size_t at = 0; at < bytes; at += sizeof zeros) {
        size_t n = bytes - at < sizeof zeros ? bytes - at : sizeof zeros;
        HTH_TRY(hth_device_put(d, (char *)far + at, zeros, n));
    }
    return HTH_OK;
}

hth_err hth_device_reserve(hth_device *d, size_t bytes, void **base)
{
    *base = NULL;
    if (bytes == 0) {
        return hth_fail(HTH_EINVAL, "device %s: cannot reserve 0 bytes", d->props.name);
    }
    if (bytes > d->props.budget_bytes) {
        return hth_fail(HTH_ETOOBIG, "device %s: %zu bytes requested, the budget is %llu",
                        d->props.name, bytes, (unsigned long long)d->props.budget_bytes);
    }
    return d->ops->reserve(d, bytes, base);
}

void hth_device_release(hth_device *d, void *base, size_t bytes)
{
    if (base != NULL) {
        d->ops->release(d, base, bytes);
    }
}

static hth_err device_host(hth_device *d, size_t bytes, void **base)
{
    if (d->ops->reserve_host != NULL) {
        return d->ops->reserve_host(d, bytes, base);
    }
    *base = hth_alloc_large(bytes);
    return *base != NULL ? HTH_OK
                         : hth_fail(HTH_ENOMEM, "device %s: no %zu bytes of host memory",
                                    d->props.name, bytes);
}

hth_err hth_device_reserve_host(hth_device *d, size_t bytes, void **base)
{
    *base = NULL;
    uint64_t left =
        d->host_limit_bytes > d->host_taken_bytes ? d->host_limit_bytes - d->host_taken_bytes : 0;
    if (bytes > left) {
        hth_size need, there;
        hth_size_pair(bytes, left, &need, &there);
        return hth_fail(HTH_ENOMEM,
                        "device %s: %s of host memory are needed for offloading, but the machine "
                        "has %s left; use a smaller batch, or --spill DIR",
                        d->props.name, need.text, there.text);
    }
    HTH_TRY(device_host(d, bytes, base));
    d->host_taken_bytes += bytes;
    return HTH_OK;
}

void hth_device_release_host(hth_device *d, void *base, size_t bytes)
{
    if (base == NULL) {
        return;
    }
    d->host_taken_bytes -= bytes;
    if (d->ops->release_host != NULL) {
        d->ops->release_host(d, base);
    } else {
        hth_free(base);
    }
}

hth_err hth_stream_open(hth_device *d, hth_stream_kind kind, hth_stream **out)
{
    *out = NULL;
    if ((unsigned)kind > HTH_STREAM_D2H) {
        return hth_fail(HTH_EINVAL, "device %s: no stream of kind %d", d->props.name, (int)kind);
    }
    return d->ops->stream_open(d, kind, out);
}

void hth_stream_close(hth_stream *s)
{
    if (s != NULL) {
        s->device->ops->stream_close(s);
    }
}

hth_err hth_stream_launch(hth_stream *s, hth_err (*fn)(void *arg), void *arg)
{
    if (fn == NULL) {
        return hth_fail(HTH_EINVAL, "device %s: nothing to launch", s->device->props.name);
    }
    return s->device->ops->launch(s, fn, arg);
}

hth_err hth_stream_copy(hth_stream *s, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0 && (dst == NULL || src == NULL)) {
        return hth_fail(HTH_EINVAL, "device %s: copy of %zu bytes from or to nowhere",
                        s->device->props.name, bytes);
    }
    return bytes == 0 ? HTH_OK : s->device->ops->copy(s, dst, src, bytes);
}

static hth_err device_same(const hth_stream *s, const hth_event *e)
{
    return s->device == e->device
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the event belongs to device %s, the stream to %s",
                          e->device->props.name, s->device->props.name);
}

hth_err hth_stream_record(hth_stream *s, hth_event *e)
{
    HTH_TRY(device_same(s, e));
    return s->device->ops->record(s, e);
}

hth_err hth_stream_wait(hth_stream *s, hth_event *e)
{
    HTH_TRY(device_same(s, e));
    return s->device->ops->wait(s, e);
}

hth_err hth_stream_sync(hth_stream *s)
{
    return s->device->ops->sync(s);
}

hth_err hth_event_open(hth_device *d, hth_event **out)
{
    *out = NULL;
    return d->ops->event_open(d, out);
}

void hth_event_close(hth_event *e)
{
    if (e != NULL) {
        e->device->ops->event_close(e);
    }
}

hth_err hth_event_sync(hth_event *e)
{
    return e->device->ops->event_sync(e);
}

uint64_t hth_event_time_ns(hth_event *e)
{
    return e->device->ops->event_time_ns(e);
}

hth_err hth_device_memory(hth_device *d, uint64_t *total, uint64_t *free)
{
    *total = *free = 0;
    return d->ops->memory != NULL
               ? d->ops->memory(d, total, free)
               : hth_fail(HTH_ENOTSUP, "%s has no memory of its own", d->props.name);
}

bool hth_device_captures(const hth_device *d)
{
    return d->ops->capture_begin != NULL && !d->plain;
}

hth_err hth_capture_begin(hth_stream *s)
{
    return s->device->ops->capture_begin(s);
}

hth_err hth_capture_end(hth_stream *s, hth_capture **io)
{
    return s->device->ops->capture_end(s, io);
}

hth_err hth_capture_launch(hth_capture *c, hth_stream *s)
{
    return c->device->ops->capture_launch(c, s);
}

void hth_capture_close(hth_capture *c)
{
    if (c != NULL) {
        c->device->ops->capture_close(c);
    }
}
