// SPDX-License-Identifier: Apache-2.0
// Conv, ConvTranspose and Conv's gradients through cuDNN. ConvTranspose is the gradient with
// respect to the input. A bias, a sum with a tensor like the result and a ReLU, in this order, are
// fused where cuDNN has an engine for that; else, and for other post ops, one kernel of ours
// follows. The bias's gradient is a reduction of ours. Where images have their channels last, so
// has the filter, which is plain outside: a constant one is packed, others are converted on their
// way.
#include "kernels/cuda/dnn.h"
#include "kernels/cuda/site.h"
#include "kernels/cuda/window.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

#define CONV_THREADS 256u

typedef struct conv_form {
    hth_dnn_conv dnn;     // without what is fused
    int bias;             // input, -1: none
    int x_in, w_in, y_in; // which input each is, -1: the result
    int n_fused;          // post ops that a fused graph takes, -1: it cannot be fused
    int sum;              // input of the fused sum, -1: none
} conv_form;

typedef struct conv_plan {
    cudnnBackendDescriptor_t plan;
    int n;
    int64_t uid[5];
    hth_dnn_device device;
} conv_plan;

static hth_err conv_geometry(const hth_node *n, const hth_shape *x, const hth_shape *w,
                             const hth_shape *y, hth_dnn_conv *c)
{
    hth_cuda_window win;
    HTH_TRY(hth_cuda_window_get(n, x, y, w->dim + 2, &win));
    c->n_spatial = win.n_spatial == 3 ? 3 : 2; // of one dimension a second one of size 1
    int first = 3 - c->n_spatial;
    const hth_shape *from[] = {x, w, y};
    int64_t *to[] = {c->x, c->w, c->y};
    const int32_t *sizes[] = {win.in, win.k, win.out};
    for (int i = 0; i < 3; i++) {
        to[i][0] = from[i]->dim[0];
        to[i][1] = from[i]->dim[1];
        for (int k = 0; k < c->n_spatial; k++) {
            to[i][2 + k] = sizes[i][first + k];
        }
    }
    for (int k = 0; k < c->n_spatial; k++) {
        int s = first + k;
        int64_t span = (int64_t)(win.k[s] - 1) * win.dilation[s] + 1, end = win.pad_end[s];
        if ((win.in[s] + win.pad[s] + end - span) / win.stride[s] + 1 != win.out[s]) {
            end = (int64_t)(win.out[s] - 1) * win.stride[s] + span - win.in[s] - win.pad[s];
        }
        if (win.pad[s] < 0 || end < 0) {
            return hth_fail(HTH_ENOTSUP, "negative pads");
        }
        c->pre[k] = win.pad[s];
        c->post[k] = end;
        c->stride[k] = win.stride[s];
        c->dilation[k] = win.dilation[s];
    }
    return HTH_OK;
}

static bool conv_alike(const hth_value *a, const hth_value *b)
{
    return hth_shape_equal(&a->shape, &b->shape) && a->layout == b->layout;
}

// Which post ops a fused graph takes: a sum, then a ReLU, or one of them.
static void conv_fusion(const hth_graph *g, const hth_node *n, const hth_value *y, conv_form *f)
{
    int at = 0;
    f->sum = -1;
    if (at < n->n_post && n->post[at].op == HTH_OP_ADD && n->post[at].alpha == 1 &&
        conv_alike(&g->values[n->inputs[n->post[at].input]], y)) {
        f->sum = n->post[at++].input;
    }
    at += at < n->n_post && n->post[at].op == HTH_OP_RELU;
    bool any = f->bias >= 0 || at > 0;
    f->n_fused = f->dnn.kind == HTH_DNN_FORWARD && any ? at : -1;
}

static hth_err conv_describe(const hth_graph *g, const hth_node *n, conv_form *f)
{
    const hth_value *a = hth_cuda_in(g, n, 0), *b = hth_cuda_in(g, n, 1),
                    *r = hth_cuda_out(g, n, 0);
    *f = (conv_form){.bias = -1, .x_in = 0, .w_in = 1, .y_in = -1, .sum = -1};
    // cuda_layout has a convolution's images plain where the precision has no engine else
    f->dnn.nhwc = a->layout == HTH_LAYOUT_NHWC;
    f->dnn.precision =
        f->dnn.nhwc || g->precision == HTH_PRECISION_FP32 ? g->precision : HTH_PRECISION_TF32;
    HTH_TRY(hth_cuda_need_float(g, n, 3, 2));
    if (a->shape.rank < 3 || hth_cuda_count(r) == 0 || hth_cuda_count(a) == 0) {
        return hth_fail(HTH_ENOTSUP, "%d dimensions, or empty", a->shape.rank);
    }
    switch (n->op) {
    case HTH_OP_CONV:
        HTH_TRY(conv_geometry(n, &a->shape, &b->shape, &r->shape, &f->dnn));
        break;
    case HTH_OP_CONV_GRAD_FILTER: // x, dy -> dw
        f->dnn.kind = HTH_DNN_FILTER;
        f->w_in = -1;
        f->y_in = 1;
        HTH_TRY(conv_geometry(n, &a->shape, &r->shape, &b->shape, &f->dnn));
        break;
    default: // dy, w -> dx
        f->dnn.kind = HTH_DNN_DATA;
        f->x_in = -1;
        f->y_in = 0;
        HTH_TRY(conv_geometry(n, &r->shape, &b->shape, &a->shape, &f->dnn));
    }
    if ((n->op == HTH_OP_CONV || n->op == HTH_OP_CONV_TRANSPOSE) && hth_cuda_in(g, n, 2) != NULL) {
        f->bias = 2;
    }
    conv_fusion(g, n, r, f);
    return HTH_OK;
}

