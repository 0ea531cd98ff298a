// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_binary.c - gradients of element-wise operators of several operands. Operands
// may be broadcast: each gradient is summed down to its operand's shape.
#include "graph/autodiff/grad.h"

#include "graph/passes/pass_util.h"

static void give_summed(hth_grad *grad, const hth_node *node, int k, int v)
{
    if (hth_grad_wants(grad, node, k)) {
        hth_grad_give(grad, node, k,
                      hth_grad_sum_to(grad, v, hth_grad_shape(grad, node->inputs[k])));
    }
}

void hth_grad_add(hth_grad *grad, const hth_node *node)
{
    for (int k = 0; k < node->n_inputs; k++) {
        give_summed(grad, node, k, hth_grad_out(grad, node, 0));
    }
}

void hth_grad_sub(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0);
    give_summed(grad, node, 0, dy);
    if (hth_grad_wants(grad, node, 1)) { // negated after the sum: there it is small
        int sum = hth_grad_sum_to(grad, dy, hth_grad_shape(grad, node->inputs[1]));
        hth_grad_give(grad, node, 1, hth_grad_1(grad, HTH_OP_NEG, sum));
    }
}

void hth_grad_mul(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0);
    for (int k = 0; k < 2; k++) {
        if (hth_grad_wants(grad, node, k)) {
            give_summed(grad, node, k, hth_grad_2(grad, HTH_OP_MUL, dy, node->inputs[1 - k]));
        }
    }
}

void hth_grad_div(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0), b = node->inputs[1];
    if (hth_grad_wants(grad, node, 0)) {
        give_summed(grad, node, 0, hth_grad_2(grad, HTH_OP_DIV, dy, b));
    }
    if (hth_grad_wants(grad, node, 1)) { // -dy (a / b) / b: b^2 may be 0 where b is not
        int over = hth_grad_2(grad, HTH_OP_DIV, node->outputs[0], b);
        int each = hth_grad_2(grad, HTH_OP_MUL, dy, over);
        int sum = hth_grad_sum_to(grad, each, hth_grad_shape(grad, b));
        hth_grad_give(grad, node, 1, hth_grad_1(grad, HTH_OP_NEG, sum));
    }
}

// exponent_known stores the exponent where it is one constant number, of whatever type.
static bool exponent_known(hth_grad *grad, int b, float *p)
{
    int64_t n;
    if (hth_pass_scalar(grad->g, b, p)) {
        return true;
    }
    bool whole = hth_grad_content(grad, b, &n, 1) == 1;
    *p = whole ? (float)n : 0;
    return whole;
}

// Exponents of integers in the base's type.
static int exponent_f32(hth_grad *grad, int b)
{
    if (grad->g->values[b].dtype == HTH_DT_F32) {
        return b;
    }
    hth_grad_begin(grad, HTH_OP_CAST, &b, 1, 1);
    hth_grad_int(grad, "to", HTH_DT_F32);
    return hth_grad_end(grad);
}

// b a^(b-1) and a^b log(a). As in PyTorch they are 0 for an exponent of 0, where the power stays
// a^0, and for the exponent of a base of 0, unless it is negative: then 0^b is infinite, and so is
// its gradient.
void hth_grad_pow(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0), a = node->inputs[0], b = node->inputs[1], slope;
    float p;
    if (hth_grad_wants(grad, node, 0)) {
        if (exponent_known(grad, b, &p)) {
            float less = p == 0 ? 0 : p - 1;
            int power = p == 2 ? a : hth_grad_2(grad, HTH_OP_POW, a, hth_grad_scalar(grad, less));
            slope = hth_grad_2(grad, HTH_OP_MUL, power, hth_grad_scalar(grad, p));
        } else {
            int e = exponent_f32(grad, b);
            int none = hth_grad_2(grad, HTH_OP_EQUAL, e, hth_grad_scalar(grad, 0));
            int less = hth_grad_2(grad, HTH_OP_SUB, e, hth_grad_scalar(grad, 1));
            less = hth_grad_3(grad, HTH_OP_WHERE, none, e, less);
            slope = hth_grad_2(grad, HTH_OP_MUL, hth_grad_2(grad, HTH_OP_POW, a, less), e);
        }
        give_summed(grad, node, 0, hth_grad_2(grad, HTH_OP_MUL, dy, slope));
    }
    if (hth_grad_wants(grad, node, 1)) {
        int zero = hth_grad_scalar(grad, 0), none = hth_grad_2(grad, HTH_OP_EQUAL, a, zero);
        none =
            hth_grad_2(grad, HTH_OP_AND, none, hth_grad_2(grad, HTH_OP_GREATER_OR_EQUAL, b, zero));
        slope = hth_grad_2(grad, HTH_OP_MUL, node->outputs[0], hth_grad_1(grad, HTH_OP_LOG, a));
        int each = hth_grad_2(grad, HTH_OP_MUL, dy, slope);
        give_summed(grad, node, 1, hth_grad_3(grad, HTH_OP_WHERE, none, zero, each));
    }
}

