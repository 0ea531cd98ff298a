// SPDX-License-Identifier: Apache-2.0
// graph/infer_index.c - operators that address elements by index or content, and those that make
// tensors.
//
// The results of NonZero and NonMaxSuppression have as many rows as the data decide: their rules
// ask for the content of every input and then leave that dimension unknown; hth_specialize computes
// such a node at once (specialize.h).
#include "graph/infer.h"

#include "base/compare.h"

#include <math.h>

hth_err hth_infer_gather(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0), *at = hth_infer_shape(infer, 1);
    hth_shape s = {0};
    int axis;
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", 0), x->rank, &axis));
    for (int i = 0; i < axis; i++) {
        HTH_TRY(hth_infer_push(infer, &s, x->dim[i]));
    }
    for (int i = 0; i < at->rank; i++) {
        HTH_TRY(hth_infer_push(infer, &s, at->dim[i]));
    }
    for (int i = axis + 1; i < x->rank; i++) {
        HTH_TRY(hth_infer_push(infer, &s, x->dim[i]));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_gather_elements(hth_infer *infer)
{
    int axis;
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", 0),
                           hth_infer_shape(infer, 0)->rank, &axis));
    if (hth_infer_shape(infer, 1)->rank != hth_infer_shape(infer, 0)->rank) {
        return hth_infer_disagree(infer, "data", 0, "indices", 1);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), hth_infer_shape(infer, 1));
}

hth_err hth_infer_gather_nd(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0), *at = hth_infer_shape(infer, 1);
    int64_t batch = hth_node_int(infer->n, "batch_dims", 0);
    int64_t depth = at->rank > 0 ? at->dim[at->rank - 1] : 0;
    hth_shape s = {0};
    if (depth < 1 || batch < 0 || batch >= at->rank || batch > x->rank || depth > x->rank - batch) {
        return hth_infer_disagree(infer, "data", 0, "indices", 1);
    }
    for (int i = 0; i < at->rank - 1; i++) {
        HTH_TRY(hth_infer_push(infer, &s, at->dim[i]));
    }
    for (int i = (int)(batch + depth); i < x->rank; i++) {
        HTH_TRY(hth_infer_push(infer, &s, x->dim[i]));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_scatter_elements(hth_infer *infer)
{
    int axis;
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", 0),
                           hth_infer_shape(infer, 0)->rank, &axis));
    HTH_TRY(hth_infer_same_dtype(infer, 0, 2));
    if (hth_infer_shape(infer, 1)->rank != hth_infer_shape(infer, 0)->rank) {
        return hth_infer_disagree(infer, "data", 0, "indices", 1);
    }
    if (!hth_shape_equal(hth_infer_shape(infer, 1), hth_infer_shape(infer, 2))) {
        return hth_infer_disagree(infer, "indices", 1, "updates", 2);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), hth_infer_shape(infer, 0));
}

hth_err hth_infer_scatter_nd(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0), *at = hth_infer_shape(infer, 1);
    int64_t depth = at->rank > 0 ? at->dim[at->rank - 1] : -1;
    hth_shape s = {0};
    HTH_TRY(hth_infer_same_dtype(infer, 0, 2));
    if (depth < 0 || depth > x->rank) {
        return hth_infer_disagree(infer, "data", 0, "indices", 1);
    }
    for (int i = 0; i < at->rank - 1; i++) {
        HTH_TRY(hth_infer_push(infer, &s, at->dim[i]));
    }
    for (int i = (int)depth; i < x->rank; i++) {
        HTH_TRY(hth_infer_push(infer, &s, x->dim[i]));
    }
    if (!hth_shape_equal(&s, hth_infer_shape(infer, 2))) {
        return hth_infer_disagree(infer, "indices", 1, "updates", 2);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), x);
}

