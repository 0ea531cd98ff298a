// SPDX-License-Identifier: Apache-2.0
// What Conv, ConvTranspose and the gradients of Conv have in common: shapes, filters and pads in
// oneDNN's terms, the implementations that it offers, chunks along the batch. What an
// implementation accepts is asked, not known: a descriptor is cheap to make. oneDNN's plain-loop
// "ref" implementations are never taken: the project's own reference is as good.
#include "kernels/cpu/conv_form.h"

#include "graph/transposed.h"
#include "kernels/cpu/lowered.h"
#include "kernels/cpu/winograd/winograd.h"
#include "kernels/ref/ref_window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONV_MAX_SPLIT    16
#define CONV_MAX_WINOGRAD 16
#define CONV_SMALL        (1u << 20) // a workspace of less is not worth chunks
_Static_assert(HTH_DN_NAME == sizeof((hth_choice *)0)->name,
               "names of implementations are names of choices");

// How many groups to merge so that input and output channels of each fill whole blocks; 1: none.
// Costs that many times the arithmetic, and still beats what is left to such groups: im2col of a
// few channels. Depthwise has kernels of its own.
#define CONV_MAX_MERGE 16
static int64_t conv_merge(int64_t groups, int64_t in, int64_t out, int block)
{
    if (block == 0 || groups == 1 || (in == 1 && out == 1)) {
        return 1;
    }
    for (int64_t m = 1; m <= CONV_MAX_MERGE && m <= groups; m++) {
        if (groups % m == 0 && m * in % block == 0 && m * out % block == 0) {
            return m;
        }
    }
    return 1;
}

// ONNX's filters are [O, I/G, k..] (Conv) and [I, O/G, k..] (ConvTranspose); oneDNN wants [G, O/G,
// I/G, k..] of both.
static void conv_weights(const hth_value *value, int64_t groups, int block, hth_conv_form *form)
{
    const hth_shape *w = &value->shape;
    hth_dn_md md = {.dtype = HTH_DT_F32};
    hth_seq_widen wide = {groups, 1, w->dim[0] / groups, w->dim[1], 1};
    if (!form->transposed && value->constant != NULL) {
        wide.merge = conv_merge(groups, wide.in, wide.out, block);
        groups /= wide.merge;
    }
    int64_t outer = wide.out * wide.merge, inner = wide.in * wide.merge;
    int at = groups > 1 ? 1 : 0;
    md.ndims = w->rank + at;
    for (int i = w->rank - 1; i >= 2; i--) {
        md.dims[at + i] = w->dim[i];
        md.strides[at + i] = wide.taps;
        wide.taps *= w->dim[i];
    }
    md.dims[at] = form->transposed ? inner : outer;
    md.dims[at + 1] = form->transposed ? outer : inner;
    md.strides[at] = form->transposed ? wide.taps : inner * wide.taps;
    md.strides[at + 1] = form->transposed ? inner * wide.taps : wide.taps;
    if (at == 1) {
        md.dims[0] = groups;
        md.strides[0] = outer * inner * wide.taps;
    }
    form->weights = md;
    form->widen = wide;
}

static hth_err conv_geometry(const hth_node *node, const hth_shape *x, const hth_shape *w,
                             const hth_shape *y, hth_conv_form *form)
{
    ref_window win;
    int nsp = x->rank - 2;
    HTH_TRY(form->transposed ? ref_window_init(&win, node, y, x, w->dim + 2, nsp)
                             : ref_window_init(&win, node, x, y, w->dim + 2, nsp));
    for (int i = 0; i < nsp; i++) {
        int s = i + 3 - nsp;
        int64_t span = (win.k[s] - 1) * win.dilation[s] + 1;
        int64_t whole = (win.out[s] - 1) * win.stride[s] + span, end = win.pad_end[s];
        if (form->transposed) {
            (void)hth_transposed_pads(node, i, whole, win.in[s], &win.pad[s], &end);
        }
        if ((win.in[s] + win.pad[s] + end - span) / win.stride[s] + 1 != win.out[s] ||
            form->transposed) {
            end = whole - win.in[s] - win.pad[s];
        }
        form->op.strides[i] = win.stride[s];
        form->op.dilates[i] = win.dilation[s] - 1;
        form->op.pad_l[i] = win.pad[s];
        form->op.pad_r[i] = end;
    }
    return HTH_OK;
}

