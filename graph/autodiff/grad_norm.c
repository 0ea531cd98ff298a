// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_norm.c - gradients of normalisations.
#include "graph/autodiff/grad.h"

#include <math.h>

// Ends a node of three gradients; what nobody needs is not asked for.
static void end_wanted(hth_grad *grad, const hth_node *node, int v[3])
{
    hth_grad_end(grad);
    for (int k = 0; k < 3; k++) {
        v[k] = hth_grad_output(grad, k);
        if (grad->err == HTH_OK && !hth_grad_wants(grad, node, k)) {
            grad->g->nodes[grad->node].outputs[k] = -1;
        }
    }
}

static void end_three(hth_grad *grad, const hth_node *node)
{
    int v[3];
    end_wanted(grad, node, v);
    for (int k = 0; k < 3; k++) {
        hth_grad_give(grad, node, k, v[k]);
    }
}

void hth_grad_batch_norm(hth_grad *grad, const hth_node *node)
{
    int in[6] = {hth_grad_out(grad, node, 0),
                 node->inputs[0],
                 node->inputs[1],
                 node->outputs[1],
                 node->outputs[2],
                 node->inputs[2]};
    hth_grad_begin(grad, HTH_OP_BATCH_NORM_GRAD, in, node->n_post > 0 ? 6 : 5, 3);
    if (node->n_post > 0 && node->post[0].op == HTH_OP_CLIP) {
        hth_grad_float(grad, "low", node->post[0].alpha);
        hth_grad_float(grad, "high", node->post[0].beta);
    }
    int64_t share = hth_node_int(node, "share", -1);
    if (share >= 0) {
        hth_grad_int(grad, "share", share + 1);
    }
    end_three(grad, node);
}

// What Mean and InvStdDev get goes to x alone: dmean / n - dinvstd invstd^3 (x - mean) / n.
static void give_moments(hth_grad *grad, const hth_node *node, const int of[3], int mean,
                         int invstd)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]), m = *hth_grad_shape(grad, mean);
    int sum = of[1];
    if (!hth_grad_wants(grad, node, 0)) {
        return;
    }
    if (of[2] >= 0) {
        int square = hth_grad_2(grad, HTH_OP_MUL, invstd, invstd);
        int cube = hth_grad_2(grad, HTH_OP_MUL, square, invstd);
        int away = hth_grad_2(grad, HTH_OP_SUB, mean, node->inputs[0]);
        int part = hth_grad_2(grad, HTH_OP_MUL, hth_grad_2(grad, HTH_OP_MUL, of[2], cube), away);
        sum = sum < 0 ? part : hth_grad_2(grad, HTH_OP_ADD, part, sum);
    }
    if (sum >= 0) {
        double n = (double)hth_shape_elements(&x) / (double)hth_shape_elements(&m);
        int share = hth_grad_2(grad, HTH_OP_MUL, sum, hth_grad_scalar(grad, (float)(1 / n)));
        hth_grad_give(grad, node, 0, hth_grad_expand(grad, share, &x));
    }
}

// Scale and bias may be broadcast to the normalised dimensions: their gradients are summed down.
void hth_grad_layer_norm(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]),
                    s = *hth_grad_shape(grad, node->inputs[1]);
    int64_t axis = hth_node_int(node, "axis", -1);
    hth_shape full = {0};
    for (int i = (int)(axis < 0 ? axis + x.rank : axis); i < x.rank; i++) {
        full.dim[full.rank++] = x.dim[i];
    }
    bool bias = node->n_inputs > 2 && node->inputs[2] >= 0;
    if (s.rank > full.rank || (bias && hth_grad_shape(grad, node->inputs[2])->rank > full.rank)) {
        hth_grad_fail(grad,
                      "scale and bias of more than the normalised dimensions have no gradient");
        return;
    }
    int of[3]; // n's outputs move when one is added
    for (int k = 0; k < 3; k++) {
        of[k] = hth_grad_out(grad, node, k);
    }
    int mean = hth_grad_extend(grad, 1), invstd = hth_grad_extend(grad, 2);
    int dy = of[0] >= 0 ? of[0] : hth_grad_zeros(grad, &x);
    int in[5] = {dy, node->inputs[0], hth_grad_expand(grad, node->inputs[1], &full), mean, invstd},
        v[3];
    hth_grad_begin(grad, HTH_OP_LAYER_NORM_GRAD, in, 5, 3);
    hth_grad_int(grad, "axis", axis);
    end_wanted(grad, node, v);
    for (int k = 0; k < 3; k++) {
        if (hth_grad_wants(grad, node, k)) {
            hth_grad_give(grad, node, k,
                          hth_grad_sum_to(grad, v[k], hth_grad_shape(grad, node->inputs[k])));
        }
    }
    give_moments(grad, node, of, mean, invstd);
}

