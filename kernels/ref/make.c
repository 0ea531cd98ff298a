// SPDX-License-Identifier: Apache-2.0
// kernels/ref/make.c - operators that make a tensor: from a shape, from attributes, from a few
// numbers, by selection.
//
// NonZero and Compress alone decide how large their result is: called with out[0].data NULL they
// store shape and bytes, called again with memory they fill it.
#include "kernels/ref/ref.h"

#include "base/compare.h"
#include "base/pace.h"

#include <math.h>

#define MAKE_PART 65536 // elements that are made between two counts of the work (base/pace.h)

static hth_err make_disagree(void)
{
    return hth_fail(HTH_EINVAL, "the output does not agree with the inputs");
}

REF_KERNEL(ref_shape)
{
    int rank = in[0].shape.rank;
    int64_t start = hth_node_int(n, "start", 0), end = hth_node_int(n, "end", rank);
    start += start < 0 ? rank : 0;
    end += end < 0 ? rank : 0;
    start = hth_clamp(start, 0, rank);
    end = hth_clamp(end, start, rank);
    if (ref_count(&out[0]) != end - start || out[0].dtype != HTH_DT_I64) {
        return make_disagree();
    }
    if (end > start) {
        memcpy(out[0].data, in[0].shape.dim + start, (size_t)(end - start) * sizeof(int64_t));
    }
    return HTH_OK;
}

REF_KERNEL(ref_size)
{
    if (ref_count(&out[0]) != 1 || out[0].dtype != HTH_DT_I64) {
        return make_disagree();
    }
    *(int64_t *)out[0].data = ref_count(&in[0]);
    return HTH_OK;
}

// make_from_const copies a constant's content; `spread`: its single element to all of the output.
static hth_err make_from_const(hth_const *constant, hth_tensor *tensor, bool spread)
{
    const void *data;
    int64_t count = hth_shape_elements(&constant->shape);
    if (constant->dtype != tensor->dtype || (spread ? count != 1 : count != ref_count(tensor))) {
        return make_disagree();
    }
    HTH_TRY(hth_const_map(constant, &data));
    if (spread) {
        ref_fill(tensor->data, data, hth_dtype_bytes(tensor->dtype), ref_count(tensor));
    } else if (count > 0) {
        memcpy(tensor->data, data, (size_t)count * hth_dtype_bytes(tensor->dtype));
    }
    hth_const_unmap(constant);
    return HTH_OK;
}

REF_KERNEL(ref_constant)
{
    int64_t count = ref_count(&out[0]);
    for (int k = 0; k < n->n_attrs; k++) {
        const hth_attr *a = &n->attrs[k];
        bool one = a->type == HTH_ATTR_INT || a->type == HTH_ATTR_FLOAT;
        if (a->type == HTH_ATTR_TENSOR) {
            return make_from_const(a->u.tensor, &out[0], false);
        }
        if (count != (one ? 1 : a->n)) {
            return make_disagree();
        }
        for (int64_t i = 0; i < count; i++) {
            if (a->type == HTH_ATTR_INT || a->type == HTH_ATTR_INTS) {
                ref_set_i64(out[0].dtype, out[0].data, i, one ? a->u.i : a->u.ints[i]);
            } else if (a->type == HTH_ATTR_FLOAT || a->type == HTH_ATTR_FLOATS) {
                ref_set_f64(out[0].dtype, out[0].data, i, one ? a->u.f : a->u.floats[i]);
            } else {
                return ref_no_dtype(HTH_DT_STRING);
            }
        }
        return HTH_OK;
    }
    return hth_fail(HTH_EINVAL, "there is no value");
}

REF_KERNEL(ref_constant_of_shape)
{
    static const char zero[8];
    const hth_attr *value = hth_node_attr(n, "value");
    if (value != NULL && value->type == HTH_ATTR_TENSOR) {
        return make_from_const(value->u.tensor, &out[0], true);
    }
    ref_fill(out[0].data, zero, hth_dtype_bytes(out[0].dtype), ref_count(&out[0]));
    return HTH_OK;
}

REF_KERNEL(ref_range)
{
    hth_dtype dt = out[0].dtype;
    int64_t count = ref_count(&out[0]);
    for (int i = 0; i < 3; i++) {
        if (ref_count(&in[i]) != 1 || in[i].dtype != dt) {
            return make_disagree();
        }
    }
    bool integer = ref_is_int(dt);
    uint64_t start = integer ? (uint64_t)ref_get_i64(dt, in[0].data, 0) : 0;
    uint64_t delta = integer ? (uint64_t)ref_get_i64(dt, in[2].data, 0) : 0;
    double start_real = integer ? 0 : ref_get_f64(dt, in[0].data, 0);
    double delta_real = integer ? 0 : ref_get_f64(dt, in[2].data, 0);
    for (int64_t i = 0; i < count; i++) {
        if (i % MAKE_PART == 0 && hth_pace_over(MAKE_PART)) {
            break; // ref_run returns why
        }
        if (integer) {
            ref_set_i64(dt, out[0].data, i, (int64_t)(start + (uint64_t)i * delta));
        } else {
            ref_set_f64(dt, out[0].data, i, start_real + (double)i * delta_real);
        }
    }
    return HTH_OK;
}

