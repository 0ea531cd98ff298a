// SPDX-License-Identifier: Apache-2.0
// Operators that the CPU leaves to the reference, on CUDA's kernels, against that.
#include "kernels/cuda/fixture.h"
#include "tests/rig/transposed_case.h"

// Coordinates from within the image, on its pixels and border, and far outside.
static int sample_grid(fixture *f, hth_shape shape, bool odd)
{
    static const float marks[] = {-1, 1, 0, 0.5F, -0.5F, 1.0625F, -2.5F, 1e7F};
    int64_t n = hth_shape_elements(&shape);
    float *p = hth_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) {
        float x = 2.2F * fixture_random(f);
        p[i] = odd && i % 7 == 3 ? marks[i / 7 % 8] : x;
    }
    int v = fixture_const_of(f, HTH_DT_F32, shape, p);
    hth_free(p);
    return v;
}

static const hth_shape sample_images[] = {
    {3, {2, 3, 9}}, {4, {2, 19, 7, 10}}, {4, {1, 2, 1, 5}}, {5, {1, 3, 4, 5, 3}}};

static void sample_open(fixture *f, size_t i, hth_shape *x, hth_shape *grid, hth_shape *y)
{
    fixture_open(f, 31 + i);
    *x = *grid = *y = sample_images[i % 4];
    int rank = x->rank - 2;
    for (int d = 0; d < rank; d++) {
        y->dim[2 + d] = grid->dim[1 + d] = 6 + d;
    }
    grid->dim[rank + 1] = rank;
}

static void sample_attributes(hth_node *node, size_t i)
{
    static const char *const modes[] = {"linear", "nearest", "cubic"};
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    hth_node_set_str(node, "mode", modes[i / 4 % 3]);
    hth_node_set_str(node, "padding_mode", paddings[i / 12 % 3]);
    hth_node_set_int(node, "align_corners", i / 36 % 2);
}

// Modes, paddings, corners, one to three dimensions, more channels than a thread takes.
static void grid_sample(void **state)
{
    (void)state;
    for (size_t i = 0; i < 72; i++) {
        fixture f;
        hth_shape x, grid, y;
        sample_open(&f, i, &x, &grid, &y);
        int in[2] = {fixture_value(&f, x), sample_grid(&f, grid, true)}, out = fixture_value(&f, y);
        sample_attributes(fixture_node(&f, HTH_OP_GRID_SAMPLE, in, 2, &out, 1), i);
        fixture_check(&f, NULL, false, 1e-6);
        if (i % 9 == 0) {
            fixture_faults(&f, NULL);
        }
        fixture_close(&f);
    }
}

// Both gradients, and each alone. Coordinates between pixels: on one the slope jumps.
static void grid_sample_grad(void **state)
{
    (void)state;
    for (size_t i = 0; i < 72; i++) {
        fixture f;
        hth_shape x, grid, y;
        sample_open(&f, i, &x, &grid, &y);
        int in[3] = {fixture_value(&f, y), fixture_value(&f, x), sample_grid(&f, grid, i % 2 == 0)};
        int out[2] = {i % 5 == 3 ? -1 : fixture_value(&f, x),
                      i % 5 == 4 ? -1 : fixture_value(&f, grid)};
        sample_attributes(fixture_node(&f, HTH_OP_GRID_SAMPLE_GRAD, in, 3, out, 2), i);
        fixture_check(&f, NULL, false, 3e-6);
        if (i % 9 == 0) {
            fixture_faults(&f, NULL);
        }
        fixture_close(&f);
    }
}

// Runs the node, then prepares it while each allocation fails; closes the fixture.
static void rare_case(fixture *f, double tolerance)
{
    fixture_check(f, NULL, false, tolerance);
    fixture_faults(f, NULL);
    fixture_close(f);
}

typedef struct einsum_case {
    const char *equation;
    int n;
    hth_shape in[3], out;
} einsum_case;

