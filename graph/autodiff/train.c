// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train.c - hth_train_build: the order of its stages, and the graph's inputs and
// outputs.
//
//   clone ─► drop unread outputs ─► train_prepare ─► hth_specialize ─► attention in parts,
//   simplify,
//         patterns, shorten ─► loss, backward, optimizer ─► order of inputs and outputs
//
// Parameters are inputs before shapes are inferred, so nothing is folded through them, and batch
// norm is in its training form before any pass could take it for a scale and shift. Threads: none;
// the model is only read.
#include "graph/autodiff/train.h"

#include "graph/passes/pass.h"
#include "graph/autodiff/train_build.h"

#include "base/alloc.h"

#include <string.h>

hth_err train_find_output(const hth_graph *graph, const char *name, int *out)
{
    *out = 0;
    while (name != NULL && *out < graph->n_outputs &&
           strcmp(graph->values[graph->outputs[*out]].name, name) != 0) {
        ++*out;
    }
    return *out < graph->n_outputs ? HTH_OK
                                   : hth_fail(HTH_EINVAL, "the model has no output '%s'", name);
}

// Keeps all outputs, the one of the loss first, or that one alone.
static void order_outputs(train_build *build, int first)
{
    hth_graph *g = build->g;
    int value = g->outputs[first];
    memmove(g->outputs + 1, g->outputs, (size_t)first * sizeof *g->outputs);
    g->outputs[0] = value;
    for (int i = 1; i < g->n_outputs && !build->o->keep_outputs; i++) {
        g->values[g->outputs[i]].is_output = false;
    }
    g->n_outputs = build->o->keep_outputs ? g->n_outputs : 1;
    build->n_outputs = g->n_outputs;
}

// Dtypes and shapes of all inputs: the model's as given, the others as they are.
static hth_err specialize(train_build *build, const hth_tensor *inputs, hth_eval_fn eval, void *ctx)
{
    hth_graph *g = build->g;
    hth_stage stage;
    hth_tensor *all = hth_calloc((size_t)g->n_inputs, sizeof *all);
    if (all == NULL) {
        return hth_no_memory("a training step");
    }
    for (int i = 0; i < g->n_inputs; i++) {
        const hth_value *v = &g->values[g->inputs[i]];
        all[i] = i < build->n_data ? inputs[i] : (hth_tensor){.dtype = v->dtype, .shape = v->shape};
    }
    hth_err err = hth_specialize(g, all, eval, ctx, &stage);
    hth_free(all);
    HTH_TRY(err);
    if (stage.rest != NULL) {
        hth_stage_fini(&stage);
        return hth_fail(HTH_ENOTSUP, "the model has shapes that depend on computed values, which "
                                     "cannot be trained");
    }
    hth_graph_free(build->g);
    build->g = stage.graph;
    stage.graph = NULL;
    hth_stage_fini(&stage);
    return HTH_OK;
}

// After the passes values are known by their positions among inputs and outputs.
static void find_values(train_build *build)
{
    hth_graph *g = build->g;
    build->step = g->inputs[build->n_data];
    build->hyper = g->inputs[build->n_data + 1];
    for (int s = 0; s < build->n_slots; s++) {
        build->slots[s].value = g->inputs[build->n_data + 2 + s];
        if (build->slots[s].slot.kind == HTH_SLOT_STAT) {
            build->slots[s].next = g->outputs[build->slots[s].slot.output];
        }
    }
}

static hth_err passes(train_build *build)
{
    HTH_TRY(hth_pass_attention_parts(build->g));
    HTH_TRY(hth_pass_simplify(build->g));
    HTH_TRY(hth_pass_elementary(build->g));
    HTH_TRY(train_shorten(build->g));
    return hth_pass_simplify(build->g); // of chains of reshapes that are left
}