REF_KERNEL(ref_trilu)
{
    const hth_shape *s = &in[0].shape;
    const hth_tensor *diagonal = ref_in(n, in, 1);
    bool upper = hth_node_int(n, "upper", 1) != 0;
    int64_t k =
        diagonal && ref_count(diagonal) > 0 ? ref_get_i64(diagonal->dtype, diagonal->data, 0) : 0;
    if (s->rank < 2 || !hth_shape_equal(s, &out[0].shape) || in[0].dtype != out[0].dtype) {
        return make_disagree();
    }
    int64_t rows = s->dim[s->rank - 2], cols = s->dim[s->rank - 1];
    int64_t all_rows = cols > 0 ? ref_count(&in[0]) / cols : 0;
    size_t bytes = hth_dtype_bytes(in[0].dtype);
    k = hth_clamp(k, -rows, cols);
    for (int64_t r = 0; r < all_rows; r++) {
        // Columns below `split` are under the diagonal k (upper), or kept (lower: the diagonal
        // included).
        int64_t split = r % rows + k + (upper ? 0 : 1);
        split = hth_clamp(split, 0, cols);
        char *to = (char *)out[0].data + (size_t)(r * cols) * bytes;
        const char *from = (const char *)in[0].data + (size_t)(r * cols) * bytes;
        size_t head = (size_t)split * bytes, tail = (size_t)(cols - split) * bytes;
        if (upper) {
            memmove(to + head, from + head, tail);
            memset(to, 0, head);
        } else {
            memmove(to, from, head);
            memset(to + head, 0, tail);
        }
    }
    return HTH_OK;
}

REF_KERNEL(ref_eye_like)
{
    static const char zero[8];
    const hth_shape *s = &out[0].shape;
    int64_t k = hth_node_int(n, "k", 0);
    if (s->rank != 2) {
        return make_disagree();
    }
    ref_fill(out[0].data, zero, hth_dtype_bytes(out[0].dtype), ref_count(&out[0]));
    for (int64_t r = 0; r < s->dim[0]; r++) {
        if (k >= -r && k < s->dim[1] - r) {
            ref_set_i64(out[0].dtype, out[0].data, r * s->dim[1] + r + k, 1);
        }
    }
    return HTH_OK;
}

static bool make_is_zero(const hth_tensor *tensor, int64_t i)
{
    return ref_is_int(tensor->dtype) ? ref_get_i64(tensor->dtype, tensor->data, i) == 0
                                     : ref_get_f64(tensor->dtype, tensor->data, i) == 0;
}

// make_sized stores the shape that was found, or checks it when memory is there already.
static hth_err make_sized(hth_tensor *tensor, const hth_shape *shape)
{
    if (tensor->data != NULL) {
        return hth_shape_equal(&tensor->shape, shape) ? HTH_OK : make_disagree();
    }
    tensor->shape = *shape;
    return hth_tensor_bytes(tensor->dtype, shape, HTH_LAYOUT_PLAIN, &tensor->bytes);
}

REF_KERNEL(ref_non_zero)
{
    const hth_tensor *x = &in[0];
    int64_t count = ref_count(x), found = 0, at = 0;
    int64_t *y = out[0].data;
    // ONNX's text has a scalar's result be [0, N]; that says nothing, and onnxruntime gives [1, N].
    int rank = x->shape.rank > 0 ? x->shape.rank : 1;
    for (int64_t i = 0; i < count; i++) {
        found += !make_is_zero(x, i);
    }
    hth_shape s = {.rank = 2, .dim = {rank, found}};
    HTH_TRY(make_sized(&out[0], &s));
    if (y == NULL || out[0].dtype != HTH_DT_I64) {
        return y == NULL ? HTH_OK : make_disagree();
    }
    for (int64_t i = 0; i < count; i++) {
        if (make_is_zero(x, i)) {
            continue;
        }
        int64_t rest = i;
        for (int d = x->shape.rank - 1; d >= 0; d--) {
            y[d * found + at] = rest % x->shape.dim[d];
            rest /= x->shape.dim[d];
        }
        if (x->shape.rank == 0) {
            y[at] = 0;
        }
        at++;
    }
    return HTH_OK;
}

REF_KERNEL(ref_compress)
{
    const hth_tensor *x = &in[0], *condition = &in[1];
    bool flat = hth_node_attr(n, "axis") == NULL;
    int axis = flat ? 0 : ref_axis(hth_node_int(n, "axis", 0), x->shape.rank);
    int64_t outer = 1, along = ref_count(x), inner = 1, found = 0, at = 0;
    hth_shape s = {.rank = 1};
    if (axis < 0 || condition->dtype != HTH_DT_BOOL || out[0].dtype != x->dtype) {
        return make_disagree();
    }
    if (!flat) {
        s = x->shape;
        ref_around(&x->shape, axis, &outer, &along, &inner);
    }
    int64_t count = ref_count(condition) < along ? ref_count(condition) : along;
    for (int64_t i = 0; i < count; i++) {
        found += ref_true(condition->data, i);
    }
    s.dim[axis] = found;
    HTH_TRY(make_sized(&out[0], &s));
    size_t row = (size_t)inner * hth_dtype_bytes(x->dtype);
    for (int64_t i = 0; i < count && out[0].data != NULL; i++) {
        if (!ref_true(condition->data, i)) {
            continue;
        }
        for (int64_t o = 0; o < outer; o++) {
            ref_move((char *)out[0].data + (size_t)(o * found + at) * row,
                     (const char *)x->data + (size_t)(o * along + i) * row, row);
        }
        at++;
    }
    return HTH_OK;
}
