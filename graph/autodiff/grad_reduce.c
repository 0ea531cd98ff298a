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

// The axes along which there is less to keep than there was.
static int reduced_axes(const hth_shape *x, const hth_shape *kept, int64_t axes[HTH_MAX_RANK])
{
    int count = 0;
    for (int i = 0; i < x->rank; i++) {
        if (kept->dim[i] != x->dim[i]) {
            axes[count++] = i;
        }
    }
    return count;
}

// What a factor gets: the product of the others. That is the product of all that are not 0, divided
// by its own, where no other is 0. It is chosen, not multiplied by 0 or 1: it may be infinite.
static int product_slope(hth_grad *grad, const hth_shape *kept, int x)
{
    int64_t axes[HTH_MAX_RANK];
    int count = reduced_axes(hth_grad_shape(grad, x), kept, axes);
    if (count == 0) {
        return hth_grad_scalar(grad, 1);
    }
    int zero = hth_grad_equal(grad, x, hth_grad_scalar(grad, 0));
    int safe = hth_grad_2(grad, HTH_OP_ADD, x, zero); // 1 for 0
    int all = hth_grad_reduce(grad, HTH_OP_REDUCE_PROD, safe, axes, count, true);
    int zeros = hth_grad_reduce(grad, HTH_OP_REDUCE_SUM, zero, axes, count, true);
    int others = hth_grad_2(grad, HTH_OP_DIV, all, safe);
    int alone = hth_grad_2(grad, HTH_OP_EQUAL, zero, zeros);
    return hth_grad_3(grad, HTH_OP_WHERE, alone, others, hth_grad_scalar(grad, 0));
}

// A norm of 0 gives no gradient, as in PyTorch.
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
        slope = hth_grad_2(grad, HTH_OP_DIV, x, hth_grad_divisor(grad, y));
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
    default:
        slope = product_slope(grad, &kept, x);
    }
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_MUL, slope, dy));
}

// Elements that reach the extreme share its gradient evenly. Others get 0, though it be infinite.
void hth_grad_reduce_extreme(hth_grad *grad, const hth_node *node)
{
    const hth_shape kept = kept_shape(grad, node), x = *hth_grad_shape(grad, node->inputs[0]);
    int64_t axes[HTH_MAX_RANK];
    int count = reduced_axes(&x, &kept, axes);
    int dy = hth_grad_reshape(grad, hth_grad_out(grad, node, 0), &kept);
    int y = hth_grad_reshape(grad, node->outputs[0], &kept);
    int same = hth_grad_2(grad, HTH_OP_EQUAL, node->inputs[0], y);
    hth_grad_begin(grad, HTH_OP_CAST, &same, 1, 1);
    hth_grad_int(grad, "to", HTH_DT_F32);
    int mask = hth_grad_end(grad);
    int ties =
        count == 0 ? mask : hth_grad_reduce(grad, HTH_OP_REDUCE_SUM, mask, axes, count, true);
    int share = hth_grad_2(grad, HTH_OP_DIV, dy, ties), none = hth_grad_scalar(grad, 0);
    hth_grad_give(grad, node, 0, hth_grad_3(grad, HTH_OP_WHERE, same, share, none));
}

void hth_grad_cumsum(hth_grad *grad, const hth_node *node)
{
    hth_grad_begin(grad, HTH_OP_CUM_SUM, (int[]){hth_grad_out(grad, node, 0), node->inputs[1]}, 2,
                   1);
    hth_grad_attrs(grad, node);
    hth_grad_int(grad, "reverse", hth_node_int(node, "reverse", 0) == 0);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}
