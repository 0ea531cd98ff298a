// SPDX-License-Identifier: Apache-2.0
// The graph's own operations: building, copying, sorting, compacting, checking. Everything is
// linear in nodes and edges.
#include "graph/graph.h"

#include "base/alloc.h"

#include <string.h>

hth_err hth_graph_new(hth_graph **out)
{
    *out = hth_calloc(1, sizeof **out);
    return *out == NULL ? hth_no_memory("a graph") : HTH_OK;
}

static void value_clear(hth_value *value)
{
    hth_free(value->name);
    hth_const_rele(value->constant);
}

void hth_graph_free(hth_graph *graph)
{
    if (graph == NULL) {
        return;
    }
    for (int i = 0; i < graph->n_values; i++) {
        value_clear(&graph->values[i]);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        hth_node_clear(&graph->nodes[i]);
    }
    for (int i = 0; i < graph->n_symbols; i++) {
        hth_free(graph->symbols[i]);
    }
    hth_free(graph->values);
    hth_free(graph->nodes);
    hth_free(graph->symbols);
    hth_free(graph->inputs);
    hth_free(graph->outputs);
    hth_free(graph);
}

hth_err hth_graph_add_value(hth_graph *graph, const char *name, hth_dtype dt,
                            const hth_shape *shape, int *out)
{
    if (HTH_GROW(graph->values, graph->n_values, graph->cap_values) != 0) {
        return hth_no_memory("a graph");
    }
    hth_value v = {.dtype = dt, .shape = *shape, .producer = -1};
    v.name = name != NULL ? hth_strdup(name) : hth_asprintf("value_%d", graph->n_values);
    if (v.name == NULL) {
        return hth_no_memory("a graph");
    }
    *out = graph->n_values;
    graph->values[graph->n_values++] = v;
    return HTH_OK;
}

hth_err hth_graph_add_const(hth_graph *graph, const char *name, hth_const *constant, int *out)
{
    HTH_TRY(hth_graph_add_value(graph, name, constant->dtype, &constant->shape, out));
    graph->values[*out].constant = constant;
    return HTH_OK;
}

hth_err hth_graph_add_node(hth_graph *graph, hth_op op, const char *name, const int *inputs,
                           int n_inputs, const int *outputs, int n_outputs, int *out)
{
    if (HTH_GROW(graph->nodes, graph->n_nodes, graph->cap_nodes) != 0) {
        return hth_no_memory("a graph");
    }
    hth_node n = {.op = op, .n_inputs = n_inputs, .n_outputs = n_outputs};
    n.name =
        name != NULL ? hth_strdup(name) : hth_asprintf("%s_%d", hth_op_name(op), graph->n_nodes);
    n.inputs = hth_memdup(inputs, (size_t)n_inputs * sizeof *inputs);
    n.outputs = hth_memdup(outputs, (size_t)n_outputs * sizeof *outputs);
    if (n.name == NULL || n.inputs == NULL || n.outputs == NULL) {
        hth_node_clear(&n);
        return hth_no_memory("a graph");
    }
    int index = graph->n_nodes;
    graph->nodes[graph->n_nodes++] = n;
    for (int i = 0; i < n_outputs; i++) {
        if (outputs[i] >= 0) {
            graph->values[outputs[i]].producer = index;
        }
    }
    if (out != NULL) {
        *out = index;
    }
    return HTH_OK;
}

static hth_err index_append(int **list, int *n, int value)
{
    int *grown = hth_realloc(*list, (size_t)*n + 1, sizeof *grown);
    if (grown == NULL) {
        return hth_no_memory("a graph");
    }
    *list = grown;
    grown[(*n)++] = value;
    return HTH_OK;
}

hth_err hth_graph_add_input(hth_graph *graph, int value)
{
    HTH_TRY(index_append(&graph->inputs, &graph->n_inputs, value));
    graph->values[value].is_input = true;
    return HTH_OK;
}

hth_err hth_graph_add_output(hth_graph *graph, int value)
{
    HTH_TRY(index_append(&graph->outputs, &graph->n_outputs, value));
    graph->values[value].is_output = true;
    return HTH_OK;
}

hth_err hth_node_add_input(hth_node *node, int value)
{
    return index_append(&node->inputs, &node->n_inputs, value);
}