// Which values are the image, the filter and the result of the convolution that the node computes
// or derives (Conv, ConvTranspose, ConvGradData, ConvGradFilter).
typedef struct conv_roles {
    int x, w, y, bias; // bias: value or -1; of a filter's gradient the bias's gradient
} conv_roles;

static conv_roles conv_roles_of(const hth_node *node)
{
    const int *in = node->inputs, *out = node->outputs;
    if (node->op == HTH_OP_CONV_GRAD_DATA) {
        return (conv_roles){out[0], in[1], in[0], -1};
    }
    if (node->op == HTH_OP_CONV_GRAD_FILTER) {
        return (conv_roles){in[0], out[0], in[1], node->n_outputs > 1 ? out[1] : -1};
    }
    bool bias = node->n_inputs > 2;
    for (int i = 0; i < node->n_post; i++) {
        bias = bias && node->post[i].input != 2;
    }
    return (conv_roles){in[0], in[1], out[0], bias ? in[2] : -1};
}

// oneDNN's names of the parts: the result of the computation is `dst`, whatever it is.
static void conv_place(const hth_node *node, const hth_dn_md *x, const hth_dn_md *y,
                       hth_conv_form *form)
{
    hth_dn_md w = form->weights;
    w.any = true;
    form->op.src = node->op == HTH_OP_CONV_GRAD_DATA ? *y : *x;
    form->op.src1 = node->op == HTH_OP_CONV_GRAD_FILTER ? *y : w;
    if (node->op == HTH_OP_CONV_GRAD_DATA) {
        form->op.dst = *x;
        form->op.kind = HTH_DN_CONV_BWD_DATA;
    } else if (node->op == HTH_OP_CONV_GRAD_FILTER) {
        form->op.dst = w;
        form->op.kind = HTH_DN_CONV_BWD_WEIGHTS;
    } else {
        form->op.dst = *y;
        form->op.kind = form->transposed ? HTH_DN_DECONV : HTH_DN_CONV;
    }
}

// A gradient may have one post op: a data gradient's ReluGrad, with y as dx lies.
static hth_err conv_mask(const hth_graph *graph, const hth_node *node, hth_layout layout,
                         bool placed)
{
    const hth_post_op *p = &node->post[0];
    bool fits =
        node->n_post == 0 ||
        (node->n_post == 1 && node->op == HTH_OP_CONV_GRAD_DATA && p->op == HTH_OP_RELU_GRAD &&
         (!placed || graph->values[node->inputs[p->input]].layout == layout));
    return fits ? HTH_OK : hth_fail(HTH_ENOTSUP, "node '%s': post ops of a gradient", node->name);
}

hth_err hth_conv_describe(const hth_graph *graph, const hth_node *node, hth_layout in,
                          hth_layout out, bool placed, int split, hth_conv_form *form)
{
    conv_roles r = conv_roles_of(node);
    const hth_value *x = &graph->values[r.x], *w = &graph->values[r.w], *y = &graph->values[r.y];
    *form = (hth_conv_form){.transposed = node->op == HTH_OP_CONV_TRANSPOSE, .split = split};
    if (x->dtype != HTH_DT_F32 || w->dtype != HTH_DT_F32 || x->shape.rank < 3 ||
        x->shape.rank > 5 || hth_shape_elements(&y->shape) <= 0 ||
        hth_shape_elements(&x->shape) <= 0 || x->shape.dim[0] % split != 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, rank or empty output", node->name);
    }
    hth_dn_md mx = hth_dn_md_of(HTH_DT_F32, &x->shape, in),
              my = hth_dn_md_of(HTH_DT_F32, &y->shape, out);
    mx.dims[0] = my.dims[0] = x->shape.dim[0] / split;
    conv_weights(w, hth_node_int(node, "group", 1), hth_layout_block(out), form);
    conv_place(node, &mx, &my, form);
    if (r.bias >= 0) {
        form->op.bias = hth_dn_md_plain(HTH_DT_F32, 1, &y->shape.dim[1]);
    }
    HTH_TRY(conv_geometry(node, &x->shape, &w->shape, &y->shape, form));
    if (node->op == HTH_OP_CONV_GRAD_DATA || node->op == HTH_OP_CONV_GRAD_FILTER) {
        return conv_mask(graph, node, out, placed);
    }
    HTH_TRY(hth_cpu_posts(graph, node, out, placed, form->post, &form->n_post, &form->sum));
    for (int i = 0; i < form->n_post; i++) {
        int64_t *batch = &form->post[i].dn.src1.dims[0];
        *batch =
            form->post[i].dn.src1.ndims == x->shape.rank && *batch > 1 ? *batch / split : *batch;
    }
    return HTH_OK;
}

