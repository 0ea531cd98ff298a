// SPDX-License-Identifier: Apache-2.0
// From a skeleton and its tensors to the model graph.
//
// A body is read in two passes, because its nodes may stand in any order: first every output is
// declared as a value (and every Constant becomes content), then nodes are added with their inputs
// looked up. Branches of an If whose condition is a constant and model-local functions are read the
// same way, in a scope of their own, into the same graph. Work is bounded by limits.max_nodes over
// all scopes, however functions call each other.
#include "graph/onnx/onnx_load.h"

#include "base/alloc.h"
#include "base/pace.h"
#include "graph/onnx/onnx_hint.h"

#include <inttypes.h>
#include <string.h>

// What the loader makes: nodes and values with their names take some tens of times the bytes that
// they have in a file.
#define LOAD_MADE     ((uint64_t)256 << 20)
#define LOAD_MADE_PER 64
#define LOAD_NODE     256
#define LOAD_NAME     192 // a name's entries in tables, and its value

static void *load_alloc(void *ctx, size_t bytes)
{
    void *p = hth_alloc(bytes);
    *(bool *)ctx |= p == NULL;
    return p;
}

static void load_free(void *ctx, void *p)
{
    hth_free(p);
}

hth_err onnx_unpack_failed(const onnx_load *ld, const char *what)
{
    return ld->out_of_memory ? hth_no_memory("a graph")
                             : hth_fail(HTH_ECORRUPT, "not an ONNX model: %s is damaged", what);
}

hth_err onnx_made(onnx_load *ld, uint64_t bytes)
{
    ld->made += bytes;
    HTH_TRY(hth_pace_step(bytes));
    return ld->made <= ld->most_made
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG,
                          "the model's functions and branches expand to more than %" PRIu64
                          " bytes, which is out of proportion to its size",
                          ld->most_made);
}

hth_err onnx_scope_opset(onnx_scope *scope)
{
    for (size_t i = 0; i < scope->n_opsets; i++) {
        int64_t version = scope->opsets[i]->version;
        if (!onnx_domain_default(scope->opsets[i]->domain)) {
            continue;
        }
        if (version < HTH_OPSET_MIN || version > HTH_OPSET_MAX) {
            return hth_fail(HTH_ENOTSUP, "opset %" PRId64 " is not supported (%d to %d are)",
                            version, HTH_OPSET_MIN, HTH_OPSET_MAX);
        }
        scope->opset = (int)version;
    }
    return HTH_OK;
}

// load_unique_name makes a name that no value has yet, close to prefix + name, and marks it as
// taken.
static hth_err load_unique_name(onnx_load *ld, const char *prefix, const char *name, char **out)
{
    char *s = hth_asprintf("%s%s", prefix, name);
    hth_err err = s == NULL ? hth_no_memory("a graph") : onnx_made(ld, strlen(s) + LOAD_NAME);
    if (err == HTH_OK) {
        err = hth_names_put(&ld->taken, s, 0);
    }
    // The next number after a name stands with it: calls of one function by one name are many.
    int *number = err == HTH_EEXIST ? hth_names_at(&ld->taken, s) : NULL;
    while (err == HTH_EEXIST) {
        hth_free(s);
        s = hth_asprintf("%s%s~%d", prefix, name, ++*number);
        err = s == NULL ? hth_no_memory("a graph") : hth_names_put(&ld->taken, s, 0);
    }
    if (err != HTH_OK) {
        hth_free(s);
        return err;
    }
    *out = s;
    return HTH_OK;
}

static hth_err load_add_value(onnx_load *ld, const char *prefix, const char *name,
                              hth_const *constant, int *out)
{
    char *unique;
    HTH_TRY(load_unique_name(ld, prefix, name, &unique));
    hth_err err = constant != NULL
                      ? hth_graph_add_const(ld->g, unique, constant, out)
                      : hth_graph_add_value(ld->g, unique, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, out);
    hth_free(unique);
    return err;
}

// Adds a value called `name` in this scope (made unique in the graph). HTH_EINVAL: declared twice.
static hth_err load_declare(onnx_load *ld, onnx_scope *scope, const char *name, hth_const *constant,
                            int *out)
{
    hth_err err = hth_names_put(&scope->names, name, ld->g->n_values);
    if (err == HTH_EEXIST) {
        return hth_fail(HTH_EINVAL, "the name '%s%s' is given to two values", scope->prefix, name);
    }
    HTH_TRY(err);
    return load_add_value(ld, scope->prefix, name, constant, out);
}

bool onnx_resolve(const onnx_scope *scope, const char *name, int *out)
{
    while (scope != NULL && !hth_names_find(&scope->names, name, out)) {
        scope = scope->outer;
    }
    return scope != NULL;
}

