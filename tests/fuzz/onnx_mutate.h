// SPDX-License-Identifier: Apache-2.0
// tests/fuzz/onnx_mutate.h - changes ONNX models as those do who look for what an operator forgot:
// attributes, types, dimensions and contents at their extremes, other operators, other connections.
// Bytes that are no model are left to libFuzzer.
#ifndef HTH_TESTS_FUZZ_ONNX_MUTATE_H
#define HTH_TESTS_FUZZ_ONNX_MUTATE_H

#include "base/alloc.h"
#include "graph/onnx/onnx.pb-c.h"
#include "graph/onnx/onnx_wire.h"
#include "graph/op.h"

#include <math.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef Hth__Onnx__ModelProto mut_model;
typedef Hth__Onnx__GraphProto mut_graph;
typedef Hth__Onnx__NodeProto mut_node;
typedef Hth__Onnx__AttributeProto mut_attr;
typedef Hth__Onnx__ValueInfoProto mut_info;

static uint64_t mut_state;

static inline uint64_t mut_random(void) // splitmix64
{
    uint64_t z = mut_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline size_t mut_below(size_t n)
{
    return n > 0 ? mut_random() % n : 0;
}

#define MUT_PICK(list) (list)[mut_below(sizeof(list) / sizeof(list)[0])]

static const int64_t mut_ints[] = {0,
                                   1,
                                   -1,
                                   2,
                                   -2,
                                   3,
                                   -3,
                                   4,
                                   5,
                                   7,
                                   8,
                                   16,
                                   64,
                                   100,
                                   127,
                                   128,
                                   255,
                                   256,
                                   -128,
                                   1000,
                                   32767,
                                   65535,
                                   65536,
                                   -65536,
                                   INT32_MAX,
                                   INT32_MIN,
                                   1LL << 31,
                                   1LL << 32,
                                   (1LL << 32) + 1,
                                   1LL << 40,
                                   -(1LL << 40),
                                   1LL << 61,
                                   1LL << 62,
                                   INT64_MAX,
                                   INT64_MIN,
                                   INT64_MIN + 1};
static const double mut_reals[] = {0,      -0.0,  1,      -1,     0.5,     2,        1e-45,
                                   1e-30,  1e30,  1e38,   -1e38,  NAN,     INFINITY, -INFINITY,
                                   3e9,    -3e9,  0x1p31, 0x1p63, -0x1p63, 0x1p64,   1e300,
                                   1e-300, 255.5, 127.5,  -128.5, 65504,   65536};
static const char *const mut_words[] = {"",
                                        "x",
                                        "SAME_UPPER",
                                        "SAME_LOWER",
                                        "VALID",
                                        "NOTSET",
                                        "linear",
                                        "nearest",
                                        "cubic",
                                        "bilinear",
                                        "constant",
                                        "reflect",
                                        "edge",
                                        "wrap",
                                        "forward",
                                        "reverse",
                                        "bidirectional",
                                        "ij,jk->ik",
                                        "ii->",
                                        "i...,...i->...",
                                        "ij->ijj",
                                        "i,i->",
                                        "...->",
                                        "DCR",
                                        "CRD",
                                        "LEFT",
                                        "RIGHT",
                                        "add",
                                        "mul",
                                        "max",
                                        "min",
                                        "none",
                                        "tanh",
                                        "Tanh",
                                        "Sigmoid",
                                        "Relu",
                                        "zeros",
                                        "border",
                                        "reflection",
                                        "align_corners",
                                        "asymmetric",
                                        "half_pixel",
                                        "pytorch_half_pixel",
                                        "tf_crop_and_resize",
                                        "half_pixel_symmetric",
                                        "floor",
                                        "ceil",
                                        "round_prefer_floor",
                                        "round_prefer_ceil",
                                        "stretch",
                                        "not_larger",
                                        "not_smaller"};
static const char *const mut_names[] = {"axis",
                                        "axes",
                                        "perm",
                                        "keepdims",
                                        "pads",
                                        "strides",
                                        "dilations",
                                        "kernel_shape",
                                        "group",
                                        "auto_pad",
                                        "ceil_mode",
                                        "count_include_pad",
                                        "mode",
                                        "num_outputs",
                                        "split",
                                        "blocksize",
                                        "to",
                                        "value",
                                        "alpha",
                                        "beta",
                                        "gamma",
                                        "epsilon",
                                        "size",
                                        "bias",
                                        "lambd",
                                        "p",
                                        "k",
                                        "upper",
                                        "exclusive",
                                        "reverse",
                                        "batch_dims",
                                        "largest",
                                        "sorted",
                                        "transA",
                                        "transB",
                                        "equation",
                                        "direction",
                                        "hidden_size",
                                        "clip",
                                        "activations",
                                        "layout",
                                        "linear_before_reset",
                                        "coordinate_transformation_mode",
                                        "nearest_mode",
                                        "antialias",
                                        "exclude_outside",
                                        "cubic_coeff_a",
                                        "extrapolation_value",
                                        "keep_aspect_ratio_policy",
                                        "align_corners",
                                        "padding_mode",
                                        "center_point_box",
                                        "allowzero",
                                        "start",
                                        "end",
                                        "fmod",
                                        "noop_with_empty_axes",
                                        "select_last_index",
                                        "time_axis",
                                        "batch_axis",
                                        "storage_order",
                                        "output_shape",
                                        "output_padding",
                                        "num_groups",
                                        "stash_type",
                                        "reduction",
                                        "dtype",
                                        "detect_negative",
                                        "is_causal",
                                        "q_num_heads",
                                        "kv_num_heads",
                                        "scale",
                                        "softcap",
                                        "num_heads",
                                        "interleaved",
                                        "rotary_embedding_dim",
                                        "qk_matmul_output_mode",
                                        "value_int",
                                        "value_ints",
                                        "value_float",
                                        "approximate",
                                        "training_mode",
                                        "momentum",
                                        "seed",
                                        "input_forget",
                                        "activation_alpha"};
static const int mut_types[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16};

static inline int64_t mut_int(void)
{
    return mut_below(3) > 0 ? (int64_t)mut_below(9) - 3 : MUT_PICK(mut_ints);
}

static inline char *mut_text(const char *s)
{
    char *copy = strdup(s);
    if (copy == NULL) {
        abort();
    }
    return copy;
}

static inline void mut_set(char **at, const char *s)
{
    char *old = *at;
    *at = mut_text(s);
    if (old != NULL && old != protobuf_c_empty_string) {
        free(old);
    }
}

// Room for one more pointer in a list.
static inline void *mut_more(void *list, size_t n)
{
    void *grown = realloc(list, (n + 1) * sizeof(void *));
    if (grown == NULL) {
        abort();
    }
    return grown;
}

static inline void *mut_zeroed(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (p == NULL) {
        abort();
    }
    return p;
}

// ---- attributes

static inline void mut_attr_value(mut_attr *attr)
{
    size_t n = mut_below(7);
    attr->has_type = 1;
    switch (mut_below(5)) {
    case 0:
        attr->type = 1;
        attr->has_f = 1;
        attr->f = (float)MUT_PICK(mut_reals);
        break;
    case 1:
        attr->type = 3;
        if (attr->has_s) {
            free(attr->s.data);
        }
        attr->has_s = 1;
        attr->s.data = (uint8_t *)mut_text(MUT_PICK(mut_words));
        attr->s.len = strlen((char *)attr->s.data);
        break;
    case 2:
        attr->type = 2;
        attr->has_i = 1;
        attr->i = mut_int();
        break;
    case 3:
        if (attr->n_ints > 0 && mut_below(2) > 0) { // one of them
            attr->ints[mut_below(attr->n_ints)] = mut_int();
            break;
        }
        attr->type = 7;
        free(attr->ints);
        attr->ints = mut_zeroed((n + 1) * sizeof *attr->ints);
        attr->n_ints = n;
        for (size_t i = 0; i < n; i++) {
            attr->ints[i] = mut_int();
        }
        break;
    default:
        attr->type = 6;
        free(attr->floats);
        attr->floats = mut_zeroed((n + 1) * sizeof *attr->floats);
        attr->n_floats = n;
        for (size_t i = 0; i < n; i++) {
            attr->floats[i] = (float)MUT_PICK(mut_reals);
        }
    }
}

static inline void mut_attribute(mut_node *node)
{
    if (node->n_attribute > 0 && mut_below(3) > 0) {
        mut_attr *a = node->attribute[mut_below(node->n_attribute)];
        if (mut_below(2) > 0 && a->type == 2) { // as it is
            a->i = mut_int();
        } else {
            mut_attr_value(a);
        }
        return;
    }
    mut_attr *a = mut_zeroed(sizeof *a);
    hth__onnx__attribute_proto__init(a);
    mut_set(&a->name, MUT_PICK(mut_names));
    mut_attr_value(a);
    node->attribute = mut_more(node->attribute, node->n_attribute);
    node->attribute[node->n_attribute++] = a;
}

// ---- tensors

static inline size_t mut_type_bytes(int type)
{
    switch (type) {
    case 7:
    case 11:
    case 13:
        return 8;
    case 1:
    case 6:
    case 12:
        return 4;
    case 4:
    case 5:
    case 10:
    case 16:
        return 2;
    default:
        return 1;
    }
}

// Bytes of elements of that type: small, or at the type's ends.
static inline void mut_elements(int type, uint8_t *to, size_t n)
{
    size_t size = mut_type_bytes(type);
    for (size_t i = 0; i < n; i++) {
        double d = mut_below(3) > 0 ? (double)mut_below(9) - 3 : MUT_PICK(mut_reals);
        float f = (float)d;
        int64_t k = mut_int();
        uint64_t raw = mut_random();
        const void *from = &k;
        if (type == 1) {
            from = &f;
        } else if (type == 11) {
            from = &d;
        } else if (type == 10 || type == 16) {
            from = &raw;
        }
        memcpy(to + i * size, from, size);
    }
}

static inline void mut_add_tensor(mut_graph *graph, const char *name, int type, const int64_t *dim,
                                  int rank)
{
    hth_wire_buffer t = {0};
    uint8_t raw[8 * 64];
    size_t n = 1;
    for (int i = 0; i < rank; i++) {
        hth_wire_put_varint(&t, 1, (uint64_t)dim[i]);
        n *= dim[i] >= 0 && dim[i] < 64 ? (size_t)dim[i] : 1;
    }
    n = n < 64 ? n : 64;
    hth_wire_put_varint(&t, 2, (uint64_t)type);
    hth_wire_put_bytes(&t, 8, (hth_span){(const uint8_t *)name, strlen(name)});
    mut_elements(type, raw, n);
    hth_wire_put_bytes(&t, 9, (hth_span){raw, n * mut_type_bytes(type)});
    ProtobufCBinaryData *grown =
        realloc(graph->initializer, (graph->n_initializer + 1) * sizeof *grown);
    if (grown == NULL || t.data == NULL) {
        abort();
    }
    graph->initializer = grown;
    grown[graph->n_initializer].data = mut_zeroed(t.bytes + 1);
    memcpy(grown[graph->n_initializer].data, t.data, t.bytes);
    grown[graph->n_initializer++].len = t.bytes;
    hth_free(t.data);
}

// Other elements in an initializer's raw data, in place.
static inline void mut_tensor(mut_graph *graph)
{
    if (graph->n_initializer == 0) {
        return;
    }
    ProtobufCBinaryData *t = &graph->initializer[mut_below(graph->n_initializer)];
    hth_span rest = {t->data, t->len};
    hth_wire_field field;
    int type = 1;
    while (hth_wire_next(&rest, &field) > 0) {
        type = field.number == 2 ? (int)field.value : type;
        size_t size = mut_type_bytes(type), n = field.payload.bytes / size;
        if (field.number == 9 && n > 0) {
            mut_elements(type, (uint8_t *)field.payload.data + mut_below(n) * size, 1);
        }
    }
}

// ---- inputs

static inline Hth__Onnx__TensorTypeProto *mut_tensor_type(mut_info *info)
{
    return info->type != NULL ? info->type->tensor_type : NULL;
}

static inline void mut_input(mut_graph *graph)
{
    Hth__Onnx__TensorTypeProto *t =
        graph->n_input > 0 ? mut_tensor_type(graph->input[mut_below(graph->n_input)]) : NULL;
    if (t == NULL) {
        return;
    }
    if (mut_below(3) == 0) {
        t->has_elem_type = 1;
        t->elem_type = MUT_PICK(mut_types);
    } else if (t->shape != NULL && t->shape->n_dim > 0) {
        Hth__Onnx__DimensionProto *d = t->shape->dim[mut_below(t->shape->n_dim)];
        d->has_dim_value = mut_below(2) > 0;
        d->dim_value = mut_below(4) > 0 ? (int64_t)mut_below(6) : MUT_PICK(mut_ints);
        if (!d->has_dim_value) {
            mut_set(&d->dim_param, mut_below(2) > 0 ? "n" : "m");
        }
    }
}

// An input becomes a constant of a few elements.
static inline void mut_constant(mut_graph *graph)
{
    if (graph->n_input == 0) {
        return;
    }
    size_t at = mut_below(graph->n_input);
    mut_info *v = graph->input[at];
    const Hth__Onnx__TensorTypeProto *t = mut_tensor_type(v);
    int64_t dim[8];
    int rank = 0;
    for (size_t i = 0; t != NULL && t->shape != NULL && i < t->shape->n_dim && i < 8; i++) {
        const Hth__Onnx__DimensionProto *d = t->shape->dim[i];
        dim[rank++] = d->has_dim_value && d->dim_value >= 0 && d->dim_value < 5 ? d->dim_value : 2;
    }
    if (v->name != NULL) {
        mut_add_tensor(graph, v->name, t != NULL ? t->elem_type : 1, dim, rank);
    }
    hth__onnx__value_info_proto__free_unpacked(v, NULL);
    memmove(graph->input + at, graph->input + at + 1,
            (--graph->n_input - at) * sizeof *graph->input);
}

// ---- nodes

// Any name that stands somewhere in the graph.
static inline const char *mut_some_name(const mut_graph *graph)
{
    const mut_node *n = graph->n_node > 0 ? graph->node[mut_below(graph->n_node)] : NULL;
    if (graph->n_input > 0 && mut_below(2) > 0) {
        return graph->input[mut_below(graph->n_input)]->name;
    }
    if (n != NULL && n->n_input > 0 && mut_below(3) > 0) {
        return n->input[mut_below(n->n_input)];
    }
    return n != NULL && n->n_output > 0 && mut_below(8) > 0 ? n->output[mut_below(n->n_output)]
                                                            : "";
}

static inline void mut_connect(mut_graph *graph, mut_node *node)
{
    const char *name = mut_some_name(graph);
    if (node->n_input == 0 || mut_below(4) == 0) {
        node->input = mut_more(node->input, node->n_input);
        node->input[node->n_input++] = mut_text(name != NULL ? name : "");
    } else {
        mut_set(&node->input[mut_below(node->n_input)], name != NULL ? name : "");
    }
}

static inline mut_info *mut_open_info(const char *name)
{
    mut_info *v = mut_zeroed(sizeof *v);
    hth__onnx__value_info_proto__init(v);
    mut_set(&v->name, name);
    return v;
}

// One more node, of any operator, whose result is one of the model's.
static inline void mut_node_more(mut_graph *graph)
{
    mut_node *n = mut_zeroed(sizeof *n);
    char name[32];
    hth__onnx__node_proto__init(n);
    mut_set(&n->op_type, hth_op_name((hth_op)(1 + mut_below(HTH_N_OPS - 1))));
    for (size_t i = 0, inputs = 1 + mut_below(3); i < inputs; i++) {
        const char *from = mut_some_name(graph);
        n->input = mut_more(n->input, n->n_input);
        n->input[n->n_input++] = mut_text(from != NULL ? from : "");
    }
    snprintf(name, sizeof name, "f%llu", (unsigned long long)(mut_random() % 10000));
    n->output = mut_more(n->output, 0);
    n->output[n->n_output++] = mut_text(name);
    if (mut_below(2) > 0) {
        mut_attribute(n);
    }
    graph->node = mut_more(graph->node, graph->n_node);
    graph->node[graph->n_node++] = n;
    graph->output = mut_more(graph->output, graph->n_output);
    graph->output[graph->n_output++] = mut_open_info(name);
}

static inline void mut_once(mut_model *model)
{
    mut_graph *g = model->graph;
    mut_node *n = g->n_node > 0 ? g->node[mut_below(g->n_node)] : NULL;
    switch (mut_below(n != NULL ? 16 : 4)) {
    case 0:
        mut_input(g);
        break;
    case 1:
        mut_constant(g);
        break;
    case 2:
        mut_node_more(g);
        break;
    case 3:
        if (model->n_opset_import > 0 && mut_below(4) == 0) {
            model->opset_import[mut_below(model->n_opset_import)]->version =
                7 + (int64_t)mut_below(22);
        } else {
            mut_input(g);
        }
        break;
    case 4:
    case 5:
        mut_set(&n->op_type, hth_op_name((hth_op)(1 + mut_below(HTH_N_OPS - 1))));
        break;
    case 6:
    case 7:
        mut_connect(g, n);
        break;
    case 8:
    case 9:
    case 10:
        mut_tensor(g);
        break;
    default:
        mut_attribute(n);
    }
}

// mut_onnx changes the model in `data`, of at most `most` bytes; 0: it is none, or became too
// large.
static inline size_t mut_onnx(uint8_t *data, size_t bytes, size_t most, unsigned seed)
{
    mut_state = seed;
    mut_model *m = hth__onnx__model_proto__unpack(NULL, bytes, data);
    size_t made = 0;
    if (m != NULL && m->graph != NULL) {
        for (size_t i = 0, times = 1 + mut_below(3); i < times; i++) {
            mut_once(m);
        }
        made = hth__onnx__model_proto__get_packed_size(m);
        made = made <= most ? hth__onnx__model_proto__pack(m, data) : 0;
    }
    if (m != NULL) {
        hth__onnx__model_proto__free_unpacked(m, NULL);
    }
    return made;
}

#endif
