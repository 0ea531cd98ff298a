// SPDX-License-Identifier: Apache-2.0
// Operators that regroup, permute or repeat dimensions.
#include "graph/follow.h"

static const char *const untraceable = "makes a shape that cannot be followed";

// FIXED of unknown rank, or MIXED where samples, or their number, would be lost in it.
static void shape_unknown(hth_follow *follow)
{
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = -1, .dtype = hth_follow_in(follow, 0)->dtype};
    if (hth_follow_any(follow) >= 0) {
        hth_follow_mixed(follow, untraceable, -1);
    } else {
        hth_follow_out(follow, 0, &t);
    }
}

// regroup_split finds outer and inner of dimension `at`, the one that depends on N: row-major, the
// elements are [before, N, after], and will be. As the runtime makes sure that there are as many
// elements as before, it is enough that one side agrees: what stands before N, or what after.
static bool regroup_split(hth_follow *follow, const hth_track *track, int at, hth_size *outer,
                          hth_size *inner)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_size samples = hth_size_samples(follow->sizes);
    hth_size before = hth_size_mul(follow->sizes, hth_follow_dims(follow, x, 0, x->axis), x->outer);
    hth_size after =
        hth_size_mul(follow->sizes, hth_follow_dims(follow, x, x->axis + 1, x->rank), x->inner);
    *outer = hth_size_quotient(follow->sizes, before, hth_follow_dims(follow, track, 0, at));
    *inner = hth_size_quotient(follow->sizes, track->dim[at],
                               hth_size_mul(follow->sizes, samples, *outer));
    if (*outer == HTH_SIZE_OTHER || *inner == HTH_SIZE_OTHER) {
        *inner = hth_size_quotient(follow->sizes, after,
                                   hth_follow_dims(follow, track, at + 1, track->rank));
        *outer = hth_size_quotient(follow->sizes, track->dim[at],
                                   hth_size_mul(follow->sizes, samples, *inner));
    }
    return *outer != HTH_SIZE_OTHER && *inner != HTH_SIZE_OTHER;
}

// regroup gives the elements of input 0, in row-major order, the dimensions of `track`; of samples
// it finds the one along which they lie now.
static void regroup(hth_follow *follow, hth_track *track)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int at = -1;
    track->kind = HTH_TRACK_FIXED;
    track->dtype = x->dtype;
    track->below = x->below;
    for (int d = 0; d < track->rank; d++) {
        if (!hth_size_steady(follow->sizes, track->dim[d])) {
            if (track->dim[d] == HTH_SIZE_OTHER || at >= 0 || x->kind != HTH_TRACK_SAMPLES) {
                hth_follow_mixed(follow, "makes a shape that depends on the number of samples", -1);
                return;
            }
            at = d;
        }
    }
    if (x->kind == HTH_TRACK_SAMPLES) {
        hth_size outer, inner;
        if (at < 0 || !regroup_split(follow, track, at, &outer, &inner)) {
            hth_follow_mixed(follow, "regroups elements of different samples: it cuts through",
                             x->axis);
            return;
        }
        bool whole = hth_size_is(follow->sizes, outer, 1) && hth_size_is(follow->sizes, inner, 1);
        track->kind = HTH_TRACK_SAMPLES;
        track->axis = (int8_t)at;
        track->outer = outer;
        track->inner = inner;
        track->equal = x->equal && whole;
        track->index = x->index;
        track->stride = x->stride;
        track->reach = x->reach;
    }
    hth_follow_out(follow, 0, track);
}

// Is `size` a product of some of input 0's dimensions, which are at least 1, and of no more than
// the numbers among the others come to? Then it is at least 1, and no more than a tensor has
// elements.
static bool product_of_dims(hth_follow *follow, hth_size size)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t left, dim, room = 1;
    for (int d = 0; d < x->rank; d++) {
        hth_size rest = hth_size_quotient(follow->sizes, size, x->dim[d]);
        if (!hth_size_at_least_1(follow->sizes, x->dim[d])) {
            return false;
        }
        if (rest != HTH_SIZE_OTHER) {
            size = rest;
        } else if (hth_size_value(follow->sizes, x->dim[d], &dim) &&
                   __builtin_mul_overflow(room, dim, &room)) {
            return false;
        }
    }
    return hth_size_value(follow->sizes, size, &left) && left >= 1 && left <= room;
}

// reshape_dim is the dimension that element d of Reshape's second input asks for, where it is not
// known to be -1. What may turn out to be 0 copies a dimension, and what may be -1 is the open one,
// unless there is another (open). HTH_SIZE_OTHER: nobody knows.
static hth_size reshape_dim(hth_follow *follow, hth_size size, int d, bool open)
{
    const hth_track *x = hth_follow_in(follow, 0);
    bool copies = hth_node_int(follow->n, "allowzero", 0) == 0 && d < x->rank;
    bool negative = !open && !hth_size_at_least_0(follow->sizes, size);
    if (copies && (size == x->dim[d] || hth_size_is(follow->sizes, size, 0))) {
        return x->dim[d];
    }
    if (hth_size_at_least_1(follow->sizes, size) || product_of_dims(follow, size)) {
        return size;
    }
    if (x->kind == HTH_TRACK_SAMPLES &&
        (negative || (copies && !hth_size_steady(follow->sizes, x->dim[d])))) {
        return HTH_SIZE_OTHER;
    }
    if (!negative && !copies) {
        return hth_size_length(follow->sizes, size);
    }
    return hth_size_steady(follow->sizes, size) ? hth_size_fresh(follow->sizes, true)
                                                : HTH_SIZE_OTHER;
}

