// SPDX-License-Identifier: Apache-2.0
// A batch norm of a training step whose input and result do not lie on the device together, and the
// convolution that made the input, become one operator, forward and backward (ConvNormTrain,
// ConvNormGrad): the convolution's result is computed again, slice by slice, where it is needed,
// and is never there as a whole. It costs three more convolutions: only what must be is changed.
#include "graph/passes/pass.h"

#include "base/alloc.h"
#include "graph/passes/pass_util.h"

typedef struct norm_chain {
    int conv, norm, grad; // nodes; grad -1: the step needs no gradients of them
} norm_chain;

static uint64_t norm_bytes(const hth_graph *graph, int value)
{
    const hth_value *v = &graph->values[value];
    size_t bytes;
    return hth_tensor_bytes(v->dtype, &v->shape, v->layout, &bytes) == HTH_OK ? bytes : UINT64_MAX;
}

// Post ops of one operand are applied to each slice; others would need a slice of theirs.
static bool norm_alone(const hth_node *node)
{
    bool alone = true;
    for (int i = 0; i < node->n_post; i++) {
        alone = alone && node->post[i].input < 0;
    }
    return alone;
}

// norm_readers looks for the gradient among those who read x; false: there are others.
static bool norm_readers(const hth_graph *graph, int x, norm_chain *chain)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        for (int k = 0; k < n->n_inputs && !n->deleted; k++) {
            if (n->inputs[k] != x || i == chain->norm) {
                continue;
            }
            bool grad = n->op == HTH_OP_BATCH_NORM_GRAD && k == 1 && n->n_post == 0 &&
                        hth_node_int(n, "share", -1) < 0 && chain->grad < 0;
            if (!grad) {
                return false;
            }
            chain->grad = i;
        }
    }
    return !graph->values[x].is_output;
}

// A chain is worth joining where the convolution's input is small: it has to be there with y, and
// half of x with them at most.
static bool norm_find(const hth_graph *graph, int i, uint64_t bytes, norm_chain *out)
{
    const hth_node *norm = &graph->nodes[i];
    *out = (norm_chain){.norm = i, .grad = -1};
    if (norm->op != HTH_OP_BATCH_NORM_TRAIN || !norm_alone(norm) ||
        hth_node_int(norm, "share", -1) >= 0) {
        return false;
    }
    int x = norm->inputs[0], y = norm->outputs[0];
    const hth_node *conv = hth_pass_producer(graph, norm, 0, HTH_OP_CONV);
    if (conv == NULL || conv->n_post > 0 || y < 0 || graph->values[x].dtype != HTH_DT_F32 ||
        graph->values[x].layout != graph->values[y].layout || graph->values[x].shape.dim[0] < 2 ||
        norm_bytes(graph, x) + norm_bytes(graph, y) <= bytes ||
        norm_bytes(graph, conv->inputs[0]) > norm_bytes(graph, x) / 2) {
        return false;
    }
    out->conv = (int)(conv - graph->nodes);
    return norm_readers(graph, x, out);
}

// norm_inputs gives the node the inputs that it had in front of the convolution's.
static hth_err norm_inputs(hth_node *node, const hth_node *conv, int first, const int *from, int n)
{
    int had[8], count = node->n_inputs;
    for (int i = 0; i < count; i++) {
        had[i] = node->inputs[i];
    }
    while (node->n_inputs < n) {
        HTH_TRY(hth_node_add_input(node, -1));
    }
    node->n_inputs = n;
    for (int i = 0; i < 3; i++) {
        node->inputs[first + i] = i < conv->n_inputs ? conv->inputs[i] : -1;
    }
    for (int i = first + 3; i < n; i++) {
        node->inputs[i] = had[from[i - first - 3]];
    }
    return HTH_OK;
}

// norm_attributes adds the convolution's to the node's own.
static hth_err norm_attributes(hth_node *node, const hth_node *conv)
{
    hth_node own = {.name = node->name, .n_attrs = node->n_attrs, .attrs = node->attrs};
    node->n_attrs = 0;
    node->attrs = NULL;
    hth_err err = hth_node_copy_attrs(node, conv);
    for (int i = 0; err == HTH_OK && i < own.n_attrs; i++) {
        err = own.attrs[i].type == HTH_ATTR_FLOAT
                  ? hth_node_set_float(node, own.attrs[i].name, own.attrs[i].u.f)
                  : HTH_OK;
    }
    for (int i = 0; i < own.n_attrs; i++) {
        hth_attr_clear(&own.attrs[i]);
    }
    hth_free(own.attrs);
    return err;
}

static hth_err norm_join(hth_graph *graph, const norm_chain *chain)
{
    static const int forward[] = {1, 2, 3, 4}, backward[] = {2, 3, 4, 5};
    const hth_node *conv = &graph->nodes[chain->conv];
    hth_node *norm = &graph->nodes[chain->norm];
    const hth_shape *y = &graph->values[norm->outputs[0]].shape;
    HTH_TRY(norm_inputs(norm, conv, 0, forward, 7));
    HTH_TRY(norm_attributes(norm, conv));
    HTH_TRY(hth_node_set_ints(norm, "shape", y->dim, y->rank));
    norm->op = HTH_OP_CONV_NORM_TRAIN;
    if (chain->grad >= 0) {
        hth_node *grad = &graph->nodes[chain->grad];
        HTH_TRY(norm_inputs(grad, conv, 1, backward, grad->n_inputs + 2));
        HTH_TRY(norm_attributes(grad, conv));
        grad->op = HTH_OP_CONV_NORM_GRAD;
    }
    graph->nodes[chain->conv].deleted = true;
    return HTH_OK;
}

hth_err hth_pass_conv_norm(hth_graph *graph, uint64_t bytes, int *joined)
{
    norm_chain chain;
    *joined = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (norm_find(graph, i, bytes, &chain)) {
            HTH_TRY(norm_join(graph, &chain));
            ++*joined;
        }
    }
    return *joined > 0 ? hth_graph_compact(graph) : HTH_OK;
}
