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

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for the layout pass");
}

static hth_err emit(layout_state *st, hth_node n)
{
    if (HTH_GROW(st->nodes, st->n_nodes, st->cap_nodes) != 0) {
        return no_memory();
    }
    for (int k = 0; k < n.n_outputs; k++) {
        if (n.outputs[k] >= 0) {
            st->from->values[n.outputs[k]].producer = st->n_nodes;
        }
    }
    st->nodes[st->n_nodes++] = n;
    return HTH_OK;
}

static hth_err emit_reorder(layout_state *st, int from, int to)
{
    hth_node r = {.op = HTH_OP_REORDER, .n_inputs = 1, .n_outputs = 1};
    r.name = hth_asprintf("%s.%s", st->from->values[from].name,
                          hth_layout_name(st->from->values[to].layout));
    r.inputs = hth_memdup(&from, sizeof from);
    r.outputs = hth_memdup(&to, sizeof to);
    hth_err err =
        r.name == NULL || r.inputs == NULL || r.outputs == NULL ? no_memory() : emit(st, r);
    if (err != HTH_OK) {
        hth_node_clear(&r);
    }
    return err;
}

// in_layout returns a value that holds `v` in layout `l`, made by a reorder if there is none yet.
static hth_err in_layout(layout_state *st, int v, hth_layout l, int *out)
{
    hth_graph *g = st->from;
    *out = v;
    if (g->values[v].layout == l || g->values[v].constant != NULL) {
        return HTH_OK;
    }
    if (v < st->n_values && st->twin[l][v] >= 0) {
        *out = st->twin[l][v];
        return HTH_OK;
    }
    hth_value copy = g->values[v];
    char *name = hth_asprintf("%s.%s", copy.name, hth_layout_name(l));
    hth_err err =
        name == NULL ? no_memory() : hth_graph_add_value(g, name, copy.dtype, &copy.shape, out);
    hth_free(name);
    HTH_TRY(err);
    g->values[*out].layout = l;
    if (v < st->n_values) {
        st->twin[l][v] = *out;
    }
    return emit_reorder(st, v, *out);
}

// follows returns the layout that a node without a wish takes over from its inputs.
static hth_layout follows(const hth_graph *g, const hth_node *n)
{
    for (int k = 0; k < n->n_inputs; k++) {
        if (n->inputs[k] >= 0 && g->values[n->inputs[k]].layout != HTH_LAYOUT_PLAIN) {
            return g->values[n->inputs[k]].layout;
        }
    }
    return HTH_LAYOUT_PLAIN;
}

// plain_output keeps graph output `y`, which node `n` would write blocked as its output k, plain:
// the node writes a value of its own, and a reorder follows.
static hth_err plain_output(layout_state *st, hth_node *n, int k, int y)
{
    hth_graph *g = st->from;
    hth_layout l = g->values[y].layout;
    hth_value copy = g->values[y];
    int blocked;
    char *name = hth_asprintf("%s.%s", copy.name, hth_layout_name(l));
    hth_err err = name == NULL ? no_memory()
                               : hth_graph_add_value(g, name, copy.dtype, &copy.shape, &blocked);
    hth_free(name);
    HTH_TRY(err);
    g->values[blocked].layout = l;
    g->values[blocked].producer = g->values[y].producer;
    g->values[y].layout = HTH_LAYOUT_PLAIN;
    if (y < st->n_values) {
        st->twin[l][y] = blocked;
    }
    n->outputs[k] = blocked;
    return emit_reorder(st, blocked, y);
}

// moves says that input `k` lies in the node's layout: its data and the operands of post ops, but
// not the filter and bias of a convolution, whose axes mean something else, nor the copy of a
// filter that an optimizer's step replaces.
static bool moves(const hth_graph *g, const hth_node *n, int k)
{
    bool filter =
        ((n->op == HTH_OP_CONV || n->op == HTH_OP_CONV_TRANSPOSE) && (k == 1 || k == 2)) ||
        (n->op == HTH_OP_CONV_GRAD_DATA && k == 1) || (n->op == HTH_OP_SGD_STEP && k == 5) ||
        (n->op == HTH_OP_ADAM_STEP && k == 6);
    for (int i = 0; i < n->n_post; i++) {
        filter &= n->post[i].input != k;
    }
    return n->inputs[k] >= 0 && g->values[n->inputs[k]].shape.rank >= 3 && !filter;
}

