// SPDX-License-Identifier: Apache-2.0
// Layouts: each node is asked, in order, which layout it wants; what it reads is converted where it
// lies otherwise, and one conversion serves all readers. Nodes that take any layout follow their
// first input that is not plain, so blocked data flows from convolution to convolution; reorders
// are left only at the borders. Graph inputs and outputs are plain, but for those that come in a
// layout of their own (a filter's copy in a training step): who reads or writes them takes that.
#include "graph/passes/pass.h"

#include "base/alloc.h"

#include <string.h>

typedef struct layout_state {
    hth_graph *from; // nodes are taken from here in order ..
    hth_node *nodes; // .. and put here, with reorders between
    int n_nodes, cap_nodes;
    int *twin[HTH_LAYOUT_NHWC +
              1]; // per value: the value that holds it in that layout, -1: none yet
    int n_values; // values that the arrays cover
} layout_state;

static hth_err emit(layout_state *st, hth_node node)
{
    if (HTH_GROW(st->nodes, st->n_nodes, st->cap_nodes) != 0) {
        return hth_no_memory("the layout pass");
    }
    for (int k = 0; k < node.n_outputs; k++) {
        if (node.outputs[k] >= 0) {
            st->from->values[node.outputs[k]].producer = st->n_nodes;
        }
    }
    st->nodes[st->n_nodes++] = node;
    return HTH_OK;
}

static hth_err emit_reorder(layout_state *st, int from, int to)
{
    hth_node r = {.op = HTH_OP_REORDER, .n_inputs = 1, .n_outputs = 1};
    r.name = hth_asprintf("%s.%s", st->from->values[from].name,
                          hth_layout_name(st->from->values[to].layout));
    r.inputs = hth_memdup(&from, sizeof from);
    r.outputs = hth_memdup(&to, sizeof to);
    hth_err err = r.name == NULL || r.inputs == NULL || r.outputs == NULL
                      ? hth_no_memory("the layout pass")
                      : emit(st, r);
    if (err != HTH_OK) {
        hth_node_clear(&r);
    }
    return err;
}

// in_layout returns a value that holds `v` in layout `layout`, made by a reorder if there is none
// yet.
static hth_err in_layout(layout_state *st, int v, hth_layout layout, int *out)
{
    hth_graph *g = st->from;
    *out = v;
    if (g->values[v].layout == layout || g->values[v].constant != NULL) {
        return HTH_OK;
    }
    if (v < st->n_values && st->twin[layout][v] >= 0) {
        *out = st->twin[layout][v];
        return HTH_OK;
    }
    hth_value copy = g->values[v];
    char *name = hth_asprintf("%s.%s", copy.name, hth_layout_name(layout));
    hth_err err = name == NULL ? hth_no_memory("the layout pass")
                               : hth_graph_add_value(g, name, copy.dtype, &copy.shape, out);
    hth_free(name);
    HTH_TRY(err);
    g->values[*out].layout = layout;
    if (v < st->n_values) {
        st->twin[layout][v] = *out;
    }
    return emit_reorder(st, v, *out);
}

// follows returns the layout that a node without a wish takes over from its inputs.
static hth_layout follows(const hth_graph *graph, const hth_node *node)
{
    for (int k = 0; k < node->n_inputs; k++) {
        if (node->inputs[k] >= 0 && graph->values[node->inputs[k]].layout != HTH_LAYOUT_PLAIN) {
            return graph->values[node->inputs[k]].layout;
        }
    }
    return HTH_LAYOUT_PLAIN;
}

// plain_output keeps graph output `y`, which node `node` would write blocked as its output k,
// plain: the node writes a value of its own, and a reorder follows.
static hth_err plain_output(layout_state *st, hth_node *node, int k, int y)
{
    hth_graph *g = st->from;
    hth_layout l = g->values[y].layout;
    hth_value copy = g->values[y];
    int blocked;
    char *name = hth_asprintf("%s.%s", copy.name, hth_layout_name(l));
    hth_err err = name == NULL ? hth_no_memory("the layout pass")
                               : hth_graph_add_value(g, name, copy.dtype, &copy.shape, &blocked);
    hth_free(name);
    HTH_TRY(err);
    g->values[blocked].layout = l;
    g->values[blocked].producer = g->values[y].producer;
    g->values[y].layout = HTH_LAYOUT_PLAIN;
    if (y < st->n_values) {
        st->twin[l][y] = blocked;
    }
    node->outputs[k] = blocked;
    return emit_reorder(st, blocked, y);
}

