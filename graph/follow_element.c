// SPDX-License-Identifier: Apache-2.0
// Element-wise operators, and those that work on lines: normalizing, sorting, reducing along axes.
#include "graph/follow_impl.h"

// Of larger constants no bound is looked for.
#define CONSTANT_ELEMENTS (INT64_C(1) << 22)

static bool is_whole(const hth_track *track)
{
    return track->dtype == HTH_DT_I64 || track->dtype == HTH_DT_I32;
}

// The type of what operator `op` makes of operands of type `dt`.
static hth_dtype element_type(hth_op op, hth_dtype dt)
{
    switch (op) {
    case HTH_OP_EQUAL:
    case HTH_OP_GREATER:
    case HTH_OP_GREATER_OR_EQUAL:
    case HTH_OP_LESS:
    case HTH_OP_LESS_OR_EQUAL:
    case HTH_OP_IS_INF:
    case HTH_OP_IS_NA_N:
        return HTH_DT_BOOL;
    default:
        return dt;
    }
}

void hth_through_element(hth_follow *follow)
{
    const hth_track *in[64];
    hth_track out;
    int n = 0;
    if (follow->n_in > 64) {
        hth_follow_mixed(follow, "has more operands than are followed", -1);
        return;
    }
    for (int i = 0; i < follow->n_in; i++) {
        if (hth_follow_has(follow, i)) {
            in[n++] = hth_follow_in(follow, i);
        }
    }
    if (n == 0) {
        hth_follow_mixed(follow, "has no operands", -1);
    } else if (hth_follow_join(follow, in, n, &out)) {
        out.dtype = element_type(follow->n->op, in[follow->n->op == HTH_OP_WHERE ? 1 : 0]->dtype);
        hth_follow_out(follow, 0, &out);
    }
}

void hth_through_first(hth_follow *follow)
{
    hth_track t = *hth_follow_in(follow, 0);
    t.dtype = follow->n->op == HTH_OP_CAST ? (hth_dtype)hth_node_int(follow->n, "to", 0)
                                           : element_type(follow->n->op, t.dtype);
    bool same = follow->n->op == HTH_OP_IDENTITY || (follow->n->op == HTH_OP_CAST && is_whole(&t));
    t.below = same ? t.below : HTH_SIZE_OTHER;
    if ((t.index || t.coords) && !is_whole(&t)) { // a type that may not have them all
        hth_follow_lose(follow, &t, 0);
    }
    if (hth_follow_only(follow, 1)) {
        hth_follow_out(follow, 0, &t);
    }
}

// Of the second input only the type counts.
void hth_through_cast_like(hth_follow *follow)
{
    hth_track t = *hth_follow_in(follow, 0);
    t.dtype = hth_follow_in(follow, 1)->dtype;
    if (t.index || t.coords) {
        hth_follow_lose(follow, &t, 0);
    }
    t.below = HTH_SIZE_OTHER;
    hth_follow_out(follow, 0, &t);
}

// ---- numbers that address samples

// A FIXED operand of one element: its size, HTH_SIZE_OTHER: it is none.
static hth_size one_element(hth_follow *follow, int i)
{
    bool one =
        hth_follow_in(follow, i)->kind == HTH_TRACK_FIXED && hth_follow_elements(follow, i) == 1;
    return one ? hth_follow_element(follow, i, 0) : HTH_SIZE_OTHER;
}

// Joins two operands. good: the caller knows what becomes of samples' numbers among them; else they
// are lost, the output has its track, and the result is false.
static bool number_join(hth_follow *follow, bool good, hth_track *out)
{
    const hth_track *in[2] = {hth_follow_in(follow, 0), hth_follow_in(follow, 1)};
    if (!hth_follow_join(follow, in, 2, out)) {
        return false;
    }
    out->dtype = in[0]->dtype;
    for (int i = 0; i < 2 && !good; i++) {
        if (in[i]->index || in[i]->coords) {
            hth_follow_lose(follow, out, i);
        }
    }
    if (!good) {
        hth_follow_out(follow, 0, out);
    }
    return good;
}

// The least number that all elements of a constant of integers are below, if none is negative.
static hth_size constant_below(hth_follow *follow, int i)
{
    hth_track *t = &follow->track[follow->n->inputs[i]];
    hth_const *c = follow->g->values[follow->n->inputs[i]].constant;
    const void *data;
    int64_t n = c != NULL ? hth_shape_elements(&c->shape) : 0, below = 0, whole = 0;
    if (t->bounded || n < 1 || n > CONSTANT_ELEMENTS || !is_whole(t) ||
        hth_const_map(c, &data) != HTH_OK) {
        return t->below;
    }
    t->bounded = true; // once, however many nodes ask
    for (int64_t k = 0; k < n && below < INT64_MAX; k++) {
        bool known = follow_whole(c->dtype, data, k, &whole) && whole >= 0 && whole < INT64_MAX;
        if (!known) {
            below = INT64_MAX;
        } else if (whole >= below) {
            below = whole + 1;
        }
    }
    hth_const_unmap(c);
    t->below = below < INT64_MAX ? hth_size_number(follow->sizes, below) : HTH_SIZE_OTHER;
    return t->below;
}

