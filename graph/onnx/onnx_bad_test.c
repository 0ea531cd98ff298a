// SPDX-License-Identifier: Apache-2.0
// Models that must be refused, each with its code and a sentence that names the culprit. They are
// written here field by field, because the onnx package refuses to make most of them.
#include "graph/onnx/onnx.h"

#include "base/alloc.h"
#include "graph/onnx/onnx_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static hth_span text_span(const char *s)
{
    return (hth_span){(const uint8_t *)s, strlen(s)};
}

// put_nested appends the message `part` as field `number`, and frees it.
static void put_nested(hth_wire_buffer *buffer, uint32_t number, hth_wire_buffer part)
{
    hth_wire_put_bytes(buffer, number, (hth_span){part.data, part.bytes});
    hth_free(part.data);
}

static void put_names(hth_wire_buffer *buffer, uint32_t number,
                      const char *list) // "a b c"; "-" is an absent one
{
    while (*list != '\0') {
        size_t n = strcspn(list, " ");
        hth_wire_put_bytes(buffer, number, (hth_span){(const uint8_t *)list, *list == '-' ? 0 : n});
        list += n + (list[n] == ' ');
    }
}

static hth_wire_buffer make_node(const char *domain, const char *op, const char *in,
                                 const char *out)
{
    hth_wire_buffer n = {0};
    put_names(&n, 1, in);
    put_names(&n, 2, out);
    hth_wire_put_bytes(&n, 3, text_span("node"));
    hth_wire_put_bytes(&n, 4, text_span(op));
    hth_wire_put_bytes(&n, 7, text_span(domain));
    return n;
}

static void add_node(hth_wire_buffer *graph, const char *op, const char *in, const char *out)
{
    put_nested(graph, 1, make_node("", op, in, out));
}

static void add_info(hth_wire_buffer *graph, uint32_t number, const char *name, uint64_t elem_type,
                     int rank)
{
    hth_wire_buffer shape = {0}, tensor = {0}, type = {0}, info = {0};
    for (int i = 0; i < rank; i++) {
        hth_wire_buffer dim = {0};
        hth_wire_put_varint(&dim, 1, 2);
        put_nested(&shape, 1, dim);
    }
    hth_wire_put_varint(&tensor, 1, elem_type);
    put_nested(&tensor, 2, shape);
    put_nested(&type, 1, tensor);
    hth_wire_put_bytes(&info, 1, text_span(name));
    put_nested(&info, 2, type);
    put_nested(graph, number, info);
}

static void add_tensor(hth_wire_buffer *graph, const char *name, uint64_t data_type,
                       const uint64_t *dim, int rank, size_t raw_bytes)
{
    static const uint8_t zeros[4096];
    hth_wire_buffer t = {0};
    for (int i = 0; i < rank; i++) {
        hth_wire_put_varint(&t, 1, dim[i]);
    }
    hth_wire_put_varint(&t, 2, data_type);
    hth_wire_put_bytes(&t, 8, text_span(name));
    hth_wire_put_bytes(&t, 9, (hth_span){zeros, raw_bytes});
    put_nested(graph, 5, t);
}

static void add_opset(hth_wire_buffer *model, uint32_t number, const char *domain, uint64_t version)
{
    hth_wire_buffer o = {0};
    hth_wire_put_bytes(&o, 1, text_span(domain));
    hth_wire_put_varint(&o, 2, version);
    put_nested(model, number, o);
}

// A model under construction: x -> graph -> y, opset 17 unless a case says otherwise.
typedef struct bad {
    hth_wire_buffer model, graph;
    uint64_t opset;
    hth_onnx_limits limits;
} bad;

// load_graph tries the whole way of an import on the bytes.
static hth_err load_graph(hth_span model, const hth_onnx_limits *limits, hth_graph **out)
{
    hth_onnx_file *f;
    hth_const *c[8] = {0};
    size_t bytes;
    *out = NULL;
    HTH_TRY(hth_onnx_open_bytes(model.data, model.bytes, limits, &f));
    int n = hth_onnx_n_tensors(f);
    assert_true(n <= 8);
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(f, i);
        assert_int_equal(hth_const_new(t->dtype, &t->shape, t->data, &c[i]), HTH_OK);
    }
    const void *skeleton = hth_onnx_skeleton(f, &bytes);
    hth_err err = hth_onnx_load(skeleton, bytes, c, n, limits, out);
    for (int i = 0; i < n; i++) {
        hth_const_rele(c[i]);
    }
    hth_onnx_close(f);
    return err;
}

