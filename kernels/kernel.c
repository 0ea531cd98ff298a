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
static const hth_kernel_ops *kernel_ops(const hth_device *device)
{
    const hth_kernel_ops *ops = device->kernels;
    for (size_t i = 0; ops == NULL && i < sizeof kernel_built_in / sizeof *kernel_built_in; i++) {
        const char *kind = kernel_built_in[i].kind;
        bool is = strncmp(device->props.name, kind, strlen(kind)) == 0;
        ops = is ? kernel_built_in[i].ops : NULL;
    }
    return ops;
}

static hth_err kernel_none(const hth_device *device)
{
    return hth_fail(HTH_ENOTSUP, "device %s has no kernels in this build", device->props.name);
}

static const hth_kernel_host kernel_host = {hth_const_map, hth_const_unmap};

// A node whose results have no elements has nothing to compute; its operands may have dimensions of
// any size.
static bool kernel_empty(const hth_graph *graph, const hth_node *node)
{
    bool empty = node->n_outputs > 0;
    for (int i = 0; i < node->n_outputs && empty; i++) {
        empty =
            node->outputs[i] < 0 || hth_shape_elements(&graph->values[node->outputs[i]].shape) == 0;
    }
    return empty;
}

static hth_err kernel_nothing_run(const hth_kernel *kernel, const hth_kernel_args *args)
{
    return HTH_OK;
}

static void kernel_nothing_close(hth_kernel *kernel)
{
    hth_free(kernel);
}

static hth_err kernel_nothing(const hth_node *node, hth_kernel **out)
{
    *out = hth_calloc(1, sizeof **out);
    if (*out == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    **out = (hth_kernel){.run = kernel_nothing_run,
                         .close = kernel_nothing_close,
                         .implementation = "nothing",
                         .inplace_input = -1};
    return HTH_OK;
}

hth_err hth_kernel_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const char *algorithm, hth_kernel **out)
{
    *out = NULL;
    if (kernel_empty(graph, node)) {
        return kernel_nothing(node, out);
    }
    const hth_kernel_ops *ops = kernel_ops(device);
    return ops != NULL ? ops->prepare(&kernel_host, device, graph, node, algorithm, out)
                       : kernel_none(device);
}

void hth_kernel_close(hth_kernel *kernel)
{
    if (kernel != NULL) {
        kernel->close(kernel);
    }
}

static hth_err kernel_list(hth_device *device, const hth_graph *graph, const hth_node *node,
                           bool first, hth_choice *list, int cap, int *count)
{
    *count = 0;
    const hth_kernel_ops *ops = kernel_ops(device);
    return ops != NULL ? ops->algorithms(&kernel_host, device, graph, node, first, list, cap, count)
                       : kernel_none(device);
}

hth_err hth_kernel_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                              hth_choice *list, int cap, int *count)
{
    return kernel_list(device, graph, node, false, list, cap, count);
}

hth_err hth_kernel_first(hth_device *device, const hth_graph *graph, const hth_node *node,
                         hth_choice *list, int cap, int *count)
{
    return kernel_list(device, graph, node, true, list, cap, count);
}

const hth_fuse_oracle *hth_kernel_oracle(hth_device *device)
{
    const hth_kernel_ops *ops = kernel_ops(device);
    return ops != NULL ? ops->oracle(device) : NULL;
}

hth_err hth_kernel_computes(hth_device *device, hth_precision precision)
{
    const hth_kernel_ops *ops = kernel_ops(device);
    if (precision == HTH_PRECISION_FP32) {
        return HTH_OK;
    }
    return ops != NULL ? ops->computes(device, precision) : kernel_none(device);
}

hth_err hth_kernel_half(hth_device *device, hth_graph *graph)
{
    const hth_kernel_ops *ops = kernel_ops(device);
    return graph->precision == HTH_PRECISION_BF16 && ops != NULL && ops->half != NULL
               ? hth_pass_half(graph, ops->half, device)
               : HTH_OK;
}

const struct hth_kmeans_ops *hth_kernel_kmeans(const hth_device *device)
{
    const hth_kernel_ops *ops = kernel_ops(device);
    return ops != NULL ? ops->kmeans : NULL;
}