static hth_err set_order(train_build *build, hth_train_graph *out)
{
    hth_graph *g = build->g;
    int n_in = build->n_data + 3 + build->n_slots,
        kept = build->o->keep_outputs ? build->n_outputs : 0;
    int n_out = 1;
    int *in = hth_calloc((size_t)n_in, sizeof *in),
        *to = hth_calloc((size_t)(1 + build->n_slots + kept), sizeof *to);
    if (in == NULL || to == NULL) {
        hth_free(in);
        hth_free(to);
        return hth_no_memory("a training step");
    }
    memcpy(in, g->inputs, (size_t)build->n_data * sizeof *in);
    in[out->target = build->n_data] = build->target;
    in[out->step = build->n_data + 1] = build->step;
    in[out->hyper = build->n_data + 2] = build->hyper;
    to[0] = build->loss;
    for (int s = 0; s < build->n_slots; s++) {
        build->slots[s].slot.input = build->n_data + 3 + s;
        in[build->n_data + 3 + s] = build->slots[s].value;
        build->slots[s].slot.output = build->slots[s].next >= 0 ? n_out : -1;
        if (build->slots[s].next >= 0) {
            to[n_out++] = build->slots[s].next;
        }
    }
    out->first_output = kept > 0 ? n_out : -1;
    memcpy(to + n_out, g->outputs, (size_t)kept * sizeof *to);
    n_out += kept;
    for (int i = 0; i < g->n_outputs; i++) {
        g->values[g->outputs[i]].is_output = false;
    }
    for (int i = 0; i < n_out; i++) {
        g->values[to[i]].is_output = true;
    }
    hth_free(g->inputs);
    hth_free(g->outputs);
    g->inputs = in;
    g->n_inputs = n_in;
    g->outputs = to;
    g->n_outputs = n_out;
    out->n_data = build->n_data;
    return HTH_OK;
}

// scale has inputs be what their data are where those are changed in the step.
static hth_err scale(train_build *build, const hth_tensor *inputs)
{
    const hth_train_scale *s = &build->o->scale;
    for (int i = 0; i < build->n_data; i++) {
        bool scales = hth_train_scales(s, inputs[i].dtype, &build->g->values[build->g->inputs[i]]);
        HTH_TRY(scales ? hth_train_scale_add(build->g, i, inputs[i].dtype, s) : HTH_OK);
    }
    return HTH_OK;
}

static hth_err build(train_build *build, const hth_tensor *inputs, hth_eval_fn eval, void *ctx,
                     hth_train_graph *out)
{
    int first;
    HTH_TRY(train_find_output(build->g, build->o->output, &first));
    order_outputs(build, first);
    HTH_TRY(hth_graph_compact(build->g));
    HTH_TRY(train_prepare(build));
    HTH_TRY(scale(build, inputs));
    HTH_TRY(specialize(build, inputs, eval, ctx));
    HTH_TRY(passes(build));
    find_values(build);
    HTH_TRY(train_backward(build, build->g->outputs[0]));
    HTH_TRY(build->o->phase == HTH_TRAIN_UPDATE ? train_updates(build) : HTH_OK);
    HTH_TRY(train_shorten_backward(build->g));
    HTH_TRY(set_order(build, out));
    HTH_TRY(hth_graph_compact(build->g));
    return hth_graph_check(build->g);
}

hth_err hth_train_build(const hth_graph *model, const hth_tensor *inputs,
                        const hth_train_options *options, hth_eval_fn eval, void *ctx,
                        hth_train_graph *out)
{
    train_build t = {.o = options};
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_graph_clone(model, &t.g));
    t.g->precision = options->precision;
    hth_err err = build(&t, inputs, eval, ctx, out);
    out->graph = t.g;
    out->scale = options->scale;
    out->slots = hth_calloc((size_t)t.n_slots + 1, sizeof *out->slots);
    if (out->slots == NULL && err == HTH_OK) {
        err = hth_no_memory("a training step");
    }
    for (int s = 0; s < t.n_slots; s++) {
        if (out->slots != NULL) {
            out->slots[out->n_slots++] = t.slots[s].slot;
        } else {
            hth_free(t.slots[s].slot.name);
            hth_const_rele(t.slots[s].slot.content);
        }
    }
    hth_free(t.slots);
    if (err != HTH_OK) {
        hth_train_graph_fini(out);
    }
    return err;
}

void hth_train_graph_fini(hth_train_graph *graph)
{
    for (int i = 0; i < graph->n_slots; i++) {
        hth_free(graph->slots[i].name);
        hth_const_rele(graph->slots[i].content);
    }
    hth_free(graph->slots);
    hth_graph_free(graph->graph);
    memset(graph, 0, sizeof *graph);
}
