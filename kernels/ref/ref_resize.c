// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_resize.c - Resize and Upsample, and their gradient.
//
// Interpolation is separable: for every axis that changes, a table says which input positions each
// output position reads, with what weights; the axes are applied one after the other. Nearest is a
// table of one tap, linear and cubic are the same kernel function at distances that antialiasing
// stretches. Positions outside repeat the edge.
#include "kernels/ref/ref_num.h"

#include <math.h>
#include <string.h>

#define RESIZE_MAX_TAPS 1000000 // a scale below 1e-6 is a mistake, not a picture
#define RESIZE_TAP      8       // the work of placing one

typedef struct resize {
    const hth_node *node;
    const char *coordinates, *mode, *nearest;
    bool antialias, exclude_outside;
    double cubic_a, extrapolation;
    double scale[HTH_MAX_RANK], roi[2][HTH_MAX_RANK];
} resize;

typedef struct resize_table {
    int64_t n_in, n_out, taps;
    int64_t *index; // (n_out, taps)
    double *weight;
    bool *outside; // (n_out): takes the extrapolation value
} resize_table;

// The input coordinate of output position `o`.
static double resize_coordinate(const resize *r, int axis, int64_t n_in, int64_t n_out, int64_t o)
{
    double scale = r->scale[axis], in = (double)n_in, out = scale * in, x = (double)o;
    const char *mode = r->coordinates;
    if (strcmp(mode, "align_corners") == 0) {
        return out == 1 ? 0 : x * (in - 1) / (out - 1);
    }
    if (strcmp(mode, "asymmetric") == 0) {
        return x / scale;
    }
    if (strcmp(mode, "tf_crop_and_resize") == 0) {
        double from = r->roi[0][axis], size = r->roi[1][axis] - from;
        return from * (in - 1) + (out == 1 ? size * (in - 1) / 2 : x * size * (in - 1) / (out - 1));
    }
    if (strcmp(mode, "pytorch_half_pixel") == 0 && out == 1) {
        return -0.5;
    }
    double offset =
        strcmp(mode, "half_pixel_symmetric") == 0 ? in / 2 * (1 - (double)n_out / out) : 0;
    return offset + (x + 0.5) / scale - 0.5;
}

static double resize_nearest(const char *mode, double x)
{
    if (strcmp(mode, "floor") == 0) {
        return floor(x);
    }
    if (strcmp(mode, "ceil") == 0) {
        return ceil(x);
    }
    return strcmp(mode, "round_prefer_ceil") == 0 ? floor(x + 0.5) : ceil(x - 0.5);
}

static int64_t resize_clamp(double x, int64_t n)
{
    if (!(x > 0)) { // or NaN
        return 0;
    }
    return x > (double)(n - 1) ? n - 1 : (int64_t)x;
}

// Fills row `o` of the table for input coordinate x; taps stand at first, first + 1, ...
static void resize_taps(const resize *r, resize_table *table, int64_t o, double x, double stretch)
{
    int64_t *index = table->index + o * table->taps;
    double *weight = table->weight + o * table->taps;
    double sum = 0;
    if (table->taps == 1) {
        index[0] = resize_clamp(resize_nearest(r->nearest, x), table->n_in);
        weight[0] = 1;
        return;
    }
    double first = ceil(x) - (double)(table->taps / 2);
    bool cubic = strcmp(r->mode, "cubic") == 0;
    for (int64_t i = 0; i < table->taps; i++) {
        double at = first + (double)i, distance = (at - x) * stretch;
        bool outside = at < 0 || at > (double)(table->n_in - 1);
        index[i] = resize_clamp(at, table->n_in);
        weight[i] = cubic ? ref_cubic(distance, r->cubic_a) : fmax(1 - fabs(distance), 0);
        weight[i] = r->exclude_outside && outside ? 0 : weight[i];
        sum += weight[i];
    }
    for (int64_t i = 0; i < table->taps && sum != 0 && (r->antialias || r->exclude_outside); i++) {
        weight[i] /= sum;
    }
}

