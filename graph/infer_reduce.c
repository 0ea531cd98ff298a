// SPDX-License-Identifier: Apache-2.0
// graph/infer_reduce.c - reductions over axes.
#include "graph/infer.h"

static hth_err reduced(hth_infer *infer, unsigned mask, hth_dtype dt)
{
    const hth_shape *x = hth_infer_shape(infer, 0);
    bool keep = hth_node_int(infer->n, "keepdims", 1) != 0;
    hth_shape s = {0};
    for (int i = 0; i < x->rank; i++) {
        if (!(mask & 1U << i)) {
            HTH_TRY(hth_infer_push(infer, &s, x->dim[i]));
        } else if (keep) {
            HTH_TRY(hth_infer_push(infer, &s, 1));
        }
    }
    return hth_infer_out(infer, 0, dt, &s);
}

hth_err hth_infer_reduce(hth_infer *infer)
{
    int axes[HTH_MAX_RANK], count;
    unsigned mask = 0;
    HTH_TRY(hth_infer_axes(infer, 1, hth_infer_shape(infer, 0)->rank, axes, &count));
    if (count <= 0) {
        mask = hth_node_int(infer->n, "noop_with_empty_axes", 0) != 0 ? 0 : ~0U;
    }
    for (int i = 0; i < count; i++) {
        mask |= 1U << axes[i];
    }
    return reduced(infer, mask, hth_infer_dtype(infer, 0));
}

hth_err hth_infer_arg(hth_infer *infer)
{
    int axis;
    HTH_TRY(hth_infer_axis(infer, hth_node_int(infer->n, "axis", 0),
                           hth_infer_shape(infer, 0)->rank, &axis));
    return reduced(infer, 1U << axis, HTH_DT_I64);
}
