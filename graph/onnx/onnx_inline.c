// SPDX-License-Identifier: Apache-2.0
// What contains other nodes is read in its place: calls of model-local functions, and an If whose
// condition is known. The body's results reach the names of the calling node through Identity
// nodes, which the passes remove.
#include "graph/onnx/onnx_load.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

#define INLINE_UNPACKED 4  // bytes that unpacking makes of one
#define INLINE_CHAIN    16 // nodes between a constant and the If that it decides
#define INLINE_ENTRY    64 // what looking at a parameter or an import takes

const onnx_function *onnx_find_function(const onnx_load *ld, const onnx_node *node)
{
    char key[512]; // a longer name is no function's that we know
    int index;
    if (ld->model->n_functions == 0) {
        return NULL;
    }
    const char *domain = node->domain != NULL ? node->domain : "";
    const char *overload = node->overload != NULL ? node->overload : "";
    int len = snprintf(key, sizeof key, "%s:%s:%s", domain, node->op_type, overload);
    return (size_t)len < sizeof key && hth_names_find(&ld->functions, key, &index)
               ? ld->model->functions[index]
               : NULL;
}

// inline_scope makes the scope of a body that stands in for node `node`.
static hth_err inline_scope(const onnx_scope *scope, const onnx_node *node, onnx_scope *out)
{
    if (scope->depth + 1 > ONNX_MAX_DEPTH) {
        return hth_fail(
            HTH_ENOTSUP,
            "node '%s': functions and branches nested more than %d deep are not supported",
            onnx_label(node), ONNX_MAX_DEPTH);
    }
    *out = *scope;
    out->names = (hth_names){0};
    out->outer = scope;
    out->depth = scope->depth + 1;
    out->prefix = hth_asprintf("%s%.100s/", scope->prefix, onnx_label(node));
    return out->prefix == NULL ? hth_no_memory("a graph") : HTH_OK;
}

static void inline_scope_fini(onnx_scope *scope)
{
    hth_names_fini(&scope->names);
    hth_free((char *)scope->prefix);
}

// inline_result lets output `k` of node `node` be what the body calls `name`.
static hth_err inline_result(onnx_load *ld, const onnx_scope *scope, const onnx_node *node,
                             size_t k, const onnx_scope *body, const char *name)
{
    int from, to;
    if (k >= node->n_output || node->output[k][0] == '\0') {
        return HTH_OK;
    }
    if (name == NULL || !onnx_resolve(body, name, &from) || from < 0) {
        return hth_fail(HTH_EINVAL, "node '%s' (%s): no node computes its result '%s'",
                        onnx_label(node), node->op_type, name == NULL ? "" : name);
    }
    hth_names_find(&scope->names, node->output[k], &to);
    return hth_graph_add_node(ld->g, HTH_OP_IDENTITY, NULL, &from, 1, &to, 1, NULL);
}

static hth_err inline_parameters(const onnx_scope *scope, const onnx_node *node,
                                 const onnx_function *function, onnx_scope *body)
{
    int *inputs;
    hth_err err = HTH_OK;
    if (node->n_input > function->n_input || node->n_output > function->n_output) {
        return hth_fail(HTH_EINVAL, "node '%s': function '%s' has %zu inputs and %zu outputs",
                        onnx_label(node), function->name, function->n_input, function->n_output);
    }
    HTH_TRY(onnx_inputs(scope, node, &inputs));
    for (size_t i = 0; i < function->n_input && err == HTH_OK; i++) {
        err = hth_names_put(&body->names, function->input[i], i < node->n_input ? inputs[i] : -1);
    }
    hth_free(inputs);
    return err == HTH_EEXIST
               ? hth_fail(HTH_EINVAL, "function '%s' has two inputs of one name", function->name)
               : err;
}

static hth_err inline_body(onnx_load *ld, onnx_scope *scope, const onnx_node *node,
                           const onnx_function *function, onnx_scope *body)
{
    body->outer = NULL; // a function sees its parameters only
    body->opsets = function->opset_import;
    body->n_opsets = function->n_opset_import;
    body->opset = 0;
    body->function = function;
    body->call = node;
    body->call_scope = scope;
    HTH_TRY(onnx_made(ld, (function->n_opset_import + function->n_input + function->n_output) *
                              INLINE_ENTRY));
    HTH_TRY(onnx_scope_opset(body));
    HTH_TRY(inline_parameters(scope, node, function, body));
    HTH_TRY(onnx_load_nodes(ld, body, function->node, function->n_node, NULL));
    for (size_t i = 0; i < function->n_output; i++) {
        HTH_TRY(inline_result(ld, scope, node, i, body, function->output[i]));
    }
    return HTH_OK;
}

