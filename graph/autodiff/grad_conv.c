// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_conv.c - gradients of convolutions, pools and resizing.
//
// Backward operators carry the forward's window with explicit pads, so that kernels need not know
// how the model's exporter wrote it.
#include "graph/autodiff/grad.h"

#include "graph/transposed.h"

#include <string.h>

typedef struct window {
    int n;
    int64_t kernel[HTH_MAX_RANK], stride[HTH_MAX_RANK], dilation[HTH_MAX_RANK],
        pad[2 * HTH_MAX_RANK];
} window;

static void window_list(const hth_node *node, const char *name, int count, int64_t dflt,
                        int64_t *out)
{
    if (hth_node_ints(node, name, out, count) != count) {
        for (int i = 0; i < count; i++) {
            out[i] = dflt;
        }
    }
}

// How far the window reaches with a position per element of `narrow`.
static int64_t window_whole(const window *w, int i, const hth_shape *narrow)
{
    return (narrow->dim[i + 2] - 1) * w->stride[i] + (w->kernel[i] - 1) * w->dilation[i] + 1;
}

// The window that slides over `wide` and has one position per element of `narrow`.
static window window_of(const hth_node *node, const hth_shape *wide, const hth_shape *narrow,
                        const int64_t *kernel)
{
    const char *mode = hth_node_str(node, "auto_pad", "NOTSET");
    bool same = strncmp(mode, "SAME", 4) == 0, lower = strcmp(mode, "SAME_LOWER") == 0;
    bool transposed = node->op == HTH_OP_CONV_TRANSPOSE;
    window w = {.n = wide->rank - 2};
    window_list(node, "kernel_shape", w.n, 1, w.kernel);
    window_list(node, "strides", w.n, 1, w.stride);
    window_list(node, "dilations", w.n, 1, w.dilation);
    window_list(node, "pads", 2 * w.n, 0, w.pad);
    if (kernel != NULL) {
        memcpy(w.kernel, kernel, (size_t)w.n * sizeof *kernel);
    }
    for (int i = 0; i < w.n && (same || transposed || strcmp(mode, "VALID") == 0); i++) {
        int64_t whole = window_whole(&w, i, narrow), n = wide->dim[i + 2];
        int64_t total = same && whole > n ? whole - n : 0;
        bool own = transposed && hth_transposed_pads(node, i, whole, n, &w.pad[i], &w.pad[w.n + i]);
        if (!own && (same || strcmp(mode, "VALID") == 0)) {
            w.pad[i] = lower ? total - total / 2 : total / 2;
            w.pad[w.n + i] = total - w.pad[i];
        }
    }
    return w;
}

static void window_attrs(hth_grad *grad, const window *w)
{
    hth_grad_ints(grad, "kernel_shape", w->kernel, w->n);
    hth_grad_ints(grad, "strides", w->stride, w->n);
    hth_grad_ints(grad, "dilations", w->dilation, w->n);
    hth_grad_ints(grad, "pads", w->pad, 2 * w->n);
}

static void shape_attr(hth_grad *grad, int v)
{
    const hth_shape s = *hth_grad_shape(grad, v);
    hth_grad_ints(grad, "shape", s.dim, s.rank);
}

// dw of a convolution of `x` that made something like `dy`; *db: dw's node gives it, too.
static int filter_grad(hth_grad *grad, const hth_node *node, const window *w, int x, int dy,
                       bool bias, int *db)
{
    hth_grad_begin(grad, HTH_OP_CONV_GRAD_FILTER, (int[]){x, dy}, 2, bias ? 2 : 1);
    window_attrs(grad, w);
    hth_grad_int(grad, "group", hth_node_int(node, "group", 1));
    int dw = hth_grad_end(grad);
    *db = bias ? hth_grad_output(grad, 1) : -1;
    return dw;
}

void hth_grad_conv(hth_grad *grad, const hth_node *node)
{
    int x = node->inputs[0], f = node->inputs[1], dy = hth_grad_out(grad, node, 0), db = -1;
    window w = window_of(node, hth_grad_shape(grad, x), hth_grad_shape(grad, node->outputs[0]),
                         hth_grad_shape(grad, f)->dim + 2);
    bool bias = hth_grad_wants(grad, node, 2);
    if (hth_grad_wants(grad, node, 1)) {
        hth_grad_give(grad, node, 1, filter_grad(grad, node, &w, x, dy, bias, &db));
    }
    if (bias) {
        hth_grad_give(grad, node, 2, db >= 0 ? db : hth_grad_spatial_sum(grad, dy));
    }
    if (hth_grad_wants(grad, node, 0)) {
        hth_grad_begin(grad, HTH_OP_CONV_GRAD_DATA, (int[]){dy, f}, 2, 1);
        window_attrs(grad, &w);
        hth_grad_int(grad, "group", hth_node_int(node, "group", 1));
        shape_attr(grad, x);
        hth_grad_give(grad, node, 0, hth_grad_end(grad));
    }
}

