// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_element.c - gradients of element-wise operators of one operand.
#include "graph/autodiff/grad.h"

#include "graph/passes/pass_util.h"

#include <math.h>

bool hth_grad_reads_result(hth_op op)
{
    return op == HTH_OP_SIGMOID || op == HTH_OP_TANH || op == HTH_OP_EXP || op == HTH_OP_SQRT ||
           op == HTH_OP_RECIPROCAL;
}

bool hth_grad_is_element(hth_op op)
{
    return hth_grad_rule_of(op)->fn == hth_grad_unary;
}

void hth_grad_unary(hth_grad *grad, const hth_node *node)
{
    int z = hth_grad_reads_result(node->op) ? node->outputs[0] : node->inputs[0];
    hth_grad_begin(grad, HTH_OP_ELEMENT_GRAD, (int[]){hth_grad_out(grad, node, 0), z}, 2, 1);
    hth_grad_attrs(grad, node);
    hth_grad_str(grad, "of", hth_op_name(node->op));
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

void hth_grad_relu(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0);
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_RELU_GRAD, dy, node->outputs[0]));
}

// dy where the operand lies within bounds that are computed. They are no parameters' doing.
static void clip_computed(hth_grad *grad, const hth_node *node)
{
    int inside = -1;
    for (int k = 1; k < node->n_inputs; k++) {
        if (node->inputs[k] < 0) {
            continue;
        }
        if (hth_grad_wants(grad, node, k)) {
            hth_grad_fail(grad, "its bounds depend on parameters, and have no gradient");
        }
        hth_op op = k == 1 ? HTH_OP_GREATER : HTH_OP_LESS;
        int within = hth_grad_2(grad, op, node->inputs[0], node->inputs[k]);
        inside = inside < 0 ? within : hth_grad_2(grad, HTH_OP_AND, inside, within);
    }
    int dy = hth_grad_out(grad, node, 0);
    hth_grad_give(grad, node, 0,
                  hth_grad_3(grad, HTH_OP_WHERE, inside, dy, hth_grad_scalar(grad, 0)));
}

void hth_grad_clip(hth_grad *grad, const hth_node *node)
{
    float bound[2] = {-INFINITY, INFINITY};
    for (int k = 1; k < node->n_inputs; k++) {
        if (node->inputs[k] >= 0 && !hth_pass_scalar(grad->g, node->inputs[k], &bound[k - 1])) {
            clip_computed(grad, node);
            return;
        }
    }
    hth_grad_begin(grad, HTH_OP_RELU_GRAD, (int[]){hth_grad_out(grad, node, 0), node->outputs[0]},
                   2, 1);
    hth_grad_float(grad, "low", bound[0]);
    hth_grad_float(grad, "high", bound[1]);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

void hth_grad_pass(hth_grad *grad, const hth_node *node)
{
    hth_grad_give(grad, node, 0, hth_grad_out(grad, node, 0));
}

void hth_grad_neg(hth_grad *grad, const hth_node *node)
{
    hth_grad_give(grad, node, 0, hth_grad_1(grad, HTH_OP_NEG, hth_grad_out(grad, node, 0)));
}

void hth_grad_cast(hth_grad *grad, const hth_node *node)
{
    hth_dtype to = grad->g->values[node->inputs[0]].dtype;
    hth_grad_begin(grad, HTH_OP_CAST, (int[]){hth_grad_out(grad, node, 0)}, 1, 1);
    hth_grad_int(grad, "to", to);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

// The same mask again: it is a function of step, salt and position.
void hth_grad_dropout(hth_grad *grad, const hth_node *node)
{
    hth_grad_begin(grad, HTH_OP_DROPOUT_TRAIN,
                   (int[]){hth_grad_out(grad, node, 0), node->inputs[1]}, 2, 1);
    hth_grad_attrs(grad, node);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}