static hth_dnn_conv conv_fused(const conv_form *f)
{
    hth_dnn_conv c = f->dnn;
    c.bias = f->bias >= 0;
    c.sum = f->sum >= 0;
    c.relu = f->n_fused > (f->sum >= 0 ? 1 : 0);
    return c;
}

static hth_err conv_run(const hth_cuda_seq *s, const hth_cuda_step *step, void *const *address)
{
    const conv_plan *p = step->state;
    const hth_cuda_api *api = s->d->api;
    cudnnStatus_t r = api->cudnnSetStream(p->device.handle, s->d->current);
    if (r != CUDNN_STATUS_SUCCESS) {
        return hth_fail(HTH_EIO, "cuDNN: cudnnSetStream answered %d", (int)r);
    }
    return hth_dnn_execute(&p->device, p->plan, p->n, p->uid, address, address[p->n]);
}

static void conv_close(hth_cuda_seq *s, hth_cuda_step *step)
{
    conv_plan *p = step->state;
    (void)p->device.api->cudnnBackendDestroyDescriptor(p->plan);
    hth_free(p);
}

static void conv_tensor(hth_cuda_seq *s, conv_plan *p, hth_dnn_uid uid, const hth_cuda_place *at)
{
    hth_cuda_bind(s, 0, at->from, at->index, at->offset);
    p->uid[p->n++] = uid;
}

enum { CONV_X, CONV_W, CONV_Y, CONV_BIAS, CONV_SUM, CONV_TENSORS };

// Where the plan's tensors are. What lies otherwise than it wants, or is of another type, is
// converted before; *result, where it is not the node's output, behind.
static void conv_places(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const conv_form *f,
                        const hth_dnn_conv *c, hth_cuda_place at[CONV_TENSORS], int *result)
{
    const int input[] = {f->x_in, f->w_in, f->y_in, c->bias ? f->bias : -1, c->sum ? f->sum : -1};
    const hth_value *y = hth_cuda_out(g, n, 0);
    hth_layout lies = c->nhwc ? HTH_LAYOUT_NHWC : HTH_LAYOUT_PLAIN;
    bool half = c->precision == HTH_PRECISION_BF16;
    for (int i = 0; i < CONV_TENSORS; i++) {
        if (input[i] >= 0) {
            at[i] =
                hth_cuda_operand(s, g, n, input[i], i == CONV_BIAS ? HTH_LAYOUT_PLAIN : lies, half);
        } else if (i <= CONV_Y) {
            bool turns = i == CONV_W && c->nhwc && y->shape.dim[1] > 1 &&
                         hth_shape_elements(&y->shape) > y->shape.dim[0] * y->shape.dim[1];
            *result = i;
            at[i] = (hth_cuda_place){HTH_CUDA_OUT, 0, 0, y->layout, hth_cuda_half(y)};
            if (turns || at[i].half != half) {
                size_t bytes = hth_cuda_count(y) * (half ? sizeof(uint16_t) : sizeof(float));
                at[i] = (hth_cuda_place){HTH_CUDA_WS, 0, hth_cuda_workspace(s, bytes), lies, half};
            }
        }
    }
}