void hth_grad_prelu(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0), x = node->inputs[0];
    int positive = hth_grad_2(grad, HTH_OP_GREATER, x, hth_grad_scalar(grad, 0));
    if (hth_grad_wants(grad, node, 0)) {
        int slope =
            hth_grad_3(grad, HTH_OP_WHERE, positive, hth_grad_scalar(grad, 1), node->inputs[1]);
        hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_MUL, dy, slope));
    }
    if (hth_grad_wants(grad, node, 1)) {
        int each = hth_grad_2(grad, HTH_OP_MUL, dy, x), zero = hth_grad_scalar(grad, 0);
        give_summed(grad, node, 1, hth_grad_3(grad, HTH_OP_WHERE, positive, zero, each));
    }
}

void hth_grad_mean(hth_grad *grad, const hth_node *node)
{
    int share = hth_grad_scalar(grad, 1 / (float)node->n_inputs);
    int dy = hth_grad_2(grad, HTH_OP_MUL, hth_grad_out(grad, node, 0), share);
    for (int k = 0; k < node->n_inputs; k++) {
        give_summed(grad, node, k, dy);
    }
}

// Max and Min: operands that reach the result share its gradient evenly. Others get 0, though it be
// infinite.
void hth_grad_extreme(hth_grad *grad, const hth_node *node)
{
    int y = node->outputs[0], count = -1;
    for (int k = 0; k < node->n_inputs; k++) {
        int mask = hth_grad_equal(grad, node->inputs[k], y);
        count = k == 0 ? mask : hth_grad_2(grad, HTH_OP_ADD, count, mask);
    }
    int share = hth_grad_2(grad, HTH_OP_DIV, hth_grad_out(grad, node, 0), count);
    for (int k = 0; k < node->n_inputs; k++) {
        if (hth_grad_wants(grad, node, k)) {
            int same = hth_grad_2(grad, HTH_OP_EQUAL, node->inputs[k], y);
            int none = hth_grad_scalar(grad, 0);
            give_summed(grad, node, k, hth_grad_3(grad, HTH_OP_WHERE, same, share, none));
        }
    }
}

// The remainder y = a - trunc(a / b) b: as a moves, so does it; by b it is -trunc(a / b).
void hth_grad_mod(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0);
    give_summed(grad, node, 0, dy);
    if (hth_grad_wants(grad, node, 1)) {
        int less = hth_grad_2(grad, HTH_OP_SUB, node->outputs[0], node->inputs[0]);
        int slope = hth_grad_2(grad, HTH_OP_DIV, less, node->inputs[1]);
        give_summed(grad, node, 1, hth_grad_2(grad, HTH_OP_MUL, dy, slope));
    }
}

// A rotation; its gradient turns the other way.
void hth_grad_rotary(hth_grad *grad, const hth_node *node)
{
    int in[4] = {hth_grad_out(grad, node, 0), node->inputs[1],
                 hth_grad_1(grad, HTH_OP_NEG, node->inputs[2]),
                 node->n_inputs > 3 ? node->inputs[3] : -1};
    hth_grad_begin(grad, HTH_OP_ROTARY_EMBEDDING, in, node->n_inputs, 1);
    hth_grad_attrs(grad, node);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

void hth_grad_where(hth_grad *grad, const hth_node *node)
{
    int dy = hth_grad_out(grad, node, 0), zero = hth_grad_scalar(grad, 0), p = node->inputs[0];
    if (hth_grad_wants(grad, node, 1)) {
        give_summed(grad, node, 1, hth_grad_3(grad, HTH_OP_WHERE, p, dy, zero));
    }
    if (hth_grad_wants(grad, node, 2)) {
        give_summed(grad, node, 2, hth_grad_3(grad, HTH_OP_WHERE, p, zero, dy));
    }
}