hth_err hth_infer_compress(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    bool flat = hth_node_attr(infer->n, "axis") == NULL;
    hth_shape s = flat ? (hth_shape){1, {hth_shape_elements(x)}} : *x;
    hth_infer_content v;
    int64_t taken = 0;
    int axis = 0;
    if (!flat) {
        HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", 0), x->rank, &axis));
    }
    HTH_TRY(hth_infer_open(infer, 1, &v));
    for (int64_t i = 0; i < v.n; i++) {
        taken += hth_infer_int_at(&v, i) != 0;
    }
    bool longer = v.n > s.dim[axis];
    hth_infer_close(&v);
    if (longer) {
        return hth_infer_disagree(infer, "input", 0, "condition", 1);
    }
    s.dim[axis] = taken;
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

static hth_err need_contents(hth_infer *infer)
{
    for (int i = 0; i < infer->n_in; i++) {
        if (hth_infer_has(infer, i) && infer->g->values[infer->n->inputs[i]].constant == NULL) {
            infer->wait = infer->n->inputs[i];
            return HTH_EBUSY;
        }
    }
    return HTH_OK;
}

hth_err hth_infer_non_zero(hth_infer *infer)
{
    HTH_TRY(need_contents(infer));
    hth_shape s = {2, {hth_infer_shape(infer, 0)->rank, HTH_DIM_UNKNOWN}};
    return hth_infer_out(infer, 0, HTH_DT_I64, &s);
}

hth_err hth_infer_nms(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 3, 3));
    HTH_TRY(hth_infer_rank(infer, 1, 3, 3));
    const hth_shape *boxes = hth_infer_shape(infer, 0), *scores = hth_infer_shape(infer, 1);
    if (boxes->dim[2] != 4 || boxes->dim[0] != scores->dim[0] || boxes->dim[1] != scores->dim[2]) {
        return hth_infer_disagree(infer, "boxes", 0, "scores", 1);
    }
    HTH_TRY(need_contents(infer));
    hth_shape s = {2, {HTH_DIM_UNKNOWN, 3}};
    return hth_infer_out(infer, 0, HTH_DT_I64, &s);
}

hth_err hth_infer_one_hot(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    double depth;
    int axis, count;
    hth_shape s = {0};
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", -1), x->rank + 1, &axis));
    HTH_TRY(hth_infer_reals(infer, 1, &depth, 1, &count));
    if (count != 1 || !(depth >= 1 && depth < 0x1p53)) {
        return hth_infer_fail(infer, HTH_EINVAL, "depth is not a positive number");
    }
    if (hth_shape_elements(hth_infer_shape(infer, 2)) != 2) {
        return hth_infer_fail(infer, HTH_EINVAL, "values must be [off, on]");
    }
    for (int i = 0; i <= x->rank; i++) {
        int64_t dim = i == axis ? (int64_t)depth : x->dim[i - (i > axis)];
        HTH_TRY(hth_infer_push(infer, &s, dim));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 2), &s);
}

hth_err hth_infer_top_k(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0);
    int64_t k;
    int axis, count;
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", -1), s.rank, &axis));
    HTH_TRY(hth_infer_ints(infer, 1, &k, 1, &count));
    if (count != 1 || k < 0 || k > s.dim[axis]) {
        return hth_infer_fail(infer, HTH_EINVAL, "k is %lld of %lld elements",
                              count == 1 ? (long long)k : -1, (long long)s.dim[axis]);
    }
    s.dim[axis] = k;
    HTH_TRY(hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s));
    return hth_infer_out(infer, 1, HTH_DT_I64, &s);
}

hth_err hth_infer_eye_like(hth_infer *infer)
{
    HTH_TRY(hth_infer_rank(infer, 0, 2, 2));
    hth_dtype dt = (hth_dtype)hth_node_int(infer->n, "dtype", hth_infer_dtype(infer, 0));
    return hth_infer_out(infer, 0, dt, hth_infer_shape(infer, 0));
}