// What is no product of two matrices: diagonals, ellipses, outer products, broadcasting, sums of
// one operand, three operands, many results and few, long sums and empty ones.
static const einsum_case einsum_cases[] = {
    {"ii->i", 1, {{2, {7, 7}}}, {1, {7}}},
    {"ii", 1, {{2, {37, 37}}}, {0, {0}}},
    {"ij->", 1, {{2, {50, 70}}}, {0, {0}}},
    {"ij->ji", 1, {{2, {5, 9}}}, {2, {9, 5}}},
    {"...ij,...jk->...ik", 2, {{4, {2, 3, 4, 5}}, {4, {2, 1, 5, 6}}}, {4, {2, 3, 4, 6}}},
    {"i,j", 2, {{1, {130}}, {1, {90}}}, {2, {130, 90}}},
    {"i,i", 2, {{1, {2000}}, {1, {2000}}}, {0, {0}}},
    {"bij,bj->i", 2, {{3, {5, 6, 40}}, {2, {1, 40}}}, {1, {6}}},
    {"bi,ij,bj->b", 3, {{2, {4, 6}}, {2, {6, 7}}, {2, {4, 7}}}, {1, {4}}},
    {"iij,jk -> ki", 2, {{3, {4, 4, 6}}, {2, {6, 3}}}, {2, {3, 4}}},
    {"b...,b...->b", 2, {{3, {6, 9, 11}}, {3, {6, 9, 11}}}, {1, {6}}},
    {"abcdefg,fedcba->g", 2, {{7, {2, 3, 2, 3, 2, 3, 2}}, {6, {3, 2, 3, 2, 3, 2}}}, {1, {2}}},
    {"ij,jk->ik", 2, {{2, {80, 60}}, {2, {60, 70}}}, {2, {80, 70}}},
    {"ij,jk->ik", 2, {{2, {3, 0}}, {2, {0, 4}}}, {2, {3, 4}}},
};

static void einsum(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof einsum_cases / sizeof *einsum_cases; i++) {
        const einsum_case *c = &einsum_cases[i];
        fixture f;
        int in[3], out;
        fixture_open(&f, 50 + i);
        for (int k = 0; k < c->n; k++) {
            in[k] = fixture_value(&f, c->in[k]);
        }
        out = fixture_value(&f, c->out);
        hth_node *n = fixture_node(&f, HTH_OP_EINSUM, in, c->n, &out, 1);
        hth_node_set_str(n, "equation", c->equation);
        rare_case(&f, 3e-6);
    }
}

static int typed_value(fixture *f, hth_dtype dt, hth_shape shape)
{
    int v;
    assert_int_equal(hth_graph_add_value(f->graph, NULL, dt, &shape, &v), HTH_OK);
    return v;
}

static void makes(void **state)
{
    (void)state;
    static const hth_dtype types[] = {HTH_DT_F32, HTH_DT_F64, HTH_DT_I16,
                                      HTH_DT_I32, HTH_DT_I64, HTH_DT_BOOL};
    static const int64_t diagonals[] = {0, 3, -2, 100, -100, INT64_MAX};
    for (size_t i = 0; i < 6; i++) {
        fixture f;
        hth_dtype dt = types[i];
        fixture_open(&f, i);
        int in = fixture_value(&f, SHAPE(9, 301)), out = typed_value(&f, dt, SHAPE(9, 301));
        hth_node_set_int(fixture_node(&f, HTH_OP_EYE_LIKE, &in, 1, &out, 1), "k", diagonals[i]);
        rare_case(&f, 0);

        const double d = 2.5; // the value's bytes are those of any type
        hth_const *value;
        fixture_open(&f, i);
        in = fixture_const_of(&f, HTH_DT_I64, SHAPE(2), (int64_t[]){33, 5});
        out = typed_value(&f, dt, SHAPE(33, 5));
        hth_node *n = fixture_node(&f, HTH_OP_CONSTANT_OF_SHAPE, &in, 1, &out, 1);
        assert_int_equal(hth_const_new(dt, &(hth_shape){1, {1}},
                                       dt == HTH_DT_BOOL ? (void *)"\1" : (void *)&d, &value),
                         HTH_OK);
        if (i % 2 == 0) {
            hth_attr a = {.name = hth_strdup("value"), .type = HTH_ATTR_TENSOR};
            a.u.tensor = hth_const_hold(value);
            assert_int_equal(hth_node_put_attr(n, a), HTH_OK);
        }
        hth_const_rele(value);
        rare_case(&f, 0);

        if (dt == HTH_DT_BOOL) {
            continue;
        }
        const float ff[2] = {0.1F, -0.3F};
        const double fd[2] = {0.1, -0.3};
        const int64_t whole[2] = {-70, 3};
        const void *from = whole;
        if (dt == HTH_DT_F32 || dt == HTH_DT_F64) {
            from = dt == HTH_DT_F32 ? (const void *)ff : fd;
        }
        size_t step = dt == HTH_DT_F32 || dt == HTH_DT_F64 ? hth_dtype_bytes(dt) : sizeof *whole;
        fixture_open(&f, i);
        int three[3] = {
            fixture_const_of(&f, dt, (hth_shape){.rank = 0}, from), 0,
            fixture_const_of(&f, dt, (hth_shape){.rank = 0}, (const char *)from + step)};
        three[1] = three[2]; // the limit, which the result's shape has said
        out = typed_value(&f, dt, SHAPE(1500));
        fixture_node(&f, HTH_OP_RANGE, three, 3, &out, 1);
        rare_case(&f, 0);
    }
}

