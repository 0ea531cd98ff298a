// SPDX-License-Identifier: Apache-2.0
// Conv and ConvTranspose. What an implementation of oneDNN accepts (layouts, post ops, shapes) is
// not known here but asked: a descriptor is cheap to make. A post op that an implementation refuses
// (Winograd knows sums and ReLU only) runs behind it as a step of its own, so that every algorithm
// computes the whole node. oneDNN's plain-loop "ref" implementations are never taken: the project's
// own reference is as good.
#include "kernels/cpu/conv.h"

#include "kernels/cpu/post.h"
#include "kernels/cpu/winograd.h"
#include "kernels/ref/ref_window.h"

#include <stdio.h>
#include <string.h>

#define CONV_MAX_CHOICES 8
_Static_assert(HTH_DN_NAME == sizeof((hth_choice *)0)->name,
               "names of implementations are names of choices");

typedef struct conv_form {
    hth_dn_op op; // without algorithm and post ops
    bool transposed;
    hth_dn_md weights; // as the node has them, or widened
    hth_seq_widen widen;
    int n_post, sum;
    hth_cpu_post post[HTH_DN_MAX_POST];
} conv_form;

typedef struct conv_choice {
    char name[HTH_DN_NAME];
    dnnl_alg_kind_t alg;
    int nth, n_fused; // how many of the form's post ops the primitive does itself
    size_t scratchpad;
} conv_choice;

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
static void conv_weights(const hth_value *v, int64_t groups, int block, conv_form *f)
{
    const hth_shape *w = &v->shape;
    hth_dn_md md = {.dtype = HTH_DT_F32};
    hth_seq_widen wide = {groups, 1, w->dim[0] / groups, w->dim[1], 1};
    if (!f->transposed && v->constant != NULL) {
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
    md.dims[at] = f->transposed ? inner : outer;
    md.dims[at + 1] = f->transposed ? outer : inner;
    md.strides[at] = f->transposed ? wide.taps : inner * wide.taps;
    md.strides[at + 1] = f->transposed ? inner * wide.taps : wide.taps;
    if (at == 1) {
        md.dims[0] = groups;
        md.strides[0] = outer * inner * wide.taps;
    }
    f->weights = md;
    f->widen = wide;
}

static hth_err conv_geometry(const hth_node *n, const hth_shape *x, const hth_shape *w,
                             const hth_shape *y, conv_form *f)
{
    ref_window win;
    int nsp = x->rank - 2;
    HTH_TRY(f->transposed ? ref_window_init(&win, n, y, x, w->dim + 2, nsp)
                          : ref_window_init(&win, n, x, y, w->dim + 2, nsp));
    for (int i = 0; i < nsp; i++) {
        int s = i + 3 - nsp;
        int64_t span = (win.k[s] - 1) * win.dilation[s] + 1;
        int64_t end = win.pad_end[s];
        if ((win.in[s] + win.pad[s] + end - span) / win.stride[s] + 1 != win.out[s] ||
            f->transposed) {
            end = (win.out[s] - 1) * win.stride[s] + span - win.in[s] - win.pad[s];
        }
        f->op.strides[i] = win.stride[s];
        f->op.dilates[i] = win.dilation[s] - 1;
        f->op.pad_l[i] = win.pad[s];
        f->op.pad_r[i] = end;
    }
    return HTH_OK;
}

// The form with input in layout `in`, output in layout `out`; `placed` as for hth_cpu_posts.
static hth_err conv_describe(const hth_graph *g, const hth_node *n, hth_layout in, hth_layout out,
                             bool placed, conv_form *f)
{
    const hth_value *x = &g->values[n->inputs[0]], *w = &g->values[n->inputs[1]],
                    *y = &g->values[n->outputs[0]];
    bool bias = n->n_inputs > 2 && n->inputs[2] >= 0;
    for (int i = 0; i < n->n_post; i++) {
        bias = bias && n->post[i].input != 2;
    }
    *f = (conv_form){.transposed = n->op == HTH_OP_CONV_TRANSPOSE};
    if (x->dtype != HTH_DT_F32 || w->dtype != HTH_DT_F32 || x->shape.rank < 3 ||
        x->shape.rank > 5 || hth_shape_elements(&y->shape) == 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, rank or empty output", n->name);
    }
    if (w->constant == NULL || (bias && g->values[n->inputs[2]].constant == NULL)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': its filter is computed and cannot be packed once",
                        n->name);
    }
    f->op.kind = f->transposed ? HTH_DN_DECONV : HTH_DN_CONV;
    f->op.src = hth_dn_md_of(HTH_DT_F32, &x->shape, in);
    f->op.dst = hth_dn_md_of(HTH_DT_F32, &y->shape, out);
    conv_weights(w, hth_node_int(n, "group", 1), hth_layout_block(out), f);
    f->op.src1 = f->weights;
    f->op.src1.any = true;
    if (bias) {
        f->op.bias = hth_dn_md_plain(HTH_DT_F32, 1, &y->shape.dim[1]);
    }
    HTH_TRY(conv_geometry(n, &x->shape, &w->shape, &y->shape, f));
    return hth_cpu_posts(g, n, out, placed, f->post, &f->n_post, &f->sum);
}

