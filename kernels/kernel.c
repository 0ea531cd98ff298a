// SPDX-License-Identifier: Apache-2.0
// Which kernels a device has follows from its name. "fake" devices run the CPU's kernels: what
// differs there is when things happen, not what is computed. A device of a plug-in brings its own.
#include "kernels/kernel.h"

#include "base/alloc.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

static bool kernel_on_cpu(const hth_device *d)
{
    return strncmp(d->props.name, "cpu", 3) == 0 || strncmp(d->props.name, "fake", 4) == 0;
}

static const hth_kernel_host kernel_host = {hth_const_map, hth_const_unmap};

// A node whose results have no elements has nothing to compute; its operands may have dimensions of
// any size.
static bool kernel_empty(const hth_graph *g, const hth_node *n)
{
    bool empty = n->n_outputs > 0;
    for (int i = 0; i < n->n_outputs && empty; i++) {
        empty = n->outputs[i] < 0 || hth_shape_elements(&g->values[n->outputs[i]].shape) == 0;
    }
    return empty;
}

static hth_err kernel_nothing_run(const hth_kernel *k, const hth_kernel_args *a)
{
    return HTH_OK;
}

static void kernel_nothing_close(hth_kernel *k)
{
    hth_free(k);
}

static hth_err kernel_nothing(const hth_node *n, hth_kernel **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for node '%s'", n->name);
    }
    **out = (hth_kernel){.run = kernel_nothing_run,
                         .close = kernel_nothing_close,
                         .implementation = "nothing",
                         .inplace_input = -1};
    return HTH_OK;
}

hth_err hth_kernel_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                           const char *algorithm, hth_kernel **out)
{
    *out = NULL;
    if (kernel_empty(g, n)) {
        return kernel_nothing(n, out);
    }
    if (kernel_on_cpu(d)) {
        return hth_cpu_prepare(d, g, n, algorithm, out);
    }
    if (d->kernels != NULL) {
        return d->kernels->prepare(&kernel_host, d, g, n, algorithm, out);
    }
    return hth_fail(HTH_ENOTSUP, "device %s has no kernels in this build", d->props.name);
}

void hth_kernel_close(hth_kernel *k)
{
    if (k != NULL) {
        k->close(k);
    }
}

static hth_err kernel_list(hth_device *d, const hth_graph *g, const hth_node *n, bool first,
                           hth_choice *list, int cap, int *count)
{
    *count = 0;
    if (kernel_on_cpu(d)) {
        return hth_cpu_algorithms(d, g, n, list, cap, count);
    }
    if (d->kernels != NULL) {
        return d->kernels->algorithms(&kernel_host, d, g, n, first, list, cap, count);
    }
    return hth_fail(HTH_ENOTSUP, "device %s has no kernels in this build", d->props.name);
}

hth_err hth_kernel_algorithms(hth_device *d, const hth_graph *g, const hth_node *n,
                              hth_choice *list, int cap, int *count)
{
    return kernel_list(d, g, n, false, list, cap, count);
}

hth_err hth_kernel_first(hth_device *d, const hth_graph *g, const hth_node *n, hth_choice *list,
                         int cap, int *count)
{
    return kernel_list(d, g, n, true, list, cap, count);
}

const hth_fuse_oracle *hth_kernel_oracle(hth_device *d)
{
    return kernel_on_cpu(d) ? hth_cpu_oracle(d) : d->kernels != NULL ? d->kernels->oracle(d) : NULL;
}

hth_err hth_kernel_computes(hth_device *d, hth_precision p)
{
    if (p == HTH_PRECISION_FP32) {
        return HTH_OK;
    }
    return d->kernels != NULL && !kernel_on_cpu(d)
               ? d->kernels->computes(d, p)
               : hth_fail(HTH_ENOTSUP, "%s computes in fp32 only: precision %s needs a CUDA device",
                          d->props.name, hth_precision_name(p));
}

hth_err hth_kernel_half(hth_device *d, hth_graph *g)
{
    return g->precision == HTH_PRECISION_BF16 && d->kernels != NULL && !kernel_on_cpu(d)
               ? hth_pass_half(g, d->kernels->half, d)
               : HTH_OK;
}
