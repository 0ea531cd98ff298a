// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_reduce.c - gradients of reductions: what was summed gets the sum's gradient.
#include "graph/autodiff/grad.h"

// The operand's shape with 1 where it was reduced.
static hth_shape kept_shape(hth_grad *grad, const hth_node *node)
{
    hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    int64_t axes[HTH_MAX_RANK];
    int count =
        node->n_inputs > 1 ? hth_grad_content(grad, node->inputs[1], axes, HTH_MAX_RANK) : 0;
    bool global = node->op == HTH_OP_GLOBAL_MAX_POOL;
    if (count <= 0 && hth_node_int(node, "noop_with_empty_axes", 0) != 0) {
        return s;
    }
    for (int i = 0; count <= 0 && i < s.rank; i++) {
        s.dim[i] = global && i < 2 ? s.dim[i] : 1;
    }
    for (int i = 0; i < count; i++) {
        s.dim[axes[i] < 0 ? axes[i] + s.rank : axes[i]] = 1;
    }
    return s;
}

void hth_grad_reduce_sum(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]), kept = kept_shape(grad, node);
    int dy = hth_grad_reshape(grad, hth_grad_out(grad, node, 0), &kept);
    if (node->op == HTH_OP_REDUCE_MEAN) {
        double count = (double)hth_shape_elements(&x) / (double)hth_shape_elements(&kept);
        dy = hth_grad_2(grad, HTH_OP_MUL, dy, hth_grad_scalar(grad, (float)(1 / count)));
    }
    hth_grad_give(grad, node, 0, hth_grad_expand(grad, dy, &x));
}

void hth_grad_reduce_other(hth_grad *grad, const hth_node *node)
{
    const hth_shape kept = kept_shape(grad, node);
    int x = node->inputs[0], dy = hth_grad_reshape(grad, hth_grad_out(grad, node, 0), &kept);
    int y = hth_grad_reshape(grad, node->outputs[0], &kept), slope = -1;
    switch (node->op) {
    case HTH_OP_REDUCE_L1:
        slope = hth_grad_1(grad, HTH_OP_SIGN, x);
        break;
    case HTH_OP_REDUCE_L2:
        slope = hth_grad_2(grad, HTH_OP_DIV, x, y);
        break;
    case HTH_OP_REDUCE_SUM_SQUARE:
        slope = hth_grad_2(grad, HTH_OP_MUL, x, hth_grad_scalar(grad, 2));
        break;
    case HTH_OP_REDUCE_LOG_SUM_EXP:
        slope = hth_grad_1(grad, HTH_OP_EXP, hth_grad_2(grad, HTH_OP_SUB, x, y));
        break;
    case HTH_OP_REDUCE_LOG_SUM: {
        const hth_shape s = *hth_grad_shape(grad, x);
        int inverse = hth_grad_1(grad, HTH_OP_EXP, hth_grad_1(grad, HTH_OP_NEG, y));
        hth_grad_give(grad, node, 0,
                      hth_grad_expand(grad, hth_grad_2(grad, HTH_OP_MUL, dy, inverse), &s));
        return;
    }
    default: // ReduceProd; elements must not be 0
        slope = hth_grad_2(grad, HTH_OP_DIV, y, x);
    }
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_MUL, slope, dy));
}

// Elements that reach the extreme share its gradient evenly.
void hth_grad_reduce_extreme(hth_grad *grad, const hth_node *node)
{
    const hth_shape kept = kept_shape(grad, node), x = *hth_grad_shape(grad, node->inputs[0]);
    int64_t axes[HTH_MAX_RANK];
    int count = 0, dy = hth_grad_reshape(grad, hth_grad_out(grad, node, 0), &kept);
    int y = hth_grad_reshape(grad, node->outputs[0], &kept);
    for (int i = 0; i < x.rank; i++) {
        if (kept.dim[i] != x.dim[i]) {
            axes[count++] = i;
        }
    }
    int same = hth_grad_2(grad, HTH_OP_EQUAL, node->inputs[0], y);
    hth_grad_begin(grad, HTH_OP_CAST, &same, 1, 1);
    hth_grad_int(grad, "to", HTH_DT_F32);
    int mask = hth_grad_end(grad);
    int ties =
        count == 0 ? mask : hth_grad_reduce(grad, HTH_OP_REDUCE_SUM, mask, axes, count, true);
    int share = hth_grad_2(grad, HTH_OP_DIV, dy, ties);
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_MUL, mask, share));
}

void hth_grad_cumsum(hth_grad *grad, const hth_node *node)
{
    hth_grad_begin(grad, HTH_OP_CUM_SUM, (int[]){hth_grad_out(grad, node, 0), node->inputs[1]}, 2,
                   1);
    hth_grad_attrs(grad, node);
    hth_grad_int(grad, "reverse", hth_node_int(node, "reverse", 0) == 0);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}
