// SPDX-License-Identifier: Apache-2.0
// graph/passes/pass_simplify.c - takes out what does nothing or is computed twice.
//
// One walk in topological order. `alias` says which value now stands for a removed one; since
// producers come first, a node's inputs are already simplified when it is looked at, and chains of
// any length collapse in the one walk. A node is removed only if its outputs can be: a graph output
// keeps its name and stays a buffer of its own, so it is never merged with an input, a constant, or
// another output. Common subexpressions are found by the hash of operator, attributes and inputs
// (fold.h). Linear in nodes and edges.
#include "graph/passes/pass.h"

#include "graph/passes/fold.h"
#include "graph/passes/pass_util.h"

#include "base/alloc.h"
#include "base/pace.h"

#include <string.h>

#define MOST_EQUAL 8
#define VISIT_WORK 2048 // of a node, whose key is a hash or two

typedef struct simplify {
    hth_graph *g;
    int n_values; // values after were added by the pass
    int *alias;   // per value
    hth_uses uses;
    hth_id *key;   // per node that stays
    int *table;    // open addressing, node index + 1 by key
    uint32_t mask; // table size - 1
} simplify;

// What stands for values between a graph output and its source: may `out` be replaced by `src`?
static bool can_alias(const hth_graph *graph, int out, int src)
{
    const hth_value *s = &graph->values[src];
    return !graph->values[out].is_output || (!s->is_input && !s->is_output && s->constant == NULL);
}

static void alias_to(simplify *p, int out, int src)
{
    hth_graph *g = p->g;
    hth_value *o = &g->values[out], *s = &g->values[src];
    p->alias[out] = src;
    if (!o->is_output) {
        return;
    }
    char *name = o->name; // outputs are known by name
    o->name = s->name;
    s->name = name;
    o->is_output = false;
    s->is_output = true; // the list of outputs follows when all nodes were looked at
}

static bool unused(const simplify *p, const hth_node *node, int output)
{
    return output >= node->n_outputs || node->outputs[output] < 0 ||
           p->uses.count[node->outputs[output]] == 0;
}

static bool dropout_is_off(const simplify *p, const hth_node *node)
{
    const hth_graph *g = p->g;
    const void *on;
    if (g->training || !unused(p, node, 1)) {
        return false;
    }
    if (node->n_inputs < 3 || node->inputs[2] < 0) {
        return true;
    }
    hth_const *c = g->values[node->inputs[2]].constant;
    if (c == NULL || c->dtype != HTH_DT_BOOL || c->bytes != 1 || hth_const_map(c, &on) != HTH_OK) {
        return false;
    }
    bool off = *(const uint8_t *)on == 0;
    hth_const_unmap(c);
    return off;
}

// All elements of constant input `slot` are at least `low` and at most `high`.
static bool all_within(const hth_graph *graph, const hth_node *node, int slot, int64_t low,
                       int64_t high)
{
    int64_t v[2 * HTH_MAX_RANK];
    int count = hth_pass_ints(graph, node->inputs[slot], v, 2 * HTH_MAX_RANK);
    for (int i = 0; i < count; i++) {
        if (v[i] < low || v[i] > high) {
            return false;
        }
    }
    return count >= 0;
}

static int read_perm(const hth_node *node, int rank, int64_t *perm)
{
    int count = hth_node_ints(node, "perm", perm, HTH_MAX_RANK);
    for (int i = 0; i < rank && count < 0; i++) {
        perm[i] = rank - 1 - i;
    }
    for (int i = 0; i < rank && count >= 0; i++) {
        perm[i] += perm[i] < 0 ? rank : 0;
    }
    return rank;
}

// Dimensions longer than 1 keep their order.
static bool transpose_moves_nothing(const hth_shape *shape, const hth_node *node)
{
    int64_t perm[HTH_MAX_RANK], before = -1;
    int rank = read_perm(node, shape->rank, perm);
    for (int i = 0; i < rank; i++) {
        if (shape->dim[perm[i]] == 1) {
            continue;
        }
        if (perm[i] < before) {
            return false;
        }
        before = perm[i];
    }
    return true;
}