// add_reach is what an index reaches when input i is added; HTH_SIZE_OTHER: nobody knows.
static hth_size add_reach(hth_follow *follow, const hth_track *index, int i)
{
    hth_size below = constant_below(follow, i);
    int64_t reach, more;
    if (below != HTH_SIZE_OTHER && hth_size_is(follow->sizes, index->reach, 1)) {
        return below;
    }
    bool known = hth_size_value(follow->sizes, index->reach, &reach) &&
                 hth_size_value(follow->sizes, below, &more);
    return known && more > 0 && !__builtin_add_overflow(reach, more - 1, &reach)
               ? hth_size_number(follow->sizes, reach)
               : HTH_SIZE_OTHER;
}

// i * stride + (r + what is added)
void hth_through_add(hth_follow *follow)
{
    int at = hth_follow_in(follow, 0)->index ? 0 : 1;
    const hth_track *index = hth_follow_in(follow, at), *rest = hth_follow_in(follow, 1 - at);
    bool alone = index->index && !rest->index && !rest->coords && is_whole(index);
    hth_size reach = alone ? add_reach(follow, index, 1 - at) : HTH_SIZE_OTHER;
    hth_track t;
    if (number_join(follow, reach != HTH_SIZE_OTHER, &t)) {
        t.index = true;
        t.stride = index->stride;
        t.reach = reach;
        hth_follow_out(follow, 0, &t);
    }
}

// i * (stride * number)
void hth_through_mul(hth_follow *follow)
{
    int at = hth_follow_in(follow, 0)->index ? 0 : 1;
    const hth_track *index = hth_follow_in(follow, at);
    bool alone = index->index && hth_size_is(follow->sizes, index->reach, 1) && is_whole(index);
    hth_size by = alone ? one_element(follow, 1 - at) : HTH_SIZE_OTHER;
    hth_track t;
    if (number_join(follow, by != HTH_SIZE_OTHER && hth_size_at_least_0(follow->sizes, by), &t)) {
        t.index = true;
        t.stride = hth_size_mul(follow->sizes, index->stride, by);
        t.reach = index->reach;
        hth_follow_out(follow, 0, &t);
    }
}

// The rest of a division by a positive integer is less than that.
void hth_through_mod(hth_follow *follow)
{
    const hth_track *a = hth_follow_in(follow, 0), *b = hth_follow_in(follow, 1);
    bool whole = is_whole(a) && hth_node_int(follow->n, "fmod", 0) == 0;
    hth_size by = whole ? one_element(follow, 1) : HTH_SIZE_OTHER;
    bool good = !a->index && !a->coords && !b->index && !b->coords && by != HTH_SIZE_OTHER &&
                hth_size_at_least_0(follow->sizes, by);
    hth_track t;
    if (number_join(follow, good, &t)) {
        t.below = by;
        hth_follow_out(follow, 0, &t);
    }
}

// In training mode what is dropped depends on where an element lies.
void hth_through_dropout(hth_follow *follow)
{
    int64_t training = 0, ratio = 1;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (hth_follow_has(follow, 1) && hth_follow_ints(follow, 1, &ratio, 1) != 1) {
        ratio = 1; // a fraction
    }
    if (hth_follow_has(follow, 2) && hth_follow_ints(follow, 2, &training, 1) != 1) {
        training = 1;
    }
    if (training != 0 && ratio != 0) {
        hth_follow_mixed(follow, "drops elements at random, in training mode", -1);
        return;
    }
    hth_follow_out(follow, 0, hth_follow_in(follow, 0));
    hth_follow_out(follow, 1, hth_follow_in(follow, 0));
}

// Says that input 0's samples do not lie along one of the axes in `mask`.
static bool line_apart(hth_follow *follow, unsigned mask, const char *does)
{
    const hth_track *t = hth_follow_in(follow, 0);
    if (t->kind == HTH_TRACK_SAMPLES && (mask >> t->axis & 1) != 0) {
        hth_follow_mixed(follow, does, t->axis);
        return false;
    }
    return true;
}