static void conv_fuse(hth_dn_op *op, const conv_form *f, int n_fused)
{
    op->n_post = n_fused;
    for (int i = 0; i < n_fused; i++) {
        op->post[i] = f->post[i].dn;
    }
}

static bool conv_listed(const conv_choice *list, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

// Appends the usable implementations of `alg` with as many post ops fused as that algorithm allows.
static void conv_list_alg(const conv_form *f, dnnl_alg_kind_t alg, conv_choice *list, int cap,
                          int *count)
{
    hth_dn_op op = f->op;
    op.alg = alg;
    int before = *count;
    for (int fused = f->n_post; fused >= 0 && *count == before; fused--) {
        conv_fuse(&op, f, fused);
        for (int nth = 0; *count < cap; nth++) {
            conv_choice *c = &list[*count];
            *c = (conv_choice){.alg = alg, .nth = nth, .n_fused = fused};
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

static int conv_list(const conv_form *f, conv_choice *list, int cap)
{
    int count = 0;
    conv_list_alg(f, f->transposed ? dnnl_deconvolution_direct : dnnl_convolution_direct, list, cap,
                  &count);
    if (count < cap && !f->transposed) {
        conv_list_alg(f, dnnl_convolution_winograd, list, cap, &count);
    }
    return count;
}

// Binds the fused second operands, and makes the buffer of a fused sum the output's.
static hth_err conv_bind_posts(hth_seq *s, const conv_form *f, int n_fused)
{
    for (int i = 0; i < n_fused; i++) {
        if (f->post[i].dn.kind == dnnl_sum) {
            hth_seq_accumulate(s, f->post[i].input, hth_seq_last_bytes(s, DNNL_ARG_DST));
        } else if (f->post[i].input >= 0) {
            HTH_TRY(hth_seq_bind(s, DNNL_ARG_ATTR_MULTIPLE_POST_OP(i) | DNNL_ARG_SRC_1, HTH_SEQ_IN,
                                 (size_t)f->post[i].input));
        }
    }
    return HTH_OK;
}

static hth_err conv_build(hth_seq *s, const hth_graph *g, const hth_node *n, const conv_form *f,
                          const conv_choice *c)
{
    hth_dn_op op = f->op;
    hth_dn_prim *p;
    hth_seq_ref weights;
    op.alg = c->alg;
    conv_fuse(&op, f, c->n_fused);
    HTH_TRY(hth_dn_prim_open(&op, c->nth, &p));
    hth_err err = hth_seq_weights(s, p, DNNL_ARG_WEIGHTS, &g->values[n->inputs[1]], 1, &f->weights,
                                  &f->widen, &weights);
    if (err != HTH_OK) {
        hth_dn_prim_close(p);
        return err;
    }
    HTH_TRY(hth_seq_add(s, p));
    HTH_TRY(hth_seq_bind(s, DNNL_ARG_WEIGHTS, weights.from, weights.at));
    HTH_TRY(hth_seq_bind(s, DNNL_ARG_SRC, HTH_SEQ_IN, 0));
    HTH_TRY(hth_seq_bind(s, DNNL_ARG_DST, HTH_SEQ_OUT, 0));
    if (f->op.bias.ndims != 0) {
        HTH_TRY(hth_seq_bind(s, DNNL_ARG_BIAS, HTH_SEQ_IN, 2));
    }
    HTH_TRY(conv_bind_posts(s, f, c->n_fused));
    return hth_cpu_tail(s, f->post, c->n_fused, f->n_post, &f->op.dst);
}

static hth_err conv_describe_placed(const hth_graph *g, const hth_node *n, conv_form *f)
{
    return conv_describe(g, n, g->values[n->inputs[0]].layout, g->values[n->outputs[0]].layout,
                         true, f);
}

hth_err cpu_conv_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                         const char *algorithm, hth_kernel **out)
{
    conv_form f;
    conv_choice list[CONV_MAX_CHOICES];
    HTH_TRY(conv_describe_placed(g, n, &f));
    int count = conv_list(&f, list, algorithm == NULL ? 1 : CONV_MAX_CHOICES), pick = 0;
    while (algorithm != NULL && pick < count && strcmp(list[pick].name, algorithm) != 0) {
        pick++;
    }
    if (pick >= count) {
        return hth_fail(HTH_ENOTSUP, "node '%s': no oneDNN convolution '%s'", n->name,
                        algorithm == NULL ? "default" : algorithm);
    }
    hth_seq *s;
    HTH_TRY(hth_seq_open(d, &s));
    hth_err err = conv_build(s, g, n, &f, &list[pick]);
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    return hth_seq_finish(s, list[pick].name, out);
}

// Appends a choice if it can be made. Only an opened kernel knows its workspace: tails and
// reordered weights need some too.
static void conv_offer(hth_device *d, const hth_graph *g, const hth_node *n,
                       hth_cpu_prepare_fn prepare, const char *name, hth_choice *list, int *count)
{
    hth_kernel *k;
    if (prepare(d, g, n, name, &k) != HTH_OK) {
        return;
    }
    hth_choice *c = &list[(*count)++];
    *c = (hth_choice){.workspace_bytes = k->workspace_bytes,
                      .time_us = -1,
                      .error = -1,
                      .split = 1,
                      .deterministic = true};
    snprintf(c->name, sizeof c->name, "%.47s", name);
    hth_kernel_close(k);
}

hth_err cpu_conv_algorithms(hth_device *d, const hth_graph *g, const hth_node *n, hth_choice *list,
                            int cap, int *count)
{
    conv_form f;
    conv_choice found[CONV_MAX_CHOICES];
    HTH_TRY(conv_describe_placed(g, n, &f));
    int n_found = conv_list(&f, found, CONV_MAX_CHOICES);
    *count = 0;
    for (int i = 0; i < n_found && *count < cap; i++) {
        conv_offer(d, g, n, cpu_conv_prepare, found[i].name, list, count);
    }
    if (*count < cap) {
        conv_offer(d, g, n, cpu_winograd_prepare, HTH_WINOGRAD_NAME, list, count);
    }
    return *count > 0 ? HTH_OK : hth_fail(HTH_ENOTSUP, "node '%s': no oneDNN convolution", n->name);
}

// Whether oneDNN's direct convolution takes the node with these layouts, all post ops fused.
static bool conv_takes(const hth_graph *g, const hth_node *n, hth_layout in, hth_layout out)
{
    conv_form f;
    conv_choice first;
    return conv_describe(g, n, in, out, false, &f) == HTH_OK && conv_list(&f, &first, 1) == 1 &&
           first.n_fused == f.n_post;
}

bool cpu_conv_can_fuse(hth_device *d, const hth_graph *g, const hth_node *n,
                       const hth_post_op *post, int operand)
{
    int inputs[16];
    hth_node with = *n;
    if (n->n_inputs + 1 > 16 || n->n_post >= HTH_MAX_POST_OPS) {
        return false;
    }
    memcpy(inputs, n->inputs, (size_t)n->n_inputs * sizeof inputs[0]);
    with.inputs = inputs;
    with.post[with.n_post] = *post;
    with.post[with.n_post].input = -1;
    if (operand >= 0) {
        // Behind the bias's place, as the pass will put it.
        while (with.n_inputs < 3) {
            inputs[with.n_inputs++] = -1;
        }
        with.post[with.n_post].input = with.n_inputs;
        inputs[with.n_inputs++] = operand;
    }
    with.n_post++;
    bool any;
    hth_layout l = cpu_conv_layout(d, g, n, &any);
    return conv_takes(g, &with, cpu_conv_reads_plain(d, g, n) ? HTH_LAYOUT_PLAIN : l, l);
}

hth_layout cpu_conv_layout(hth_device *d, const hth_graph *g, const hth_node *n, bool *any)
{
    hth_layout blocked;
    hth_cpu_block(d, &blocked);
    *any = false;
    bool takes = conv_takes(g, n, blocked, blocked) || conv_takes(g, n, HTH_LAYOUT_PLAIN, blocked);
    return takes ? blocked : HTH_LAYOUT_PLAIN;
}

bool cpu_conv_reads_plain(hth_device *d, const hth_graph *g, const hth_node *n)
{
    hth_layout blocked;
    hth_cpu_block(d, &blocked);
    return conv_takes(g, n, HTH_LAYOUT_PLAIN, blocked);
}
