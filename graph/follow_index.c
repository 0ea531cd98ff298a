// SPDX-License-Identifier: Apache-2.0
// Operators that address elements by index or by content, and those that make tensors.
//
// Indices count from the beginning of a dimension. Where that is the samples' dimension, an index
// means another sample in a joined batch than alone, but for the samples' own numbers (index,
// coords of follow.h).
#include "graph/follow.h"

#include "base/compare.h"
#include "base/alloc.h"

static const char *const picks = "picks by index along";
static const char *const writes = "writes by index along";
static const char *const lie_apart =
    "addresses samples by indices that do not lie along the same axis";

// Do the samples of `a` and `b` lie along the same axis, alike?
static bool same_place(const hth_track *a, const hth_track *b)
{
    return a->kind == HTH_TRACK_SAMPLES && b->kind == HTH_TRACK_SAMPLES && a->axis == b->axis &&
           hth_follow_alike(a, b);
}

// Does index n along axis 0 of `track` mean sample n?
static bool rows(hth_follow *follow, const hth_track *track)
{
    return track->kind == HTH_TRACK_SAMPLES && track->axis == 0 && !track->index &&
           !track->coords && track->dim[0] == hth_size_samples(follow->sizes);
}

// Does an index stay within its sample's block of `stride` rows?
static bool stays(const hth_follow *follow, const hth_track *track)
{
    int64_t reach, stride;
    return track->reach == track->stride ||
           (hth_size_value(follow->sizes, track->reach, &reach) &&
            hth_size_value(follow->sizes, track->stride, &stride) && reach <= stride);
}

// Numbers of samples are taken as indices only; as data they are refused.
static bool plain(hth_follow *follow, int i)
{
    const hth_track *t = hth_follow_in(follow, i);
    if (t->index || t->coords) {
        hth_follow_mixed(follow, "computes with the positions of samples", -1);
        return false;
    }
    return true;
}

// gather_dims makes [data before the axis, indices, data after it].
static bool gather_dims(hth_follow *follow, int axis, hth_track *track)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1);
    *track = (hth_track){.kind = HTH_TRACK_FIXED, .dtype = x->dtype};
    if (x->rank - 1 + at->rank > HTH_MAX_RANK) {
        hth_follow_mixed(follow, "makes too many dimensions", -1);
        return false;
    }
    for (int d = 0; d < x->rank + at->rank - 1; d++) {
        if (d < axis) {
            track->dim[d] = x->dim[d];
        } else {
            track->dim[d] = d < axis + at->rank ? at->dim[d - axis] : x->dim[d - at->rank + 1];
        }
    }
    track->rank = (int8_t)(x->rank + at->rank - 1);
    return true;
}

void hth_through_gather(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1);
    hth_track t;
    int axis;
    if (!plain(follow, 0) ||
        !hth_follow_axis(follow, hth_node_int(follow->n, "axis", 0), x->rank, &axis) ||
        !gather_dims(follow, axis, &t)) {
        return;
    }
    bool data = x->kind == HTH_TRACK_SAMPLES, indices = at->kind == HTH_TRACK_SAMPLES;
    if (data && axis == x->axis) {
        bool own = (hth_follow_rows(follow, 1) && rows(follow, x)) ||
                   (at->index && at->stride == x->inner && stays(follow, at) &&
                    hth_size_is(follow->sizes, x->outer, 1));
        if (!own) {
            hth_follow_mixed(follow, picks, axis);
            return;
        }
        hth_follow_place(&t, axis + at->axis, at); // each sample picks of itself
    } else if (at->index || at->coords) {
        hth_follow_mixed(follow, "computes with the positions of samples", -1);
        return;
    } else if (data && indices) {
        hth_follow_mixed(follow, "combines each sample with all others", -1);
        return;
    } else if (data) {
        hth_follow_place(&t, x->axis < axis ? x->axis : x->axis - 1 + at->rank, x);
    } else if (indices) {
        hth_follow_place(&t, axis + at->axis, at);
    }
    t.equal = t.equal && (!data || !indices);
    hth_follow_out(follow, 0, &t);
}

void hth_through_gather_elements(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1);
    int axis;
    if (!hth_follow_axis(follow, hth_node_int(follow->n, "axis", 0), x->rank, &axis)) {
        return;
    }
    hth_track t = *at;
    t.dtype = x->dtype;
    bool data = x->kind == HTH_TRACK_SAMPLES, indices = at->kind == HTH_TRACK_SAMPLES;
    if (data && axis == x->axis) {
        hth_follow_mixed(follow, picks, axis);
    } else if ((data && !same_place(x, at)) || (!data && indices && at->axis != axis)) {
        hth_follow_mixed(follow, lie_apart, -1);
    } else {
        hth_follow_settle(&t, x);
        hth_follow_out(follow, 0, &t);
    }
}

