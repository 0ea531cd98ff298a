// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_norm.c - gradients of normalisations.
#include "graph/autodiff/grad.h"

#include <math.h>

// Ends a node of three gradients; what nobody needs is not asked for.
static void end_wanted(hth_grad *c, const hth_node *n, int v[3])
{
    hth_grad_end(c);
    for (int k = 0; k < 3; k++) {
        v[k] = hth_grad_output(c, k);
        if (c->err == HTH_OK && !hth_grad_wants(c, n, k)) {
            c->g->nodes[c->node].outputs[k] = -1;
        }
    }
}

static void end_three(hth_grad *c, const hth_node *n)
{
    int v[3];
    end_wanted(c, n, v);
    for (int k = 0; k < 3; k++) {
        hth_grad_give(c, n, k, v[k]);
    }
}

void hth_grad_batch_norm(hth_grad *c, const hth_node *n)
{
    int in[6] = {hth_grad_out(c, n, 0), n->inputs[0],  n->inputs[1],
                 n->outputs[1],         n->outputs[2], n->inputs[2]};
    hth_grad_begin(c, HTH_OP_BATCH_NORM_GRAD, in, n->n_post > 0 ? 6 : 5, 3);
    if (n->n_post > 0 && n->post[0].op == HTH_OP_CLIP) {
        hth_grad_float(c, "low", n->post[0].alpha);
        hth_grad_float(c, "high", n->post[0].beta);
    }
    end_three(c, n);
}

// Scale and bias may be broadcast to the normalised dimensions: their gradients are summed down.
void hth_grad_layer_norm(hth_grad *c, const hth_node *n)
{
    const hth_shape x = *hth_grad_shape(c, n->inputs[0]), s = *hth_grad_shape(c, n->inputs[1]);
    int64_t axis = hth_node_int(n, "axis", -1);
    hth_shape full = {0};
    for (int i = (int)(axis < 0 ? axis + x.rank : axis); i < x.rank; i++) {
        full.dim[full.rank++] = x.dim[i];
    }
    bool bias = n->n_inputs > 2 && n->inputs[2] >= 0;
    if (s.rank > full.rank || (bias && hth_grad_shape(c, n->inputs[2])->rank > full.rank)) {
        hth_grad_fail(c, "scale and bias of more than the normalised dimensions have no gradient");
        return;
    }
    int dy = hth_grad_out(c, n, 0); // n's outputs move when one is added
    int mean = hth_grad_extend(c, 1), invstd = hth_grad_extend(c, 2);
    int in[5] = {dy, n->inputs[0], hth_grad_expand(c, n->inputs[1], &full), mean, invstd}, v[3];
    hth_grad_begin(c, HTH_OP_LAYER_NORM_GRAD, in, 5, 3);
    hth_grad_int(c, "axis", axis);
    end_wanted(c, n, v);
    for (int k = 0; k < 3; k++) {
        if (hth_grad_wants(c, n, k)) {
            hth_grad_give(c, n, k, hth_grad_sum_to(c, v[k], hth_grad_shape(c, n->inputs[k])));
        }
    }
}

// y = x r scale with r = 1 / sqrt(mean(x^2) + eps): with g = dy scale,
// dx = r (g - x r^2 mean(g x)), dscale = dy x r.
void hth_grad_rms_norm(hth_grad *c, const hth_node *n)
{
    const hth_shape x = *hth_grad_shape(c, n->inputs[0]);
    int64_t axes[HTH_MAX_RANK], axis = hth_node_int(n, "axis", -1);
    int n_axes = 0, dy = hth_grad_out(c, n, 0), in = n->inputs[0];
    for (int i = (int)(axis < 0 ? axis + x.rank : axis); i < x.rank; i++) {
        axes[n_axes++] = i;
    }
    int square = hth_grad_2(c, HTH_OP_MUL, in, in);
    int mean = hth_grad_reduce(c, HTH_OP_REDUCE_MEAN, square, axes, n_axes, true);
    int eps = hth_grad_scalar(c, hth_node_float(n, "epsilon", 1e-5f));
    int root = hth_grad_1(c, HTH_OP_SQRT, hth_grad_2(c, HTH_OP_ADD, mean, eps));
    int r = hth_grad_1(c, HTH_OP_RECIPROCAL, root), xr = hth_grad_2(c, HTH_OP_MUL, in, r);
    if (hth_grad_wants(c, n, 1)) {
        int v = hth_grad_2(c, HTH_OP_MUL, dy, xr);
        hth_grad_give(c, n, 1, hth_grad_sum_to(c, v, hth_grad_shape(c, n->inputs[1])));
    }
    if (hth_grad_wants(c, n, 0)) {
        int g = hth_grad_2(c, HTH_OP_MUL, dy, n->inputs[1]);
        int dot = hth_grad_reduce(c, HTH_OP_REDUCE_MEAN, hth_grad_2(c, HTH_OP_MUL, g, xr), axes,
                                  n_axes, true);
        int away = hth_grad_2(c, HTH_OP_SUB, g, hth_grad_2(c, HTH_OP_MUL, xr, dot));
        hth_grad_give(c, n, 0, hth_grad_2(c, HTH_OP_MUL, away, r));
    }
}

