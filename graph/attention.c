// SPDX-License-Identifier: Apache-2.0
#include "graph/attention.h"

static hth_err view_get(const hth_graph *g, const hth_node *n, const char *name, int value,
                        const int64_t dim[4], hth_attention_view *out)
{
    int64_t v[5];
    if (hth_node_ints(n, name, v, 5) != 5 || value < 0) {
        return hth_fail(HTH_EINVAL, "node '%s' (FusedAttention) has no '%s'", n->name, name);
    }
    int64_t last = v[0], elements = hth_shape_elements(&g->values[value].shape);
    *out = (hth_attention_view){v[0], {v[1], v[2], v[3], v[4]}};
    bool empty = false;
    for (int i = 0; i < 4; i++) {
        empty |= dim[i] == 0;
        last += (dim[i] - 1) * out->stride[i];
        if (out->stride[i] < 0) {
            last = elements;
        }
    }
    if (v[0] < 0 || (!empty && last >= elements)) {
        return hth_fail(HTH_EINVAL, "node '%s' (FusedAttention): '%s' leaves its tensor", n->name,
                        name);
    }
    return HTH_OK;
}

hth_err hth_attention_get(const hth_graph *g, const hth_node *n, hth_attention *out)
{
    int64_t d[6];
    if (hth_node_ints(n, "dims", d, 6) != 6 || n->n_inputs < 3 || n->n_outputs < 1) {
        return hth_fail(HTH_EINVAL, "node '%s' (FusedAttention) has no dims", n->name);
    }
    *out = (hth_attention){.b0 = d[0], .b1 = d[1], .t = d[2], .s = d[3], .d = d[4], .e = d[5]};
    out->scale = hth_node_float(n, "scale", 1);
    const int64_t q[4] = {d[0], d[1], d[2], d[4]}, k[4] = {d[0], d[1], d[3], d[4]},
                  v[4] = {d[0], d[1], d[3], d[5]}, o[4] = {d[0], d[1], d[2], d[5]},
                  m[4] = {d[0], d[1], d[2], d[3]};
    HTH_TRY(view_get(g, n, "q_view", n->inputs[0], q, &out->q));
    HTH_TRY(view_get(g, n, "k_view", n->inputs[1], k, &out->k));
    HTH_TRY(view_get(g, n, "v_view", n->inputs[2], v, &out->v));
    HTH_TRY(view_get(g, n, "out_view", n->outputs[0], o, &out->out));
    out->has_mask = n->n_inputs > 3 && n->inputs[3] >= 0;
    return out->has_mask ? view_get(g, n, "mask_view", n->inputs[3], m, &out->mask) : HTH_OK;
}

static hth_err view_set(hth_node *n, const char *name, const hth_attention_view *v)
{
    const int64_t ints[5] = {v->offset, v->stride[0], v->stride[1], v->stride[2], v->stride[3]};
    return hth_node_set_ints(n, name, ints, 5);
}

hth_err hth_attention_set(hth_node *n, const hth_attention *a)
{
    const int64_t dims[6] = {a->b0, a->b1, a->t, a->s, a->d, a->e};
    HTH_TRY(hth_node_set_ints(n, "dims", dims, 6));
    HTH_TRY(view_set(n, "q_view", &a->q));
    HTH_TRY(view_set(n, "k_view", &a->k));
    HTH_TRY(view_set(n, "v_view", &a->v));
    HTH_TRY(view_set(n, "out_view", &a->out));
    HTH_TRY(a->has_mask ? view_set(n, "mask_view", &a->mask) : HTH_OK);
    return hth_node_set_float(n, "scale", a->scale);
}
