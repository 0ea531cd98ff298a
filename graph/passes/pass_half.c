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

static bool half_candidate(const hth_value *v)
{
    return v->dtype == HTH_DT_F32 && v->constant == NULL && v->producer >= 0 && !v->is_input &&
           !v->is_output && v->shape.rank >= 2;
}

static void half_drop(half_state *st, int value)
{
    st->changed = st->changed || st->half[value];
    st->half[value] = false;
}

// One side of a node: drops what cannot be, or with `together` all that must be alike. Returns
// whether all that must be alike are still there.
static bool half_side(half_state *st, const hth_node *n, bool in, bool together)
{
    bool all = true;
    for (int k = 0; k < (in ? n->n_inputs : n->n_outputs); k++) {
        int v = in ? n->inputs[k] : n->outputs[k];
        bool alike = false;
        if (v < 0 || st->g->values[v].dtype != HTH_DT_F32) {
            continue;
        }
        if (!st->fn(st->ctx, st->g, n, in, k, &alike) || (together && alike)) {
            half_drop(st, v);
        }
        all = all && (!alike || st->half[v]);
    }
    return all;
}

static void half_node(half_state *st, const hth_node *n)
{
    bool in = half_side(st, n, true, false), out = half_side(st, n, false, false);
    if (!in || !out) {
        (void)half_side(st, n, true, true);
        (void)half_side(st, n, false, true);
    }
}

hth_err hth_pass_half(hth_graph *g, hth_half_fn fn, void *ctx)
{
    half_state st = {.g = g, .fn = fn, .ctx = ctx, .changed = true};
    st.half = hth_calloc((size_t)g->n_values + 1, sizeof *st.half);
    if (st.half == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for the pass that keeps values in bf16");
    }
    for (int v = 0; v < g->n_values; v++) {
        st.half[v] = half_candidate(&g->values[v]);
    }
    while (st.changed) {
        st.changed = false;
        for (int i = 0; i < g->n_nodes; i++) {
            half_node(&st, &g->nodes[i]);
        }
    }
    for (int v = 0; v < g->n_values; v++) {
        g->values[v].dtype = st.half[v] ? HTH_DT_BF16 : g->values[v].dtype;
    }
    hth_free(st.half);
    return HTH_OK;
}