// y = x r scale with r = 1 / sqrt(mean(x^2) + eps): with g = dy scale,
// dx = r (g - x r^2 mean(g x)), dscale = dy x r.
void hth_grad_rms_norm(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]);
    int64_t axes[HTH_MAX_RANK], axis = hth_node_int(node, "axis", -1);
    int n_axes = 0, dy = hth_grad_out(grad, node, 0), in = node->inputs[0];
    for (int i = (int)(axis < 0 ? axis + x.rank : axis); i < x.rank; i++) {
        axes[n_axes++] = i;
    }
    int square = hth_grad_2(grad, HTH_OP_MUL, in, in);
    int mean = hth_grad_reduce(grad, HTH_OP_REDUCE_MEAN, square, axes, n_axes, true);
    int eps = hth_grad_scalar(grad, hth_node_float(node, "epsilon", 1e-5f));
    int root = hth_grad_1(grad, HTH_OP_SQRT, hth_grad_2(grad, HTH_OP_ADD, mean, eps));
    int r = hth_grad_1(grad, HTH_OP_RECIPROCAL, root), xr = hth_grad_2(grad, HTH_OP_MUL, in, r);
    if (hth_grad_wants(grad, node, 1)) {
        int v = hth_grad_2(grad, HTH_OP_MUL, dy, xr);
        hth_grad_give(grad, node, 1,
                      hth_grad_sum_to(grad, v, hth_grad_shape(grad, node->inputs[1])));
    }
    if (hth_grad_wants(grad, node, 0)) {
        int g = hth_grad_2(grad, HTH_OP_MUL, dy, node->inputs[1]);
        int dot = hth_grad_reduce(grad, HTH_OP_REDUCE_MEAN, hth_grad_2(grad, HTH_OP_MUL, g, xr),
                                  axes, n_axes, true);
        int away = hth_grad_2(grad, HTH_OP_SUB, g, hth_grad_2(grad, HTH_OP_MUL, xr, dot));
        hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_MUL, away, r));
    }
}

void hth_grad_group_norm(hth_grad *grad, const hth_node *node)
{
    int in[3] = {hth_grad_out(grad, node, 0), node->inputs[0], node->inputs[1]};
    int64_t channels = hth_grad_shape(grad, node->inputs[0])->dim[1];
    bool instance = node->op == HTH_OP_INSTANCE_NORMALIZATION;
    hth_grad_begin(grad, HTH_OP_GROUP_NORM_GRAD, in, 3, 3);
    hth_grad_int(grad, "num_groups", instance ? channels : hth_node_int(node, "num_groups", 1));
    hth_grad_float(grad, "epsilon", hth_node_float(node, "epsilon", 1e-5f));
    end_three(grad, node);
}

static void like_forward(hth_grad *grad, const hth_node *node, hth_op op, int second)
{
    hth_grad_begin(grad, op, (int[]){hth_grad_out(grad, node, 0), second}, 2, 1);
    hth_grad_attrs(grad, node);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

void hth_grad_lrn(hth_grad *grad, const hth_node *node)
{
    like_forward(grad, node, HTH_OP_LRN_GRAD, node->inputs[0]);
}

void hth_grad_softmax(hth_grad *grad, const hth_node *node)
{
    like_forward(grad, node,
                 node->op == HTH_OP_SOFTMAX ? HTH_OP_SOFTMAX_GRAD : HTH_OP_LOG_SOFTMAX_GRAD,
                 node->outputs[0]);
}

// y = x / |x|: dx = (dy - y sum(dy y)) / |x|, for the Euclidean norm; for the sum of absolute
// values sign(x) stands in the place of the second y. Where the norm is 0, y is 0, and so is dx.
void hth_grad_lp_norm(hth_grad *grad, const hth_node *node)
{
    int64_t axis = hth_node_int(node, "axis", -1);
    bool l1 = hth_node_int(node, "p", 2) == 1;
    int x = node->inputs[0], y = node->outputs[0], dy = hth_grad_out(grad, node, 0);
    hth_op norm_op = l1 ? HTH_OP_REDUCE_L1 : HTH_OP_REDUCE_L2;
    int norm = hth_grad_reduce(grad, norm_op, x, &axis, 1, true);
    int dot = hth_grad_reduce(grad, HTH_OP_REDUCE_SUM, hth_grad_2(grad, HTH_OP_MUL, dy, y), &axis,
                              1, true);
    int toward = hth_grad_2(grad, HTH_OP_MUL, dot, l1 ? hth_grad_1(grad, HTH_OP_SIGN, x) : y);
    int away = hth_grad_2(grad, HTH_OP_SUB, dy, toward);
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_DIV, away, hth_grad_divisor(grad, norm)));
}

// y = d / s with d = x - mean, s = std + 1e-9: dx = (dy - mean(dy)) / s - d mean(dy d) / (s^2 std),
// of which the last part is 0 where std is.
void hth_grad_mean_variance(hth_grad *grad, const hth_node *node)
{
    int64_t axes[HTH_MAX_RANK] = {0, 2, 3};
    int given = hth_node_ints(node, "axes", axes, HTH_MAX_RANK), count = given < 0 ? 3 : given;
    int x = node->inputs[0], dy = hth_grad_out(grad, node, 0);
    const hth_op mean = HTH_OP_REDUCE_MEAN;
    int d = hth_grad_2(grad, HTH_OP_SUB, x, hth_grad_reduce(grad, mean, x, axes, count, true));
    int var = hth_grad_reduce(grad, mean, hth_grad_2(grad, HTH_OP_MUL, d, d), axes, count, true);
    int std = hth_grad_1(grad, HTH_OP_SQRT, var);
    int s = hth_grad_2(grad, HTH_OP_ADD, std, hth_grad_scalar(grad, 1e-9f));
    int dot = hth_grad_reduce(grad, mean, hth_grad_2(grad, HTH_OP_MUL, dy, d), axes, count, true);
    int size = hth_grad_divisor(grad, hth_grad_2(grad, HTH_OP_MUL, s, std));
    int share = hth_grad_2(grad, HTH_OP_DIV, dot, size);
    int centred =
        hth_grad_2(grad, HTH_OP_SUB, dy, hth_grad_reduce(grad, mean, dy, axes, count, true));
    int away = hth_grad_2(grad, HTH_OP_SUB, centred, hth_grad_2(grad, HTH_OP_MUL, d, share));
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_DIV, away, s));
}
