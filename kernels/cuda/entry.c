// SPDX-License-Identifier: Apache-2.0
// The plug-in's one entry, and the functions of base/ and graph/ that its files call, handed on to
// the program's own. Linked only into libhearth_cuda.so: tests link the files with base/ and graph/
// themselves.
#include "device/cuda/cuda.h"
#include "device/plugin.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ops.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const hth_plugin_host *host;
static const hth_kernel_host *graph_host;
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

hth_err hth_no_memory(const char *fmt, ...)
{
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return hth_fail(HTH_ENOMEM, "out of memory for %s", what);
}

hth_err hth_err_restore(hth_err err, const char *detail)
{
    return err == HTH_OK ? HTH_OK : host->fail(err, detail);
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

hth_err hth_device_spec_budget(const hth_device_spec *spec, uint64_t total, const char *dflt,
                               uint64_t *out)
{
    return host->budget(spec, total, dflt, out);
}

hth_err hth_const_map(hth_const *constant, const void **out)
{
    return graph_host->const_map(constant, out);
}

void hth_const_unmap(hth_const *constant)
{
    graph_host->const_unmap(constant);
}

void hth_kernel_close(hth_kernel *kernel)
{
    if (kernel != NULL) {
        kernel->close(kernel);
    }
}

// What of graph/attr.c changes nodes is linked along and never called here.

void hth_const_rele(hth_const *constant)
{
}

hth_const *hth_const_hold(hth_const *constant)
{
    return constant;
}

void *hth_memdup(const void *p, size_t bytes)
{
    void *copy = hth_calloc(1, bytes);
    return copy == NULL ? NULL : memcpy(copy, p, bytes);
}

char *hth_strdup(const char *s)
{
    return hth_memdup(s, strlen(s) + 1);
}

void *hth_realloc(void *p, size_t n, size_t size)
{
    return NULL;
}

int hth_mul_bytes(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_mul_overflow(a, b, out) ? -1 : 0;
}

static hth_err entry_prepare(const hth_kernel_host *host, hth_device *device,
                             const hth_graph *graph, const hth_node *node, const char *algorithm,
                             hth_kernel **out)
{
    graph_host = host;
    return hth_cuda_prepare(device, graph, node, algorithm, out);
}

static hth_err entry_algorithms(const hth_kernel_host *host, hth_device *device,
                                const hth_graph *graph, const hth_node *node, bool first,
                                hth_choice *list, int cap, int *count)
{
    graph_host = host;
    return hth_cuda_algorithms(device, graph, node, first, list, cap, count);
}

const struct hth_kernel_ops hth_cuda_kernel_ops = {
    entry_prepare, entry_algorithms, hth_cuda_oracle, hth_cuda_computes, hth_cuda_takes_half, NULL};

static hth_err entry_probe(const char *dirs, char *about, size_t cap)
{
    HTH_TRY(hth_cuda_load(dirs, &api));
    return hth_cuda_about(&api, about, cap);
}

static hth_err entry_open(const hth_device_spec *spec, hth_device **out)
{
    hth_device *d;
    HTH_TRY(hth_cuda_open_device(&api, spec, &d));
    hth_err err = hth_cuda_kernels_attach((hth_cuda *)d);
    if (err != HTH_OK) {
        d->ops->close(d);
        return err;
    }
    *out = d;
    return HTH_OK;
}

static const hth_plugin entry_plugin = {HTH_PLUGIN_ABI, entry_probe, entry_open};

__attribute__((visibility("default"))) hth_plugin_entry hth_cuda_plugin;

const hth_plugin *hth_cuda_plugin(uint32_t abi, const hth_plugin_host *h)
{
    host = h;
    return abi == HTH_PLUGIN_ABI ? &entry_plugin : NULL;
}
