// SPDX-License-Identifier: Apache-2.0
// The table of CUDA's operators, ONNX's own cases on its kernels, and convolutions by every engine
// that is offered: the fake cuDNN refuses plans whose sizes do not fit, and overwrites a workspace.
#include "kernels/cuda/fixture.h"

#include "graph/attention.h"
#include "tests/rig/ref_cases.h"

// Every operator is either built or refused with a reason.
static void table_is_complete(void **state)
{
    int built = 0, refused = 0;
    for (int op = HTH_OP_NONE + 1; op < HTH_N_OPS; op++) {
        const char *why = hth_cuda_refusal((hth_op)op);
        fixture f;
        hth_kernel *k;
        if (why == NULL) {
            built++;
            continue;
        }
        refused++;
        assert_true(strlen(why) > 10);
        print_message("# %s is refused: %s\n", hth_op_name((hth_op)op), why);
        fixture_open(&f, 1);
        int in = fixture_value(&f, SHAPE(2)), out = fixture_value(&f, SHAPE(2));
        const hth_node *n = fixture_node(&f, (hth_op)op, &in, 1, &out, 1);
        assert_int_equal(cuda_test_prepare(f.graph, n, NULL, &k), HTH_ENOTSUP);
        assert_non_null(strstr(hth_err_detail(), why));
        assert_non_null(strstr(hth_err_detail(), hth_op_name((hth_op)op)));
        fixture_close(&f);
    }
    print_message("# %d operators have kernels, %d are refused\n", built, refused);
    assert_true(built > 100);
}

// ONNX's cases: a graph of the node, whose small integer inputs are constants, as in a model.
static void case_graph(const ref_case *c, fixture *f)
{
    int in[REF_CASE_TENSORS], out[REF_CASE_TENSORS];
    fixture_open(f, 1);
    for (int i = 0; i < c->node.n_inputs; i++) {
        const hth_tensor *t = &c->in[i];
        in[i] = -1;
        if (c->index[i] < 0) {
            continue;
        }
        bool setting = i > 0 && t->bytes <= 256;
        if (setting) {
            in[i] = fixture_const_of(f, t->dtype, t->shape, t->data);
        } else {
            assert_int_equal(hth_graph_add_value(f->graph, NULL, t->dtype, &t->shape, &in[i]),
                             HTH_OK);
        }
    }
    for (int i = 0; i < c->node.n_outputs; i++) {
        out[i] = -1;
        if (c->out_index[i] >= 0) {
            assert_int_equal(
                hth_graph_add_value(f->graph, NULL, c->want[i].dtype, &c->want[i].shape, &out[i]),
                HTH_OK);
        }
    }
    hth_node *n = fixture_node(f, c->node.op, in, c->node.n_inputs, out, c->node.n_outputs);
    assert_int_equal(hth_node_copy_attrs(n, &c->node), HTH_OK);
}

// The largest difference as a part of the largest number, of F64 in millionths of what F32 has;
// other types are the same bits.
static double case_distance(const hth_tensor *want, const void *got)
{
    int64_t n = hth_shape_elements(&want->shape);
    double worst = 0, largest = 1e-30, unit = want->dtype == HTH_DT_F64 ? 1e6 : 1;
    if (want->dtype != HTH_DT_F32 && want->dtype != HTH_DT_F64) {
        return memcmp(want->data, got, want->bytes) == 0 ? 0 : 1;
    }
    for (int64_t i = 0; i < n; i++) {
        bool wide = want->dtype == HTH_DT_F64;
        double a = wide ? ((const double *)want->data)[i] : (double)((const float *)want->data)[i];
        double b = wide ? ((const double *)got)[i] : (double)((const float *)got)[i];
        if (a == b || (isnan(a) && isnan(b))) {
            continue;
        }
        worst = fmax(worst, isnan(a - b) ? INFINITY : fabs(a - b));
        largest = fmax(largest, isfinite(a) ? fabs(a) : 0);
    }
    return unit * worst / largest;
}

