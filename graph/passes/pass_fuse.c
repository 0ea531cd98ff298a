// SPDX-License-Identifier: Apache-2.0
// Fusion: an element-wise node that is the only reader of a node's result becomes a post op of that
// node, if the device can do it. One forward walk; a node keeps absorbing until it meets something
// it cannot. The second operand of a binary post op must be there before the node runs: of two
// convolutions that are added, the later one takes the sum.
#include "graph/passes/pass.h"

#include "graph/passes/pass_util.h"

#include <float.h>
#include <math.h>

static float clip_bound(const hth_graph *graph, const hth_node *node, int slot, float absent,
                        bool *ok)
{
    float v = absent;
    if (slot < node->n_inputs && node->inputs[slot] >= 0) {
        *ok &= hth_pass_scalar(graph, node->inputs[slot], &v);
    }
    return v;
}

// post_of_unary describes node `node` as a post op; false when it is not a unary element-wise
// operator.
static bool post_of_unary(const hth_graph *graph, const hth_node *node, hth_post_op *op)
{
    bool ok = true;
    *op = (hth_post_op){.op = node->op, .input = -1};
    switch (node->op) {
    case HTH_OP_RELU:
    case HTH_OP_SIGMOID:
    case HTH_OP_TANH:
    case HTH_OP_HARD_SWISH:
        return true;
    case HTH_OP_CLIP:
        op->alpha = clip_bound(graph, node, 1, -FLT_MAX, &ok);
        op->beta = clip_bound(graph, node, 2, FLT_MAX, &ok);
        return ok;
    case HTH_OP_SWISH:
        op->alpha = hth_node_float(node, "alpha", 1);
        return true;
    case HTH_OP_GELU: // alpha 1: the tanh form
        op->alpha = hth_node_str(node, "approximate", "none")[0] == 't';
        return true;
    case HTH_OP_HARD_SIGMOID:
        op->alpha = hth_node_float(node, "alpha", 0.2f);
        op->beta = hth_node_float(node, "beta", 0.5f);
        return true;
    case HTH_OP_ELU:
        op->alpha = hth_node_float(node, "alpha", 1);
        return true;
    case HTH_OP_LEAKY_RELU:
        op->alpha = hth_node_float(node, "alpha", 0.01f);
        return true;
    default:
        return false;
    }
}

// post_of_binary describes Add, Sub or Mul of `x`, or ReluGrad of it, with another operand that is
// known before node `i`. An input of the graph whose update is an output may share its buffer (a
// sum of gradients, graph/autodiff/train.h): element-wise operators allow that, what they are fused
// into does not.
static bool post_of_binary(const hth_graph *graph, const hth_node *node, int x, int i,
                           hth_post_op *op, int *operand)
{
    bool mask = node->op == HTH_OP_RELU_GRAD;
    if (node->op != HTH_OP_ADD && node->op != HTH_OP_MUL && node->op != HTH_OP_SUB && !mask) {
        return false;
    }
    if (node->n_inputs != 2 || (node->inputs[0] == x) == (node->inputs[1] == x) ||
        ((node->op == HTH_OP_SUB || mask) && node->inputs[1] == x)) {
        return false;
    }
    *operand = node->inputs[0] == x ? node->inputs[1] : node->inputs[0];
    *op = (hth_post_op){.op = node->op == HTH_OP_MUL ? HTH_OP_MUL : HTH_OP_ADD, .alpha = 1.0f};
    if (node->op == HTH_OP_SUB) {
        op->alpha = -1.0f;
    }
    if (mask) {
        *op = (hth_post_op){.op = node->op,
                            .alpha = hth_node_float(node, "low", 0),
                            .beta = hth_node_float(node, "high", INFINITY)};
    }
    const hth_value *v = &graph->values[*operand];
    if (v->is_input && graph->values[node->outputs[0]].is_output) {
        return false;
    }
    return v->dtype == HTH_DT_F32 && v->producer < i;
}

static hth_err fuse_node(hth_graph *graph, hth_uses *uses, const hth_fuse_oracle *oracle, int i)
{
    for (;;) {
        hth_node *n = &graph->nodes[i];
        int x = n->outputs[0], user = x < 0 ? -1 : hth_uses_only(graph, uses, x), operand = -1;
        if (user < 0 || n->n_post == HTH_MAX_POST_OPS || graph->values[x].dtype != HTH_DT_F32) {
            return HTH_OK;
        }
        hth_node *e = &graph->nodes[user];
        hth_post_op p;
        bool unary = post_of_unary(graph, e, &p) && e->inputs[0] == x;
        if (e->n_post > 0 || (!unary && !post_of_binary(graph, e, x, i, &p, &operand)) ||
            !hth_shape_equal(&graph->values[x].shape, &graph->values[e->outputs[0]].shape) ||
            !oracle->can_fuse(oracle->ctx, graph, n, &p, operand)) {
            return HTH_OK;
        }
        if (!unary) {
            p.input = n->n_inputs;
            HTH_TRY(hth_node_add_input(n, operand)); // the operand keeps its number of readers
            uses->node[operand] = uses->node[operand] == user ? i : uses->node[operand];
        }
        n->post[n->n_post++] = p;
        e->deleted = true;
        hth_pass_set_output(graph, i, e->outputs[0]);
    }
}

hth_err hth_pass_fuse(hth_graph *graph, const hth_fuse_oracle *oracle)
{
    hth_uses u;
    HTH_TRY(hth_uses_open(graph, &u));
    hth_err err = HTH_OK;
    for (int i = 0; i < graph->n_nodes && err == HTH_OK; i++) {
        if (!graph->nodes[i].deleted) {
            err = fuse_node(graph, &u, oracle, i);
        }
    }
    hth_uses_close(&u);
    HTH_TRY(err);
    return hth_graph_compact(graph);
}
