// SPDX-License-Identifier: Apache-2.0
// Models whose large tensors stay in their files: a file says what its bytes say, whatever is in
// it, and one that changes while it is read is told.
#include "graph/onnx/onnx_impl.h"

#include "base/test.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define ELEMENTS 40000 // 160,000 bytes: more than is kept
#define TENSORS  3

static char dir[] = "/tmp/hth-parts-XXXXXX";
static char path[200];

static hth_span text_span(const char *s)
{
    return (hth_span){(const uint8_t *)s, strlen(s)};
}

static void put_nested(hth_wire_buffer *buffer, uint32_t number, hth_wire_buffer part)
{
    hth_wire_put_bytes(buffer, number, (hth_span){part.data, part.bytes});
    hth_free(part.data);
}

static void add_info(hth_wire_buffer *graph, uint32_t number, const char *name)
{
    hth_wire_buffer shape = {0}, dim = {0}, tensor = {0}, type = {0}, info = {0};
    hth_wire_put_varint(&dim, 1, ELEMENTS);
    put_nested(&shape, 1, dim);
    hth_wire_put_varint(&tensor, 1, 1);
    put_nested(&tensor, 2, shape);
    put_nested(&type, 1, tensor);
    hth_wire_put_bytes(&info, 1, text_span(name));
    put_nested(&info, 2, type);
    put_nested(graph, number, info);
}

static void add_tensor(hth_wire_buffer *graph, const char *name, const float *content, bool typed)
{
    hth_wire_buffer t = {0};
    hth_span bytes = {(const uint8_t *)content, ELEMENTS * sizeof *content};
    hth_wire_put_varint(&t, 1, ELEMENTS);
    hth_wire_put_varint(&t, 2, 1);
    hth_wire_put_bytes(&t, typed ? 4 : 9, bytes);
    hth_wire_put_bytes(&t, 8, text_span(name)); // after the bytes
    put_nested(graph, 5, t);
}

static void add_node(hth_wire_buffer *graph, const char *op, const char *a, const char *b,
                     const char *y)
{
    hth_wire_buffer n = {0};
    hth_wire_put_bytes(&n, 1, text_span(a));
    hth_wire_put_bytes(&n, 1, text_span(b));
    hth_wire_put_bytes(&n, 2, text_span(y));
    hth_wire_put_bytes(&n, 4, text_span(op));
    put_nested(graph, 1, n);
}

// y = x + w0 * w1 + w2: two large tensors in their messages' bytes, one in a typed field, and what
// nobody reads, also large.
static hth_wire_buffer make_model(void)
{
    static const char *const name[TENSORS] = {"w0", "w1", "w2"};
    static uint8_t notes[200000];
    hth_wire_buffer graph = {0}, model = {0}, opset = {0};
    float *content = hth_alloc(ELEMENTS * sizeof *content);
    hth_wire_put_bytes(&model, 20, (hth_span){notes, sizeof notes});
    for (int k = 0; k < TENSORS; k++) {
        for (int i = 0; i < ELEMENTS; i++) {
            content[i] = (float)(k * ELEMENTS + i);
        }
        add_tensor(&graph, name[k], content, k == 2);
    }
    add_node(&graph, "Mul", "w0", "w1", "a");
    add_node(&graph, "Add", "a", "w2", "b");
    add_node(&graph, "Add", "x", "b", "y");
    add_info(&graph, 11, "x");
    add_info(&graph, 12, "y");
    hth_wire_put_bytes(&opset, 1, text_span(""));
    hth_wire_put_varint(&opset, 2, 17);
    put_nested(&model, 7, graph);
    put_nested(&model, 8, opset);
    hth_free(content);
    assert_false(model.failed);
    return model;
}

