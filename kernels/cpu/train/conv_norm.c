// SPDX-License-Identifier: Apache-2.0
// A convolution and the batch norm of its result in training as one operator, forward and backward:
// for a device on which the batch norm's tensors do not lie together. The convolution's result x is
// never there as a whole. The batch is taken in slices: each is convolved into the workspace and
// its channels are summed; with the sums of all, each is convolved again and normalised. Backward
// is the same with dy, which dx may replace. The convolution's results are the same bits each time.
//
// A slice is computed by the kernels of its two nodes, in a graph of their own. Algorithms differ
// in the number of slices: "slices/4".
#include "kernels/cpu/train/train.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>

#define SLICES_MAX 64

typedef struct slice_kernel {
    hth_kernel base;
    hth_graph *graph; // of one slice: convolution, batch norm
    hth_kernel *conv, *norm;
    bool grad;
    int n;           // slices
    int first;       // the convolution's first input in the node's
    int n_in, n_out; // the node's
    size_t in, out;  // bytes of a slice of the convolution's input, and of y or dy
    size_t conv_at;  // the convolution's workspace, after x
    size_t sums_at;  // of a slice, then of all
    size_t channels; // of x
    double count;    // elements of a channel
    char name[24];
} slice_kernel;

static void *slice_move(void *at, size_t bytes)
{
    return at != NULL ? (char *)at + bytes : NULL;
}

static hth_err slice_convolve(const slice_kernel *k, const hth_kernel_args *args, int slice)
{
    void *const *from = args->in + k->first;
    void *in[] = {slice_move(from[0], k->in * (size_t)slice), from[1], from[2]};
    void *out[] = {args->workspace};
    hth_kernel_args conv = {
        .in = in, .out = out, .workspace = slice_move(args->workspace, k->conv_at)};
    return k->conv->run(k->conv, &conv);
}

// slice_norm sums a slice (all NULL), or writes it; the last one writes what is one per channel.
static void slice_norm(const slice_kernel *k, const hth_kernel_args *args, int slice, double *own,
                       double *all)
{
    size_t at = k->out * (size_t)slice;
    int n = 0;
    void *in[6] = {NULL}, *out[5] = {slice_move(args->out[0], at)};
    if (k->grad) {
        in[n++] = slice_move(args->in[0], at);
    }
    in[n++] = args->workspace;
    for (int i = k->first + 3; i < k->n_in; i++) {
        in[n++] = args->in[i];
    }
    for (int i = 1; i < k->n_out && slice + 1 == k->n; i++) {
        out[i] = args->out[i];
    }
    hth_kernel_args norm = {.in = in, .out = out};
    if (all == NULL) {
        cpu_batch_norm_sums(k->norm, &norm, own);
    } else {
        cpu_batch_norm_write(k->norm, &norm, all);
    }
}

static hth_err slice_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const slice_kernel *k = (const slice_kernel *)base;
    size_t n = 2 * k->channels;
    double *own = slice_move(args->workspace, k->sums_at), *all = own + n;
    memset(all, 0, n * sizeof *all);
    all[n] = k->count;
    for (int i = 0; i < k->n; i++) {
        HTH_TRY(slice_convolve(k, args, i));
        slice_norm(k, args, i, own, NULL);
        for (size_t c = 0; c < n; c++) {
            all[c] += own[c];
        }
    }
    for (int i = 0; i < k->n; i++) {
        HTH_TRY(slice_convolve(k, args, i));
        slice_norm(k, args, i, own, all);
    }
    return HTH_OK;
}

static void slice_close(hth_kernel *base)
{
    slice_kernel *k = (slice_kernel *)base;
    hth_kernel_close(k->conv);
    hth_kernel_close(k->norm);
    hth_graph_free(k->graph);
    hth_free(k->base.packings);
    hth_free(k);
}

static hth_err slice_pack(const hth_kernel *base, const hth_packing *packing, const void *plain,
                          void *dst)
{
    const slice_kernel *k = (const slice_kernel *)base;
    const hth_packing *of = &k->conv->packings[packing - k->base.packings];
    return of->pack(k->conv, of, plain, dst);
}