static bool case_run(const ref_case *c)
{
    fixture f;
    hth_kernel *k;
    void *in[REF_CASE_TENSORS] = {NULL}, *out[REF_CASE_TENSORS] = {NULL};
    case_graph(c, &f);
    hth_err err = cuda_test_prepare(f.graph, &f.graph->nodes[f.node], NULL, &k);
    if (err != HTH_OK) {
        assert_int_equal(err, HTH_ENOTSUP);
        print_message("# %s is refused: %s\n", c->name, hth_err_detail());
        fixture_close(&f);
        return false;
    }
    for (int i = 0; i < c->node.n_inputs; i++) {
        in[i] = c->index[i] < 0 ? NULL : c->in[i].data;
    }
    for (int i = 0; i < c->node.n_outputs; i++) {
        out[i] = c->out_index[i] < 0 ? NULL : fixture_buffer(c->want[i].bytes);
    }
    void *workspace = fixture_buffer(k->workspace_bytes);
    assert_int_equal(k->run(k, &(hth_kernel_args){in, out, workspace, NULL}), HTH_OK);
    for (int i = 0; i < c->node.n_outputs; i++) {
        double d = out[i] == NULL ? 0 : case_distance(&c->want[i], out[i]);
        if (d > 1e-4) {
            fail_msg("%s (%s): output %d differs by %g", c->name, hth_op_name(c->node.op), i, d);
        }
        hth_free(out[i]);
    }
    hth_free(workspace);
    hth_kernel_close(k);
    fixture_close(&f);
    return true;
}

static void onnx_cases(void **state)
{
    ref_cases file;
    ref_case c;
    int ran = 0, refused = 0;
    assert_true(ref_cases_open(&file, "tests/data/ref_cases.bin"));
    while (ref_cases_next(&file, &c)) {
        *(case_run(&c) ? &ran : &refused) += 1;
        ref_case_clear(&c);
    }
    assert_false(file.bad);
    ref_case_clear(&c);
    ref_cases_close(&file);
    print_message("# ONNX's cases: %d ran, %d were refused\n", ran, refused);
    assert_true(ran > 200);
}

typedef struct conv_case {
    hth_op op;
    int rank;
    int64_t batch, in, out, groups, size, kernel, stride, dilation, pad;
    int posts; // 1: sum, 2: ReLU, 4: Sigmoid
    bool bias;
} conv_case;

static const conv_case conv_cases[] = {
    {HTH_OP_CONV, 4, 2, 3, 8, 1, 9, 3, 1, 1, 1, 0, false},
    {HTH_OP_CONV, 4, 2, 3, 8, 1, 9, 3, 1, 1, 1, 0, true},
    {HTH_OP_CONV, 4, 1, 6, 4, 2, 11, 3, 2, 1, 1, 3, true},
    {HTH_OP_CONV, 4, 1, 6, 4, 2, 12, 3, 2, 1, 1, 2, true},
    {HTH_OP_CONV, 4, 2, 4, 4, 4, 8, 3, 1, 2, 2, 1, false},
    {HTH_OP_CONV, 4, 2, 4, 6, 1, 7, 1, 1, 1, 0, 6, true},
    {HTH_OP_CONV, 3, 2, 4, 6, 1, 17, 5, 2, 1, 2, 2, false},
    {HTH_OP_CONV, 5, 1, 2, 3, 1, 5, 3, 1, 1, 1, 0, true},
    {HTH_OP_CONV_TRANSPOSE, 4, 2, 4, 6, 1, 5, 2, 2, 1, 0, 0, true},
    {HTH_OP_CONV_TRANSPOSE, 4, 1, 4, 6, 2, 5, 3, 2, 1, 1, 2, false},
    {HTH_OP_CONV_GRAD_DATA, 4, 2, 3, 8, 1, 9, 3, 1, 1, 1, 0, false},
    {HTH_OP_CONV_GRAD_DATA, 4, 2, 4, 8, 2, 10, 3, 2, 1, 1, 0, false},
    {HTH_OP_CONV_GRAD_FILTER, 4, 2, 3, 8, 1, 9, 3, 1, 1, 1, 0, false},
    {HTH_OP_CONV_GRAD_FILTER, 4, 3, 4, 8, 2, 10, 3, 2, 1, 1, 0, true},
};