// The step that runs `plan`, which it takes over.
static hth_err conv_add(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const conv_form *f,
                        const hth_dnn_conv *c, const hth_dnn_device *d,
                        cudnnBackendDescriptor_t plan, int64_t workspace)
{
    static const hth_dnn_uid uid[] = {HTH_DNN_X, HTH_DNN_W, HTH_DNN_Y, HTH_DNN_BIAS, HTH_DNN_SUM};
    hth_cuda_place at[CONV_TENSORS];
    const hth_value *y = hth_cuda_out(g, n, 0);
    int result = CONV_Y;
    conv_plan *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        (void)d->api->cudnnBackendDestroyDescriptor(plan);
        return hth_fail(HTH_ENOMEM, "no memory to prepare a convolution");
    }
    p->plan = plan;
    p->device = *d;
    conv_places(s, g, n, f, c, at, &result);
    hth_cuda_step_add(s, (hth_cuda_step){.run = conv_run, .close = conv_close, .state = p});
    HTH_TRY(s->err);
    for (int i = 0; i < CONV_TENSORS; i++) {
        if (i <= CONV_Y || (i == CONV_BIAS && c->bias) || (i == CONV_SUM && c->sum)) {
            conv_tensor(s, p, uid[i], &at[i]);
        }
    }
    size_t scratch = workspace > 0 ? hth_cuda_workspace(s, (size_t)workspace) : 0;
    hth_cuda_bind(s, 0, HTH_CUDA_WS, 0, scratch);
    if (at[result].from == HTH_CUDA_WS) {
        hth_cuda_place out = {HTH_CUDA_OUT, 0, 0, y->layout, hth_cuda_half(y)};
        hth_cuda_convert(s, &y->shape, &at[result], &out);
    }
    return s->err;
}

// The first of the graph's engines whose plan can be made: of what heuristics say at once, then of
// all.
static hth_err conv_first(const hth_dnn_device *d, const hth_dnn_conv *c,
                          const hth_device_kept *kept, const char *fingerprint,
                          cudnnBackendDescriptor_t *plan, int64_t *workspace,
                          char chosen[sizeof((hth_choice *)0)->name])
{
    hth_dnn_engine list[HTH_DNN_ENGINES];
    hth_err err = HTH_ENOTSUP;
    for (int all = 0; all < 2 && err == HTH_ENOTSUP; all++) {
        hth_dnn_graph graph;
        int n = 0;
        HTH_TRY(hth_dnn_graph_open(d, c, &graph));
        err = (all ? hth_dnn_list : hth_dnn_first)(&graph, list, HTH_DNN_ENGINES, &n);
        hth_dnn_graph_close(&graph);
        HTH_TRY(err);
        for (int i = 0; i < n && (i == 0 || (err != HTH_OK && err != HTH_ENOMEM)); i++) {
            err = hth_dnn_plan_kept(d, c, list[i].name, kept, fingerprint, plan, workspace);
            snprintf(chosen, sizeof list[i].name, "%s", list[i].name);
        }
    }
    return err;
}

// Adds the convolution by the engine called `name`, NULL: the first one.
static hth_err conv_try(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const conv_form *f,
                        const hth_dnn_conv *c, const char *name,
                        char chosen[sizeof((hth_choice *)0)->name])
{
    const hth_device *base = &s->d->base;
    hth_dnn_device d = {s->d->api, hth_cuda_site_of(s->d)->dnn, NULL};
    cudnnBackendDescriptor_t plan = NULL;
    int64_t workspace = 0;
    const char *fingerprint = base->props.fingerprint;
    if (name == NULL) {
        HTH_TRY(conv_first(&d, c, base->kept, fingerprint, &plan, &workspace, chosen));
    } else {
        HTH_TRY(hth_dnn_plan_kept(&d, c, name, base->kept, fingerprint, &plan, &workspace));
        snprintf(chosen, sizeof((hth_choice *)0)->name, "%s", name);
    }
    return conv_add(s, g, n, f, c, &d, plan, workspace);
}

// Bias and post ops that were not fused: one kernel over the result.
static hth_err conv_tail(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const conv_form *f)
{
    const hth_value *y = hth_cuda_out(g, n, 0);
    hth_cuda_chain c;
    s->posts_done = true;
    if (f->bias < 0 && n->n_post == 0) {
        return HTH_OK;
    }
    hth_cuda_chain_begin(&c, y);
    (void)hth_cuda_chain_value(&c, y, HTH_CUDA_OUT, 0);
    if (f->bias >= 0) {
        hth_shape channels = {.rank = y->shape.rank};
        for (int d = 0; d < y->shape.rank; d++) {
            channels.dim[d] = d == 1 ? y->shape.dim[1] : 1;
        }
        int k = hth_cuda_chain_operand(&c, &channels, HTH_CUDA_IN, f->bias, 0);
        hth_cuda_chain_step(&c, HTH_OP_ADD, k, 1, 0);
    }
    hth_cuda_chain_posts(&c, g, n);
    return hth_cuda_chain_end(s, &c, 0);
}

