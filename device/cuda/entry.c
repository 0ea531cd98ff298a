// SPDX-License-Identifier: Apache-2.0
// The plug-in's one entry, and the functions of base/ that the files beside it call, handed on to
// the program's own. Linked only into libhearth_cuda.so: tests link these files with base/ itself.
#include "device/cuda/cuda.h"
#include "device/plugin.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>

static const hth_plugin_host *host;
static hth_cuda_api api;

hth_err hth_fail(hth_err err, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return host->fail(err, text);
}

const char *hth_err_detail(void)
{
    return host->detail();
}

void *hth_calloc(size_t n, size_t size)
{
    return host->calloc(n, size);
}

void hth_free(void *p)
{
    host->free(p);
}

uint64_t hth_now_ns(void)
{
    return host->now_ns();
}

hth_err hth_device_spec_budget(const hth_device_spec *s, uint64_t total, const char *dflt,
                               uint64_t *out)
{
    return host->budget(s, total, dflt, out);
}

static hth_err entry_probe(const char *dirs, char *about, size_t cap)
{
    HTH_TRY(hth_cuda_load(dirs, &api));
    return hth_cuda_about(&api, about, cap);
}

static hth_err entry_open(const hth_device_spec *s, hth_device **out)
{
    return hth_cuda_open_device(&api, s, out);
}

static const hth_plugin entry_plugin = {HTH_PLUGIN_ABI, entry_probe, entry_open};

__attribute__((visibility("default"))) hth_plugin_entry hth_cuda_plugin;

const hth_plugin *hth_cuda_plugin(uint32_t abi, const hth_plugin_host *h)
{
    host = h;
    return abi == HTH_PLUGIN_ABI ? &entry_plugin : NULL;
}