// moves says that input `k` lies in the node's layout: its data and the operands of post ops, but
// not the filter and bias of a convolution, whose axes mean something else, nor the copy of a
// filter that an optimizer's step replaces.
static bool moves(const hth_graph *graph, const hth_node *node, int k)
{
    bool filter =
        ((node->op == HTH_OP_CONV || node->op == HTH_OP_CONV_TRANSPOSE) && (k == 1 || k == 2)) ||
        (node->op == HTH_OP_CONV_GRAD_DATA && k == 1) || (node->op == HTH_OP_SGD_STEP && k == 5) ||
        (node->op == HTH_OP_ADAM_STEP && k == 6);
    for (int i = 0; i < node->n_post; i++) {
        filter &= node->post[i].input != k;
    }
    return node->inputs[k] >= 0 && graph->values[node->inputs[k]].shape.rank >= 3 && !filter;
}

// writes_layout says that output `k` lies in the node's layout: the first one, but not the gradient
// of a filter; all parts of a Split; the positions of maxima next to the maxima.
static bool writes_layout(const hth_graph *graph, const hth_node *node, int k)
{
    if (graph->values[node->outputs[k]].shape.rank < 3) { // sums of a blocked tensor
        return false;
    }
    return (k == 0 && node->op != HTH_OP_CONV_GRAD_FILTER) || node->op == HTH_OP_SPLIT ||
           (k == 1 && node->op == HTH_OP_MAX_POOL_TRAIN);
}

static hth_err layout_node(layout_state *st, const hth_fuse_oracle *oracle, hth_node *node)
{
    hth_graph *g = st->from;
    bool any = false;
    hth_layout l = oracle->layout(oracle->ctx, g, node, &any);
    l = any ? follows(g, node) : l;
    bool plain_first = l != HTH_LAYOUT_PLAIN && oracle->reads_plain != NULL &&
                       oracle->reads_plain(oracle->ctx, g, node);
    for (int k = 0; k < node->n_inputs; k++) {
        int v = node->inputs[k];
        if (!moves(g, node, k)) {
            continue;
        }
        hth_layout want = k == 0 && plain_first ? HTH_LAYOUT_PLAIN : l;
        HTH_TRY(in_layout(st, v, want, &v));
        node->inputs[k] = v;
    }
    for (int k = 0; k < node->n_outputs; k++) {
        if (node->outputs[k] >= 0 && writes_layout(g, node, k)) {
            g->values[node->outputs[k]].layout = l;
        }
    }
    HTH_TRY(emit(st, *node)); // the emitted copy shares node's arrays
    for (int k = 0; k < node->n_outputs; k++) {
        int y = node->outputs[k];
        if (y >= 0 && g->values[y].is_output && writes_layout(g, node, k) &&
            g->values[y].layout != HTH_LAYOUT_PLAIN) {
            HTH_TRY(plain_output(st, node, k, y));
        }
    }
    return HTH_OK;
}

hth_err hth_pass_layout(hth_graph *graph, const hth_fuse_oracle *oracle)
{
    layout_state st = {.from = graph, .n_values = graph->n_values};
    hth_err err = HTH_OK;
    int done = 0;
    for (int l = 0; l <= HTH_LAYOUT_NHWC; l++) {
        st.twin[l] = hth_alloc((size_t)graph->n_values * sizeof(int));
        if (st.twin[l] == NULL) {
            err = hth_no_memory("the layout pass");
            goto out;
        }
        memset(st.twin[l], -1, (size_t)graph->n_values * sizeof(int));
    }
    for (; done < graph->n_nodes; done++) {
        HTH_GOTO(layout_node(&st, oracle, &graph->nodes[done]), out);
    }
    hth_free(graph->nodes);
    graph->nodes = st.nodes;
    graph->n_nodes = st.n_nodes;
    graph->cap_nodes = st.cap_nodes;
    st.nodes = NULL;
    err = hth_graph_compact(graph);
out:
    if (st.nodes != NULL) { // failed in the middle: the emitted nodes own what they took over, the
                            // graph keeps the rest
        int kept = 0;
        for (int i = 0; i < st.n_nodes; i++) {
            if (st.nodes[i].op == HTH_OP_REORDER) {
                hth_node_clear(&st.nodes[i]);
            } else {
                graph->nodes[kept++] = st.nodes[i];
            }
        }
        hth_free(st.nodes);
    }
    for (int l = 0; l <= HTH_LAYOUT_NHWC; l++) {
        hth_free(st.twin[l]);
    }
    return err;
}
