// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_train_norm.c - batch norm in training, and the gradients of batch, layer, group
// and local response normalisation.
//
// With xhat = (x - mean) * invstd over the n elements of one set of statistics and g = dy * scale:
// dx = invstd * (g - mean(g) - xhat * mean(g * xhat)); dscale sums dy * xhat, dbias sums dy.
#include "kernels/ref/ref_num.h"

#include <math.h>

// Elements (image, position) of one channel of x [N, C, size].
#define NORM_FOR(b, i, s, size)                                                                    \
    for (int64_t b = 0; b < (s)->dim[0]; b++)                                                      \
        for (int64_t i = 0; i < (size); i++)

static int64_t norm_channels(const hth_shape *shape)
{
    return shape->rank > 1 ? shape->dim[1] : 1;
}

static void norm_put(const hth_node *node, hth_tensor *out, int i, int64_t at, double v)
{
    hth_tensor *t = ref_out(node, out, i);
    if (t != NULL) {
        ref_round_at(&v, at, 1, t);
    }
}

static hth_err batch_norm_train_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                     hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int64_t channels = norm_channels(s), size = ref_span(s, 2, s->rank), count = s->dim[0] * size;
    double eps = hth_node_float(node, "epsilon", 1e-5f), *x;
    double momentum = hth_node_float(node, "momentum", 0.9f);
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    for (int i = 1; i < 5; i++) {
        HTH_TRY(ref_need_count(&in[i], channels));
        HTH_TRY(ref_need_count(ref_out(node, out, i), channels));
    }
    HTH_TRY(ref_wide(mem, &in[0], &x));
    for (int64_t c = 0; c < channels; c++) {
        double mean = 0, var = 0;
        NORM_FOR(b, i, s, size)
        {
            mean += x[(b * channels + c) * size + i] / (double)count;
        }
        NORM_FOR(b, i, s, size)
        {
            double d = x[(b * channels + c) * size + i] - mean;
            var += d * d / (double)count;
        }
        double inv = 1 / sqrt(var + eps), scale = ref_f64_at(&in[1], c) * inv;
        NORM_FOR(b, i, s, size)
        {
            double *v = &x[(b * channels + c) * size + i];
            *v = (*v - mean) * scale + ref_f64_at(&in[2], c);
        }
        double unbiased = count > 1 ? var * (double)count / (double)(count - 1) : var;
        norm_put(node, out, 1, c, mean);
        norm_put(node, out, 2, c, inv);
        norm_put(node, out, 3, c, momentum * ref_f64_at(&in[3], c) + (1 - momentum) * mean);
        norm_put(node, out, 4, c, momentum * ref_f64_at(&in[4], c) + (1 - momentum) * unbiased);
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

// Where the forward pass had a fused Relu or Clip, dy of channel c counts only where that was open.
static void norm_mask(const hth_node *node, const hth_tensor *in, int64_t c, int64_t size,
                      const double *x, double *dy)
{
    double low = hth_node_float(node, "low", 0), high = hth_node_float(node, "high", INFINITY);
    const hth_shape *s = &in[0].shape;
    double mean = ref_f64_at(&in[3], c), bias = ref_f64_at(&in[5], c);
    double scale = ref_f64_at(&in[2], c) * ref_f64_at(&in[4], c);
    NORM_FOR(b, i, s, size)
    {
        int64_t at = (b * norm_channels(s) + c) * size + i;
        double y = (x[at] - mean) * scale + bias;
        dy[at] = y > low && y < high ? dy[at] : 0;
    }
}

static hth_err batch_norm_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                    hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int64_t channels = norm_channels(s), size = ref_span(s, 2, s->rank), count = s->dim[0] * size;
    double *dy, *x;
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(ref_wide(mem, &in[1], &x));
    if (ref_in(node, in, 5) != NULL) {
        HTH_TRY(ref_need_count(&in[5], channels));
    }
    for (int64_t c = 0; c < channels; c++) {
        if (ref_in(node, in, 5) != NULL) {
            norm_mask(node, in, c, size, x, dy);
        }
        double mean = ref_f64_at(&in[3], c), inv = ref_f64_at(&in[4], c), sum = 0, dot = 0;
        double scale = ref_f64_at(&in[2], c) * inv;
        NORM_FOR(b, i, s, size)
        {
            int64_t at = (b * channels + c) * size + i;
            sum += dy[at];
            dot += dy[at] * (x[at] - mean) * inv;
        }
        NORM_FOR(b, i, s, size)
        {
            int64_t at = (b * channels + c) * size + i;
            x[at] = scale * (dy[at] - (sum + (x[at] - mean) * inv * dot) / (double)count);
        }
        norm_put(node, out, 1, c, dot);
        norm_put(node, out, 2, c, sum);
    }
    if (ref_out(node, out, 0) != NULL) {
        HTH_TRY(ref_need_same(&out[0], &in[0]));
        ref_round(x, &out[0]);
    }
    return HTH_OK;
}

// dx of one set of statistics: x is replaced by it; g = dy * scale.
static void norm_grad_row(double *x, const double *g, int64_t n, double mean, double inv)
{
    double sum = 0, dot = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += g[i];
        dot += g[i] * (x[i] - mean) * inv;
    }
    for (int64_t i = 0; i < n; i++) {
        x[i] = inv * (g[i] - (sum + (x[i] - mean) * inv * dot) / (double)n);
    }
}

typedef struct norm_grad {
    double *dy, *x, *dscale, *dbias, *scale;
} norm_grad;

static hth_err norm_grad_open(ref_mem *mem, const hth_tensor *in, norm_grad *grad)
{
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &grad->dy));
    HTH_TRY(ref_wide(mem, &in[1], &grad->x));
    HTH_TRY(ref_wide(mem, &in[2], &grad->scale));
    HTH_TRY(REF_TAKE(mem, ref_count(&in[2]), &grad->dscale));
    return REF_TAKE(mem, ref_count(&in[2]), &grad->dbias);
}