static hth_err load(hth_span model, const hth_onnx_limits *limits)
{
    hth_graph *g;
    hth_err err = load_graph(model, limits, &g);
    hth_graph_free(g);
    return err;
}

static void good(bad *b)
{
    add_node(&b->graph, "Relu", "x", "y");
}
static void duplicate(bad *b)
{
    good(b);
    add_node(&b->graph, "Neg", "x", "y");
}
static void dangling(bad *b)
{
    add_node(&b->graph, "Add", "x ghost", "y");
}
static void cycle(bad *b)
{
    add_node(&b->graph, "Add", "x b", "a");
    add_node(&b->graph, "Relu", "a", "b");
    add_node(&b->graph, "Relu", "b", "y");
}
static void unknown_operator(bad *b)
{
    add_node(&b->graph, "Frobnicate", "x", "y");
}
static void own_operator(bad *b)
{
    add_node(&b->graph, "ScaleShift", "x x x", "y");
}
static void unknown_domain(bad *b)
{
    add_opset(&b->model, 8, "acme", 3);
    put_nested(&b->graph, 1, make_node("acme", "Foo", "x", "y"));
}
static void too_new_operator(bad *b)
{
    add_node(&b->graph, "Swish", "x", "y");
}
static void old_opset(bad *b)
{
    b->opset = 6;
    good(b);
}
static void new_opset(bad *b)
{
    b->opset = 29;
    good(b);
}
static void missing_input(bad *b)
{
    add_node(&b->graph, "Add", "x -", "y");
}
static void many_outputs(bad *b)
{
    add_node(&b->graph, "Relu", "x", "y z");
}
static void raw_length(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 1, (uint64_t[]){2, 3}, 2, 20);
}
static void overflow(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 1, (uint64_t[]){1u << 31, 1u << 31, 1u << 31}, 3, 4);
}
static void huge(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 1, (uint64_t[]){1ull << 41}, 1, 4);
}
static void negative_dim(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 1, (uint64_t[]){UINT64_MAX}, 1, 4);
}
static void rank_nine(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 1, (uint64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, 4);
}
static void string_tensor(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 8, (uint64_t[]){1}, 1, 0);
}
static void bad_bool(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 9, (uint64_t[]){1}, 1, 2);
}
static void two_tensors(bad *b)
{
    good(b);
    add_tensor(&b->graph, "w", 1, (uint64_t[]){1}, 1, 4);
    add_tensor(&b->graph, "w", 1, (uint64_t[]){1}, 1, 4);
}
static void nameless_tensor(bad *b)
{
    good(b);
    add_tensor(&b->graph, "", 1, (uint64_t[]){1}, 1, 4);
}
static void string_input(bad *b)
{
    good(b);
    add_info(&b->graph, 11, "s", 8, 1);
}
static void rank_input(bad *b)
{
    good(b);
    add_info(&b->graph, 11, "s", 1, 9);
}
static void ghost_output(bad *b)
{
    good(b);
    add_info(&b->graph, 12, "ghost", 1, 1);
}
static void sparse(bad *b)
{
    good(b);
    hth_wire_put_bytes(&b->graph, 15, text_span(""));
}
static void many_nodes(bad *b)
{
    b->limits.max_nodes = 2;
    good(b);
    add_node(&b->graph, "Relu", "y", "z");
    add_node(&b->graph, "Relu", "z", "w");
}
static void constant_without_value(bad *b)
{
    good(b);
    add_node(&b->graph, "Constant", "", "c");
}
static void computed_if(bad *b)
{
    add_node(&b->graph, "If", "x", "y");
}
static void loop(bad *b)
{
    add_node(&b->graph, "Loop", "x", "y");
}

