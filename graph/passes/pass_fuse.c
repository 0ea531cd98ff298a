// SPDX-License-Identifier: Apache-2.0
// Fusion: an element-wise node that is the only reader of a node's result becomes a post op of that
// node, if the device can do it. One forward walk; a node keeps absorbing until it meets something
// it cannot. The second operand of a binary post op must be there before the node runs: of two
// convolutions that are added, the later one takes the sum.
#include "graph/passes/pass.h"

#include "graph/passes/pass_util.h"

#include <float.h>
#include <math.h>

static float clip_bound(const hth_graph *g, const hth_node *n, int slot, float absent, bool *ok)
{
    float v = absent;
    if (slot < n->n_inputs && n->inputs[slot] >= 0) {
        *ok &= hth_pass_scalar(g, n->inputs[slot], &v);
    }
    return v;
}

// post_of_unary describes node `n` as a post op; false when it is not a unary element-wise
// operator.
static bool post_of_unary(const hth_graph *g, const hth_node *n, hth_post_op *p)
{
    bool ok = true;
    *p = (hth_post_op){.op = n->op, .input = -1};
    switch (n->op) {
    case HTH_OP_RELU:
    case HTH_OP_SIGMOID:
    case HTH_OP_TANH:
    case HTH_OP_HARD_SWISH:
        return true;
    case HTH_OP_CLIP:
        p->alpha = clip_bound(g, n, 1, -FLT_MAX, &ok);
        p->beta = clip_bound(g, n, 2, FLT_MAX, &ok);
        return ok;
    case HTH_OP_SWISH:
        p->alpha = hth_node_float(n, "alpha", 1);
        return true;
    case HTH_OP_GELU: // alpha 1: the tanh form
        p->alpha = hth_node_str(n, "approximate", "none")[0] == 't';
        return true;
    case HTH_OP_HARD_SIGMOID:
        p->alpha = hth_node_float(n, "alpha", 0.2f);
        p->beta = hth_node_float(n, "beta", 0.5f);
        return true;
    case HTH_OP_ELU:
        p->alpha = hth_node_float(n, "alpha", 1);
        return true;
    case HTH_OP_LEAKY_RELU:
        p->alpha = hth_node_float(n, "alpha", 0.01f);
        return true;
    default:
        return false;
    }
}

// post_of_binary describes Add, Sub or Mul of `x`, or ReluGrad of it, with another operand that is
// known before node `i`. An input of the graph whose update is an output may share its buffer (a
// sum of gradients, graph/autodiff/train.h): element-wise operators allow that, what they are fused
// into does not.
static bool post_of_binary(const hth_graph *g, const hth_node *n, int x, int i, hth_post_op *p,
                           int *operand)
{
    bool mask = n->op == HTH_OP_RELU_GRAD;
    if (n->op != HTH_OP_ADD && n->op != HTH_OP_MUL && n->op != HTH_OP_SUB && !mask) {
        return false;
    }
    if (n->n_inputs != 2 || (n->inputs[0] == x) == (n->inputs[1] == x) ||
        ((n->op == HTH_OP_SUB || mask) && n->inputs[1] == x)) {
        return false;
    }
    *operand = n->inputs[0] == x ? n->inputs[1] : n->inputs[0];
    *p = (hth_post_op){.op = n->op == HTH_OP_MUL ? HTH_OP_MUL : HTH_OP_ADD, .alpha = 1.0f};
    if (n->op == HTH_OP_SUB) {
        p->alpha = -1.0f;
    }
    if (mask) {
        *p = (hth_post_op){.op = n->op,
                           .alpha = hth_node_float(n, "low", 0),
                           .beta = hth_node_float(n, "high", INFINITY)};
    }
    const hth_value *v = &g->values[*operand];
    if (v->is_input && g->values[n->outputs[0]].is_output) {
        return false;
    }
    return v->dtype == HTH_DT_F32 && v->producer < i;
}

static hth_err fuse_node(hth_graph *g, hth_uses *u, const hth_fuse_oracle *o, int i)
{
    for (;;) {
        hth_node *n = &g->nodes[i];
        int x = n->outputs[0], user = x < 0 ? -1 : hth_uses_only(g, u, x), operand = -1;
        if (user < 0 || n->n_post == HTH_MAX_POST_OPS || g->values[x].dtype != HTH_DT_F32) {
            return HTH_OK;
        }
        hth_node *e = &g->nodes[user];
        hth_post_op p;
        bool unary = post_of_unary(g, e, &p) && e->inputs[0] == x;
        if (e->n_post > 0 || (!unary && !post_of_binary(g, e, x, i, &p, &operand)) ||
            !hth_shape_equal(&g->values[x].shape, &g->values[e->outputs[0]].shape) ||
            !o->can_fuse(o->ctx, g, n, &p, operand)) {
            return HTH_OK;
        }
        if (!unary) {
            p.input = n->n_inputs;
            HTH_TRY(hth_node_add_input(n, operand)); // the operand keeps its number of readers
            u->node[operand] = u->node[operand] == user ? i : u->node[operand];
        }
        n->post[n->n_post++] = p;
        e->deleted = true;
        hth_pass_set_output(g, i, e->outputs[0]);
    }
}

hth_err hth_pass_fuse(hth_graph *g, const hth_fuse_oracle *o)
{
    hth_uses u;
    HTH_TRY(hth_uses_open(g, &u));
    hth_err err = HTH_OK;
    for (int i = 0; i < g->n_nodes && err == HTH_OK; i++) {
        if (!g->nodes[i].deleted) {
            err = fuse_node(g, &u, o, i);
        }
    }
    hth_uses_close(&u);
    return err == HTH_OK ? hth_graph_compact(g) : err;
}
