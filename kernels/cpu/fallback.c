// SPDX-License-Identifier: Apache-2.0
// Any operator through the reference kernels, so that a model never fails for want of a fast
// kernel. Blocked tensors are unpacked into, and packed from, plain copies in the workspace. The
// reference may allocate while it runs: the price of being able to everything, paid by rare
// operators only.
#include "kernels/cpu/cpu.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

typedef struct fallback_kernel {
    hth_kernel base;
    const hth_graph *graph;
    const hth_node *node;
    int n_threads;
    hth_tensor *in, *out; // plain views; data filled in by run
    size_t *at; // per input, then output: workspace offset of the plain copy, SIZE_MAX: none needed
} fallback_kernel;

static hth_layout fallback_layout(const fallback_kernel *kernel, const int *values, int i)
{
    return kernel->graph->values[values[i]].layout;
}

static hth_err fallback_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const fallback_kernel *k = (const fallback_kernel *)base;
    const hth_node *n = k->node;
    hth_team_set(k->n_threads);
    char *ws = args->workspace;
    for (int i = 0; i < n->n_inputs; i++) {
        hth_tensor *t = &k->in[i];
        t->data = args->in[i];
        if (k->at[i] != SIZE_MAX) {
            t->data = ws + k->at[i];
            hth_cpu_relayout(hth_dtype_bytes(t->dtype), &t->shape, fallback_layout(k, n->inputs, i),
                             args->in[i], HTH_LAYOUT_PLAIN, t->data);
        }
    }
    for (int i = 0; i < n->n_outputs; i++) {
        size_t at = k->at[n->n_inputs + i];
        k->out[i].data = at != SIZE_MAX ? ws + at : args->out[i];
    }
    HTH_TRY(hth_ref_eval(NULL, k->graph, n, k->in, k->out));
    for (int i = 0; i < n->n_outputs; i++) {
        const hth_tensor *t = &k->out[i];
        if (k->at[n->n_inputs + i] != SIZE_MAX) {
            hth_cpu_relayout(hth_dtype_bytes(t->dtype), &t->shape, HTH_LAYOUT_PLAIN, t->data,
                             fallback_layout(k, n->outputs, i), args->out[i]);
        }
    }
    return HTH_OK;
}

static void fallback_close(hth_kernel *base)
{
    fallback_kernel *k = (fallback_kernel *)base;
    hth_free(k->in);
    hth_free(k->out);
    hth_free(k->at);
    hth_free(k);
}

static hth_err fallback_view(fallback_kernel *kernel, int value, hth_tensor *tensor, size_t *at)
{
    *at = SIZE_MAX;
    if (value < 0) {
        return HTH_OK;
    }
    const hth_value *v = &kernel->graph->values[value];
    *tensor = (hth_tensor){.dtype = v->dtype, .layout = HTH_LAYOUT_PLAIN, .shape = v->shape};
    HTH_TRY(hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &tensor->bytes));
    if (v->layout != HTH_LAYOUT_PLAIN) {
        *at = kernel->base.workspace_bytes;
        kernel->base.workspace_bytes +=
            (tensor->bytes + HTH_DEVICE_ALIGN - 1) / HTH_DEVICE_ALIGN * HTH_DEVICE_ALIGN;
    }
    return HTH_OK;
}

hth_err cpu_fallback_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const char *algorithm, hth_kernel **out)
{
    fallback_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->base = (hth_kernel){
        .run = fallback_run, .close = fallback_close, .implementation = "ref", .inplace_input = -1};
    k->graph = graph;
    k->node = node;
    k->n_threads = device->props.n_threads;
    k->in = hth_calloc((size_t)node->n_inputs, sizeof *k->in);
    k->out = hth_calloc((size_t)node->n_outputs, sizeof *k->out);
    k->at = hth_calloc((size_t)(node->n_inputs + node->n_outputs), sizeof *k->at);
    hth_err err = HTH_OK;
    if (k->in == NULL || k->out == NULL || k->at == NULL) {
        err = hth_no_memory("node '%s'", node->name);
        goto fail;
    }
    for (int i = 0; i < node->n_inputs; i++) {
        HTH_GOTO(fallback_view(k, node->inputs[i], &k->in[i], &k->at[i]), fail);
    }
    for (int i = 0; i < node->n_outputs; i++) {
        HTH_GOTO(fallback_view(k, node->outputs[i], &k->out[i], &k->at[node->n_inputs + i]), fail);
    }
    *out = &k->base;
    return HTH_OK;
fail:
    fallback_close(&k->base);
    return err;
}