static void add_attribute(hth_wire_buffer *node, const char *name, uint64_t type)
{
    hth_wire_buffer a = {0};
    hth_wire_put_bytes(&a, 1, text_span(name));
    hth_wire_put_varint(&a, 20, type);
    put_nested(node, 5, a);
}
static void graph_attribute(bad *b)
{
    hth_wire_buffer n = make_node("", "Relu", "x", "y");
    add_attribute(&n, "body", 5);
    put_nested(&b->graph, 1, n);
}
static void four_spatial_filter(bad *b)
{
    add_tensor(&b->graph, "w", 1, (uint64_t[]){1, 1, 1, 1, 1, 1}, 6, 4);
    add_node(&b->graph, "Conv", "x w", "y");
}
static void four_spatial_pool(bad *b)
{
    hth_wire_buffer n = make_node("", "MaxPool", "x", "y"), a = {0};
    hth_wire_put_bytes(&a, 1, text_span("kernel_shape"));
    for (int i = 0; i < 4; i++) {
        hth_wire_put_varint(&a, 8, 2);
    }
    hth_wire_put_varint(&a, 20, 7);
    put_nested(&n, 5, a);
    put_nested(&b->graph, 1, n);
}
static void many_attributes(bad *b)
{
    hth_wire_buffer n = make_node("", "Relu", "x", "y");
    for (int i = 0; i < 100; i++) {
        add_attribute(&n, "a", 2);
    }
    put_nested(&b->graph, 1, n);
}

static void add_function(bad *b, const char *name, const char *calls, int times)
{
    hth_wire_buffer f = {0};
    hth_wire_put_bytes(&f, 1, text_span(name));
    hth_wire_put_bytes(&f, 10, text_span("f"));
    put_names(&f, 4, "a");
    put_names(&f, 5, "a");
    for (int i = 0; i < times; i++) {
        put_nested(&f, 7, make_node("f", calls, "a", ""));
    }
    put_nested(&b->model, 25, f);
}
static void recursion(bad *b)
{
    add_function(b, "f", "f", 1);
    put_nested(&b->graph, 1, make_node("f", "f", "x", "y"));
}
static void doubling(bad *b) // 2^24 calls, and not one node
{
    for (char c = 'a'; c < 'y'; c++) {
        add_function(b, (char[]){c, '\0'}, (char[]){(char)(c + 1), '\0'}, 2);
    }
    add_function(b, "y", "", 0);
    put_nested(&b->graph, 1, make_node("f", "a", "x", "y"));
}

// A function whose body makes `made` (besides its result), called n times by nodes of one name.
static void add_calls(bad *b, hth_wire_buffer made, int n)
{
    hth_wire_buffer f = {0};
    char in[16], out[16];
    hth_wire_put_bytes(&f, 1, text_span("f"));
    hth_wire_put_bytes(&f, 10, text_span("f"));
    put_names(&f, 4, "a");
    put_names(&f, 5, "b");
    if (made.bytes > 0) {
        put_nested(&f, 7, made);
    }
    put_nested(&f, 7, make_node("", "Relu", "a", "b"));
    add_opset(&f, 9, "", 17);
    put_nested(&b->model, 25, f);
    for (int i = 0; i < n; i++) {
        snprintf(in, sizeof in, i > 0 ? "v%d" : "x", i);
        snprintf(out, sizeof out, i < n - 1 ? "v%d" : "y", i + 1);
        put_nested(&b->graph, 1, make_node("f", "f", in, out));
    }
}
static void calls(bad *b) // each with a value of its own, all of one name
{
    add_calls(b, (hth_wire_buffer){0}, 50000);
}
static void constant_in_calls(bad *b) // 60 KB each
{
    static const uint8_t zeros[60000];
    hth_wire_buffer tensor = {0}, value = {0}, node = make_node("", "Constant", "", "k");
    hth_wire_put_varint(&tensor, 1, sizeof zeros);
    hth_wire_put_varint(&tensor, 2, 2);
    hth_wire_put_bytes(&tensor, 9, (hth_span){zeros, sizeof zeros});
    hth_wire_put_bytes(&value, 1, text_span("value"));
    put_nested(&value, 5, tensor);
    hth_wire_put_varint(&value, 20, 4);
    put_nested(&node, 5, value);
    add_calls(b, node, 50000);
}
static void attribute_in_calls(bad *b)
{
    static const uint8_t ones[100000];
    hth_wire_buffer value = {0}, node = make_node("", "Relu", "a", "k");
    hth_wire_put_bytes(&value, 1, text_span("axes"));
    hth_wire_put_bytes(&value, 8, (hth_span){ones, sizeof ones}); // ints, packed
    hth_wire_put_varint(&value, 20, 7);
    put_nested(&node, 5, value);
    add_calls(b, node, 50000);
}
static void name_in_calls(bad *b)
{
    static char name[200000];
    memset(name, 'k', sizeof name - 1);
    add_calls(b, make_node("", "Relu", "a", name), 50000);
}
static void many_results(bad *b)
{
    b->limits.max_signature = 3;
    good(b);
    add_node(&b->graph, "Relu", "y", "z");
    add_node(&b->graph, "Relu", "z", "w");
    add_info(&b->graph, 12, "z", 1, 1);
    add_info(&b->graph, 12, "w", 1, 1);
}

