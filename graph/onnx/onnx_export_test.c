// SPDX-License-Identifier: Apache-2.0
// An exported file is the imported one again: what is read of it is the same, byte for byte. In
// inference form it is the graph that is served.
#include "graph/onnx/onnx_impl.h"
#include "graph/onnx/onnx_load.h"

#include "base/test.h"
#include "graph/autodiff/train.h"

#include <glob.h>

// What an export reads from, and the file that it makes.
typedef struct job {
    const hth_onnx_file *from;
    uint8_t *file;
    size_t bytes, cap;
    int fail_read, fail_write; // the n-th call; 0: none
} job;

static hth_err job_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    job *j = ctx;
    return --j->fail_read == 0 ? hth_fail(HTH_EIO, "no bytes today")
                               : hth_onnx_tensor_read(j->from, i, at, dst, n);
}

static hth_err job_write(void *ctx, const void *data, size_t n)
{
    job *j = ctx;
    if (--j->fail_write == 0) {
        return hth_fail(HTH_EIO, "no room today");
    }
    if (j->bytes + n > j->cap) { // not by hth_realloc: its failures are the export's
        j->cap = (j->bytes + n) * 2;
        j->file = realloc(j->file, j->cap);
        assert_non_null(j->file);
    }
    memcpy(j->file + j->bytes, data, n);
    j->bytes += n;
    return HTH_OK;
}

static hth_err export_file(job *j, bool inference)
{
    size_t bytes;
    const void *skeleton = hth_onnx_skeleton(j->from, &bytes);
    j->bytes = 0;
    return hth_onnx_export_write(&(hth_onnx_export){.skeleton = skeleton,
                                                    .skeleton_bytes = bytes,
                                                    .n_tensors = hth_onnx_n_tensors(j->from),
                                                    .inference = inference,
                                                    .read = job_read,
                                                    .write = job_write,
                                                    .ctx = j});
}

static void assert_same_tensor(const hth_onnx_file *a, const hth_onnx_file *b, int i)
{
    const hth_onnx_tensor *x = hth_onnx_tensor_at(a, i), *y = hth_onnx_tensor_at(b, i);
    assert_string_equal(x->name, y->name);
    assert_int_equal(x->dtype, y->dtype);
    assert_memory_equal(&x->shape, &y->shape, sizeof x->shape);
    assert_int_equal(x->bytes, y->bytes);
    char *p = malloc(2 * x->bytes + 1);
    assert_non_null(p);
    assert_ok(hth_onnx_tensor_read(a, i, 0, p, x->bytes));
    assert_ok(hth_onnx_tensor_read(b, i, 0, p + x->bytes, x->bytes));
    assert_memory_equal(p, p + x->bytes, x->bytes);
    free(p);
}

