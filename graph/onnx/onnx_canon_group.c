// SPDX-License-Identifier: Apache-2.0
// GroupNormalization with one scale and bias per group, said with those per channel.
#include "graph/onnx/onnx_canon.h"

// Version 18 of GroupNormalization has one scale and bias per group: repeat each for the group's
// channels, by Reshape(Expand(Unsqueeze(p, 1), [G, C / G]), [-1]) with C = Shape(X)[1].
hth_err onnx_canon_group_norm(const canon *c)
{
    int64_t groups = hth_node_int(onnx_canon_node(c), "num_groups", 0), one = 1, minus_one = -1;
    int n_groups, axis, flat, channels, per_group, target, node;
    const hth_const *scale = onnx_canon_constant(c, 1);
    const hth_node *n = onnx_canon_node(c);
    if (n->n_inputs < 3 || n->inputs[0] < 0 || n->inputs[1] < 0 || n->inputs[2] < 0 ||
        groups <= 0) {
        return hth_fail(HTH_EINVAL, "scale, bias or num_groups is missing");
    }
    if (scale != NULL && scale->shape.rank == 1 && scale->shape.dim[0] != groups) {
        return HTH_OK; // some exporters wrote one per channel all along
    }
    HTH_TRY(onnx_canon_const(c, "groups", HTH_DT_I64, 1, 1, &groups, &n_groups));
    HTH_TRY(onnx_canon_const(c, "axis", HTH_DT_I64, 1, 1, &one, &axis));
    HTH_TRY(onnx_canon_const(c, "flat", HTH_DT_I64, 1, 1, &minus_one, &flat));
    HTH_TRY(onnx_canon_emit(c, HTH_OP_SHAPE, &(int){n->inputs[0]}, 1, &node, &channels));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "start", 1));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "end", 2));
    HTH_TRY(onnx_canon_emit(c, HTH_OP_DIV, (int[]){channels, n_groups}, 2, &node, &per_group));
    HTH_TRY(onnx_canon_emit(c, HTH_OP_CONCAT, (int[]){n_groups, per_group}, 2, &node, &target));
    HTH_TRY(hth_node_set_int(&c->ld->g->nodes[node], "axis", 0));
    for (int i = 1; i <= 2; i++) {
        int column, wide, full;
        HTH_TRY(onnx_canon_emit(c, HTH_OP_UNSQUEEZE, (int[]){onnx_canon_node(c)->inputs[i], axis},
                                2, &node, &column));
        HTH_TRY(onnx_canon_emit(c, HTH_OP_EXPAND, (int[]){column, target}, 2, &node, &wide));
        HTH_TRY(onnx_canon_emit(c, HTH_OP_RESHAPE, (int[]){wide, flat}, 2, &node, &full));
        onnx_canon_node(c)->inputs[i] = full;
    }
    return HTH_OK;
}
