// SPDX-License-Identifier: Apache-2.0
// graph/infer_shape.c - operators that regroup, cut, join, repeat or permute dimensions.
#include "graph/infer.h"

#include "base/compare.h"

hth_err hth_infer_reshape(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    int64_t want[HTH_MAX_RANK], known = 1, total = hth_shape_elements(x);
    bool allowzero = hth_node_int(infer->n, "allowzero", 0) != 0;
    int count, open = -1;
    char text[128], result[128];
    HTH_TRY(hth_infer_ints(infer, 1, want, HTH_MAX_RANK, &count));
    hth_shape s = {.rank = count};
    for (int i = 0; i < count; i++) {
        s.dim[i] = want[i] == 0 && !allowzero && i < x->rank ? x->dim[i] : want[i];
        if (want[i] == -1 && open < 0) {
            open = i;
        } else if (s.dim[i] < 0 || (want[i] == 0 && !allowzero && i >= x->rank)) {
            return hth_infer_fail(infer, HTH_EINVAL, "element %d of the new shape is %lld", i,
                                  (long long)want[i]);
        } else if (hth_dim_mul(known, s.dim[i], &known)) {
            return hth_infer_overflow(infer);
        }
    }
    if (open >= 0) {
        s.dim[open] = known > 0 && total % known == 0 ? total / known : 0;
    }
    if (hth_shape_elements(&s) != total) {
        if (open >= 0) {
            s.dim[open] = HTH_DIM_UNKNOWN;
        }
        return hth_infer_fail(infer, HTH_EINVAL, "%s cannot become %s",
                              hth_shape_str(x, text, sizeof text),
                              hth_shape_str(&s, result, sizeof result));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_flatten(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    int64_t axis = hth_node_int(infer->n, "axis", 1);
    hth_shape s = {.rank = 2, .dim = {1, 1}};
    if (axis < -x->rank || axis > x->rank) {
        return hth_infer_fail(infer, HTH_EINVAL, "axis %lld is outside of %d dimensions",
                              (long long)axis, x->rank);
    }
    axis += axis < 0 ? x->rank : 0;
    for (int i = 0; i < x->rank; i++) {
        int64_t *side = &s.dim[i < axis ? 0 : 1];
        if (hth_dim_mul(*side, x->dim[i], side)) {
            return hth_infer_overflow(infer);
        }
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_squeeze(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    int axes[HTH_MAX_RANK], count;
    unsigned mask = 0;
    hth_shape s = {0};
    char text[128];
    HTH_TRY(hth_infer_axes(infer, 1, x->rank, axes, &count));
    for (int i = 0; i < count; i++) {
        mask |= 1U << axes[i];
        if (x->dim[axes[i]] != 1) {
            return hth_infer_fail(infer, HTH_EINVAL, "dimension %d of %s is not 1", axes[i],
                                  hth_shape_str(x, text, sizeof text));
        }
    }
    for (int i = 0; i < x->rank; i++) {
        if (count < 0 ? x->dim[i] != 1 : !(mask & 1U << i)) {
            HTH_TRY(hth_infer_push(infer, &s, x->dim[i]));
        }
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_unsqueeze(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    int axes[HTH_MAX_RANK], count, next = 0;
    unsigned mask = 0;
    const hth_shape *list = hth_infer_shape(infer, 1);
    int64_t more = hth_shape_elements(list);
    if (more < 0 || more > HTH_MAX_RANK || x->rank + more > HTH_MAX_RANK) {
        return hth_infer_fail(infer, HTH_ENOTSUP, "the result has more than %d dimensions",
                              HTH_MAX_RANK);
    }
    hth_shape s = {.rank = x->rank + (int)more};
    HTH_TRY(hth_infer_axes(infer, 1, s.rank, axes, &count));
    for (int i = 0; i < count; i++) {
        mask |= 1U << axes[i];
    }
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = mask & 1U << i ? 1 : x->dim[next++];
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_transpose(hth_infer *infer)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    int64_t perm[HTH_MAX_RANK];
    int count;
    unsigned mask = 0;
    hth_shape s = {.rank = x->rank};
    HTH_TRY(hth_infer_attr(infer, "perm", perm, HTH_MAX_RANK, &count));
    for (int i = 0; i < x->rank; i++) {
        int axis = x->rank - 1 - i;
        if (count >= 0) {
            if (count != x->rank) {
                return hth_infer_fail(infer, HTH_EINVAL, "perm has %d elements for %d dimensions",
                                      count, x->rank);
            }
            HTH_TRY(hth_infer_axis(infer, perm[i], x->rank, &axis));
        }
        if (mask & 1U << axis) {
            return hth_infer_fail(infer, HTH_EINVAL, "axis %d stands twice in perm", axis);
        }
        mask |= 1U << axis;
        s.dim[i] = x->dim[axis];
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_expand(hth_infer *infer)
{
    int count;
    char sa[128], sb[128];
    hth_shape want, s;
    HTH_TRY(hth_infer_ints(infer, 1, want.dim, HTH_MAX_RANK, &count));
    want.rank = count;
    for (int i = 0; i < count; i++) {
        if (want.dim[i] < 0) {
            return hth_infer_fail(infer, HTH_EINVAL, "element %d of the new shape is %lld", i,
                                  (long long)want.dim[i]);
        }
    }
    if (hth_shape_broadcast(hth_infer_shape(infer, 0), &want, &s) != HTH_OK) {
        return hth_infer_fail(infer, HTH_EINVAL, "%s cannot be expanded to %s",
                              hth_shape_str(hth_infer_shape(infer, 0), sa, sizeof sa),
                              hth_shape_str(&want, sb, sizeof sb));
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_tile(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0);
    int64_t times[HTH_MAX_RANK];
    int count;
    HTH_TRY(hth_infer_ints(infer, 1, times, HTH_MAX_RANK, &count));
    if (count != s.rank) {
        return hth_infer_fail(infer, HTH_EINVAL, "%d repeats for %d dimensions", count, s.rank);
    }
    for (int i = 0; i < count; i++) {
        if (times[i] < 0) {
            return hth_infer_fail(infer, HTH_EINVAL, "repeat %lld", (long long)times[i]);
        }
        if (hth_dim_mul(s.dim[i], times[i], &s.dim[i])) {
            return hth_infer_overflow(infer);
        }
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_pad(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0);
    int64_t pads[2 * HTH_MAX_RANK];
    int axes[HTH_MAX_RANK], n_axes, count;
    HTH_TRY(hth_infer_axes(infer, 3, s.rank, axes, &n_axes));
    for (int i = 0; n_axes < 0 && i < s.rank; i++) {
        axes[i] = i;
    }
    n_axes = n_axes < 0 ? s.rank : n_axes;
    HTH_TRY(hth_infer_ints(infer, 1, pads, 2 * HTH_MAX_RANK, &count));
    if (count != 2 * n_axes) {
        return hth_infer_fail(infer, HTH_EINVAL, "%d pads for %d axes", count, n_axes);
    }
    for (int i = 0; i < n_axes; i++) {
        int64_t *dim = &s.dim[axes[i]];
        if (hth_dim_add(*dim, pads[i], dim) || hth_dim_add(*dim, pads[n_axes + i], dim)) {
            return hth_infer_overflow(infer);
        }
        if (*dim < 0) {
            return hth_infer_fail(infer, HTH_EINVAL, "axis %d would get the length %lld", axes[i],
                                  (long long)*dim);
        }
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

// The number of elements that start:end:step takes from `dim`.
static int64_t slice_length(int64_t dim, int64_t start, int64_t end, int64_t step)
{
    int64_t low = step > 0 ? 0 : -1, high = low + dim;
    if (dim == 0) {
        return 0;
    }
    start += start < 0 ? dim : 0;
    end += end < 0 ? dim : 0;
    start = hth_clamp(start, 0, high);
    end = hth_clamp(end, low, high);
    if (step > 0) {
        return end > start ? (end - start - 1) / step + 1 : 0;
    }
    step = step == INT64_MIN ? INT64_MAX : -step;
    return start > end ? (start - end - 1) / step + 1 : 0;
}

hth_err hth_infer_slice(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0);
    int64_t start[HTH_MAX_RANK], end[HTH_MAX_RANK], step[HTH_MAX_RANK];
    int axes[HTH_MAX_RANK], n, n_end, n_axes, n_step;
    HTH_TRY(hth_infer_ints(infer, 1, start, HTH_MAX_RANK, &n));
    HTH_TRY(hth_infer_ints(infer, 2, end, HTH_MAX_RANK, &n_end));
    HTH_TRY(hth_infer_axes(infer, 3, s.rank, axes, &n_axes));
    n_step = -1;
    if (hth_infer_has(infer, 4)) {
        HTH_TRY(hth_infer_ints(infer, 4, step, HTH_MAX_RANK, &n_step));
    }
    if (n_end != n || (n_axes >= 0 && n_axes != n) || (n_step >= 0 && n_step != n) || n > s.rank) {
        return hth_infer_fail(infer, HTH_EINVAL,
                              "%d starts, %d ends, %d axes and %d steps for %d dimensions", n,
                              n_end, n_axes, n_step, s.rank);
    }
    for (int i = 0; i < n; i++) {
        int64_t by = n_step < 0 ? 1 : step[i];
        int64_t *dim = &s.dim[n_axes < 0 ? i : axes[i]];
        if (by == 0) {
            return hth_infer_fail(infer, HTH_EINVAL, "a step is 0");
        }
        *dim = slice_length(*dim, start[i], end[i], by);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_concat(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0);
    int axis;
    if (hth_node_attr(infer->n, "axis") == NULL) {
        return hth_infer_fail(infer, HTH_EINVAL, "attribute 'axis' is missing");
    }
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", 0), s.rank, &axis));
    for (int i = 1; i < infer->n_in; i++) {
        if (!hth_infer_has(infer, i)) {
            return hth_infer_fail(infer, HTH_EINVAL, "input %d is missing", i);
        }
        const hth_shape *x = hth_infer_shape(infer, i);
        HTH_TRY(hth_infer_same_dtype(infer, 0, i));
        for (int k = 0; k < s.rank; k++) {
            if (x->rank != s.rank || (k != axis && x->dim[k] != s.dim[k])) {
                return hth_infer_disagree(infer, "the first input", 0, "a later one", i);
            }
        }
        if (hth_dim_add(s.dim[axis], x->dim[axis], &s.dim[axis])) {
            return hth_infer_overflow(infer);
        }
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

static hth_err split_by_sizes(hth_infer *infer, hth_shape *shape, int axis)
{
    hth_infer_content v;
    hth_err err = HTH_OK;
    int64_t left = shape->dim[axis];
    HTH_TRY(hth_infer_open(infer, 1, &v));
    for (int i = 0; err == HTH_OK && i < v.n; i++) {
        shape->dim[axis] = hth_infer_int_at(&v, i);
        if (shape->dim[axis] < 0 || shape->dim[axis] > left) {
            left = -1;
            break;
        }
        left -= shape->dim[axis];
        err = hth_infer_out(infer, i, hth_infer_dtype(infer, 0), shape);
    }
    if (err == HTH_OK && (left != 0 || v.n != infer->n->n_outputs)) {
        err = hth_infer_fail(infer, HTH_EINVAL, "the sizes do not divide %lld elements in %d parts",
                             (long long)hth_infer_shape(infer, 0)->dim[axis], infer->n->n_outputs);
    }
    hth_infer_close(&v);
    return err;
}

hth_err hth_infer_split(hth_infer *infer)
{
    hth_shape s = *hth_infer_shape(infer, 0);
    int axis, n = infer->n->n_outputs;
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", 0), s.rank, &axis));
    if (hth_infer_has(infer, 1)) {
        return split_by_sizes(infer, &s, axis);
    }
    // Equal parts, the last one smaller when they do not divide the dimension.
    int64_t dim = s.dim[axis], part = dim / n + (dim % n != 0);
    if (hth_node_int(infer->n, "num_outputs", n) != n || dim < part * (n - 1)) {
        return hth_infer_fail(infer, HTH_EINVAL, "%lld elements cannot be split in %d parts",
                              (long long)dim, n);
    }
    for (int i = 0; i < n; i++) {
        s.dim[axis] = i < n - 1 ? part : dim - part * (n - 1);
        HTH_TRY(hth_infer_out(infer, i, hth_infer_dtype(infer, 0), &s));
    }
    return HTH_OK;
}

static hth_err block_size(hth_infer *infer, int64_t *b, int64_t *square)
{
    HTH_TRY(hth_infer_rank(infer, 0, 4, 4));
    *b = hth_node_int(infer->n, "blocksize", 0);
    if (*b < 1 || hth_dim_mul(*b, *b, square)) {
        return hth_infer_fail(infer, HTH_EINVAL, "blocksize is %lld", (long long)*b);
    }
    return HTH_OK;
}

hth_err hth_infer_depth_to_space(hth_infer *infer)
{
    int64_t b = 1, square = 1;
    HTH_TRY(block_size(infer, &b, &square));
    const hth_shape *x = hth_infer_shape(infer, 0);
    hth_shape s = {4, {x->dim[0], x->dim[1] / square}};
    if (x->dim[1] % square != 0) {
        return hth_infer_fail(infer, HTH_EINVAL,
                              "%lld channels are no multiple of blocksize %lld squared",
                              (long long)x->dim[1], (long long)b);
    }
    if (hth_dim_mul(x->dim[2], b, &s.dim[2]) || hth_dim_mul(x->dim[3], b, &s.dim[3])) {
        return hth_infer_overflow(infer);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_space_to_depth(hth_infer *infer)
{
    int64_t b = 1, square = 1;
    HTH_TRY(block_size(infer, &b, &square));
    const hth_shape *x = hth_infer_shape(infer, 0);
    hth_shape s = {4, {x->dim[0], 0, x->dim[2] / b, x->dim[3] / b}};
    if (x->dim[2] % b != 0 || x->dim[3] % b != 0) {
        return hth_infer_fail(infer, HTH_EINVAL, "%lld x %lld is no multiple of blocksize %lld",
                              (long long)x->dim[2], (long long)x->dim[3], (long long)b);
    }
    if (hth_dim_mul(x->dim[1], square, &s.dim[1])) {
        return hth_infer_overflow(infer);
    }
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}
