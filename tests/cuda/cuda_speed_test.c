// SPDX-License-Identifier: Apache-2.0
// How fast single operators are on a CUDA device: those that only move bytes against the copy
// bandwidth measured beside them, by the bytes that each says it moves; products and convolutions
// in floating-point operations per second, in each precision, with every algorithm that is offered,
// so that what is picked can be compared with the best there is. There images lie, and values are
// typed, as programs of that precision have them. Operands are random, outputs are poisoned before
// each first run and checked for being written. Over the fake driver the same in small, without
// figures.
#include "tests/cuda/cuda_rig.h"

#include <math.h>

#define MIB ((size_t)1 << 20)

typedef struct bench {
    hth_device *device;
    hth_stream *stream;
    char *memory;
    size_t bytes;
    double copy_gb_s;
} bench;

typedef struct job {
    const hth_kernel *kernel;
    hth_kernel_args args;
    void *in[8], *out[4];
} job;

static hth_err job_launched(void *arg)
{
    const job *j = arg;
    return j->kernel->run(j->kernel, &j->args);
}

static hth_err job_issue(hth_stream *stream, void *arg)
{
    return hth_stream_launch(stream, job_launched, arg);
}

// An operator to be timed: shapes of inputs and the output, and attributes by `set`.
typedef struct subject {
    const char *name;
    hth_op op;
    int n_in;
    hth_shape in[4], out;
    void (*set)(hth_node *node);
    double flops; // 0: it moves bytes
} subject;

static hth_shape shape(int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (hth_shape){.rank = rank, .dim = {a, b, c, d}};
}

static hth_graph *graph_of(const subject *x)
{
    hth_graph *g;
    int in[4], out, node;
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    for (int i = 0; i < x->n_in; i++) {
        assert_int_equal(hth_graph_add_value(g, NULL, HTH_DT_F32, &x->in[i], &in[i]), HTH_OK);
    }
    assert_int_equal(hth_graph_add_value(g, NULL, HTH_DT_F32, &x->out, &out), HTH_OK);
    assert_int_equal(hth_graph_add_node(g, x->op, x->name, in, x->n_in, &out, 1, &node), HTH_OK);
    if (x->set != NULL) {
        x->set(&g->nodes[node]);
    }
    return g;
}

static size_t bytes_of(const hth_shape *shape)
{
    return (size_t)hth_shape_elements(shape) * sizeof(float);
}

static uint32_t random_bf16(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return hth_f32_to_bf16((float)(int32_t)(*seed >> 33) / (float)(1 << 30) - 1.0F);
}

// Random numbers in the device's memory, once for all: read as floats and as pairs of bf16.
static void bench_fill(bench *b)
{
    size_t piece = 4 * MIB;
    uint32_t *host = hth_alloc(piece);
    uint64_t seed = 1;
    assert_non_null(host);
    for (size_t i = 0; i < piece / sizeof *host; i++) {
        host[i] = random_bf16(&seed) << 16;
        host[i] |= random_bf16(&seed);
    }
    for (size_t at = 0; at + piece <= b->bytes; at += piece) {
        assert_int_equal(hth_device_put(b->device, b->memory + at, host, piece), HTH_OK);
    }
    hth_free(host);
}

static hth_err copy_issue(hth_stream *stream, void *arg)
{
    const bench *b = arg;
    return hth_stream_copy(stream, b->memory + b->bytes / 2, b->memory, b->bytes / 4);
}

static void bench_open(bench *b)
{
    b->bytes = rig_real() ? 6144 * MIB : 64 * MIB;
    b->device = rig_device(rig_real() ? "cuda:0,mem=8GiB" : "cuda:0,mem=128MiB");
    assert_int_equal(hth_stream_open(b->device, HTH_STREAM_COMPUTE, &b->stream), HTH_OK);
    assert_int_equal(hth_device_reserve(b->device, b->bytes, (void **)&b->memory), HTH_OK);
    bench_fill(b);
    double us = rig_time_us(b->stream, copy_issue, b, 15);
    b->copy_gb_s = 2 * (double)(b->bytes / 4) / 1e3 / us;
    rig_result("copy within the device, read and written", b->copy_gb_s, "GB/s");
}

static void bench_close(bench *b)
{
    hth_device_release(b->device, b->memory, b->bytes);
    hth_stream_close(b->stream);
    hth_device_close(b->device);
}

