// SPDX-License-Identifier: Apache-2.0
// Which values are kept in bf16. All activations and their gradients may be at first; what its
// maker cannot write so, or a reader cannot read so, is taken off, and of a node whose tensors must
// be of one type with one of them all, until nothing changes. Inputs, outputs and constants of the
// graph, hence parameters and all state, are what they are; vectors (statistics, biases) stay f32.
// Nothing is inserted: where types meet, kernels convert what they read.
#include "graph/passes/pass.h"

#include "base/alloc.h"

typedef struct half_state {
    const hth_graph *g;
    bool *half; // per value
    hth_half_fn fn;
    void *ctx;
    bool changed;
} half_state;

static bool half_candidate(const hth_value *value)
{
    return value->dtype == HTH_DT_F32 && value->constant == NULL && value->producer >= 0 &&
           !value->is_input && !value->is_output && value->shape.rank >= 2;
}

static void half_drop(half_state *st, int value)
{
    st->changed = st->changed || st->half[value];
    st->half[value] = false;
}

// One side of a node: drops what cannot be, or with `together` all that must be alike. Returns
// whether all that must be alike are still there.
static bool half_side(half_state *st, const hth_node *node, bool in, bool together)
{
    bool all = true;
    for (int k = 0; k < (in ? node->n_inputs : node->n_outputs); k++) {
        int v = in ? node->inputs[k] : node->outputs[k];
        bool alike = false;
        if (v < 0 || st->g->values[v].dtype != HTH_DT_F32) {
            continue;
        }
        if (!st->fn(st->ctx, st->g, node, in, k, &alike) || (together && alike)) {
            half_drop(st, v);
        }
        all = all && (!alike || st->half[v]);
    }
    return all;
}

static void half_node(half_state *st, const hth_node *node)
{
    bool in = half_side(st, node, true, false), out = half_side(st, node, false, false);
    if (!in || !out) {
        (void)half_side(st, node, true, true);
        (void)half_side(st, node, false, true);
    }
}

hth_err hth_pass_half(hth_graph *graph, hth_half_fn fn, void *ctx)
{
    half_state st = {.g = graph, .fn = fn, .ctx = ctx, .changed = true};
    st.half = hth_calloc((size_t)graph->n_values + 1, sizeof *st.half);
    if (st.half == NULL) {
        return hth_no_memory("the pass that keeps values in bf16");
    }
    for (int v = 0; v < graph->n_values; v++) {
        st.half[v] = half_candidate(&graph->values[v]);
    }
    while (st.changed) {
        st.changed = false;
        for (int i = 0; i < graph->n_nodes; i++) {
            half_node(&st, &graph->nodes[i]);
        }
    }
    for (int v = 0; v < graph->n_values; v++) {
        graph->values[v].dtype = st.half[v] ? HTH_DT_BF16 : graph->values[v].dtype;
    }
    hth_free(st.half);
    return HTH_OK;
}
