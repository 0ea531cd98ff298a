// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_binary.c - gradients of element-wise operators of several operands. Operands
// may be broadcast: each gradient is summed down to its operand's shape.
#include "graph/autodiff/grad.h"

#include "graph/passes/pass_util.h"

static void give_summed(hth_grad *c, const hth_node *n, int k, int v)
{
    if (hth_grad_wants(c, n, k)) {
        hth_grad_give(c, n, k, hth_grad_sum_to(c, v, hth_grad_shape(c, n->inputs[k])));
    }
}

void hth_grad_add(hth_grad *c, const hth_node *n)
{
    for (int k = 0; k < n->n_inputs; k++) {
        give_summed(c, n, k, hth_grad_out(c, n, 0));
    }
}

void hth_grad_sub(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0);
    give_summed(c, n, 0, dy);
    if (hth_grad_wants(c, n, 1)) { // negated after the sum: there it is small
        int sum = hth_grad_sum_to(c, dy, hth_grad_shape(c, n->inputs[1]));
        hth_grad_give(c, n, 1, hth_grad_1(c, HTH_OP_NEG, sum));
    }
}

void hth_grad_mul(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0);
    for (int k = 0; k < 2; k++) {
        if (hth_grad_wants(c, n, k)) {
            give_summed(c, n, k, hth_grad_2(c, HTH_OP_MUL, dy, n->inputs[1 - k]));
        }
    }
}

void hth_grad_div(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0), a = n->inputs[0], b = n->inputs[1];
    if (hth_grad_wants(c, n, 0)) {
        give_summed(c, n, 0, hth_grad_2(c, HTH_OP_DIV, dy, b));
    }
    if (hth_grad_wants(c, n, 1)) { // -dy a / b^2
        int over = hth_grad_2(c, HTH_OP_DIV, a, hth_grad_2(c, HTH_OP_MUL, b, b));
        int sum = hth_grad_sum_to(c, hth_grad_2(c, HTH_OP_MUL, dy, over), hth_grad_shape(c, b));
        hth_grad_give(c, n, 1, hth_grad_1(c, HTH_OP_NEG, sum));
    }
}

void hth_grad_pow(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0), a = n->inputs[0], b = n->inputs[1], slope;
    float p;
    if (hth_grad_wants(c, n, 0)) {
        if (hth_pass_scalar(c->g, b, &p)) {
            int power = p == 2 ? a : hth_grad_2(c, HTH_OP_POW, a, hth_grad_scalar(c, p - 1));
            slope = hth_grad_2(c, HTH_OP_MUL, power, hth_grad_scalar(c, p));
        } else {
            int less = hth_grad_2(c, HTH_OP_SUB, b, hth_grad_scalar(c, 1));
            slope = hth_grad_2(c, HTH_OP_MUL, hth_grad_2(c, HTH_OP_POW, a, less), b);
        }
        give_summed(c, n, 0, hth_grad_2(c, HTH_OP_MUL, dy, slope));
    }
    if (hth_grad_wants(c, n, 1)) {
        int log = hth_grad_1(c, HTH_OP_LOG, a);
        slope = hth_grad_2(c, HTH_OP_MUL, n->outputs[0], log);
        give_summed(c, n, 1, hth_grad_2(c, HTH_OP_MUL, dy, slope));
    }
}

void hth_grad_prelu(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0), x = n->inputs[0];
    int positive = hth_grad_2(c, HTH_OP_GREATER, x, hth_grad_scalar(c, 0));
    if (hth_grad_wants(c, n, 0)) {
        int slope = hth_grad_3(c, HTH_OP_WHERE, positive, hth_grad_scalar(c, 1), n->inputs[1]);
        hth_grad_give(c, n, 0, hth_grad_2(c, HTH_OP_MUL, dy, slope));
    }
    if (hth_grad_wants(c, n, 1)) {
        int below = hth_grad_3(c, HTH_OP_WHERE, positive, hth_grad_scalar(c, 0), x);
        give_summed(c, n, 1, hth_grad_2(c, HTH_OP_MUL, dy, below));
    }
}

void hth_grad_mean(hth_grad *c, const hth_node *n)
{
    int share = hth_grad_scalar(c, 1 / (float)n->n_inputs);
    int dy = hth_grad_2(c, HTH_OP_MUL, hth_grad_out(c, n, 0), share);
    for (int k = 0; k < n->n_inputs; k++) {
        give_summed(c, n, k, dy);
    }
}

// Max and Min: operands that reach the result share its gradient evenly.
void hth_grad_extreme(hth_grad *c, const hth_node *n)
{
    int y = n->outputs[0], count = -1;
    for (int k = 0; k < n->n_inputs; k++) {
        int mask = hth_grad_equal(c, n->inputs[k], y);
        count = k == 0 ? mask : hth_grad_2(c, HTH_OP_ADD, count, mask);
    }
    int share = hth_grad_2(c, HTH_OP_DIV, hth_grad_out(c, n, 0), count);
    for (int k = 0; k < n->n_inputs; k++) {
        if (hth_grad_wants(c, n, k)) {
            int mask = hth_grad_equal(c, n->inputs[k], y);
            give_summed(c, n, k, hth_grad_2(c, HTH_OP_MUL, share, mask));
        }
    }
}

// The remainder y = a - trunc(a / b) b: as a moves, so does it; by b it is -trunc(a / b).
void hth_grad_mod(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0);
    give_summed(c, n, 0, dy);
    if (hth_grad_wants(c, n, 1)) {
        int less = hth_grad_2(c, HTH_OP_SUB, n->outputs[0], n->inputs[0]);
        int slope = hth_grad_2(c, HTH_OP_DIV, less, n->inputs[1]);
        give_summed(c, n, 1, hth_grad_2(c, HTH_OP_MUL, dy, slope));
    }
}

// A rotation; its gradient turns the other way.
void hth_grad_rotary(hth_grad *c, const hth_node *n)
{
    int in[4] = {hth_grad_out(c, n, 0), n->inputs[1], hth_grad_1(c, HTH_OP_NEG, n->inputs[2]),
                 n->n_inputs > 3 ? n->inputs[3] : -1};
    hth_grad_begin(c, HTH_OP_ROTARY_EMBEDDING, in, n->n_inputs, 1);
    hth_grad_attrs(c, n);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

void hth_grad_where(hth_grad *c, const hth_node *n)
{
    int dy = hth_grad_out(c, n, 0), zero = hth_grad_scalar(c, 0), p = n->inputs[0];
    if (hth_grad_wants(c, n, 1)) {
        give_summed(c, n, 1, hth_grad_3(c, HTH_OP_WHERE, p, dy, zero));
    }
    if (hth_grad_wants(c, n, 2)) {
        give_summed(c, n, 2, hth_grad_3(c, HTH_OP_WHERE, p, zero, dy));
    }
}