// [indices but their last dimension, data after batch dimensions and those that indices address]
static bool gather_nd_dims(hth_follow *follow, int depth, int batch, hth_track *track)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1);
    *track = (hth_track){.kind = HTH_TRACK_FIXED, .dtype = x->dtype};
    if (depth < 1 || batch < 0 || batch >= at->rank || batch + depth > x->rank ||
        at->rank - 1 + x->rank - depth - batch > HTH_MAX_RANK) {
        hth_follow_mixed(follow, "makes a shape that cannot be followed", -1);
        return false;
    }
    track->rank = (int8_t)(at->rank - 1 + x->rank - depth - batch);
    for (int d = 0; d < track->rank; d++) {
        track->dim[d] = d < at->rank - 1 ? at->dim[d] : x->dim[d - (at->rank - 1) + batch + depth];
    }
    return true;
}

void hth_through_gather_nd(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1);
    int64_t depth = -1;
    int64_t batch = hth_node_int(follow->n, "batch_dims", 0);
    hth_track t;
    if (at->rank < 1 || !hth_size_value(follow->sizes, at->dim[at->rank - 1], &depth) ||
        depth < 0 || depth > HTH_MAX_RANK || batch < 0 || batch > HTH_MAX_RANK) {
        depth = batch = -1;
    }
    if (!plain(follow, 0) || !gather_nd_dims(follow, (int)depth, (int)batch, &t)) {
        return;
    }
    bool data = x->kind == HTH_TRACK_SAMPLES, indices = at->kind == HTH_TRACK_SAMPLES;
    bool numbers = at->coords || at->index;
    if (indices && at->axis == at->rank - 1) {
        hth_follow_mixed(follow, picks, -1);
        return;
    }
    if (data && x->axis < batch) {
        if (numbers || !same_place(x, at)) {
            hth_follow_mixed(follow, lie_apart, -1);
            return;
        }
        hth_follow_place(&t, at->axis, at);
        hth_follow_settle(&t, x);
    } else if (data && x->axis < batch + depth) {
        // (sample, ..): only sample n addresses sample n.
        if (batch > 0 || !rows(follow, x) ||
            !(at->coords || (hth_follow_rows(follow, 1) && depth == 1))) {
            hth_follow_mixed(follow, picks, x->axis);
            return;
        }
        hth_follow_place(&t, at->axis, at);
    } else if (numbers || (data && indices)) {
        hth_follow_mixed(follow, "combines each sample with all others", -1);
        return;
    } else if (indices && at->axis < batch) { // sample n would read row n of a constant
        hth_follow_mixed(follow, lie_apart, -1);
        return;
    } else if (data) {
        hth_follow_place(&t, at->rank - 1 + x->axis - (int)(batch + depth), x);
    } else if (indices) {
        hth_follow_place(&t, at->axis, at);
    }
    t.equal = t.equal && !data;
    hth_follow_out(follow, 0, &t);
}

void hth_through_scatter_elements(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1),
                    *u = hth_follow_in(follow, 2);
    int axis;
    hth_track t = *x;
    if (!hth_follow_axis(follow, hth_node_int(follow->n, "axis", 0), x->rank, &axis)) {
        return;
    }
    hth_follow_settle(&t, at);
    if (hth_follow_any(follow) >= 0) {
        if (x->kind == HTH_TRACK_SAMPLES && axis == x->axis) {
            hth_follow_mixed(follow, writes, axis);
            return;
        }
        if (!same_place(x, at) || !same_place(&t, u)) {
            hth_follow_mixed(follow, lie_apart, -1);
            return;
        }
    }
    hth_follow_settle(&t, u);
    t.equal = false;
    hth_follow_out(follow, 0, &t);
}

// data [.., samples, ..] after what `depth` columns of indices address, updates alike.
static bool scatter_after(hth_follow *follow, int depth)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1),
                    *u = hth_follow_in(follow, 2);
    int there = at->rank - 1 + x->axis - depth;
    return x->kind == HTH_TRACK_SAMPLES && x->axis >= depth && at->kind == HTH_TRACK_FIXED &&
           u->kind == HTH_TRACK_SAMPLES && u->axis == there && hth_follow_alike(x, u);
}

