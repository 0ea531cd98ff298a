// SPDX-License-Identifier: Apache-2.0
// Kernels are reached through their device's table: a plug-in's device brings one (d->kernels), and
// the built-in devices have a row here. It is looked up when a kernel is prepared, never when one
// runs.
#include "kernels/kernel.h"

#include "base/alloc.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

// "fake" devices run the CPU's kernels: what differs there is when things happen, not what is
// computed.
static const struct {
    const char *kind;
    const hth_kernel_ops *ops;
} kernel_built_in[] = {{"cpu", &hth_cpu_kernel_ops}, {"fake", &hth_cpu_kernel_ops}};

// kernel_ops returns a device's table, NULL: this build has no kernels for it.
static const hth_kernel_ops *kernel_ops(const hth_device *d)
{
    const hth_kernel_ops *ops = d->kernels;
    for (size_t i = 0; ops == NULL && i < sizeof kernel_built_in / sizeof *kernel_built_in; i++) {
        const char *kind = kernel_built_in[i].kind;
        bool is = strncmp(d->props.name, kind, strlen(kind)) == 0;
        ops = is ? kernel_built_in[i].ops : NULL;
    }
    return ops;
}

static hth_err kernel_none(const hth_device *d)
{
    return hth_fail(HTH_ENOTSUP, "device %s has no kernels in this build", d->props.name);
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
    const hth_kernel_ops *ops = kernel_ops(d);
    return ops != NULL ? ops->prepare(&kernel_host, d, g, n, algorithm, out) : kernel_none(d);
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
    const hth_kernel_ops *ops = kernel_ops(d);
    return ops != NULL ? ops->algorithms(&kernel_host, d, g, n, first, list, cap, count)
                       : kernel_none(d);
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
    const hth_kernel_ops *ops = kernel_ops(d);
    return ops != NULL ? ops->oracle(d) : NULL;
}

hth_err hth_kernel_computes(hth_device *d, hth_precision p)
{
    const hth_kernel_ops *ops = kernel_ops(d);
    if (p == HTH_PRECISION_FP32) {
        return HTH_OK;
    }
    return ops != NULL ? ops->computes(d, p) : kernel_none(d);
}

hth_err hth_kernel_half(hth_device *d, hth_graph *g)
{
    const hth_kernel_ops *ops = kernel_ops(d);
    return g->precision == HTH_PRECISION_BF16 && ops != NULL && ops->half != NULL
               ? hth_pass_half(g, ops->half, d)
               : HTH_OK;
}