// Softmax, LogSoftmax, Hardmax: before opset 13 over all dimensions from the axis on.
void hth_through_softmax(hth_follow *follow)
{
    int rank = hth_follow_in(follow, 0)->rank > 0 ? hth_follow_in(follow, 0)->rank : 1, axis;
    bool flatten = hth_node_int(follow->n, "flatten", 0) != 0;
    int64_t given = hth_node_int(follow->n, "axis", flatten ? 1 : -1);
    if (flatten && given == rank) { // rows of one element
        hth_follow_out(follow, 0, hth_follow_in(follow, 0));
    } else if (hth_follow_axis(follow, given, rank, &axis) &&
               line_apart(follow, flatten ? ~0U << axis : 1U << axis, "normalizes over")) {
        hth_follow_out(follow, 0, hth_follow_in(follow, 0));
    }
}

// LpNormalization has the axis as an attribute, CumSum as an input.
void hth_through_along(hth_follow *follow)
{
    bool sum = follow->n->op == HTH_OP_CUM_SUM;
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t given = hth_node_int(follow->n, "axis", -1);
    int axis;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (sum && hth_follow_ints(follow, 1, &given, 1) != 1) {
        if (x->kind == HTH_TRACK_SAMPLES) {
            hth_follow_mixed(follow, "sums along an axis that is computed", -1);
        } else {
            hth_follow_out(follow, 0, x);
        }
        return;
    }
    const char *what = sum ? "sums along" : "normalizes over";
    if (hth_follow_axis(follow, given, x->rank > 0 ? x->rank : 1, &axis) &&
        line_apart(follow, 1U << axis, what)) {
        hth_follow_out(follow, 0, x);
    }
}

// reduce_out stores input 0's track without the dimensions in `mask`, or with 1 in their place.
static void reduce_out(hth_follow *follow, unsigned mask, hth_dtype dt, hth_size below)
{
    const hth_track *x = hth_follow_in(follow, 0);
    bool keep = hth_node_int(follow->n, "keepdims", 1) != 0;
    hth_track t = *x;
    t.rank = 0;
    t.dtype = dt;
    t.below = below;
    for (int d = 0; d < x->rank; d++) {
        bool gone = (mask >> d & 1) != 0;
        if (x->kind == HTH_TRACK_SAMPLES && d == x->axis) {
            t.axis = t.rank;
        }
        if (!gone || keep) {
            t.dim[t.rank++] = gone ? hth_size_number(follow->sizes, 1) : x->dim[d];
        }
    }
    hth_follow_out(follow, 0, &t);
}

void hth_through_reduce(hth_follow *follow)
{
    const hth_track *x = hth_follow_in(follow, 0);
    int64_t axes[HTH_MAX_RANK];
    int n = hth_follow_ints(follow, 1, axes, HTH_MAX_RANK), axis;
    unsigned mask = 0;
    if (!hth_follow_only(follow, 1)) {
        return;
    }
    if (n < 0) {
        hth_track t = {.kind = HTH_TRACK_FIXED, .rank = -1};
        if (x->kind == HTH_TRACK_SAMPLES) {
            hth_follow_mixed(follow, "reduces over axes that are computed", -1);
        } else {
            hth_follow_out(follow, 0, &t);
        }
        return;
    }
    if (n == 0) {
        mask = hth_node_int(follow->n, "noop_with_empty_axes", 0) != 0 ? 0 : ~0U;
    }
    for (int i = 0; i < n; i++) {
        if (!hth_follow_axis(follow, axes[i], x->rank, &axis)) {
            return;
        }
        mask |= 1U << axis;
    }
    if (line_apart(follow, mask, "reduces over")) {
        reduce_out(follow, mask, x->dtype, HTH_SIZE_OTHER);
    }
}

void hth_through_arg(hth_follow *follow)
{
    int axis;
    if (hth_follow_axis(follow, hth_node_int(follow->n, "axis", 0), hth_follow_in(follow, 0)->rank,
                        &axis) &&
        line_apart(follow, 1U << axis, "finds an extreme along")) {
        reduce_out(follow, 1U << axis, HTH_DT_I64, hth_follow_in(follow, 0)->dim[axis]);
    }
}

void hth_through_top_k(hth_follow *follow)
{
    hth_track t = *hth_follow_in(follow, 0);
    int axis;
    if (!hth_follow_only(follow, 1) ||
        !hth_follow_axis(follow, hth_node_int(follow->n, "axis", -1), t.rank, &axis) ||
        !line_apart(follow, 1U << axis, "sorts along")) {
        return;
    }
    hth_size length = t.dim[axis];
    t.dim[axis] = hth_size_length(follow->sizes, hth_follow_element(follow, 1, 0));
    t.below = HTH_SIZE_OTHER;
    hth_follow_out(follow, 0, &t);
    t.dtype = HTH_DT_I64;
    t.below = length;
    hth_follow_out(follow, 1, &t);
}
