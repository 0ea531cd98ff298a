// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_pool.c - maximum pooling that remembers where each maximum stood, and the
// gradients of maximum and average pooling.
//
// The position is a byte: its number inside the window. That is a quarter of y, where the input
// that a backward pass would else keep is often four times y.
#include "kernels/ref/ref_num.h"
#include "kernels/ref/ref_window.h"

#include <math.h>

typedef struct pool_grad {
    ref_window w;
    double *x, *y;
} pool_grad;

static hth_err pool_grad_init(ref_mem *mem, pool_grad *grad, const hth_node *node,
                              const hth_shape *x, const hth_shape *y)
{
    int64_t kernel[HTH_MAX_RANK];
    int n_kernel = hth_node_ints(node, "kernel_shape", kernel, HTH_MAX_RANK);
    HTH_TRY(ref_window_init(&grad->w, node, x, y, kernel, n_kernel));
    if (grad->w.batch * grad->w.channels * grad->w.n_out != hth_shape_elements(y)) {
        return hth_fail(HTH_EINVAL, "the images of input and output differ");
    }
    HTH_TRY(REF_TAKE(mem, grad->w.n_in, &grad->x));
    return REF_TAKE(mem, grad->w.n_out, &grad->y);
}

#define POOL_TOUCH 16 // the work of finding out what a tap touches

static int64_t pool_grad_touch(const ref_window *window, int64_t o, int64_t tap)
{
    int64_t at[3], k[3];
    ref_window_position(window->out, o, at);
    ref_window_position(window->k, tap, k);
    return ref_window_touch(window, window->in, at, k);
}

// The first maximum, or the first NaN.
static int64_t pool_grad_max(const pool_grad *grad, int64_t o)
{
    int64_t best = -1;
    double max = -INFINITY;
    for (int64_t t = 0; t < grad->w.n_taps; t++) {
        int64_t i = pool_grad_touch(&grad->w, o, t);
        if (i >= 0 && (best < 0 || grad->x[i] > max || (isnan(grad->x[i]) && !isnan(max)))) {
            best = t;
            max = grad->x[i];
        }
    }
    return best < 0 ? 0 : best;
}

static hth_err max_pool_train_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                   hth_tensor *out)
{
    pool_grad p;
    HTH_TRY(pool_grad_init(mem, &p, node, &in[0].shape, &out[0].shape));
    HTH_TRY(ref_need_same(&out[1], &out[0]));
    for (int64_t i = 0; i < p.w.batch * p.w.channels; i++) {
        uint8_t *index = (uint8_t *)out[1].data + i * p.w.n_out;
        uint64_t work = (uint64_t)p.w.n_taps * POOL_TOUCH;
        ref_wide_at(&in[0], i * p.w.n_in, p.w.n_in, p.x);
        for (int64_t o = 0; o < p.w.n_out && !hth_pace_over(work); o++) {
            index[o] = (uint8_t)pool_grad_max(&p, o);
            int64_t at = pool_grad_touch(&p.w, o, index[o]);
            p.y[o] = at < 0 ? -INFINITY : p.x[at];
        }
        ref_round_at(p.y, i * p.w.n_out, p.w.n_out, &out[0]);
    }
    return HTH_OK;
}

static hth_err max_pool_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                  hth_tensor *out)
{
    pool_grad p;
    HTH_TRY(pool_grad_init(mem, &p, node, &out[0].shape, &in[0].shape));
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    for (int64_t i = 0; i < p.w.batch * p.w.channels; i++) {
        const uint8_t *index = (const uint8_t *)in[1].data + i * p.w.n_out;
        ref_wide_at(&in[0], i * p.w.n_out, p.w.n_out, p.y);
        memset(p.x, 0, (size_t)p.w.n_in * sizeof *p.x);
        for (int64_t o = 0; o < p.w.n_out; o++) {
            int64_t at = pool_grad_touch(&p.w, o, index[o]);
            if (index[o] < p.w.n_taps && at >= 0) {
                p.x[at] += p.y[o];
            }
        }
        ref_round_at(p.x, i * p.w.n_in, p.w.n_in, &out[0]);
    }
    return HTH_OK;
}

// What AveragePool divides by at output position `o`: taps in the image, or in image and pads.
static double average_divisor(const ref_window *window, int64_t o, bool count_pads)
{
    int64_t at[3], n = 1;
    ref_window_position(window->out, o, at);
    for (int i = 0; i < 3; i++) {
        int64_t count = 0;
        for (int64_t t = 0; t < window->k[i]; t++) {
            int64_t x = at[i] * window->stride[i] - window->pad[i] + t * window->dilation[i];
            count +=
                x < window->in[i] + (count_pads ? window->pad_end[i] : 0) && (count_pads || x >= 0);
        }
        n *= count;
    }
    return (double)n;
}

static hth_err average_pool_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                      hth_tensor *out)
{
    bool count_pads = hth_node_int(node, "count_include_pad", 0) != 0;
    pool_grad p;
    HTH_TRY(pool_grad_init(mem, &p, node, &out[0].shape, &in[0].shape));
    for (int64_t i = 0; i < p.w.batch * p.w.channels; i++) {
        ref_wide_at(&in[0], i * p.w.n_out, p.w.n_out, p.y);
        memset(p.x, 0, (size_t)p.w.n_in * sizeof *p.x);
        uint64_t work = (uint64_t)p.w.n_taps * POOL_TOUCH;
        for (int64_t o = 0; o < p.w.n_out && !hth_pace_over(work); o++) {
            double share = p.y[o] / average_divisor(&p.w, o, count_pads);
            for (int64_t t = 0; t < p.w.n_taps; t++) {
                int64_t at = pool_grad_touch(&p.w, o, t);
                if (at >= 0) {
                    p.x[at] += share;
                }
            }
        }
        ref_round_at(p.x, i * p.w.n_in, p.w.n_in, &out[0]);
    }
    return HTH_OK;
}

REF_OP(ref_max_pool_train, max_pool_train_body)
REF_OP(ref_max_pool_grad, max_pool_grad_body)
REF_OP(ref_average_pool_grad, average_pool_grad_body)
