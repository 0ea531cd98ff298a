// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_forward.c - hth_train_forward: the model as it is served, with what a step
// trains as inputs, so that it is evaluated with the weights of the moment.
#include "graph/autodiff/train.h"

#include <string.h>

// The value of the step's slot `s`, still a constant; -1: nothing reads it.
static int find_initializer(const hth_graph *g, const hth_train_slot *s)
{
    for (int v = 0; v < g->n_values; v++) {
        if (g->values[v].initializer - 1 == s->initializer && g->values[v].constant != NULL) {
            return v;
        }
    }
    return -1;
}

static hth_err add_slot(hth_graph *g, const hth_train_graph *step, const hth_train_slot *s)
{
    const hth_value *like = &step->graph->values[step->graph->inputs[s->input]];
    int v = find_initializer(g, s);
    if (v < 0) {
        HTH_TRY(hth_graph_add_value(g, s->name, like->dtype, &like->shape, &v));
    } else {
        hth_const_rele(g->values[v].constant);
        g->values[v].constant = NULL;
    }
    return hth_graph_add_input(g, v);
}

static hth_err forward(hth_graph *g, const hth_train_graph *step)
{
    HTH_TRY(hth_train_off(g));
    for (int i = 1; i < g->n_outputs; i++) {
        g->values[g->outputs[i]].is_output = g->outputs[i] == g->outputs[0];
    }
    g->n_outputs = g->n_outputs < 1 ? g->n_outputs : 1;
    HTH_TRY(hth_graph_compact(g));
    for (int i = 0; i < step->n_data && i < g->n_inputs; i++) {
        bool bytes = step->graph->values[step->graph->inputs[i]].dtype == HTH_DT_U8 &&
                     g->values[g->inputs[i]].dtype == HTH_DT_F32;
        HTH_TRY(bytes ? hth_train_scale_add(g, i, &step->scale) : HTH_OK);
    }
    for (int s = 0; s < step->n_slots; s++) {
        if (hth_slot_of_model(step->slots[s].kind)) {
            HTH_TRY(add_slot(g, step, &step->slots[s]));
        }
    }
    return hth_graph_check(g);
}

static hth_err divides(hth_graph *g, const hth_train_options *o, hth_independence *out)
{
    int at = 0;
    while (o->output != NULL && at < g->n_outputs &&
           strcmp(g->values[g->outputs[at]].name, o->output) != 0) {
        at++;
    }
    if (at >= g->n_outputs) {
        return hth_fail(HTH_EINVAL, "the model has no output '%s'", o->output);
    }
    for (int i = 0; i < g->n_outputs; i++) {
        g->values[g->outputs[i]].is_output = i == at;
    }
    g->outputs[0] = g->outputs[at];
    g->n_outputs = 1;
    HTH_TRY(hth_graph_compact(g));
    HTH_TRY(hth_train_off(g));
    return hth_independence_prove(g, out);
}

hth_err hth_train_divides(const hth_graph *model, const hth_train_options *o, hth_independence *out)
{
    hth_graph *g;
    HTH_TRY(hth_graph_clone(model, &g));
    hth_err err = divides(g, o, out);
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
