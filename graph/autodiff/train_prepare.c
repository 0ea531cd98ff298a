// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_prepare.c - the model graph made ready for training, before shapes are
// known.
//
// How the file was exported does not matter: every BatchNormalization uses the batch's statistics
// and updates the running ones, every Dropout drops. Initializers that a gradient could reach
// become inputs here; those that none reaches in the end are made constants again.
#include "graph/autodiff/train_build.h"

#include "graph/autodiff/grad.h"

#include "base/alloc.h"
#include "base/pace.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

bool train_frozen(const hth_train_options *options, const char *name)
{
    for (int i = 0; i < options->n_freeze; i++) {
        if (fnmatch(options->freeze[i], name, 0) == 0) {
            return true;
        }
    }
    return false;
}

// The initializer at `value` becomes a graph input with a slot.
static hth_err to_input(train_build *build, int value, hth_slot_kind kind)
{
    hth_value *v = &build->g->values[value];
    char *name = hth_strdup(v->name);
    if (name == NULL) {
        return hth_no_memory("a training step");
    }
    HTH_TRY(train_add_slot(build, kind, name, value, v->initializer - 1, v->constant));
    hth_const_rele(v->constant);
    v->constant = NULL;
    return hth_graph_add_input(build->g, value);
}

static bool trainable(const train_build *build, int value)
{
    const hth_value *v = &build->g->values[value];
    return v->initializer > 0 && v->constant != NULL && v->dtype == HTH_DT_F32 &&
           v->shape.rank > 0 && !train_frozen(build->o, v->name);
}

// Parameters in the order of the file.
static hth_err take_parameters(train_build *build)
{
    hth_graph *g = build->g;
    bool *read = hth_calloc((size_t)g->n_values + 1, sizeof *read);
    hth_err err = read == NULL ? hth_no_memory("a training step") : HTH_OK;
    for (int i = 0; err == HTH_OK && i < g->n_nodes; i++) {
        for (int k = 0; k < g->nodes[i].n_inputs; k++) {
            if (g->nodes[i].inputs[k] >= 0 && hth_grad_passes(g, &g->nodes[i], k)) {
                read[g->nodes[i].inputs[k]] = true;
            }
        }
    }
    for (int v = 0; err == HTH_OK && v < g->n_values; v++) {
        if (read[v] && trainable(build, v)) {
            err = to_input(build, v, HTH_SLOT_PARAM);
        }
    }
    hth_free(read);
    return err;
}

static int find_slot(const train_build *build, int value)
{
    (void)hth_pace_over(
        (uint64_t)build->n_slots); // whoever walks over the nodes looks whether to go on
    for (int s = 0; s < build->n_slots; s++) {
        if (build->slots[s].value == value) {
            return s;
        }
    }
    return -1;
}

// Input k (3: mean, 4: variance) of batch norm `node`, updated as its output k. A second batch norm
// with the same statistics goes on from what the first one made of them.
static hth_err take_statistic(train_build *build, int node, int k)
{
    hth_graph *g = build->g;
    int value = build->origin[g->nodes[node].inputs[k]], out, s = find_slot(build, value);
    if (s < 0 && (g->values[value].initializer == 0 || g->values[value].constant == NULL)) {
        return HTH_OK; // nowhere to keep new ones
    }
    char *name = hth_asprintf("%s/%d", g->values[value].name, node);
    hth_err err = name == NULL
                      ? hth_no_memory("a training step")
                      : hth_graph_add_value(g, name, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &out);
    hth_free(name);
    HTH_TRY(err);
    if (s < 0) {
        s = build->n_slots;
        g->nodes[node].inputs[k] = value;
        HTH_TRY(to_input(build, value, HTH_SLOT_STAT));
    } else {
        g->nodes[node].inputs[k] = build->slots[s].next;
    }
    g->nodes[node].outputs[k] = out;
    g->values[out].producer = node;
    build->slots[s].next = out;
    return HTH_OK;
}

static hth_err train_batch_norm(train_build *build, int i)
{
    hth_graph *g = build->g;
    int out[5] = {g->nodes[i].outputs[0], -1, -1, -1, -1};
    for (int k = 1; k < g->nodes[i].n_outputs; k++) {
        if (g->nodes[i].outputs[k] >= 0) {
            g->values[g->nodes[i].outputs[k]].producer = -1;
        }
    }
    for (int k = 1; k < 3; k++) {
        HTH_TRY(hth_graph_add_value(g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &out[k]));
        g->values[out[k]].producer = i;
    }
    int *outputs = hth_memdup(out, sizeof out);
    if (outputs == NULL) {
        return hth_no_memory("a training step");
    }
    hth_node *n = &g->nodes[i];
    hth_free(n->outputs);
    n->outputs = outputs;
    n->n_outputs = 5;
    n->op = HTH_OP_BATCH_NORM_TRAIN;
    hth_node_drop_attr(n, "training_mode");
    if (build->o->sync_bn) {
        HTH_TRY(hth_node_set_int(n, "share", 2 * build->n_norms++)); // its gradient has the next
    }
    HTH_TRY(take_statistic(build, i, 3));
    return take_statistic(build, i, 4);
}

