// SPDX-License-Identifier: Apache-2.0
// Resize and its gradient: what of each dimension's positions a kernel works out taps from.
#include "kernels/cuda/seq.h"

#include <math.h>
#include <string.h>

#define RESIZE_MAX_TAPS 4096 // of a dimension; a product of them is read for each result

enum { RESIZE_NEAREST, RESIZE_LINEAR, RESIZE_CUBIC };
enum { RESIZE_CROP = 4 }; // tf_crop_and_resize among the coordinates

// What the node says of every dimension.
typedef struct resize_spec {
    int mode;
    double scale[HTH_MAX_RANK], from[HTH_MAX_RANK], size[HTH_MAX_RANK];
} resize_spec;

static int resize_choice(const hth_node *node, const char *attr, const char *const *names,
                         int count)
{
    const char *name = hth_node_str(node, attr, names[0]);
    int i = 0;
    while (i < count && strcmp(name, names[i]) != 0) {
        i++;
    }
    return i < count ? i : -1;
}

// A constant list of f32. *count -1: absent, or empty.
static hth_err resize_floats(const hth_graph *graph, const hth_node *node, int input, double *out,
                             int cap, int *count)
{
    const hth_value *v = hth_cuda_in(graph, node, input);
    const void *data;
    *count = -1;
    if (v == NULL || hth_shape_elements(&v->shape) == 0) {
        return HTH_OK;
    }
    if (v->constant == NULL || v->dtype != HTH_DT_F32 || hth_shape_elements(&v->shape) > cap) {
        return hth_fail(HTH_ENOTSUP, "input %d is computed, not FP32, or too long", input);
    }
    HTH_TRY(hth_const_map(v->constant, &data));
    *count = (int)hth_shape_elements(&v->shape);
    for (int i = 0; i < *count; i++) {
        out[i] = (double)((const float *)data)[i];
    }
    hth_const_unmap(v->constant);
    return HTH_OK;
}

static hth_err resize_axes(const hth_node *node, int rank, int *axes, int *count)
{
    int64_t v[HTH_MAX_RANK];
    int have = hth_node_ints(node, "axes", v, HTH_MAX_RANK);
    *count = have < 0 ? rank : have;
    for (int i = 0; i < *count; i++) {
        int64_t axis = have < 0 ? i : v[i];
        axes[i] = (int)(axis < 0 ? axis + rank : axis);
        if (axes[i] < 0 || axes[i] >= rank) {
            return hth_fail(HTH_ENOTSUP, "axis %d is out of range", axes[i]);
        }
    }
    return HTH_OK;
}

// keep_aspect_ratio_policy: one scale for all axes, from the sizes as they are asked for.
static hth_err resize_aspect(const hth_graph *graph, const hth_node *node, const hth_shape *shape,
                             const int *axes, int n_axes, resize_spec *spec)
{
    const char *policy = hth_node_str(node, "keep_aspect_ratio_policy", "stretch");
    int64_t sizes[HTH_MAX_RANK];
    int count;
    if (strcmp(policy, "stretch") == 0) {
        return HTH_OK;
    }
    HTH_TRY(hth_cuda_ints(graph, node, 3, sizes, HTH_MAX_RANK, &count));
    if (count != n_axes) {
        return hth_fail(HTH_ENOTSUP, "there is not one size per axis");
    }
    double best = NAN;
    for (int i = 0; i < n_axes; i++) {
        double one = (double)sizes[i] / (double)shape->dim[axes[i]];
        best = strcmp(policy, "not_larger") == 0 ? fmin(best, one) : fmax(best, one);
    }
    for (int i = 0; i < n_axes; i++) {
        spec->scale[axes[i]] = best;
    }
    return HTH_OK;
}

// Scales as given, or the ratio of sizes; the region of interest.
static hth_err resize_scales(const hth_graph *graph, const hth_node *node, const hth_shape *x,
                             const hth_shape *y, resize_spec *spec)
{
    double scales[HTH_MAX_RANK], roi[2 * HTH_MAX_RANK];
    int axes[HTH_MAX_RANK], n_axes, given, has_roi;
    HTH_TRY(resize_axes(node, x->rank, axes, &n_axes));
    HTH_TRY(resize_floats(graph, node, 2, scales, HTH_MAX_RANK, &given));
    HTH_TRY(resize_floats(graph, node, 1, roi, 2 * HTH_MAX_RANK, &has_roi));
    for (int d = 0; d < x->rank; d++) {
        spec->scale[d] = given < 0 && x->dim[d] > 0 ? (double)y->dim[d] / (double)x->dim[d] : 1;
        spec->from[d] = 0;
        spec->size[d] = 1;
    }
    if (given >= 0 && given != n_axes) {
        return hth_fail(HTH_ENOTSUP, "there is not one scale per axis");
    }
    for (int i = 0; i < n_axes; i++) {
        spec->scale[axes[i]] = given < 0 ? spec->scale[axes[i]] : scales[i];
        if (has_roi == 2 * n_axes) {
            spec->from[axes[i]] = roi[i];
            spec->size[axes[i]] = roi[n_axes + i] - roi[i];
        }
    }
    return given < 0 ? resize_aspect(graph, node, x, axes, n_axes, spec) : HTH_OK;
}

static bool resize_moves(const resize_spec *spec, const hth_shape *x, const hth_shape *y, int d)
{
    return x->dim[d] != y->dim[d] || spec->scale[d] != 1 || spec->from[d] != 0 ||
           spec->size[d] != 1;
}