hth_err hth_infer_constant(hth_infer *infer)
{
    static const struct {
        const char *name;
        hth_attr_type type;
        hth_dtype dtype;
        int rank;
    } forms[] = {
        {"value_float", HTH_ATTR_FLOAT, HTH_DT_F32, 0},
        {"value_floats", HTH_ATTR_FLOATS, HTH_DT_F32, 1},
        {"value_int", HTH_ATTR_INT, HTH_DT_I64, 0},
        {"value_ints", HTH_ATTR_INTS, HTH_DT_I64, 1},
    };
    const hth_attr *a = hth_node_attr(infer->n, "value");
    if (a != NULL && a->type == HTH_ATTR_TENSOR) {
        return hth_infer_out(infer, 0, a->u.tensor->dtype, &a->u.tensor->shape);
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        a = hth_node_attr(infer->n, forms[i].name);
        if (a != NULL && a->type == forms[i].type) {
            hth_shape s = {forms[i].rank, {a->n}};
            return hth_infer_out(infer, 0, forms[i].dtype, &s);
        }
    }
    return hth_infer_fail(infer, HTH_ENOTSUP, "no numeric value");
}

hth_err hth_infer_constant_of_shape(hth_infer *infer)
{
    const hth_attr *a = hth_node_attr(infer->n, "value");
    hth_shape s;
    HTH_TRY(hth_infer_ints(infer, 0, s.dim, HTH_MAX_RANK, &s.rank));
    for (int i = 0; i < s.rank; i++) {
        if (s.dim[i] < 0) {
            return hth_infer_fail(infer, HTH_EINVAL, "element %d of the shape is %lld", i,
                                  (long long)s.dim[i]);
        }
    }
    bool given = a != NULL && a->type == HTH_ATTR_TENSOR;
    return hth_infer_out(infer, 0, given ? a->u.tensor->dtype : HTH_DT_F32, &s);
}

// start, limit, delta of Range: the difference is taken in the inputs' type, the quotient in
// double.
static double range_length(hth_dtype dt, const double v[3])
{
    double span = dt == HTH_DT_F32 ? (double)((float)v[1] - (float)v[0]) : v[1] - v[0];
    return ceil(span / v[2]);
}

hth_err hth_infer_range(hth_infer *infer)
{
    double v[3];
    int count;
    for (int i = 0; i < 3; i++) {
        HTH_TRY(hth_infer_same_dtype(infer, 0, i));
        HTH_TRY(hth_infer_reals(infer, i, &v[i], 1, &count));
        if (count != 1) {
            return hth_infer_fail(infer, HTH_EINVAL, "input %d is empty", i);
        }
    }
    double n = range_length(hth_infer_dtype(infer, 0), v);
    if (v[2] == 0 || isnan(n)) {
        return hth_infer_fail(infer, HTH_EINVAL, "from %g to %g by %g", v[0], v[1], v[2]);
    }
    if (n > 0x1p53) {
        return hth_infer_overflow(infer);
    }
    hth_shape s = {1, {n > 0 ? (int64_t)n : 0}};
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

void hth_infer_shape_range(const hth_node *node, int rank, int *from, int *to)
{
    int64_t start = hth_node_int(node, "start", 0), end = hth_node_int(node, "end", rank);
    start += start < 0 ? rank : 0;
    end += end < 0 ? rank : 0;
    *from = (int)hth_clamp(start, 0, rank);
    *to = (int)hth_clamp(end, *from, rank);
}

hth_err hth_infer_shape_of(hth_infer *infer)
{
    int from, to;
    hth_infer_shape_range(infer->n, hth_infer_shape(infer, 0)->rank, &from, &to);
    return hth_infer_out(infer, 0, HTH_DT_I64, &(hth_shape){1, {to - from}});
}

hth_err hth_infer_size(hth_infer *infer)
{
    return hth_infer_out(infer, 0, HTH_DT_I64, &(hth_shape){.rank = 0});
}