static hth_node *conv_open(fixture *f, const conv_case *c, uint64_t seed)
{
    int64_t span = (c->kernel - 1) * c->dilation + 1, v[3], p[6];
    bool transposed = c->op == HTH_OP_CONV_TRANSPOSE;
    int64_t small = transposed ? (c->size - 1) * c->stride + span - 2 * c->pad
                               : (c->size + 2 * c->pad - span) / c->stride + 1;
    hth_shape x = SHAPE(c->batch, c->in, c->size, c->size, c->size), y = x, w = x;
    x.rank = y.rank = w.rank = c->rank;
    y.dim[1] = c->out;
    w.dim[0] = transposed ? c->in : c->out;
    w.dim[1] = (transposed ? c->out : c->in) / c->groups;
    for (int i = 2; i < c->rank; i++) {
        y.dim[i] = small;
        w.dim[i] = c->kernel;
    }
    fixture_open(f, seed);
    bool data = c->op == HTH_OP_CONV_GRAD_DATA, filter = c->op == HTH_OP_CONV_GRAD_FILTER;
    int in[3] = {fixture_value(f, data ? y : x), fixture_value(f, filter ? y : w), -1};
    hth_shape of = filter ? w : y;
    int out[2] = {fixture_value(f, data ? x : of), -1};
    if (c->bias && filter) {
        out[1] = fixture_value(f, SHAPE(c->out));
    } else if (c->bias) {
        in[2] = fixture_value(f, SHAPE(c->out));
    }
    int sum = c->posts & 1 ? fixture_value(f, y) : -1;
    hth_node *n = fixture_node(f, c->op, in, data || filter ? 2 : 3, out, filter ? 2 : 1);
    for (int i = 0; i < 6; i++) {
        p[i] = c->pad;
        v[i % 3] = c->stride;
    }
    hth_node_set_int(n, "group", c->groups);
    hth_node_set_ints(n, "strides", v, c->rank - 2);
    hth_node_set_ints(n, "pads", p, 2 * (c->rank - 2));
    v[0] = v[1] = v[2] = c->dilation;
    hth_node_set_ints(n, "dilations", v, c->rank - 2);
    if (sum >= 0) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_ADD, n->n_inputs, 1, 0};
        hth_node_add_input(n, sum);
    }
    if (c->posts & 2) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU, -1, 0, 0};
    }
    if (c->posts & 4) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_SIGMOID, -1, 0, 0};
    }
    return n;
}

#undef fixture_check
static void convolutions(void **state)
{
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        fixture f;
        hth_choice list[16];
        int count;
        const hth_node *n = conv_open(&f, &conv_cases[i], i + 1);
        assert_int_equal(hth_kernel_algorithms(cuda_test_device, f.graph, n, list, 16, &count),
                         HTH_OK);
        bool fused = false;
        for (int k = 0; k < count; k++) {
            fused = fused || list[k].name[0] == 'f';
            assert_null(strstr(list[k].name, "e2")); // rounds
            assert_null(strstr(list[k].name, "e3")); // not deterministic
            fixture_check(&f, list[k].name, false, 1e-5);
        }
        bool fusible = conv_cases[i].op == HTH_OP_CONV && !(conv_cases[i].posts & 4) &&
                       (conv_cases[i].bias || conv_cases[i].posts != 0);
        assert_int_equal(fused, fusible);
        assert_int_equal(count, fused ? 4 : 3);
        fixture_check(&f, NULL, false, 1e-5);
        fixture_faults(&f, NULL);
        fixture_faults(&f, "e0");
        hth_kernel *k;
        assert_int_equal(cuda_test_prepare(f.graph, n, "e9", &k), HTH_ENOTSUP);
        assert_int_equal(cuda_test_prepare(f.graph, n, "jit", &k), HTH_ENOTSUP);
        fixture_close(&f);
    }
}

// Chunks of the batch are offered where a workspace is large: each with the workspace of a chunk,
// and the result of the whole.
static const conv_case split_cases[] = {
    {HTH_OP_CONV, 4, 4, 8, 2, 1, 128, 1, 1, 1, 0, 0, false},
    {HTH_OP_CONV, 4, 4, 8, 2, 1, 128, 1, 1, 1, 0, 3, true},
    {HTH_OP_CONV_GRAD_DATA, 4, 4, 8, 2, 1, 128, 1, 1, 1, 0, 0, false},
    {HTH_OP_CONV_GRAD_FILTER, 4, 4, 8, 2, 1, 128, 1, 1, 1, 0, 0, false},
    {HTH_OP_CONV, 4, 3, 11, 1, 1, 128, 1, 1, 1, 0, 0, false},
};