// The dimensions that Reshape's second input asks for; false: they have been refused.
static bool reshape_dims(hth_follow *follow, int n, hth_track *track)
{
    const hth_track *x = hth_follow_in(follow, 0);
    bool zero = hth_node_int(follow->n, "allowzero", 0) != 0;
    hth_size known = hth_size_number(follow->sizes, 1);
    int open = -1;
    track->rank = (int8_t)n;
    for (int d = 0; d < n; d++) {
        hth_size size = hth_follow_element(follow, 1, d);
        open = open < 0 && hth_size_is(follow->sizes, size, -1) ? d : open;
        if (d >= x->rank && hth_size_is(follow->sizes, size, 0) && !zero) {
            hth_follow_mixed(follow, untraceable, -1);
            return false;
        }
    }
    for (int d = 0; d < n; d++) {
        hth_size size = hth_follow_element(follow, 1, d);
        if (d != open) {
            track->dim[d] = reshape_dim(follow, size, d, open >= 0);
            known = hth_size_mul(follow->sizes, known, track->dim[d]);
        }
    }
    if (open >= 0) {
        hth_size all = hth_follow_dims(follow, x, 0, x->rank);
        track->dim[open] = hth_size_quotient_dim(follow->sizes, all, known);
    }
    return true;
}

void hth_through_reshape(hth_follow *follow)
{
    hth_track t = {.rank = 0};
    int64_t n = hth_follow_elements(follow, 1);
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (n < 0 || n > HTH_MAX_RANK) {
        shape_unknown(follow);
    } else if (reshape_dims(follow, (int)n, &t)) {
        regroup(follow, &t);
    }
}

void hth_through_flatten(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t axis = hth_node_int(follow->n, "axis", 1);
    if (axis < -x->rank || axis > x->rank) {
        hth_follow_mixed(follow, "has an axis outside of its dimensions", -1);
        return;
    }
    axis += axis < 0 ? x->rank : 0;
    hth_track t = {.rank = 2};
    t.dim[0] = hth_follow_dims(follow, x, 0, (int)axis);
    t.dim[1] = hth_follow_dims(follow, x, (int)axis, x->rank);
    regroup(follow, &t);
}

// squeeze_mask finds the dimensions that Squeeze takes out; false: the output has its track.
static bool squeeze_mask(hth_follow *follow, unsigned *mask)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t axes[HTH_MAX_RANK], dim;
    int n = hth_follow_ints(follow, 1, axes, HTH_MAX_RANK), axis;
    *mask = 0;
    if (n < 0) {
        shape_unknown(follow);
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (!hth_follow_axis(follow, axes[i], x->rank, &axis)) {
            return false;
        }
        *mask |= 1U << axis;
    }
    for (int d = 0; d < x->rank && !hth_follow_has(follow, 1); d++) { // all that are 1
        if (x->kind == HTH_TRACK_SAMPLES && d == x->axis) {
            hth_follow_mixed(follow, "takes out what has one element, with a single sample also",
                             d);
            return false;
        }
        if (!hth_size_value(follow->sizes, x->dim[d], &dim)) {
            shape_unknown(follow);
            return false;
        }
        *mask |= dim == 1 ? 1U << d : 0;
    }
    return true;
}

void hth_through_squeeze(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    unsigned mask;
    if (!hth_follow_only(follow, 1) || !squeeze_mask(follow, &mask)) {
        return;
    }
    t.rank = 0;
    for (int d = 0; d < x->rank; d++) {
        bool along = x->kind == HTH_TRACK_SAMPLES && d == x->axis;
        if (along && (mask >> d & 1) != 0) {
            hth_follow_mixed(follow, "takes out", d);
            return;
        }
        t.axis = along ? t.rank : t.axis;
        if ((mask >> d & 1) == 0) {
            t.dim[t.rank++] = x->dim[d];
        }
    }
    hth_follow_out(follow, 0, &t);
}

void hth_through_unsqueeze(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    int64_t axes[HTH_MAX_RANK];
    int n = hth_follow_ints(follow, 1, axes, HTH_MAX_RANK), axis, from = 0;
    unsigned mask = 0;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (n < 0 || x->rank + n > HTH_MAX_RANK) {
        shape_unknown(follow);
        return;
    }
    t.rank = (int8_t)(x->rank + n);
    for (int i = 0; i < n; i++) {
        if (!hth_follow_axis(follow, axes[i], t.rank, &axis)) {
            return;
        }
        if ((mask >> axis & 1) != 0) {
            hth_follow_mixed(follow, "names an axis twice", -1);
            return;
        }
        mask |= 1U << axis;
    }
    for (int d = 0; d < t.rank; d++) {
        bool added = (mask >> d & 1) != 0;
        if (!added && x->kind == HTH_TRACK_SAMPLES && from == x->axis) {
            t.axis = (int8_t)d;
        }
        t.dim[d] = added ? hth_size_number(follow->sizes, 1) : x->dim[from++];
    }
    hth_follow_out(follow, 0, &t);
}