hth_err hth_graph_clone(const hth_graph *graph, hth_graph **out)
{
    hth_graph *c;
    hth_err err;
    *out = NULL;
    HTH_TRY(hth_graph_new(&c));
    c->training = graph->training;
    c->precision = graph->precision;
    for (int i = 0; i < graph->n_values; i++) {
        const hth_value *v = &graph->values[i];
        int index;
        HTH_GOTO(hth_graph_add_value(c, v->name, v->dtype, &v->shape, &index), fail);
        hth_value *w = &c->values[index];
        w->layout = v->layout;
        w->constant = v->constant != NULL ? hth_const_hold(v->constant) : NULL;
        w->producer = v->producer;
        w->initializer = v->initializer;
        w->is_input = v->is_input;
        w->is_output = v->is_output;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        int index;
        HTH_GOTO(hth_graph_add_node(c, n->op, n->name, n->inputs, n->n_inputs, n->outputs,
                                    n->n_outputs, &index),
                 fail);
        hth_node *m = &c->nodes[index];
        m->n_post = n->n_post;
        m->deleted = n->deleted;
        m->dear = n->dear;
        memcpy(m->post, n->post, sizeof m->post);
        HTH_GOTO(hth_node_copy_attrs(m, n), fail);
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        HTH_GOTO(hth_graph_add_input(c, graph->inputs[i]), fail);
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        HTH_GOTO(hth_graph_add_output(c, graph->outputs[i]), fail);
    }
    c->symbols = hth_calloc((size_t)graph->n_symbols, sizeof *c->symbols);
    err = c->symbols == NULL ? hth_no_memory("a graph") : HTH_OK;
    for (int i = 0; err == HTH_OK && i < graph->n_symbols; i++) {
        c->symbols[i] = hth_strdup(graph->symbols[i]);
        err = c->symbols[i] == NULL ? hth_no_memory("a graph") : HTH_OK;
        c->n_symbols += err == HTH_OK;
    }
    if (err == HTH_OK) {
        *out = c;
        return HTH_OK;
    }
fail:
    hth_graph_free(c);
    return err;
}

// graph_renumber points the values' producers at their nodes again after nodes moved.
static void graph_renumber(hth_graph *graph)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        for (int k = 0; k < graph->nodes[i].n_outputs; k++) {
            if (graph->nodes[i].outputs[k] >= 0) {
                graph->values[graph->nodes[i].outputs[k]].producer = i;
            }
        }
    }
}

// Depth-first order with an explicit stack (hostile files have chains of a million nodes); nodes
// keep their given order where dependencies allow it. state: 0 new, 1 on the stack, 2 placed.
hth_err hth_graph_sort(hth_graph *graph)
{
    size_t n = (size_t)graph->n_nodes;
    unsigned char *state = hth_calloc(n, 1);
    int *stack = hth_calloc(n, sizeof *stack), *next = hth_calloc(n, sizeof *next);
    hth_node *order = hth_calloc(n, sizeof *order);
    hth_err err = HTH_OK;
    int placed = 0;
    if (state == NULL || stack == NULL || next == NULL || order == NULL) {
        err = hth_no_memory("a graph");
        goto out;
    }
    for (int root = 0; root < graph->n_nodes; root++) {
        int depth = 0;
        if (state[root] == 0) {
            stack[depth++] = root;
            state[root] = 1;
        }
        while (depth > 0) {
            int at = stack[depth - 1];
            const hth_node *node = &graph->nodes[at];
            if (next[at] == node->n_inputs) {
                state[at] = 2;
                order[placed++] = *node;
                depth--;
                continue;
            }
            int value = node->inputs[next[at]++];
            int from = value < 0 ? -1 : graph->values[value].producer;
            if (from >= 0 && state[from] == 1) {
                err = hth_fail(HTH_EINVAL, "node '%s' is part of a cycle", node->name);
                goto out;
            }
            if (from >= 0 && state[from] == 0) {
                stack[depth++] = from;
                state[from] = 1;
            }
        }
    }
    if (n > 0) { // an empty graph has no array
        memcpy(graph->nodes, order, n * sizeof *order);
    }
    graph_renumber(graph);
out:
    hth_free(state);
    hth_free(stack);
    hth_free(next);
    hth_free(order);
    return err;
}

static void index_map(int *list, int n, const int *map)
{
    for (int i = 0; i < n; i++) {
        list[i] = list[i] < 0 ? -1 : map[list[i]];
    }
}