static void convolutions_split(void **state)
{
    for (int i = 0; i < 5; i++) {
        const conv_case *c = &split_cases[i];
        fixture f;
        hth_choice list[32];
        hth_kernel *k;
        int count, chunks = 0;
        const hth_node *n = conv_open(&f, c, (uint64_t)i + 1);
        assert_int_equal(hth_kernel_algorithms(cuda_test_device, f.graph, n, list, 32, &count),
                         HTH_OK);
        for (int a = 0; a < count; a++) {
            const char *slash = strchr(list[a].name, '/');
            assert_int_equal(list[a].split, slash == NULL ? 1 : atoi(slash + 1));
            if (slash != NULL) {
                uint64_t whole = 0;
                for (int b = 0; b < count; b++) {
                    bool same =
                        strncmp(list[a].name, list[b].name, (size_t)(slash - list[a].name)) == 0 &&
                        list[b].name[slash - list[a].name] == '\0';
                    whole = same ? list[b].workspace_bytes : whole;
                }
                chunks++;
                assert_int_equal(list[a].workspace_bytes * (uint64_t)list[a].split, whole);
                fixture_check(&f, list[a].name, false, 1e-5);
            }
        }
        // of a filter's gradient, and of three images, there are none
        assert_int_equal(chunks > 0, c->op != HTH_OP_CONV_GRAD_FILTER && c->batch % 2 == 0);
        if (chunks > 0) {
            fixture_faults(&f, "e0/2");
        }
        assert_int_equal(cuda_test_prepare(f.graph, n, "e0/3", &k) == HTH_OK,
                         c->batch == 3 && c->op != HTH_OP_CONV_GRAD_FILTER);
        if (k != NULL) {
            hth_kernel_close(k);
        }
        assert_int_equal(cuda_test_prepare(f.graph, n, "e0/0", &k), HTH_ENOTSUP);
        assert_int_equal(cuda_test_prepare(f.graph, n, "e0/64", &k), HTH_ENOTSUP);
        fixture_close(&f);
    }
}

// TF32 keeps 10 bits: rounding changes a factor by 2^-11 of it at most, a product by 2^-10, and a
// sum of n products, whose errors have random signs, by much less than n times that. So 2^-9 of the
// largest result is twice what a single product could be off, and what a sum's largest result has
// room for; all but the rounded factors is f32, hence an engine of FP32 stays within 1e-5.
#define TF32_TOLERANCE 0x1p-9

// bf16 keeps 7 bits: a factor is off by 2^-8 of it at most, a product by 2^-7, and a result that
// is bf16 by 2^-8 more; the same reasons as above.
#define BF16_TOLERANCE 0x1p-6

// Images with their channels last, or plain; the filter is as it was. TF32 of plain images is what
// bf16 falls back to.
static void convolution_in(const conv_case *c, uint64_t seed, hth_precision precision, bool last,
                           bool constant)
{
    fixture f;
    hth_choice list[16];
    int count, rounded = 0;
    const hth_node *n = conv_open(&f, c, seed);
    bool half = precision == HTH_PRECISION_BF16 && last;
    double tolerance = half ? BF16_TOLERANCE : TF32_TOLERANCE;
    int w = c->op == HTH_OP_CONV_GRAD_FILTER ? n->outputs[0] : n->inputs[1];
    f.graph->precision = precision;
    for (int v = 0; v < f.graph->n_values && last; v++) {
        hth_value *value = &f.graph->values[v];
        value->layout = v != w && value->shape.rank >= 3 ? HTH_LAYOUT_NHWC : HTH_LAYOUT_PLAIN;
    }
    if (constant && c->op != HTH_OP_CONV_GRAD_FILTER) {
        n->inputs[1] = fixture_const(&f, f.graph->values[w].shape);
    }
    assert_int_equal(hth_kernel_algorithms(cuda_test_device, f.graph, n, list, 16, &count), HTH_OK);
    for (int k = 0; k < count; k++) {
        bool rounds = list[k].name[1] == '2';
        assert_null(strpbrk(list[k].name + 1, "34"));
        assert_true(rounds || !half);
        fixture_check(&f, list[k].name, false, rounds ? tolerance : 1e-5);
        // it did round; of a filter's gradient with that of the bias, the latter was compared last
        bool first = !(n->op == HTH_OP_CONV_GRAD_FILTER && n->outputs[1] >= 0);
        assert_true(!rounds || !first || f.error > 1e-6);
        rounded += rounds;
    }
    assert_true(rounded > 0);
    assert_int_equal(list[0].name[1], '2'); // the heuristics' first
    fixture_check(&f, NULL, false, tolerance);
    fixture_faults(&f, NULL);
    fixture_close(&f);
}

static void convolutions_rounded(void **state)
{
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        for (int how = 0; how < 6; how++) {
            convolution_in(&conv_cases[i], i + 1, how < 3 ? HTH_PRECISION_TF32 : HTH_PRECISION_BF16,
                           how % 3 > 0, how % 3 == 2);
        }
    }
}

