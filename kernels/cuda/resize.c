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

static int resize_choice(const hth_node *n, const char *attr, const char *const *names, int count)
{
    const char *name = hth_node_str(n, attr, names[0]);
    int i = 0;
    while (i < count && strcmp(name, names[i]) != 0) {
        i++;
    }
    return i < count ? i : -1;
}

// A constant list of f32. *count -1: absent, or empty.
static hth_err resize_floats(const hth_graph *g, const hth_node *n, int input, double *out, int cap,
                             int *count)
{
    const hth_value *v = hth_cuda_in(g, n, input);
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

static hth_err resize_axes(const hth_node *n, int rank, int *axes, int *count)
{
    int64_t v[HTH_MAX_RANK];
    int have = hth_node_ints(n, "axes", v, HTH_MAX_RANK);
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
static hth_err resize_aspect(const hth_graph *g, const hth_node *n, const hth_shape *x,
                             const int *axes, int n_axes, resize_spec *r)
{
    const char *policy = hth_node_str(n, "keep_aspect_ratio_policy", "stretch");
    int64_t sizes[HTH_MAX_RANK];
    int count;
    if (strcmp(policy, "stretch") == 0) {
        return HTH_OK;
    }
    HTH_TRY(hth_cuda_ints(g, n, 3, sizes, HTH_MAX_RANK, &count));
    if (count != n_axes) {
        return hth_fail(HTH_ENOTSUP, "there is not one size per axis");
    }
    double best = NAN;
    for (int i = 0; i < n_axes; i++) {
        double one = (double)sizes[i] / (double)x->dim[axes[i]];
        best = strcmp(policy, "not_larger") == 0 ? fmin(best, one) : fmax(best, one);
    }
    for (int i = 0; i < n_axes; i++) {
        r->scale[axes[i]] = best;
    }
    return HTH_OK;
}

// Scales as given, or the ratio of sizes; the region of interest.
static hth_err resize_scales(const hth_graph *g, const hth_node *n, const hth_shape *x,
                             const hth_shape *y, resize_spec *r)
{
    double scales[HTH_MAX_RANK], roi[2 * HTH_MAX_RANK];
    int axes[HTH_MAX_RANK], n_axes, given, has_roi;
    HTH_TRY(resize_axes(n, x->rank, axes, &n_axes));
    HTH_TRY(resize_floats(g, n, 2, scales, HTH_MAX_RANK, &given));
    HTH_TRY(resize_floats(g, n, 1, roi, 2 * HTH_MAX_RANK, &has_roi));
    for (int d = 0; d < x->rank; d++) {
        r->scale[d] = given < 0 && x->dim[d] > 0 ? (double)y->dim[d] / (double)x->dim[d] : 1;
        r->from[d] = 0;
        r->size[d] = 1;
    }
    if (given >= 0 && given != n_axes) {
        return hth_fail(HTH_ENOTSUP, "there is not one scale per axis");
    }
    for (int i = 0; i < n_axes; i++) {
        r->scale[axes[i]] = given < 0 ? r->scale[axes[i]] : scales[i];
        if (has_roi == 2 * n_axes) {
            r->from[axes[i]] = roi[i];
            r->size[axes[i]] = roi[n_axes + i] - roi[i];
        }
    }
    return given < 0 ? resize_aspect(g, n, x, axes, n_axes, r) : HTH_OK;
}

static bool resize_moves(const resize_spec *r, const hth_shape *x, const hth_shape *y, int d)
{
    return x->dim[d] != y->dim[d] || r->scale[d] != 1 || r->from[d] != 0 || r->size[d] != 1;
}

static hth_err resize_dimension(const hth_node *n, const resize_spec *r, int64_t in, int64_t out,
                                int d, int k, hth_resize_params *p)
{
    double scale = r->scale[d], radius = r->mode == RESIZE_CUBIC ? 2 : 1;
    bool antialias = r->mode != RESIZE_NEAREST && hth_node_int(n, "antialias", 0) != 0;
    p->in[k] = (int32_t)in;
    p->out[k] = (int32_t)out;
    p->scale[k] = scale;
    p->from[k] = r->from[d];
    p->size[k] = r->size[d];
    p->stretch[k] = antialias && scale < 1 ? scale : 1;
    double taps =
        r->mode == RESIZE_NEAREST || !p->moves[k] ? 1 : -2 * floor(-radius / p->stretch[k]);
    if (!(scale > 0) || in == 0 || taps > RESIZE_MAX_TAPS) {
        return hth_fail(HTH_ENOTSUP, "dimension %d of %lld elements is scaled by %g", d,
                        (long long)in, scale);
    }
    p->taps[k] = (int32_t)taps;
    return HTH_OK;
}

// The dimensions that are resized, and between them, are the kernel's three, its last ones; those
// after are inner. Images with their channels last are resized in their spatial dimensions.
static hth_err resize_dimensions(const hth_node *n, const resize_spec *r, const hth_value *x,
                                 const hth_value *y, hth_resize_params *p)
{
    const hth_shape *a = &x->shape, *b = &y->shape;
    bool channels_last = x->layout == HTH_LAYOUT_NHWC;
    int first = a->rank, last = channels_last ? a->rank - 1 : -1;
    for (int d = 0; d < a->rank; d++) {
        if (resize_moves(r, a, b, d)) {
            first = d < first ? d : first;
            last = d > last ? d : last;
        }
    }
    first = channels_last ? 2 : first;
    if (last - first > 2 ||
        (channels_last && (resize_moves(r, a, b, 0) || resize_moves(r, a, b, 1)))) {
        return hth_fail(HTH_ENOTSUP, "more than three neighbouring dimensions, or the channels, "
                                     "are resized");
    }
    p->inner = channels_last ? hth_cuda_inner(x) : 1;
    for (int d = last + 1; d < a->rank && !channels_last; d++) {
        p->inner *= (uint32_t)a->dim[d];
    }
    for (int d = first; d <= last; d++) {
        int k = 2 - (last - d);
        p->moves[k] = resize_moves(r, a, b, d);
        HTH_TRY(resize_dimension(n, r, a->dim[d], b->dim[d], d, k, p));
    }
    return HTH_OK;
}

static hth_err resize_read(const hth_graph *g, const hth_node *n, const hth_value *x,
                           const hth_value *y, hth_resize_params *p)
{
    static const char *const coordinates[] = {"half_pixel",         "pytorch_half_pixel",
                                              "align_corners",      "asymmetric",
                                              "tf_crop_and_resize", "half_pixel_symmetric"};
    static const char *const nearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor",
                                          "ceil"};
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    resize_spec r = {.mode = resize_choice(n, "mode", modes, 3)};
    p->cubic = r.mode == RESIZE_CUBIC;
    p->coordinates = resize_choice(n, "coordinate_transformation_mode", coordinates, 6);
    p->nearest = resize_choice(n, "nearest_mode", nearest, 4);
    p->exclude = hth_node_int(n, "exclude_outside", 0) != 0;
    p->divides = p->exclude || hth_node_int(n, "antialias", 0) != 0;
    p->cubic_a = hth_node_float(n, "cubic_coeff_a", -0.75F);
    p->outside = hth_node_float(n, "extrapolation_value", 0);
    for (int k = 0; k < 3; k++) {
        p->in[k] = p->out[k] = p->taps[k] = 1;
        p->scale[k] = p->stretch[k] = 1;
    }
    if (r.mode < 0 || p->coordinates < 0 || p->nearest < 0) {
        return hth_fail(HTH_ENOTSUP, "an unknown mode");
    }
    HTH_TRY(resize_scales(g, n, &x->shape, &y->shape, &r));
    for (int d = 0; d < x->shape.rank && p->coordinates != RESIZE_CROP; d++) {
        r.from[d] = 0; // a region is read in this mode only
        r.size[d] = 1;
    }
    return resize_dimensions(n, &r, x, y, p);
}

hth_err hth_cuda_resize(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                        const char *algorithm)
{
    bool grad = n->op == HTH_OP_RESIZE_GRAD;
    const hth_value *in = hth_cuda_in(g, n, 0), *out = hth_cuda_out(g, n, 0);
    const hth_value *x = grad ? out : in;
    const hth_value *y = grad ? in : out;
    hth_resize_params p = {.n = hth_cuda_count(out), .half = hth_cuda_half(x)};
    HTH_TRY(hth_cuda_need_float(g, n, 1, 1));
    if (x->layout != y->layout || x->dtype != y->dtype) {
        return hth_fail(HTH_ENOTSUP, "input and result lie differently");
    }
    HTH_TRY(resize_read(g, n, x, y, &p));
    hth_cuda_launch_add(s, grad ? HTH_CUDA_hth_resize_grad : HTH_CUDA_hth_resize,
                        hth_cuda_blocks(s, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(s, offsetof(hth_resize_params, x), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(s, offsetof(hth_resize_params, y), HTH_CUDA_OUT, 0, 0);
    s->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y);
    return HTH_OK;
}