static void assert_same(const hth_onnx_file *a, const hth_onnx_file *b)
{
    size_t n, m;
    const void *x = hth_onnx_skeleton(a, &n), *y = hth_onnx_skeleton(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    assert_int_equal(hth_onnx_n_tensors(a), hth_onnx_n_tensors(b));
    for (int i = 0; i < hth_onnx_n_tensors(a); i++) {
        assert_same_tensor(a, b, i);
    }
}

// Imported, exported, imported: old opsets, functions, branches, external data, Constants that
// count as initializers, typed fields, initializers that are inputs.
static void test_round_trip(void **state)
{
    glob_t found = {0};
    int models = 0;
    assert_int_equal(glob("tests/data/*/*.onnx", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        hth_onnx_file *f, *again;
        if (hth_onnx_open(found.gl_pathv[i], NULL, &f) != HTH_OK) {
            continue;
        }
        job j = {.from = f};
        assert_ok(export_file(&j, false));
        assert_ok(hth_onnx_open_bytes(j.file, j.bytes, NULL, &again));
        assert_same(f, again);
        hth_onnx_close(again);
        hth_onnx_close(f);
        free(j.file);
        models++;
    }
    globfree(&found);
    assert_true(models > 60);
}

// ---- inference form

static hth_err load(const hth_onnx_file *file, hth_graph **out)
{
    int n = hth_onnx_n_tensors(file);
    size_t bytes;
    const void *skeleton = hth_onnx_skeleton(file, &bytes);
    hth_const **c = hth_calloc((size_t)n + 1, sizeof *c);
    for (int i = 0; i < n; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(file, i);
        assert_ok(hth_const_new(t->dtype, &t->shape, t->data, &c[i]));
    }
    hth_err err = hth_onnx_load(skeleton, bytes, c, n, &hth_onnx_default_limits, out);
    for (int i = 0; i < n; i++) {
        hth_const_rele(c[i]);
    }
    hth_free(c);
    return err;
}

static void assert_same_nodes(const hth_graph *a, const hth_graph *b)
{
    assert_int_equal(a->n_nodes, b->n_nodes);
    for (int i = 0; i < a->n_nodes; i++) {
        const hth_node *x = &a->nodes[i], *y = &b->nodes[i];
        assert_int_equal(x->op, y->op);
        assert_int_equal(x->n_inputs, y->n_inputs);
        assert_int_equal(x->n_outputs, y->n_outputs);
        assert_int_equal(x->n_attrs, y->n_attrs);
        for (int k = 0; k < x->n_inputs; k++) {
            assert_string_equal(a->values[x->inputs[k]].name, b->values[y->inputs[k]].name);
        }
    }
}

// assert_inference exports in inference form what is open, and compares what is loaded of that with
// what is served of the original.
static void assert_inference(hth_onnx_file *file)
{
    hth_onnx_file *again;
    hth_graph *served, *exported;
    job j = {.from = file};
    assert_ok(export_file(&j, true));
    assert_ok(hth_onnx_open_bytes(j.file, j.bytes, NULL, &again));
    assert_ok(load(file, &served));
    assert_true(served->training);
    assert_ok(hth_train_off(served));
    assert_ok(load(again, &exported));
    assert_false(exported->training);
    assert_ok(hth_train_off(exported)); // only takes what nothing reads
    assert_same_nodes(served, exported);
    hth_graph_free(served);
    hth_graph_free(exported);
    hth_onnx_close(again);
    free(j.file);
}

// assert_not_trained: what reads the statistics could not be served after it was trained.
static void assert_not_trained(const hth_onnx_file *file)
{
    const hth_train_options options = {.loss = HTH_LOSS_MSE};
    hth_independence samples;
    hth_graph *g;
    assert_ok(load(file, &g));
    assert_err(hth_train_divides(g, &options, &samples), HTH_ENOTSUP, "its statistics are read");
    hth_graph_free(g);
}

static void test_inference(void **state)
{
    static const char *const model[] = {"tests/data/onnx/batch_norm15_training.onnx",
                                        "tests/data/onnx/batch_norm9_training.onnx",
                                        "tests/data/onnx/dropout13_training.onnx"};
    int compared = 0;
    for (size_t i = 0; i < sizeof model / sizeof model[0]; i++) {
        hth_onnx_file *f;
        hth_graph *g;
        assert_ok(hth_onnx_open(model[i], NULL, &f));
        assert_ok(load(f, &g));
        bool reads = hth_train_off(g) != HTH_OK; // its statistics are results of the model
        hth_graph_free(g);
        if (!reads) {
            assert_inference(f);
            compared++;
        } else {
            assert_not_trained(f);
        }
        hth_onnx_close(f);
    }
    assert_true(compared > 0);
}

static hth_span span_of(const char *s)
{
    return (hth_span){(const uint8_t *)s, strlen(s)};
}

static void put_nested(hth_wire_buffer *buffer, uint32_t number, hth_wire_buffer part)
{
    assert_false(part.failed);
    hth_wire_put_bytes(buffer, number, (hth_span){part.data, part.bytes});
    hth_free(part.data);
}

static void put_names(hth_wire_buffer *buffer, uint32_t number, const char *names)
{
    char text[100], *rest = text;
    snprintf(text, sizeof text, "%s", names);
    for (char *name; (name = strsep(&rest, " ")) != NULL;) {
        hth_wire_put_bytes(buffer, number, span_of(name));
    }
}

static hth_wire_buffer make_node(const char *op, const char *inputs, const char *outputs)
{
    hth_wire_buffer n = {0};
    put_names(&n, 1, inputs);
    put_names(&n, 2, outputs);
    hth_wire_put_bytes(&n, 4, span_of(op));
    return n;
}

static hth_wire_buffer make_batch_norm(const char *inputs, const char *outputs)
{
    hth_wire_buffer n = make_node("BatchNormalization", inputs, outputs), mode = {0};
    hth_wire_put_bytes(&mode, 1, span_of("training_mode"));
    hth_wire_put_varint(&mode, 3, 1);
    hth_wire_put_varint(&mode, 20, 2);
    put_nested(&n, 5, mode);
    return n;
}

static void put_value(hth_wire_buffer *graph, uint32_t number, const char *name)
{
    hth_wire_buffer shape = {0}, tensor = {0}, type = {0}, info = {0};
    for (int i = 0; i < 4; i++) {
        hth_wire_buffer dim = {0};
        hth_wire_put_varint(&dim, 1, 2);
        put_nested(&shape, 1, dim);
    }
    hth_wire_put_varint(&tensor, 1, 1);
    put_nested(&tensor, 2, shape);
    put_nested(&type, 1, tensor);
    hth_wire_put_bytes(&info, 1, span_of(name));
    put_nested(&info, 2, type);
    put_nested(graph, number, info);
}

static void put_tensor(hth_wire_buffer *graph, const char *name, int dtype, int64_t n,
                       const void *data, size_t bytes)
{
    hth_wire_buffer t = {0};
    if (n > 0) {
        hth_wire_put_varint(&t, 1, (uint64_t)n);
    }
    hth_wire_put_varint(&t, 2, (uint64_t)dtype);
    hth_wire_put_bytes(&t, 8, span_of(name));
    hth_wire_put_bytes(&t, 9, (hth_span){data, bytes});
    put_nested(graph, 5, t);
}

static void put_opset(hth_wire_buffer *buffer, uint32_t number, const char *domain)
{
    hth_wire_buffer opset = {0};
    hth_wire_put_bytes(&opset, 1, span_of(domain));
    hth_wire_put_varint(&opset, 2, 17);
    put_nested(buffer, number, opset);
}

// A batch norm in a function, whose statistics are results of the function that nothing reads, and
// one in the branch that is taken.
static hth_wire_buffer make_nested(void)
{
    static const float one[2] = {1, 2};
    static const uint8_t yes = 1;
    hth_wire_buffer model = {0}, graph = {0}, call, branch = {0}, attribute = {0}, function = {0},
                    node;
    call = make_node("Norm", "x s", "a m v");
    hth_wire_put_bytes(&call, 7, span_of("test"));
    put_nested(&graph, 1, call);
    put_nested(&branch, 1, make_batch_norm("a s s s s", "b p q"));
    hth_wire_put_bytes(&branch, 2, span_of("then"));
    put_value(&branch, 12, "b");
    hth_wire_put_bytes(&attribute, 1, span_of("then_branch"));
    put_nested(&attribute, 6, branch);
    hth_wire_put_varint(&attribute, 20, 5);
    node = make_node("If", "yes", "c");
    put_nested(&node, 5, attribute);
    branch = (hth_wire_buffer){0};
    put_nested(&branch, 1, make_node("Identity", "a", "d"));
    hth_wire_put_bytes(&branch, 2, span_of("else"));
    put_value(&branch, 12, "d");
    attribute = (hth_wire_buffer){0};
    hth_wire_put_bytes(&attribute, 1, span_of("else_branch"));
    put_nested(&attribute, 6, branch);
    hth_wire_put_varint(&attribute, 20, 5);
    put_nested(&node, 5, attribute);
    put_nested(&graph, 1, node);
    put_nested(&graph, 1, make_node("Dropout", "c ratio yes", "y"));
    hth_wire_put_bytes(&graph, 2, span_of("g"));
    put_tensor(&graph, "s", 1, 2, one, sizeof one);
    put_tensor(&graph, "ratio", 1, 0, one, sizeof one[0]);
    put_tensor(&graph, "yes", 9, 0, &yes, 1);
    put_value(&graph, 11, "x");
    put_value(&graph, 12, "y");
    hth_wire_put_bytes(&function, 1, span_of("Norm"));
    put_names(&function, 4, "x s");
    put_names(&function, 5, "y m v");
    put_nested(&function, 7, make_batch_norm("x s s s s", "y m v"));
    put_opset(&function, 9, "");
    hth_wire_put_bytes(&function, 10, span_of("test"));
    hth_wire_put_varint(&model, 1, 8);
    put_nested(&model, 7, graph);
    put_opset(&model, 8, "");
    put_opset(&model, 8, "test");
    put_nested(&model, 25, function);
    assert_false(model.failed);
    return model;
}

static void test_nested_inference(void **state)
{
    hth_wire_buffer model = make_nested();
    hth_onnx_file *f, *again;
    hth_graph *g;
    job j = {0};
    assert_ok(hth_onnx_open_bytes(model.data, model.bytes, NULL, &f));
    assert_ok(load(f, &g));
    assert_true(g->training);
    hth_graph_free(g);
    j.from = f;
    assert_ok(export_file(&j, true));
    assert_ok(hth_onnx_open_bytes(j.file, j.bytes, NULL, &again));
    assert_ok(load(again, &g));
    assert_false(g->training);
    int norms = 0, dropouts = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const hth_node *n = &g->nodes[i];
        if (n->op == HTH_OP_BATCH_NORMALIZATION) {
            assert_int_equal(n->n_outputs, 1);
            assert_null(hth_node_attr(n, "training_mode"));
            norms++;
        } else if (n->op == HTH_OP_DROPOUT) {
            assert_int_equal(n->n_inputs, 2);
            dropouts++;
        }
    }
    assert_int_equal(norms, 2);
    assert_int_equal(dropouts, 1);
    hth_graph_free(g);
    hth_onnx_close(again);
    hth_onnx_close(f);
    hth_free(model.data);
    free(j.file);
}

// ---- what goes wrong

static void test_no_memory(void **state)
{
    hth_wire_buffer model = make_nested();
    hth_onnx_file *f;
    assert_ok(hth_onnx_open_bytes(model.data, model.bytes, NULL, &f));
    job j = {.from = f};
    FAULT_LOOP(export_file(&j, true));
    hth_onnx_close(f);
    assert_ok(hth_onnx_open("tests/data/onnx/external_constant.onnx", NULL, &f));
    j.from = f;
    FAULT_LOOP(export_file(&j, false));
    hth_onnx_close(f);
    hth_free(model.data);
    free(j.file);
}

static void test_errors_pass(void **state)
{
    hth_onnx_file *f;
    assert_ok(hth_onnx_open("tests/data/digits/digits.onnx", NULL, &f));
    int64_t live = hth_alloc_live();
    job j = {.from = f, .fail_read = 2};
    assert_err(export_file(&j, false), HTH_EIO, "no bytes today");
    for (int i = 1; i < 4; i++) {
        j.fail_write = i;
        assert_err(export_file(&j, false), HTH_EIO, "no room today");
    }
    assert_int_equal(hth_alloc_live(), live);
    hth_onnx_close(f);
    free(j.file);
}

static hth_err no_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    memset(dst, 0, n);
    return HTH_OK;
}

