// SPDX-License-Identifier: Apache-2.0
// graph/infer_elementwise.c - outputs as large as the input, or as the broadcast of the inputs.
#include "graph/infer.h"

hth_err hth_infer_same(hth_infer *infer)
{
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), hth_infer_shape(infer, 0));
}

hth_err hth_infer_same_axis(hth_infer *infer)
{
    const hth_shape *s = hth_infer_shape(infer, 0);
    int axis, rank = s->rank > 0 ? s->rank : 1;
    bool flatten = hth_node_int(infer->n, "flatten", 0) != 0;
    int64_t given = hth_node_int(infer->n, "axis", flatten ? 1 : -1);
    if (!(flatten && given == rank)) { // flattening at the end is valid: rows of one element
        HTH_TRY(hth_infer_axis(infer, given, rank, &axis));
    }
    return hth_infer_same(infer);
}

hth_err hth_infer_clip(hth_infer *infer)
{
    for (int i = 1; i < 3; i++) {
        if (!hth_infer_has(infer, i)) {
            continue;
        }
        HTH_TRY(hth_infer_same_dtype(infer, 0, i));
        if (hth_shape_elements(hth_infer_shape(infer, i)) != 1) {
            return hth_infer_fail(infer, HTH_EINVAL, "bound %d is not a scalar", i);
        }
    }
    return hth_infer_same(infer);
}

hth_err hth_infer_predicate(hth_infer *infer)
{
    return hth_infer_out(infer, 0, HTH_DT_BOOL, hth_infer_shape(infer, 0));
}

static hth_err broadcast_into(hth_infer *infer, hth_shape *shape, int i)
{
    char sa[128], sb[128];
    hth_shape joined;
    if (hth_shape_broadcast(shape, hth_infer_shape(infer, i), &joined) != HTH_OK) {
        return hth_infer_fail(infer, HTH_EINVAL, "%s and %s do not broadcast",
                              hth_shape_str(shape, sa, sizeof sa),
                              hth_shape_str(hth_infer_shape(infer, i), sb, sizeof sb));
    }
    *shape = joined;
    return HTH_OK;
}

static hth_err broadcast_from(hth_infer *infer, int first, bool one_dtype, hth_shape *shape)
{
    *shape = *hth_infer_shape(infer, first);
    for (int i = first + 1; i < infer->n_in; i++) {
        if (!hth_infer_has(infer, i)) {
            return hth_infer_fail(infer, HTH_EINVAL, "input %d is missing", i);
        }
        if (one_dtype) {
            HTH_TRY(hth_infer_same_dtype(infer, first, i));
        }
        HTH_TRY(broadcast_into(infer, shape, i));
    }
    return HTH_OK;
}

hth_err hth_infer_binary(hth_infer *infer)
{
    hth_shape s;
    HTH_TRY(broadcast_from(infer, 0, true, &s));
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_compare(hth_infer *infer)
{
    hth_shape s;
    HTH_TRY(broadcast_from(infer, 0, true, &s));
    return hth_infer_out(infer, 0, HTH_DT_BOOL, &s);
}

hth_err hth_infer_pow(hth_infer *infer)
{
    hth_shape s;
    HTH_TRY(broadcast_from(infer, 0, false, &s));
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 0), &s);
}

hth_err hth_infer_prelu(hth_infer *infer)
{
    hth_shape s;
    HTH_TRY(broadcast_from(infer, 0, true, &s));
    if (!hth_shape_equal(&s, hth_infer_shape(infer, 0))) {
        return hth_infer_disagree(infer, "X", 0, "slope", 1);
    }
    return hth_infer_same(infer);
}

hth_err hth_infer_where(hth_infer *infer)
{
    hth_shape s;
    if (hth_infer_dtype(infer, 0) != HTH_DT_BOOL) {
        return hth_infer_fail(infer, HTH_EINVAL, "the condition is %s, expected BOOL",
                              hth_dtype_name(hth_infer_dtype(infer, 0)));
    }
    HTH_TRY(broadcast_from(infer, 1, true, &s));
    HTH_TRY(broadcast_into(infer, &s, 0));
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 1), &s);
}

hth_err hth_infer_cast(hth_infer *infer)
{
    return hth_infer_out(infer, 0, (hth_dtype)hth_node_int(infer->n, "to", 0),
                         hth_infer_shape(infer, 0));
}

hth_err hth_infer_cast_like(hth_infer *infer)
{
    return hth_infer_out(infer, 0, hth_infer_dtype(infer, 1), hth_infer_shape(infer, 0));
}

hth_err hth_infer_dropout(hth_infer *infer)
{
    HTH_TRY(hth_infer_same(infer));
    return hth_infer_out(infer, 1, HTH_DT_BOOL, hth_infer_shape(infer, 0));
}
