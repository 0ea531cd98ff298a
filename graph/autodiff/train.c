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

hth_err train_no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for a training step");
}

// The position of the output that the loss compares.
static hth_err find_output(const hth_graph *g, const char *name, int *out)
{
    *out = 0;
    while (name != NULL && *out < g->n_outputs &&
           strcmp(g->values[g->outputs[*out]].name, name) != 0) {
        ++*out;
    }
    return *out < g->n_outputs ? HTH_OK
                               : hth_fail(HTH_EINVAL, "the model has no output '%s'", name);
}

// Keeps all outputs, the one of the loss first, or that one alone.
static void order_outputs(train_build *t, int first)
{
    hth_graph *g = t->g;
    int value = g->outputs[first];
    memmove(g->outputs + 1, g->outputs, (size_t)first * sizeof *g->outputs);
    g->outputs[0] = value;
    for (int i = 1; i < g->n_outputs && !t->o->keep_outputs; i++) {
        g->values[g->outputs[i]].is_output = false;
    }
    g->n_outputs = t->o->keep_outputs ? g->n_outputs : 1;
    t->n_outputs = g->n_outputs;
}

// Dtypes and shapes of all inputs: the model's as given, the others as they are.
static hth_err specialize(train_build *t, const hth_tensor *inputs, hth_eval_fn eval, void *ctx)
{
    hth_graph *g = t->g;
    hth_stage stage;
    hth_tensor *all = hth_calloc((size_t)g->n_inputs, sizeof *all);
    if (all == NULL) {
        return train_no_memory();
    }
    for (int i = 0; i < g->n_inputs; i++) {
        const hth_value *v = &g->values[g->inputs[i]];
        all[i] = i < t->n_data ? inputs[i] : (hth_tensor){.dtype = v->dtype, .shape = v->shape};
    }
    hth_err err = hth_specialize(g, all, eval, ctx, &stage);
    hth_free(all);
    HTH_TRY(err);
    if (stage.rest != NULL) {
        hth_stage_fini(&stage);
        return hth_fail(HTH_ENOTSUP, "the model has shapes that depend on computed values, which "
                                     "cannot be trained");
    }
    hth_graph_free(t->g);
    t->g = stage.graph;
    stage.graph = NULL;
    hth_stage_fini(&stage);
    return HTH_OK;
}

// After the passes values are known by their positions among inputs and outputs.
static void find_values(train_build *t)
{
    hth_graph *g = t->g;
    t->step = g->inputs[t->n_data];
    t->hyper = g->inputs[t->n_data + 1];
    for (int s = 0; s < t->n_slots; s++) {
        t->slots[s].value = g->inputs[t->n_data + 2 + s];
        if (t->slots[s].slot.kind == HTH_SLOT_STAT) {
            t->slots[s].next = g->outputs[t->slots[s].slot.output];
        }
    }
}

static hth_err passes(train_build *t)
{
    HTH_TRY(hth_pass_attention_parts(t->g));
    HTH_TRY(hth_pass_simplify(t->g));
    HTH_TRY(hth_pass_elementary(t->g));
    HTH_TRY(train_shorten(t->g));
    return hth_pass_simplify(t->g); // of chains of reshapes that are left
}

static hth_err set_order(train_build *t, hth_train_graph *out)
{
    hth_graph *g = t->g;
    int n_in = t->n_data + 3 + t->n_slots, kept = t->o->keep_outputs ? t->n_outputs : 0;
    int n_out = 1;
    int *in = hth_calloc((size_t)n_in, sizeof *in),
        *to = hth_calloc((size_t)(1 + t->n_slots + kept), sizeof *to);
    if (in == NULL || to == NULL) {
        hth_free(in);
        hth_free(to);
        return train_no_memory();
    }
    memcpy(in, g->inputs, (size_t)t->n_data * sizeof *in);
    in[out->target = t->n_data] = t->target;
    in[out->step = t->n_data + 1] = t->step;
    in[out->hyper = t->n_data + 2] = t->hyper;
    to[0] = t->loss;
    for (int s = 0; s < t->n_slots; s++) {
        t->slots[s].slot.input = t->n_data + 3 + s;
        in[t->n_data + 3 + s] = t->slots[s].value;
        t->slots[s].slot.output = t->slots[s].next >= 0 ? n_out : -1;
        if (t->slots[s].next >= 0) {
            to[n_out++] = t->slots[s].next;
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
    out->n_data = t->n_data;
    return HTH_OK;
}

// scale has inputs that are given as bytes be so.
static hth_err scale(train_build *t, const hth_tensor *inputs)
{
    for (int i = 0; i < t->n_data && t->o->scale.on; i++) {
        bool bytes =
            inputs[i].dtype == HTH_DT_U8 && t->g->values[t->g->inputs[i]].dtype == HTH_DT_F32;
        HTH_TRY(bytes ? hth_train_scale_add(t->g, i, &t->o->scale) : HTH_OK);
    }
    return HTH_OK;
}

static hth_err build(train_build *t, const hth_tensor *inputs, hth_eval_fn eval, void *ctx,
                     hth_train_graph *out)
{
    int first;
    HTH_TRY(find_output(t->g, t->o->output, &first));
    order_outputs(t, first);
    HTH_TRY(hth_graph_compact(t->g));
    HTH_TRY(train_prepare(t));
    HTH_TRY(scale(t, inputs));
    HTH_TRY(specialize(t, inputs, eval, ctx));
    HTH_TRY(passes(t));
    find_values(t);
    HTH_TRY(train_backward(t, t->g->outputs[0]));
    HTH_TRY(train_shorten_backward(t->g));
    HTH_TRY(set_order(t, out));
    HTH_TRY(hth_graph_compact(t->g));
    return hth_graph_check(t->g);
}

hth_err hth_train_build(const hth_graph *model, const hth_tensor *inputs,
                        const hth_train_options *o, hth_eval_fn eval, void *ctx,
                        hth_train_graph *out)
{
    train_build t = {.o = o};
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_graph_clone(model, &t.g));
    t.g->precision = o->precision;
    hth_err err = build(&t, inputs, eval, ctx, out);
    out->graph = t.g;
    out->scale = o->scale;
    out->slots = hth_calloc((size_t)t.n_slots + 1, sizeof *out->slots);
    if (out->slots == NULL && err == HTH_OK) {
        err = train_no_memory();
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

void hth_train_graph_fini(hth_train_graph *t)
{
    for (int i = 0; i < t->n_slots; i++) {
        hth_free(t->slots[i].name);
        hth_const_rele(t->slots[i].content);
    }
    hth_free(t->slots);
    hth_graph_free(t->graph);
    memset(t, 0, sizeof *t);
}