// A condition as long as the axis and shorter, at the front, in the middle, flat.
static void compress(void **state)
{
    (void)state;
    static const int64_t axes[] = {0, 1, -1, 9}, sizes[] = {5, 8, 30, 600};
    static const int dims[] = {0, 1, 2, 0}; // of the result
    for (size_t i = 0; i < 8; i++) {
        fixture f;
        bool keep[700] = {false};
        int64_t axis = axes[i % 4], taken = 0, n = sizes[i % 4];
        hth_shape x = SHAPE(5, 9, 31), y = x;
        for (int64_t k = 0; k < n; k++) {
            keep[k] = (k * 7 + (int64_t)i) % 3 != 0;
            taken += keep[k];
        }
        fixture_open(&f, i);
        hth_dtype dt = i < 4 ? HTH_DT_F32 : HTH_DT_BOOL;
        y = axis == 9 ? SHAPE(taken) : y;
        y.dim[dims[i % 4]] = taken;
        int in[2] = {typed_value(&f, dt, x), fixture_const_of(&f, HTH_DT_BOOL, SHAPE(n), keep)};
        int out = typed_value(&f, dt, y);
        f.limit = 2;
        hth_node *node = fixture_node(&f, HTH_OP_COMPRESS, in, 2, &out, 1);
        if (axis != 9) {
            hth_node_set_int(node, "axis", axis);
        }
        rare_case(&f, 0);
    }
}

static void dropout_of_inference(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        fixture f;
        hth_kernel *k;
        fixture_open(&f, 3);
        int in[3] = {
            fixture_value(&f, SHAPE(3, 67)), fixture_const(&f, (hth_shape){.rank = 0}),
            i == 0 ? -1
                   : fixture_const_of(&f, HTH_DT_BOOL, (hth_shape){.rank = 0}, i == 1 ? "" : "\1")};
        int out[2] = {fixture_value(&f, SHAPE(3, 67)), typed_value(&f, HTH_DT_BOOL, SHAPE(3, 67))};
        const hth_node *n = fixture_node(&f, HTH_OP_DROPOUT, in, 3, out, 2);
        if (i < 2) {
            rare_case(&f, 0);
            continue;
        }
        assert_int_equal(cuda_test_prepare(f.graph, n, NULL, &k), HTH_ENOTSUP);
        assert_non_null(strstr(hth_err_detail(), "training_mode"));
        fixture_close(&f);
    }
}

static void transposed_of_a_length(void **state)
{
    (void)state;
    for (size_t i = 0; i < TRANSPOSED_CASES - 1; i++) { // the last one's pads would be negative
        fixture f;
        transposed_open(&f, i);
        fixture_check(&f, NULL, false, 1e-5);
        fixture_close(&f);
    }
}