static bool does_nothing(const simplify *p, const hth_node *node)
{
    const hth_graph *g = p->g;
    if (node->n_post > 0 || node->n_inputs == 0 || node->inputs[0] < 0 || node->n_outputs == 0 ||
        node->outputs[0] < 0) {
        return false;
    }
    const hth_value *x = &g->values[node->inputs[0]], *y = &g->values[node->outputs[0]];
    if (x->dtype != y->dtype || x->layout != y->layout || !hth_shape_equal(&x->shape, &y->shape)) {
        return false;
    }
    switch (node->op) {
    case HTH_OP_IDENTITY:
    case HTH_OP_CAST:
    case HTH_OP_CAST_LIKE:
    case HTH_OP_RESHAPE:
    case HTH_OP_SQUEEZE:
    case HTH_OP_UNSQUEEZE:
    case HTH_OP_FLATTEN:
    case HTH_OP_EXPAND:
    case HTH_OP_TILE:
        return true;
    case HTH_OP_CONCAT:
    case HTH_OP_SUM:
    case HTH_OP_MEAN:
    case HTH_OP_MAX:
    case HTH_OP_MIN:
        return node->n_inputs == 1;
    case HTH_OP_SPLIT:
        return node->n_outputs == 1;
    case HTH_OP_TRANSPOSE:
        return transpose_moves_nothing(&x->shape, node);
    case HTH_OP_PAD:
        return all_within(g, node, 1, 0, 0);
    case HTH_OP_SLICE:
        return node->n_inputs < 5 || node->inputs[4] < 0 || all_within(g, node, 4, 1, INT64_MAX);
    case HTH_OP_DROPOUT:
        return dropout_is_off(p, node);
    default:
        return false;
    }
}

// Transpose of a transpose: one transpose of the first one's input.
static hth_err merge_transposes(simplify *p, hth_node *node)
{
    const hth_node *first = hth_pass_producer(p->g, node, 0, HTH_OP_TRANSPOSE);
    int64_t a[HTH_MAX_RANK], b[HTH_MAX_RANK];
    if (node->op != HTH_OP_TRANSPOSE || first == NULL) {
        return HTH_OK;
    }
    int rank = p->g->values[node->inputs[0]].shape.rank;
    read_perm(first, rank, a);
    read_perm(node, rank, b);
    for (int i = 0; i < rank; i++) {
        b[i] = a[b[i]];
    }
    HTH_TRY(hth_node_set_ints(node, "perm", b, rank));
    node->inputs[0] = first->inputs[0];
    return HTH_OK;
}

static bool is_reshape(hth_op op)
{
    return op == HTH_OP_RESHAPE || op == HTH_OP_SQUEEZE || op == HTH_OP_UNSQUEEZE ||
           op == HTH_OP_FLATTEN;
}

// Reshape of a reshape (in any of its dresses): one Reshape of the first one's input.
static hth_err merge_reshapes(simplify *p, hth_node *node)
{
    hth_graph *g = p->g;
    int from = is_reshape(node->op) ? g->values[node->inputs[0]].producer : -1;
    if (from < 0 || !is_reshape(g->nodes[from].op) || g->nodes[from].deleted ||
        g->nodes[from].n_post > 0) {
        return HTH_OK;
    }
    hth_shape s = g->values[node->outputs[0]].shape;
    int shape;
    char *name = hth_asprintf("%s.shape", node->name);
    if (name == NULL) {
        return hth_no_memory("a graph pass");
    }
    hth_err err = hth_pass_const_ints(g, name, s.dim, s.rank, &shape);
    hth_free(name);
    HTH_TRY(err);
    HTH_TRY(hth_node_set_int(node, "allowzero", hth_shape_elements(&s) == 0));
    if (node->n_inputs < 2) {
        HTH_TRY(hth_node_add_input(node, shape));
    }
    node->inputs[1] = shape;
    node->inputs[0] = g->nodes[from].inputs[0];
    node->op = HTH_OP_RESHAPE;
    return HTH_OK;
}