hth_err onnx_inline_function(onnx_load *ld, onnx_scope *scope, const onnx_node *node,
                             const onnx_function *function)
{
    onnx_scope body;
    HTH_TRY(inline_scope(scope, node, &body));
    hth_err err = inline_body(ld, scope, node, function, &body);
    inline_scope_fini(&body);
    return err;
}

// inline_truth reads a constant of one number as Cast to BOOL does: all but 0 and -0.0 is true.
static hth_err inline_truth(hth_const *c, bool *out)
{
    const void *data;
    HTH_TRY(hth_const_map(c, &data));
    uint8_t any = 0;
    for (size_t i = 0; i < c->bytes; i++) { // little-endian: a float's sign is in the last byte
        bool sign = hth_dtype_is_float(c->dtype) && i == c->bytes - 1;
        any |= ((const uint8_t *)data)[i] & (sign ? 0x7f : 0xff);
    }
    *out = any != 0;
    hth_const_unmap(c);
    return HTH_OK;
}

// inline_source returns what value `v` is made of by Identity, Not and Cast to BOOL alone; folding
// is for later, when the graph is whole.
static int inline_source(const hth_graph *graph, int v, bool *negated, bool *cast)
{
    for (int i = 0; i < INLINE_CHAIN && v >= 0 && graph->values[v].producer >= 0; i++) {
        const hth_node *n = &graph->nodes[graph->values[v].producer];
        bool to_bool = n->op == HTH_OP_CAST && hth_node_int(n, "to", 0) == HTH_DT_BOOL;
        if (n->op != HTH_OP_IDENTITY && n->op != HTH_OP_NOT && !to_bool) {
            break;
        }
        *negated ^= n->op == HTH_OP_NOT;
        *cast |= to_bool;
        v = n->inputs[0];
    }
    return v;
}

// inline_condition reads the condition of an If.
static hth_err inline_condition(onnx_load *ld, const onnx_scope *scope, const onnx_node *node,
                                bool *out)
{
    int v;
    bool negated = false, cast = false;
    if (node->n_input != 1 || !onnx_resolve(scope, node->input[0], &v)) {
        return hth_fail(HTH_EINVAL, "node '%s' (If) has no condition", onnx_label(node));
    }
    v = inline_source(ld->g, v, &negated, &cast);
    hth_const *c = v >= 0 ? ld->g->values[v].constant : NULL;
    bool number = c != NULL && c->bytes > 0 && c->bytes == hth_dtype_bytes(c->dtype);
    if (!number || (c->dtype != HTH_DT_BOOL && !cast)) {
        return hth_fail(HTH_ENOTSUP,
                        "node '%s': operator If is only supported with a constant condition",
                        onnx_label(node));
    }
    HTH_TRY(inline_truth(c, out));
    *out ^= negated;
    return HTH_OK;
}

static hth_err inline_branch(onnx_load *ld, onnx_scope *scope, const onnx_node *node,
                             const onnx_graph *graph)
{
    onnx_scope body;
    if (graph->n_input > 0 || graph->n_output != node->n_output) {
        return hth_fail(HTH_EINVAL, "node '%s' (If): its branch has %zu inputs and %zu outputs",
                        onnx_label(node), graph->n_input, graph->n_output);
    }
    HTH_TRY(inline_scope(scope, node, &body));
    hth_err err = onnx_load_branch(ld, &body, graph);
    for (size_t i = 0; i < graph->n_output && err == HTH_OK; i++) {
        err = inline_result(ld, scope, node, i, &body, graph->output[i]->name);
    }
    inline_scope_fini(&body);
    return err;
}

hth_err onnx_inline_if(onnx_load *ld, onnx_scope *scope, const onnx_node *node)
{
    const onnx_attribute *a;
    bool taken = false;
    HTH_TRY(inline_condition(ld, scope, node, &taken));
    HTH_TRY(onnx_find_attribute(scope, node, taken ? "then_branch" : "else_branch", &a));
    if (a == NULL || !a->has_g) {
        return hth_fail(HTH_EINVAL, "node '%s' (If) lacks a branch", onnx_label(node));
    }
    HTH_TRY(onnx_made(ld, a->g.len * INLINE_UNPACKED));
    onnx_graph *graph = hth__onnx__graph_proto__unpack(&ld->allocator, a->g.len, a->g.data);
    if (graph == NULL) {
        return onnx_unpack_failed(ld, "a branch");
    }
    hth_err err = inline_branch(ld, scope, node, graph);
    hth__onnx__graph_proto__free_unpacked(graph, &ld->allocator);
    return err;
}
