// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_misc.c - DepthToSpace, SpaceToDepth, OneHot, ReverseSequence, Det, Dropout,
// Reorder.
//
// Those that only move elements move bytes, whatever the dtype. Dropout's random numbers are a
// function of (seed, position) alone, so that a recomputed step drops the same elements.
#include "kernels/ref/ref_num.h"

#include <math.h>
#include <string.h>

// y[n, c, h * b + i, w * b + j] = x[n, channel(i, j, c), h, w]: the copy of both operators, with
// dimensions in the order node, c, i, j, h, w. For SpaceToDepth x and y change places.
static hth_err misc_blocks(const hth_node *node, const hth_tensor *deep, const hth_tensor *wide,
                           bool to_wide, void *dst, const void *src)
{
    int64_t b = hth_node_int(node, "blocksize", 0);
    const int64_t *d = deep->shape.dim, *w = wide->shape.dim;
    if (deep->shape.rank != 4 || wide->shape.rank != 4 || b < 1 || b > INT16_MAX || w[0] != d[0] ||
        d[1] != w[1] * b * b || w[2] != d[2] * b || w[3] != d[3] * b) {
        return hth_fail(HTH_EINVAL, "the shapes do not agree with blocksize %lld", (long long)b);
    }
    bool crd = strcmp(hth_node_str(node, "mode", "DCR"), "CRD") == 0;
    int64_t image = d[2] * d[3];
    int64_t channel = crd ? image * b * b : image;
    int64_t block = crd ? image : image * w[1];
    const int64_t dim[] = {d[0], w[1], b, b, d[2], d[3]};
    const int64_t deep_step[] = {d[1] * image, channel, b * block, block, d[3], 1};
    const int64_t wide_step[] = {w[1] * w[2] * w[3], w[2] * w[3], w[3], 1, b * w[3], b};
    const int64_t *to = to_wide ? wide_step : deep_step;
    const int64_t *from = to_wide ? deep_step : wide_step;
    ref_copy(6, dim, dst, to, src, from, hth_dtype_bytes(deep->dtype));
    return HTH_OK;
}

REF_KERNEL(ref_depth_to_space)
{
    return misc_blocks(n, &in[0], &out[0], true, out[0].data, in[0].data);
}

REF_KERNEL(ref_space_to_depth)
{
    return misc_blocks(n, &out[0], &in[0], false, out[0].data, in[0].data);
}

REF_KERNEL(ref_one_hot)
{
    int axis = ref_axis(hth_node_int(n, "axis", -1), out[0].shape.rank);
    int64_t outer, depth, inner;
    size_t bytes = hth_dtype_bytes(out[0].dtype);
    if (axis < 0 || ref_count(&in[2]) != 2) {
        return hth_fail(HTH_EINVAL, "axis or values are not valid");
    }
    ref_around(&out[0].shape, axis, &outer, &depth, &inner);
    if (depth != ref_i64_at(&in[1], 0) || outer * inner != ref_count(&in[0])) {
        return hth_fail(HTH_EINVAL, "the output's shape does not fit depth and indices");
    }
    const char *values = in[2].data;
    ref_fill(out[0].data, values, bytes, ref_count(&out[0]));
    for (int64_t i = 0; i < outer * inner; i++) {
        int64_t hot = ref_i64_at(&in[0], i);
        hot += hot < 0 ? depth : 0;
        if (hot >= 0 && hot < depth) {
            int64_t at = (i / inner * depth + hot) * inner + i % inner;
            memcpy((char *)out[0].data + (size_t)at * bytes, values + bytes, bytes);
        }
    }
    return HTH_OK;
}

