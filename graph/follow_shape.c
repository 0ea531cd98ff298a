// SPDX-License-Identifier: Apache-2.0
// Operators that regroup, permute or repeat dimensions.
#include "graph/follow.h"

static const char *const untraceable = "makes a shape that cannot be followed";

// FIXED of unknown rank, or MIXED where samples, or their number, would be lost in it.
static void shape_unknown(hth_follow *f)
{
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = -1, .dtype = hth_follow_in(f, 0)->dtype};
    if (hth_follow_any(f) >= 0) {
        hth_follow_mixed(f, untraceable, -1);
    } else {
        hth_follow_out(f, 0, &t);
    }
}

// regroup_split finds outer and inner of dimension `at`, the one that depends on N: row-major, the
// elements are [before, N, after], and will be. As the runtime makes sure that there are as many
// elements as before, it is enough that one side agrees: what stands before N, or what after.
static bool regroup_split(hth_follow *f, const hth_track *t, int at, hth_size *outer,
                          hth_size *inner)
{
    const hth_track *x = hth_follow_in(f, 0);
    hth_size samples = hth_size_samples(f->sizes);
    hth_size before = hth_size_mul(f->sizes, hth_follow_dims(f, x, 0, x->axis), x->outer);
    hth_size behind = hth_size_mul(f->sizes, hth_follow_dims(f, x, x->axis + 1, x->rank), x->inner);
    *outer = hth_size_quotient(f->sizes, before, hth_follow_dims(f, t, 0, at));
    *inner = hth_size_quotient(f->sizes, t->dim[at], hth_size_mul(f->sizes, samples, *outer));
    if (*outer == HTH_SIZE_OTHER || *inner == HTH_SIZE_OTHER) {
        *inner = hth_size_quotient(f->sizes, behind, hth_follow_dims(f, t, at + 1, t->rank));
        *outer = hth_size_quotient(f->sizes, t->dim[at], hth_size_mul(f->sizes, samples, *inner));
    }
    return *outer != HTH_SIZE_OTHER && *inner != HTH_SIZE_OTHER;
}

// regroup gives the elements of input 0, in row-major order, the dimensions of `t`; of samples it
// finds the one along which they lie now.
static void regroup(hth_follow *f, hth_track *t)
{
    const hth_track *x = hth_follow_in(f, 0);
    int at = -1;
    t->kind = HTH_TRACK_FIXED;
    t->dtype = x->dtype;
    t->below = x->below;
    for (int d = 0; d < t->rank; d++) {
        if (!hth_size_steady(f->sizes, t->dim[d])) {
            if (t->dim[d] == HTH_SIZE_OTHER || at >= 0 || x->kind != HTH_TRACK_SAMPLES) {
                hth_follow_mixed(f, "makes a shape that depends on the number of samples", -1);
                return;
            }
            at = d;
        }
    }
    if (x->kind == HTH_TRACK_SAMPLES) {
        hth_size outer, inner;
        if (at < 0 || !regroup_split(f, t, at, &outer, &inner)) {
            hth_follow_mixed(f, "regroups elements of different samples: it cuts through", x->axis);
            return;
        }
        bool whole = hth_size_is(f->sizes, outer, 1) && hth_size_is(f->sizes, inner, 1);
        t->kind = HTH_TRACK_SAMPLES;
        t->axis = (int8_t)at;
        t->outer = outer;
        t->inner = inner;
        t->equal = x->equal && whole;
        t->index = x->index;
        t->stride = x->stride;
        t->reach = x->reach;
    }
    hth_follow_out(f, 0, t);
}

// The dimensions that Reshape's second input asks for; false: they have been refused.
static bool reshape_dims(hth_follow *f, int n, hth_track *t)
{
    const hth_track *x = hth_follow_in(f, 0);
    bool zero = hth_node_int(f->n, "allowzero", 0) != 0;
    hth_size known = hth_size_number(f->sizes, 1);
    int open = -1;
    t->rank = (int8_t)n;
    for (int d = 0; d < n; d++) {
        t->dim[d] = hth_follow_element(f, 1, d);
        if (hth_size_is(f->sizes, t->dim[d], 0) && !zero) {
            if (d >= x->rank) {
                hth_follow_mixed(f, untraceable, -1);
                return false;
            }
            t->dim[d] = x->dim[d];
        }
        if (hth_size_is(f->sizes, t->dim[d], -1) && open < 0) {
            open = d;
        } else {
            known = hth_size_mul(f->sizes, known, t->dim[d]);
        }
    }
    if (open >= 0) {
        hth_size all = hth_follow_dims(f, x, 0, x->rank);
        t->dim[open] = hth_size_quotient_dim(f->sizes, all, known);
    }
    return true;
}