static hth_err resize_table_make(ref_mem *mem, const resize *r, int axis, int64_t n_in,
                                 int64_t n_out, resize_table *table)
{
    double stretch = r->antialias ? fmin(r->scale[axis], 1) : 1;
    double radius = strcmp(r->mode, "cubic") == 0 ? 2 : 1;
    double taps = strcmp(r->mode, "nearest") == 0 ? 1 : -2 * floor(-radius / stretch);
    if (taps > RESIZE_MAX_TAPS) {
        return hth_fail(HTH_ENOTSUP, "a scale of %g is not supported", r->scale[axis]);
    }
    *table = (resize_table){.n_in = n_in, .n_out = n_out, .taps = (int64_t)taps};
    HTH_TRY(REF_TAKE(mem, n_out * table->taps, &table->index));
    HTH_TRY(REF_TAKE(mem, n_out * table->taps, &table->weight));
    HTH_TRY(REF_TAKE(mem, n_out, &table->outside));
    for (int64_t o = 0; o < n_out && !hth_pace_over((uint64_t)table->taps * RESIZE_TAP); o++) {
        double x = resize_coordinate(r, axis, n_in, n_out, o);
        resize_taps(r, table, o, x, stretch);
        table->outside[o] =
            strcmp(r->coordinates, "tf_crop_and_resize") == 0 && (x < 0 || x > (double)(n_in - 1));
    }
    return HTH_OK;
}

static void resize_axis(const resize *r, const resize_table *table, const double *x, int64_t outer,
                        int64_t inner, double *y)
{
    uint64_t work = (uint64_t)table->taps * (uint64_t)inner;
    for (int64_t row = 0; row < outer * table->n_out && !hth_pace_over(work); row++) {
        int64_t o = row % table->n_out;
        double *to = y + row * inner;
        for (int64_t k = 0; k < table->taps; k++) {
            const double *from =
                x + (row / table->n_out * table->n_in + table->index[o * table->taps + k]) * inner;
            double w = table->weight[o * table->taps + k];
            for (int64_t i = 0; i < inner; i++) {
                to[i] += w * from[i];
            }
        }
        for (int64_t i = 0; i < inner && table->outside[o]; i++) {
            to[i] = r->extrapolation;
        }
    }
}

// Which axes the entries of scales, sizes and roi belong to.
static hth_err resize_axes(const hth_node *node, int rank, int *axes, int *n_axes)
{
    int64_t v[HTH_MAX_RANK];
    int have = hth_node_ints(node, "axes", v, HTH_MAX_RANK);
    *n_axes = have < 0 ? rank : have;
    if (*n_axes > rank) {
        return hth_fail(HTH_EINVAL, "there are more axes than dimensions");
    }
    for (int i = 0; i < *n_axes; i++) {
        axes[i] = have < 0 ? i : ref_axis(v[i], rank);
        if (axes[i] < 0) {
            return hth_fail(HTH_EINVAL, "axis is out of range");
        }
    }
    return HTH_OK;
}

static void resize_keep_aspect(resize *r, const int *axes, int n_axes)
{
    const char *policy = hth_node_str(r->node, "keep_aspect_ratio_policy", "stretch");
    double best = n_axes ? r->scale[axes[0]] : 1;
    if (strcmp(policy, "stretch") == 0) {
        return;
    }
    for (int i = 1; i < n_axes; i++) {
        double s = r->scale[axes[i]];
        best = strcmp(policy, "not_larger") == 0 ? fmin(best, s) : fmax(best, s);
    }
    for (int i = 0; i < n_axes; i++) {
        r->scale[axes[i]] = best;
    }
}

static hth_err resize_scales(resize *r, const hth_shape *shape, const hth_tensor *roi,
                             const hth_tensor *scales, const hth_tensor *sizes)
{
    int axes[HTH_MAX_RANK], n_axes;
    HTH_TRY(resize_axes(r->node, shape->rank, axes, &n_axes));
    bool by_scale = scales && ref_count(scales) > 0;
    const hth_tensor *given = by_scale ? scales : sizes;
    if (!given || ref_count(given) != n_axes) {
        return hth_fail(HTH_EINVAL, "one scale or size per axis is needed");
    }
    for (int i = 0; i < shape->rank; i++) {
        r->scale[i] = 1;
        r->roi[1][i] = 1;
    }
    for (int i = 0; i < n_axes; i++) {
        int a = axes[i];
        r->scale[a] =
            ref_f64_at(given, i) / (by_scale || shape->dim[a] == 0 ? 1 : (double)shape->dim[a]);
        if (roi && ref_count(roi) == 2 * n_axes) {
            r->roi[0][a] = ref_f64_at(roi, i);
            r->roi[1][a] = ref_f64_at(roi, n_axes + i);
        }
    }
    if (!by_scale) {
        resize_keep_aspect(r, axes, n_axes);
    }
    return HTH_OK;
}

