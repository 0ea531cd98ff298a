// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM whose batch comes first (layout=1), said with transposes around the usual form,
// which is the one that has fast kernels and gradients.
#include "graph/onnx/onnx_canon.h"

// Input `at` with its first two dimensions swapped.
static hth_err rnn_input(const canon *c, int at)
{
    const hth_node *n = onnx_canon_node(c);
    int node, swapped;
    if (at >= n->n_inputs || n->inputs[at] < 0) {
        return HTH_OK;
    }
    HTH_TRY(onnx_canon_emit(c, HTH_OP_TRANSPOSE, &(int){n->inputs[at]}, 1, &node, &swapped));
    HTH_TRY(hth_node_set_ints(&c->ld->g->nodes[node], "perm", (int64_t[]){1, 0, 2}, 3));
    return onnx_canon_set_input(c, at, swapped);
}

// Output `at` is what a transpose makes of a new one.
static hth_err rnn_output(const canon *c, int at, const int64_t *perm, int rank)
{
    const hth_node *n = onnx_canon_node(c);
    int node, made, wanted = at < n->n_outputs ? n->outputs[at] : -1;
    if (wanted < 0) {
        return HTH_OK;
    }
    HTH_TRY(onnx_add_value(c->ld, n->name, "steps", NULL, &made));
    HTH_TRY(hth_graph_add_node(c->ld->g, HTH_OP_TRANSPOSE, NULL, &made, 1, &wanted, 1, &node));
    onnx_canon_node(c)->outputs[at] = made;
    c->ld->g->values[made].producer = c->index;
    return hth_node_set_ints(&c->ld->g->nodes[node], "perm", perm, rank);
}

hth_err onnx_canon_rnn(const canon *c)
{
    if (hth_node_int(onnx_canon_node(c), "layout", 0) == 0) {
        return HTH_OK;
    }
    HTH_TRY(rnn_input(c, 0));
    HTH_TRY(rnn_input(c, 5));
    HTH_TRY(rnn_input(c, 6));
    HTH_TRY(rnn_output(c, 0, (int64_t[]){2, 0, 1, 3}, 4)); // of [time, direction, batch, hidden]
    HTH_TRY(rnn_output(c, 1, (int64_t[]){1, 0, 2}, 3));
    HTH_TRY(rnn_output(c, 2, (int64_t[]){1, 0, 2}, 3));
    hth_node_drop_attr(onnx_canon_node(c), "layout");
    return HTH_OK;
}
