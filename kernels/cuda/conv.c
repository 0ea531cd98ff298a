// SPDX-License-Identifier: Apache-2.0
// Conv, ConvTranspose and Conv's gradients through cuDNN. ConvTranspose is the gradient with
// respect to the input. A bias, a sum with a tensor like the result and a ReLU, in this order, are
// fused where cuDNN has an engine for that; else, and for other post ops, one kernel of ours
// follows. The bias's gradient is a reduction of ours. Where images have their channels last, so
// has the filter, which is plain outside: a constant one is packed, others are converted on their
// way.
#include "kernels/cuda/conv_form.h"
#include "kernels/cuda/handles.h"

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

static hth_err conv_run(const hth_cuda_seq *seq, const hth_cuda_step *step, void *const *address)
{
    const conv_plan *p = step->state;
    const hth_cuda_api *api = seq->d->api;
    cudnnStatus_t r = api->cudnnSetStream(p->device.handle, seq->d->current);
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

static void conv_close(hth_cuda_seq *seq, hth_cuda_step *step)
{
    conv_plan *p = step->state;
    (void)p->device.api->cudnnBackendDestroyDescriptor(p->plan);
    hth_free(p);
}

static void conv_tensor(hth_cuda_seq *seq, conv_plan *plan, const hth_dnn_conv *conv,
                        hth_dnn_uid uid, const hth_cuda_place *at)
{
    bool image = uid == HTH_DNN_X || uid == HTH_DNN_Y || uid == HTH_DNN_SUM;
    size_t bytes = hth_cuda_conv_image_bytes(conv, uid == HTH_DNN_X ? conv->x : conv->y);
    hth_cuda_bind(seq, 0, at->from, at->index, at->offset);
    plan->chunk[plan->n] = image ? bytes / (size_t)plan->split : 0;
    plan->uid[plan->n++] = uid;
}

enum { CONV_X, CONV_W, CONV_Y, CONV_BIAS, CONV_SUM, CONV_TENSORS };

// Where the plan's tensors are. What lies otherwise than it wants, or is of another type, is
// converted before; *result, where it is not the node's output, after.
static void conv_places(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const hth_cuda_conv_form *form, const hth_dnn_conv *conv,
                        hth_cuda_place at[CONV_TENSORS], int *result)
{
    const int input[] = {form->x_in, form->w_in, form->y_in, conv->bias ? form->bias : -1,
                         conv->sum ? form->sum : -1};
    const hth_value *y = hth_cuda_out(graph, node, 0);
    hth_layout lies = conv->nhwc ? HTH_LAYOUT_NHWC : HTH_LAYOUT_PLAIN;
    bool half = conv->precision == HTH_PRECISION_BF16;
    for (int i = 0; i < CONV_TENSORS; i++) {
        if (input[i] >= 0) {
            at[i] = hth_cuda_operand(seq, graph, node, input[i],
                                     i == CONV_BIAS ? HTH_LAYOUT_PLAIN : lies, half);
        } else if (i <= CONV_Y) {
            bool turns = i == CONV_W && conv->nhwc && y->shape.dim[1] > 1 &&
                         hth_shape_elements(&y->shape) > y->shape.dim[0] * y->shape.dim[1];
            *result = i;
            at[i] = (hth_cuda_place){HTH_CUDA_OUT, 0, 0, y->layout, hth_cuda_half(y)};
            if (turns || at[i].half != half) {
                size_t bytes = hth_cuda_count(y) * (half ? sizeof(uint16_t) : sizeof(float));
                at[i] =
                    (hth_cuda_place){HTH_CUDA_WS, 0, hth_cuda_workspace(seq, bytes), lies, half};
            }
        }
    }
}

// The step that runs `plan`, which it takes over.
static hth_err conv_add(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const hth_cuda_conv_form *form, const hth_dnn_conv *conv,
                        const hth_dnn_device *device, int split, cudnnBackendDescriptor_t plan,
                        int64_t workspace)
{
    static const hth_dnn_uid uid[] = {HTH_DNN_X, HTH_DNN_W, HTH_DNN_Y, HTH_DNN_BIAS, HTH_DNN_SUM};
    hth_cuda_place at[CONV_TENSORS];
    const hth_value *y = hth_cuda_out(graph, node, 0);
    int result = CONV_Y;
    conv_plan *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        (void)device->api->cudnnBackendDestroyDescriptor(plan);
        return hth_no_memory("preparing a convolution");
    }
    p->plan = plan;
    p->split = split;
    p->device = *device;
    conv_places(seq, graph, node, form, conv, at, &result);
    hth_cuda_step_add(seq, (hth_cuda_step){.run = conv_run, .close = conv_close, .state = p});
    HTH_TRY(seq->err);
    for (int i = 0; i < CONV_TENSORS; i++) {
        if (i <= CONV_Y || (i == CONV_BIAS && conv->bias) || (i == CONV_SUM && conv->sum)) {
            conv_tensor(seq, p, conv, uid[i], &at[i]);
        }
    }
    size_t scratch = workspace > 0 ? hth_cuda_workspace(seq, (size_t)workspace) : 0;
    hth_cuda_bind(seq, 0, HTH_CUDA_WS, 0, scratch);
    if (at[result].from == HTH_CUDA_WS) {
        hth_cuda_place out = {HTH_CUDA_OUT, 0, 0, y->layout, hth_cuda_half(y)};
        hth_cuda_convert(seq, &y->shape, &at[result], &out);
    }
    return seq->err;
}

