// SPDX-License-Identifier: Apache-2.0
// Operators that cut, join and pad dimensions.
#include "graph/follow.h"

#include "base/compare.h"

#include <limits.h>

#define CUT_SLICE (HTH_N_OPS + 1) // symbols of a slice's length: start, end, step and dimension
#define CUT_PARTS (HTH_N_OPS + 2)

// A batch has at most INT32_MAX samples: ends from there on mean "to the end" (exporters write this
// one, or INT64_MAX).
#define CUT_END INT32_MAX

// Which axes the elements of a parameter belong to: those of input `at`, or all in turn. Returns
// how many, -1: not known, or the output is MIXED.
static int cut_axes(hth_follow *follow, int at, int rank, int n, int *axes)
{
    int64_t given[HTH_MAX_RANK];
    if (!hth_follow_has(follow, at)) {
        for (int i = 0; i < n && i < rank; i++) {
            axes[i] = i;
        }
        return n <= rank ? n : -1;
    }
    int have = hth_follow_ints(follow, at, given, HTH_MAX_RANK);
    for (int i = 0; i < have; i++) {
        if (given[i] < -rank || given[i] >= rank) {
            return -1;
        }
        axes[i] = (int)(given[i] < 0 ? given[i] + rank : given[i]);
        for (int k = 0; k < i; k++) {
            if (axes[k] == axes[i]) {
                return -1;
            }
        }
    }
    return have == n ? n : -1;
}

// The axes are not known: which dimension is cut is not, either.
static void cut_unknown(hth_follow *follow, const char *does)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    if (x->kind == HTH_TRACK_SAMPLES) {
        hth_follow_mixed(follow, does, -1);
        return;
    }
    for (int d = 0; d < t.rank; d++) {
        t.dim[d] = hth_follow_length(follow);
    }
    hth_follow_out(follow, 0, &t);
}

void hth_through_pad(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    int axes[HTH_MAX_RANK];
    int64_t n = hth_follow_elements(follow, 1);
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    int count = n >= 0 && n % 2 == 0 && n <= 2 * HTH_MAX_RANK
                    ? cut_axes(follow, 3, x->rank, (int)n / 2, axes)
                    : -1;
    if (count < 0) {
        cut_unknown(follow, "pads by lengths that cannot be followed");
        return;
    }
    for (int i = 0; i < count; i++) {
        hth_size before = hth_follow_element(follow, 1, i),
                 after = hth_follow_element(follow, 1, count + i);
        int d = axes[i];
        if (x->kind == HTH_TRACK_SAMPLES && d == x->axis) {
            if (!hth_size_is(follow->sizes, before, 0) || !hth_size_is(follow->sizes, after, 0)) {
                hth_follow_mixed(follow, "pads", d);
                return;
            }
            continue;
        }
        if (!hth_size_is(follow->sizes, before, 0) || !hth_size_is(follow->sizes, after, 0)) {
            t.dim[d] = hth_size_compute(follow->sizes, HTH_OP_ADD, HTH_DT_I64, t.dim[d], before);
            t.dim[d] = hth_size_compute(follow->sizes, HTH_OP_ADD, HTH_DT_I64, t.dim[d], after);
            t.dim[d] = hth_size_length(follow->sizes, t.dim[d]);
        }
    }
    t.equal = false; // where the padding is along another axis it still is; nobody needs it
    hth_follow_out(follow, 0, &t);
}

// start:end:step of a dimension.
typedef struct cut {
    hth_size start, end, step;
} cut;

// Does a cut leave dimension `dim` of `rows` samples (or none) whole?
static bool cut_whole(hth_follow *follow, const cut *c, hth_size dim, bool rows)
{
    int64_t end;
    bool last = c->end == dim || (hth_size_value(follow->sizes, c->end, &end) &&
                                  (end == INT64_MAX || (rows && end >= CUT_END)));
    return hth_size_is(follow->sizes, c->start, 0) && hth_size_is(follow->sizes, c->step, 1) &&
           last && dim != HTH_SIZE_OTHER;
}