void hth_through_transpose(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    int64_t perm[HTH_MAX_RANK];
    int n = hth_node_ints(follow->n, "perm", perm, HTH_MAX_RANK);
    unsigned seen = 0;
    for (int d = 0; d < x->rank; d++) {
        int from = x->rank - 1 - d;
        if (n >= 0 && (n != x->rank || !hth_follow_axis(follow, perm[d], x->rank, &from))) {
            hth_follow_mixed(follow, "does not permute its dimensions", -1);
            return;
        }
        if ((seen >> from & 1) != 0) {
            hth_follow_mixed(follow, "does not permute its dimensions", -1);
            return;
        }
        seen |= 1U << from;
        t.dim[d] = x->dim[from];
        if (x->kind == HTH_TRACK_SAMPLES && from == x->axis) {
            t.axis = (int8_t)d;
        }
    }
    hth_follow_out(follow, 0, &t);
}

// expand_dim expands one dimension of input 0 (from; -1: a new one) to `to`, dimension d of
// `track`.
static bool expand_dim(hth_follow *follow, hth_track *track, int d, int from, hth_size to)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_size have = from >= 0 ? x->dim[from] : hth_size_number(follow->sizes, 1);
    if (x->kind == HTH_TRACK_SAMPLES && from >= 0 && from == x->axis) {
        if (to != have && !hth_size_is(follow->sizes, to, 1)) {
            hth_follow_mixed(follow, "expands", from);
            return false;
        }
        track->axis = (int8_t)d;
        track->dim[d] = have;
        return true;
    }
    to = hth_size_length(follow->sizes, to);
    if (hth_size_steady(follow->sizes, to)) {
        track->dim[d] = hth_size_broadcast(follow->sizes, have, to);
        return true;
    }
    hth_size inner = hth_size_quotient(follow->sizes, to, hth_size_samples(follow->sizes));
    if (track->kind == HTH_TRACK_SAMPLES || inner == HTH_SIZE_OTHER ||
        !hth_size_is(follow->sizes, have, 1)) {
        hth_follow_mixed(follow, "makes a shape that depends on the number of samples", -1);
        return false;
    }
    track->kind = HTH_TRACK_SAMPLES;
    track->equal = true;
    track->axis = (int8_t)d;
    track->outer = hth_size_number(follow->sizes, 1);
    track->inner = inner;
    track->dim[d] = to;
    return true;
}

void hth_through_expand(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t n = hth_follow_elements(follow, 1);
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (n < 0 || n > HTH_MAX_RANK) {
        shape_unknown(follow);
        return;
    }
    hth_track t = *x;
    t.rank = (int8_t)(x->rank > n ? x->rank : n);
    for (int d = 0; d < t.rank; d++) {
        int from = d - t.rank + x->rank, want = d - t.rank + (int)n;
        hth_size to =
            want >= 0 ? hth_follow_element(follow, 1, want) : hth_size_number(follow->sizes, 1);
        if (!expand_dim(follow, &t, d, from >= 0 ? from : -1, to)) {
            return;
        }
    }
    hth_follow_out(follow, 0, &t);
}

// tile_along repeats dimension d, along which the samples lie, or begin to lie, `times` times.
static bool tile_along(hth_follow *follow, hth_track *track, int d, hth_size times)
{
    const hth_track *x = hth_follow_in(follow, 0);
    if (x->kind == HTH_TRACK_SAMPLES && d == x->axis && hth_size_steady(follow->sizes, times)) {
        track->outer = hth_size_mul(follow->sizes, x->outer, times); // [times, outer, N, inner]
    } else if (track->kind == HTH_TRACK_FIXED && !hth_size_steady(follow->sizes, times)) {
        track->kind = HTH_TRACK_SAMPLES; // each sample has its copies
        track->axis = (int8_t)d;
        track->outer = hth_size_number(follow->sizes, 1);
        track->inner =
            hth_size_mul(follow->sizes, x->dim[d],
                         hth_size_quotient(follow->sizes, times, hth_size_samples(follow->sizes)));
    } else {
        hth_follow_mixed(follow, "repeats by the number of samples along", d);
        return false;
    }
    return true;
}

void hth_through_tile(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (hth_follow_elements(follow, 1) != x->rank) {
        shape_unknown(follow);
        return;
    }
    for (int d = 0; d < x->rank; d++) {
        hth_size times = hth_size_length(follow->sizes, hth_follow_element(follow, 1, d));
        bool along = x->kind == HTH_TRACK_SAMPLES && d == x->axis;
        if ((along || !hth_size_steady(follow->sizes, times)) &&
            !tile_along(follow, &t, d, times)) {
            return;
        }
        t.dim[d] = hth_size_mul(follow->sizes, x->dim[d], times);
    }
    hth_follow_out(follow, 0, &t);
}
