// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_changes.c - what of a model training changes: parameters that a gradient
// reaches, walking back from the loss, and the running statistics of batch norm.
#include "graph/autodiff/train_build.h"

#include "graph/autodiff/grad.h"

#include "base/alloc.h"

#include <string.h>

// changes_passes tells whether a gradient flows to input k. Dtypes of what is computed are not
// known yet; batch norm and dropout become what they are in training.
static bool changes_passes(const hth_graph *graph, const hth_node *node, int k)
{
    const hth_grad_rule *rule = hth_grad_rule_of(node->op);
    if (node->inputs[k] < 0) {
        return false;
    }
    if (node->op == HTH_OP_BATCH_NORMALIZATION || node->op == HTH_OP_DROPOUT) {
        return k < (node->op == HTH_OP_DROPOUT ? 1 : 3);
    }
    hth_dtype dtype = graph->values[node->inputs[k]].dtype;
    bool fixed = (rule->fixed >> (k < 31 ? k : 31) & 1) != 0;
    return !rule->flat && !fixed && (dtype == HTH_DT_NONE || hth_dtype_is_float(dtype));
}

// changes_reach sets wanted[v] for all values that a gradient of the loss reaches.
static void changes_reach(const hth_graph *graph, int output, bool *wanted)
{
    wanted[graph->outputs[output]] = true;
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        const hth_node *node = &graph->nodes[i];
        bool any = false;
        for (int k = 0; k < node->n_outputs; k++) {
            any = any || (node->outputs[k] >= 0 && wanted[node->outputs[k]]);
        }
        for (int k = 0; any && k < node->n_inputs; k++) {
            if (changes_passes(graph, node, k)) {
                wanted[node->inputs[k]] = true;
            }
        }
    }
}

static void changes_mark(const hth_graph *graph, int value, bool *changed, int n)
{
    int i = value >= 0 ? graph->values[value].initializer - 1 : -1;
    if (i >= 0 && i < n && graph->values[value].constant != NULL) {
        changed[i] = true;
    }
}

hth_err hth_train_changes(const hth_graph *model, const hth_train_options *options, bool *changed,
                          int n)
{
    int output, *origin;
    HTH_TRY(train_find_output(model, options->output, &output));
    HTH_TRY(train_origins(model, &origin));
    bool *wanted = hth_calloc((size_t)model->n_values + 1, sizeof *wanted);
    if (wanted == NULL) {
        hth_free(origin);
        return hth_no_memory("%d values", model->n_values);
    }
    memset(changed, 0, (size_t)n * sizeof *changed);
    changes_reach(model, output, wanted);
    for (int v = 0; v < model->n_values; v++) {
        const hth_value *value = &model->values[v];
        if (wanted[v] && value->dtype == HTH_DT_F32 && value->shape.rank > 0 &&
            !train_frozen(options, value->name)) {
            changes_mark(model, v, changed, n);
        }
    }
    for (int i = 0; i < model->n_nodes; i++) {
        const hth_node *node = &model->nodes[i];
        for (int k = 3; node->op == HTH_OP_BATCH_NORMALIZATION && k < node->n_inputs; k++) {
            changes_mark(model, origin[node->inputs[k]], changed, n);
        }
    }
    hth_free(wanted);
    hth_free(origin);
    return HTH_OK;
}