static void norms(void **state)
{
    (void)state;
    static const hth_op ops[] = {HTH_OP_LP_NORMALIZATION, HTH_OP_MEAN_VARIANCE_NORMALIZATION,
                                 HTH_OP_GLOBAL_LP_POOL, HTH_OP_HARDMAX};
    for (size_t i = 0; i < 4 * 6; i++) {
        fixture f;
        hth_op op = ops[i / 6];
        hth_shape x = i % 2 ? SHAPE(3, 5, 9, 70) : SHAPE(2, 4, 30, 3), y = x;
        fixture_open(&f, 70 + i);
        y.dim[2] = y.dim[3] = op == HTH_OP_GLOBAL_LP_POOL ? 1 : y.dim[2];
        y.dim[3] = op == HTH_OP_GLOBAL_LP_POOL ? 1 : x.dim[3];
        int in = fixture_value(&f, x), out = fixture_value(&f, y);
        hth_node *n = fixture_node(&f, op, &in, 1, &out, 1);
        hth_node_set_int(n, "p", 1 + (int64_t)(i % 3));
        if (op == HTH_OP_LP_NORMALIZATION) {
            hth_node_set_int(n, "p", 1 + (int64_t)(i % 2));
        }
        if (op == HTH_OP_MEAN_VARIANCE_NORMALIZATION && i % 3 > 0) {
            hth_node_set_ints(n, "axes", (int64_t[]){i % 3 == 1 ? -1 : 1, 2}, (int)(i % 3));
        }
        if (op != HTH_OP_MEAN_VARIANCE_NORMALIZATION) {
            hth_node_set_int(n, "axis", (int64_t)(i % 4) - 2);
        }
        f.grid = op == HTH_OP_HARDMAX ? 0.25F : 0; // equal ones
        rare_case(&f, 2e-6);
    }
}

// Three and four dimensions, interleaved or not, all of a head or a part, positions given or not.
static void rotary(void **state)
{
    (void)state;
    for (size_t i = 0; i < 32; i++) {
        fixture f;
        bool flat = i % 2, given = i / 4 % 2;
        int64_t batch = 2, heads = 3, len = 5, size = i / 16 ? 10 : 7, turned = i / 8 % 2 ? 4 : 0;
        size += turned == 0 ? size % 2 : 0;
        int64_t half = (turned > 0 ? turned : size) / 2, rows = 11;
        hth_shape x = flat ? SHAPE(batch, len, heads * size) : SHAPE(batch, heads, len, size);
        hth_shape table = given ? SHAPE(rows, half) : SHAPE(batch, len, half);
        fixture_open(&f, 90 + i);
        f.limit = rows;
        int in[4] = {fixture_value(&f, x), fixture_value(&f, table), fixture_value(&f, table),
                     given ? typed_value(&f, HTH_DT_I64, SHAPE(batch, len)) : -1};
        int out = fixture_value(&f, x);
        hth_node *n = fixture_node(&f, HTH_OP_ROTARY_EMBEDDING, in, 4, &out, 1);
        hth_node_set_int(n, "interleaved", i / 2 % 2);
        hth_node_set_int(n, "num_heads", heads);
        hth_node_set_int(n, "rotary_embedding_dim", turned);
        rare_case(&f, 1e-6);
    }
}

static void determinants(void **state)
{
    (void)state;
    for (size_t i = 0; i < 10; i++) {
        fixture f;
        int64_t size = (int64_t)(i / 2) + (i / 2 == 4 ? 8 : 1);
        hth_shape x = i % 4 < 2 ? SHAPE(3, 2, size, size) : SHAPE(size, size), y = x;
        y.rank -= 2;
        bool grad = i % 2;
        fixture_open(&f, 110 + i);
        f.grid = i % 3 == 0 ? 0.5F : 0; // some are singular
        int in[2] = {fixture_value(&f, grad ? y : x), grad ? fixture_value(&f, x) : -1};
        int out = fixture_value(&f, grad ? x : y);
        fixture_node(&f, grad ? HTH_OP_DET_GRAD : HTH_OP_DET, in, grad ? 2 : 1, &out, 1);
        rare_case(&f, 1e-6);
    }
}