void hth_through_scatter_nd(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *at = hth_follow_in(follow, 1),
                    *u = hth_follow_in(follow, 2);
    int64_t depth;
    hth_track t = *x;
    if (!plain(follow, 0) || !plain(follow, 2)) {
        return;
    }
    if (hth_follow_any(follow) >= 0) {
        bool known = at->rank > 0 && hth_size_value(follow->sizes, at->dim[at->rank - 1], &depth) &&
                     depth >= 0 && depth <= x->rank;
        // Each sample writes to itself: indices (n, ..), and updates along the indices' samples.
        bool own = known && rows(follow, x) && depth > 0 && at->kind == HTH_TRACK_SAMPLES &&
                   at->axis < at->rank - 1 &&
                   (at->coords || (hth_follow_rows(follow, 1) && depth == 1)) && same_place(at, u);
        if (!own && (!known || !scatter_after(follow, (int)depth))) {
            hth_follow_mixed(follow, writes, x->kind == HTH_TRACK_SAMPLES ? x->axis : -1);
            return;
        }
        hth_follow_settle(&t, u);
    }
    t.below = HTH_SIZE_OTHER;
    t.equal = false;
    hth_follow_out(follow, 0, &t);
}

void hth_through_compress(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    bool flat = hth_node_attr(follow->n, "axis") == NULL;
    hth_track t = *x;
    int axis = 0;
    if (!hth_follow_only(follow, 1) ||
        (!flat && !hth_follow_axis(follow, hth_node_int(follow->n, "axis", 0), x->rank, &axis))) {
        return;
    }
    if (x->kind == HTH_TRACK_SAMPLES && (flat || axis == x->axis)) {
        hth_follow_mixed(follow, picks, flat ? x->axis : axis);
        return;
    }
    t.rank = flat ? 1 : t.rank;
    t.dim[axis] = hth_follow_length(follow);
    hth_follow_out(follow, 0, &t);
}

void hth_through_by_content(hth_follow *follow)
{
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = 2, .dtype = HTH_DT_I64};
    if (hth_follow_any(follow) >= 0) {
        hth_follow_mixed(follow, "has as many results as the samples' values decide", -1);
        return;
    }
    t.dim[0] = hth_follow_length(follow);
    t.dim[1] = hth_follow_length(follow);
    hth_follow_out(follow, 0, &t);
}

void hth_through_one_hot(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    int axis;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (x->rank == HTH_MAX_RANK) {
        hth_follow_mixed(follow, "makes too many dimensions", -1);
        return;
    }
    if (!hth_follow_axis(follow, hth_node_int(follow->n, "axis", -1), x->rank + 1, &axis)) {
        return;
    }
    t.rank = (int8_t)(x->rank + 1);
    for (int d = x->rank; d >= axis; d--) {
        t.dim[d] = d > axis ? x->dim[d - 1]
                            : hth_size_length(follow->sizes, hth_follow_element(follow, 1, 0));
    }
    t.axis = (int8_t)(x->kind == HTH_TRACK_SAMPLES && x->axis >= axis ? x->axis + 1 : x->axis);
    t.dtype = hth_follow_in(follow, 2)->dtype;
    hth_follow_out(follow, 0, &t);
}

void hth_through_eye_like(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    t.dtype = (hth_dtype)hth_node_int(follow->n, "dtype", x->dtype);
    if (x->kind == HTH_TRACK_SAMPLES) {
        hth_follow_mixed(follow, "makes a diagonal through", x->axis);
    } else {
        t.kind = HTH_TRACK_FIXED;
        hth_follow_out(follow, 0, &t);
    }
}

// ReverseSequence: each row along batch_axis has a length of its own.
void hth_through_reverse(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0), *lengths = hth_follow_in(follow, 1);
    int batch, time;
    if (!hth_follow_axis(follow, hth_node_int(follow->n, "batch_axis", 1), x->rank, &batch) ||
        !hth_follow_axis(follow, hth_node_int(follow->n, "time_axis", 0), x->rank, &time)) {
        return;
    }
    hth_track t = *x;
    bool data = x->kind == HTH_TRACK_SAMPLES, rows_have = lengths->kind == HTH_TRACK_SAMPLES;
    if (data && x->axis == time) {
        hth_follow_mixed(follow, "reverses", time);
    } else if (rows_have ? !data || x->axis != batch || !hth_follow_alike(x, lengths)
                         : data && x->axis == batch) {
        hth_follow_mixed(follow, "has lengths that are not those of the samples along", batch);
    } else {
        hth_follow_settle(&t, lengths);
        t.equal = false;
        hth_follow_out(follow, 0, &t);
    }
}

// ---- from nothing

void hth_through_constant(hth_follow *follow)
{
    const hth_attr *a = hth_node_attr(follow->n, "value");
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = -1};
    if (a != NULL && a->type == HTH_ATTR_TENSOR) {
        t.dtype = a->u.tensor->dtype;
        t.rank = (int8_t)a->u.tensor->shape.rank;
        for (int d = 0; d < t.rank; d++) {
            t.dim[d] = hth_size_number(follow->sizes, a->u.tensor->shape.dim[d]);
        }
    }
    hth_follow_out(follow, 0, &t);
}

