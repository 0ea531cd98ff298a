// SPDX-License-Identifier: Apache-2.0
// Convolutions, pools, normalization, recurrent layers, resampling. Most have a batch of their own,
// dimension 0, that nothing crosses.
#include "graph/follow.h"

#include "graph/infer.h"

#include <string.h>

// Says that input 0's samples, if it has any, lie along axis 0.
static bool in_batch(hth_follow *follow, const char *does)
{
    const hth_track *x = hth_follow_in(follow, 0);
    if (x->kind == HTH_TRACK_SAMPLES && x->axis != 0) {
        hth_follow_mixed(follow, does, x->axis);
        return false;
    }
    return true;
}

// ---- windows

#define SOME_LENGTH 4096 // in place of lengths that are not numbers: a window fits

// window_infer asks the shape inference for the result of operator `f->n` on one sample, whose open
// dimensions have some length; false: it refuses. Each dimension of the result from 2 on depends on
// the same one of input 0 alone.
static bool window_infer(hth_follow *follow, hth_shape *out)
{
    hth_value values[8];
    int in[4], to[2] = {4, 5};
    hth_node n = *follow->n;
    hth_graph g = {.n_values = 8, .values = values};
    memset(values, 0, sizeof values);
    n.inputs = in;
    n.outputs = to;
    n.n_inputs = follow->n_in < 4 ? follow->n_in : 4;
    n.n_outputs = 1;
    n.n_post = 0;
    bool filter = n.op == HTH_OP_CONV || n.op == HTH_OP_CONV_TRANSPOSE, known = true;
    for (int i = 0; i < n.n_inputs; i++) {
        in[i] = hth_follow_has(follow, i) ? i : -1;
        if (in[i] < 0) {
            continue;
        }
        const hth_track *x = hth_follow_in(follow, i);
        values[i].dtype = hth_dtype_bytes(x->dtype) > 0 ? x->dtype : HTH_DT_F32;
        values[i].constant = follow->g->values[follow->n->inputs[i]].constant;
        values[i].shape.rank = x->rank;
        for (int d = 0; d < x->rank; d++) {
            bool first = i == 0 && d == 0;
            if (first || !hth_size_value(follow->sizes, x->dim[d], &values[i].shape.dim[d])) {
                values[i].shape.dim[d] = first ? 1 : SOME_LENGTH;
                known = known && (i != 1 || d < 2); // a filter decides how long the result is
            }
        }
    }
    if (filter && !known) {
        return false;
    }
    if (filter) {
        const hth_shape *w = &values[1].shape;
        bool forward = follow->n->op == HTH_OP_CONV;
        int64_t group = hth_node_int(follow->n, "group", 1);
        values[1].dtype = values[0].dtype;
        if (w->rank < 2 || group < 1 || group > INT32_MAX || w->dim[1] > INT32_MAX) {
            return false;
        }
        values[0].shape.dim[1] = forward ? w->dim[1] * group : w->dim[0];
    }
    hth_infer c = {&g, &n, n.n_inputs, -1};
    if (hth_infer_rule(follow->n->op)(&c) != HTH_OK) {
        return false;
    }
    *out = values[4].shape;
    return out->rank == hth_follow_in(follow, 0)->rank;
}

// What an operator with a window makes of a length that is not known: of some elements, some.
static hth_size window_length(hth_follow *follow, hth_size dim)
{
    return hth_size_at_least_1(follow->sizes, dim) ? hth_size_fresh_1(follow->sizes)
                                                   : hth_size_fresh(follow->sizes, true);
}

// window_dims stores input 0's track with the dimensions of the operator's result.
static void window_dims(hth_follow *follow, bool channels)
{
    hth_track t = *hth_follow_in(follow, 0);
    hth_shape s;
    int64_t n;
    bool known = window_infer(follow, &s);
    for (int d = 1; d < t.rank; d++) {
        if (d == 1 && !channels) {
            continue;
        }
        bool number = known && (d == 1 || hth_size_value(follow->sizes, t.dim[d], &n));
        t.dim[d] =
            number ? hth_size_number(follow->sizes, s.dim[d]) : window_length(follow, t.dim[d]);
    }
    t.equal = false;
    hth_follow_out(follow, 0, &t);
}

