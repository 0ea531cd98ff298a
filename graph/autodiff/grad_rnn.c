// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_rnn.c - recurrent layers: one operator walks back through time.
#include "graph/autodiff/grad.h"

#include <string.h>
#include <strings.h>

// The cells that RnnGrad knows: the usual activations, *relu: RNN with Relu.
static bool usual_cell(const hth_node *n, bool *relu)
{
    static const char *const usual[] = {"Sigmoid", "Tanh", "Tanh"};
    const hth_attr *names = hth_node_attr(n, "activations");
    int per = n->op == HTH_OP_GRU ? 2 : 1;
    per = n->op == HTH_OP_LSTM ? 3 : per;
    int relus = 0;
    *relu = false;
    for (int i = 0; names != NULL && names->type == HTH_ATTR_STRINGS && i < names->n; i++) {
        const char *want = per == 1 ? "Tanh" : usual[i % per];
        bool is_relu = per == 1 && strcasecmp(names->u.strings[i], "Relu") == 0;
        relus += is_relu;
        if (!is_relu && strcasecmp(names->u.strings[i], want) != 0) {
            return false;
        }
    }
    *relu = relus > 0;
    return (relus == 0 || relus == names->n) && hth_node_float(n, "clip", 0) == 0 &&
           hth_node_int(n, "input_forget", 0) == 0;
}

static int input_or_none(const hth_node *n, int k)
{
    return k < n->n_inputs ? n->inputs[k] : -1;
}

void hth_grad_rnn(hth_grad *c, const hth_node *n)
{
    static const int to[6] = {0, 1, 2, 3, 5, 6}; // RnnGrad's outputs -> the layer's inputs
    bool relu;
    if (!usual_cell(n, &relu) || input_or_none(n, 4) >= 0 || input_or_none(n, 7) >= 0) {
        hth_grad_fail(c, "lengths, peepholes, clipping and unusual activations have no gradient");
        return;
    }
    int in[9], v[6];
    for (int k = 0; k < 6; k++) {
        in[k] = input_or_none(n, to[k]);
    }
    for (int k = 0; k < 3; k++) {
        in[6 + k] = hth_grad_out(c, n, k);
    }
    hth_grad_begin(c, HTH_OP_RNN_GRAD, in, 9, 6);
    hth_grad_str(c, "of", hth_op_name(n->op));
    hth_grad_str(c, "direction", hth_node_str(n, "direction", "forward"));
    hth_grad_int(c, "layout", hth_node_int(n, "layout", 0));
    hth_grad_int(c, "linear_before_reset", hth_node_int(n, "linear_before_reset", 0));
    hth_grad_int(c, "relu", relu);
    hth_grad_end(c);
    for (int k = 0; k < 6; k++) {
        if (c->err == HTH_OK && !hth_grad_wants(c, n, to[k])) {
            c->g->nodes[c->node].outputs[k] = -1;
        }
        v[k] = hth_grad_output(c, k);
    }
    for (int k = 0; k < 6; k++) {
        hth_grad_give(c, n, to[k], v[k]);
    }
}
