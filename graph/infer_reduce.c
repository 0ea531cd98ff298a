// SPDX-License-Identifier: Apache-2.0
// graph/infer_reduce.c - reductions over axes.
#include "graph/infer.h"

static hth_err reduced(hth_infer *c, unsigned mask, hth_dtype dt)
{
    const hth_shape *x = hth_infer_shape(c, 0);
    bool keep = hth_node_int(c->n, "keepdims", 1) != 0;
    hth_shape s = {0};
    for (int i = 0; i < x->rank; i++) {
        if (!(mask & 1U << i)) {
            HTH_TRY(hth_infer_push(c, &s, x->dim[i]));
        } else if (keep) {
            HTH_TRY(hth_infer_push(c, &s, 1));
        }
    }
    return hth_infer_out(c, 0, dt, &s);
}

hth_err hth_infer_reduce(hth_infer *c)
{
    int axes[HTH_MAX_RANK], count;
    unsigned mask = 0;
    HTH_TRY(hth_infer_axes(c, 1, hth_infer_shape(c, 0)->rank, axes, &count));
    if (count <= 0) {
        mask = hth_node_int(c->n, "noop_with_empty_axes", 0) != 0 ? 0 : ~0U;
    }
    for (int i = 0; i < count; i++) {
        mask |= 1U << axes[i];
    }
    return reduced(c, mask, hth_infer_dtype(c, 0));
}

hth_err hth_infer_arg(hth_infer *c)
{
    int axis;
    HTH_TRY(hth_infer_axis(c, hth_node_int(c->n, "axis", 0), hth_infer_shape(c, 0)->rank, &axis));
    return reduced(c, 1U << axis, HTH_DT_I64);
}