REF_KERNEL(ref_reverse_sequence)
{
    const hth_shape *s = &in[0].shape;
    bool time_first = hth_node_int(n, "time_axis", 0) == 0;
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    if (s->rank < 2 || ref_count(&in[1]) != s->dim[time_first]) {
        return hth_fail(HTH_EINVAL, "sequence_lens must have one element per sample");
    }
    int64_t steps = s->dim[!time_first], batch = s->dim[time_first];
    size_t run = (size_t)ref_span(s, 2, s->rank) * hth_dtype_bytes(in[0].dtype);
    for (int64_t b = 0; b < batch; b++) {
        int64_t len = ref_i64_at(&in[1], b);
        if (len < 0 || len > steps) {
            return hth_fail(HTH_EINVAL, "length %lld is out of range", (long long)len);
        }
        for (int64_t t = 0; t < steps; t++) {
            int64_t from = t < len ? len - 1 - t : t;
            int64_t to_at = time_first ? t * batch + b : b * steps + t;
            int64_t from_at = time_first ? from * batch + b : b * steps + from;
            memcpy((char *)out[0].data + (size_t)to_at * run,
                   (const char *)in[0].data + (size_t)from_at * run, run);
        }
    }
    return HTH_OK;
}

// Gaussian elimination with row pivoting; destroys a.
static double misc_det(double *a, int64_t n)
{
    double det = 1;
    for (int64_t k = 0; k < n && !hth_pace_over((uint64_t)((n - k) * (n - k)) + 1); k++) {
        int64_t p = k;
        for (int64_t i = k + 1; i < n; i++) {
            p = fabs(a[i * n + k]) > fabs(a[p * n + k]) ? i : p;
        }
        if (a[p * n + k] == 0) {
            return 0;
        }
        for (int64_t j = 0; j < n && p != k; j++) {
            double t = a[k * n + j];
            a[k * n + j] = a[p * n + j];
            a[p * n + j] = t;
        }
        det *= p != k ? -a[k * n + k] : a[k * n + k];
        for (int64_t i = k + 1; i < n; i++) {
            double f = a[i * n + k] / a[k * n + k];
            for (int64_t j = k; j < n; j++) {
                a[i * n + j] -= f * a[k * n + j];
            }
        }
    }
    return det;
}

static hth_err misc_det_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                             hth_tensor *out)
{
    const hth_shape *s = &in[0].shape;
    double *x;
    if (s->rank < 2 || s->dim[s->rank - 1] != s->dim[s->rank - 2]) {
        return hth_fail(HTH_EINVAL, "the matrices are not square");
    }
    HTH_TRY(ref_need_count(&out[0], ref_span(s, 0, s->rank - 2)));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    int64_t size = s->dim[s->rank - 1];
    for (int64_t i = 0; i < ref_count(&out[0]); i++) {
        double det = misc_det(x + i * size * size, size);
        ref_round_at(&det, i, 1, &out[0]);
    }
    return HTH_OK;
}

REF_OP(ref_det, misc_det_body)

// The gradient is the matrix of cofactors, which a singular matrix has, too. Each is a determinant
// of its own: what takes determinants is small.
static double misc_cofactor(const double *a, int64_t n, int64_t row, int64_t column, double *minor)
{
    double *to = minor;
    for (int64_t i = 0; i < n * n; i++) {
        if (i / n != row && i % n != column) {
            *to++ = a[i];
        }
    }
    double det = misc_det(minor, n - 1);
    return (row + column) % 2 != 0 ? -det : det;
}

static hth_err misc_det_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                  hth_tensor *out)
{
    const hth_shape *s = &in[1].shape;
    double *dy, *x, *minor, *dx;
    int64_t size = s->rank < 2 ? 0 : s->dim[s->rank - 1], cells = size * size;
    if (s->rank < 2 || s->dim[s->rank - 2] != size) {
        return hth_fail(HTH_EINVAL, "the matrices are not square");
    }
    HTH_TRY(ref_need_count(&in[0], ref_span(s, 0, s->rank - 2)));
    HTH_TRY(ref_need_same(&out[0], &in[1]));
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(ref_wide(mem, &in[1], &x));
    HTH_TRY(REF_TAKE(mem, cells, &minor));
    HTH_TRY(REF_TAKE(mem, ref_count(&in[1]), &dx));
    for (int64_t i = 0; i < ref_count(&in[1]) && !hth_pace_over((uint64_t)cells); i++) {
        int64_t at = i % cells;
        dx[i] = dy[i / cells] * misc_cofactor(x + i - at, size, at / size, at % size, minor);
    }
    ref_round(dx, &out[0]);
    return HTH_OK;
}