void hth_through_conv(hth_follow *follow)
{
    int64_t n;
    const hth_track *w = hth_follow_in(follow, 1);
    if (hth_follow_only(follow, 1) && in_batch(follow, "convolves along")) {
        bool known = w->rank > 1 && hth_size_value(follow->sizes, w->dim[0], &n) &&
                     hth_size_value(follow->sizes, w->dim[1], &n);
        window_dims(follow, true);
        if (!known && follow->n->outputs[0] >= 0 &&
            hth_follow_in(follow, 0)->rank > 1) { // as many channels as the filter decides
            hth_track t = follow->track[follow->n->outputs[0]];
            t.dim[1] = hth_size_fresh(follow->sizes, true);
            hth_follow_out(follow, 0, &t);
        }
    }
}

void hth_through_pool(hth_follow *follow)
{
    hth_track t = *hth_follow_in(follow, 0);
    bool global = follow->n->op == HTH_OP_GLOBAL_AVERAGE_POOL ||
                  follow->n->op == HTH_OP_GLOBAL_LP_POOL || follow->n->op == HTH_OP_GLOBAL_MAX_POOL;
    if (t.kind == HTH_TRACK_SAMPLES && t.axis > 1) {
        hth_follow_mixed(follow, "pools over", t.axis);
        return;
    }
    if (global) {
        for (int d = 2; d < t.rank; d++) {
            t.dim[d] = hth_size_number(follow->sizes, 1);
        }
        hth_follow_out(follow, 0, &t);
        return;
    }
    if (t.kind == HTH_TRACK_SAMPLES && t.axis == 1) {
        for (int d = 2; d < t.rank; d++) {
            t.dim[d] = window_length(follow, t.dim[d]);
        }
        hth_follow_out(follow, 0, &t);
    } else {
        window_dims(follow, false);
    }
    // MaxPool's indices count from the beginning of the batch.
    hth_follow_mix(follow, 1, "returns indices into the whole batch", -1);
}

void hth_through_blocks(hth_follow *follow)
{
    hth_track t = *hth_follow_in(follow, 0);
    hth_size b = hth_size_number(follow->sizes, hth_node_int(follow->n, "blocksize", 0));
    bool spread = follow->n->op == HTH_OP_DEPTH_TO_SPACE;
    if (t.rank != 4) {
        hth_follow_mixed(follow, "has an operand that cannot be followed", -1);
        return;
    }
    if (in_batch(follow, "moves blocks along")) {
        hth_size square = hth_size_mul(follow->sizes, b, b);
        for (int d = 1; d < 4; d++) {
            hth_size by = d == 1 ? square : b;
            t.dim[d] = (d == 1) == spread ? hth_size_quotient_dim(follow->sizes, t.dim[d], by)
                                          : hth_size_mul(follow->sizes, t.dim[d], by);
        }
        t.equal = false;
        hth_follow_out(follow, 0, &t);
    }
}

// ---- normalization

void hth_through_batch_norm(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    bool samples = x->kind == HTH_TRACK_SAMPLES;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (samples && hth_node_int(follow->n, "training_mode", 0) != 0) {
        hth_follow_mixed(follow, "is in training mode: it normalizes by the whole batch along",
                         x->axis);
        return;
    }
    if (samples && x->axis == 1) {
        hth_follow_mixed(follow, "sets a parameter per channel against", 1);
        return;
    }
    hth_follow_out(follow, 0, x);
    for (int i = 1; i < follow->n->n_outputs; i++) {
        hth_follow_out(follow, i, hth_follow_in(follow, i + 2));
    }
}

void hth_through_per_channel(hth_follow *follow)
{
    if (hth_follow_only(follow, 1) && in_batch(follow, "normalizes over")) {
        hth_follow_out(follow, 0, hth_follow_in(follow, 0));
    }
}

void hth_through_layer_norm(hth_follow *follow)
{
    const hth_track *in[3], *x = hth_follow_in(follow, 0);
    hth_track t;
    int axis, n = 0;
    if (!hth_follow_axis(follow, hth_node_int(follow->n, "axis", -1), x->rank, &axis)) {
        return;
    }
    if (x->kind == HTH_TRACK_SAMPLES && x->axis >= axis) {
        hth_follow_mixed(follow, "normalizes over", x->axis);
        return;
    }
    for (int i = 0; i < follow->n_in && i < 3; i++) {
        if (hth_follow_has(follow, i)) {
            in[n++] = hth_follow_in(follow, i);
        }
    }
    if (!hth_follow_join(follow, in, n, &t)) {
        return;
    }
    if (t.rank != x->rank || t.axis != x->axis) { // a parameter with samples of its own
        hth_follow_mixed(follow, "reads as a parameter what depends on the samples", -1);
        return;
    }
    memcpy(t.dim, x->dim, sizeof t.dim);
    hth_follow_out(follow, 0, &t);
    t = *x;
    t.equal = false;
    for (int d = axis; d < t.rank; d++) {
        t.dim[d] = hth_size_number(follow->sizes, 1);
    }
    hth_follow_out(follow, 1, &t);
    hth_follow_out(follow, 2, &t);
}