hth_err onnx_add_value(onnx_load *ld, const char *node, const char *suffix, hth_const *constant,
                       int *out)
{
    char *name = hth_asprintf("%s.%s", node, suffix);
    hth_err err =
        name == NULL ? hth_no_memory("a graph") : load_add_value(ld, "", name, constant, out);
    hth_free(name);
    return err;
}

// Bodies.

static hth_err load_declare_outputs(onnx_load *ld, onnx_scope *scope, const onnx_node *node)
{
    hth_const *constant = NULL;
    int value;
    if (++ld->steps > ld->limits.max_nodes) {
        return hth_fail(HTH_ETOOBIG, "the graph has more than %d nodes (limits.nodes)",
                        ld->limits.max_nodes);
    }
    if (node->n_attribute > ONNX_MAX_ATTRIBUTES) {
        return hth_fail(HTH_EINVAL, "node '%s': %zu attributes are more than any operator has",
                        onnx_label(node), node->n_attribute);
    }
    HTH_TRY(onnx_made(ld, LOAD_NODE + (node->n_input + node->n_output) * sizeof(int)));
    if (node->op_type != NULL && strcmp(node->op_type, "Constant") == 0 &&
        onnx_domain_default(node->domain)) {
        if (node->n_output != 1 || node->output[0][0] == '\0') {
            return hth_fail(HTH_EINVAL, "node '%s' (Constant) needs one output", onnx_label(node));
        }
        HTH_TRY(onnx_constant(ld, scope, node, &constant));
    }
    for (size_t i = 0; i < node->n_output; i++) {
        if (node->output[i][0] == '\0') {
            continue;
        }
        hth_err err = load_declare(ld, scope, node->output[i], constant, &value);
        if (err != HTH_OK) {
            hth_const_rele(constant);
            return err;
        }
    }
    return HTH_OK;
}

static hth_err load_refuse(const onnx_scope *scope, const onnx_node *node)
{
    int64_t version = 0;
    const char *domain = onnx_domain_default(node->domain) ? "ai.onnx" : node->domain;
    for (size_t i = 0; i < scope->n_opsets; i++) {
        const char *d = scope->opsets[i]->domain;
        if (strcmp(onnx_domain_default(d) ? "ai.onnx" : d, domain) == 0) {
            version = scope->opsets[i]->version;
        }
    }
    const char *hint = hth_onnx_hint_operator(domain, node->op_type);
    const char *colon = hint != NULL ? ": " : "";
    return hth_fail(
        HTH_ENOTSUP,
        "node '%s': operator %s of domain '%s' (opset %" PRId64 ") is not supported%s%s",
        onnx_label(node), node->op_type, domain, version, colon, hint != NULL ? hint : "");
}

// load_since stores the version of `op` that opset `opset` means; 0 when it had none yet.
static int load_since(hth_op op, int opset)
{
    const hth_op_info *info = hth_op_info_of(op);
    int since = 0;
    for (int i = 0; i < info->n_since && info->since[i] <= opset; i++) {
        since = info->since[i];
    }
    return since;
}

// Operators of onnxruntime's own domain that are those of ONNX.
static hth_op load_microsoft(const onnx_node *node)
{
    static const hth_op same[] = {HTH_OP_GELU, HTH_OP_QUANTIZE_LINEAR, HTH_OP_DEQUANTIZE_LINEAR};
    hth_op op = HTH_OP_NONE;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        op = strcmp(node->op_type, hth_op_name(same[i])) == 0 ? same[i] : op;
    }
    return strcmp(node->domain, "com.microsoft") == 0 ? op : HTH_OP_NONE;
}

static hth_err load_node(onnx_load *ld, onnx_scope *scope, const onnx_node *node)
{
    if (node->op_type == NULL || node->op_type[0] == '\0') {
        return hth_fail(HTH_EINVAL, "node '%s' has no operator", onnx_label(node));
    }
    const onnx_function *f = onnx_find_function(ld, node);
    if (f != NULL) {
        return onnx_inline_function(ld, scope, node, f);
    }
    if (!onnx_domain_default(node->domain)) {
        hth_op same = load_microsoft(node);
        return same != HTH_OP_NONE
                   ? onnx_add_operator(ld, scope, node, same, load_since(same, HTH_OPSET_MAX))
                   : load_refuse(scope, node);
    }
    if (strcmp(node->op_type, "Constant") == 0) {
        return HTH_OK; // became content when its output was declared
    }
    if (strcmp(node->op_type, "If") == 0) {
        return onnx_inline_if(ld, scope, node);
    }
    if (scope->opset == 0) {
        return hth_fail(HTH_EINVAL, "the model does not declare the opset of its ONNX operators");
    }
    hth_op op = hth_op_find(node->op_type);
    int since = op == HTH_OP_NONE ? 0 : load_since(op, scope->opset);
    return since == 0 ? load_refuse(scope, node) : onnx_add_operator(ld, scope, node, op, since);
}

