// SPDX-License-Identifier: Apache-2.0
// What a convolution's node says: sizes, pads, what can be fused; and its parts along the batch.
#include "kernels/cuda/conv_form.h"

#include "graph/transposed.h"
#include "kernels/cuda/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONV_SPLIT_ALIGN 16 // bytes: what dnn.c promises of addresses

static hth_err conv_geometry(const hth_node *node, const hth_shape *x, const hth_shape *w,
                             const hth_shape *y, hth_dnn_conv *conv)
{
    hth_cuda_window win;
    HTH_TRY(hth_cuda_window_get(node, x, y, w->dim + 2, &win));
    conv->n_spatial = win.n_spatial == 3 ? 3 : 2; // of one dimension a second one of size 1
    int first = 3 - conv->n_spatial;
    const hth_shape *from[] = {x, w, y};
    int64_t *to[] = {conv->x, conv->w, conv->y};
    const int32_t *sizes[] = {win.in, win.k, win.out};
    for (int i = 0; i < 3; i++) {
        to[i][0] = from[i]->dim[0];
        to[i][1] = from[i]->dim[1];
        for (int k = 0; k < conv->n_spatial; k++) {
            to[i][2 + k] = sizes[i][first + k];
        }
    }
    for (int k = 0; k < conv->n_spatial; k++) {
        int s = first + k;
        int64_t span = (int64_t)(win.k[s] - 1) * win.dilation[s] + 1, end = win.pad_end[s];
        int64_t whole = (int64_t)(win.out[s] - 1) * win.stride[s] + span, begin = win.pad[s];
        int axis = s - (3 - win.n_spatial);
        if (node->op == HTH_OP_CONV_TRANSPOSE && axis >= 0) {
            (void)hth_transposed_pads(node, axis, whole, win.in[s], &begin, &end);
        }
        if ((win.in[s] + begin + end - span) / win.stride[s] + 1 != win.out[s]) {
            end = whole - win.in[s] - begin;
        }
        if (begin < 0 || end < 0) {
            return hth_fail(HTH_ENOTSUP, "negative pads");
        }
        conv->pre[k] = begin;
        conv->post[k] = end;
        conv->stride[k] = win.stride[s];
        conv->dilation[k] = win.dilation[s];
    }
    return HTH_OK;
}

static bool conv_alike(const hth_value *a, const hth_value *b)
{
    return hth_shape_equal(&a->shape, &b->shape) && a->layout == b->layout;
}

// Which post ops a fused graph takes: a sum, then a ReLU, or one of them.
static void conv_fusion(const hth_graph *graph, const hth_node *node, const hth_value *value,
                        hth_cuda_conv_form *form)
{
    int at = 0;
    form->sum = -1;
    if (at < node->n_post && node->post[at].op == HTH_OP_ADD && node->post[at].alpha == 1 &&
        conv_alike(&graph->values[node->inputs[node->post[at].input]], value)) {
        form->sum = node->post[at++].input;
    }
    at += at < node->n_post && node->post[at].op == HTH_OP_RELU;
    bool any = form->bias >= 0 || at > 0;
    form->n_fused = form->dnn.kind == HTH_DNN_FORWARD && any ? at : -1;
}

hth_err hth_cuda_conv_describe(const hth_graph *graph, const hth_node *node,
                               hth_cuda_conv_form *form)
{
    const hth_value *a = hth_cuda_in(graph, node, 0), *b = hth_cuda_in(graph, node, 1),
                    *r = hth_cuda_out(graph, node, 0);
    *form = (hth_cuda_conv_form){.bias = -1, .x_in = 0, .w_in = 1, .y_in = -1, .sum = -1};
    // cuda_layout has a convolution's images plain where the precision has no engine else
    form->dnn.nhwc = a->layout == HTH_LAYOUT_NHWC;
    form->dnn.precision = form->dnn.nhwc || graph->precision == HTH_PRECISION_FP32
                              ? graph->precision
                              : HTH_PRECISION_TF32;
    HTH_TRY(hth_cuda_need_float(graph, node, 3, 2));
    if (a->shape.rank < 3 || hth_cuda_count(r) == 0 || hth_cuda_count(a) == 0) {
        return hth_fail(HTH_ENOTSUP, "%d dimensions, or empty", a->shape.rank);
    }
    switch (node->op) {
    case HTH_OP_CONV:
        HTH_TRY(conv_geometry(node, &a->shape, &b->shape, &r->shape, &form->dnn));
        break;
    case HTH_OP_CONV_GRAD_FILTER: // x, dy -> dw
        form->dnn.kind = HTH_DNN_FILTER;
        form->w_in = -1;
        form->y_in = 1;
        HTH_TRY(conv_geometry(node, &a->shape, &r->shape, &b->shape, &form->dnn));
        break;
    default: // dy, w -> dx
        form->dnn.kind = HTH_DNN_DATA;
        form->x_in = -1;
        form->y_in = 0;
        HTH_TRY(conv_geometry(node, &r->shape, &b->shape, &a->shape, &form->dnn));
    }
    if ((node->op == HTH_OP_CONV || node->op == HTH_OP_CONV_TRANSPOSE) &&
        hth_cuda_in(graph, node, 2) != NULL) {
        form->bias = 2;
    }
    conv_fusion(graph, node, r, form);
    return HTH_OK;
}

hth_dnn_conv hth_cuda_conv_fused(const hth_cuda_conv_form *form)
{
    hth_dnn_conv c = form->dnn;
    c.bias = form->bias >= 0;
    c.sum = form->sum >= 0;
    c.relu = form->n_fused > (form->sum >= 0 ? 1 : 0);
    return c;
}

static int64_t conv_elements(const hth_dnn_conv *conv, const int64_t *dims)
{
    int64_t n = 1;
    for (int i = 0; i < conv->n_spatial + 2; i++) {
        n *= dims[i];
    }
    return n;
}

size_t hth_cuda_conv_image_bytes(const hth_dnn_conv *conv, const int64_t *dims)
{
    bool half = conv->precision == HTH_PRECISION_BF16;
    return (size_t)conv_elements(conv, dims) * (half ? sizeof(uint16_t) : sizeof(float));
}

bool hth_cuda_conv_part(const hth_dnn_conv *conv, int k, hth_dnn_conv *part)
{
    *part = *conv;
    part->x[0] /= k;
    part->y[0] /= k;
    return k == 1 || (conv->kind != HTH_DNN_FILTER && conv->x[0] % k == 0 &&
                      hth_cuda_conv_image_bytes(part, part->x) % CONV_SPLIT_ALIGN == 0 &&
                      hth_cuda_conv_image_bytes(part, part->y) % CONV_SPLIT_ALIGN == 0);
}

int hth_cuda_conv_parse(const char *name, char engine[sizeof((hth_choice *)0)->name])
{
    const char *slash = strchr(name, '/');
    int k = slash == NULL ? 1 : atoi(slash + 1);
    snprintf(engine, sizeof((hth_choice *)0)->name, "%.*s",
             (int)(slash == NULL ? strlen(name) : (size_t)(slash - name)), name);
    return k >= 1 && k <= HTH_CUDA_CONV_SPLIT_MAX ? k : 0;
}