void hth_through_mean_variance(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t axes[HTH_MAX_RANK] = {0, 2, 3};
    int given = hth_node_ints(follow->n, "axes", axes, HTH_MAX_RANK), axis;
    for (int i = 0; i < (given < 0 ? 3 : given) && i < HTH_MAX_RANK; i++) {
        if (!hth_follow_axis(follow, axes[i], x->rank, &axis)) {
            return;
        }
        if (x->kind == HTH_TRACK_SAMPLES && axis == x->axis) {
            hth_follow_mixed(follow, "normalizes over", axis);
            return;
        }
    }
    hth_follow_out(follow, 0, x);
}

void hth_through_lrn(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    if (x->kind == HTH_TRACK_SAMPLES && x->axis == 1) {
        hth_follow_mixed(follow, "normalizes over", 1);
    } else {
        hth_follow_out(follow, 0, x);
    }
}

void hth_through_matrix(hth_follow *follow)
{
    hth_track t = *hth_follow_in(follow, 0);
    bool det = follow->n->op == HTH_OP_DET;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (t.rank < 2) {
        hth_follow_mixed(follow, "has an operand that is not a matrix", -1);
    } else if (t.kind == HTH_TRACK_SAMPLES && t.axis >= t.rank - 2) {
        hth_follow_mixed(follow, det ? "multiplies elements along" : "has a diagonal through",
                         t.axis);
    } else {
        t.rank = (int8_t)(det ? t.rank - 2 : t.rank);
        hth_follow_out(follow, 0, &t);
    }
}

// ---- recurrent layers

// Says that input i (absent: yes) has a row along `axis` for each of the samples of `x`, input 0
// with what was known of them before.
static bool rnn_state(hth_follow *follow, int i, int axis, hth_track *x)
{
    if (!hth_follow_has(follow, i)) {
        return true;
    }
    const hth_track *s = hth_follow_in(follow, i);
    bool fits = (s->kind == HTH_TRACK_SAMPLES) == (x->kind == HTH_TRACK_SAMPLES) &&
                (s->kind != HTH_TRACK_SAMPLES || (s->axis == axis && hth_follow_alike(x, s)));
    if (!fits) {
        hth_follow_mixed(follow, "has lengths or states that do not lie along the samples", -1);
    }
    hth_follow_settle(x, s);
    return fits;
}

void hth_through_rnn(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *r = hth_follow_in(follow, 2);
    bool first = hth_node_int(follow->n, "layout", 0) != 0;
    bool both = strcmp(hth_node_str(follow->n, "direction", "forward"), "bidirectional") == 0;
    int batch = first ? 0 : 1;
    if (!hth_follow_only(follow, 1U << 0 | 1U << 4 | 1U << 5 | 1U << 6)) {
        return;
    }
    if (x->rank != 3 || r->rank != 3) {
        hth_follow_mixed(follow, "has an operand that cannot be followed", -1);
        return;
    }
    if (x->kind == HTH_TRACK_SAMPLES && x->axis != batch) {
        hth_follow_mixed(follow, "goes along", x->axis);
        return;
    }
    hth_track y = *x;
    if (!rnn_state(follow, 4, 0, &y) || !rnn_state(follow, 5, batch, &y) ||
        !rnn_state(follow, 6, batch, &y)) {
        return;
    }
    hth_size directions = hth_size_number(follow->sizes, both ? 2 : 1), hidden = r->dim[2];
    hth_size steps = x->dim[first ? 1 : 0], rows = x->dim[batch];
    y.equal = false;
    hth_track last = y;
    y.rank = 4;
    last.rank = 3;
    if (first) {
        memcpy(y.dim, (hth_size[]){rows, steps, directions, hidden}, 4 * sizeof *y.dim);
        memcpy(last.dim, (hth_size[]){rows, directions, hidden}, 3 * sizeof *y.dim);
    } else {
        memcpy(y.dim, (hth_size[]){steps, directions, rows, hidden}, 4 * sizeof *y.dim);
        memcpy(last.dim, (hth_size[]){directions, rows, hidden}, 3 * sizeof *y.dim);
        y.axis = 2;
        last.axis = 1;
    }
    hth_follow_out(follow, 0, &y);
    hth_follow_out(follow, 1, &last);
    hth_follow_out(follow, 2, &last);
}

