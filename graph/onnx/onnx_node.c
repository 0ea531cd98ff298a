// SPDX-License-Identifier: Apache-2.0
// One NodeProto: its attributes, the constant that it stands for, or the operator that it adds to
// the graph.
#include "graph/onnx/onnx_load.h"

#include "base/alloc.h"

#include <string.h>

enum { // AttributeProto.type
    A_FLOAT = 1,
    A_INT = 2,
    A_STRING = 3,
    A_TENSOR = 4,
    A_GRAPH = 5,
    A_FLOATS = 6,
    A_INTS = 7,
    A_STRINGS = 8,
};

bool onnx_domain_default(const char *domain)
{
    return domain == NULL || domain[0] == '\0' || strcmp(domain, "ai.onnx") == 0;
}

const char *onnx_label(const onnx_node *node)
{
    if (node->name != NULL && node->name[0] != '\0') {
        return node->name;
    }
    return node->n_output > 0 ? node->output[0] : "";
}

static const onnx_attribute *attribute_named(onnx_attribute *const *a, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (a[i]->name != NULL && strcmp(a[i]->name, name) == 0) {
            return a[i];
        }
    }
    return NULL;
}

// attribute_follow replaces a reference to an attribute of the enclosing function by what it refers
// to: the call's attribute, the function's default, or nothing.
static hth_err attribute_follow(const onnx_scope *scope, const onnx_attribute **a)
{
    while (*a != NULL && (*a)->ref_attr_name != NULL && (*a)->ref_attr_name[0] != '\0') {
        const char *name = (*a)->ref_attr_name;
        if (scope->function == NULL) {
            return hth_fail(HTH_EINVAL,
                            "attribute '%s' refers to '%s' of a function, outside of one",
                            (*a)->name, name);
        }
        *a = attribute_named(scope->call->attribute, scope->call->n_attribute, name);
        if (*a == NULL) {
            *a = attribute_named(scope->function->attribute_proto,
                                 scope->function->n_attribute_proto, name);
            return HTH_OK;
        }
        scope = scope->call_scope;
    }
    return HTH_OK;
}

hth_err onnx_find_attribute(const onnx_scope *scope, const onnx_node *node, const char *name,
                            const onnx_attribute **out)
{
    *out = attribute_named(node->attribute, node->n_attribute, name);
    return attribute_follow(scope, out);
}

hth_err onnx_tensor_const(onnx_load *ld, hth_span message, hth_onnx_head *head, hth_const **out)
{
    const void *data;
    void *owned;
    HTH_TRY(hth_onnx_head_read(message, &ld->limits, head));
    HTH_TRY(onnx_made(ld, message.bytes));
    HTH_TRY(hth_onnx_content(head, &data, &owned));
    hth_err err = hth_const_new(head->dtype, &head->shape, data, out);
    hth_free(owned);
    return err;
}

// Attributes.

// attribute_text copies a string; protobuf-c leaves an empty one NULL.
static char *attribute_text(const ProtobufCBinaryData *s)
{
    return s->len == 0 ? hth_strdup("") : hth_strndup((const char *)s->data, s->len);
}

static hth_err attribute_strings(const onnx_attribute *attribute, hth_attr *to)
{
    to->u.strings = hth_calloc(attribute->n_strings, sizeof *to->u.strings);
    if (to->u.strings == NULL) {
        return hth_no_memory("a graph");
    }
    for (size_t i = 0; i < attribute->n_strings; i++) {
        to->u.strings[i] = attribute_text(&attribute->strings[i]);
        to->n = (int)i + 1; // a NULL in the list can be freed, too
        if (to->u.strings[i] == NULL) {
            return hth_no_memory("a graph");
        }
    }
    return HTH_OK;
}

