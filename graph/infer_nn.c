// SPDX-License-Identifier: Apache-2.0
// graph/infer_nn.c - normalization, recurrent layers, resampling.
#include "graph/infer.h"

#include <math.h>
#include <string.h>

// Inputs first .. last are vectors with one element per channel of input 0.
static hth_err check_channels(const hth_infer *infer, int first, int last)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    HTH_TRY(hth_infer_rank(infer, 0, 1, HTH_MAX_RANK));
    for (int i = first; i <= last; i++) {
        const hth_shape *s = hth_infer_shape(infer, i);
        if (s->rank != 1 || s->dim[0] != (x->rank > 1 ? x->dim[1] : 1)) {
            return hth_infer_disagree(infer, "X", 0, "a parameter per channel", i);
        }
    }
    return HTH_OK;
}

hth_err hth_infer_channels(hth_infer *infer)
{
    HTH_TRY(check_channels(infer, 1, 2));
    int64_t groups = hth_node_int(infer->n, "num_groups", 1),
            channels = hth_infer_shape(infer, 1)->dim[0];
    if (groups < 1 || channels % groups != 0) {
        return hth_infer_fail(infer, HTH_EINVAL, "%lld channels in %lld groups",
                              (long long)channels, (long long)groups);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), hth_infer_shape(infer, 0));
}

hth_err hth_infer_batch_norm(hth_infer *infer)
{
    HTH_TRY(check_channels(infer, 1, 4));
    HTH_TRY(hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), hth_infer_shape(infer, 0)));
    HTH_TRY(hth_infer_out(infer, 1, hth_infer_dtype(infer, 3), hth_infer_shape(infer, 3)));
    return hth_infer_out(infer, 2, hth_infer_dtype(infer, 4), hth_infer_shape(infer, 4));
}

hth_err hth_infer_layer_norm(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0), joined;
    hth_dtype stash = (hth_dtype)hth_node_int(infer->n, "stash_type", HTH_DT_F32);
    int axis;
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", -1), s.rank, &axis));
    for (int i = 1; i < infer->n_in; i++) {
        if (hth_infer_has(infer, i) &&
            (hth_shape_broadcast(&s, hth_infer_shape(infer, i), &joined) != HTH_OK ||
             !hth_shape_equal(&s, &joined))) {
            return hth_infer_disagree(infer, "X", 0, i == 1 ? "scale" : "bias", i);
        }
    }
    HTH_TRY(hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s));
    for (int i = axis; i < s.rank; i++) {
        s.dim[i] = 1;
    }
    HTH_TRY(hth_infer_out(infer, 1, stash, &s));
    return hth_infer_out(infer, 2, stash, &s);
}

// What may be left out: the bias, lengths, first states and peepholes. Counts are what kernels rely
// on; exporters write [1, n] as [n].
static hth_err rnn_optional(hth_infer *infer, int64_t rows, int64_t batch, int64_t both,
                            int64_t hidden)
{
    static const char *const name[] = {"B", "sequence_lens", "initial_h", "initial_c", "P"};
    const hth_shape want[] = {{3, {both, 2, rows}},
                              {1, {batch}},
                              {3, {both, batch, hidden}},
                              {3, {both, batch, hidden}},
                              {3, {both, 3, hidden}}};
    for (int i = 0; i < 5; i++) {
        if (hth_infer_has(infer, 3 + i) &&
            hth_shape_elements(hth_infer_shape(infer, 3 + i)) != hth_shape_elements(&want[i])) {
            return hth_infer_disagree(infer, "R", 2, name[i], 3 + i);
        }
    }
    return HTH_OK;
}

// RNN, GRU, LSTM: X [T, B, I], W [directions, gates * hidden, I], R [directions, gates * hidden,
// hidden].
hth_err hth_infer_rnn(hth_infer *infer)
{
    int64_t gates = infer->n->op == HTH_OP_GRU ? 3 : 1, rows;
    gates = infer->n->op == HTH_OP_LSTM ? 4 : gates;
    for (int i = 0; i < 3; i++) {
        HTH_TRY(hth_infer_rank(infer, i, 3, 3));
        HTH_TRY(hth_infer_same_dtype(infer, 0, i));
    }
    const hth_shape *x = hth_infer_shape(infer, 0), *w = hth_infer_shape(infer, 1),
                    *r = hth_infer_shape(infer, 2);
    bool batch_first = hth_node_int(infer->n, "layout", 0) != 0;
    int64_t both =
        strcmp(hth_node_str(infer->n, "direction", "forward"), "bidirectional") == 0 ? 2 : 1;
    int64_t hidden = r->dim[2], t = x->dim[batch_first], b = x->dim[!batch_first];
    if (w->dim[2] != x->dim[2] || w->dim[0] != both) {
        return hth_infer_disagree(infer, "X", 0, "W", 1);
    }
    if (hth_dim_mul(gates, hidden, &rows) || r->dim[1] != rows || w->dim[1] != rows ||
        r->dim[0] != both || hth_node_int(infer->n, "hidden_size", hidden) != hidden) {
        return hth_infer_disagree(infer, "W", 1, "R", 2);
    }
    HTH_TRY(rnn_optional(infer, rows, b, both, hidden));
    hth_shape y = {4, {t, both, b, hidden}}, last = {3, {both, b, hidden}};
    if (batch_first) {
        y = (hth_shape){4, {b, t, both, hidden}};
        last = (hth_shape){3, {b, both, hidden}};
    }
    HTH_TRY(hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &y));
    HTH_TRY(hth_infer_out(infer, 1, hth_infer_dtype(infer, 0), &last));
    return hth_infer_out(infer, 2, hth_infer_dtype(infer, 0), &last);
}