// The convolution's packings, of the node's inputs.
static hth_err slice_packings(slice_kernel *k)
{
    k->base.n_packings = k->conv->n_packings;
    if (k->conv->n_packings == 0) {
        return HTH_OK;
    }
    k->base.packings =
        hth_memdup(k->conv->packings, (size_t)k->conv->n_packings * sizeof(hth_packing));
    for (int i = 0; k->base.packings != NULL && i < k->base.n_packings; i++) {
        hth_packing *p = &k->base.packings[i];
        p->input += k->first;
        p->pack = p->pack != NULL ? slice_pack : NULL;
    }
    return k->base.packings != NULL ? HTH_OK : hth_no_memory("a convolution in slices");
}

// slice_value makes a slice's value of one of the whole node: *out -1 where there is none.
static hth_err slice_value(slice_kernel *k, const hth_graph *graph, int value, bool sliced,
                           int *out)
{
    *out = -1;
    if (value < 0) {
        return HTH_OK;
    }
    const hth_value *v = &graph->values[value];
    hth_shape shape = v->shape;
    shape.dim[0] /= sliced ? k->n : 1;
    if (v->constant != NULL && !sliced) {
        return hth_graph_add_const(k->graph, NULL, hth_const_hold(v->constant), out);
    }
    HTH_TRY(hth_graph_add_value(k->graph, NULL, v->dtype, &shape, out));
    k->graph->values[*out].layout = v->layout;
    return HTH_OK;
}

// slice_graph makes the two nodes.
static hth_err slice_graph(slice_kernel *k, const hth_graph *graph, const hth_node *node)
{
    int conv[3], in[6], out[5], at, x, n_in = 5, n_out = node->n_outputs;
    const int *of = node->inputs + k->first;
    int y = k->grad ? node->inputs[0] : node->outputs[0]; // x is like it
    HTH_TRY(hth_graph_new(&k->graph));
    for (int i = 0; i < 3; i++) {
        HTH_TRY(slice_value(k, graph, of[i], i == 0, &conv[i]));
    }
    HTH_TRY(slice_value(k, graph, y, true, &x));
    HTH_TRY(hth_graph_add_node(k->graph, HTH_OP_CONV, node->name, conv, 3, &x, 1, &at));
    HTH_TRY(hth_node_copy_attrs(&k->graph->nodes[at], node));
    in[0] = x;
    if (k->grad) {
        HTH_TRY(slice_value(k, graph, y, true, &in[0]));
        in[1] = x;
        n_in = node->n_inputs > 7 && node->inputs[7] >= 0 ? 6 : 5;
    }
    for (int i = k->grad ? 2 : 1; i < n_in; i++) {
        HTH_TRY(slice_value(k, graph, of[3 + i - (k->grad ? 2 : 1)], false, &in[i]));
    }
    for (int i = 0; i < n_out; i++) {
        HTH_TRY(slice_value(k, graph, node->outputs[i], i == 0, &out[i]));
    }
    hth_op op = k->grad ? HTH_OP_BATCH_NORM_GRAD : HTH_OP_BATCH_NORM_TRAIN;
    HTH_TRY(hth_graph_add_node(k->graph, op, node->name, in, n_in, out, n_out, &at));
    hth_node *norm = &k->graph->nodes[at];
    HTH_TRY(hth_node_copy_attrs(norm, node));
    memcpy(norm->post, node->post, sizeof node->post);
    norm->n_post = node->n_post;
    return hth_node_set_int(norm, "share", 0); // its sums are taken by themselves
}

