// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_conv.c - Conv and ConvTranspose in one, two and three dimensions.
//
// Conv gathers tiles of output positions into columns (all taps of all input channels of a group)
// and multiplies them by the filter; ConvTranspose multiplies first and scatters the columns. One
// path serves every stride, dilation, pad and group, and per output the sum runs over channels,
// then taps, in order, in double. A direct loop nest would save the copy but needs a special case
// for each of them.
#include "kernels/ref/ref.h"

#include "kernels/ref/ref_num.h"
#include "kernels/ref/ref_window.h"

#include "graph/transposed.h"

#include <string.h>

#define CONV_TILE  128 // output positions gathered at once
#define CONV_TOUCH 8   // the work of finding out what a tap touches

// index[tap * count + p] of `count` positions from `first` of grid `from`, in grid `to`.
static void conv_indices(const ref_window *window, const int64_t from[3], const int64_t to[3],
                         int64_t first, int64_t count, int64_t *index)
{
    for (int64_t p = 0; p < count && !hth_pace_over((uint64_t)window->n_taps * CONV_TOUCH); p++) {
        int64_t at[3], tap[3];
        ref_window_position(from, first + p, at);
        for (int64_t t = 0; t < window->n_taps; t++) {
            ref_window_position(window->k, t, tap);
            index[t * count + p] = ref_window_touch(window, to, at, tap);
        }
    }
}

static void conv_gather(const double *x, int64_t n_in, int64_t channels, const int64_t *index,
                        int64_t n_index, double *cols)
{
    for (int64_t c = 0; c < channels && !hth_pace_over((uint64_t)n_index); c++) {
        for (int64_t i = 0; i < n_index; i++) {
            cols[c * n_index + i] = index[i] < 0 ? 0 : x[c * n_in + index[i]];
        }
    }
}

static hth_err conv_group(const hth_node *node, const hth_tensor *x, const hth_tensor *w,
                          const hth_tensor *y, int64_t out_channels, int64_t *group)
{
    *group = hth_node_int(node, "group", 1);
    if (w->shape.rank != x->shape.rank || *group < 1 || x->shape.dim[1] % *group ||
        out_channels % *group || y->shape.dim[1] != out_channels ||
        y->shape.dim[0] != x->shape.dim[0]) {
        return hth_fail(HTH_EINVAL, "channels, filter and group do not agree");
    }
    return HTH_OK;
}

static void conv_start(double *y, const double *bias, int64_t channels, int64_t n_out)
{
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t i = 0; i < n_out; i++) {
            y[c * n_out + i] = bias ? bias[c] : 0;
        }
    }
}

static hth_err conv_bias(ref_mem *mem, const hth_node *node, const hth_tensor *in, int64_t channels,
                         double **out)
{
    const hth_tensor *b = ref_in(node, in, 2);
    *out = NULL;
    if (!b) {
        return HTH_OK;
    }
    if (hth_shape_elements(&b->shape) != channels) {
        return hth_fail(HTH_EINVAL, "bias does not have one element per channel");
    }
    return ref_wide(mem, b, out);
}

static hth_err conv_body(ref_mem *mem, const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    const hth_tensor *x = &in[0], *f = &in[1];
    ref_window w;
    int64_t group, outs = f->shape.dim[0];
    int64_t *index;
    double *filter, *bias, *cols, *img, *res;
    HTH_TRY(conv_group(node, x, f, &out[0], outs, &group));
    HTH_TRY(
        ref_window_init(&w, node, &x->shape, &out[0].shape, f->shape.dim + 2, f->shape.rank - 2));
    int64_t cg = w.channels / group, mg = outs / group, depth = cg * w.n_taps;
    if (f->shape.dim[1] != cg) {
        return hth_fail(HTH_EINVAL, "the filter has %lld channels, not %lld",
                        (long long)f->shape.dim[1], (long long)cg);
    }
    HTH_TRY(ref_wide(mem, f, &filter));
    HTH_TRY(conv_bias(mem, node, in, outs, &bias));
    HTH_TRY(REF_TAKE(mem, w.n_taps * CONV_TILE, &index));
    HTH_TRY(REF_TAKE(mem, depth * CONV_TILE, &cols));
    HTH_TRY(REF_TAKE(mem, w.channels * w.n_in, &img));
    HTH_TRY(REF_TAKE(mem, outs * w.n_out, &res));
    for (int64_t b = 0; b < w.batch; b++) {
        ref_wide_at(x, b * w.channels * w.n_in, w.channels * w.n_in, img);
        conv_start(res, bias, outs, w.n_out);
        for (int64_t p = 0; p < w.n_out && !hth_pace_over(1); p += CONV_TILE) {
            int64_t count = w.n_out - p < CONV_TILE ? w.n_out - p : CONV_TILE;
            conv_indices(&w, w.out, w.in, p, count, index);
            for (int64_t g = 0; g < group; g++) {
                conv_gather(img + g * cg * w.n_in, w.n_in, cg, index, w.n_taps * count, cols);
                ref_gemm_f64(mg, count, depth, filter + g * mg * depth, depth, cols, count,
                             res + g * mg * w.n_out + p, w.n_out);
            }
        }
        ref_round_at(res, b * outs * w.n_out, outs * w.n_out, &out[0]);
    }
    return HTH_OK;
}

