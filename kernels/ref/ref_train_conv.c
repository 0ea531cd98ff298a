// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_conv.c - gradients of Conv with respect to its input and its filter.
//
// Both visit every (image, output position, tap) that the convolution visits and send the product
// the other way, in double. Filters are walked as (output channel, tap, input channel), so that the
// innermost loop is contiguous in a transposed copy of the image.
#include "kernels/ref/ref_num.h"
#include "kernels/ref/ref_window.h"

typedef struct conv_grad {
    ref_window w;
    int64_t group, cg, mg, channels, outs;
} conv_grad;

static hth_err conv_grad_init(conv_grad *grad, const hth_node *node, const hth_shape *x,
                              const hth_shape *y, const hth_shape *f)
{
    grad->group = hth_node_int(node, "group", 1);
    if (x->rank < 3 || y->rank != x->rank || f->rank != x->rank || grad->group < 1 ||
        x->dim[0] != y->dim[0] || f->dim[0] != y->dim[1] || f->dim[0] % grad->group != 0 ||
        f->dim[1] * grad->group != x->dim[1]) {
        return hth_fail(HTH_EINVAL, "channels, filter and group do not agree");
    }
    grad->channels = x->dim[1];
    grad->outs = y->dim[1];
    grad->cg = grad->channels / grad->group;
    grad->mg = grad->outs / grad->group;
    return ref_window_init(&grad->w, node, x, y, f->dim + 2, f->rank - 2);
}

// One image as (position, channel).
static void conv_grad_image(const hth_tensor *tensor, int64_t image, int64_t channels, int64_t size,
                            double *tmp, double *out)
{
    ref_wide_at(tensor, image * channels * size, channels * size, tmp);
    ref_transpose_f64(tmp, channels, size, out);
}

// from[cg], of group g, at the input position that tap `t` of output position `o` touches; -1:
// none.
static int64_t conv_grad_touch(const ref_window *window, int64_t o, int64_t t)
{
    int64_t at[3], tap[3];
    ref_window_position(window->out, o, at);
    ref_window_position(window->k, t, tap);
    return ref_window_touch(window, window->in, at, tap);
}

static hth_err conv_grad_filter_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                     hth_tensor *out)
{
    const hth_tensor *x = &in[0], *dy = &in[1];
    hth_tensor *db = ref_out(node, out, 1);
    conv_grad c;
    double *tmp, *xt, *dyt, *dw, *turned, *bias;
    HTH_TRY(conv_grad_init(&c, node, &x->shape, &dy->shape, &out[0].shape));
    const ref_window *w = &c.w;
    HTH_TRY(ref_need_count(db, c.outs));
    HTH_TRY(REF_TAKE(mem, c.channels * w->n_in + c.outs * w->n_out, &tmp));
    HTH_TRY(REF_TAKE(mem, c.channels * w->n_in, &xt));
    HTH_TRY(REF_TAKE(mem, c.outs * w->n_out, &dyt));
    HTH_TRY(REF_TAKE(mem, c.outs * c.cg * w->n_taps, &dw));
    HTH_TRY(REF_TAKE(mem, c.outs * c.cg * w->n_taps, &turned));
    HTH_TRY(REF_TAKE(mem, c.outs, &bias));
    for (int64_t b = 0; b < w->batch; b++) {
        conv_grad_image(x, b, c.channels, w->n_in, tmp, xt);
        conv_grad_image(dy, b, c.outs, w->n_out, tmp, dyt);
        uint64_t work = (uint64_t)(w->n_taps * c.outs) * (uint64_t)(c.cg + 1);
        for (int64_t o = 0; o < w->n_out && !hth_pace_over(work); o++) {
            const double *g = dyt + o * c.outs;
            for (int64_t i = 0; i < c.outs; i++) {
                bias[i] += g[i];
            }
            for (int64_t t = 0; t < w->n_taps; t++) {
                int64_t at = conv_grad_touch(w, o, t);
                for (int64_t i = 0; at >= 0 && i < c.outs; i++) {
                    const double *from = xt + at * c.channels + i / c.mg * c.cg;
                    double *to = dw + (i * w->n_taps + t) * c.cg;
                    ref_axpy_f64(c.cg, g[i], from, to);
                }
            }
        }
    }
    for (int64_t i = 0; i < c.outs; i++) {
        ref_transpose_f64(dw + i * w->n_taps * c.cg, w->n_taps, c.cg,
                          turned + i * w->n_taps * c.cg);
    }
    ref_round(turned, &out[0]);
    if (db != NULL) {
        ref_round(bias, db);
    }
    return HTH_OK;
}

static hth_err conv_grad_data_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                   hth_tensor *out)
{
    const hth_tensor *dy = &in[0], *f = &in[1];
    conv_grad c;
    double *tmp, *dxt, *dyt, *filter, *turned;
    HTH_TRY(conv_grad_init(&c, node, &out[0].shape, &dy->shape, &f->shape));
    const ref_window *w = &c.w;
    HTH_TRY(ref_wide(mem, f, &filter));
    HTH_TRY(REF_TAKE(mem, c.outs * c.cg * w->n_taps, &turned));
    HTH_TRY(REF_TAKE(mem, c.channels * w->n_in + c.outs * w->n_out, &tmp));
    HTH_TRY(REF_TAKE(mem, c.channels * w->n_in, &dxt));
    HTH_TRY(REF_TAKE(mem, c.outs * w->n_out, &dyt));
    for (int64_t i = 0; i < c.outs; i++) {
        ref_transpose_f64(filter + i * w->n_taps * c.cg, c.cg, w->n_taps,
                          turned + i * w->n_taps * c.cg);
    }
    for (int64_t b = 0; b < w->batch; b++) {
        conv_grad_image(dy, b, c.outs, w->n_out, tmp, dyt);
        memset(dxt, 0, (size_t)(c.channels * w->n_in) * sizeof *dxt);
        uint64_t work = (uint64_t)(w->n_taps * c.outs) * (uint64_t)(c.cg + 1);
        for (int64_t o = 0; o < w->n_out && !hth_pace_over(work); o++) {
            const double *g = dyt + o * c.outs;
            for (int64_t t = 0; t < w->n_taps; t++) {
                int64_t at = conv_grad_touch(w, o, t);
                for (int64_t i = 0; at >= 0 && i < c.outs; i++) {
                    double *to = dxt + at * c.channels + i / c.mg * c.cg;
                    const double *from = turned + (i * w->n_taps + t) * c.cg;
                    ref_axpy_f64(c.cg, g[i], from, to);
                }
            }
        }
        ref_transpose_f64(dxt, w->n_in, c.channels, tmp);
        ref_round_at(tmp, b * c.channels * w->n_in, c.channels * w->n_in, &out[0]);
    }
    return HTH_OK;
}

REF_OP(ref_conv_grad_data, conv_grad_data_body)
REF_OP(ref_conv_grad_filter, conv_grad_filter_body)