static void norm_grad_store(const norm_grad *grad, const hth_node *node, hth_tensor *out)
{
    const double *from[] = {grad->x, grad->dscale, grad->dbias};
    for (int i = 0; i < 3; i++) {
        if (ref_out(node, out, i) != NULL) {
            ref_round(from[i], &out[i]);
        }
    }
}

// `count` elements from x[at] share the parameter number p.
static void norm_grad_run(norm_grad *grad, int64_t at, int64_t count, int64_t p, double mean,
                          double inv)
{
    for (int64_t i = at; i < at + count; i++) {
        grad->dscale[p] += grad->dy[i] * (grad->x[i] - mean) * inv;
        grad->dbias[p] += grad->dy[i];
        grad->dy[i] *= grad->scale[p];
    }
}

static hth_err layer_norm_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                    hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int axis = ref_axis(hth_node_int(node, "axis", -1), s->rank);
    norm_grad g;
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis is out of range");
    }
    int64_t rows = ref_span(s, 0, axis), size = ref_span(s, axis, s->rank);
    HTH_TRY(ref_need_count(&in[2], size));
    HTH_TRY(ref_need_count(&in[3], rows));
    HTH_TRY(ref_need_count(&in[4], rows));
    HTH_TRY(norm_grad_open(mem, in, &g));
    for (int64_t r = 0; r < rows; r++) {
        double mean = ref_f64_at(&in[3], r), inv = ref_f64_at(&in[4], r);
        for (int64_t i = 0; i < size; i++) {
            norm_grad_run(&g, r * size + i, 1, i, mean, inv);
        }
        norm_grad_row(g.x + r * size, g.dy + r * size, size, mean, inv);
    }
    norm_grad_store(&g, node, out);
    return HTH_OK;
}

static void norm_moments(const double *x, int64_t n, double eps, double *mean, double *inv)
{
    double var = 0;
    *mean = 0;
    for (int64_t i = 0; i < n; i++) {
        *mean += x[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        var += (x[i] - *mean) * (x[i] - *mean) / (double)n;
    }
    *inv = 1 / sqrt(var + eps);
}

static hth_err group_norm_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                    hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int64_t groups = hth_node_int(node, "num_groups", 1), size = ref_span(s, 2, s->rank), channels;
    double eps = hth_node_float(node, "epsilon", 1e-5f), mean, inv;
    norm_grad g;
    HTH_TRY(ref_need_rank(&in[0], 2));
    channels = s->dim[1];
    if (groups < 1 || channels % groups != 0) {
        return hth_fail(HTH_EINVAL, "channels and groups do not agree");
    }
    int64_t per = channels / groups, n_scale = ref_count(&in[2]);
    HTH_TRY(ref_need_count(&in[2], n_scale == groups ? groups : channels));
    HTH_TRY(norm_grad_open(mem, in, &g));
    for (int64_t k = 0; k < s->dim[0] * groups; k++) {
        int64_t first = k * per * size;
        norm_moments(g.x + first, per * size, eps, &mean, &inv);
        for (int64_t c = 0; c < per; c++) {
            int64_t p = n_scale == channels ? k % groups * per + c : k % groups;
            norm_grad_run(&g, first + c * size, size, p, mean, inv);
        }
        norm_grad_row(g.x + first, g.dy + first, per * size, mean, inv);
    }
    norm_grad_store(&g, node, out);
    return HTH_OK;
}

// y_c = x_c * d_c^-beta with d_c = bias + alpha / size * (sum of x^2 over the window of c).
static hth_err lrn_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int64_t size = hth_node_int(node, "size", 1), channels, inner = ref_span(s, 2, s->rank);
    double alpha = hth_node_float(node, "alpha", 1e-4f) / (double)size, *dy, *x, *d, *dx;
    double beta = hth_node_float(node, "beta", 0.75f), bias = hth_node_float(node, "bias", 1);
    HTH_TRY(ref_need_rank(&in[0], 2));
    channels = s->dim[1];
    HTH_TRY(ref_need_same(&in[1], &in[0]));
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(ref_wide(mem, &in[1], &x));
    HTH_TRY(REF_TAKE(mem, ref_count(&in[0]), &dx));
    HTH_TRY(REF_TAKE(mem, channels, &d));
    for (int64_t b = 0; b < s->dim[0] * inner; b++) {
        int64_t first = b / inner * channels * inner + b % inner;
        for (int64_t c = 0; c < channels; c++) {
            d[c] = bias;
            for (int64_t q = c - (size - 1) / 2; q <= c + size / 2; q++) {
                double v = q < 0 || q >= channels ? 0 : x[first + q * inner];
                d[c] += alpha * v * v;
            }
        }
        for (int64_t c = 0; c < channels; c++) {
            double g = dy[first + c * inner], v = x[first + c * inner];
            dx[first + c * inner] += g * pow(d[c], -beta);
            for (int64_t q = c - (size - 1) / 2; q <= c + size / 2; q++) {
                if (q >= 0 && q < channels) {
                    dx[first + q * inner] -=
                        2 * alpha * beta * g * v * pow(d[c], -beta - 1) * x[first + q * inner];
                }
            }
        }
    }
    ref_round(dx, &out[0]);
    return HTH_OK;
}

REF_OP(ref_batch_norm_train, batch_norm_train_body)
REF_OP(ref_batch_norm_grad, batch_norm_grad_body)
REF_OP(ref_layer_norm_grad, layer_norm_grad_body)
REF_OP(ref_group_norm_grad, group_norm_grad_body)
REF_OP(ref_lrn_grad, lrn_grad_body)