static hth_err no_write(void *ctx, const void *data, size_t n)
{
    *(uint64_t *)ctx += n;
    return HTH_OK;
}

static hth_err export_skeleton(hth_span skeleton, int n_tensors, uint64_t *bytes)
{
    *bytes = 0;
    return hth_onnx_export_write(&(hth_onnx_export){.skeleton = skeleton.data,
                                                    .skeleton_bytes = skeleton.bytes,
                                                    .n_tensors = n_tensors,
                                                    .inference = true,
                                                    .read = no_read,
                                                    .write = no_write,
                                                    .ctx = bytes});
}

// A file of 2 GiB is refused before anything of it is written.
static void test_too_big(void **state)
{
    hth_wire_buffer model = {0}, graph = {0}, tensor = {0};
    uint64_t bytes;
    hth_wire_put_varint(&tensor, 1, (uint64_t)1 << 29);
    hth_wire_put_varint(&tensor, 2, 1);
    hth_wire_put_bytes(&tensor, 8, span_of("w"));
    put_nested(&graph, 5, tensor);
    put_nested(&model, 7, graph);
    assert_err(export_skeleton((hth_span){model.data, model.bytes}, 1, &bytes), HTH_ETOOBIG,
               "2147483647");
    assert_int_equal(bytes, 0);
    hth_free(model.data);
}