static const struct {
    void (*make)(bad *b);
    hth_err err;
    const char *says;
} bad_model[] = {
    {good, HTH_OK, ""},
    {duplicate, HTH_EINVAL, "'y' is given to two values"},
    {dangling, HTH_EINVAL, "node 'node' (Add) reads 'ghost', which no node computes"},
    {cycle, HTH_EINVAL, "cycle"},
    {unknown_operator, HTH_ENOTSUP,
     "node 'node': operator Frobnicate of domain 'ai.onnx' (opset 17) is not supported"},
    {own_operator, HTH_ENOTSUP, "operator ScaleShift of domain 'ai.onnx'"},
    {unknown_domain, HTH_ENOTSUP,
     "node 'node': operator Foo of domain 'acme' (opset 3) is not supported"},
    {too_new_operator, HTH_ENOTSUP, "operator Swish of domain 'ai.onnx' (opset 17)"},
    {old_opset, HTH_ENOTSUP, "opset 6 is not supported (7 to 28 are)"},
    {new_opset, HTH_ENOTSUP, "opset 29 is not supported"},
    {missing_input, HTH_EINVAL, "node 'node' (Add): a required input is missing"},
    {many_outputs, HTH_EINVAL, "node 'node' (Relu): 1 inputs and 2 outputs"},
    {raw_length, HTH_ECORRUPT, "tensor 'w': FP32 [2,3] needs 24 bytes, the file has 20"},
    {overflow, HTH_ETOOBIG, "tensor 'w'"},
    {huge, HTH_ETOOBIG, "tensor 'w'"},
    {negative_dim, HTH_ECORRUPT, "tensor 'w': a dimension is negative"},
    {rank_nine, HTH_ENOTSUP, "tensor 'w': more than 8 dimensions"},
    {string_tensor, HTH_ENOTSUP, "tensor 'w': element type STRING (8)"},
    {bad_bool, HTH_ECORRUPT, "tensor 'w'"},
    {two_tensors, HTH_EINVAL, "'w' is given to two values"},
    {nameless_tensor, HTH_EINVAL, "an initializer has no name"},
    {string_input, HTH_ENOTSUP, "input 's': element type STRING"},
    {rank_input, HTH_ENOTSUP, "input 's': 9 dimensions"},
    {ghost_output, HTH_EINVAL, "no node computes the output 'ghost'"},
    {sparse, HTH_ENOTSUP, "sparse initializers"},
    {many_nodes, HTH_ETOOBIG, "more than 2 nodes"},
    {constant_without_value, HTH_EINVAL, "(Constant): it has no value"},
    {computed_if, HTH_ENOTSUP, "If is only supported with a constant condition"},
    {loop, HTH_ENOTSUP, "operator Loop"},
    {graph_attribute, HTH_ENOTSUP, "attribute 'body' is of type 5"},
    {four_spatial_filter, HTH_ENOTSUP, "'node' (Conv): 4 spatial dimensions are not supported"},
    {four_spatial_pool, HTH_ENOTSUP, "'node' (MaxPool): 4 spatial dimensions are not supported"},
    {many_attributes, HTH_EINVAL, "100 attributes"},
    {recursion, HTH_ENOTSUP, "nested more than 32 deep"},
    {doubling, HTH_ETOOBIG, "more than 200000 nodes (limits.nodes)"},
    {calls, HTH_OK, ""},
    {constant_in_calls, HTH_ETOOBIG, "expand to more than"},
    {attribute_in_calls, HTH_ETOOBIG, "expand to more than"},
    {name_in_calls, HTH_ETOOBIG, "expand to more than"},
    {many_results, HTH_ETOOBIG,
     "1 inputs and 3 outputs, more than 3 together (limits.inputs_outputs)"},
};