void hth_through_reshape(hth_follow *f)
{
    hth_track t = {.rank = 0};
    int64_t n = hth_follow_elements(f, 1);
    if (!hth_follow_only(f, 1)) {
        return;
    }
    if (n < 0 || n > HTH_MAX_RANK) {
        shape_unknown(f);
    } else if (reshape_dims(f, (int)n, &t)) {
        regroup(f, &t);
    }
}

void hth_through_flatten(hth_follow *f)
{
    const hth_track *x = hth_follow_in(f, 0);
    int64_t axis = hth_node_int(f->n, "axis", 1);
    if (axis < -x->rank || axis > x->rank) {
        hth_follow_mixed(f, "has an axis outside of its dimensions", -1);
        return;
    }
    axis += axis < 0 ? x->rank : 0;
    hth_track t = {.rank = 2};
    t.dim[0] = hth_follow_dims(f, x, 0, (int)axis);
    t.dim[1] = hth_follow_dims(f, x, (int)axis, x->rank);
    regroup(f, &t);
}

// squeeze_mask finds the dimensions that Squeeze takes out; false: the output has its track.
static bool squeeze_mask(hth_follow *f, unsigned *mask)
{
    const hth_track *x = hth_follow_in(f, 0);
    int64_t axes[HTH_MAX_RANK], dim;
    int n = hth_follow_ints(f, 1, axes, HTH_MAX_RANK), axis;
    *mask = 0;
    if (n < 0) {
        shape_unknown(f);
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (!hth_follow_axis(f, axes[i], x->rank, &axis)) {
            return false;
        }
        *mask |= 1U << axis;
    }
    for (int d = 0; d < x->rank && !hth_follow_has(f, 1); d++) { // all that are 1
        if (x->kind == HTH_TRACK_SAMPLES && d == x->axis) {
            hth_follow_mixed(f, "takes out what has one element, with a single sample also", d);
            return false;
        }
        if (!hth_size_value(f->sizes, x->dim[d], &dim)) {
            shape_unknown(f);
            return false;
        }
        *mask |= dim == 1 ? 1U << d : 0;
    }
    return true;
}

void hth_through_squeeze(hth_follow *f)
{
    const hth_track *x = hth_follow_in(f, 0);
    hth_track t = *x;
    unsigned mask;
    if (!hth_follow_only(f, 1) || !squeeze_mask(f, &mask)) {
        return;
    }
    t.rank = 0;
    for (int d = 0; d < x->rank; d++) {
        bool along = x->kind == HTH_TRACK_SAMPLES && d == x->axis;
        if (along && (mask >> d & 1) != 0) {
            hth_follow_mixed(f, "takes out", d);
            return;
        }
        t.axis = along ? t.rank : t.axis;
        if ((mask >> d & 1) == 0) {
            t.dim[t.rank++] = x->dim[d];
        }
    }
    hth_follow_out(f, 0, &t);
}

void hth_through_unsqueeze(hth_follow *f)
{
    const hth_track *x = hth_follow_in(f, 0);
    hth_track t = *x;
    int64_t axes[HTH_MAX_RANK];
    int n = hth_follow_ints(f, 1, axes, HTH_MAX_RANK), axis, from = 0;
    unsigned mask = 0;
    if (!hth_follow_only(f, 1)) {
        return;
    }
    if (n < 0 || x->rank + n > HTH_MAX_RANK) {
        shape_unknown(f);
        return;
    }
    t.rank = (int8_t)(x->rank + n);
    for (int i = 0; i < n; i++) {
        if (!hth_follow_axis(f, axes[i], t.rank, &axis)) {
            return;
        }
        if ((mask >> axis & 1) != 0) {
            hth_follow_mixed(f, "names an axis twice", -1);
            return;
        }
        mask |= 1U << axis;
    }
    for (int d = 0; d < t.rank; d++) {
        bool added = (mask >> d & 1) != 0;
        if (!added && x->kind == HTH_TRACK_SAMPLES && from == x->axis) {
            t.axis = (int8_t)d;
        }
        t.dim[d] = added ? hth_size_number(f->sizes, 1) : x->dim[from++];
    }
    hth_follow_out(f, 0, &t);
}