hth_err onnx_load_nodes(onnx_load *ld, onnx_scope *scope, onnx_node *const *node, size_t n,
                        const onnx_graph *types)
{
    for (size_t i = 0; i < n; i++) {
        HTH_TRY(load_declare_outputs(ld, scope, node[i]));
    }
    for (size_t i = 0; types != NULL && i < types->n_value_info; i++) {
        HTH_TRY(onnx_hint(ld, scope, types->value_info[i]));
    }
    for (size_t i = 0; types != NULL && i < types->n_output; i++) {
        HTH_TRY(onnx_hint(ld, scope, types->output[i]));
    }
    for (size_t i = 0; i < n; i++) {
        HTH_TRY(load_node(ld, scope, node[i]));
    }
    return HTH_OK;
}

hth_err onnx_load_branch(onnx_load *ld, onnx_scope *scope, const onnx_graph *graph)
{
    for (size_t i = 0; i < graph->n_initializer; i++) {
        hth_onnx_head head;
        hth_const *c;
        int value;
        hth_span message = {graph->initializer[i].data, graph->initializer[i].len};
        HTH_TRY(onnx_tensor_const(ld, message, &head, &c));
        char *name = hth_strndup((const char *)head.name.data, head.name.bytes);
        hth_err err =
            name == NULL ? hth_no_memory("a graph") : load_declare(ld, scope, name, c, &value);
        hth_free(name);
        if (err != HTH_OK) {
            hth_const_rele(c);
            return err;
        }
    }
    return onnx_load_nodes(ld, scope, graph->node, graph->n_node, graph);
}

// The whole model.

static hth_err load_initializer(onnx_load *ld, onnx_scope *scope, const ProtobufCBinaryData *p,
                                hth_const *constant, int number)
{
    hth_onnx_head head;
    int value;
    HTH_TRY(hth_onnx_head_read((hth_span){p->data, p->len}, &ld->limits, &head));
    if (constant->dtype != head.dtype || !hth_shape_equal(&constant->shape, &head.shape)) {
        return hth_fail(HTH_ECORRUPT, "tensor '%.*s' is not the one that the model was stored with",
                        HTH_SPAN(head.name));
    }
    char *name = hth_strndup((const char *)head.name.data, head.name.bytes);
    if (name == NULL) {
        return hth_no_memory("a graph");
    }
    hth_const_hold(constant);
    hth_err err = name[0] == '\0' ? hth_fail(HTH_EINVAL, "an initializer has no name")
                                  : load_declare(ld, scope, name, constant, &value);
    hth_free(name);
    if (err != HTH_OK) {
        hth_const_rele(constant);
        return err;
    }
    ld->g->values[value].initializer = head.constant ? 0 : number + 1;
    return HTH_OK;
}

static hth_err load_initializers(onnx_load *ld, onnx_scope *scope, hth_const *const *tensors, int n)
{
    const onnx_graph *graph = ld->model->graph;
    if (graph->n_sparse_initializer > 0) {
        return hth_fail(HTH_ENOTSUP, "sparse initializers are not supported");
    }
    if (n < 0 || (size_t)n != graph->n_initializer) {
        return hth_fail(HTH_ECORRUPT, "the model has %zu initializers, %d were given",
                        graph->n_initializer, n);
    }
    for (int i = 0; i < n; i++) {
        HTH_TRY(load_initializer(ld, scope, &graph->initializer[i], tensors[i], i));
    }
    return HTH_OK;
}

static hth_err load_input(onnx_load *ld, onnx_scope *scope, const onnx_value_info *info)
{
    int v;
    hth_dtype dt;
    hth_shape shape;
    if (info->name == NULL || info->name[0] == '\0') {
        return hth_fail(HTH_EINVAL, "an input has no name");
    }
    if (hth_names_find(&scope->names, info->name, &v) && ld->g->values[v].constant != NULL) {
        return HTH_OK; // before IR version 4 initializers were listed as inputs, too
    }
    hth_err err = onnx_type(ld, info, &dt, &shape);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "input '%s'", info->name);
    }
    HTH_TRY(load_declare(ld, scope, info->name, NULL, &v));
    ld->g->values[v].dtype = dt;
    ld->g->values[v].shape = shape;
    return hth_graph_add_input(ld->g, v);
}

