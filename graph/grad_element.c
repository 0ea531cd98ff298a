// SPDX-License-Identifier: Apache-2.0
// graph/grad_element.c - gradients of element-wise operators of one operand.
#include "graph/grad.h"

#include "graph/pass_util.h"

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

// A bound that is there must be a constant; an absent one is `none`.
static float clip_bound(hth_grad *c, const hth_node *n, int k, float none)
{
    if (k < n->n_inputs && n->inputs[k] >= 0 && !hth_pass_scalar(c->g, n->inputs[k], &none)) {
        hth_grad_fail(c, "its bounds are computed, which has no gradient");
    }
    return none;
}

void hth_grad_clip(hth_grad *c, const hth_node *n)
{
    float low = clip_bound(c, n, 1, -INFINITY), high = clip_bound(c, n, 2, INFINITY);
    hth_grad_begin(c, HTH_OP_RELU_GRAD, (int[]){hth_grad_out(c, n, 0), n->outputs[0]}, 2, 1);
    hth_grad_float(c, "low", low);
    hth_grad_float(c, "high", high);
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