static hth_err resize_dimension(const hth_node *node, const resize_spec *spec, int64_t in,
                                int64_t out, int d, int k, hth_resize_params *params)
{
    double scale = spec->scale[d], radius = spec->mode == RESIZE_CUBIC ? 2 : 1;
    bool antialias = spec->mode != RESIZE_NEAREST && hth_node_int(node, "antialias", 0) != 0;
    params->in[k] = (int32_t)in;
    params->out[k] = (int32_t)out;
    params->scale[k] = scale;
    params->from[k] = spec->from[d];
    params->size[k] = spec->size[d];
    params->stretch[k] = antialias && scale < 1 ? scale : 1;
    double taps = spec->mode == RESIZE_NEAREST || !params->moves[k]
                      ? 1
                      : -2 * floor(-radius / params->stretch[k]);
    if (!(scale > 0) || in == 0 || taps > RESIZE_MAX_TAPS) {
        return hth_fail(HTH_ENOTSUP, "dimension %d of %lld elements is scaled by %g", d,
                        (long long)in, scale);
    }
    params->taps[k] = (int32_t)taps;
    return HTH_OK;
}

// The dimensions that are resized, and between them, are the kernel's three, its last ones; those
// after are inner. Images with their channels last are resized in their spatial dimensions.
static hth_err resize_dimensions(const hth_node *node, const resize_spec *spec, const hth_value *x,
                                 const hth_value *y, hth_resize_params *params)
{
    const hth_shape *a = &x->shape, *b = &y->shape;
    bool channels_last = x->layout == HTH_LAYOUT_NHWC;
    int first = a->rank, last = channels_last ? a->rank - 1 : -1;
    for (int d = 0; d < a->rank; d++) {
        if (resize_moves(spec, a, b, d)) {
            first = d < first ? d : first;
            last = d > last ? d : last;
        }
    }
    first = channels_last ? 2 : first;
    if (last - first > 2 ||
        (channels_last && (resize_moves(spec, a, b, 0) || resize_moves(spec, a, b, 1)))) {
        return hth_fail(HTH_ENOTSUP, "more than three neighbouring dimensions, or the channels, "
                                     "are resized");
    }
    params->inner = channels_last ? hth_cuda_inner(x) : 1;
    for (int d = last + 1; d < a->rank && !channels_last; d++) {
        params->inner *= (uint32_t)a->dim[d];
    }
    for (int d = first; d <= last; d++) {
        int k = 2 - (last - d);
        params->moves[k] = resize_moves(spec, a, b, d);
        HTH_TRY(resize_dimension(node, spec, a->dim[d], b->dim[d], d, k, params));
    }
    return HTH_OK;
}

static hth_err resize_read(const hth_graph *graph, const hth_node *node, const hth_value *x,
                           const hth_value *y, hth_resize_params *params)
{
    static const char *const coordinates[] = {"half_pixel",         "pytorch_half_pixel",
                                              "align_corners",      "asymmetric",
                                              "tf_crop_and_resize", "half_pixel_symmetric"};
    static const char *const nearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor",
                                          "ceil"};
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    resize_spec r = {.mode = resize_choice(node, "mode", modes, 3)};
    params->cubic = r.mode == RESIZE_CUBIC;
    params->coordinates = resize_choice(node, "coordinate_transformation_mode", coordinates, 6);
    params->nearest = resize_choice(node, "nearest_mode", nearest, 4);
    params->exclude = hth_node_int(node, "exclude_outside", 0) != 0;
    params->divides = params->exclude || hth_node_int(node, "antialias", 0) != 0;
    params->cubic_a = hth_node_float(node, "cubic_coeff_a", -0.75F);
    params->outside = hth_node_float(node, "extrapolation_value", 0);
    for (int k = 0; k < 3; k++) {
        params->in[k] = params->out[k] = params->taps[k] = 1;
        params->scale[k] = params->stretch[k] = 1;
    }
    if (r.mode < 0 || params->coordinates < 0 || params->nearest < 0) {
        return hth_fail(HTH_ENOTSUP, "an unknown mode");
    }
    HTH_TRY(resize_scales(graph, node, &x->shape, &y->shape, &r));
    for (int d = 0; d < x->shape.rank && params->coordinates != RESIZE_CROP; d++) {
        r.from[d] = 0; // a region is read in this mode only
        r.size[d] = 1;
    }
    return resize_dimensions(node, &r, x, y, params);
}

hth_err hth_cuda_resize(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    bool grad = node->op == HTH_OP_RESIZE_GRAD;
    const hth_value *in = hth_cuda_in(graph, node, 0), *out = hth_cuda_out(graph, node, 0);
    const hth_value *x = grad ? out : in;
    const hth_value *y = grad ? in : out;
    hth_resize_params p = {.n = hth_cuda_count(out), .half = hth_cuda_half(x)};
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    if (x->layout != y->layout || x->dtype != y->dtype) {
        return hth_fail(HTH_ENOTSUP, "input and result lie differently");
    }
    HTH_TRY(resize_read(graph, node, x, y, &p));
    hth_cuda_launch_add(seq, grad ? HTH_CUDA_hth_resize_grad : HTH_CUDA_hth_resize,
                        hth_cuda_blocks(seq, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_resize_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_resize_params, y), HTH_CUDA_OUT, 0, 0);
    seq->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y);
    return HTH_OK;
}