static hth_wire_buffer make_model(void (*make)(bad *b), hth_onnx_limits *limits)
{
    bad b = {.opset = 17, .limits = hth_onnx_default_limits};
    add_info(&b.graph, 11, "x", 1, 2);
    make(&b);
    add_info(&b.graph, 12, "y", 1, 2);
    add_opset(&b.model, 8, "", b.opset);
    put_nested(&b.model, 7, b.graph);
    *limits = b.limits;
    return b.model;
}

static void test_refused(void **state)
{
    for (size_t i = 0; i < sizeof bad_model / sizeof bad_model[0]; i++) {
        hth_onnx_limits limits;
        int64_t live = hth_alloc_live();
        hth_wire_buffer model = make_model(bad_model[i].make, &limits);
        hth_fail(HTH_OK, "%s", "");
        assert_int_equal(load((hth_span){model.data, model.bytes}, &limits), bad_model[i].err);
        if (strstr(hth_err_detail(), bad_model[i].says) == NULL) {
            fail_msg("'%s' does not say '%s'", hth_err_detail(), bad_model[i].says);
        }
        hth_free(model.data);
        assert_int_equal(hth_alloc_live(), live);
    }
}

// The type of an attribute depends on its whole name, which may be any text.
static void test_attribute_types(void **state)
{
    static const struct {
        const char *name;
        hth_err err;
    } cases[] = {{"axis", HTH_EINVAL}, {"transA", HTH_EINVAL}, {"value_int", HTH_EINVAL},
                 {"axi", HTH_OK},      {"xis", HTH_OK},        {" ", HTH_OK},
                 {" axis", HTH_OK},    {"axis ", HTH_OK},      {"axis batch_axis", HTH_OK}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hth_wire_buffer graph = {0}, model = {0}, node = make_node("", "Relu", "x", "y");
        add_attribute(&node, cases[i].name, 3);
        add_info(&graph, 11, "x", 1, 2);
        put_nested(&graph, 1, node);
        add_info(&graph, 12, "y", 1, 2);
        add_opset(&model, 8, "", 17);
        put_nested(&model, 7, graph);
        if (load((hth_span){model.data, model.bytes}, NULL) != cases[i].err) {
            fail_msg("'%s': %s", cases[i].name, hth_err_detail());
        }
        hth_free(model.data);
    }
}

// put_own adds attributes by the names of our own, as integers.
static void put_own(hth_wire_buffer *node)
{
    static const char *const own[] = {"share", "salt", "flatten", "relu", "decoupled", "transA"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        hth_wire_buffer a = {0};
        hth_wire_put_bytes(&a, 1, text_span(own[i]));
        hth_wire_put_varint(&a, 3, 1);
        hth_wire_put_varint(&a, 20, 2);
        put_nested(node, 5, a);
    }
}