// The number of elements that start:end:step takes from `dim`, all numbers.
static int64_t cut_length(int64_t dim, int64_t start, int64_t end, int64_t step)
{
    int64_t low = step > 0 ? 0 : -1, high = low + dim;
    start += start < 0 ? dim : 0;
    end += end < 0 ? dim : 0;
    start = hth_clamp(start, 0, high);
    end = hth_clamp(end, low, high);
    if (dim == 0 || step == 0) {
        return 0;
    }
    if (step > 0) {
        return end > start ? (end - start - 1) / step + 1 : 0;
    }
    step = step == INT64_MIN ? INT64_MAX : -step;
    return start > end ? (start - end - 1) / step + 1 : 0;
}

static hth_size cut_dim(hth_follow *follow, const cut *c, hth_size dim)
{
    int64_t n, start, end, step;
    hth_sizes *s = follow->sizes;
    bool numbers = hth_size_value(s, c->start, &start) && hth_size_value(s, c->end, &end) &&
                   hth_size_value(s, c->step, &step);
    if (numbers && hth_size_value(s, dim, &n) && n >= 0) {
        return hth_size_number(s, cut_length(n, start, end, step));
    }
    if (hth_size_is(s, c->start, 0) && hth_size_is(s, c->step, 1)) {
        if (hth_size_value(s, c->end, &end) && end == INT64_MAX) {
            return dim;
        }
        if (hth_size_at_least_0(s, c->end)) {
            return hth_size_compute(s, HTH_OP_MIN, HTH_DT_I64, c->end, dim);
        }
    }
    hth_size ends = hth_size_made(s, CUT_PARTS, c->start, c->end, false);
    hth_size what = hth_size_made(s, CUT_PARTS, c->step, dim, false);
    return hth_size_made(s, CUT_SLICE, ends, what, true);
}

void hth_through_slice(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    hth_track t = *x;
    int axes[HTH_MAX_RANK];
    int64_t n = hth_follow_elements(follow, 1);
    bool steps = hth_follow_has(follow, 4);
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    int count = n >= 0 && n <= HTH_MAX_RANK && hth_follow_elements(follow, 2) == n &&
                        (!steps || hth_follow_elements(follow, 4) == n)
                    ? cut_axes(follow, 3, x->rank, (int)n, axes)
                    : -1;
    if (count < 0) {
        cut_unknown(follow, "cuts along axes that cannot be followed");
        return;
    }
    for (int i = 0; i < count; i++) {
        cut c = {hth_follow_element(follow, 1, i), hth_follow_element(follow, 2, i),
                 steps ? hth_follow_element(follow, 4, i) : hth_size_number(follow->sizes, 1)};
        int d = axes[i];
        if (x->kind == HTH_TRACK_SAMPLES && d == x->axis) {
            if (!cut_whole(follow, &c, x->dim[d], x->dim[d] == hth_size_samples(follow->sizes))) {
                hth_follow_mixed(follow, "cuts", d);
                return;
            }
            continue;
        }
        t.dim[d] = cut_dim(follow, &c, x->dim[d]);
    }
    hth_follow_out(follow, 0, &t);
}

// Says that input i of a Concat along `axis` has its samples where those before it, `x`, have them.
// any: one of the inputs has samples.
static bool concat_fits(hth_follow *follow, int i, int axis, bool any, const hth_track *x)
{
    const hth_track *y = hth_follow_in(follow, i);
    if (y->rank != x->rank) {
        hth_follow_mixed(follow, "joins tensors of different ranks", -1);
    } else if (y->kind == HTH_TRACK_SAMPLES && y->axis == axis) {
        hth_follow_mixed(follow, "joins others along", axis);
    } else if (any && (x->kind != HTH_TRACK_SAMPLES || y->kind != HTH_TRACK_SAMPLES)) {
        hth_follow_mixed(follow, "joins samples with an operand that has not one row per sample",
                         -1);
    } else if (any && (y->axis != x->axis || !hth_follow_alike(x, y))) {
        hth_follow_mixed(follow, "joins tensors whose samples lie along different axes", -1);
    } else {
        return true;
    }
    return false;
}

