// SPDX-License-Identifier: Apache-2.0
// Convolution at a few output points, in double: cheap whatever the size of the layer, and
// independent of every kernel that is measured. Filters are plain, the input is read in its own
// layout; both in their own type.
#include "convsel/bench_impl.h"

#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref_window.h"

// sample_inside is where tap `tap` of output position `out` lies along a dimension; -1: outside.
static int64_t sample_inside(const ref_window *window, int dim, int64_t out, int64_t tap)
{
    int64_t x = out * window->stride[dim] - window->pad[dim] + tap * window->dilation[dim];
    return x >= 0 && x < window->in[dim] ? x : -1;
}

// Position `at` of tap `tap` seen from output `out` along one dimension; -1: none.
static int64_t sample_source(const ref_window *window, bool transposed, int dim, int64_t out,
                             int64_t tap)
{
    int64_t x;
    if (transposed) {
        x = out + window->pad[dim] - tap * window->dilation[dim];
        if (x % window->stride[dim] != 0) {
            return -1;
        }
        x /= window->stride[dim];
        return x >= 0 && x < window->out[dim]
                   ? x
                   : -1; // the window's `out` is the smaller tensor: our input
    }
    return sample_inside(window, dim, out, tap);
}

float hth_sample_get(const void *p, size_t i, hth_dtype type)
{
    return type == HTH_DT_BF16 ? hth_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

typedef struct sample_conv {
    ref_window win;
    bool transposed;
    hth_layout layout;
    hth_dtype type_x, type_w;
    size_t channels, positions; // of the input
    int64_t in[3], out[3];      // spatial sizes of input and output
    int64_t n_out, group_in, group_out, groups;
} sample_conv;

static double sample_point(const sample_conv *conv, const void *x, const void *w, int64_t index)
{
    int64_t p = index, at[3], tap[3];
    for (int i = 2; i >= 0; i--) {
        at[i] = p % conv->out[i];
        p /= conv->out[i];
    }
    int64_t o = p % conv->n_out, image = p / conv->n_out, g = o / conv->group_out;
    double sum = 0;
    for (int64_t t = 0; t < conv->win.n_taps; t++) {
        int64_t rest = t, s = 0;
        for (int i = 2; i >= 0; i--) {
            tap[i] = rest % conv->win.k[i];
            rest /= conv->win.k[i];
        }
        for (int i = 0; i < 3 && s >= 0; i++) {
            int64_t from = sample_source(&conv->win, conv->transposed, i, at[i], tap[i]);
            s = from < 0 ? -1 : s * conv->in[i] + from;
        }
        for (int64_t k = 0; s >= 0 && k < conv->group_in; k++) {
            size_t step, channel = (size_t)(g * conv->group_in + k);
            size_t row = hth_layout_at(conv->layout, conv->channels, conv->positions, (size_t)image,
                                       channel, &step);
            int64_t filter = conv->transposed
                                 ? (int64_t)channel * conv->group_out + o % conv->group_out
                                 : o * conv->group_in + k;
            sum += (double)hth_sample_get(x, row + (size_t)s * step, conv->type_x) *
                   hth_sample_get(w, (size_t)(filter * conv->win.n_taps + t), conv->type_w);
        }
    }
    return sum;
}

hth_err hth_sample_conv(const hth_graph *graph, const hth_node *node, const void *x, const void *w,
                        const void *bias, const int64_t *index, int n_points, double *out)
{
    const hth_value *vx = &graph->values[node->inputs[0]], *vw = &graph->values[node->inputs[1]],
                    *vy = &graph->values[node->outputs[0]];
    // A data gradient is a transposed convolution of dy by the same filter.
    sample_conv c = {.transposed =
                         node->op == HTH_OP_CONV_TRANSPOSE || node->op == HTH_OP_CONV_GRAD_DATA,
                     .layout = vx->layout,
                     .type_x = vx->dtype,
                     .type_w = vw->dtype};
    hth_dtype type_bias = bias != NULL ? graph->values[node->inputs[2]].dtype : HTH_DT_F32;
    const hth_shape *big = c.transposed ? &vy->shape : &vx->shape;
    const hth_shape *small = c.transposed ? &vx->shape : &vy->shape;
    HTH_TRY(ref_window_init(&c.win, node, big, small, vw->shape.dim + 2, vw->shape.rank - 2));
    c.groups = hth_node_int(node, "group", 1);
    c.channels = (size_t)vx->shape.dim[1];
    c.n_out = vy->shape.dim[1];
    c.group_in = vx->shape.dim[1] / c.groups;
    c.group_out = c.n_out / c.groups;
    c.positions = 1;
    for (int i = 0; i < 3; i++) {
        c.in[i] = c.transposed ? c.win.out[i] : c.win.in[i];
        c.out[i] = c.transposed ? c.win.in[i] : c.win.out[i];
        c.positions *= (size_t)c.in[i];
    }
    int64_t area = c.out[0] * c.out[1] * c.out[2];
    for (int i = 0; i < n_points; i++) {
        size_t channel = (size_t)(index[i] / area % c.n_out);
        out[i] = sample_point(&c, x, w, index[i]) +
                 (bias != NULL ? (double)hth_sample_get(bias, channel, type_bias) : 0);
    }
    return HTH_OK;
}

typedef struct sample_plane { // of one channel of one image
    const void *data;
    size_t from, step;
    hth_dtype type;
} sample_plane;

// sample_filter_row adds the products of a row of outputs with the row of inputs that a tap
// touches.
static double sample_filter_row(const ref_window *window, const sample_plane *x, int64_t x_row,
                                const sample_plane *dy, int64_t dy_row, int64_t tap, double sum)
{
    for (int64_t i = 0; i < window->out[2]; i++) {
        int64_t at = sample_inside(window, 2, i, tap);
        if (at >= 0) {
            sum +=
                (double)hth_sample_get(x->data, x->from + (size_t)(x_row + at) * x->step, x->type) *
                hth_sample_get(dy->data, dy->from + (size_t)(dy_row + i) * dy->step, dy->type);
        }
    }
    return sum;
}

// sample_filter_image adds an image's part of the gradient of one tap, `sum` so far.
static double sample_filter_image(const ref_window *window, const sample_plane *x,
                                  const sample_plane *dy, const int64_t tap[3], double sum)
{
    for (int64_t d = 0; d < window->out[0]; d++) {
        int64_t plane = sample_inside(window, 0, d, tap[0]);
        for (int64_t h = 0; plane >= 0 && h < window->out[1]; h++) {
            int64_t row = sample_inside(window, 1, h, tap[1]);
            if (row >= 0) {
                sum = sample_filter_row(window, x, (plane * window->in[1] + row) * window->in[2],
                                        dy, (d * window->out[1] + h) * window->out[2], tap[2], sum);
            }
        }
    }
    return sum;
}

hth_err hth_sample_filter_grad(const hth_graph *graph, const hth_node *node, const void *x,
                               const void *dy, const int64_t *index, int n_points, double *out)
{
    const hth_value *vx = &graph->values[node->inputs[0]], *vy = &graph->values[node->inputs[1]],
                    *vw = &graph->values[node->outputs[0]];
    ref_window w;
    HTH_TRY(
        ref_window_init(&w, node, &vx->shape, &vy->shape, vw->shape.dim + 2, vw->shape.rank - 2));
    int64_t outs = vw->shape.dim[0], cg = vw->shape.dim[1];
    int64_t mg = outs / hth_node_int(node, "group", 1);
    for (int i = 0; i < n_points; i++) {
        int64_t o = index[i] / (cg * w.n_taps), c = o / mg * cg + index[i] / w.n_taps % cg, tap[3];
        ref_window_position(w.k, index[i] % w.n_taps, tap);
        out[i] = 0;
        for (int64_t b = 0; b < w.batch; b++) {
            sample_plane px = {.data = x, .type = vx->dtype}, py = {.data = dy, .type = vy->dtype};
            px.from = hth_layout_at(vx->layout, (size_t)w.channels, (size_t)w.n_in, (size_t)b,
                                    (size_t)c, &px.step);
            py.from = hth_layout_at(vy->layout, (size_t)outs, (size_t)w.n_out, (size_t)b, (size_t)o,
                                    &py.step);
            out[i] = sample_filter_image(&w, &px, &py, tap, out[i]);
        }
    }
    return HTH_OK;
}
