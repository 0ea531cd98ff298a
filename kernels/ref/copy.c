// SPDX-License-Identifier: Apache-2.0
// kernels/ref/copy.c - operators that move elements by a rule that strides can say: Transpose,
// Slice, Concat, Tile ...
//
// Each describes its result as one strided copy (ref_copy, loop.c) per piece, which turns dense
// runs into memcpy. Dtypes do not matter, only the size of an element.
#include "kernels/ref/ref.h"

#include "base/compare.h"

static hth_err copy_disagree(void)
{
    return hth_fail(HTH_EINVAL, "the shape of the output does not agree with the inputs");
}

REF_KERNEL(ref_reshape)
{
    if (ref_count(&in[0]) != ref_count(&out[0]) || in[0].dtype != out[0].dtype) {
        return copy_disagree();
    }
    if (out[0].data != in[0].data) {
        memmove(out[0].data, in[0].data, (size_t)ref_count(&in[0]) * hth_dtype_bytes(in[0].dtype));
    }
    return HTH_OK;
}

hth_err ref_broadcast_copy(const hth_tensor *x, hth_tensor *y)
{
    int64_t from[HTH_MAX_RANK], to[HTH_MAX_RANK], step[HTH_MAX_RANK] = {0};
    HTH_TRY(ref_can_broadcast(&x->shape, &y->shape));
    if (x->dtype != y->dtype) {
        return copy_disagree();
    }
    if (x->data == y->data) {
        return ref_count(x) == ref_count(y) ? HTH_OK : copy_disagree();
    }
    ref_steps(&x->shape, from);
    ref_steps(&y->shape, to);
    int lead = y->shape.rank - x->shape.rank;
    for (int d = 0; d < x->shape.rank; d++) {
        step[lead + d] = x->shape.dim[d] == 1 ? 0 : from[d];
    }
    ref_copy(y->shape.rank, y->shape.dim, y->data, to, x->data, step, hth_dtype_bytes(x->dtype));
    return HTH_OK;
}

REF_KERNEL(ref_broadcast)
{
    return ref_broadcast_copy(&in[0], &out[0]);
}

REF_KERNEL(ref_transpose)
{
    const hth_shape *s = &in[0].shape, *r = &out[0].shape;
    int64_t perm[HTH_MAX_RANK], from[HTH_MAX_RANK], to[HTH_MAX_RANK], step[HTH_MAX_RANK];
    bool used[HTH_MAX_RANK] = {false};
    int count = hth_node_ints(n, "perm", perm, HTH_MAX_RANK);
    if ((count >= 0 && count != s->rank) || r->rank != s->rank || in[0].dtype != out[0].dtype) {
        return copy_disagree();
    }
    ref_steps(s, from);
    ref_steps(r, to);
    for (int d = 0; d < s->rank; d++) {
        int p = ref_axis(count < 0 ? s->rank - 1 - d : perm[d], s->rank);
        if (p < 0 || used[p] || r->dim[d] != s->dim[p]) {
            return copy_disagree();
        }
        used[p] = true;
        step[d] = from[p];
    }
    ref_copy(r->rank, r->dim, out[0].data, to, in[0].data, step, hth_dtype_bytes(in[0].dtype));
    return HTH_OK;
}

// copy_chunk moves between `whole` and `piece`, which lies in it from position `at` of `axis` on.
static void copy_chunk(const hth_tensor *whole, const hth_tensor *chunk, int axis, int64_t at,
                       bool into_whole)
{
    int64_t outer, along, inner, all, skip;
    ref_around(&chunk->shape, axis, &outer, &along, &inner);
    ref_around(&whole->shape, axis, &outer, &all, &skip);
    size_t bytes = hth_dtype_bytes(whole->dtype);
    int64_t dim[2] = {outer, along * inner}, wide[2] = {all * inner, 1},
            dense[2] = {along * inner, 1};
    char *base = (char *)whole->data + (size_t)(at * inner) * bytes;
    if (into_whole) {
        ref_copy(2, dim, base, wide, chunk->data, dense, bytes);
    } else {
        ref_copy(2, dim, chunk->data, dense, base, wide, bytes);
    }
}

// copy_chunks checks that the pieces make up `whole` along the node's axis, then moves them.
static hth_err copy_chunks(const hth_node *node, const hth_tensor *whole, const hth_tensor *chunks,
                           int count, const int *present, bool into_whole)
{
    int axis = ref_axis(hth_node_int(node, "axis", 0), whole->shape.rank);
    int64_t at = 0;
    for (int pass = 0; pass < 2 && axis >= 0; pass++) {
        at = 0;
        for (int i = 0; i < count; i++) {
            const hth_tensor *p = &chunks[i];
            hth_shape same = p->shape;
            if (present[i] < 0 || p->shape.rank != whole->shape.rank) {
                return copy_disagree();
            }
            same.dim[axis] = whole->shape.dim[axis];
            if (!hth_shape_equal(&same, &whole->shape) || p->dtype != whole->dtype) {
                return copy_disagree();
            }
            if (pass == 1) {
                copy_chunk(whole, p, axis, at, into_whole);
            }
            at += p->shape.dim[axis];
        }
        if (at != whole->shape.dim[axis]) {
            return copy_disagree();
        }
    }
    return axis < 0 ? hth_fail(HTH_EINVAL, "there is no axis %lld",
                               (long long)hth_node_int(node, "axis", 0))
                    : HTH_OK;
}

