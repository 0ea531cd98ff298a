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

void hth_grad_unary(hth_grad *c, const hth_node *n)
{
    int z = hth_grad_reads_result(n->op) ? n->outputs[0] : n->inputs[0];
    hth_grad_begin(c, HTH_OP_ELEMENT_GRAD, (int[]){hth_grad_out(c, n, 0), z}, 2, 1);
    hth_grad_attrs(c, n);
    hth_grad_str(c, "of", hth_op_name(n->op));
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

void hth_grad_relu(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0);
    hth_grad_give(c, n, 0, hth_grad_2(c, HTH_OP_RELU_GRAD, dy, n->outputs[0]));
}

// dy where the operand lies within bounds that are computed. They are no parameters' doing.
static void clip_computed(hth_grad *c, const hth_node *n)
{
    int inside = -1;
    for (int k = 1; k < n->n_inputs; k++) {
        if (n->inputs[k] < 0) {
            continue;
        }
        if (hth_grad_wants(c, n, k)) {
            hth_grad_fail(c, "its bounds depend on parameters, and have no gradient");
        }
        hth_op op = k == 1 ? HTH_OP_GREATER : HTH_OP_LESS;
        int within = hth_grad_2(c, op, n->inputs[0], n->inputs[k]);
        inside = inside < 0 ? within : hth_grad_2(c, HTH_OP_AND, inside, within);
    }
    int dy = hth_grad_out(c, n, 0);
    hth_grad_give(c, n, 0, hth_grad_3(c, HTH_OP_WHERE, inside, dy, hth_grad_scalar(c, 0)));
}

void hth_grad_clip(hth_grad *c, const hth_node *n)
{
    float bound[2] = {-INFINITY, INFINITY};
    for (int k = 1; k < n->n_inputs; k++) {
        if (n->inputs[k] >= 0 && !hth_pass_scalar(c->g, n->inputs[k], &bound[k - 1])) {
            clip_computed(c, n);
            return;
        }
    }
    hth_grad_begin(c, HTH_OP_RELU_GRAD, (int[]){hth_grad_out(c, n, 0), n->outputs[0]}, 2, 1);
    hth_grad_float(c, "low", bound[0]);
    hth_grad_float(c, "high", bound[1]);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

void hth_grad_pass(hth_grad *c, const hth_node *n)
{
    hth_grad_give(c, n, 0, hth_grad_out(c, n, 0));
}

void hth_grad_neg(hth_grad *c, const hth_node *n)
{
    hth_grad_give(c, n, 0, hth_grad_1(c, HTH_OP_NEG, hth_grad_out(c, n, 0)));
}

void hth_grad_cast(hth_grad *c, const hth_node *n)
{
    hth_dtype to = c->g->values[n->inputs[0]].dtype;
    hth_grad_begin(c, HTH_OP_CAST, (int[]){hth_grad_out(c, n, 0)}, 1, 1);
    hth_grad_int(c, "to", to);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

// The same mask again: it is a function of step, salt and position.
void hth_grad_dropout(hth_grad *c, const hth_node *n)
{
    hth_grad_begin(c, HTH_OP_DROPOUT_TRAIN, (int[]){hth_grad_out(c, n, 0), n->inputs[1]}, 2, 1);
    hth_grad_attrs(c, n);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}