static hth_err train_dropout(train_build *build, int i)
{
    hth_graph *g = build->g;
    hth_node *n = &g->nodes[i];
    float ratio = 0.5f;
    if (n->n_inputs > 1 && n->inputs[1] >= 0 && !hth_pass_scalar(g, n->inputs[1], &ratio)) {
        return hth_fail(HTH_ENOTSUP, "node '%s' (Dropout): its ratio is computed", n->name);
    }
    if (n->n_outputs > 1 && n->outputs[1] >= 0) {
        if (build->uses.count[n->outputs[1]] > 0) {
            return hth_fail(HTH_ENOTSUP, "node '%s' (Dropout): its mask is read", n->name);
        }
        g->values[n->outputs[1]].producer = -1;
    }
    if (!(ratio >= 0 && ratio <= 1)) {
        return hth_fail(HTH_EINVAL, "node '%s' (Dropout): its ratio is %g, not between 0 and 1",
                        n->name, (double)ratio);
    }
    n->n_outputs = 1;
    n->n_inputs = 1;
    if (ratio == 0) {
        n->op = HTH_OP_IDENTITY;
        return HTH_OK;
    }
    n->op = HTH_OP_DROPOUT_TRAIN;
    HTH_TRY(hth_node_add_input(n, build->step));
    hth_node_drop_attr(n, "seed");
    HTH_TRY(hth_node_set_float(n, "ratio", ratio));
    return hth_node_set_int(n, "salt", i + 1);
}

static hth_err add_input(hth_graph *graph, const char *name, hth_dtype dt, int64_t n, int *out)
{
    HTH_TRY(hth_graph_add_value(graph, name, dt, &(hth_shape){1, {n}}, out));
    return hth_graph_add_input(graph, *out);
}

static bool is_parameter(const hth_value *value)
{
    return value->initializer > 0 && value->dtype == HTH_DT_F32;
}

// The first names of parameters, for who mistyped one.
static const char *first_names(const hth_graph *graph, char text[160])
{
    size_t at = 0;
    text[0] = 0;
    for (int v = 0; v < graph->n_values; v++) {
        const char *name = graph->values[v].name;
        if (is_parameter(&graph->values[v]) && at + strlen(name) + 8 < 160) {
            at += (size_t)snprintf(text + at, 160 - at, "%s'%s'", at > 0 ? ", " : "", name);
        }
    }
    return text;
}

// A pattern that no parameter matches is a mistake that would show in the result only.
static hth_err check_freeze(const train_build *build)
{
    char names[160];
    for (int i = 0; i < build->o->n_freeze; i++) {
        bool found = false;
        for (int v = 0; v < build->g->n_values && !found; v++) {
            found = is_parameter(&build->g->values[v]) &&
                    fnmatch(build->o->freeze[i], build->g->values[v].name, 0) == 0;
        }
        if (!found) {
            return hth_fail(HTH_EINVAL, "'%.60s' freezes nothing: there are parameters %s, ..",
                            build->o->freeze[i], first_names(build->g, names));
        }
    }
    return HTH_OK;
}

hth_err train_prepare(train_build *build)
{
    hth_graph *g = build->g;
    HTH_TRY(check_freeze(build));
    build->n_data = g->n_inputs;
    HTH_TRY(add_input(g, "hearth.step", HTH_DT_U64, 1, &build->step));
    HTH_TRY(add_input(g, "hearth.hyper", HTH_DT_F32, HTH_N_HYPER, &build->hyper));
    HTH_TRY(hth_uses_open(g, &build->uses));
    hth_err err;
    HTH_GOTO(train_origins(g, &build->origin), done);
    HTH_GOTO(train_check_statistics(g, build->origin), done);
    for (int i = 0; err == HTH_OK && i < g->n_nodes; i++) {
        err = hth_pace_step(1);
        if (err == HTH_OK && g->nodes[i].op == HTH_OP_BATCH_NORMALIZATION) {
            err = train_batch_norm(build, i);
        } else if (err == HTH_OK && g->nodes[i].op == HTH_OP_DROPOUT) {
            err = train_dropout(build, i);
        }
    }
done:
    hth_uses_close(&build->uses);
    hth_free(build->origin);
    build->origin = NULL;
    HTH_TRY(err);
    for (int s = 0; s < build->n_slots; s++) {
        build->slots[s].slot.output = g->n_outputs;
        HTH_TRY(hth_graph_add_output(g, build->slots[s].next));
    }
    return take_parameters(build);
}

static hth_err batch_norm_off(hth_graph *graph, const hth_uses *uses, hth_node *node)
{
    hth_node_drop_attr(node, "training_mode");
    for (int k = 1; k < node->n_outputs; k++) {
        int v = node->outputs[k];
        if (v >= 0 && uses->count[v] > 0) {
            return hth_fail(HTH_ENOTSUP, "node '%s' (BatchNormalization): its statistics are read",
                            node->name);
        }
        if (v >= 0) {
            graph->values[v].producer = -1;
        }
    }
    node->n_outputs = 1;
    return HTH_OK;
}

hth_err hth_train_off(hth_graph *model)
{
    hth_uses uses;
    HTH_TRY(hth_uses_open(model, &uses));
    hth_err err = HTH_OK;
    for (int i = 0; err == HTH_OK && i < model->n_nodes; i++) {
        hth_node *n = &model->nodes[i];
        if (n->op == HTH_OP_BATCH_NORMALIZATION) {
            err = batch_norm_off(model, &uses, n);
        } else if (n->op == HTH_OP_DROPOUT && n->n_inputs > 2) {
            n->n_inputs = 2; // training_mode: absent is false
        }
    }
    hth_uses_close(&uses);
    HTH_TRY(err);
    model->training = false;
    return hth_graph_compact(model);
}