static hth_err attribute_value(onnx_load *ld, const onnx_attribute *attribute, hth_attr *to)
{
    hth_onnx_head head;
    switch (attribute->type) {
    case A_FLOAT:
        to->type = HTH_ATTR_FLOAT;
        to->u.f = attribute->f;
        return HTH_OK;
    case A_INT:
        to->type = HTH_ATTR_INT;
        to->u.i = attribute->i;
        return HTH_OK;
    case A_STRING:
        to->type = HTH_ATTR_STRING;
        to->u.s = attribute_text(&attribute->s);
        return to->u.s == NULL ? hth_no_memory("a graph") : HTH_OK;
    case A_TENSOR:
        to->type = HTH_ATTR_TENSOR;
        return onnx_tensor_const(ld, (hth_span){attribute->t.data, attribute->t.len}, &head,
                                 &to->u.tensor);
    case A_FLOATS:
        to->type = HTH_ATTR_FLOATS;
        to->n = (int)attribute->n_floats;
        to->u.floats =
            hth_memdup(attribute->floats, attribute->n_floats * sizeof *attribute->floats);
        return to->u.floats == NULL ? hth_no_memory("a graph") : HTH_OK;
    case A_INTS:
        to->type = HTH_ATTR_INTS;
        to->n = (int)attribute->n_ints;
        to->u.ints = hth_memdup(attribute->ints, attribute->n_ints * sizeof *attribute->ints);
        return to->u.ints == NULL ? hth_no_memory("a graph") : HTH_OK;
    case A_STRINGS:
        to->type = HTH_ATTR_STRINGS;
        return attribute_strings(attribute, to);
    default:
        return hth_fail(HTH_ENOTSUP, "attribute '%s' is of type %d, which is not supported",
                        attribute->name, attribute->type);
    }
}

// The attributes that hearth reads of ONNX's operators, with their types, whichever operator has
// them: ONNX gives one name one type, but for `p`, `to` and `value` of the oldest opsets. Looking
// an attribute of another type up would give its default.
static const struct {
    int type;
    const char *article, *names;
} attribute_types[] = {
    {A_INT, "an INT",
     " align_corners allowzero antialias axis batch_axis batch_dims block_size blocksize ceil_mode "
     "center_point_box count_include_pad detect_negative detect_positive dtype end exclude_outside "
     "exclusive fmod group hidden_size input_forget interleaved is_causal is_test k keepdims "
     "kv_num_heads largest layout left_window_size linear_before_reset noop_with_empty_axes "
     "num_groups num_heads num_outputs output_dtype q_num_heads qk_matmul_output_mode reverse "
     "right_window_size rotary_embedding_dim saturate seed select_last_index size "
     "softmax_precision sorted spatial start stash_type storage_order time_axis training_mode "
     "transA transB upper value_int "},
    {A_FLOAT, "a FLOAT",
     " alpha beta bias clip cubic_coeff_a epsilon extrapolation_value gamma lambd max min momentum "
     "ratio scale softcap value_float "},
    {A_STRING, "a STRING",
     " approximate auto_pad coordinate_transformation_mode direction equation "
     "keep_aspect_ratio_policy mode nearest_mode padding_mode reduction "},
    {A_INTS, "INTS",
     " axes dilations ends kernel_shape output_padding output_shape pads perm shape split starts "
     "strides value_ints "},
    {A_FLOATS, "FLOATS", " activation_alpha activation_beta scales value_floats "},
    {A_STRINGS, "STRINGS", " activations "},
};

// names_have says whether one of the names, each between two spaces, is `name`. A name of the file
// may be anything, spaces included.
static bool names_have(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names + 1; *at != '\0'; at += strcspn(at, " ") + 1) {
        if (strcspn(at, " ") == n && memcmp(at, name, n) == 0) {
            return true;
        }
    }
    return false;
}

// attribute_check stores in *known whether the name is one that is read.
static hth_err attribute_check(const onnx_attribute *attribute, const char *name, bool *known)
{
    *known = names_have(" p to value ", name);
    for (size_t i = 0; i < sizeof attribute_types / sizeof attribute_types[0]; i++) {
        if (!names_have(attribute_types[i].names, name)) {
            continue;
        }
        if (attribute->type != attribute_types[i].type) {
            return hth_fail(HTH_EINVAL, "attribute '%s' is of type %d, and must be %s", name,
                            attribute->type, attribute_types[i].article);
        }
        *known = true;
    }
    return HTH_OK;
}