REF_OP(ref_det_grad, misc_det_grad_body)

// A uniform number in [0, 1): splitmix64 (Steele, Lea, Flood 2014) of seed and position.
static double misc_random(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0xd1342543de82ef95u + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static hth_err misc_dropout_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                 hth_tensor *out)
{
    const hth_tensor *ratio_in = ref_in(node, in, 1), *training = ref_in(node, in, 2);
    hth_tensor *mask = ref_out(node, out, 1);
    double ratio = ratio_in ? ref_f64_at(ratio_in, 0) : 0.5;
    double *x;
    uint64_t seed = (uint64_t)hth_node_int(node, "seed", 0);
    int64_t count = ref_count(&in[0]);
    HTH_TRY(ref_need_same(&out[0], &in[0]));
    HTH_TRY(ref_need_count(mask, count));
    if (!training || ref_i64_at(training, 0) == 0 || ratio == 0) {
        memcpy(out[0].data, in[0].data, (size_t)count * hth_dtype_bytes(in[0].dtype));
        if (mask) {
            memset(mask->data, 1, (size_t)count);
        }
        return HTH_OK;
    }
    if (!(ratio > 0 && ratio < 1)) {
        return hth_fail(HTH_EINVAL, "ratio %g is not in [0, 1)", ratio);
    }
    HTH_TRY(ref_wide(mem, &in[0], &x));
    for (int64_t i = 0; i < count; i++) {
        bool keep = misc_random(seed, (uint64_t)i) >= ratio;
        x[i] = keep ? x[i] / (1 - ratio) : 0;
        if (mask) {
            ((uint8_t *)mask->data)[i] = keep;
        }
    }
    ref_round(x, &out[0]);
    return HTH_OK;
}

REF_OP(ref_dropout, misc_dropout_body)

// Where image (b, c) starts in a layout, and the step between its positions, in elements.
static int64_t misc_image(hth_layout layout, const hth_shape *shape, int64_t size, int64_t b,
                          int64_t c, int64_t *step)
{
    int64_t channels = shape->dim[1], block = layout == HTH_LAYOUT_C8 ? 8 : 16;
    switch (layout) {
    case HTH_LAYOUT_C8:
    case HTH_LAYOUT_C16:
        *step = block;
        return (b * ((channels + block - 1) / block) + c / block) * size * block + c % block;
    case HTH_LAYOUT_NHWC:
        *step = channels;
        return b * size * channels + c;
    default:
        *step = 1;
        return (b * channels + c) * size;
    }
}

REF_KERNEL(ref_reorder)
{
    const hth_shape *s = &in[0].shape;
    size_t bytes = hth_dtype_bytes(in[0].dtype);
    if (!hth_shape_equal(s, &out[0].shape) || in[0].dtype != out[0].dtype || s->rank < 2) {
        return hth_fail(HTH_EINVAL,
                        "a reorder keeps shape and dtype, and needs a channel dimension");
    }
    int64_t size = ref_span(s, 2, s->rank);
    memset(out[0].data, 0, out[0].bytes);
    for (int64_t i = 0; i < s->dim[0] * s->dim[1]; i++) {
        int64_t from_step, to_step, b = i / s->dim[1], c = i % s->dim[1];
        int64_t from = misc_image(in[0].layout, s, size, b, c, &from_step);
        int64_t to = misc_image(out[0].layout, s, size, b, c, &to_step);
        ref_copy(1, &size, (char *)out[0].data + (size_t)to * bytes, &to_step,
                 (const char *)in[0].data + (size_t)from * bytes, &from_step, bytes);
    }
    return HTH_OK;
}
