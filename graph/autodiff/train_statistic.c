// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_statistic.c - which initializers the running statistics of batch norm are.
//
// A step updates a statistic in the place of its initializer, so nothing else may read that.
// Exporters that merge equal initializers have it otherwise: before a layer is trained its scale
// and its variance are ones, as those of all others, and its bias and mean zeros. Nobody can tell
// afterwards which of them were one parameter, so such a model is refused. A layer that stands in
// the model twice has its statistics once.
#include "graph/autodiff/train_build.h"

#include "base/alloc.h"
#include "base/pace.h"

#define FIRST_STATISTIC 3 // batch norm's inputs are x, scale, bias, mean, variance

hth_err train_origins(const hth_graph *graph, int **out)
{
    int *origin = hth_alloc(((size_t)graph->n_values + 1) * sizeof *origin);
    *out = origin;
    if (origin == NULL) {
        return hth_no_memory("a training step");
    }
    for (int v = 0; v < graph->n_values; v++) {
        origin[v] = v;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        if (n->op == HTH_OP_IDENTITY) {
            origin[n->outputs[0]] = origin[n->inputs[0]];
        }
    }
    return HTH_OK;
}

static bool is_kept(const hth_value *value)
{
    return value->initializer > 0 && value->constant != NULL;
}

// Are batch norm `a` and node `b` one layer?
static bool same_layer(const hth_graph *graph, const int *origin, int a, int b)
{
    const hth_node *m = &graph->nodes[a], *n = &graph->nodes[b];
    bool same = n->op == HTH_OP_BATCH_NORMALIZATION;
    for (int k = 1; same && k < n->n_inputs; k++) {
        same = origin[m->inputs[k]] == origin[n->inputs[k]];
    }
    return same;
}

// What was found of a value: the first node that has it as a statistic, and as which input.
typedef struct statistic {
    int node, k; // k 0: it is none
} statistic;

static hth_err refuse(const hth_graph *graph, const statistic *s, int value, int reader)
{
    const hth_node *n = &graph->nodes[reader];
    return hth_fail(HTH_ENOTSUP,
                    "node '%s' (BatchNormalization): its statistic '%s' cannot be updated, because "
                    "node '%s' (%s) reads it, too: export the model so that equal initializers are "
                    "not merged",
                    graph->nodes[s->node].name, graph->values[value].name, n->name,
                    hth_op_name(n->op));
}

static hth_err check_node(const hth_graph *graph, const int *origin, const statistic *of, int i)
{
    const hth_node *n = &graph->nodes[i];
    HTH_TRY(hth_pace_step(1));
    for (int k = 0; k < n->n_inputs && n->op != HTH_OP_IDENTITY; k++) {
        int v = n->inputs[k] < 0 ? -1 : origin[n->inputs[k]];
        if (v >= 0 && of[v].k > 0 && (k != of[v].k || !same_layer(graph, origin, of[v].node, i))) {
            return refuse(graph, &of[v], v, i);
        }
    }
    return HTH_OK;
}

hth_err train_check_statistics(const hth_graph *graph, const int *origin)
{
    statistic *of = hth_calloc((size_t)graph->n_values + 1, sizeof *of);
    hth_err err = of == NULL ? hth_no_memory("a training step") : HTH_OK;
    for (int i = 0; err == HTH_OK && i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        for (int k = FIRST_STATISTIC; n->op == HTH_OP_BATCH_NORMALIZATION && k < n->n_inputs; k++) {
            int v = origin[n->inputs[k]];
            if (is_kept(&graph->values[v]) && of[v].k == 0) {
                of[v] = (statistic){i, k};
            }
        }
    }
    for (int i = 0; err == HTH_OK && i < graph->n_nodes; i++) {
        err = check_node(graph, origin, of, i);
    }
    hth_free(of);
    return err;
}