// Adds columns (channels, taps, positions) to the output image where the index says.
static void conv_scatter(double *y, int64_t n_out, int64_t channels, const int64_t *index,
                         int64_t n_index, const double *cols)
{
    for (int64_t c = 0; c < channels && !hth_pace_over((uint64_t)n_index); c++) {
        for (int64_t i = 0; i < n_index; i++) {
            if (index[i] >= 0) {
                y[c * n_out + index[i]] += cols[c * n_index + i];
            }
        }
    }
}

// Pads of a transposed convolution follow from the output's size when output_shape or auto_pad
// fixes it.
static void conv_transpose_pads(ref_window *window, const hth_node *node, int nsp)
{
    for (int i = 3 - nsp; i < 3; i++) {
        int64_t whole =
            window->stride[i] * (window->in[i] - 1) + (window->k[i] - 1) * window->dilation[i] + 1;
        (void)hth_transposed_pads(node, i - (3 - nsp), whole, window->out[i], &window->pad[i],
                                  &window->pad_end[i]);
    }
}

static hth_err conv_transpose_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                   hth_tensor *out)
{
    const hth_tensor *x = &in[0], *f = &in[1];
    ref_window w;
    int64_t group, outs = out[0].shape.dim[1];
    int64_t *index;
    double *filter, *turned, *bias, *cols, *img, *res;
    HTH_TRY(conv_group(node, x, f, &out[0], outs, &group));
    HTH_TRY(
        ref_window_init(&w, node, &x->shape, &out[0].shape, f->shape.dim + 2, f->shape.rank - 2));
    conv_transpose_pads(&w, node, x->shape.rank - 2);
    int64_t cg = w.channels / group, mg = outs / group, rows = mg * w.n_taps;
    if (f->shape.dim[0] != w.channels || f->shape.dim[1] != mg) {
        return hth_fail(HTH_EINVAL, "the filter is for %lld and %lld channels",
                        (long long)f->shape.dim[0], (long long)f->shape.dim[1]);
    }
    HTH_TRY(ref_wide(mem, f, &filter));
    HTH_TRY(conv_bias(mem, node, in, outs, &bias));
    HTH_TRY(REF_TAKE(mem, w.n_taps * CONV_TILE, &index));
    HTH_TRY(REF_TAKE(mem, rows * CONV_TILE, &cols));
    HTH_TRY(REF_TAKE(mem, w.channels * w.n_in, &img));
    HTH_TRY(REF_TAKE(mem, outs * w.n_out, &res));
    HTH_TRY(REF_TAKE(mem, w.channels * rows, &turned));
    for (int64_t g = 0; g < group; g++) {
        ref_transpose_f64(filter + g * cg * rows, cg, rows, turned + g * cg * rows);
    }
    for (int64_t b = 0; b < w.batch; b++) {
        ref_wide_at(x, b * w.channels * w.n_in, w.channels * w.n_in, img);
        conv_start(res, bias, outs, w.n_out);
        for (int64_t p = 0; p < w.n_in && !hth_pace_over(1); p += CONV_TILE) {
            int64_t count = w.n_in - p < CONV_TILE ? w.n_in - p : CONV_TILE;
            conv_indices(&w, w.in, w.out, p, count, index);
            for (int64_t g = 0; g < group; g++) {
                memset(cols, 0, (size_t)(rows * count) * sizeof *cols);
                ref_gemm_f64(rows, count, cg, turned + g * cg * rows, cg, img + g * cg * w.n_in + p,
                             w.n_in, cols, count);
                conv_scatter(res + g * mg * w.n_out, w.n_out, mg, index, w.n_taps * count, cols);
            }
        }
        ref_round_at(res, b * outs * w.n_out, outs * w.n_out, &out[0]);
    }
    return HTH_OK;
}

REF_OP(ref_conv, conv_body)
REF_OP(ref_conv_transpose, conv_transpose_body)