// The lengths that `sizes` asks for, after keep_aspect_ratio_policy.
static hth_err resize_sizes(hth_infer *infer, int input, const int *axes, int n, hth_shape *shape)
{
    const char *policy = hth_node_str(infer->n, "keep_aspect_ratio_policy", "stretch");
    bool larger = strcmp(policy, "not_smaller") == 0, keep = larger || policy[0] == 'n';
    int64_t sizes[HTH_MAX_RANK];
    int count;
    float scale = larger ? 0 : INFINITY;
    HTH_TRY(hth_infer_ints(infer, input, sizes, HTH_MAX_RANK, &count));
    if (count != n) {
        return hth_infer_fail(infer, HTH_EINVAL, "%d sizes for %d axes", count, n);
    }
    for (int i = 0; i < n; i++) {
        if (sizes[i] < 0) {
            return hth_infer_fail(infer, HTH_EINVAL, "size %lld", (long long)sizes[i]);
        }
        float one = (float)sizes[i] / (float)shape->dim[axes[i]];
        scale = larger ? fmaxf(scale, one) : fminf(scale, one);
    }
    for (int i = 0; i < n; i++) {
        int64_t *dim = &shape->dim[axes[i]];
        if (keep && !(scale * (float)*dim < 0x1p62F)) {
            return hth_infer_overflow(infer);
        }
        *dim = keep ? (int64_t)floorf(scale * (float)*dim + 0.5F) : sizes[i];
    }
    return HTH_OK;
}

// Lengths by scales: floor(scale * length) in single precision, for every coordinate
// transformation. (The region of tf_crop_and_resize decides what is read, not how much comes out.)
static hth_err resize_scales(hth_infer *infer, int input, const int *axes, int n, hth_shape *shape)
{
    double scales[HTH_MAX_RANK];
    int count;
    HTH_TRY(hth_infer_reals(infer, input, scales, HTH_MAX_RANK, &count));
    if (count != n) {
        return hth_infer_fail(infer, HTH_EINVAL, "%d scales for %d axes", count, n);
    }
    for (int i = 0; i < n; i++) {
        float length = floorf((float)shape->dim[axes[i]] * (float)scales[i]);
        if (!(scales[i] > 0)) {
            return hth_infer_fail(infer, HTH_EINVAL, "scale %g", scales[i]);
        }
        if (!(length < 0x1p62F)) {
            return hth_infer_overflow(infer);
        }
        shape->dim[axes[i]] = (int64_t)length;
    }
    return HTH_OK;
}

static bool resize_given(const hth_infer *infer, int i)
{
    return hth_infer_has(infer, i) && hth_shape_elements(hth_infer_shape(infer, i)) != 0;
}

// Each element of the result is one of the image's, or between some: of none there is none.
static hth_err resize_from_some(hth_infer *infer, const hth_shape *shape)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    for (int i = 0; i < shape->rank && hth_shape_elements(shape) != 0; i++) {
        if (x->dim[i] == 0) {
            return hth_infer_fail(infer, HTH_EINVAL,
                                  "dimension %d is resized from 0 to %lld elements", i,
                                  (long long)shape->dim[i]);
        }
    }
    return HTH_OK;
}

hth_err hth_infer_resize(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0);
    int64_t list[HTH_MAX_RANK];
    int axes[HTH_MAX_RANK], n, by_scale = infer->n->op == HTH_OP_UPSAMPLE ? 1 : 2;
    HTH_TRY(hth_infer_attr(infer, "axes", list, HTH_MAX_RANK, &n));
    for (int i = 0; i < (n < 0 ? s.rank : n); i++) {
        HTH_TRY(hth_infer_axis(infer, n < 0 ? i : list[i], s.rank, &axes[i]));
    }
    n = n < 0 ? s.rank : n;
    if (resize_given(infer, by_scale) == resize_given(infer, 3)) {
        return hth_infer_fail(infer, HTH_EINVAL, "exactly one of scales and sizes must be given");
    }
    HTH_TRY(resize_given(infer, 3) ? resize_sizes(infer, 3, axes, n, &s)
                                   : resize_scales(infer, by_scale, axes, n, &s));
    HTH_TRY(resize_from_some(infer, &s));
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_grid_sample(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 3, HTH_MAX_RANK));
    const hth_shape *x = hth_infer_shape(infer, 0), *grid = hth_infer_shape(infer, 1);
    hth_shape s = *x;
    if (grid->rank != x->rank || grid->dim[0] != x->dim[0] ||
        grid->dim[x->rank - 1] != x->rank - 2) {
        return hth_infer_disagree(infer, "X", 0, "grid", 1);
    }
    for (int i = 2; i < s.rank; i++) {
        s.dim[i] = grid->dim[i - 1];
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_rotary(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 3, 4));
    HTH_TRY(hth_infer_rank(infer, 1, 2, 3));
    if (!hth_shape_equal(hth_infer_shape(infer, 1), hth_infer_shape(infer, 2))) {
        return hth_infer_disagree(infer, "cos_cache", 1, "sin_cache", 2);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), hth_infer_shape(infer, 0));
}