// writes_layout says that output `k` lies in the node's layout: the first one, but not the gradient
// of a filter; all parts of a Split; the positions of maxima next to the maxima.
static bool writes_layout(const hth_graph *g, const hth_node *n, int k)
{
    if (g->values[n->outputs[k]].shape.rank < 3) { // sums of a blocked tensor
        return false;
    }
    return (k == 0 && n->op != HTH_OP_CONV_GRAD_FILTER) || n->op == HTH_OP_SPLIT ||
           (k == 1 && n->op == HTH_OP_MAX_POOL_TRAIN);
}

static hth_err layout_node(layout_state *st, const hth_fuse_oracle *o, hth_node *n)
{
    hth_graph *g = st->from;
    bool any = false;
    hth_layout l = o->layout(o->ctx, g, n, &any);
    l = any ? follows(g, n) : l;
    bool plain_first =
        l != HTH_LAYOUT_PLAIN && o->reads_plain != NULL && o->reads_plain(o->ctx, g, n);
    for (int k = 0; k < n->n_inputs; k++) {
        int v = n->inputs[k];
        if (!moves(g, n, k)) {
            continue;
        }
        hth_layout want = k == 0 && plain_first ? HTH_LAYOUT_PLAIN : l;
        HTH_TRY(in_layout(st, v, want, &v));
        n->inputs[k] = v;
    }
    for (int k = 0; k < n->n_outputs; k++) {
        if (n->outputs[k] >= 0 && writes_layout(g, n, k)) {
            g->values[n->outputs[k]].layout = l;
        }
    }
    HTH_TRY(emit(st, *n)); // the emitted copy shares n's arrays
    for (int k = 0; k < n->n_outputs; k++) {
        int y = n->outputs[k];
        if (y >= 0 && g->values[y].is_output && writes_layout(g, n, k) &&
            g->values[y].layout != HTH_LAYOUT_PLAIN) {
            HTH_TRY(plain_output(st, n, k, y));
        }
    }
    return HTH_OK;
}

hth_err hth_pass_layout(hth_graph *g, const hth_fuse_oracle *o)
{
    layout_state st = {.from = g, .n_values = g->n_values};
    hth_err err = HTH_OK;
    int done = 0;
    for (int l = 0; l <= HTH_LAYOUT_NHWC; l++) {
        st.twin[l] = hth_alloc((size_t)g->n_values * sizeof(int));
        if (st.twin[l] == NULL) {
            err = no_memory();
            goto out;
        }
        memset(st.twin[l], -1, (size_t)g->n_values * sizeof(int));
    }
    for (; done < g->n_nodes; done++) {
        HTH_GOTO(layout_node(&st, o, &g->nodes[done]), out);
    }
    hth_free(g->nodes);
    g->nodes = st.nodes;
    g->n_nodes = st.n_nodes;
    g->cap_nodes = st.cap_nodes;
    st.nodes = NULL;
    err = hth_graph_compact(g);
out:
    if (st.nodes != NULL) { // failed in the middle: the emitted nodes own what they took over, the
                            // graph keeps the rest
        int kept = 0;
        for (int i = 0; i < st.n_nodes; i++) {
            if (st.nodes[i].op == HTH_OP_REORDER) {
                hth_node_clear(&st.nodes[i]);
            } else {
                g->nodes[kept++] = st.nodes[i];
            }
        }
        hth_free(st.nodes);
    }
    for (int l = 0; l <= HTH_LAYOUT_NHWC; l++) {
        hth_free(st.twin[l]);
    }
    return err;
}
