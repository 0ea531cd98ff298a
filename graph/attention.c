// SPDX-License-Identifier: Apache-2.0
#include "graph/attention.h"

static hth_err view_get(const hth_graph *graph, const hth_node *node, const char *name, int value,
                        const int64_t dim[4], hth_attention_view *out)
{
    int64_t v[5];
    if (hth_node_ints(node, name, v, 5) != 5 || value < 0) {
        return hth_fail(HTH_EINVAL, "node '%s' (FusedAttention) has no '%s'", node->name, name);
    }
    int64_t last = v[0], elements = hth_shape_elements(&graph->values[value].shape);
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
        return hth_fail(HTH_EINVAL, "node '%s' (FusedAttention): '%s' leaves its tensor",
                        node->name, name);
    }
    return HTH_OK;
}

hth_err hth_attention_get(const hth_graph *graph, const hth_node *node, hth_attention *out)
{
    int64_t d[6];
    if (hth_node_ints(node, "dims", d, 6) != 6 || node->n_inputs < 3 || node->n_outputs < 1) {
        return hth_fail(HTH_EINVAL, "node '%s' (FusedAttention) has no dims", node->name);
    }
    *out = (hth_attention){.b0 = d[0], .b1 = d[1], .t = d[2], .s = d[3], .d = d[4], .e = d[5]};
    out->scale = hth_node_float(node, "scale", 1);
    const int64_t q[4] = {d[0], d[1], d[2], d[4]}, k[4] = {d[0], d[1], d[3], d[4]},
                  v[4] = {d[0], d[1], d[3], d[5]}, o[4] = {d[0], d[1], d[2], d[5]},
                  m[4] = {d[0], d[1], d[2], d[3]};
    HTH_TRY(view_get(graph, node, "q_view", node->inputs[0], q, &out->q));
    HTH_TRY(view_get(graph, node, "k_view", node->inputs[1], k, &out->k));
    HTH_TRY(view_get(graph, node, "v_view", node->inputs[2], v, &out->v));
    HTH_TRY(view_get(graph, node, "out_view", node->outputs[0], o, &out->out));
    out->has_mask = node->n_inputs > 3 && node->inputs[3] >= 0;
    return out->has_mask ? view_get(graph, node, "mask_view", node->inputs[3], m, &out->mask)
                         : HTH_OK;
}

static hth_err view_set(hth_node *node, const char *name, const hth_attention_view *view)
{
    const int64_t ints[5] = {view->offset, view->stride[0], view->stride[1], view->stride[2],
                             view->stride[3]};
    return hth_node_set_ints(node, name, ints, 5);
}

hth_err hth_attention_set(hth_node *node, const hth_attention *attention)
{
    const int64_t dims[6] = {attention->b0, attention->b1, attention->t,
                             attention->s,  attention->d,  attention->e};
    HTH_TRY(hth_node_set_ints(node, "dims", dims, 6));
    HTH_TRY(view_set(node, "q_view", &attention->q));
    HTH_TRY(view_set(node, "k_view", &attention->k));
    HTH_TRY(view_set(node, "v_view", &attention->v));
    HTH_TRY(view_set(node, "out_view", &attention->out));
    HTH_TRY(attention->has_mask ? view_set(node, "mask_view", &attention->mask) : HTH_OK);
    return hth_node_set_float(node, "scale", attention->scale);
}