static void products_rounded(void **state)
{
    static const double tolerance[] = {1e-5, TF32_TOLERANCE, BF16_TOLERANCE};
    for (int form = 0; form < 18; form++) {
        fixture f;
        hth_precision precision = (hth_precision)(form % 3);
        bool spread = form >= 12; // batches that are broadcast against each other
        bool gemm = form / 3 % 2 == 1 && !spread, constant = form >= 6 && form < 15;
        fixture_open(&f, 5 + (uint64_t)form);
        f.graph->precision = precision;
        hth_shape b = spread ? SHAPE(1, 3, 65, 23) : SHAPE(65, 23);
        int in[3] = {fixture_value(&f, spread ? SHAPE(2, 1, 37, 65) : SHAPE(37, 65)),
                     (constant ? fixture_const : fixture_value)(&f, b), -1};
        if (gemm) {
            in[2] = (constant ? fixture_const : fixture_value)(&f, SHAPE(23));
        }
        int out = fixture_value(&f, spread ? SHAPE(2, 3, 37, 23) : SHAPE(37, 23));
        hth_node *n =
            fixture_node(&f, gemm ? HTH_OP_GEMM : HTH_OP_MAT_MUL, in, gemm ? 3 : 2, &out, 1);
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU, -1, 0, 0};
        fixture_check(&f, NULL, false, tolerance[precision]);
        assert_int_equal(f.error > 1e-6, precision != HTH_PRECISION_FP32);
        fixture_faults(&f, NULL);
        fixture_close(&f);
    }
}

typedef struct half_case {
    hth_op op;
    int n_images, kernel; // inputs that are images; of pools
    int parameters;       // vectors after them, as long as there are channels
    int64_t channels_out, size_out;
} half_case;

static const half_case half_cases[] = {
    {HTH_OP_RELU, 1, 0, 0, 12, 9},
    {HTH_OP_ADD, 2, 0, 0, 12, 9},
    {HTH_OP_MAX_POOL, 1, 3, 0, 12, 7},
    {HTH_OP_AVERAGE_POOL, 1, 2, 0, 12, 8},
    {HTH_OP_CONCAT, 3, 0, 0, 36, 9},
    {HTH_OP_GLOBAL_AVERAGE_POOL, 1, 0, 0, 12, 1},
    {HTH_OP_SCALE_SHIFT, 1, 0, 2, 12, 9},
    {HTH_OP_RELU_GRAD, 2, 0, 0, 12, 9},
    {HTH_OP_BATCH_NORM_TRAIN, 1, 0, 4, 12, 9},
};

static hth_node *half_open(fixture *f, const half_case *c, hth_layout lies)
{
    int in[8], out[5] = {0}, n_in = 0, n_out = 1;
    hth_shape x = SHAPE(2, 12, 9, 9), y = SHAPE(2, c->channels_out, c->size_out, c->size_out);
    fixture_open(f, 11);
    for (int i = 0; i < c->n_images; i++) {
        in[n_in++] = fixture_value(f, x);
    }
    for (int i = 0; i < c->parameters; i++) {
        in[n_in++] = fixture_value(f, SHAPE(12));
    }
    out[0] = fixture_value(f, y);
    for (; c->op == HTH_OP_BATCH_NORM_TRAIN && n_out < 3; n_out++) {
        out[n_out] = fixture_value(f, SHAPE(12));
    }
    hth_node *n = fixture_node(f, c->op, in, n_in, out, n_out);
    const int64_t kernel[2] = {c->kernel, c->kernel};
    if (c->kernel > 0) {
        assert_int_equal(hth_node_set_ints(n, "kernel_shape", kernel, 2), HTH_OK);
    }
    if (c->op == HTH_OP_CONCAT) {
        assert_int_equal(hth_node_set_int(n, "axis", 1), HTH_OK);
    }
    for (int v = 0; v < f->graph->n_values; v++) {
        hth_value *value = &f->graph->values[v];
        value->layout = value->shape.rank == 4 ? lies : HTH_LAYOUT_PLAIN;
    }
    return n;
}

// Numbers that bf16 has; of integers 0, 1, 0, ..
static void half_fill(fixture *f, const hth_value *value, void *p)
{
    for (int64_t e = 0; e < hth_shape_elements(&value->shape); e++) {
        if (value->dtype == HTH_DT_I64 || value->dtype == HTH_DT_U64) {
            ((int64_t *)p)[e] = e % 2;
        } else {
            float x = hth_bf16_to_f32(hth_f32_to_bf16(fixture_random(f)));
            hth_set(p, e, x, value->dtype == HTH_DT_BF16);
        }
    }
}

