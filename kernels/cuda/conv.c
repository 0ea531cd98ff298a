// SPDX-License-Identifier: Apache-2.0
// Conv, ConvTranspose and Conv's gradients through cuDNN. ConvTranspose is the gradient with
// respect to the input. A bias, a sum with a tensor like the result and a ReLU, in this order, are
// fused where cuDNN has an engine for that; else, and for other post ops, one kernel of ours
// follows. The bias's gradient is a reduction of ours. Where images have their channels last, so
// has the filter, which is plain outside: a constant one is packed, others are converted on their
// way.
#include "kernels/cuda/conv_form.h"
#include "kernels/cuda/site.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

#define CONV_THREADS 256u

typedef struct conv_plan {
    cudnnBackendDescriptor_t plan;
    int n, split; // split: chunks of the batch, one after the other
    int64_t uid[5];
    size_t chunk[5]; // bytes from one to the next, 0: the same for all
    hth_dnn_device device;
} conv_plan;

static hth_err conv_run(const hth_cuda_seq *s, const hth_cuda_step *step, void *const *address)
{
    const conv_plan *p = step->state;
    const hth_cuda_api *api = s->d->api;
    cudnnStatus_t r = api->cudnnSetStream(p->device.handle, s->d->current);
    if (r != CUDNN_STATUS_SUCCESS) {
        return hth_fail(HTH_EIO, "cuDNN: cudnnSetStream answered %d", (int)r);
    }
    for (int i = 0; i < p->split; i++) {
        void *at[5];
        for (int k = 0; k < p->n; k++) {
            at[k] = (char *)address[k] + (size_t)i * p->chunk[k];
        }
        HTH_TRY(hth_dnn_execute(&p->device, p->plan, p->n, p->uid, at, address[p->n]));
    }
    return HTH_OK;
}

static void conv_close(hth_cuda_seq *s, hth_cuda_step *step)
{
    conv_plan *p = step->state;
    (void)p->device.api->cudnnBackendDestroyDescriptor(p->plan);
    hth_free(p);
}

static void conv_tensor(hth_cuda_seq *s, conv_plan *p, const hth_dnn_conv *c, hth_dnn_uid uid,
                        const hth_cuda_place *at)
{
    bool image = uid == HTH_DNN_X || uid == HTH_DNN_Y || uid == HTH_DNN_SUM;
    size_t bytes = hth_cuda_conv_image_bytes(c, uid == HTH_DNN_X ? c->x : c->y);
    hth_cuda_bind(s, 0, at->from, at->index, at->offset);
    p->chunk[p->n] = image ? bytes / (size_t)p->split : 0;
    p->uid[p->n++] = uid;
}

enum { CONV_X, CONV_W, CONV_Y, CONV_BIAS, CONV_SUM, CONV_TENSORS };

// Where the plan's tensors are. What lies otherwise than it wants, or is of another type, is
// converted before; *result, where it is not the node's output, after.
static void conv_places(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                        const hth_cuda_conv_form *f, const hth_dnn_conv *c,
                        hth_cuda_place at[CONV_TENSORS], int *result)
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
static hth_err conv_add(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                        const hth_cuda_conv_form *f, const hth_dnn_conv *c, const hth_dnn_device *d,
                        int split, cudnnBackendDescriptor_t plan, int64_t workspace)
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
    p->split = split;
    p->device = *d;
    conv_places(s, g, n, f, c, at, &result);
    hth_cuda_step_add(s, (hth_cuda_step){.run = conv_run, .close = conv_close, .state = p});
    HTH_TRY(s->err);
    for (int i = 0; i < CONV_TENSORS; i++) {
        if (i <= CONV_Y || (i == CONV_BIAS && c->bias) || (i == CONV_SUM && c->sum)) {
            conv_tensor(s, p, c, uid[i], &at[i]);
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
static hth_err conv_try(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                        const hth_cuda_conv_form *f, const hth_dnn_conv *c, const char *name,
                        char chosen[sizeof((hth_choice *)0)->name])
{
    const hth_device *base = &s->d->base;
    hth_dnn_device d = {s->d->api, hth_cuda_site_of(s->d)->dnn, NULL};
    cudnnBackendDescriptor_t plan = NULL;
    int64_t workspace = 0;
    int split = 1;
    const char *fingerprint = base->props.fingerprint;
    if (name == NULL) {
        HTH_TRY(conv_first(&d, c, base->kept, fingerprint, &plan, &workspace, chosen));
    } else {
        char engine[sizeof((hth_choice *)0)->name];
        hth_dnn_conv part;
        split = hth_cuda_conv_parse(name, engine);
        if (split == 0 || !hth_cuda_conv_part(c, split, &part)) {
            return hth_fail(HTH_ENOTSUP, "'%s' is no algorithm for it", name);
        }
        HTH_TRY(hth_dnn_plan_kept(&d, &part, engine, base->kept, fingerprint, &plan, &workspace));
        snprintf(chosen, sizeof((hth_choice *)0)->name, "%s", name);
    }
    return conv_add(s, g, n, f, c, &d, split, plan, workspace);
}

// Bias and post ops that were not fused: one kernel over the result.
static hth_err conv_tail(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                         const hth_cuda_conv_form *f)
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
    hth_cuda_conv_form f;
    HTH_TRY(hth_cuda_conv_describe(g, n, &f));
    hth_dnn_conv fused = hth_cuda_conv_fused(&f);
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