// A damaged skeleton is told, or gives some file; it is never read beyond its end.
static void test_damaged(void **state)
{
    hth_wire_buffer model = make_nested();
    hth_onnx_file *f;
    uint64_t written;
    size_t bytes;
    assert_ok(hth_onnx_open_bytes(model.data, model.bytes, NULL, &f));
    const uint8_t *skeleton = hth_onnx_skeleton(f, &bytes);
    assert_err(export_skeleton((hth_span){skeleton, bytes}, 2, &written), HTH_ECORRUPT,
               "the stored graph is damaged");
    // Nothing, and a model without a graph: no empty file is called an export.
    assert_err(export_skeleton((hth_span){NULL, 0}, 0, &written), HTH_ECORRUPT,
               "the stored graph is damaged");
    assert_err(export_skeleton((hth_span){(const uint8_t *)"\x08\x07", 2}, 0, &written),
               HTH_ECORRUPT, "the stored graph is damaged");
    for (size_t n = 0; n < bytes; n++) {
        uint8_t *copy = malloc(n + 1), *whole = malloc(bytes);
        assert_true(copy != NULL && whole != NULL);
        memcpy(copy, skeleton, n);
        (void)export_skeleton((hth_span){copy, n}, 3, &written);
        memcpy(whole, skeleton, bytes);
        whole[n] ^= 0xff;
        (void)export_skeleton((hth_span){whole, bytes}, 3, &written);
        free(copy);
        free(whole);
    }
    hth_onnx_close(f);
    hth_free(model.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),       cmocka_unit_test(test_inference),
        cmocka_unit_test(test_nested_inference), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_errors_pass),      cmocka_unit_test(test_too_big),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