hth_err hth_conv_describe_placed(const hth_graph *graph, const hth_node *node, int split,
                                 hth_conv_form *form)
{
    conv_roles r = conv_roles_of(node);
    return hth_conv_describe(graph, node, graph->values[r.x].layout, graph->values[r.y].layout,
                             true, split, form);
}

void hth_conv_fuse(hth_dn_op *op, const hth_conv_form *form, int n_fused)
{
    op->n_post = n_fused;
    for (int i = 0; i < n_fused; i++) {
        op->post[i] = form->post[i].dn;
    }
}

static bool conv_listed(const hth_conv_choice *list, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

// Appends the usable implementations of `alg` with as many post ops fused as that algorithm allows.
static void conv_list_alg(const hth_conv_form *form, dnnl_alg_kind_t alg, hth_conv_choice *list,
                          int cap, int *count)
{
    hth_dn_op op = form->op;
    op.alg = alg;
    int before = *count;
    for (int fused = form->n_post; fused >= 0 && *count == before; fused--) {
        hth_conv_fuse(&op, form, fused);
        for (int nth = 0; *count < cap; nth++) {
            hth_conv_choice *c = &list[*count];
            *c = (hth_conv_choice){.alg = alg, .nth = nth, .n_fused = fused};
            if (hth_dn_probe(&op, nth, c->name, &c->scratchpad) != HTH_OK) {
                break;
            }
            if (strncmp(c->name, "ref", 3) != 0 && strstr(c->name, "+ref") == NULL &&
                !conv_listed(list, *count, c->name)) {
                (*count)++;
            }
        }
    }
}

int hth_conv_list(const hth_conv_form *form, hth_conv_choice *list, int cap)
{
    int count = 0;
    conv_list_alg(form, form->transposed ? dnnl_deconvolution_direct : dnnl_convolution_direct,
                  list, cap, &count);
    if (count < cap && !form->transposed) {
        conv_list_alg(form, dnnl_convolution_winograd, list, cap, &count);
    }
    return count;
}

hth_err hth_conv_find(const hth_conv_form *form, const hth_node *node, const char *algorithm,
                      hth_conv_choice *out)
{
    hth_conv_choice list[HTH_CONV_MAX_CHOICES];
    int count = hth_conv_list(form, list, algorithm == NULL ? 1 : HTH_CONV_MAX_CHOICES), pick = 0;
    while (algorithm != NULL && pick < count && strcmp(list[pick].name, algorithm) != 0) {
        pick++;
    }
    if (pick >= count) {
        return hth_fail(HTH_ENOTSUP, "node '%s': no oneDNN convolution '%s'", node->name,
                        algorithm == NULL ? "default" : algorithm);
    }
    *out = list[pick];
    return HTH_OK;
}

int hth_conv_parse(const char *algorithm, char name[HTH_DN_NAME])
{
    const char *slash = strrchr(algorithm, '/');
    int split = slash == NULL ? 0 : atoi(slash + 1);
    size_t n = split > 1 ? (size_t)(slash - algorithm) : strlen(algorithm);
    snprintf(name, HTH_DN_NAME, "%.*s", (int)n, algorithm);
    return split > 1 ? split : 1;
}

size_t hth_conv_chunk(const hth_value *value, int split)
{
    size_t bytes = 0;
    bool known = hth_tensor_bytes(value->dtype, &value->shape, value->layout, &bytes) == HTH_OK;
    return known ? bytes / (size_t)split : 0;
}

// The bytes of a kernel's constant inputs, packed where it wants that.
static uint64_t conv_resident(const hth_graph *graph, const hth_node *node,
                              const hth_kernel *kernel)
{
    uint64_t sum = 0;
    for (int i = 0; i < node->n_inputs; i++) {
        const hth_value *v = node->inputs[i] < 0 ? NULL : &graph->values[node->inputs[i]];
        size_t bytes = v != NULL && v->constant != NULL ? v->constant->bytes : 0;
        for (int p = 0; p < kernel->n_packings; p++) {
            bool packed = kernel->packings[p].input == i && kernel->packings[p].pack != NULL;
            bytes = packed ? kernel->packings[p].bytes : bytes;
        }
        sum += bytes;
    }
    return sum;
}

// conv_offer appends the choice of that name if `prepare` can make it. Only a prepared kernel knows
// its workspace: tails and reordered weights need some, too. Returns whether it could.
static bool conv_offer(hth_device *device, const hth_graph *graph, const hth_node *node,
                       hth_cpu_prepare_fn prepare, const char *name, int split, hth_choice *list,
                       int cap, int *count)
{
    hth_kernel *k;
    hth_choice c = {.time_us = -1, .error = -1, .split = split, .deterministic = true};
    int length = split > 1 ? snprintf(c.name, sizeof c.name, "%s/%d", name, split)
                           : snprintf(c.name, sizeof c.name, "%s", name);
    if (*count >= cap || length >= (int)sizeof c.name ||
        prepare(device, graph, node, c.name, &k) != HTH_OK) {
        return false;
    }
    c.workspace_bytes = k->workspace_bytes;
    c.resident_bytes = conv_resident(graph, node, k);
    c.accumulates = split > 1 && node->op == HTH_OP_CONV_GRAD_FILTER;
    hth_kernel_close(k);
    list[(*count)++] = c;
    return true;
}

// An implementation, and its chunks: they are for those whose workspace they make smaller.
static void conv_offer_chunks(hth_device *device, const hth_graph *graph, const hth_node *node,
                              hth_cpu_prepare_fn prepare, const char *name, hth_choice *list,
                              int cap, int *count)
{
    int64_t batch = graph->values[conv_roles_of(node).x].shape.dim[0];
    bool made = conv_offer(device, graph, node, prepare, name, 1, list, cap, count);
    uint64_t least = made ? list[*count - 1].workspace_bytes : 0;
    for (int split = 2; made && split <= CONV_MAX_SPLIT && least > CONV_SMALL; split *= 2) {
        if (batch % split == 0 &&
            conv_offer(device, graph, node, prepare, name, split, list, cap, count)) {
            bool smaller = list[*count - 1].workspace_bytes < least;
            least = smaller ? list[*count - 1].workspace_bytes : least;
            *count -= smaller ? 0 : 1;
        }
    }
}

// Winograd; of a tile size only what differs in workspace.
static void conv_offer_winograd(hth_device *device, const hth_graph *graph, const hth_node *node,
                                hth_cpu_prepare_fn winograd, hth_choice *list, int cap, int *count)
{
    char names[CONV_MAX_WINOGRAD][HTH_WINO_NAME];
    int n_names = cpu_winograd_names(device, graph, node, names, CONV_MAX_WINOGRAD), first = *count;
    for (int i = 0; i < n_names; i++) {
        if (!conv_offer(device, graph, node, winograd, names[i], 1, list, cap, count)) {
            continue;
        }
        const hth_choice *c = &list[*count - 1];
        for (int k = first; k < *count - 1; k++) {
            bool same = strncmp(list[k].name, c->name, strlen("winograd_4x4")) == 0 &&
                        (strstr(list[k].name, ":run") == NULL) == (strstr(c->name, ":run") == NULL);
            uint64_t a = c->workspace_bytes, b = list[k].workspace_bytes;
            if (same && a > b * 9 / 10 && b > a * 9 / 10) {
                (*count)--;
                break;
            }
        }
    }
}

hth_err hth_conv_offer_all(hth_device *device, const hth_graph *graph, const hth_node *node,
                           hth_cpu_prepare_fn prepare, hth_cpu_prepare_fn winograd,
                           hth_choice *list, int cap, int *count)
{
    hth_conv_form f;
    hth_conv_choice found[HTH_CONV_MAX_CHOICES];
    HTH_TRY(hth_conv_describe_placed(graph, node, 1, &f));
    int n_found = hth_conv_list(&f, found, HTH_CONV_MAX_CHOICES);
    *count = 0;
    for (int i = 0; i < n_found; i++) {
        conv_offer_chunks(device, graph, node, prepare, found[i].name, list, cap, count);
    }
    char lowered[HTH_LOWERED_NAMES][HTH_LOWERED_NAME];
    for (int i = cpu_lowered_names(graph, node, lowered) - 1; i >= 0; i--) {
        conv_offer(device, graph, node, cpu_lowered_prepare, lowered[i], 1, list, cap, count);
    }
    conv_offer_winograd(device, graph, node, winograd, list, cap, count);
    if (n_found == 0 && *count > 0) { // without oneDNN: what needs little workspace
        conv_offer(device, graph, node, cpu_fallback_prepare, "ref", 1, list, cap, count);
    }
    return *count > 0 ? HTH_OK
                      : hth_fail(HTH_ENOTSUP, "node '%s': no oneDNN convolution", node->name);
}