static int rare_ints(fixture *f, const int64_t *v, int n)
{
    return fixture_const_of(f, HTH_DT_I64, SHAPE(n), v);
}

// One of a Split's results is empty; the others are not.
static void empty_chunks(void **state)
{
    (void)state;
    static const int64_t sizes[3] = {0, 4, 2};
    fixture f;
    fixture_open(&f, 130);
    int in[2] = {fixture_value(&f, SHAPE(3, 6, 2)), rare_ints(&f, sizes, 3)};
    int out[3];
    for (int i = 0; i < 3; i++) {
        out[i] = fixture_value(&f, SHAPE(3, sizes[i], 2));
    }
    hth_node_set_int(fixture_node(&f, HTH_OP_SPLIT, in, 2, out, 3), "axis", 1);
    rare_case(&f, 0);
}

// Numbers of every type, from bytes: floats with NaN and infinities among them.
static int typed_numbers(fixture *f, hth_dtype dt, hth_shape shape)
{
    static const float marks[] = {0, -2, 3, 3, NAN, 1, -INFINITY, 2.5F, 60000, -0.125F};
    int64_t n = hth_shape_elements(&shape);
    char *p = hth_calloc((size_t)n, 8);
    for (int64_t i = 0; i < n; i++) {
        float x = i % 5 == 4 && i % 3 != 0 ? marks[i % 10] : marks[(i * 7 + i / 4) % 4];
        int64_t k = i * 2654435761 % 251 - (hth_dtype_is_float(dt) ? 0 : 100);
        if (dt == HTH_DT_U64 && i % 4 == 1) {
            k = (k & INT64_MAX) - INT64_MAX - 1;
        } else if (dt == HTH_DT_BOOL) {
            k &= 1;
        }
        double wide = (double)x * 1.0000000001;
        uint16_t half = dt == HTH_DT_F16 ? hth_f32_to_f16(x) : hth_f32_to_bf16(x);
        size_t bytes = hth_dtype_bytes(dt);
        const void *from = &k;
        if (dt == HTH_DT_F32) {
            from = &x;
        } else if (dt == HTH_DT_F64) {
            from = &wide;
        } else if (bytes == 2 && hth_dtype_is_float(dt)) {
            from = &half;
        }
        memcpy(p + (size_t)i * bytes, from, bytes);
    }
    int v = fixture_const_of(f, dt, shape, p);
    hth_free(p);
    return v;
}

static const hth_dtype typed_types[] = {HTH_DT_F32, HTH_DT_F64, HTH_DT_F16, HTH_DT_BF16,
                                        HTH_DT_I64, HTH_DT_I32, HTH_DT_U64, HTH_DT_U8,
                                        HTH_DT_I8,  HTH_DT_I16, HTH_DT_U32, HTH_DT_U16};