// Runs the node with the images (`rank` dimensions), of inputs only if `reads`, in bf16 or in f32.
static void half_run(fixture *f, hth_node *node, int rank, bool half, bool reads, void *out[5])
{
    void *in[8] = {NULL};
    hth_kernel *k;
    f->seed = 77;
    for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
        bool input = i < node->n_inputs;
        hth_value *v =
            &f->graph->values[input ? node->inputs[i] : node->outputs[i - node->n_inputs]];
        int64_t count = hth_shape_elements(&v->shape);
        bool image = v->shape.rank == rank && (reads || !input);
        if (hth_dtype_is_float(v->dtype)) {
            v->dtype = half && image ? HTH_DT_BF16 : HTH_DT_F32;
        }
        void *p = fixture_buffer((size_t)count * sizeof(int64_t));
        if (input) {
            half_fill(f, v, p);
        }
        *(input ? &in[i] : &out[i - node->n_inputs]) = p;
    }
    assert_int_equal(cuda_test_prepare(f->graph, node, NULL, &k), HTH_OK);
    void *workspace = fixture_buffer(k->workspace_bytes);
    assert_int_equal(k->run(k, &(hth_kernel_args){in, out, workspace, NULL}), HTH_OK);
    hth_kernel_close(k);
    hth_free(workspace);
    for (int i = 0; i < 8; i++) {
        hth_free(in[i]);
    }
}

// Kernels compute in f32 and round once: from numbers that bf16 has, a result in bf16 is that in
// f32, rounded, to the bit; one that stays f32 is the same.
static void half_compare(fixture *f, hth_node *node, int rank, bool reads)
{
    void *want[5] = {NULL}, *got[5] = {NULL};
    half_run(f, node, rank, false, reads, want);
    half_run(f, node, rank, true, reads, got);
    for (int o = 0; o < node->n_outputs; o++) {
        const hth_value *v = &f->graph->values[node->outputs[o]];
        for (int64_t e = 0; e < hth_shape_elements(&v->shape); e++) {
            float x = ((const float *)want[o])[e];
            bool same = v->dtype == HTH_DT_BF16
                            ? ((const uint16_t *)got[o])[e] == hth_f32_to_bf16(x)
                            : ((const float *)got[o])[e] == x;
            if (!same) {
                fail_msg("%s: element %d of output %d", hth_op_name(node->op), (int)e, o);
            }
        }
        hth_free(want[o]);
        hth_free(got[o]);
    }
    fixture_close(f);
}

static void halves(void **state)
{
    for (size_t i = 0; i < 2 * sizeof half_cases / sizeof *half_cases; i++) {
        const half_case *c = &half_cases[i / 2];
        fixture f;
        hth_node *n = half_open(&f, c, i % 2 == 0 ? HTH_LAYOUT_PLAIN : HTH_LAYOUT_NHWC);
        half_compare(&f, n, 4, true);
    }
}

// Operators over rows, and others that take plain tensors only. What a tensor's name says: x the
// image, y one like it, r its first dimension is 1, c a vector of its channels, w of its last
// dimension, s of the moments of its rows, i four indices or labels, u a random number's seed.
typedef struct row_case {
    hth_op op;
    const char *in, *out;
    const char *attribute[2];
    int64_t value[2];
    bool writes; // only the result may be bf16
} row_case;

static const row_case row_cases[] = {
    {HTH_OP_SOFTMAX, "x", "x", {"axis"}, {-1}, false},
    {HTH_OP_SOFTMAX, "x", "x", {"axis"}, {1}, false},
    {HTH_OP_LOG_SOFTMAX, "x", "x", {"axis"}, {-1}, false},
    {HTH_OP_SOFTMAX_GRAD, "xy", "x", {"axis"}, {-1}, false},
    {HTH_OP_LOG_SOFTMAX_GRAD, "xy", "x", {"axis"}, {1}, false},
    {HTH_OP_LAYER_NORMALIZATION, "xww", "xss", {"axis"}, {-1}, false},
    {HTH_OP_RMSNORMALIZATION, "xw", "x", {"axis"}, {-1}, false},
    {HTH_OP_LAYER_NORM_GRAD, "xywss", "xww", {"axis"}, {-1}, false},
    {HTH_OP_GROUP_NORMALIZATION, "xcc", "x", {"num_groups"}, {4}, false},
    {HTH_OP_INSTANCE_NORMALIZATION, "xcc", "x", {NULL}, {0}, false},
    {HTH_OP_GROUP_NORM_GRAD, "xyc", "xcc", {"num_groups"}, {2}, false},
    {HTH_OP_LRN, "x", "x", {"size"}, {3}, false},
    {HTH_OP_LRN_GRAD, "xy", "x", {"size"}, {3}, false},
    {HTH_OP_REDUCE_SUM, "x", "r", {"keepdims"}, {1}, false},
    {HTH_OP_DROPOUT_TRAIN, "xu", "x", {NULL}, {0}, false},
    {HTH_OP_GATHER, "xi", "x", {"axis"}, {0}, false},
    {HTH_OP_MSE_GRAD, "xy", "x", {NULL}, {0}, true},
    {HTH_OP_SOFTMAX_XENT_GRAD, "xl", "x", {NULL}, {0}, true},
    {HTH_OP_BCE_GRAD, "xyc", "x", {NULL}, {0}, true},
};

