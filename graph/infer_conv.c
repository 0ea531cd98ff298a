// SPDX-License-Identifier: Apache-2.0
// graph/infer_conv.c - convolutions and pools in 1 to 3 spatial dimensions: kernel, stride,
// dilation, padding. No kernel has more.
#include "graph/infer.h"

#include <string.h>

#define MAX_SPATIAL 3

enum padding { EXPLICIT, SAME, VALID };

typedef struct window {
    int n; // spatial dimensions
    enum padding padding;
    bool ceil_mode;
    int64_t kernel[MAX_SPATIAL], stride[MAX_SPATIAL], dilation[MAX_SPATIAL];
    int64_t pad[2 * MAX_SPATIAL]; // all begins, then all ends
} window;

static hth_err window_list(const hth_infer *infer, const char *name, int n, int64_t min,
                           int64_t dflt, int64_t *out)
{
    int count;
    HTH_TRY(hth_infer_attr(infer, name, out, n, &count));
    if (count < 0) {
        for (int i = 0; i < n; i++) {
            out[i] = dflt;
        }
        return HTH_OK;
    }
    if (count != n) {
        return hth_infer_fail(infer, HTH_EINVAL, "attribute '%s' has %d elements, expected %d",
                              name, count, n);
    }
    for (int i = 0; i < n; i++) {
        if (out[i] < min) {
            return hth_infer_fail(infer, HTH_EINVAL, "attribute '%s' holds %lld", name,
                                  (long long)out[i]);
        }
    }
    return HTH_OK;
}

// Reads the attributes; `kernel` is the filter's spatial shape, NULL where only the attribute says
// it.
static hth_err window_read(const hth_infer *infer, const int64_t *kernel, window *w)
{
    const char *mode = hth_node_str(infer->n, "auto_pad", "NOTSET");
    w->n = hth_infer_shape(infer, 0)->rank - 2;
    if (w->n > MAX_SPATIAL) {
        return hth_infer_fail(infer, HTH_ENOTSUP, "%d spatial dimensions are not supported", w->n);
    }
    w->ceil_mode = hth_node_int(infer->n, "ceil_mode", 0) != 0;
    w->padding = strncmp(mode, "SAME_", 5) == 0 ? SAME : EXPLICIT;
    w->padding = strcmp(mode, "VALID") == 0 ? VALID : w->padding;
    if (w->padding == EXPLICIT && strcmp(mode, "NOTSET") != 0) {
        return hth_infer_fail(infer, HTH_EINVAL, "auto_pad '%s' is unknown", mode);
    }
    HTH_TRY(window_list(infer, "kernel_shape", w->n, 1, 0, w->kernel));
    HTH_TRY(window_list(infer, "strides", w->n, 1, 1, w->stride));
    HTH_TRY(window_list(infer, "dilations", w->n, 1, 1, w->dilation));
    HTH_TRY(window_list(infer, "pads", 2 * w->n, INT64_MIN, 0, w->pad));
    if (w->padding != EXPLICIT) {
        memset(w->pad, 0, sizeof w->pad);
    }
    for (int i = 0; i < w->n; i++) {
        int64_t given = w->kernel[i];
        w->kernel[i] = kernel != NULL ? kernel[i] : given;
        if (w->kernel[i] < 1 || (given != 0 && given != w->kernel[i])) {
            return hth_infer_fail(infer, HTH_EINVAL, "kernel_shape and the filter do not agree");
        }
    }
    return HTH_OK;
}

// (kernel - 1) * dilation + 1; true on overflow.
static bool window_extent(const window *w, int i, int64_t *out)
{
    return hth_dim_mul(w->kernel[i] - 1, w->dilation[i], out) || hth_dim_add(*out, 1, out);
}

// The number of window positions along spatial dimension i.
static hth_err window_positions(const hth_infer *infer, const window *w, int i, int64_t in,
                                int64_t *out)
{
    int64_t extent, padded, room, last, stride = w->stride[i];
    if (w->padding == SAME) { // the padding is less than the window
        if (window_extent(w, i, &extent) || hth_dim_add(in, extent, &padded)) {
            return hth_infer_overflow(infer);
        }
        *out = in / stride + (in % stride != 0);
        return HTH_OK;
    }
    if (window_extent(w, i, &extent) || hth_dim_add(in, w->pad[i], &padded) ||
        hth_dim_add(padded, w->pad[w->n + i], &padded) || hth_dim_add(padded, -extent, &room)) {
        return hth_infer_overflow(infer);
    }
    if (room < 0 && !(w->ceil_mode && room > -stride)) {
        return hth_infer_fail(infer, HTH_EINVAL,
                              "a window of %lld does not fit in the padded length %lld of "
                              "dimension %d",
                              (long long)extent, (long long)padded, i + 2);
    }
    if (!w->ceil_mode) {
        *out = room / stride + 1;
        return HTH_OK;
    }
    *out = room < 0 ? 1 : room / stride + (room % stride != 0) + 1;
    // A last window that would start after the input and its leading padding is left out.
    if (*out > 1 && (hth_dim_mul(*out - 1, stride, &last) || last >= in + w->pad[i])) {
        --*out;
    }
    return HTH_OK;
}