static void write_file(const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.onnx", dir);
    return 0;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

static void test_left_out(void **state)
{
    hth_wire_buffer model = make_model();
    hth_onnx_file *f;
    float some[3];
    write_file(model.data, model.bytes);
    assert_ok(hth_onnx_open(path, NULL, &f));
    assert_int_equal(hth_onnx_n_tensors(f), TENSORS);
    for (int k = 0; k < TENSORS; k++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(f, k);
        assert_true((t->data == NULL) == (k < 2));
        assert_int_equal(t->bytes, ELEMENTS * sizeof(float));
        assert_ok(hth_onnx_tensor_read(f, k, 4 * 39997, some, sizeof some));
        assert_float_equal(some[2], (float)(k * ELEMENTS + 39999), 0);
        assert_err(hth_onnx_tensor_read(f, k, 4 * 39998, some, sizeof some), HTH_EINVAL, "bytes");
    }
    hth_onnx_close(f);
    hth_graph *g;
    assert_ok(hth_onnx_load_file(path, &g));
    hth_graph_free(g);
    hth_free(model.data);
}

// content_of is the id of everything that was found in a model; zeros: it was refused.
static hth_id content_of(hth_err err, hth_onnx_file *file)
{
    hth_id all[TENSORS + 1] = {{{0}}};
    size_t bytes;
    if (err != HTH_OK) {
        return all[0];
    }
    for (int i = 0; i < hth_onnx_n_tensors(file) && i < TENSORS; i++) {
        const hth_onnx_tensor *t = hth_onnx_tensor_at(file, i);
        void *data = hth_alloc(t->bytes + 1);
        err = hth_onnx_tensor_read(file, i, 0, data, t->bytes);
        all[i] = err == HTH_OK ? hth_content_id(t->dtype, &t->shape, data, t->bytes) : all[TENSORS];
        hth_free(data);
    }
    const void *skeleton = hth_onnx_skeleton(file, &bytes);
    hth_chunk piece[] = {{all, sizeof all}, {skeleton, bytes}};
    hth_id id = hth_id_of(piece, 2);
    hth_onnx_close(file);
    return id;
}

// Whatever is changed in it, a file is what its bytes are: the walk over the file agrees with the
// walk over the bytes.
static void test_same_as_bytes(void **state)
{
    hth_wire_buffer model = make_model();
    uint64_t seed = 1;
    int taken = 0;
    for (int round = 0; round < 600 / TEST_STRIDE + 1; round++) {
        uint8_t *bytes = hth_memdup(model.data, model.bytes);
        size_t n = model.bytes;
        for (int k = 0; k < 1 + round % 3 && round > 0; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            // mostly where messages begin and end: structure is a thousandth of the file
            static const size_t near[] = {0, 200000, 360000, 520000, 680000};
            size_t from = near[(seed >> 33) % 5], at = from + (seed >> 40) % 120;
            at = at < n ? at : n - 1;
            at = (seed >> 60) == 0 ? (seed >> 20) % n : at;
            bytes[at] = (uint8_t)(seed >> 50);
        }
        n = round % 7 == 6 ? (seed >> 30) % n : n;
        write_file(bytes, n);
        hth_onnx_file *a, *b;
        hth_err of_file = hth_onnx_open(path, NULL, &a);
        hth_err of_bytes = hth_onnx_open_bytes(bytes, n, NULL, &b);
        if (of_file != of_bytes) {
            fail_msg("round %d: %s, not %s", round, hth_strerror(of_file), hth_strerror(of_bytes));
        }
        hth_id x = content_of(of_file, a), y = content_of(of_bytes, b);
        assert_true(hth_id_equal(&x, &y));
        taken += of_file == HTH_OK;
        hth_free(bytes);
    }
    assert_true(taken > 5);
    hth_free(model.data);
}

static void test_changes(void **state)
{
    hth_wire_buffer model = make_model();
    hth_onnx_file *f;
    float some[8];
    write_file(model.data, model.bytes);
    assert_ok(hth_onnx_open(path, NULL, &f));
    assert_int_equal(truncate(path, 1000), 0); // where a mapping would end the process
    assert_err(hth_onnx_tensor_read(f, 0, 0, some, sizeof some), HTH_EIO,
               "changed while it was being read");
    hth_onnx_close(f);
    write_file(model.data, model.bytes);
    assert_ok(hth_onnx_open(path, NULL, &f));
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    assert_err(hth_onnx_tensor_read(f, 0, 0, some, sizeof some), HTH_EIO,
               "changed while it was being read");
    hth_onnx_close(f);
    hth_free(model.data);
}

// A file of 32 GiB of which nothing is there takes neither memory nor time.
static void test_sparse(void **state)
{
    struct rusage before, after;
    hth_onnx_file *f;
    getrusage(RUSAGE_SELF, &before);
    write_file("", 0);
    assert_int_equal(truncate(path, (off_t)32 << 30), 0);
    assert_err(hth_onnx_open(path, NULL, &f), HTH_ECORRUPT, "damaged");
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 65536);
}

static hth_err open_once(void)
{
    hth_onnx_file *f;
    HTH_TRY(hth_onnx_open(path, NULL, &f));
    hth_onnx_close(f);
    return HTH_OK;
}

static void test_allocation_faults(void **state)
{
    hth_wire_buffer model = make_model();
    write_file(model.data, model.bytes);
    hth_free(model.data);
    FAULT_LOOP(open_once());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_out), cmocka_unit_test(test_same_as_bytes),
        cmocka_unit_test(test_changes), cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_allocation_faults)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