// The bits of the reference's results, NaN where that has one.
static void typed_check(fixture *f)
{
    hth_graph *g = f->graph;
    const hth_node *n = &g->nodes[f->node];
    hth_tensor in[3] = {{0}}, out = {0};
    void *from[3] = {NULL}, *to;
    hth_kernel *k;
    for (int i = 0; i < n->n_inputs; i++) {
        const hth_value *v = n->inputs[i] < 0 ? NULL : &g->values[n->inputs[i]];
        const void *data = NULL;
        if (v != NULL) {
            assert_int_equal(hth_const_map(v->constant, &data), HTH_OK);
            in[i] = (hth_tensor){.dtype = v->dtype, .shape = v->shape, .bytes = v->constant->bytes};
            in[i].data = from[i] = (void *)(uintptr_t)data;
        }
    }
    const hth_value *y = &g->values[n->outputs[0]];
    out = (hth_tensor){.dtype = y->dtype, .shape = y->shape};
    out.bytes = (size_t)hth_shape_elements(&y->shape) * hth_dtype_bytes(y->dtype);
    out.data = fixture_buffer(out.bytes);
    to = fixture_buffer(out.bytes);
    assert_int_equal(hth_ref_eval(NULL, g, n, in, &out), HTH_OK);
    if (cuda_test_prepare(g, n, NULL, &k) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    assert_int_equal(k->run(k, &(hth_kernel_args){from, &to, NULL, NULL}), HTH_OK);
    hth_kernel_close(k);
    if (memcmp(out.data, to, out.bytes) != 0) {
        fail_msg("%s of %s differs", hth_op_name(n->op), hth_dtype_name(in[0].dtype));
    }
    hth_free(out.data);
    hth_free(to);
    for (int i = 0; i < n->n_inputs; i++) {
        if (n->inputs[i] >= 0) {
            hth_const_unmap(g->values[n->inputs[i]].constant);
        }
    }
    fixture_close(f);
}

// ArgMax, ArgMin and reductions that are exact in any order.
static void typed_reductions(void **state)
{
    (void)state;
    static const hth_op ops[] = {HTH_OP_ARG_MAX,    HTH_OP_ARG_MIN,    HTH_OP_REDUCE_MAX,
                                 HTH_OP_REDUCE_MIN, HTH_OP_REDUCE_SUM, HTH_OP_REDUCE_L1,
                                 HTH_OP_REDUCE_PROD};
    for (size_t i = 0; i < 7 * sizeof typed_types / sizeof *typed_types; i++) {
        hth_dtype dt = typed_types[i / 7];
        hth_op op = ops[i % 7];
        bool arg = i % 7 < 2;
        if (!arg && i % 7 > 3 && hth_dtype_is_float(dt)) {
            continue;
        }
        fixture f;
        int out, axis = 1;
        fixture_open(&f, 140 + i);
        int in[2] = {typed_numbers(&f, dt, SHAPE(6, 5, 4)), -1};
        in[1] = arg ? -1 : rare_ints(&f, (int64_t[]){axis}, 1);
        hth_shape y = SHAPE(6, 1, 4);
        assert_int_equal(hth_graph_add_value(f.graph, NULL, arg ? HTH_DT_I64 : dt, &y, &out),
                         HTH_OK);
        hth_node *n = fixture_node(&f, op, in, arg ? 1 : 2, &out, 1);
        hth_node_set_int(n, "axis", axis);
        hth_node_set_int(n, "select_last_index", (int64_t)(i / 7 % 2));
        typed_check(&f);
    }
}

// TopK of every type, which keeps the order of equal ones; NaN is above everything.
static void typed_top(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * sizeof typed_types / sizeof *typed_types; i++) {
        fixture f;
        int out[2];
        hth_dtype dt = typed_types[i / 2];
        fixture_open(&f, 500 + i);
        int in[2] = {typed_numbers(&f, dt, SHAPE(3, 20, 2)), rare_ints(&f, (int64_t[]){5}, 1)};
        hth_shape y = SHAPE(3, 5, 2);
        assert_int_equal(hth_graph_add_value(f.graph, NULL, dt, &y, &out[0]), HTH_OK);
        hth_node *n = fixture_node(&f, HTH_OP_TOP_K, in, 2, out, 1);
        hth_node_set_int(n, "axis", 1);
        hth_node_set_int(n, "largest", (int64_t)(i % 2));
        typed_check(&f);
    }
}

// Casts from each type to each other that holds the numbers, and Tile of them.
static void typed_moves(void **state)
{
    (void)state;
    const size_t types = sizeof typed_types / sizeof *typed_types;
    for (size_t i = 0; i < types * types; i++) {
        hth_dtype from = typed_types[i / types], to = typed_types[i % types];
        bool narrow = hth_dtype_is_float(from) && !hth_dtype_is_float(to); // no such number
        fixture f;
        int out;
        hth_shape x = SHAPE(3, 4, 5), y = from == to ? SHAPE(6, 4, 15) : x;
        fixture_open(&f, 300 + i);
        int in[2] = {typed_numbers(&f, from, x), -1};
        in[1] = from == to ? rare_ints(&f, (int64_t[]){2, 1, 3}, 3) : -1;
        assert_int_equal(hth_graph_add_value(f.graph, NULL, to, &y, &out), HTH_OK);
        hth_node *n = fixture_node(&f, from == to ? HTH_OP_TILE : HTH_OP_CAST, in,
                                   from == to ? 2 : 1, &out, 1);
        hth_node_set_int(n, "to", to);
        if (narrow) {
            fixture_close(&f);
        } else {
            typed_check(&f);
        }
    }
}