static hth_err conv_bias(const hth_infer *infer, int64_t channels)
{
    if (hth_infer_has(infer, 2) &&
        (hth_infer_shape(infer, 2)->rank != 1 || hth_infer_shape(infer, 2)->dim[0] != channels)) {
        return hth_infer_disagree(infer, "W", 1, "bias", 2);
    }
    return HTH_OK;
}

static hth_err conv_begin(hth_infer *infer, int64_t *group)
{
    HTH_TRY(hth_infer_rank(infer, 0, 3, HTH_MAX_RANK));
    HTH_TRY(hth_infer_same_dtype(infer, 0, 1));
    *group = hth_node_int(infer->n, "group", 1);
    if (hth_infer_shape(infer, 1)->rank != hth_infer_shape(infer, 0)->rank) {
        return hth_infer_disagree(infer, "X", 0, "W", 1);
    }
    if (*group < 1) {
        return hth_infer_fail(infer, HTH_EINVAL, "group is %lld", (long long)*group);
    }
    return HTH_OK;
}

hth_err hth_infer_conv(hth_infer *infer)
{
    int64_t group, channels;
    window win;
    HTH_TRY(conv_begin(infer, &group));
    const hth_shape *x = hth_infer_shape(infer, 0), *w = hth_infer_shape(infer, 1);
    if (hth_dim_mul(w->dim[1], group, &channels) || channels != x->dim[1] ||
        w->dim[0] % group != 0) {
        return hth_infer_disagree(infer, "X", 0, "W", 1);
    }
    HTH_TRY(conv_bias(infer, w->dim[0]));
    HTH_TRY(window_read(infer, w->dim + 2, &win));
    hth_shape s = {.rank = x->rank, .dim = {x->dim[0], w->dim[0]}};
    for (int i = 0; i < win.n; i++) {
        HTH_TRY(window_positions(infer, &win, i, x->dim[i + 2], &s.dim[i + 2]));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

// stride * (in - 1) + output_padding + extent - pads; SAME: at most in * stride, less when the
// filter does not fill it.
static hth_err transposed_length(const hth_infer *infer, const window *w, int i, int64_t in,
                                 int64_t extra, int64_t *out)
{
    int64_t extent, limit;
    if (hth_dim_mul(in - 1, w->stride[i], out) || window_extent(w, i, &extent) ||
        hth_dim_add(*out, extent, out) || hth_dim_add(*out, extra, out) ||
        __builtin_sub_overflow(*out, w->pad[i], out) ||
        __builtin_sub_overflow(*out, w->pad[w->n + i], out) ||
        hth_dim_mul(in, w->stride[i], &limit)) {
        return hth_infer_overflow(infer);
    }
    if (w->padding == SAME && *out > limit) {
        *out = limit;
    }
    if (*out < 1) {
        return hth_infer_fail(infer, HTH_EINVAL,
                              "dimension %d of the result would have length %lld", i + 2,
                              (long long)*out);
    }
    return HTH_OK;
}

hth_err hth_infer_conv_transpose(hth_infer *infer)
{
    int64_t group, extra[MAX_SPATIAL], given[MAX_SPATIAL];
    window win;
    HTH_TRY(conv_begin(infer, &group));
    const hth_shape *x = hth_infer_shape(infer, 0), *w = hth_infer_shape(infer, 1);
    if (w->dim[0] != x->dim[1] || x->dim[1] % group != 0) {
        return hth_infer_disagree(infer, "X", 0, "W", 1);
    }
    HTH_TRY(window_read(infer, w->dim + 2, &win));
    HTH_TRY(window_list(infer, "output_padding", win.n, 0, 0, extra));
    HTH_TRY(window_list(infer, "output_shape", win.n, 1, 0, given));
    hth_shape s = {.rank = x->rank, .dim = {x->dim[0]}};
    if (hth_dim_mul(w->dim[1], group, &s.dim[1])) {
        return hth_infer_overflow(infer);
    }
    HTH_TRY(conv_bias(infer, s.dim[1]));
    for (int i = 0; i < win.n; i++) {
        int64_t own = 0;
        hth_err err = transposed_length(infer, &win, i, x->dim[i + 2], extra[i], &own);
        if (err != HTH_OK && (given[i] == 0 || err != HTH_EINVAL)) {
            return err; // a given length may be another, but what pads are computed of must be
        }
        s.dim[i + 2] = given[i] != 0 ? given[i] : own;
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_pool(hth_infer *infer)
{
    window win;
    HTH_TRY(hth_infer_rank(infer, 0, 3, HTH_MAX_RANK));
    HTH_TRY(window_read(infer, NULL, &win));
    hth_shape s = *hth_infer_shape(infer, 0);
    for (int i = 0; i < win.n; i++) {
        HTH_TRY(window_positions(infer, &win, i, s.dim[i + 2], &s.dim[i + 2]));
    }
    HTH_TRY(hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s));
    return hth_infer_out(infer, 1, HTH_DT_I64, &s); // MaxPool's indices
}

hth_err hth_infer_global_pool(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 2, HTH_MAX_RANK));
    hth_shape s = *hth_infer_shape(infer, 0);
    for (int i = 2; i < s.rank; i++) {
        s.dim[i] = 1;
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}