static hth_err resize_run(ref_mem *mem, const resize *r, const hth_tensor *x, hth_tensor *y)
{
    hth_shape s = x->shape;
    double *data, *next;
    HTH_TRY(ref_wide(mem, x, &data));
    for (int a = 0; a < s.rank && ref_count(y) > 0; a++) {
        int64_t n_in = s.dim[a], n_out = y->shape.dim[a];
        resize_table t = {0};
        if (n_in == n_out && r->scale[a] == 1 && r->roi[0][a] == 0 && r->roi[1][a] == 1) {
            continue;
        }
        if (!(r->scale[a] > 0) || n_in == 0) {
            return hth_fail(HTH_EINVAL, "dimension %d cannot be scaled by %g", a, r->scale[a]);
        }
        HTH_TRY(resize_table_make(mem, r, a, n_in, n_out, &t));
        s.dim[a] = n_out;
        HTH_TRY(REF_TAKE(mem, hth_shape_elements(&s), &next));
        resize_axis(r, &t, data, ref_span(&s, 0, a), ref_span(&s, a + 1, s.rank), next);
        data = next;
    }
    for (int64_t i = 0; i < ref_count(y) && ref_is_int(y->dtype); i++) {
        data[i] = rint(data[i]);
    }
    ref_round(data, y);
    return HTH_OK;
}

// The transpose of resize_axis: each input position collects what it gave.
static void resize_axis_back(const resize_table *table, const double *dy, int64_t outer,
                             int64_t inner, double *dx)
{
    uint64_t work = (uint64_t)table->taps * (uint64_t)inner;
    for (int64_t row = 0; row < outer * table->n_out && !hth_pace_over(work); row++) {
        int64_t o = row % table->n_out;
        for (int64_t k = 0; k < table->taps && !table->outside[o]; k++) {
            double *to =
                dx + (row / table->n_out * table->n_in + table->index[o * table->taps + k]) * inner;
            double w = table->weight[o * table->taps + k];
            for (int64_t i = 0; i < inner; i++) {
                to[i] += w * dy[row * inner + i];
            }
        }
    }
}

static hth_err resize_back(ref_mem *mem, const resize *r, const hth_tensor *dy, hth_tensor *dx)
{
    hth_shape s = dy->shape;
    double *data, *next;
    HTH_TRY(ref_wide(mem, dy, &data));
    for (int a = s.rank - 1; a >= 0; a--) {
        int64_t n_in = dx->shape.dim[a], n_out = s.dim[a];
        resize_table t = {0};
        if (n_in == n_out && r->scale[a] == 1 && r->roi[0][a] == 0 && r->roi[1][a] == 1) {
            continue;
        }
        HTH_TRY(resize_table_make(mem, r, a, n_in, n_out, &t));
        s.dim[a] = n_in;
        HTH_TRY(REF_TAKE(mem, hth_shape_elements(&s), &next));
        resize_axis_back(&t, data, ref_span(&s, 0, a), ref_span(&s, a + 1, s.rank), next);
        data = next;
    }
    ref_round(data, dx);
    return HTH_OK;
}

static hth_err resize_read(const hth_node *node, const hth_shape *shape, const hth_tensor *in,
                           resize *out)
{
    bool upsample = node->op == HTH_OP_UPSAMPLE;
    *out = (resize){
        .node = node,
        .mode = hth_node_str(node, "mode", "nearest"),
        .coordinates = hth_node_str(node, "coordinate_transformation_mode", "half_pixel"),
        .nearest = hth_node_str(node, "nearest_mode", "round_prefer_floor"),
        .antialias = hth_node_int(node, "antialias", 0) != 0,
        .exclude_outside = hth_node_int(node, "exclude_outside", 0) != 0,
        .cubic_a = hth_node_float(node, "cubic_coeff_a", -0.75f),
        .extrapolation = hth_node_float(node, "extrapolation_value", 0),
    };
    if (upsample) {
        out->coordinates = "asymmetric";
        out->nearest = "floor";
        return resize_scales(out, shape, NULL, ref_in(node, in, 1), NULL);
    }
    return resize_scales(out, shape, ref_in(node, in, 1), ref_in(node, in, 2), ref_in(node, in, 3));
}

static hth_err resize_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                           hth_tensor *out)
{
    bool back = node->op == HTH_OP_RESIZE_GRAD; // scales and sizes are the forward operator's
    resize r;
    if (in[0].shape.rank != out[0].shape.rank) {
        return hth_fail(HTH_EINVAL, "the ranks of input and output differ");
    }
    HTH_TRY(resize_read(node, back ? &out[0].shape : &in[0].shape, in, &r));
    return back ? resize_back(mem, &r, &in[0], &out[0]) : resize_run(mem, &r, &in[0], &out[0]);
}

REF_OP(ref_resize, resize_body)
REF_OP(ref_resize_grad, resize_body)