// A result may have a stride or more behind what the last window reaches (output_padding,
// output_shape): the window would have more positions than `narrow`. The rest is taken off the
// pads, then off `v`.
static int window_end(hth_grad *grad, window *w, const hth_shape *narrow, int v)
{
    static const int64_t zeros[HTH_MAX_RANK];
    const hth_shape all = *hth_grad_shape(grad, v);
    hth_shape s = all;
    for (int i = 0; i < w->n && grad->err == HTH_OK; i++) {
        int64_t *end = &w->pad[w->n + i], *n = &s.dim[i + 2];
        int64_t rest = *n - window_whole(w, i, narrow) + (w->pad[i] + *end);
        if (rest >= w->stride[i]) {
            bool over = __builtin_sub_overflow(*end, rest, end);
            *n += *end < 0 ? *end : 0;
            *end = *end < 0 ? 0 : *end;
            if (over || *n <= 0) {
                hth_grad_fail(grad, "its result has nothing of its input");
            }
        }
    }
    if (hth_shape_equal(&s, &all)) {
        return v;
    }
    int from = hth_grad_list(grad, zeros, s.rank), to = hth_grad_list(grad, s.dim, s.rank);
    return hth_grad_3(grad, HTH_OP_SLICE, v, from, to);
}

// A transposed convolution is the gradient of a convolution from its output to its input.
void hth_grad_conv_transpose(hth_grad *grad, const hth_node *node)
{
    int x = node->inputs[0], f = node->inputs[1], all = hth_grad_out(grad, node, 0), none;
    const hth_shape narrow = *hth_grad_shape(grad, x);
    window w = window_of(node, hth_grad_shape(grad, node->outputs[0]), &narrow,
                         hth_grad_shape(grad, f)->dim + 2);
    int dy = window_end(grad, &w, &narrow, all);
    if (hth_grad_wants(grad, node, 1)) {
        hth_grad_give(grad, node, 1, filter_grad(grad, node, &w, dy, x, false, &none));
    }
    if (hth_grad_wants(grad, node, 2)) {
        hth_grad_give(grad, node, 2, hth_grad_spatial_sum(grad, all));
    }
    if (hth_grad_wants(grad, node, 0)) {
        hth_grad_begin(grad, HTH_OP_CONV, (int[]){dy, f}, 2, 1);
        window_attrs(grad, &w);
        hth_grad_int(grad, "group", hth_node_int(node, "group", 1));
        hth_grad_give(grad, node, 0, hth_grad_end(grad));
    }
}

static window pool_window(const hth_grad *grad, const hth_node *node)
{
    return window_of(node, hth_grad_shape(grad, node->inputs[0]),
                     hth_grad_shape(grad, node->outputs[0]), NULL);
}

// Large windows, and pools whose indices the model reads: those say where each gradient goes.
static void max_pool_by_index(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]);
    hth_shape all = {1, {hth_shape_elements(&x)}}, dy_all = {.rank = 1};
    int dy = hth_grad_out(grad, node, 0); // n's outputs move when one is added
    dy_all.dim[0] = hth_shape_elements(hth_grad_shape(grad, dy));
    if (hth_node_int(node, "storage_order", 0) != 0) {
        hth_grad_fail(grad, "column-major indices have no gradient");
        return;
    }
    int index = hth_grad_reshape(grad, hth_grad_extend(grad, 1), &dy_all);
    int zeros = hth_grad_zeros(grad, &all);
    hth_grad_begin(grad, HTH_OP_SCATTER_ELEMENTS,
                   (int[]){zeros, index, hth_grad_reshape(grad, dy, &dy_all)}, 3, 1);
    hth_grad_str(grad, "reduction", "add");
    hth_grad_give(grad, node, 0, hth_grad_reshape(grad, hth_grad_end(grad), &x));
}