void hth_through_transpose(hth_follow *f)
{
    const hth_track *x = hth_follow_in(f, 0);
    hth_track t = *x;
    int64_t perm[HTH_MAX_RANK];
    int n = hth_node_ints(f->n, "perm", perm, HTH_MAX_RANK);
    unsigned seen = 0;
    for (int d = 0; d < x->rank; d++) {
        int from = x->rank - 1 - d;
        if (n >= 0 && (n != x->rank || !hth_follow_axis(f, perm[d], x->rank, &from))) {
            hth_follow_mixed(f, "does not permute its dimensions", -1);
            return;
        }
        if ((seen >> from & 1) != 0) {
            hth_follow_mixed(f, "does not permute its dimensions", -1);
            return;
        }
        seen |= 1U << from;
        t.dim[d] = x->dim[from];
        if (x->kind == HTH_TRACK_SAMPLES && from == x->axis) {
            t.axis = (int8_t)d;
        }
    }
    hth_follow_out(f, 0, &t);
}

// expand_dim expands one dimension of input 0 (from; -1: a new one) to `to`, dimension d of `t`.
static bool expand_dim(hth_follow *f, hth_track *t, int d, int from, hth_size to)
{
    const hth_track *x = hth_follow_in(f, 0);
    hth_size have = from >= 0 ? x->dim[from] : hth_size_number(f->sizes, 1);
    if (x->kind == HTH_TRACK_SAMPLES && from >= 0 && from == x->axis) {
        if (to != have && !hth_size_is(f->sizes, to, 1)) {
            hth_follow_mixed(f, "expands", from);
            return false;
        }
        t->axis = (int8_t)d;
        t->dim[d] = have;
        return true;
    }
    if (hth_size_steady(f->sizes, to)) {
        t->dim[d] = hth_size_broadcast(f->sizes, have, to);
        return true;
    }
    hth_size inner = hth_size_quotient(f->sizes, to, hth_size_samples(f->sizes));
    if (t->kind == HTH_TRACK_SAMPLES || inner == HTH_SIZE_OTHER ||
        !hth_size_is(f->sizes, have, 1)) {
        hth_follow_mixed(f, "makes a shape that depends on the number of samples", -1);
        return false;
    }
    t->kind = HTH_TRACK_SAMPLES;
    t->equal = true;
    t->axis = (int8_t)d;
    t->outer = hth_size_number(f->sizes, 1);
    t->inner = inner;
    t->dim[d] = to;
    return true;
}

void hth_through_expand(hth_follow *f)
{
    const hth_track *x = hth_follow_in(f, 0);
    int64_t n = hth_follow_elements(f, 1);
    if (!hth_follow_only(f, 1)) {
        return;
    }
    if (n < 0 || n > HTH_MAX_RANK) {
        shape_unknown(f);
        return;
    }
    hth_track t = *x;
    t.rank = (int8_t)(x->rank > n ? x->rank : n);
    for (int d = 0; d < t.rank; d++) {
        int from = d - t.rank + x->rank, want = d - t.rank + (int)n;
        hth_size to = want >= 0 ? hth_follow_element(f, 1, want) : hth_size_number(f->sizes, 1);
        if (!expand_dim(f, &t, d, from >= 0 ? from : -1, to)) {
            return;
        }
    }
    hth_follow_out(f, 0, &t);
}

// tile_along repeats dimension d, along which the samples lie, or begin to lie, `times` times.
static bool tile_along(hth_follow *f, hth_track *t, int d, hth_size times)
{
    const hth_track *x = hth_follow_in(f, 0);
    if (x->kind == HTH_TRACK_SAMPLES && d == x->axis && hth_size_steady(f->sizes, times)) {
        t->outer = hth_size_mul(f->sizes, x->outer, times); // [times, outer, N, inner]
    } else if (t->kind == HTH_TRACK_FIXED && !hth_size_steady(f->sizes, times)) {
        t->kind = HTH_TRACK_SAMPLES; // each sample has its copies
        t->axis = (int8_t)d;
        t->outer = hth_size_number(f->sizes, 1);
        t->inner = hth_size_mul(f->sizes, x->dim[d],
                                hth_size_quotient(f->sizes, times, hth_size_samples(f->sizes)));
    } else {
        hth_follow_mixed(f, "repeats by the number of samples along", d);
        return false;
    }
    return true;
}

void hth_through_tile(hth_follow *f)
{
    const hth_track *x = hth_follow_in(f, 0);
    hth_track t = *x;
    if (!hth_follow_only(f, 1)) {
        return;
    }
    if (hth_follow_elements(f, 1) != x->rank) {
        shape_unknown(f);
        return;
    }
    for (int d = 0; d < x->rank; d++) {
        hth_size times = hth_follow_element(f, 1, d);
        bool along = x->kind == HTH_TRACK_SAMPLES && d == x->axis;
        if ((along || !hth_size_steady(f->sizes, times)) && !tile_along(f, &t, d, times)) {
            return;
        }
        t.dim[d] = hth_size_mul(f->sizes, x->dim[d], times);
    }
    hth_follow_out(f, 0, &t);
}
