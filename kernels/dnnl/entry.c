// SPDX-License-Identifier: Apache-2.0
// The entry of libhearth_dnnl.so, and the functions of base/ that its files call, handed on to the
// program's own.
#include "kernels/dnnl/entry.h"

#include "base/alloc.h"

#include <stdarg.h>
#include <stdio.h>

const hth_onednn_host *hth_dnnl_host;

hth_err hth_fail(hth_err err, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return hth_dnnl_host->fail(err, text);
}

hth_err hth_no_memory(const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return hth_fail(HTH_ENOMEM, "out of memory for %s", what);
}

void *hth_calloc(size_t n, size_t size)
{
    return hth_dnnl_host->calloc(n, size);
}

void hth_free(void *p)
{
    hth_dnnl_host->free(p);
}

__attribute__((visibility("default"))) hth_onednn_entry hth_dnnl_plugin;

const hth_onednn *hth_dnnl_plugin(uint32_t abi, const hth_onednn_host *host)
{
    static char version[32];
    static hth_onednn plugin = {
        .abi = HTH_ONEDNN_ABI, .version = version, .calls = &hth_dnnl_calls};
    if (abi != HTH_ONEDNN_ABI) {
        return NULL;
    }
    const dnnl_version_t *v = dnnl_version();
    snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
    hth_dnnl_host = host;
    plugin.our_threads = hth_dnnl_openmp(host->team);
    return &plugin;
}
