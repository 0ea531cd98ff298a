// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_forward.c - hth_train_forward: the model as it is served, with what a step
// trains as inputs, so that it is evaluated with the weights of the moment.
#include "graph/autodiff/train.h"

#include <string.h>

// The value of the step's slot `slot`, still a constant; -1: nothing reads it.
static int find_initializer(const hth_graph *graph, const hth_train_slot *slot)
{
    for (int v = 0; v < graph->n_values; v++) {
        if (graph->values[v].initializer - 1 == slot->initializer &&
            graph->values[v].constant != NULL) {
            return v;
        }
    }
    return -1;
}

static hth_err add_slot(hth_graph *graph, const hth_train_graph *step, const hth_train_slot *slot)
{
    const hth_value *like = &step->graph->values[step->graph->inputs[slot->input]];
    int v = find_initializer(graph, slot);
    if (v < 0) {
        HTH_TRY(hth_graph_add_value(graph, slot->name, like->dtype, &like->shape, &v));
    } else {
        hth_const_rele(graph->values[v].constant);
        graph->values[v].constant = NULL;
    }
    return hth_graph_add_input(graph, v);
}

static hth_err forward(hth_graph *graph, const hth_train_graph *step)
{
    HTH_TRY(hth_train_off(graph));
    for (int i = 1; i < graph->n_outputs; i++) {
        graph->values[graph->outputs[i]].is_output = graph->outputs[i] == graph->outputs[0];
    }
    graph->n_outputs = graph->n_outputs < 1 ? graph->n_outputs : 1;
    HTH_TRY(hth_graph_compact(graph));
    for (int i = 0; i < step->n_data && i < graph->n_inputs; i++) {
        hth_dtype dtype = step->graph->values[step->graph->inputs[i]].dtype;
        bool scales = hth_train_scales(&step->scale, dtype, &graph->values[graph->inputs[i]]);
        HTH_TRY(scales ? hth_train_scale_add(graph, i, dtype, &step->scale) : HTH_OK);
    }
    for (int s = 0; s < step->n_slots; s++) {
        if (hth_slot_of_model(step->slots[s].kind)) {
            HTH_TRY(add_slot(graph, step, &step->slots[s]));
        }
    }
    return hth_graph_check(graph);
}

static hth_err divides(hth_graph *graph, const hth_train_options *options, hth_independence *out)
{
    int at = 0;
    HTH_TRY(hth_train_off(graph)); // of all its results: else what is trained cannot be served
    while (options->output != NULL && at < graph->n_outputs &&
           strcmp(graph->values[graph->outputs[at]].name, options->output) != 0) {
        at++;
    }
    if (at >= graph->n_outputs) {
        return hth_fail(HTH_EINVAL, "the model has no output '%s'", options->output);
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        graph->values[graph->outputs[i]].is_output = i == at;
    }
    graph->outputs[0] = graph->outputs[at];
    graph->n_outputs = 1;
    HTH_TRY(hth_graph_compact(graph));
    return hth_independence_prove(graph, out);
}

hth_err hth_train_divides(const hth_graph *model, const hth_train_options *options,
                          hth_independence *out)
{
    hth_graph *g;
    HTH_TRY(hth_graph_clone(model, &g));
    hth_err err = divides(g, options, out);
    hth_graph_free(g);
    return err;
}

hth_err hth_train_forward(const hth_graph *model, const hth_train_graph *step, hth_graph **out)
{
    *out = NULL;
    hth_graph *g;
    HTH_TRY(hth_graph_clone(model, &g));
    g->precision = step->graph->precision;
    hth_err err = forward(g, step);
    if (err != HTH_OK) {
        hth_graph_free(g);
        return err;
    }
    *out = g;
    return HTH_OK;
}