// What an attribute takes, but for a tensor.
static uint64_t attribute_bytes(const onnx_attribute *attribute)
{
    uint64_t bytes = sizeof(hth_attr) + attribute->s.len +
                     attribute->n_ints * sizeof *attribute->ints +
                     attribute->n_floats * sizeof *attribute->floats;
    for (size_t i = 0; i < attribute->n_strings; i++) {
        bytes += attribute->strings[i].len + sizeof(char *);
    }
    return bytes;
}

// Other attributes are left out, and MatMul's, which has none in ONNX: passes and autodiff give
// nodes ones of their own (share, salt, flatten, transA), and would take the file's for them.
static hth_err node_add_attribute(onnx_load *ld, const onnx_scope *scope, hth_node *node,
                                  const onnx_attribute *from)
{
    const onnx_attribute *a = from;
    bool known;
    HTH_TRY(attribute_follow(scope, &a));
    if (a == NULL) {
        return HTH_OK; // an optional attribute that the call does not give
    }
    if (from->name == NULL || from->name[0] == '\0') {
        return hth_fail(HTH_EINVAL, "an attribute has no name");
    }
    HTH_TRY(attribute_check(a, from->name, &known));
    HTH_TRY(onnx_made(ld, attribute_bytes(a)));
    hth_attr to = {.name = hth_strdup(from->name)};
    hth_err err = to.name == NULL ? hth_no_memory("a graph") : attribute_value(ld, a, &to);
    if (err != HTH_OK || !known || node->op == HTH_OP_MAT_MUL) {
        hth_attr_clear(&to);
        return err;
    }
    return hth_node_put_attr(node, to);
}

// Constant.

static hth_err constant_list(hth_dtype dt, int rank, size_t n, const void *data, hth_const **out)
{
    return hth_const_new(dt, &(hth_shape){.rank = rank, .dim = {(int64_t)n}},
                         data != NULL ? data : "", out); // protobuf-c leaves an empty list NULL
}

static hth_err constant_value(onnx_load *ld, const onnx_attribute *attribute, hth_const **out)
{
    hth_onnx_head head;
    switch (attribute->type) {
    case A_TENSOR:
        return onnx_tensor_const(ld, (hth_span){attribute->t.data, attribute->t.len}, &head, out);
    case A_FLOAT:
        return constant_list(HTH_DT_F32, 0, 0, &attribute->f, out);
    case A_INT:
        return constant_list(HTH_DT_I64, 0, 0, &attribute->i, out);
    case A_FLOATS:
        return constant_list(HTH_DT_F32, 1, attribute->n_floats, attribute->floats, out);
    case A_INTS:
        return constant_list(HTH_DT_I64, 1, attribute->n_ints, attribute->ints, out);
    default:
        return hth_fail(HTH_ENOTSUP, "strings and sparse tensors are not supported");
    }
}

// constant_made reads exactly one of value, value_float, value_ints, ..; its type says which.
static hth_err constant_made(onnx_load *ld, const onnx_scope *scope, const onnx_node *node,
                             hth_const **out)
{
    const onnx_attribute *a = NULL;
    for (size_t i = 0; i < node->n_attribute && a == NULL; i++) {
        a = node->attribute[i];
        HTH_TRY(attribute_follow(scope, &a));
    }
    if (a == NULL) {
        return hth_fail(HTH_EINVAL, "it has no value");
    }
    HTH_TRY(onnx_made(ld, attribute_bytes(a)));
    return constant_value(ld, a, out);
}

hth_err onnx_constant(onnx_load *ld, const onnx_scope *scope, const onnx_node *node,
                      hth_const **out)
{
    hth_err err = constant_made(ld, scope, node, out);
    return hth_err_prefix(err, "node '%s' (Constant)", onnx_label(node));
}

// Operators.

