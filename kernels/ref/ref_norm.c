// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_norm.c - normalisation: batch, instance, layer, group, RMS, Lp, mean-variance,
// local response.
//
// Mean and variance are two passes in double (sum, then squared differences): no cancellation, and
// no need for a running formula. stash_type is met by construction. Per-channel parameters are read
// as (channel, position) runs, so that every inner loop is contiguous.
#include "kernels/ref/ref_num.h"

#include "base/compare.h"

#include <math.h>

static void norm_moments(const double *x, int64_t n, double *mean, double *var)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
    }
    *mean = n ? sum / (double)n : 0;
    for (int64_t i = 0; i < n; i++) {
        squares += (x[i] - *mean) * (x[i] - *mean);
    }
    *var = n ? squares / (double)n : 0;
}

// y = x * a + b
static void norm_affine(double *x, int64_t n, double a, double b)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = x[i] * a + b;
    }
}

static hth_err norm_channels(const hth_node *node, const hth_tensor *in, int from, int to,
                             int64_t channels)
{
    for (int i = from; i <= to; i++) {
        if (ref_count(&in[i]) != channels) {
            return hth_fail(HTH_EINVAL, "input %d must have %lld elements", i, (long long)channels);
        }
    }
    return HTH_OK;
}

// Moments of channel c over the batch and all positions of x (N, C, size).
static void norm_batch_moments(const double *x, const hth_shape *shape, int64_t c, int64_t size,
                               double *mean, double *var)
{
    int64_t channels = shape->dim[1], batch = shape->dim[0];
    double sum = 0, squares = 0, count = (double)(batch * size);
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t i = 0; i < size; i++) {
            sum += x[(b * channels + c) * size + i];
        }
    }
    *mean = sum / count;
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t i = 0; i < size; i++) {
            double d = x[(b * channels + c) * size + i] - *mean;
            squares += d * d;
        }
    }
    *var = squares / count;
}

static void norm_store(hth_tensor *tensor, int64_t i, double v)
{
    if (tensor) {
        ref_round_at(&v, i, 1, tensor);
    }
}