static void conv_bind_sums(hth_cuda_seq *s, const hth_graph *g, const hth_node *n)
{
    hth_cuda_bind(s, offsetof(hth_last_params, grad.dy), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(s, offsetof(hth_last_params, grad.dbias), HTH_CUDA_OUT, 1, 0);
}

// Output 1 of ConvGradFilter: dy summed over images and positions.
static void conv_bias_grad(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                           const hth_value *dy)
{
    uint32_t batch = (uint32_t)dy->shape.dim[0], channels = (uint32_t)dy->shape.dim[1];
    uint32_t size = hth_cuda_count(dy) / batch / channels;
    s->moved_bytes += hth_cuda_bytes(dy);
    if (dy->layout == HTH_LAYOUT_NHWC) {
        hth_last_params last = {.grad = {.half_dy = hth_cuda_half(dy)}};
        hth_cuda_last(s, g, n, dy, false, &last, conv_bind_sums);
        return;
    }
    hth_reduce_params p = {.n_out = channels,
                           .n_in = batch * size,
                           .op = HTH_OP_REDUCE_SUM,
                           .half_in = hth_cuda_half(dy)};
    p.outer = (hth_dims){1, {channels}};
    p.outer_steps.step[0] = size;
    p.inner = (hth_dims){2, {batch, size}};
    p.inner_steps.step[0] = (int64_t)channels * size;
    p.inner_steps.step[1] = 1;
    hth_cuda_launch_add(s, HTH_CUDA_hth_reduce_block, channels, CONV_THREADS,
                        (CONV_THREADS + HTH_FOLD) * sizeof(float), &p, sizeof p);
    hth_cuda_bind(s, offsetof(hth_reduce_params, in), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(s, offsetof(hth_reduce_params, out), HTH_CUDA_OUT, 1, 0);
}

hth_err hth_cuda_conv(hth_cuda_seq *s, const hth_graph *g, const hth_node *n, const char *algorithm)
{
    char chosen[sizeof((hth_choice *)0)->name] = "";
    conv_form f;
    HTH_TRY(conv_describe(g, n, &f));
    hth_dnn_conv fused = conv_fused(&f);
    hth_err err = HTH_ENOTSUP;
    if (f.n_fused == n->n_post && (algorithm == NULL || algorithm[0] == 'f')) {
        err = conv_try(s, g, n, &f, &fused, algorithm, chosen);
    }
    if (err == HTH_ENOTSUP && (algorithm == NULL || algorithm[0] == 'e')) {
        HTH_TRY(conv_try(s, g, n, &f, &f.dnn, algorithm, chosen));
        HTH_TRY(conv_tail(s, g, n, &f));
        err = HTH_OK;
    }
    HTH_TRY(err);
    s->posts_done = true;
    snprintf(s->name, sizeof s->name, "cudnn:%s", chosen);
    if (n->op == HTH_OP_CONV_GRAD_FILTER && hth_cuda_out(g, n, 1) != NULL) {
        conv_bias_grad(s, g, n, hth_cuda_in(g, n, 1));
    }
    return HTH_OK;
}

hth_err hth_cuda_conv_algorithms(hth_cuda *d, const hth_graph *g, const hth_node *n, bool first,
                                 hth_choice *list, int cap, int *count)
{
    hth_dnn_device device = {d->api, hth_cuda_site_of(d)->dnn, NULL};
    hth_dnn_engine engine[HTH_DNN_ENGINES];
    conv_form f;
    HTH_TRY(conv_describe(g, n, &f));
    hth_dnn_conv fused = conv_fused(&f);
    *count = 0;
    for (int pass = f.n_fused == n->n_post ? 0 : 1; pass < 2; pass++) {
        hth_dnn_graph graph;
        int found = 0;
        if (hth_dnn_graph_open(&device, pass == 0 ? &fused : &f.dnn, &graph) != HTH_OK) {
            continue;
        }
        (void)(first ? hth_dnn_first : hth_dnn_list)(&graph, engine, HTH_DNN_ENGINES, &found);
        hth_dnn_graph_close(&graph);
        for (int i = 0; i < found && *count < cap; i++) {
            hth_choice *c = &list[(*count)++];
            *c = (hth_choice){.workspace_bytes = (uint64_t)engine[i].workspace_bytes,
                              .time_us = -1,
                              .error = -1,
                              .split = 1,
                              .deterministic = true};
            memcpy(c->name, engine[i].name, sizeof c->name);
        }
    }
    return *count > 0 ? HTH_OK
                      : hth_fail(HTH_ENOTSUP, "cuDNN has no engine for it in %s",
                                 hth_precision_name(f.dnn.precision));
}

bool hth_cuda_conv_last(hth_cuda *d, const hth_graph *g, const hth_node *n)
{
    hth_dnn_device device = {d->api, hth_cuda_site_of(d)->dnn, NULL};
    conv_form f;
    if (conv_describe(g, n, &f) != HTH_OK) {
        return false;
    }
    f.dnn.nhwc = true;
    f.dnn.precision = g->precision;
    return hth_dnn_has_kept(&device, &f.dnn, d->base.kept, d->base.props.fingerprint);
}