static hth_shape row_shape(char name, int64_t width)
{
    switch (name) {
    case 'r':
        return SHAPE(1, 8, 3, width);
    case 'c':
        return SHAPE(8);
    case 'w':
        return SHAPE(width);
    case 's':
        return SHAPE(4, 8, 3);
    case 'i':
        return SHAPE(4);
    case 'l':
        return SHAPE(4, 3, width);
    case 'u':
        return SHAPE(1);
    default:
        return SHAPE(4, 8, 3, width);
    }
}

static void rows_in_halves(void **state)
{
    for (size_t i = 0; i < 2 * sizeof row_cases / sizeof *row_cases; i++) {
        const row_case *c = &row_cases[i / 2];
        int64_t width = i % 2 == 0 ? 12 : 7;
        int in[8], out[5], n_in = (int)strlen(c->in), n_out = (int)strlen(c->out);
        const int64_t axes[1] = {0};
        fixture f;
        fixture_open(&f, i + 1);
        for (int k = 0; k < n_in; k++) {
            in[k] = fixture_value(&f, row_shape(c->in[k], width));
            hth_dtype other = c->in[k] == 'u' ? HTH_DT_U64 : HTH_DT_F32;
            f.graph->values[in[k]].dtype = strchr("il", c->in[k]) != NULL ? HTH_DT_I64 : other;
        }
        for (int k = 0; k < n_out; k++) {
            out[k] = fixture_value(&f, row_shape(c->out[k], width));
        }
        hth_node *n = fixture_node(&f, c->op, in, n_in, out, n_out);
        for (int k = 0; k < 2 && c->attribute[k] != NULL; k++) {
            assert_int_equal(hth_node_set_int(n, c->attribute[k], c->value[k]), HTH_OK);
        }
        if (c->op == HTH_OP_REDUCE_SUM) {
            assert_int_equal(hth_node_set_ints(n, "axes", axes, 1), HTH_OK);
        }
        half_compare(&f, n, 4, !c->writes);
    }
}

// The last output that an optimizer's step may have: the new parameter in bf16, of a filter with
// its channels last.
static void steps_round(void **state)
{
    const hth_shape shapes[] = {SHAPE(4096), SHAPE(53), SHAPE(6, 5, 3, 3), SHAPE(3, 16, 4)};
    for (int how = 0; how < 8; how++) {
        bool adam = how % 2 == 1;
        const hth_shape shape = shapes[how / 2];
        int64_t count = hth_shape_elements(&shape);
        int64_t rows = shape.rank > 2 ? shape.dim[1] : 1;
        int64_t cols = shape.rank > 2 ? count / shape.dim[0] / rows : 1;
        int copy = adam ? 3 : 2, h = adam ? 4 : 3, in[5], out[4] = {-1, -1, -1, -1};
        void *from[5] = {NULL}, *to[4] = {NULL};
        hth_kernel *k;
        fixture f;
        fixture_open(&f, (uint64_t)how + 1);
        for (int i = 0; i <= h; i++) {
            in[i] = fixture_value(&f, i < h ? shape : SHAPE(8));
            from[i] = fixture_buffer((size_t)(i < h ? count : 8) * sizeof(float));
            for (int64_t e = 0; e < (i < h ? count : 8); e++) {
                ((float *)from[i])[e] = 0.1F + fabsf(fixture_random(&f));
            }
        }
        for (int i = 0; i <= copy; i++) {
            out[i] = i < copy && i > h - 2 ? -1 : fixture_value(&f, shape);
            to[i] = out[i] < 0 ? NULL : fixture_buffer((size_t)count * sizeof(float));
        }
        f.graph->values[out[copy]].dtype = HTH_DT_BF16;
        f.graph->values[out[copy]].layout = shape.rank > 2 ? HTH_LAYOUT_NHWC : HTH_LAYOUT_PLAIN;
        hth_node *n =
            fixture_node(&f, adam ? HTH_OP_ADAM_STEP : HTH_OP_SGD_STEP, in, h + 1, out, copy + 1);
        assert_int_equal(cuda_test_prepare(f.graph, n, NULL, &k), HTH_OK);
        assert_int_equal(k->run(k, &(hth_kernel_args){from, to, NULL, NULL}), HTH_OK);
        for (int64_t e = 0; e < count; e++) {
            assert_true(((float *)to[0])[e] != ((float *)from[0])[e]);
            int64_t at = (e / cols / rows * cols + e % cols) * rows + e / cols % rows;
            assert_int_equal(((uint16_t *)to[copy])[at], hth_f32_to_bf16(((float *)to[0])[e]));
        }
        hth_kernel_close(k);
        for (int i = 0; i < 5; i++) {
            hth_free(from[i]);
            hth_free(i < 4 ? to[i] : NULL);
        }
        fixture_close(&f);
    }
}