// The first of the graph's engines whose plan can be made: of what heuristics say at once, then of
// all.
static hth_err conv_first(const hth_dnn_device *device, const hth_dnn_conv *conv,
                          const hth_device_kept *kept, const char *fingerprint,
                          cudnnBackendDescriptor_t *plan, int64_t *workspace,
                          char chosen[sizeof((hth_choice *)0)->name])
{
    hth_dnn_engine list[HTH_DNN_ENGINES];
    hth_err err = HTH_ENOTSUP;
    for (int all = 0; all < 2 && err == HTH_ENOTSUP; all++) {
        hth_dnn_graph graph;
        int n = 0;
        HTH_TRY(hth_dnn_graph_open(device, conv, &graph));
        err = (all ? hth_dnn_list : hth_dnn_first)(&graph, list, HTH_DNN_ENGINES, &n);
        hth_dnn_graph_close(&graph);
        HTH_TRY(err);
        for (int i = 0; i < n && (i == 0 || (err != HTH_OK && err != HTH_ENOMEM)); i++) {
            err = hth_dnn_plan_kept(device, conv, list[i].name, kept, fingerprint, plan, workspace);
            snprintf(chosen, sizeof list[i].name, "%s", list[i].name);
        }
    }
    return err;
}

// Adds the convolution by the engine called `name`, NULL: the first one.
static hth_err conv_try(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const hth_cuda_conv_form *form, const hth_dnn_conv *conv, const char *name,
                        char chosen[sizeof((hth_choice *)0)->name])
{
    const hth_device *base = &seq->d->base;
    hth_dnn_device d = {seq->d->api, hth_cuda_site_of(seq->d)->dnn, NULL};
    cudnnBackendDescriptor_t plan = NULL;
    int64_t workspace = 0;
    int split = 1;
    const char *fingerprint = base->props.fingerprint;
    if (name == NULL) {
        HTH_TRY(conv_first(&d, conv, base->kept, fingerprint, &plan, &workspace, chosen));
    } else {
        char engine[sizeof((hth_choice *)0)->name];
        hth_dnn_conv part;
        split = hth_cuda_conv_parse(name, engine);
        if (split == 0 || !hth_cuda_conv_part(conv, split, &part)) {
            return hth_fail(HTH_ENOTSUP, "'%s' is no algorithm for it", name);
        }
        HTH_TRY(hth_dnn_plan_kept(&d, &part, engine, base->kept, fingerprint, &plan, &workspace));
        snprintf(chosen, sizeof((hth_choice *)0)->name, "%s", name);
    }
    return conv_add(seq, graph, node, form, conv, &d, split, plan, workspace);
}

