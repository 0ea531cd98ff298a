// SPDX-License-Identifier: Apache-2.0
// tests/tools/check_backend.c - runs a model with the reference kernels alone; the part of
// check_backend.py that is C.
//
// A model is specialized for the inputs at hand, its stages are walked node by node. Built by the
// script into a shared object; one model at a time, one thread.
#include "base/alloc.h"
#include "graph/onnx/onnx.h"
#include "graph/passes/pass.h"
#include "graph/specialize.h"
#include "kernels/kernel.h"

#include <string.h>

#define EXPORT      __attribute__((visibility("default")))
#define MAX_TENSORS 4096

EXPORT int check_load(const char *path);
EXPORT int check_run(const hth_tensor *inputs, int passes);
EXPORT int check_n_inputs(void);
EXPORT const char *check_input_name(int i);
EXPORT const hth_tensor *check_result(int i);
EXPORT const char *check_error(void);

static hth_graph *check_model;
static hth_tensor check_results[MAX_TENSORS];
static void *check_blocks[MAX_TENSORS * 16];
static int check_n_blocks;

static hth_err check_room(hth_tensor *tensor)
{
    tensor->data = hth_alloc_aligned(tensor->bytes ? tensor->bytes : 64, 64);
    if (!tensor->data || check_n_blocks == (int)(sizeof check_blocks / sizeof check_blocks[0])) {
        hth_free(tensor->data);
        return hth_no_memory("%zu bytes", tensor->bytes);
    }
    check_blocks[check_n_blocks++] = tensor->data;
    return HTH_OK;
}

static hth_err check_value(const hth_value *value, hth_tensor *tensor)
{
    *tensor = (hth_tensor){.dtype = value->dtype, .layout = value->layout, .shape = value->shape};
    HTH_TRY(hth_tensor_bytes(value->dtype, &value->shape, value->layout, &tensor->bytes));
    if (!value->constant) {
        return check_room(tensor);
    }
    const void *data;
    HTH_TRY(hth_const_map(value->constant, &data));
    tensor->data = (void *)data;
    return HTH_OK;
}

static hth_err check_node(const hth_graph *graph, const hth_node *node, hth_tensor *values)
{
    hth_tensor in[64] = {0}, out[64] = {0};
    if (node->n_inputs > 64 || node->n_outputs > 64) {
        return hth_fail(HTH_ENOTSUP, "node '%s' has too many operands", node->name);
    }
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] >= 0) {
            in[i] = values[node->inputs[i]];
        }
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] >= 0) {
            out[i] = values[node->outputs[i]];
        }
    }
    return hth_ref_eval(NULL, graph, node, in, out);
}

// Values of a concrete graph from its inputs; `values` has room for all of them.
static hth_err check_graph(const hth_graph *graph, const hth_tensor *inputs, hth_tensor *values)
{
    for (int i = 0; i < graph->n_values; i++) {
        if (!graph->values[i].is_input) {
            HTH_TRY(check_value(&graph->values[i], &values[i]));
        }
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        values[graph->inputs[i]] = inputs[i];
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        HTH_TRY(check_node(graph, &graph->nodes[i], values));
    }
    return HTH_OK;
}

static hth_err check_passes(hth_graph *graph)
{
    HTH_TRY(hth_pass_attention_parts(graph));
    HTH_TRY(hth_pass_simplify(graph));
    HTH_TRY(hth_pass_pattern(graph));
    HTH_TRY(hth_pass_fold_norm(graph));
    return hth_graph_check(graph);
}

// One stage and what waits for it. place[i]: the model's output that output i is.
static hth_err check_stage(const hth_graph *model, const hth_tensor *inputs, bool passes,
                           const int *place)
{
    hth_stage s;
    HTH_TRY(hth_specialize(model, inputs, hth_ref_eval, NULL, &s));
    hth_graph *g = s.graph;
    hth_tensor *values = NULL, *next = NULL;
    int *where = NULL;
    hth_err err = passes ? check_passes(g) : HTH_OK;
    int n_next = s.rest ? s.rest->n_inputs : 0, n_rest = s.rest ? s.rest->n_outputs : 0,
        waiting = 0;
    values = hth_calloc((size_t)g->n_values + 1, sizeof *values);
    next = hth_calloc((size_t)n_next + 1, sizeof *next);
    where = hth_calloc((size_t)n_rest + (size_t)model->n_outputs + 1, sizeof *where);
    if (err == HTH_OK && (!values || !next || !where)) {
        err = hth_fail(HTH_ENOMEM, "no memory");
    }
    if (err != HTH_OK || (err = check_graph(g, inputs, values)) != HTH_OK) {
        goto done;
    }
    for (int i = 0; i < s.n_final; i++) {
        hth_tensor *to = &check_results[place[s.final_index[i]]], from = values[g->outputs[i]];
        *to = from;
        HTH_GOTO(check_room(to), done);
        memcpy(to->data, from.data, from.bytes);
    }
    for (int i = 0; i < n_next; i++) {
        next[i] = i < g->n_inputs ? inputs[i] : values[g->outputs[s.n_final + i - g->n_inputs]];
    }
    for (int i = 0; i < model->n_outputs; i++) {
        bool is_final = false;
        for (int k = 0; k < s.n_final; k++) {
            is_final |= s.final_index[k] == i;
        }
        if (!is_final) {
            where[waiting++] = place[i];
        }
    }
    err = s.rest ? check_stage(s.rest, next, passes, where) : HTH_OK;
done:
    hth_free(values);
    hth_free(next);
    hth_free(where);
    hth_stage_fini(&s);
    return err;
}

EXPORT int check_load(const char *path)
{
    hth_graph_free(check_model);
    check_model = NULL;
    hth_err err = hth_onnx_load_file(path, &check_model);
    if (err == HTH_OK && check_model->n_outputs > MAX_TENSORS) {
        return HTH_ENOTSUP;
    }
    return err;
}

EXPORT int check_run(const hth_tensor *inputs, int passes)
{
    int place[MAX_TENSORS];
    while (check_n_blocks > 0) {
        hth_free(check_blocks[--check_n_blocks]);
    }
    memset(check_results, 0, sizeof check_results);
    for (int i = 0; i < check_model->n_outputs; i++) {
        place[i] = i;
    }
    return check_stage(check_model, inputs, passes != 0, place);
}

EXPORT int check_n_inputs(void)
{
    return check_model->n_inputs;
}

EXPORT const char *check_input_name(int i)
{
    return check_model->values[check_model->inputs[i]].name;
}

// check_result returns output i of the last run, valid until the next.
EXPORT const hth_tensor *check_result(int i)
{
    return &check_results[i];
}

EXPORT const char *check_error(void)
{
    return hth_err_detail();
}