static hth_err norm_batch_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                               hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    HTH_TRY(ref_need_rank(&in[0], 1));
    int64_t channels = s->rank > 1 ? s->dim[1] : 1;
    int64_t size = ref_span(s, 2, s->rank), batch = s->dim[0];
    double eps = hth_node_float(node, "epsilon", 1e-5f),
           momentum = hth_node_float(node, "momentum", 0.9f), *x;
    bool training = hth_node_int(node, "training_mode", 0) != 0;
    HTH_TRY(norm_channels(node, in, 1, 4, channels));
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(ref_need_count(ref_out(node, out, 1), channels));
    HTH_TRY(ref_need_count(ref_out(node, out, 2), channels));
    for (int64_t c = 0; c < channels && !hth_pace_over((uint64_t)(batch * size)); c++) {
        double mean = ref_f64_at(&in[3], c), var = ref_f64_at(&in[4], c);
        if (training) {
            double old_mean = mean, old_var = var;
            norm_batch_moments(x, s, c, size, &mean, &var);
            norm_store(ref_out(node, out, 1), c, old_mean * momentum + mean * (1 - momentum));
            norm_store(ref_out(node, out, 2), c, old_var * momentum + var * (1 - momentum));
        }
        double a = ref_f64_at(&in[1], c) / sqrt(var + eps);
        for (int64_t b = 0; b < batch; b++) {
            norm_affine(x + (b * channels + c) * size, size, a, ref_f64_at(&in[2], c) - mean * a);
        }
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

static hth_err norm_scale_shift_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                     hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    double *x;
    HTH_TRY(ref_need_rank(&in[0], 2));
    HTH_TRY(norm_channels(node, in, 1, 2, s->dim[1]));
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    int64_t size = ref_span(s, 2, s->rank);
    for (int64_t i = 0; i < s->dim[0] * s->dim[1] && !hth_pace_over((uint64_t)size); i++) {
        int64_t c = i % s->dim[1];
        norm_affine(x + i * size, size, ref_f64_at(&in[1], c), ref_f64_at(&in[2], c));
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

// Instance and group normalisation: moments per (sample, group of channels). Scale and bias belong
// to channels, or (as opset 18 had it) to groups.
static hth_err norm_grouped(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                            hth_tensor *out, int64_t groups)
{
    const hth_shape *s = &in[0].shape;
    HTH_TRY(ref_need_rank(&in[0], 2));
    int64_t channels = s->dim[1], size = ref_span(s, 2, s->rank), n_scale = ref_count(&in[1]);
    double eps = hth_node_float(node, "epsilon", 1e-5f), *x;
    if (groups < 1 || channels % groups || (n_scale != channels && n_scale != groups)) {
        return hth_fail(HTH_EINVAL, "channels, groups and scale do not agree");
    }
    HTH_TRY(norm_channels(node, in, 2, 2, n_scale));
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    int64_t per = channels / groups;
    for (int64_t g = 0; g < s->dim[0] * groups && !hth_pace_over((uint64_t)(per * size)); g++) {
        double mean, var;
        double *first = x + g * per * size;
        norm_moments(first, per * size, &mean, &var);
        for (int64_t c = 0; c < per; c++) {
            int64_t channel = g % groups * per + c, p = n_scale == channels ? channel : g % groups;
            double a = ref_f64_at(&in[1], p) / sqrt(var + eps);
            norm_affine(first + c * size, size, a, ref_f64_at(&in[2], p) - mean * a);
        }
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

static hth_err norm_instance_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                  hth_tensor *out)
{
    HTH_TRY(ref_need_rank(&in[0], 2));
    return norm_grouped(mem, node, in, out, in[0].shape.dim[1]);
}

static hth_err norm_group_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                               hth_tensor *out)
{
    return norm_grouped(mem, node, in, out, hth_node_int(node, "num_groups", 1));
}

// Scale or bias of layer normalisation: `*period` elements that repeat along shape, which is the
// normalised size when the parameter does not depend on the outer dimensions.
static hth_err norm_parameter(ref_mem *mem, const hth_tensor *tensor, const hth_shape *shape,
                              int axis, double **out, int64_t *period)
{
    hth_shape inner = {.rank = shape->rank - axis};
    for (int i = 0; i < inner.rank; i++) {
        inner.dim[i] = shape->dim[axis + i];
    }
    bool fits = tensor->shape.rank <= inner.rank;
    *period = hth_shape_elements(fits ? &inner : shape);
    return ref_expand(mem, tensor, fits ? &inner : shape, out);
}

static void norm_row(double *row, int64_t n, bool centre, double eps, double *mean, double *inv)
{
    double var = 0;
    *mean = 0;
    if (centre) {
        norm_moments(row, n, mean, &var);
    } else {
        for (int64_t i = 0; i < n; i++) {
            var += row[i] * row[i];
        }
        var /= (double)n;
    }
    *inv = 1 / sqrt(var + eps);
    norm_affine(row, n, *inv, -*mean * *inv);
}

// LayerNormalization and RMSNormalization, which is the same without centring and bias.
static hth_err norm_layer_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                               hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    const hth_tensor *b = ref_in(node, in, 2);
    int axis = ref_axis(hth_node_int(node, "axis", -1), s->rank);
    double eps = hth_node_float(node, "epsilon", 1e-5f), *x, *scale, *bias = NULL;
    int64_t n_scale, n_bias = 1;
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis out of range");
    }
    int64_t rows = ref_span(s, 0, axis), size = ref_span(s, axis, s->rank);
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(ref_need_count(ref_out(node, out, 1), rows));
    HTH_TRY(ref_need_count(ref_out(node, out, 2), rows));
    HTH_TRY(norm_parameter(mem, &in[1], s, axis, &scale, &n_scale));
    if (b) {
        HTH_TRY(norm_parameter(mem, b, s, axis, &bias, &n_bias));
    }
    for (int64_t r = 0; r < rows && !hth_pace_over((uint64_t)size); r++) {
        double mean, inv;
        double *row = x + r * size;
        norm_row(row, size, node->op == HTH_OP_LAYER_NORMALIZATION, eps, &mean, &inv);
        if (size > 0) { // rows of nothing have no parameters, either
            const double *a = scale + r * size % n_scale;
            const double *c = bias ? bias + r * size % n_bias : NULL;
            for (int64_t i = 0; i < size; i++) {
                row[i] = row[i] * a[i] + (c ? c[i] : 0);
            }
        }
        norm_store(ref_out(node, out, 1), r, mean);
        norm_store(ref_out(node, out, 2), r, inv);
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

static hth_err norm_lp_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                            hth_tensor *out)
{
    int axis = ref_axis(hth_node_int(node, "axis", -1), in[0].shape.rank);
    bool l1 = hth_node_int(node, "p", 2) == 1;
    int64_t outer, along, inner;
    double *x;
    if (axis < 0) {
        return hth_fail(HTH_EINVAL, "axis out of range");
    }
    ref_around(&in[0].shape, axis, &outer, &along, &inner);
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    for (int64_t i = 0; i < outer * inner && !hth_pace_over((uint64_t)along); i++) {
        double *first = x + i / inner * along * inner + i % inner;
        double norm = 0;
        for (int64_t k = 0; k < along; k++) {
            double v = first[k * inner];
            norm += l1 ? fabs(v) : v * v;
        }
        norm = l1 ? norm : sqrt(norm);
        for (int64_t k = 0; k < along && norm != 0; k++) {
            first[k * inner] /= norm;
        }
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

static hth_err norm_mean_variance_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                       hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    int64_t axes[HTH_MAX_RANK] = {0, 2, 3}, total = ref_count(&in[0]);
    int n_axes = hth_node_ints(node, "axes", axes, HTH_MAX_RANK);
    n_axes = n_axes < 0 ? 3 : (int)hth_clamp(n_axes, 0, HTH_MAX_RANK);
    hth_shape kept = *s;
    double *x, *mean, *var;
    for (int i = 0; i < n_axes; i++) {
        int a = ref_axis(axes[i], s->rank);
        if (a < 0) {
            return hth_fail(HTH_EINVAL, "axis out of range");
        }
        kept.dim[a] = 1;
    }
    int64_t groups = hth_shape_elements(&kept);
    const hth_shape *shapes[] = {s, &kept};
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(REF_TAKE(mem, groups, &mean));
    HTH_TRY(REF_TAKE(mem, groups, &var));
    for (int pass = 0; pass < 3; pass++) {
        ref_iter it;
        for (bool more = ref_iter_broadcast(&it, s, 2, shapes); more; more = ref_iter_next(&it)) {
            for (int64_t i = 0; i < it.count; i++) {
                double *v = x + it.offset[0] + i * it.stride[0];
                int64_t k = it.offset[1] + i * it.stride[1];
                if (pass == 0) {
                    mean[k] += *v * (double)groups / (double)total;
                } else if (pass == 1) {
                    var[k] += (*v - mean[k]) * (*v - mean[k]) * (double)groups / (double)total;
                } else {
                    *v = (*v - mean[k]) / (sqrt(var[k]) + 1e-9);
                }
            }
        }
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

static hth_err norm_lrn_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    HTH_TRY(ref_need_rank(&in[0], 2));
    int64_t channels = s->dim[1], inner = ref_span(s, 2, s->rank),
            size = hth_node_int(node, "size", 1);
    double alpha = hth_node_float(node, "alpha", 1e-4f) / (double)size,
           beta = hth_node_float(node, "beta", 0.75f);
    double k = hth_node_float(node, "bias", 1), *x, *y, *sum;
    if (size < 1 || size > INT32_MAX) {
        return hth_fail(HTH_EINVAL, "size of %lld", (long long)size);
    }
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(REF_TAKE(mem, ref_count(&in[0]), &y));
    HTH_TRY(REF_TAKE(mem, inner, &sum));
    for (int64_t i = 0; i < s->dim[0] * channels; i++) {
        int64_t c = i % channels, lo = c - (size - 1) / 2, hi = c + size / 2;
        lo = lo < 0 ? 0 : lo;
        hi = hi >= channels ? channels - 1 : hi;
        if (hth_pace_over((uint64_t)(hi - lo + 8) * (uint64_t)inner)) {
            break;
        }
        for (int64_t j = 0; j < inner; j++) {
            sum[j] = 0;
        }
        for (int64_t q = lo; q <= hi; q++) {
            const double *row = x + (i - c + q) * inner;
            for (int64_t j = 0; j < inner; j++) {
                sum[j] += row[j] * row[j];
            }
        }
        for (int64_t j = 0; j < inner; j++) {
            y[i * inner + j] = x[i * inner + j] / pow(k + alpha * sum[j], beta);
        }
    }
    ref_round(y, &out[0]);
    return HTH_OK;
}

REF_OP(ref_batch_normalization, norm_batch_body)
REF_OP(ref_scale_shift, norm_scale_shift_body)
REF_OP(ref_instance_normalization, norm_instance_body)
REF_OP(ref_group_normalization, norm_group_body)
REF_OP(ref_layer_normalization, norm_layer_body)
REF_OP(ref_lp_normalization, norm_lp_body)
REF_OP(ref_mean_variance_normalization, norm_mean_variance_body)
REF_OP(ref_lrn, norm_lrn_body)