static hth_err load_output(onnx_load *ld, onnx_scope *scope, const onnx_value_info *info)
{
    int v;
    hth_dtype dt;
    hth_shape shape;
    if (info->name == NULL || !hth_names_find(&scope->names, info->name, &v)) {
        return hth_fail(HTH_EINVAL, "no node computes the output '%s'",
                        info->name == NULL ? "" : info->name);
    }
    if (ld->g->values[v].is_output) {
        return hth_fail(HTH_EINVAL, "the output '%s' is listed twice", info->name);
    }
    if (info->type != NULL) {
        hth_err err = onnx_type(ld, info, &dt, &shape);
        if (err != HTH_OK) {
            return hth_err_prefix(err, "output '%s'", info->name);
        }
    }
    return hth_graph_add_output(ld->g, v);
}

static hth_err load_functions(onnx_load *ld)
{
    for (size_t i = 0; i < ld->model->n_functions; i++) {
        const onnx_function *f = ld->model->functions[i];
        const char *domain = f->domain != NULL ? f->domain : "";
        const char *name = f->name != NULL ? f->name : "";
        const char *overload = f->overload != NULL ? f->overload : "";
        char *key = hth_asprintf("%s:%s:%s", domain, name, overload);
        hth_err err =
            key == NULL ? hth_no_memory("a graph") : hth_names_put(&ld->functions, key, (int)i);
        if (err == HTH_EEXIST) {
            hth_fail(HTH_EINVAL, "function '%s' is defined twice", key);
            err = HTH_EINVAL;
        }
        hth_free(key);
        HTH_TRY(err);
    }
    return HTH_OK;
}

// load_signature checks the number of inputs and outputs. Every request is compared with all of
// them.
static hth_err load_signature(const onnx_load *ld, int inputs, size_t outputs)
{
    if ((uint64_t)inputs + outputs <= (uint64_t)ld->limits.max_signature) {
        return HTH_OK;
    }
    return hth_fail(HTH_ETOOBIG,
                    "the model has %d inputs and %zu outputs, more than %d together "
                    "(limits.inputs_outputs)",
                    inputs, outputs, ld->limits.max_signature);
}

static hth_err load_model(onnx_load *ld, onnx_scope *scope, hth_const *const *tensors, int n)
{
    const onnx_graph *graph = ld->model->graph;
    if (graph == NULL) {
        return hth_fail(HTH_ECORRUPT, "not an ONNX model: it has no graph");
    }
    HTH_TRY(onnx_scope_opset(scope));
    HTH_TRY(load_functions(ld));
    HTH_TRY(load_initializers(ld, scope, tensors, n));
    for (size_t i = 0; i < graph->n_input; i++) {
        HTH_TRY(load_input(ld, scope, graph->input[i]));
    }
    HTH_TRY(onnx_load_nodes(ld, scope, graph->node, graph->n_node, graph));
    if (graph->n_output == 0) {
        return hth_fail(HTH_EINVAL, "the model has no outputs");
    }
    HTH_TRY(load_signature(ld, ld->g->n_inputs, graph->n_output));
    for (size_t i = 0; i < graph->n_output; i++) {
        HTH_TRY(load_output(ld, scope, graph->output[i]));
    }
    HTH_TRY(hth_graph_sort(ld->g));
    HTH_TRY(hth_graph_compact(ld->g));
    return hth_graph_check(ld->g);
}

hth_err hth_onnx_load(const void *skeleton, size_t bytes, hth_const *const *tensors, int n_tensors,
                      const hth_onnx_limits *limits, hth_graph **out)
{
    onnx_load ld = {.limits = limits != NULL ? *limits : hth_onnx_default_limits,
                    .most_made = LOAD_MADE + (uint64_t)bytes * LOAD_MADE_PER};
    *out = NULL;
    ld.allocator = (ProtobufCAllocator){load_alloc, load_free, &ld.out_of_memory};
    onnx_model *model = hth__onnx__model_proto__unpack(&ld.allocator, bytes, skeleton);
    if (model == NULL) {
        return onnx_unpack_failed(&ld, "the model");
    }
    onnx_scope top = {
        .prefix = "", .opsets = model->opset_import, .n_opsets = model->n_opset_import};
    ld.model = model;
    hth_err err = hth_graph_new(&ld.g);
    if (err == HTH_OK) {
        err = load_model(&ld, &top, tensors, n_tensors);
    }
    hth_names_fini(&top.names);
    hth_names_fini(&ld.taken);
    hth_names_fini(&ld.symbols);
    hth_names_fini(&ld.functions);
    hth__onnx__model_proto__free_unpacked(model, &ld.allocator);
    if (err != HTH_OK) {
        hth_graph_free(ld.g);
        return err;
    }
    *out = ld.g;
    return HTH_OK;
}