// The forward node becomes MaxPoolTrain, which keeps a byte per window.
void hth_grad_max_pool(hth_grad *grad, const hth_node *node)
{
    window w = pool_window(grad, node);
    int64_t taps = 1;
    for (int i = 0; i < w.n && taps <= UINT8_MAX; i++) {
        taps = w.kernel[i] > UINT8_MAX ? UINT8_MAX + 1 : taps * w.kernel[i];
    }
    if (node->n_outputs > 1 || taps > UINT8_MAX) {
        max_pool_by_index(grad, node);
        return;
    }
    int dy = hth_grad_out(grad, node, 0); // n's outputs move when one is added
    hth_node *forward = &grad->g->nodes[grad->forward];
    forward->op = HTH_OP_MAX_POOL_TRAIN;
    grad->node = grad->forward;
    window_attrs(grad, &w);
    hth_grad_drop(grad, "auto_pad");
    int index = hth_grad_extend(grad, 1);
    hth_grad_begin(grad, HTH_OP_MAX_POOL_GRAD, (int[]){dy, index}, 2, 1);
    window_attrs(grad, &w);
    shape_attr(grad, node->inputs[0]);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

static void average(hth_grad *grad, const hth_node *node, const window *w)
{
    hth_grad_begin(grad, HTH_OP_AVERAGE_POOL_GRAD, (int[]){hth_grad_out(grad, node, 0)}, 1, 1);
    window_attrs(grad, w);
    hth_grad_int(grad, "count_include_pad", hth_node_int(node, "count_include_pad", 0));
    shape_attr(grad, node->inputs[0]);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

void hth_grad_average_pool(hth_grad *grad, const hth_node *node)
{
    window w = pool_window(grad, node);
    average(grad, node, &w);
}

void hth_grad_global_average(hth_grad *grad, const hth_node *node)
{
    const hth_shape *x = hth_grad_shape(grad, node->inputs[0]);
    window w = {.n = x->rank - 2};
    for (int i = 0; i < w.n; i++) {
        w.kernel[i] = x->dim[i + 2];
        w.stride[i] = w.dilation[i] = 1;
    }
    if (w.n == 0) { // nothing to average over
        hth_grad_pass(grad, node);
    } else {
        average(grad, node, &w);
    }
}

// What dy gives to every element of its window: the data gradient of a convolution, channel by
// channel, with a filter of ones.
static int over_windows(hth_grad *grad, const hth_node *node, int v)
{
    window w = pool_window(grad, node);
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]);
    hth_shape f = {.rank = x.rank, .dim = {x.dim[1], 1}};
    for (int i = 0; i < w.n; i++) {
        f.dim[i + 2] = w.kernel[i];
    }
    int ones = hth_grad_expand(grad, hth_grad_scalar(grad, 1), &f);
    hth_grad_begin(grad, HTH_OP_CONV_GRAD_DATA, (int[]){v, ones}, 2, 1);
    window_attrs(grad, &w);
    hth_grad_int(grad, "group", x.dim[1]);
    hth_grad_ints(grad, "shape", x.dim, x.rank);
    return hth_grad_end(grad);
}

// y = (sum |x|^p)^(1/p): dx = dy y^(1-p) * sign(x) |x|^(p-1), 0 where y is.
void hth_grad_lp_pool(hth_grad *grad, const hth_node *node)
{
    float p = (float)hth_node_int(node, "p", 2);
    int x = node->inputs[0];
    int y = p == 1 ? node->outputs[0] : hth_grad_divisor(grad, node->outputs[0]);
    int inverse = hth_grad_2(grad, HTH_OP_POW, y, hth_grad_scalar(grad, 1 - p));
    int share = hth_grad_2(grad, HTH_OP_MUL, hth_grad_out(grad, node, 0), inverse);
    int size =
        hth_grad_2(grad, HTH_OP_POW, hth_grad_1(grad, HTH_OP_ABS, x), hth_grad_scalar(grad, p - 1));
    int slope = hth_grad_2(grad, HTH_OP_MUL, size, hth_grad_1(grad, HTH_OP_SIGN, x));
    share = node->op == HTH_OP_LP_POOL ? over_windows(grad, node, share) : share;
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_MUL, slope, share));
}

void hth_grad_resize(hth_grad *grad, const hth_node *node)
{
    bool upsample = node->op == HTH_OP_UPSAMPLE;
    int in[4] = {hth_grad_out(grad, node, 0), -1, -1, -1};
    for (int k = 1; k < node->n_inputs && !upsample; k++) {
        in[k] = node->inputs[k];
    }
    in[2] = upsample ? node->inputs[1] : in[2];
    hth_grad_begin(grad, HTH_OP_RESIZE_GRAD, in, 4, 1);
    hth_grad_attrs(grad, node);
    if (upsample) {
        hth_grad_str(grad, "coordinate_transformation_mode", "asymmetric");
        hth_grad_str(grad, "nearest_mode", "floor");
    }
    shape_attr(grad, node->inputs[0]);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}