REF_KERNEL(ref_concat)
{
    return copy_chunks(n, &out[0], in, ref_n_inputs(n), n->inputs, true);
}

REF_KERNEL(ref_split)
{
    return copy_chunks(n, &in[0], out, n->n_outputs, n->outputs, false);
}

// copy_slice_axis turns start, end, step of one axis of `dim` elements into the first position and
// the count; the step is clamped to +-dim, beyond which it selects one element anyway.
static int64_t copy_slice_axis(int64_t dim, int64_t *start, int64_t end, int64_t *step)
{
    bool forward = *step > 0;
    int64_t low = forward ? 0 : -1, high = low + dim;
    if (dim == 0) {
        return 0;
    }
    *start += *start < 0 ? dim : 0;
    end += end < 0 ? dim : 0;
    *start = hth_clamp(*start, 0, high);
    end = hth_clamp(end, low, high);
    int64_t distance = forward ? end - *start : *start - end;
    *step = hth_clamp(*step, -dim, dim);
    int64_t stride = forward ? *step : -*step;
    return distance <= 0 ? 0 : (distance - 1) / stride + 1;
}

REF_KERNEL(ref_slice)
{
    const hth_shape *s = &in[0].shape;
    const hth_tensor *axes = ref_in(n, in, 3), *steps = ref_in(n, in, 4);
    int64_t from[HTH_MAX_RANK], to[HTH_MAX_RANK], base = 0;
    hth_shape r = *s;
    int64_t count = ref_count(&in[1]);
    if (ref_count(&in[2]) != count || (axes && ref_count(axes) != count) ||
        (steps && ref_count(steps) != count)) {
        return hth_fail(HTH_EINVAL, "starts, ends, axes and steps differ in length");
    }
    ref_steps(s, from);
    for (int64_t i = 0; i < count; i++) {
        int a = ref_axis(axes ? ref_get_i64(axes->dtype, axes->data, i) : i, s->rank);
        int64_t start = ref_get_i64(in[1].dtype, in[1].data, i),
                end = ref_get_i64(in[2].dtype, in[2].data, i);
        int64_t step = steps ? ref_get_i64(steps->dtype, steps->data, i) : 1;
        if (a < 0 || step == 0) {
            return hth_fail(HTH_EINVAL, "an axis is out of range, or a step is 0");
        }
        r.dim[a] = copy_slice_axis(s->dim[a], &start, end, &step);
        base += r.dim[a] > 0 ? start * from[a] : 0;
        from[a] *= step;
    }
    if (!hth_shape_equal(&r, &out[0].shape) || in[0].dtype != out[0].dtype) {
        return copy_disagree();
    }
    size_t bytes = hth_dtype_bytes(in[0].dtype);
    ref_steps(&r, to);
    ref_copy(r.rank, r.dim, out[0].data, to, (const char *)in[0].data + base * (int64_t)bytes, from,
             bytes);
    return HTH_OK;
}

REF_KERNEL(ref_tile)
{
    const hth_shape *s = &in[0].shape, *r = &out[0].shape;
    int64_t from[HTH_MAX_RANK], to[HTH_MAX_RANK], dim[REF_MAX_LOOP], src[REF_MAX_LOOP],
        dst[REF_MAX_LOOP];
    if (ref_count(&in[1]) != s->rank || r->rank != s->rank || in[0].dtype != out[0].dtype) {
        return copy_disagree();
    }
    ref_steps(s, from);
    ref_steps(r, to);
    for (int d = 0; d < s->rank; d++) {
        int64_t times = ref_get_i64(in[1].dtype, in[1].data, d);
        if (s->dim[d] == 0 ? r->dim[d] != 0
                           : r->dim[d] % s->dim[d] != 0 || r->dim[d] / s->dim[d] != times) {
            return copy_disagree();
        }
        dim[2 * d] = times;
        dst[2 * d] = to[d] * s->dim[d];
        src[2 * d] = 0;
        dim[2 * d + 1] = s->dim[d];
        dst[2 * d + 1] = to[d];
        src[2 * d + 1] = from[d];
    }
    ref_copy(2 * s->rank, dim, out[0].data, dst, in[0].data, src, hth_dtype_bytes(in[0].dtype));
    return HTH_OK;
}