// Places operands one behind the other; false: there is not that much memory.
static bool job_place(const bench *b, const subject *x, const hth_kernel *kernel, job *j)
{
    size_t at = 0, rest;
    for (int i = 0; i < x->n_in; i++) {
        j->in[i] = b->memory + at;
        at += (bytes_of(&x->in[i]) + 255) / 256 * 256;
    }
    j->out[0] = b->memory + at;
    at += (bytes_of(&x->out) + 255) / 256 * 256;
    rest = at < b->bytes ? b->bytes - at : 0;
    j->kernel = kernel;
    j->args =
        (hth_kernel_args){j->in, j->out, kernel->workspace_bytes > 0 ? b->memory + at : NULL, NULL};
    return kernel->workspace_bytes < rest;
}

// The last word and one in the middle must have been written.
static void job_check(const bench *b, const subject *x, const hth_graph *graph, job *j)
{
    static const uint32_t poison = 0x7fc0dead;
    const hth_value *out = &graph->values[graph->nodes[0].outputs[0]];
    size_t words = (size_t)hth_shape_elements(&out->shape) * hth_dtype_bytes(out->dtype) / 4;
    size_t last = words - 1, places[2] = {last / 2, last};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hth_device_put(b->device, (uint32_t *)j->out[0] + places[i], &poison, 4),
                         HTH_OK);
    }
    assert_int_equal(job_issue(b->stream, j), HTH_OK);
    if (hth_stream_sync(b->stream) != HTH_OK) {
        fail_msg("%s: %s", x->name, hth_err_detail());
    }
    for (int i = 0; i < 2; i++) {
        uint32_t got = poison;
        assert_int_equal(hth_device_get(b->device, &got, (uint32_t *)j->out[0] + places[i], 4),
                         HTH_OK);
        assert_int_not_equal(got, poison);
    }
}

// Microseconds; < 0: refused, or no room.
static double time_of(const bench *b, const subject *x, const hth_graph *graph,
                      const char *algorithm, size_t *moved)
{
    hth_kernel *k;
    job j = {.kernel = NULL};
    if (hth_kernel_prepare(b->device, graph, &graph->nodes[0], algorithm, &k) != HTH_OK) {
        print_message("# %s %s: %s\n", x->name, algorithm ? algorithm : "", hth_err_detail());
        return -1;
    }
    double us = -1;
    if (job_place(b, x, k, &j)) {
        job_check(b, x, graph, &j);
        us = rig_time_us(b->stream, job_issue, &j, rig_real() ? 15 : 1);
        *moved = ((const hth_cuda_seq *)k)->moved_bytes;
    }
    hth_kernel_close(k);
    return us;
}

static void set_softmax(hth_node *node)
{
    assert_int_equal(hth_node_set_int(node, "axis", -1), HTH_OK);
}

static void set_transpose(hth_node *node)
{
    assert_int_equal(hth_node_set_ints(node, "perm", (int64_t[]){0, 2, 3, 1}, 4), HTH_OK);
}

static void set_pool(hth_node *node)
{
    assert_int_equal(hth_node_set_ints(node, "kernel_shape", (int64_t[]){2, 2}, 2), HTH_OK);
    assert_int_equal(hth_node_set_ints(node, "strides", (int64_t[]){2, 2}, 2), HTH_OK);
}

static void test_bandwidth(void **state)
{
    bench b;
    int64_t n = rig_real() ? 128 : 1;
    hth_shape big = shape(4, n, 64, 112, 112), half = shape(4, n, 64, 56, 56),
              turned = shape(4, n, 112, 112, 64), channel = shape(4, 1, 64, 1, 1),
              rows = shape(2, n * 64 * 49, 256, 0, 0), row = shape(1, 256, 0, 0, 0);
    const subject list[] = {
        {"Relu", HTH_OP_RELU, 1, {big}, big, NULL, 0},
        {"Add", HTH_OP_ADD, 2, {big, big}, big, NULL, 0},
        {"Add, by channel", HTH_OP_ADD, 2, {big, channel}, big, NULL, 0},
        {"Mul", HTH_OP_MUL, 2, {big, big}, big, NULL, 0},
        {"Sigmoid", HTH_OP_SIGMOID, 1, {big}, big, NULL, 0},
        {"Softmax, rows of 256", HTH_OP_SOFTMAX, 1, {rows}, rows, set_softmax, 0},
        {"LayerNormalization, rows of 256",
         HTH_OP_LAYER_NORMALIZATION,
         3,
         {rows, row, row},
         rows,
         set_softmax,
         0},
        {"Transpose, channels last", HTH_OP_TRANSPOSE, 1, {big}, turned, set_transpose, 0},
        {"MaxPool 2x2", HTH_OP_MAX_POOL, 1, {big}, half, set_pool, 0},
    };
    bench_open(&b);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        hth_graph *g = graph_of(&list[i]);
        size_t moved = 0;
        double us = time_of(&b, &list[i], g, NULL, &moved);
        char what[96];
        snprintf(what, sizeof what, "%s: of the copy bandwidth", list[i].name);
        if (us > 0 && moved > 0) {
            rig_result(what, 100 * ((double)moved / 1e3 / us) / b.copy_gb_s, "%");
        }
        assert_true(us >= 0);
        hth_graph_free(g);
    }
    bench_close(&b);
}