typedef struct resize_case {
    hth_shape x;
    float scale[5];
} resize_case;

static const resize_case resize_cases[] = {
    {{4, {2, 3, 7, 9}}, {1, 1, 1.5F, 0.6F}},       {{3, {1, 2, 8}}, {1, 1, 2.3F}},
    {{5, {1, 2, 3, 4, 5}}, {1, 1, 2, 0.5F, 1.4F}}, {{4, {2, 5, 6, 3}}, {1, 1.7F, 0.5F, 1}},
    {{4, {3, 4, 2, 3}}, {2, 0.75F, 1, 1}},
};

// Case i of the modes, coordinates and ways to round; false: ONNX has no such thing.
static bool resize_attributes(hth_node *node, size_t i)
{
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    static const char *const coordinates[] = {"half_pixel",         "pytorch_half_pixel",
                                              "align_corners",      "asymmetric",
                                              "tf_crop_and_resize", "half_pixel_symmetric"};
    static const char *const nearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor",
                                          "ceil"};
    size_t mode = i % 3, how = i / 18;
    hth_node_set_str(node, "mode", modes[mode]);
    hth_node_set_str(node, "coordinate_transformation_mode", coordinates[i / 3 % 6]);
    hth_node_set_str(node, "nearest_mode", nearest[how % 4]);
    hth_node_set_int(node, "antialias", mode > 0 && how % 2 == 1);
    hth_node_set_int(node, "exclude_outside", mode == 2 && how / 2 == 1);
    hth_node_set_float(node, "extrapolation_value", 3.5F);
    hth_node_set_float(node, "cubic_coeff_a", how == 3 ? -0.5F : -0.75F);
    return mode == 0 || how < (mode == 1 ? 2 : 4);
}

// All modes with all coordinates, of several dimensions, and their gradients.
static void resizes(void **state)
{
    (void)state;
    const size_t shapes = sizeof resize_cases / sizeof *resize_cases;
    for (size_t i = 0; i < 72 * shapes * 2; i++) {
        const resize_case *c = &resize_cases[i / 72 % shapes];
        bool grad = i / 72 / shapes == 1;
        fixture f;
        hth_shape y = c->x;
        float roi[10];
        fixture_open(&f, 200 + i);
        for (int d = 0; d < y.rank; d++) {
            y.dim[d] = (int64_t)floorf((float)y.dim[d] * c->scale[d]);
            roi[d] = c->scale[d] == 1 ? 0 : -0.1F;
            roi[y.rank + d] = c->scale[d] == 1 ? 1 : 0.8F;
        }
        int in[3] = {fixture_value(&f, grad ? y : c->x),
                     fixture_const_of(&f, HTH_DT_F32, SHAPE(2 * y.rank), roi),
                     fixture_const_of(&f, HTH_DT_F32, SHAPE(y.rank), c->scale)};
        int out = fixture_value(&f, grad ? c->x : y);
        hth_node *n = fixture_node(&f, grad ? HTH_OP_RESIZE_GRAD : HTH_OP_RESIZE, in, 3, &out, 1);
        if (resize_attributes(n, i % 72)) {
            fixture_check(&f, NULL, false, 2e-6);
        }
        fixture_close(&f);
    }
}

static void refused_none(void **state)
{
    (void)state;
    assert_int_equal(cuda_test_refused, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grid_sample),
        cmocka_unit_test(grid_sample_grad),
        cmocka_unit_test(einsum),
        cmocka_unit_test(makes),
        cmocka_unit_test(compress),
        cmocka_unit_test(dropout_of_inference),
        cmocka_unit_test(transposed_of_a_length),
        cmocka_unit_test(norms),
        cmocka_unit_test(rotary),
        cmocka_unit_test(determinants),
        cmocka_unit_test(empty_chunks),
        cmocka_unit_test(typed_reductions),
        cmocka_unit_test(typed_moves),
        cmocka_unit_test(typed_top),
        cmocka_unit_test(resizes),
        cmocka_unit_test(refused_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