void hth_grad_group_norm(hth_grad *c, const hth_node *n)
{
    int in[3] = {hth_grad_out(c, n, 0), n->inputs[0], n->inputs[1]};
    int64_t channels = hth_grad_shape(c, n->inputs[0])->dim[1];
    bool instance = n->op == HTH_OP_INSTANCE_NORMALIZATION;
    hth_grad_begin(c, HTH_OP_GROUP_NORM_GRAD, in, 3, 3);
    hth_grad_int(c, "num_groups", instance ? channels : hth_node_int(n, "num_groups", 1));
    hth_grad_float(c, "epsilon", hth_node_float(n, "epsilon", 1e-5f));
    end_three(c, n);
}

static void like_forward(hth_grad *c, const hth_node *n, hth_op op, int second)
{
    hth_grad_begin(c, op, (int[]){hth_grad_out(c, n, 0), second}, 2, 1);
    hth_grad_attrs(c, n);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

void hth_grad_lrn(hth_grad *c, const hth_node *n)
{
    like_forward(c, n, HTH_OP_LRN_GRAD, n->inputs[0]);
}

void hth_grad_softmax(hth_grad *c, const hth_node *n)
{
    like_forward(c, n, n->op == HTH_OP_SOFTMAX ? HTH_OP_SOFTMAX_GRAD : HTH_OP_LOG_SOFTMAX_GRAD,
                 n->outputs[0]);
}

// y = x / |x|: dx = (dy - y sum(dy y)) / |x|, for the Euclidean norm; for the sum of absolute
// values sign(x) stands in the place of the second y.
void hth_grad_lp_norm(hth_grad *c, const hth_node *n)
{
    int64_t axis = hth_node_int(n, "axis", -1);
    bool l1 = hth_node_int(n, "p", 2) == 1;
    int x = n->inputs[0], y = n->outputs[0], dy = hth_grad_out(c, n, 0);
    hth_op norm_op = l1 ? HTH_OP_REDUCE_L1 : HTH_OP_REDUCE_L2;
    int norm = hth_grad_reduce(c, norm_op, x, &axis, 1, true);
    int dot =
        hth_grad_reduce(c, HTH_OP_REDUCE_SUM, hth_grad_2(c, HTH_OP_MUL, dy, y), &axis, 1, true);
    int toward = hth_grad_2(c, HTH_OP_MUL, dot, l1 ? hth_grad_1(c, HTH_OP_SIGN, x) : y);
    int away = hth_grad_2(c, HTH_OP_SUB, dy, toward);
    hth_grad_give(c, n, 0, hth_grad_2(c, HTH_OP_DIV, away, norm));
}

// y = d / s with d = x - mean, s = std + 1e-9: dx = (dy - mean(dy)) / s - d mean(dy d) / (s^2 std).
void hth_grad_mean_variance(hth_grad *c, const hth_node *n)
{
    int64_t axes[HTH_MAX_RANK] = {0, 2, 3};
    int given = hth_node_ints(n, "axes", axes, HTH_MAX_RANK), count = given < 0 ? 3 : given;
    int x = n->inputs[0], dy = hth_grad_out(c, n, 0);
    const hth_op mean = HTH_OP_REDUCE_MEAN;
    int d = hth_grad_2(c, HTH_OP_SUB, x, hth_grad_reduce(c, mean, x, axes, count, true));
    int var = hth_grad_reduce(c, mean, hth_grad_2(c, HTH_OP_MUL, d, d), axes, count, true);
    int std = hth_grad_1(c, HTH_OP_SQRT, var);
    int s = hth_grad_2(c, HTH_OP_ADD, std, hth_grad_scalar(c, 1e-9f));
    int dot = hth_grad_reduce(c, mean, hth_grad_2(c, HTH_OP_MUL, dy, d), axes, count, true);
    int share = hth_grad_2(c, HTH_OP_DIV, dot, hth_grad_2(c, HTH_OP_MUL, s, std));
    int centred = hth_grad_2(c, HTH_OP_SUB, dy, hth_grad_reduce(c, mean, dy, axes, count, true));
    int away = hth_grad_2(c, HTH_OP_SUB, centred, hth_grad_2(c, HTH_OP_MUL, d, share));
    hth_grad_give(c, n, 0, hth_grad_2(c, HTH_OP_DIV, away, s));
}