// What our operators have attributes for, and ONNX's have not, is not taken from a file: kernels
// would go by it.
static void test_own_attributes(void **state)
{
    hth_wire_buffer graph = {0}, model = {0};
    hth_wire_buffer norm = make_node("", "BatchNormalization", "x w w w w", "a"),
                    product = make_node("", "MatMul", "a m", "b"),
                    gemm = make_node("", "Gemm", "b m", "y");
    hth_graph *g;
    put_own(&norm);
    put_own(&product);
    put_own(&gemm);
    add_info(&graph, 11, "x", 1, 2);
    add_tensor(&graph, "w", 1, (uint64_t[]){2}, 1, 8);
    add_tensor(&graph, "m", 1, (uint64_t[]){2, 2}, 2, 16);
    put_nested(&graph, 1, norm);
    put_nested(&graph, 1, product);
    put_nested(&graph, 1, gemm);
    add_info(&graph, 12, "y", 1, 2);
    add_opset(&model, 8, "", 17);
    put_nested(&model, 7, graph);
    assert_int_equal(load_graph((hth_span){model.data, model.bytes}, NULL, &g), HTH_OK);
    assert_int_equal(g->n_nodes, 3);
    for (int i = 0; i < g->n_nodes; i++) {
        const hth_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_attrs; k++) {
            if (strcmp(n->attrs[k].name, "transA") != 0) {
                fail_msg("%s has '%s'", hth_op_name(n->op), n->attrs[k].name);
            }
        }
        assert_int_equal(hth_node_int(n, "transA", 0), n->op != HTH_OP_MAT_MUL);
    }
    hth_graph_free(g);
    hth_free(model.data);
}

static void test_not_onnx(void **state)
{
    static const char *const bytes[] = {"", "hello, world", "\x89PNG\r\n\x1a\n", "\x08\x08"};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        assert_int_equal(load(text_span(bytes[i]), NULL), HTH_ECORRUPT);
        assert_memory_equal(hth_err_detail(), "not an ONNX model", 17);
    }
    hth_graph *g;
    assert_int_equal(hth_onnx_load_file("/nonexistent/m.onnx", &g), HTH_ENOENT);
    assert_int_equal(hth_onnx_load_file("/tmp", &g), HTH_EINVAL);
}

// A file cut short anywhere is an error or a smaller model, and costs no memory.
static void test_cut(void **state)
{
    hth_onnx_limits limits;
    int64_t live = hth_alloc_live();
    hth_wire_buffer model = make_model(two_tensors, &limits);
    for (size_t n = 0; n < model.bytes; n++) {
        hth_err err = load((hth_span){model.data, n}, &limits);
        assert_true(err == HTH_ECORRUPT || err == HTH_EINVAL);
    }
    hth_free(model.data);
    assert_int_equal(hth_alloc_live(), live);
}

// A large Constant is a weight: it leaves the skeleton, like an initializer.
static void test_large_constant(void **state)
{
    static uint8_t raw[80000];
    hth_onnx_limits limits;
    hth_wire_buffer graph = {0}, model = {0}, tensor = {0}, value = {0},
                    node = make_node("", "Constant", "", "k");
    hth_onnx_file *f;
    size_t bytes;
    hth_wire_put_varint(&tensor, 1, 20000);
    hth_wire_put_varint(&tensor, 2, 1);
    hth_wire_put_bytes(&tensor, 9, (hth_span){raw, sizeof raw});
    hth_wire_put_bytes(&value, 1, text_span("value"));
    put_nested(&value, 5, tensor);
    hth_wire_put_varint(&value, 20, 4);
    put_nested(&node, 5, value);
    put_nested(&graph, 1, node);
    add_node(&graph, "Neg", "k", "y");
    add_info(&graph, 12, "y", 1, 1);
    add_opset(&model, 8, "", 17);
    put_nested(&model, 7, graph);
    limits = hth_onnx_default_limits;
    assert_int_equal(load((hth_span){model.data, model.bytes}, &limits), HTH_OK);
    assert_int_equal(hth_onnx_open_bytes(model.data, model.bytes, NULL, &f), HTH_OK);
    assert_int_equal(hth_onnx_n_tensors(f), 1);
    assert_string_equal(hth_onnx_tensor_at(f, 0)->name, "k");
    assert_int_equal(hth_onnx_tensor_at(f, 0)->bytes, sizeof raw);
    hth_onnx_skeleton(f, &bytes);
    assert_true(bytes < 200);
    hth_onnx_close(f);
    hth_free(model.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_attribute_types),
        cmocka_unit_test(test_not_onnx),       cmocka_unit_test(test_cut),
        cmocka_unit_test(test_large_constant), cmocka_unit_test(test_own_attributes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