// Bias and post ops that were not fused: one kernel over the result.
static hth_err conv_tail(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const hth_cuda_conv_form *form)
{
    const hth_value *y = hth_cuda_out(graph, node, 0);
    hth_cuda_chain c;
    seq->posts_done = true;
    if (form->bias < 0 && node->n_post == 0) {
        return HTH_OK;
    }
    hth_cuda_chain_begin(&c, y);
    (void)hth_cuda_chain_value(&c, y, HTH_CUDA_OUT, 0);
    if (form->bias >= 0) {
        hth_shape channels = {.rank = y->shape.rank};
        for (int d = 0; d < y->shape.rank; d++) {
            channels.dim[d] = d == 1 ? y->shape.dim[1] : 1;
        }
        int k = hth_cuda_chain_operand(&c, &channels, HTH_CUDA_IN, form->bias, 0);
        hth_cuda_chain_step(&c, HTH_OP_ADD, k, 1, 0);
    }
    hth_cuda_chain_posts(&c, graph, node);
    return hth_cuda_chain_end(seq, &c, 0);
}

static void conv_bind_sums(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node)
{
    hth_cuda_bind(seq, offsetof(hth_last_params, grad.dy), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_last_params, grad.dbias), HTH_CUDA_OUT, 1, 0);
}

// Output 1 of ConvGradFilter: dy summed over images and positions.
static void conv_bias_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const hth_value *dy)
{
    uint32_t batch = (uint32_t)dy->shape.dim[0], channels = (uint32_t)dy->shape.dim[1];
    uint32_t size = hth_cuda_count(dy) / batch / channels;
    seq->moved_bytes += hth_cuda_bytes(dy);
    if (dy->layout == HTH_LAYOUT_NHWC) {
        hth_last_params last = {.grad = {.half_dy = hth_cuda_half(dy)}};
        hth_cuda_last(seq, graph, node, dy, false, &last, conv_bind_sums);
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
    hth_cuda_launch_add(seq, HTH_CUDA_hth_reduce_block, channels, CONV_THREADS,
                        (CONV_THREADS + HTH_FOLD) * sizeof(float), &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_reduce_params, in), HTH_CUDA_IN, 1, 0);
    hth_cuda_bind(seq, offsetof(hth_reduce_params, out), HTH_CUDA_OUT, 1, 0);
}

hth_err hth_cuda_conv(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                      const char *algorithm)
{
    char chosen[sizeof((hth_choice *)0)->name] = "";
    hth_cuda_conv_form f;
    HTH_TRY(hth_cuda_conv_describe(graph, node, &f));
    hth_dnn_conv fused = hth_cuda_conv_fused(&f);
    hth_err err = HTH_ENOTSUP;
    if (f.n_fused == node->n_post && (algorithm == NULL || algorithm[0] == 'f')) {
        err = conv_try(seq, graph, node, &f, &fused, algorithm, chosen);
    }
    if (err == HTH_ENOTSUP && (algorithm == NULL || algorithm[0] == 'e')) {
        HTH_TRY(conv_try(seq, graph, node, &f, &f.dnn, algorithm, chosen));
        HTH_TRY(conv_tail(seq, graph, node, &f));
        err = HTH_OK;
    }
    HTH_TRY(err);
    seq->posts_done = true;
    snprintf(seq->name, sizeof seq->name, "cudnn:%s", chosen);
    if (node->op == HTH_OP_CONV_GRAD_FILTER && hth_cuda_out(graph, node, 1) != NULL) {
        conv_bias_grad(seq, graph, node, hth_cuda_in(graph, node, 1));
    }
    return HTH_OK;
}