// A view whose result is where its input is launches nothing.
static void views_in_place(void **state)
{
    fixture f;
    hth_kernel *k;
    fixture_open(&f, 1);
    int in = fixture_value(&f, SHAPE(6, 4)), out = fixture_value(&f, SHAPE(24));
    hth_node *n = fixture_node(&f, HTH_OP_FLATTEN, &in, 1, &out, 1);
    float x[24], y[24], *from = x, *to = y;
    for (int i = 0; i < 24; i++) {
        x[i] = (float)i;
    }
    assert_int_equal(cuda_test_prepare(f.graph, n, NULL, &k), HTH_OK);
    int before = hth_cuda_fake_state()->launches;
    assert_int_equal(k->run(k, &(hth_kernel_args){(void **)&from, (void **)&from, NULL, NULL}),
                     HTH_OK);
    assert_int_equal(hth_cuda_fake_state()->launches, before);
    assert_int_equal(k->run(k, &(hth_kernel_args){(void **)&from, (void **)&to, NULL, NULL}),
                     HTH_OK);
    assert_int_equal(hth_cuda_fake_state()->launches, before + 1);
    assert_memory_equal(x, y, sizeof x);
    hth_kernel_close(k);
    fixture_close(&f);
}

static void attention_in_halves(void **state)
{
    fixture f;
    hth_attention a = {.b0 = 2, .b1 = 3, .t = 5, .s = 6, .d = 4, .e = 7, .has_mask = true};
    a.scale = 0.5f;
    a.q = (hth_attention_view){0, {60, 20, 4, 1}};
    a.k = (hth_attention_view){0, {72, 24, 4, 1}};
    a.v = (hth_attention_view){0, {126, 42, 7, 1}};
    a.out = (hth_attention_view){0, {105, 7, 21, 1}};
    a.mask = (hth_attention_view){0, {30, 0, 6, 1}};
    fixture_open(&f, 3);
    int in[4] = {fixture_value(&f, SHAPE(2, 3, 5, 4)), fixture_value(&f, SHAPE(2, 3, 6, 4)),
                 fixture_value(&f, SHAPE(2, 3, 6, 7)), fixture_value(&f, SHAPE(2, 1, 5, 6))};
    int out = fixture_value(&f, SHAPE(2, 5, 3, 7));
    hth_node *n = fixture_node(&f, HTH_OP_FUSED_ATTENTION, in, 4, &out, 1);
    assert_int_equal(hth_attention_set(n, &a), HTH_OK);
    half_compare(&f, n, 4, true);
}

// The device goes, and everything that it made with it.
static void nothing_is_left(void **state)
{
    assert_true(hth_cuda_fake_state()->launches > 100);
    assert_int_equal(cuda_test_teardown(state), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_complete),
        cmocka_unit_test(onnx_cases),
        cmocka_unit_test(convolutions),
        cmocka_unit_test(convolutions_rounded),
        cmocka_unit_test(convolutions_split),
        cmocka_unit_test(products_rounded),
        cmocka_unit_test(halves),
        cmocka_unit_test(rows_in_halves),
        cmocka_unit_test(attention_in_halves),
        cmocka_unit_test(steps_round),
        cmocka_unit_test(views_in_place),
        cmocka_unit_test(nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
