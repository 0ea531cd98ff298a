// SPDX-License-Identifier: Apache-2.0
// What a convolution's node says: sizes, pads, what can be fused; and its parts along the batch.
#include "kernels/cuda/conv_form.h"

#include "kernels/cuda/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONV_SPLIT_ALIGN 16 // bytes: what dnn.c promises of addresses

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
static void conv_fusion(const hth_graph *g, const hth_node *n, const hth_value *y,
                        hth_cuda_conv_form *f)
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

hth_err hth_cuda_conv_describe(const hth_graph *g, const hth_node *n, hth_cuda_conv_form *f)
{
    const hth_value *a = hth_cuda_in(g, n, 0), *b = hth_cuda_in(g, n, 1),
                    *r = hth_cuda_out(g, n, 0);
    *f = (hth_cuda_conv_form){.bias = -1, .x_in = 0, .w_in = 1, .y_in = -1, .sum = -1};
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

hth_dnn_conv hth_cuda_conv_fused(const hth_cuda_conv_form *f)
{
    hth_dnn_conv c = f->dnn;
    c.bias = f->bias >= 0;
    c.sum = f->sum >= 0;
    c.relu = f->n_fused > (f->sum >= 0 ? 1 : 0);
    return c;
}

static int64_t conv_elements(const hth_dnn_conv *c, const int64_t *dims)
{
    int64_t n = 1;
    for (int i = 0; i < c->n_spatial + 2; i++) {
        n *= dims[i];
    }
    return n;
}

size_t hth_cuda_conv_image_bytes(const hth_dnn_conv *c, const int64_t *dims)
{
    bool half = c->precision == HTH_PRECISION_BF16;
    return (size_t)conv_elements(c, dims) * (half ? sizeof(uint16_t) : sizeof(float));
}

bool hth_cuda_conv_part(const hth_dnn_conv *c, int k, hth_dnn_conv *part)
{
    *part = *c;
    part->x[0] /= k;
    part->y[0] /= k;
    return k == 1 || (c->kind != HTH_DNN_FILTER && c->x[0] % k == 0 &&
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