hth_err onnx_inputs(const onnx_scope *scope, const onnx_node *node, int **out)
{
    int *index = hth_calloc(node->n_input, sizeof *index);
    *out = NULL;
    if (index == NULL) {
        return hth_no_memory("a graph");
    }
    for (size_t i = 0; i < node->n_input; i++) {
        index[i] = -1;
        if (node->input[i][0] != '\0' && !onnx_resolve(scope, node->input[i], &index[i])) {
            hth_free(index);
            return hth_fail(HTH_EINVAL, "node '%s' (%s) reads '%s', which no node computes",
                            onnx_label(node), node->op_type, node->input[i]);
        }
    }
    *out = index;
    return HTH_OK;
}

// node_arity drops absent trailing operands and checks the count against the operator's newest
// form.
static hth_err node_arity(hth_node *node)
{
    const hth_op_info *info = hth_op_info_of(node->op);
    while (node->n_inputs > 0 && node->inputs[node->n_inputs - 1] < 0) {
        node->n_inputs--;
    }
    while (node->n_outputs > info->min_outputs && node->outputs[node->n_outputs - 1] < 0) {
        node->n_outputs--;
    }
    bool absent = false;
    for (int i = 0; i < node->n_inputs; i++) {
        absent |= node->inputs[i] < 0 && (i < info->min_inputs || info->max_inputs > 100);
    }
    if (absent || node->n_inputs < info->min_inputs) {
        return hth_fail(HTH_EINVAL, "a required input is missing");
    }
    if (node->n_inputs > info->max_inputs || node->n_outputs < info->min_outputs ||
        node->n_outputs > info->max_outputs) {
        return hth_fail(HTH_EINVAL, "%d inputs and %d outputs are not what the operator has",
                        node->n_inputs, node->n_outputs);
    }
    return HTH_OK;
}

static hth_err node_outputs(const onnx_scope *scope, const onnx_node *node, int **out)
{
    int *index = hth_calloc(node->n_output, sizeof *index);
    if (index == NULL) {
        return hth_no_memory("a graph");
    }
    for (size_t i = 0; i < node->n_output; i++) {
        index[i] = -1;
        if (node->output[i][0] != '\0') {
            hth_names_find(&scope->names, node->output[i], &index[i]);
        }
    }
    *out = index;
    return HTH_OK;
}

static hth_err node_add(onnx_load *ld, onnx_scope *scope, const onnx_node *node, hth_op op,
                        int *index)
{
    int *inputs = NULL, *outputs = NULL;
    char *name = NULL;
    hth_err err;
    HTH_GOTO(onnx_inputs(scope, node, &inputs), done);
    HTH_GOTO(node_outputs(scope, node, &outputs), done);
    if (node->name != NULL && node->name[0] != '\0') {
        name = hth_asprintf("%s%s", scope->prefix, node->name);
        HTH_GOTO(name == NULL ? hth_no_memory("a graph") : onnx_made(ld, strlen(name)), done);
    }
    err = hth_graph_add_node(ld->g, op, name, inputs, (int)node->n_input, outputs,
                             (int)node->n_output, index);
done:
    hth_free(name);
    hth_free(inputs);
    hth_free(outputs);
    return err;
}

static hth_err node_finish(onnx_load *ld, onnx_scope *scope, const onnx_node *node, int index,
                           int since)
{
    for (size_t i = 0; i < node->n_attribute; i++) {
        HTH_TRY(node_add_attribute(ld, scope, &ld->g->nodes[index], node->attribute[i]));
    }
    HTH_TRY(onnx_canonicalise(ld, index, since));
    return node_arity(&ld->g->nodes[index]);
}

hth_err onnx_add_operator(onnx_load *ld, onnx_scope *scope, const onnx_node *node, hth_op op,
                          int since)
{
    int index;
    HTH_TRY(node_add(ld, scope, node, op, &index));
    hth_err err = node_finish(ld, scope, node, index, since);
    return hth_err_prefix(err, "node '%s' (%s)", onnx_label(node), node->op_type);
}