static void set_conv(hth_node *node)
{
    assert_int_equal(hth_node_set_ints(node, "pads", (int64_t[]){1, 1, 1, 1}, 4), HTH_OK);
    assert_int_equal(hth_node_set_ints(node, "kernel_shape", (int64_t[]){3, 3}, 2), HTH_OK);
}

// What lies between the nodes of a program in this precision, as the layout pass and hth_pass_half
// leave it: images with their channels last, activations in bf16. A filter or a matrix of weights
// is a parameter: plain, FP32.
static void as_in_programs(hth_graph *graph, hth_precision precision)
{
    const hth_node *n = &graph->nodes[0];
    const int between[] = {n->inputs[0], n->outputs[0]};
    graph->precision = precision;
    for (int i = 0; i < 2 && precision != HTH_PRECISION_FP32; i++) {
        hth_value *v = &graph->values[between[i]];
        v->layout = v->shape.rank > 2 ? HTH_LAYOUT_NHWC : v->layout;
        v->dtype = precision == HTH_PRECISION_BF16 ? HTH_DT_BF16 : v->dtype;
    }
}

#define MOST 64

// All algorithms: the one that is run without a choice, the best, and how many there are.
static void arithmetic(const bench *b, const subject *x, hth_precision precision, const char *said)
{
    hth_choice list[MOST];
    int count = 0;
    size_t moved;
    hth_graph *g = graph_of(x);
    as_in_programs(g, precision);
    double first = time_of(b, x, g, NULL, &moved), best = first;
    if (first > 0 &&
        hth_kernel_algorithms(b->device, g, &g->nodes[0], list, MOST, &count) == HTH_OK) {
        for (int i = 0; i < count && i < MOST; i++) {
            double us = time_of(b, x, g, list[i].name, &moved);
            best = us > 0 && us < best ? us : best;
        }
    }
    char what[128];
    if (first > 0) {
        snprintf(what, sizeof what, "%s in %s: best of %d algorithms", x->name, said, count);
        rig_result(what, x->flops / best / 1e6, "TFLOP/s");
        snprintf(what, sizeof what, "%s in %s: the first offered / the best, time", x->name, said);
        rig_result(what, first / best, "x");
    }
    hth_graph_free(g);
}

static void test_arithmetic(void **state)
{
    bench b;
    int64_t m = rig_real() ? 8192 : 32, n = rig_real() ? 64 : 1, c = rig_real() ? 256 : 4,
            side = rig_real() ? 56 : 8;
    hth_shape square = shape(2, m, m, 0, 0), x = shape(4, n, c, side, side),
              w = shape(4, c, c, 3, 3);
    const subject list[] = {
        {"MatMul 8192",
         HTH_OP_MAT_MUL,
         2,
         {square, square},
         square,
         NULL,
         2.0 * (double)(m * m) * (double)m},
        {"Conv 3x3, 256 channels, 56x56",
         HTH_OP_CONV,
         2,
         {x, w},
         x,
         set_conv,
         2.0 * (double)(n * c * side * side) * (double)(c * 9)},
    };
    bench_open(&b);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        arithmetic(&b, &list[i], HTH_PRECISION_FP32, "fp32");
        arithmetic(&b, &list[i], HTH_PRECISION_TF32, "tf32");
        arithmetic(&b, &list[i], HTH_PRECISION_BF16, "bf16");
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bandwidth),
        cmocka_unit_test(test_arithmetic),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
