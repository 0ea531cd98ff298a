// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_rnn.c - recurrent layers: one operator walks back through time.
#include "graph/autodiff/grad.h"

#include <string.h>
#include <strings.h>

// The cells that RnnGrad knows: the usual activations, *relu: RNN with Relu.
static bool usual_cell(const hth_node *node, bool *relu)
{
    static const char *const usual[] = {"Sigmoid", "Tanh", "Tanh"};
    const hth_attr *names = hth_node_attr(node, "activations");
    int per = node->op == HTH_OP_GRU ? 2 : 1;
    per = node->op == HTH_OP_LSTM ? 3 : per;
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
    return (relus == 0 || relus == names->n) && hth_node_float(node, "clip", 0) == 0 &&
           hth_node_int(node, "input_forget", 0) == 0;
}

static int input_or_none(const hth_node *node, int k)
{
    return k < node->n_inputs ? node->inputs[k] : -1;
}

void hth_grad_rnn(hth_grad *grad, const hth_node *node)
{
    static const int to[6] = {0, 1, 2, 3, 5, 6}; // RnnGrad's outputs -> the layer's inputs
    bool relu;
    if (!usual_cell(node, &relu) || input_or_none(node, 4) >= 0 || input_or_none(node, 7) >= 0) {
        hth_grad_fail(grad,
                      "lengths, peepholes, clipping and unusual activations have no gradient");
        return;
    }
    int in[9], v[6];
    for (int k = 0; k < 6; k++) {
        in[k] = input_or_none(node, to[k]);
    }
    for (int k = 0; k < 3; k++) {
        in[6 + k] = hth_grad_out(grad, node, k);
    }
    hth_grad_begin(grad, HTH_OP_RNN_GRAD, in, 9, 6);
    hth_grad_str(grad, "of", hth_op_name(node->op));
    hth_grad_str(grad, "direction", hth_node_str(node, "direction", "forward"));
    hth_grad_int(grad, "layout", hth_node_int(node, "layout", 0));
    hth_grad_int(grad, "linear_before_reset", hth_node_int(node, "linear_before_reset", 0));
    hth_grad_int(grad, "relu", relu);
    hth_grad_end(grad);
    for (int k = 0; k < 6; k++) {
        if (grad->err == HTH_OK && !hth_grad_wants(grad, node, to[k])) {
            grad->g->nodes[grad->node].outputs[k] = -1;
        }
        v[k] = hth_grad_output(grad, k);
    }
    for (int k = 0; k < 6; k++) {
        hth_grad_give(grad, node, to[k], v[k]);
    }
}