// ---- resampling

static bool resize_given(const hth_follow *follow, int i)
{
    return hth_follow_has(follow, i) && hth_follow_elements(follow, i) != 0;
}

// Says that the samples' axis keeps its length, and each position along it its place. entry: which
// element of scales or sizes is the axis's, of n.
static bool resize_keeps(hth_follow *follow, int entry, int n)
{
    const hth_track *x = hth_follow_in(follow, 0);
    bool sizes = resize_given(follow, 3), whole = true;
    if (hth_follow_elements(follow, sizes ? 3 : 2) != n) {
        return false;
    }
    if (resize_given(follow, 1)) {
        whole = hth_follow_elements(follow, 1) == 2 * n &&
                hth_size_is(follow->sizes, hth_follow_element(follow, 1, entry), 0) &&
                hth_size_is(follow->sizes, hth_follow_element(follow, 1, n + entry), 1);
    }
    return whole && (sizes ? hth_follow_element(follow, 3, entry) == x->dim[x->axis]
                           : hth_size_is(follow->sizes, hth_follow_element(follow, 2, entry), 1));
}

// The result's dimensions; without samples to follow, too.
static void resize_dims(hth_follow *follow, const int *axes, int n, bool stretch)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    bool sizes = resize_given(follow, 3) && hth_follow_elements(follow, 3) == n;
    hth_shape s;
    int64_t length;
    bool constant =
        !sizes && hth_follow_has(follow, 2) && follow->g->values[follow->n->inputs[2]].constant;
    bool known = constant && x->rank >= 2 && window_infer(follow, &s);
    for (int i = 0; i < n; i++) {
        int d = axes[i];
        if (x->kind == HTH_TRACK_SAMPLES && d == x->axis) {
            continue;
        }
        bool number = known && d > 0 && hth_size_value(follow->sizes, x->dim[d], &length);
        if (stretch && sizes) {
            t.dim[d] = hth_size_length(follow->sizes, hth_follow_element(follow, 3, i));
        } else if (stretch && number) {
            t.dim[d] = hth_size_number(follow->sizes, s.dim[d]);
        } else {
            t.dim[d] = hth_follow_length(follow);
        }
    }
    t.equal = false;
    hth_follow_out(follow, 0, &t);
}

void hth_through_resize(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t list[HTH_MAX_RANK];
    int axes[HTH_MAX_RANK], n = hth_node_ints(follow->n, "axes", list, HTH_MAX_RANK);
    bool all = n < 0;
    bool stretch =
        strcmp(hth_node_str(follow->n, "keep_aspect_ratio_policy", "stretch"), "stretch") == 0;
    n = all ? x->rank : n;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (hth_follow_has(follow, 1) && hth_follow_in(follow, 1)->kind == HTH_TRACK_COUNT) {
        hth_follow_mixed(follow, "computes with the number of samples", -1);
        return;
    }
    if (n > HTH_MAX_RANK) {
        hth_follow_mixed(follow, "has axes that cannot be followed", -1);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (!hth_follow_axis(follow, all ? i : list[i], x->rank, &axes[i])) {
            return;
        }
        if (x->kind == HTH_TRACK_SAMPLES && axes[i] == x->axis &&
            (!resize_keeps(follow, i, n) || (!stretch && resize_given(follow, 3)))) {
            hth_follow_mixed(follow, "resizes", x->axis);
            return;
        }
    }
    resize_dims(follow, axes, n, stretch || !resize_given(follow, 3));
}

void hth_through_grid(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *grid = hth_follow_in(follow, 1);
    hth_track t = *x;
    if (x->rank != grid->rank || x->rank < 3) {
        hth_follow_mixed(follow, "has an operand that cannot be followed", -1);
        return;
    }
    if (hth_follow_any(follow) >= 0 &&
        (x->kind != HTH_TRACK_SAMPLES || grid->kind != HTH_TRACK_SAMPLES || x->axis != 0 ||
         grid->axis != 0 || !hth_follow_alike(x, grid))) {
        hth_follow_mixed(follow, "has an image and a grid that do not both lie along axis 0", -1);
        return;
    }
    for (int d = 2; d < t.rank; d++) {
        t.dim[d] = grid->dim[d - 1];
    }
    hth_follow_settle(&t, grid);
    t.equal = false;
    hth_follow_out(follow, 0, &t);
}