hth_err hth_graph_compact(hth_graph *graph)
{
    int *map = hth_calloc((size_t)graph->n_values,
                          sizeof *map); // first: is the value needed; then: its new index
    if (map == NULL) {
        return hth_no_memory("a graph");
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        map[graph->inputs[i]] = 1;
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        map[graph->outputs[i]] = 1;
    }
    for (int i = graph->n_nodes - 1; i >= 0; i--) { // topological order: users come after
        hth_node *n = &graph->nodes[i];
        bool used = false;
        for (int k = 0; k < n->n_outputs && !n->deleted; k++) {
            used |= n->outputs[k] >= 0 && map[n->outputs[k]];
        }
        n->deleted = !used;
        for (int k = 0; k < n->n_inputs && used; k++) {
            if (n->inputs[k] >= 0) {
                map[n->inputs[k]] = 1;
            }
        }
        for (int k = 0; k < n->n_outputs && used; k++) {
            if (n->outputs[k] >= 0) {
                map[n->outputs[k]] = 1;
            }
        }
    }
    int values = 0, nodes = 0;
    for (int i = 0; i < graph->n_values; i++) {
        if (map[i]) {
            graph->values[i].producer = -1;
            map[i] = values;
            graph->values[values++] = graph->values[i];
        } else {
            value_clear(&graph->values[i]);
            map[i] = -1;
        }
    }
    graph->n_values = values;
    for (int i = 0; i < graph->n_nodes; i++) {
        hth_node *n = &graph->nodes[i];
        if (n->deleted) {
            hth_node_clear(n);
            continue;
        }
        index_map(n->inputs, n->n_inputs, map);
        index_map(n->outputs, n->n_outputs, map);
        graph->nodes[nodes++] = *n;
    }
    graph->n_nodes = nodes;
    index_map(graph->inputs, graph->n_inputs, map);
    index_map(graph->outputs, graph->n_outputs, map);
    graph_renumber(graph);
    hth_free(map);
    return HTH_OK;
}

static hth_err check_node(const hth_graph *graph, int i)
{
    const hth_node *n = &graph->nodes[i];
    const hth_op_info *info = hth_op_info_of(n->op);
    if (n->op <= HTH_OP_NONE || n->op >= HTH_N_OPS || n->n_outputs < info->min_outputs ||
        n->n_outputs > info->max_outputs || n->n_inputs < info->min_inputs) {
        return hth_fail(HTH_ECORRUPT, "node '%s' (%s) has %d inputs and %d outputs", n->name,
                        info->name, n->n_inputs, n->n_outputs);
    }
    for (int k = 0; k < n->n_inputs; k++) {
        int v = n->inputs[k];
        if (v < -1 || v >= graph->n_values) {
            return hth_fail(HTH_ECORRUPT, "node '%s' reads value %d of %d", n->name, v,
                            graph->n_values);
        }
        if (v >= 0 && graph->values[v].producer >= i) {
            return hth_fail(HTH_ECORRUPT, "node '%s' reads '%s' before it is computed", n->name,
                            graph->values[v].name);
        }
        if (v >= 0 && graph->values[v].producer < 0 && graph->values[v].constant == NULL &&
            !graph->values[v].is_input) {
            return hth_fail(HTH_ECORRUPT, "node '%s' reads '%s', which no node computes", n->name,
                            graph->values[v].name);
        }
    }
    for (int k = 0; k < n->n_outputs; k++) {
        int v = n->outputs[k];
        if (v < -1 || v >= graph->n_values || (v >= 0 && graph->values[v].producer != i)) {
            return hth_fail(HTH_ECORRUPT, "node '%s' output %d is not its own", n->name, k);
        }
    }
    for (int k = 0; k < n->n_post; k++) {
        if (n->post[k].input >= n->n_inputs) {
            return hth_fail(HTH_ECORRUPT, "node '%s' post op %d has no operand", n->name, k);
        }
    }
    return HTH_OK;
}

hth_err hth_graph_check(const hth_graph *graph)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        HTH_TRY(check_node(graph, i));
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        if (graph->inputs[i] < 0 || graph->inputs[i] >= graph->n_values ||
            !graph->values[graph->inputs[i]].is_input) {
            return hth_fail(HTH_ECORRUPT, "graph input %d is not an input value", i);
        }
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        int v = graph->outputs[i];
        if (v < 0 || v >= graph->n_values || !graph->values[v].is_output) {
            return hth_fail(HTH_ECORRUPT, "graph output %d is not an output value", i);
        }
        if (graph->values[v].producer < 0 && graph->values[v].constant == NULL &&
            !graph->values[v].is_input) {
            return hth_fail(HTH_ECORRUPT, "graph output '%s' is not computed by any node",
                            graph->values[v].name);
        }
    }
    for (int i = 0; i < graph->n_values; i++) {
        const hth_value *v = &graph->values[i];
        if (v->producer >= graph->n_nodes || (v->producer >= 0 && v->constant != NULL)) {
            return hth_fail(HTH_ECORRUPT, "value '%s' has a wrong producer", v->name);
        }
    }
    return HTH_OK;
}