void hth_through_constant_of_shape(hth_follow *follow)
{
    const hth_attr *a = hth_node_attr(follow->n, "value");
    int64_t n = hth_follow_elements(follow, 0);
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = -1, .dtype = HTH_DT_F32};
    t.dtype = a != NULL && a->type == HTH_ATTR_TENSOR ? a->u.tensor->dtype : t.dtype;
    if (hth_follow_any(follow) >= 0) {
        hth_follow_mixed(follow, "makes a shape that depends on samples", -1);
        return;
    }
    t.rank = (int8_t)(n < 0 || n > HTH_MAX_RANK ? -1 : n);
    for (int d = 0; d < t.rank; d++) {
        t.dim[d] = hth_size_length(follow->sizes, hth_follow_element(follow, 0, d));
        if (hth_size_steady(follow->sizes, t.dim[d]) || t.kind == HTH_TRACK_SAMPLES) {
            continue; // two dimensions that depend on the samples are refused by the walk
        }
        t.kind = HTH_TRACK_SAMPLES;
        t.equal = true;
        t.axis = (int8_t)d;
        t.outer = hth_size_number(follow->sizes, 1);
        t.inner = hth_size_quotient(follow->sizes, t.dim[d], hth_size_samples(follow->sizes));
    }
    hth_follow_out(follow, 0, &t);
}

void hth_through_range(hth_follow *follow)
{
    hth_sizes *s = follow->sizes;
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = 1, .dtype = hth_follow_in(follow, 0)->dtype};
    if (hth_follow_any(follow) >= 0) {
        hth_follow_mixed(follow, "makes a shape that depends on samples", -1);
        return;
    }
    hth_size from = hth_follow_element(follow, 0, 0), to = hth_follow_element(follow, 1, 0),
             by = hth_follow_element(follow, 2, 0);
    int64_t first, last, step;
    bool simple = hth_size_is(s, from, 0) && hth_size_is(s, by, 1);
    bool whole = t.dtype == HTH_DT_I64 || t.dtype == HTH_DT_I32 || t.dtype == HTH_DT_I16;
    if (simple && whole && to == hth_size_samples(s)) {
        t.kind = HTH_TRACK_SAMPLES;
        t.outer = t.inner = hth_size_number(s, 1);
        t.index = true;
        t.stride = t.reach = hth_size_number(s, 1);
        t.dim[0] = to;
    } else if (simple && whole && hth_size_at_least_0(s, to)) {
        t.dim[0] = t.below = to;
    } else if (whole && hth_size_value(s, from, &first) && hth_size_value(s, to, &last) &&
               hth_size_value(s, by, &step) && step == 1 && first <= last &&
               !__builtin_sub_overflow(last, first, &last)) {
        t.dim[0] = hth_size_number(s, last);
    } else if (hth_size_steady(s, from) && hth_size_steady(s, to) && hth_size_steady(s, by)) {
        t.dim[0] = hth_size_fresh(s, true);
    } else {
        t.dim[0] = HTH_SIZE_OTHER;
    }
    hth_follow_out(follow, 0, &t);
}

// ---- of shapes

void hth_through_shape_of(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t rank = x->rank, from = hth_node_int(follow->n, "start", 0),
            to = hth_node_int(follow->n, "end", rank);
    from += from < 0 ? rank : 0;
    to += to < 0 ? rank : 0;
    from = hth_clamp(from, 0, rank);
    to = hth_clamp(to, from, rank);
    int n = (int)(to - from);
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = 1, .dtype = HTH_DT_I64};
    t.dim[0] = hth_size_number(follow->sizes, n);
    hth_follow_out(follow, 0, &t);
    hth_size *element = n > 0 ? hth_calloc((size_t)n, sizeof *element) : NULL;
    follow->failed = follow->failed || (n > 0 && element == NULL);
    for (int i = 0; i < n && element != NULL; i++) {
        element[i] = x->dim[from + i];
    }
    if (element != NULL) {
        hth_follow_set(follow, 0, element, n);
    }
}

void hth_through_size(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = 0, .dtype = HTH_DT_I64};
    hth_follow_out(follow, 0, &t);
    hth_size *element = hth_calloc(1, sizeof *element);
    follow->failed = follow->failed || element == NULL;
    if (element != NULL) {
        element[0] = hth_follow_dims(follow, x, 0, x->rank);
        hth_follow_set(follow, 0, element, 1);
    }
}