// What numbers of samples become: columns of the same are one index; a column of sample numbers
// before others is what addresses by (sample, ..).
static void concat_numbers(hth_follow *follow, int axis, hth_track *track)
{
    const hth_track *first = hth_follow_in(follow, 0);
    bool all = true, later = false;
    for (int i = 0; i < follow->n_in; i++) {
        const hth_track *x = hth_follow_in(follow, i);
        all = all && x->index == first->index && x->stride == first->stride &&
              x->reach == first->reach && !x->coords;
        later = later || x->coords || (i > 0 && x->index);
    }
    track->coords = !all && hth_follow_rows(follow, 0) && !later && axis == track->rank - 1 &&
                    hth_size_is(follow->sizes, first->dim[axis], 1);
    if (!all && !track->coords && (first->index || first->coords || later)) {
        hth_follow_lose(follow, track, 0);
    }
    track->index = all && first->index;
    track->below = HTH_SIZE_OTHER;
}

void hth_through_concat(hth_follow *follow)
{
    hth_track t = *hth_follow_in(follow, 0);
    int axis;
    if (!hth_follow_axis(follow, hth_node_int(follow->n, "axis", 0), t.rank, &axis)) {
        return;
    }
    if (follow->n_in == 1) {
        hth_follow_out(follow, 0, &t);
        return;
    }
    hth_size length = hth_size_number(follow->sizes, 0);
    bool any = hth_follow_any(follow) >= 0;
    for (int i = 0; i < follow->n_in; i++) {
        if (!hth_follow_has(follow, i) || !concat_fits(follow, i, axis, any, &t)) {
            return; // an absent one: the shape inference refuses it
        }
        const hth_track *x = hth_follow_in(follow, i);
        length = hth_size_compute(follow->sizes, HTH_OP_ADD, HTH_DT_I64, length, x->dim[axis]);
        hth_follow_settle(&t, x);
    }
    concat_numbers(follow, axis, &t);
    t.dim[axis] = length;
    hth_follow_out(follow, 0, &t);
}

// The length of part i of a Split without sizes: equal parts, the last one smaller.
static hth_size split_part(hth_follow *follow, hth_size dim, int parts, int i)
{
    int64_t n;
    if (hth_size_value(follow->sizes, dim, &n) && n >= 0) {
        int64_t part = n / parts + (n % parts != 0), left = n - part * (parts - 1);
        left = left > 0 ? left : 0;
        return hth_size_number(follow->sizes, i < parts - 1 ? part : left);
    }
    hth_size exact = hth_size_quotient(follow->sizes, dim, hth_size_number(follow->sizes, parts));
    return exact != HTH_SIZE_OTHER ? exact : hth_size_fresh(follow->sizes, true);
}

void hth_through_split(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int axis, parts = follow->n->n_outputs;
    if (!hth_follow_only(follow, 1) ||
        !hth_follow_axis(follow, hth_node_int(follow->n, "axis", 0), x->rank, &axis)) {
        return;
    }
    bool along = x->kind == HTH_TRACK_SAMPLES && axis == x->axis;
    for (int i = 0; i < parts; i++) {
        hth_track t = *x;
        t.dim[axis] = hth_follow_has(follow, 1)
                          ? hth_size_length(follow->sizes, hth_follow_element(follow, 1, i))
                          : split_part(follow, x->dim[axis], parts, i);
        if (along && (parts > 1 || t.dim[axis] != x->dim[axis])) {
            hth_follow_mixed(follow, "cuts", axis);
            return;
        }
        hth_follow_out(follow, i, &t);
    }
}