// Does the same computation give the same result? Only operators of ONNX are known to; Dropout
// draws lots, and BatchNormalization in training updates its statistics.
static bool repeatable(const hth_node *node)
{
    return hth_op_info_of(node->op)->n_since > 0 && node->op != HTH_OP_DROPOUT &&
           node->op != HTH_OP_BATCH_NORMALIZATION;
}

static bool outputs_can_alias(const hth_graph *graph, const hth_node *node, const hth_node *same)
{
    bool can = node->op == same->op && node->n_outputs == same->n_outputs;
    for (int i = 0; can && i < node->n_outputs; i++) {
        can = node->outputs[i] < 0 ||
              (same->outputs[i] >= 0 && can_alias(graph, node->outputs[i], same->outputs[i]));
    }
    return can;
}

// Looks for an equal node before node i, and replaces i by it; enters i otherwise. Thousands of
// equal nodes that are all graph outputs can replace none of each other: some of them are enough.
static void join_equal(simplify *p, int i)
{
    hth_node *n = &p->g->nodes[i];
    uint32_t slot;
    p->key[i] = hth_node_key(p->g, n);
    memcpy(&slot, p->key[i].byte, sizeof slot);
    int equal = 0;
    for (slot &= p->mask; p->table[slot] != 0; slot = (slot + 1) & p->mask) {
        int at = p->table[slot] - 1;
        if (!hth_id_equal(&p->key[at], &p->key[i])) {
            continue;
        }
        if (++equal > MOST_EQUAL) {
            return;
        }
        if (outputs_can_alias(p->g, n, &p->g->nodes[at])) {
            for (int k = 0; k < n->n_outputs; k++) {
                if (n->outputs[k] >= 0) {
                    alias_to(p, n->outputs[k], p->g->nodes[at].outputs[k]);
                }
            }
            n->deleted = true;
            return;
        }
    }
    p->table[slot] = i + 1;
}

static hth_err visit(simplify *p, int i)
{
    hth_node *n = &p->g->nodes[i];
    for (int k = 0; k < n->n_inputs; k++) {
        int v = n->inputs[k];
        n->inputs[k] = v >= 0 && v < p->n_values ? p->alias[v] : v;
    }
    if (n->n_post == 0) {
        HTH_TRY(merge_transposes(p, n));
        HTH_TRY(merge_reshapes(p, n));
    }
    if (does_nothing(p, n) && can_alias(p->g, n->outputs[0], n->inputs[0])) {
        alias_to(p, n->outputs[0], n->inputs[0]);
        n->deleted = true;
    } else if (repeatable(n)) {
        join_equal(p, i);
    }
    return HTH_OK;
}

static hth_err simplify_open(simplify *p, hth_graph *graph)
{
    size_t slots = 16;
    while (slots < 2 * (size_t)graph->n_nodes) {
        slots *= 2;
    }
    *p = (simplify){.g = graph, .n_values = graph->n_values, .mask = (uint32_t)(slots - 1)};
    p->alias = hth_calloc((size_t)graph->n_values + 1, sizeof *p->alias);
    p->key = hth_calloc((size_t)graph->n_nodes + 1, sizeof *p->key);
    p->table = hth_calloc(slots, sizeof *p->table);
    if (p->alias == NULL || p->key == NULL || p->table == NULL) {
        return hth_no_memory("a graph pass");
    }
    for (int i = 0; i < graph->n_values; i++) {
        p->alias[i] = i;
    }
    return hth_uses_open(graph, &p->uses);
}

hth_err hth_pass_simplify(hth_graph *graph)
{
    simplify p;
    hth_err err = simplify_open(&p, graph);
    for (int i = 0; err == HTH_OK && i < graph->n_nodes; i++) {
        err = hth_pace_step(VISIT_WORK);
        if (err == HTH_OK && !graph->nodes[i].deleted) {
            err = visit(&p, i);
        }
    }
    for (int i = 0; err == HTH_OK && i < graph->n_outputs; i++) {
        graph->outputs[i] =
            graph->outputs[i] < p.n_values ? p.alias[graph->outputs[i]] : graph->outputs[i];
    }
    hth_free(p.alias);
    hth_free(p.key);
    hth_free(p.table);
    hth_uses_close(&p.uses);
    HTH_TRY(err);
    return hth_graph_compact(graph);
}