static size_t slice_round(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static hth_err slice_bytes(const hth_graph *graph, int value, size_t *out)
{
    const hth_value *v = &graph->values[value];
    return hth_tensor_bytes(v->dtype, &v->shape, v->layout, out);
}

static hth_err slice_make(hth_device *device, slice_kernel *k, const hth_graph *graph,
                          const hth_node *node)
{
    HTH_TRY(slice_graph(k, graph, node));
    const hth_node *conv = &k->graph->nodes[0], *norm = &k->graph->nodes[1];
    const hth_shape *s = &k->graph->values[conv->outputs[0]].shape;
    size_t x;
    HTH_TRY(hth_kernel_prepare(device, k->graph, conv, NULL, &k->conv));
    HTH_TRY(k->grad ? cpu_batch_norm_grad_prepare(device, k->graph, norm, NULL, &k->norm)
                    : cpu_batch_norm_train_prepare(device, k->graph, norm, NULL, &k->norm));
    HTH_TRY(slice_bytes(k->graph, conv->inputs[0], &k->in));
    HTH_TRY(slice_bytes(k->graph, conv->outputs[0], &x));
    k->out = x;
    k->channels = (size_t)s->dim[1];
    k->count = (double)k->n * (double)hth_shape_elements(s) / (double)k->channels;
    k->conv_at = slice_round(x);
    k->sums_at = k->conv_at + slice_round(k->conv->workspace_bytes);
    k->base.workspace_bytes = k->sums_at + (4 * k->channels + 1) * sizeof(double);
    return slice_packings(k);
}

// slice_number reads how many slices an algorithm has; by default as many as there can be: who asks
// for this operator has little memory.
static hth_err slice_number(const hth_node *node, int64_t images, const char *algorithm, int *out)
{
    int n = SLICES_MAX;
    if (algorithm != NULL) {
        n = strncmp(algorithm, "slices/", 7) == 0 ? atoi(algorithm + 7) : 0;
    }
    for (; algorithm == NULL && n > 1 && images % n != 0; n--) {
    }
    if (n < 2 || n > SLICES_MAX || images % n != 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': %lld images in %d slices", node->name,
                        (long long)images, n);
    }
    *out = n;
    return HTH_OK;
}

hth_err cpu_conv_norm_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const char *algorithm, hth_kernel **out)
{
    bool grad = node->op == HTH_OP_CONV_NORM_GRAD;
    const hth_shape *a = &graph->values[node->inputs[grad ? 1 : 0]].shape;
    int n = 0;
    HTH_TRY(slice_number(node, a->rank > 2 ? a->dim[0] : 0, algorithm, &n));
    slice_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->grad = grad;
    k->first = grad ? 1 : 0;
    k->n_in = node->n_inputs;
    k->n_out = node->n_outputs;
    k->n = n;
    snprintf(k->name, sizeof k->name, "slices/%d", n);
    k->base = (hth_kernel){.run = slice_run,
                           .close = slice_close,
                           .implementation = k->name,
                           .inplace_input = grad && node->outputs[0] >= 0 ? 0 : -1};
    hth_err err = slice_make(device, k, graph, node);
    if (err != HTH_OK) {
        slice_close(&k->base);
        return err;
    }
    *out = &k->base;
    return HTH_OK;
}

hth_err cpu_conv_norm_algorithms(hth_device *device, const hth_graph *graph, const hth_node *node,
                                 hth_choice *list, int cap, int *count)
{
    const hth_shape *a =
        &graph->values[node->inputs[node->op == HTH_OP_CONV_NORM_GRAD ? 1 : 0]].shape;
    *count = 0;
    for (int n = 2; n <= SLICES_MAX && *count < cap; n++) {
        bool even = (n & (n - 1)) == 0 || n == a->dim[0];
        hth_kernel *k;
        if (!even || a->dim[0] % n != 0) {
            continue;
        }
        hth_choice *c = &list[*count];
        *c = (hth_choice){.time_us = -1, .error = -1, .split = n, .deterministic = true};
        snprintf(c->name, sizeof c->name, "slices/%d", n);
        HTH_TRY(cpu_conv_norm_prepare(device, graph, node, c->name, &k));
        c->workspace_bytes = k->workspace_bytes;
        hth_kernel_close(k);
        ++*count;
    }
    return *count > 0 ? HTH_OK : hth_fail(HTH_ENOTSUP, "node '%s': no slices", node->name);
}
