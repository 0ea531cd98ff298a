// SPDX-License-Identifier: Apache-2.0
// kernels/ref/nn_test.c - the kernels that compute in double, against PyTorch
// (tests/data/nn_cases.h) and by hand.
//
// ONNX's own node tests cover the ordinary uses; here is what they leave out: groups with dilation
// in three dimensions, sequences of different lengths in both directions, layouts, strided
// attention, failing allocations.
#include "base/alloc.h"
#include "graph/attention.h"
#include "kernels/ref/ref.h"
#include "tests/data/nn_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define SHAPE(...)                                                                                 \
    ((hth_shape){.rank = (int)COUNT(((int64_t[]){__VA_ARGS__})), .dim = {__VA_ARGS__}})

// One node with its operands. Outputs start as 0x55 bytes.
typedef struct one {
    hth_graph *g;
    hth_node *n;
    int n_in, n_out, in_value[8], out_value[8];
    hth_tensor in[8], out[8];
} one;

static void one_add(one *o, hth_dtype dt, hth_shape shape, bool is_input)
{
    int *n = is_input ? &o->n_in : &o->n_out;
    int *value = is_input ? o->in_value : o->out_value;
    hth_tensor *t = is_input ? &o->in[*n] : &o->out[*n];
    assert_int_equal(hth_graph_add_value(o->g, NULL, dt, &shape, &value[*n]), HTH_OK);
    *t = (hth_tensor){.dtype = dt, .shape = shape};
    assert_int_equal(hth_tensor_bytes(dt, &shape, HTH_LAYOUT_PLAIN, &t->bytes), HTH_OK);
    t->data = hth_alloc(t->bytes ? t->bytes : 1);
    assert_non_null(t->data);
    memset(t->data, 0x55, t->bytes);
    (*n)++;
}

// A float input by the formula that the script knows too.
static void one_in(one *o, int seed, hth_shape shape)
{
    one_add(o, HTH_DT_F32, shape, true);
    float *x = o->in[o->n_in - 1].data;
    for (int64_t i = 0; i < hth_shape_elements(&shape); i++) {
        x[i] = (float)((i * 37 + seed * 101 + i / 7 * 13) % 67 - 33) / 32;
    }
}

static void one_in_data(one *o, hth_dtype dt, hth_shape shape, const void *data)
{
    one_add(o, dt, shape, true);
    memcpy(o->in[o->n_in - 1].data, data, o->in[o->n_in - 1].bytes);
}

static void one_out(one *o, hth_dtype dt, hth_shape shape)
{
    one_add(o, dt, shape, false);
}

static void one_absent(one *o)
{
    o->in_value[o->n_in++] = -1;
}

static one one_new(void)
{
    one o = {0};
    assert_int_equal(hth_graph_new(&o.g), HTH_OK);
    return o;
}

// Attributes are set on o->n between one_node and one_eval.
static void one_node(one *o, hth_op op)
{
    int node;
    assert_int_equal(
        hth_graph_add_node(o->g, op, "node", o->in_value, o->n_in, o->out_value, o->n_out, &node),
        HTH_OK);
    o->n = &o->g->nodes[node];
}

static void one_ints(one *o, const char *name, int n, const int64_t *v)
{
    assert_int_equal(hth_node_set_ints(o->n, name, v, n), HTH_OK);
}
#define INTS(o, name, ...)                                                                         \
    one_ints(o, name, (int)COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})

static hth_err one_run(one *o)
{
    return hth_ref_eval(NULL, o->g, o->n, o->in, o->out);
}

static void one_eval(one *o)
{
    if (one_run(o) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
}

static void one_check(const one *o, int i, const double *want, size_t n)
{
    const hth_tensor *t = &o->out[i];
    assert_int_equal(hth_shape_elements(&t->shape), n);
    for (size_t k = 0; k < n; k++) {
        double have = ref_get_f64(t->dtype, t->data, (int64_t)k);
        if (!(fabs(have - want[k]) <= 2e-6 * (1 + fabs(want[k])))) {
            fail_msg("output %d, element %zu: %.9g instead of %.9g", i, k, have, want[k]);
        }
    }
}
#define CHECK(o, i, want) one_check(o, i, want, COUNT(want))

static void one_free(one *o)
{
    for (int i = 0; i < 8; i++) {
        hth_free(o->in[i].data);
        hth_free(o->out[i].data);
    }
    hth_graph_free(o->g);
}

static one conv3d_case(void)
{
    one o = one_new();
    one_in(&o, 1, SHAPE(2, 4, 5, 6, 7));
    one_in(&o, 2, SHAPE(6, 2, 2, 3, 2));
    one_in(&o, 3, SHAPE(6));
    one_out(&o, HTH_DT_F32, SHAPE(2, 6, 5, 2, 4));
    one_node(&o, HTH_OP_CONV);
    INTS(&o, "strides", 1, 2, 2);
    INTS(&o, "pads", 1, 0, 2, 1, 0, 2);
    INTS(&o, "dilations", 2, 1, 3);
    assert_int_equal(hth_node_set_int(o.n, "group", 2), HTH_OK);
    return o;
}

static void test_conv3d(void **state)
{
    one o = conv3d_case();
    one_eval(&o);
    CHECK(&o, 0, nn_conv3d);
    one_free(&o);
}

static void test_conv_transpose(void **state)
{
    one o = one_new();
    one_in(&o, 1, SHAPE(2, 4, 3, 4));
    one_in(&o, 2, SHAPE(4, 3, 3, 2));
    one_in(&o, 3, SHAPE(6));
    one_out(&o, HTH_DT_F32, SHAPE(2, 6, 8, 13));
    one_node(&o, HTH_OP_CONV_TRANSPOSE);
    INTS(&o, "strides", 2, 3);
    INTS(&o, "pads", 1, 0, 1, 0);
    INTS(&o, "dilations", 2, 1);
    INTS(&o, "output_padding", 1, 2);
    assert_int_equal(hth_node_set_int(o.n, "group", 2), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_conv_transpose2d);
    one_free(&o);
}

// Every allocation of a convolution fails once: an error, and nothing leaks.
static void test_allocations_fail(void **state)
{
    one o = conv3d_case();
    int64_t live = hth_alloc_live();
    hth_err err = HTH_ENOMEM;
    int failures = 0;
    for (uint64_t i = 1; err != HTH_OK; i++) {
        hth_fault_alloc(i);
        err = one_run(&o);
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        assert_int_equal(hth_alloc_live(), live);
        failures += err != HTH_OK;
    }
    assert_true(failures >= 5);
    CHECK(&o, 0, nn_conv3d);
    one_free(&o);
}

static void test_shapes_are_checked(void **state)
{
    one o = conv3d_case();
    assert_int_equal(hth_node_set_int(o.n, "group", 3), HTH_OK);
    assert_int_equal(one_run(&o), HTH_EINVAL);
    one_free(&o);
}

static void test_pools(void **state)
{
    one o = one_new();
    one_in(&o, 1, SHAPE(1, 2, 5, 6, 7));
    one_out(&o, HTH_DT_F32, SHAPE(1, 2, 3, 4, 2));
    one_out(&o, HTH_DT_I64, SHAPE(1, 2, 3, 4, 2));
    one_node(&o, HTH_OP_MAX_POOL);
    INTS(&o, "kernel_shape", 2, 3, 2);
    INTS(&o, "strides", 2, 1, 3);
    INTS(&o, "pads", 1, 1, 0, 1, 1, 0);
    INTS(&o, "dilations", 1, 2, 2);
    one_eval(&o);
    CHECK(&o, 0, nn_max_pool3d);
    CHECK(&o, 1, nn_max_pool3d_indices);
    one_free(&o);

    o = one_new();
    one_in(&o, 1, SHAPE(1, 2, 6, 7));
    one_out(&o, HTH_DT_F32, SHAPE(1, 2, 4, 4));
    one_node(&o, HTH_OP_AVERAGE_POOL);
    INTS(&o, "kernel_shape", 3, 3);
    INTS(&o, "strides", 2, 2);
    INTS(&o, "pads", 1, 1, 1, 1);
    assert_int_equal(hth_node_set_int(o.n, "count_include_pad", 1), HTH_OK);
    assert_int_equal(hth_node_set_int(o.n, "ceil_mode", 1), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_average_pool2d_ceil);
    one_free(&o);
}

static void test_norms(void **state)
{
    one o = one_new();
    one_in(&o, 1, SHAPE(2, 3, 4));
    one_in(&o, 2, SHAPE(3, 4));
    one_in(&o, 3, SHAPE(3, 4));
    one_out(&o, HTH_DT_F32, SHAPE(2, 3, 4));
    one_node(&o, HTH_OP_LAYER_NORMALIZATION);
    assert_int_equal(hth_node_set_int(o.n, "axis", 1), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_layer_norm);
    one_free(&o);

    o = one_new(); // rows of nothing have means all the same
    one_in(&o, 1, SHAPE(3, 0, 4));
    one_in(&o, 2, SHAPE(0, 4));
    one_in(&o, 3, SHAPE(0, 4));
    one_out(&o, HTH_DT_F32, SHAPE(3, 0, 4));
    one_out(&o, HTH_DT_F32, SHAPE(3, 1, 1));
    one_node(&o, HTH_OP_LAYER_NORMALIZATION);
    assert_int_equal(hth_node_set_int(o.n, "axis", 1), HTH_OK);
    one_eval(&o);
    for (int i = 0; i < 3; i++) {
        assert_true(((const float *)o.out[1].data)[i] == 0);
    }
    one_free(&o);

    o = one_new();
    one_in(&o, 1, SHAPE(2, 6, 5));
    one_in(&o, 2, SHAPE(6));
    one_in(&o, 3, SHAPE(6));
    one_out(&o, HTH_DT_F32, SHAPE(2, 6, 5));
    one_node(&o, HTH_OP_GROUP_NORMALIZATION);
    assert_int_equal(hth_node_set_int(o.n, "num_groups", 3), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_group_norm);
    one_free(&o);

    const float mean[3] = {0, 0, 0}, var[3] = {1, 1, 1};
    o = one_new();
    one_in(&o, 1, SHAPE(2, 3, 4));
    one_in(&o, 2, SHAPE(3));
    one_in(&o, 3, SHAPE(3));
    one_in_data(&o, HTH_DT_F32, SHAPE(3), mean);
    one_in_data(&o, HTH_DT_F32, SHAPE(3), var);
    one_out(&o, HTH_DT_F32, SHAPE(2, 3, 4));
    one_out(&o, HTH_DT_F32, SHAPE(3));
    one_node(&o, HTH_OP_BATCH_NORMALIZATION);
    assert_int_equal(hth_node_set_int(o.n, "training_mode", 1), HTH_OK);
    assert_int_equal(hth_node_set_float(o.n, "momentum", 0.75f), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_batch_norm);
    CHECK(&o, 1, nn_batch_norm_mean);
    one_free(&o);
}

// A bidirectional layer over sequences of lengths 4, 2, 3.
static one recurrent_case(hth_op op, int gates)
{
    const int32_t lengths[3] = {4, 2, 3};
    one o = one_new();
    one_in(&o, 1, SHAPE(4, 3, 3));
    one_in(&o, 2, SHAPE(2, gates * 2, 3));
    one_in(&o, 3, SHAPE(2, gates * 2, 2));
    one_in(&o, 4, SHAPE(2, gates * 4));
    one_in_data(&o, HTH_DT_I32, SHAPE(3), lengths);
    one_in(&o, 5, SHAPE(2, 3, 2));
    if (op == HTH_OP_LSTM) {
        one_in(&o, 6, SHAPE(2, 3, 2));
    }
    one_out(&o, HTH_DT_F32, SHAPE(4, 2, 3, 2));
    one_out(&o, HTH_DT_F32, SHAPE(2, 3, 2));
    if (op == HTH_OP_LSTM) {
        one_out(&o, HTH_DT_F32, SHAPE(2, 3, 2));
    }
    one_node(&o, op);
    assert_int_equal(hth_node_set_str(o.n, "direction", "bidirectional"), HTH_OK);
    assert_int_equal(hth_node_set_int(o.n, "linear_before_reset", 1), HTH_OK);
    return o;
}

static void test_recurrent(void **state)
{
    one o = recurrent_case(HTH_OP_LSTM, 4);
    one_eval(&o);
    CHECK(&o, 0, nn_lstm_y);
    CHECK(&o, 1, nn_lstm_h);
    CHECK(&o, 2, nn_lstm_c);
    one_free(&o);
    o = recurrent_case(HTH_OP_GRU, 3);
    one_eval(&o);
    CHECK(&o, 0, nn_gru_y);
    CHECK(&o, 1, nn_gru_h);
    one_free(&o);
}

static void einsum_case(const char *equation, int n, const hth_shape *in, hth_shape out,
                        const double *want, size_t count)
{
    one o = one_new();
    for (int i = 0; i < n; i++) {
        one_in(&o, i + 1, in[i]);
    }
    one_out(&o, HTH_DT_F32, out);
    one_node(&o, HTH_OP_EINSUM);
    assert_int_equal(hth_node_set_str(o.n, "equation", equation), HTH_OK);
    one_eval(&o);
    one_check(&o, 0, want, count);
    one_free(&o);
}
#define EINSUM(equation, out, want, ...)                                                           \
    einsum_case(equation, (int)COUNT(((hth_shape[]){__VA_ARGS__})), (hth_shape[]){__VA_ARGS__},    \
                out, want, COUNT(want))

static void test_einsum(void **state)
{
    EINSUM("ii->i", SHAPE(4), nn_einsum_diagonal, SHAPE(4, 4));
    EINSUM("ab,bc,dc->da", SHAPE(5, 2), nn_einsum_chain, SHAPE(2, 3), SHAPE(3, 4), SHAPE(5, 4));
    EINSUM("...ij,...kj->k...i", SHAPE(5, 2, 3), nn_einsum_ellipsis, SHAPE(2, 3, 4),
           SHAPE(1, 5, 4));
    EINSUM("ibc, ibd", SHAPE(4, 5), nn_einsum_implicit, SHAPE(3, 2, 4), SHAPE(3, 2, 5));
}

static void test_einsum_refuses(void **state)
{
    const char *const bad[] = {"ij->ii", "ij->k", "ijk->i", "i?->i",
                               "ij->i...j..........................j"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        one o = one_new();
        one_in(&o, 1, SHAPE(3, 3));
        one_out(&o, HTH_DT_F32, SHAPE(3));
        one_node(&o, HTH_OP_EINSUM);
        assert_int_equal(hth_node_set_str(o.n, "equation", bad[i]), HTH_OK);
        assert_int_equal(one_run(&o), HTH_EINVAL);
        one_free(&o);
    }
}

static void matmul_case(hth_shape a, hth_shape b, hth_shape y, const double *want, size_t count)
{
    one o = one_new();
    one_in(&o, 1, a);
    one_in(&o, 2, b);
    one_out(&o, HTH_DT_F32, y);
    one_node(&o, HTH_OP_MAT_MUL);
    one_eval(&o);
    one_check(&o, 0, want, count);
    one_free(&o);
}

static void test_matmul(void **state)
{
    matmul_case(SHAPE(4), SHAPE(2, 3, 4, 5), SHAPE(2, 3, 5), nn_matmul_vector,
                COUNT(nn_matmul_vector));
    matmul_case(SHAPE(2, 1, 3, 4), SHAPE(5, 4, 2), SHAPE(2, 5, 3, 2), nn_matmul_batch,
                COUNT(nn_matmul_batch));

    // (2^53 + 1) * 3 is not a double; integers wrap.
    const int64_t a[2] = {(1ll << 53) + 1, INT64_MAX}, b[2] = {3, 1};
    one o = one_new();
    one_in_data(&o, HTH_DT_I64, SHAPE(1, 2), a);
    one_in_data(&o, HTH_DT_I64, SHAPE(2, 1), b);
    one_out(&o, HTH_DT_I64, SHAPE(1, 1));
    one_node(&o, HTH_OP_MAT_MUL);
    one_eval(&o);
    uint64_t want = ((1ull << 53) + 1) * 3 + INT64_MAX;
    assert_memory_equal(o.out[0].data, &want, sizeof want);
    one_free(&o);
}

static void test_resample(void **state)
{
    const int64_t size[2] = {4, 5}, size3[3] = {5, 3, 7};
    one o = one_new();
    one_in(&o, 1, SHAPE(1, 2, 9, 8));
    one_absent(&o);
    one_absent(&o);
    one_in_data(&o, HTH_DT_I64, SHAPE(2), size);
    one_out(&o, HTH_DT_F32, SHAPE(1, 2, 4, 5));
    one_node(&o, HTH_OP_RESIZE);
    INTS(&o, "axes", -2, -1);
    assert_int_equal(hth_node_set_str(o.n, "mode", "linear"), HTH_OK);
    assert_int_equal(hth_node_set_int(o.n, "antialias", 1), HTH_OK);
    assert_int_equal(hth_node_set_int(o.n, "exclude_outside", 1), HTH_OK); // as PyTorch does
    one_eval(&o);
    CHECK(&o, 0, nn_resize_antialias);
    one_free(&o);

    o = one_new();
    one_in(&o, 1, SHAPE(1, 1, 3, 4, 3));
    one_absent(&o);
    one_absent(&o);
    one_in_data(&o, HTH_DT_I64, SHAPE(3), size3);
    one_out(&o, HTH_DT_F32, SHAPE(1, 1, 5, 3, 7));
    one_node(&o, HTH_OP_RESIZE);
    INTS(&o, "axes", 2, 3, 4);
    assert_int_equal(hth_node_set_str(o.n, "mode", "linear"), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_resize_trilinear);
    one_free(&o);

    o = one_new();
    one_in(&o, 1, SHAPE(1, 2, 3, 4, 5));
    one_in(&o, 2, SHAPE(1, 2, 3, 2, 3));
    float *grid = o.in[1].data;
    for (int i = 0; i < 36; i++) {
        grid[i] *= 1.5f;
    }
    one_out(&o, HTH_DT_F32, SHAPE(1, 2, 2, 3, 2));
    one_node(&o, HTH_OP_GRID_SAMPLE);
    assert_int_equal(hth_node_set_str(o.n, "padding_mode", "reflection"), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_grid_sample3d);
    one_free(&o);
}

static void test_attention(void **state)
{
    one o = one_new();
    one_in(&o, 1, SHAPE(2, 4, 3, 5));
    one_in(&o, 2, SHAPE(2, 2, 6, 5));
    one_in(&o, 3, SHAPE(2, 2, 6, 4));
    one_in(&o, 4, SHAPE(3, 6));
    one_out(&o, HTH_DT_F32, SHAPE(2, 4, 3, 4));
    one_node(&o, HTH_OP_ATTENTION);
    one_eval(&o);
    CHECK(&o, 0, nn_attention_grouped);
    one_free(&o);
}

// Q, K and V are slices of one tensor (batch 2, sequence 3, which 3, head 2, size 4), the result is
// (2, 3, 2, 4).
static void test_fused_attention(void **state)
{
    hth_attention a = {.b0 = 2,
                       .b1 = 2,
                       .t = 3,
                       .s = 3,
                       .d = 4,
                       .e = 4,
                       .scale = 0.5f,
                       .q = {0, {72, 4, 24, 1}},
                       .k = {8, {72, 4, 24, 1}},
                       .v = {16, {72, 4, 24, 1}},
                       .out = {0, {24, 4, 8, 1}}};
    one o = one_new();
    for (int i = 0; i < 3; i++) {
        one_in(&o, 1, SHAPE(2, 3, 3, 2, 4));
    }
    one_out(&o, HTH_DT_F32, SHAPE(2, 3, 2, 4));
    one_node(&o, HTH_OP_FUSED_ATTENTION);
    assert_int_equal(hth_attention_set(o.n, &a), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, nn_attention_fused);
    one_free(&o);
}

static void test_det(void **state)
{
    one o = one_new();
    one_in(&o, 1, SHAPE(3, 4, 4));
    one_out(&o, HTH_DT_F32, SHAPE(3));
    one_node(&o, HTH_OP_DET);
    one_eval(&o);
    CHECK(&o, 0, nn_det);
    one_free(&o);
}

// Softmax of opset 11: everything from the axis on is one row.
static void test_softmax_flatten(void **state)
{
    const float x[4] = {0, 0, 0, 0};
    const double want[4] = {0.25, 0.25, 0.25, 0.25};
    one o = one_new();
    one_in_data(&o, HTH_DT_F32, SHAPE(1, 2, 2), x);
    one_out(&o, HTH_DT_F32, SHAPE(1, 2, 2));
    one_node(&o, HTH_OP_SOFTMAX);
    assert_int_equal(hth_node_set_int(o.n, "axis", 1), HTH_OK);
    assert_int_equal(hth_node_set_int(o.n, "flatten", 1), HTH_OK);
    one_eval(&o);
    CHECK(&o, 0, want);
    one_free(&o);
}

static void topk_case(hth_dtype dt, const void *x, int64_t largest, const double *want)
{
    const int64_t k = 3;
    one o = one_new();
    one_in_data(&o, dt, SHAPE(5), x);
    one_in_data(&o, HTH_DT_I64, SHAPE(1), &k);
    one_out(&o, dt, SHAPE(3));
    one_out(&o, HTH_DT_I64, SHAPE(3));
    one_node(&o, HTH_OP_TOP_K);
    assert_int_equal(hth_node_set_int(o.n, "largest", largest), HTH_OK);
    one_eval(&o);
    one_check(&o, 1, want, 3);
    one_free(&o);
}

static void test_topk(void **state)
{
    const float ties[5] = {1, -0.0f, 1, 0, -2};
    const int64_t big[5] = {1ll << 60, (1ll << 60) + 1, INT64_MIN, INT64_MAX, -1};
    const uint64_t unsig[5] = {1, UINT64_MAX, 1ull << 63, 0, 2};
    topk_case(HTH_DT_F32, ties, 1, (double[]){0, 2, 1});
    topk_case(HTH_DT_F32, ties, 0, (double[]){4, 1, 3});
    topk_case(HTH_DT_I64, big, 1, (double[]){3, 1, 0});
    topk_case(HTH_DT_U64, unsig, 1, (double[]){1, 2, 4});
}

// Two boxes that overlap by more than a half, one apart; the first call asks for the size.
static void test_non_max_suppression(void **state)
{
    const float boxes[12] = {0, 0, 2, 2, 0, 0, 2, 1.5f, 5, 5, 6, 6}, scores[3] = {0.5f, 0.9f, 0.7f},
                iou = 0.5f;
    const int64_t max = 3;
    const double want[6] = {0, 0, 1, 0, 0, 2};
    one o = one_new();
    one_in_data(&o, HTH_DT_F32, SHAPE(1, 3, 4), boxes);
    one_in_data(&o, HTH_DT_F32, SHAPE(1, 1, 3), scores);
    one_in_data(&o, HTH_DT_I64, SHAPE(1), &max);
    one_in_data(&o, HTH_DT_F32, SHAPE(1), &iou);
    one_out(&o, HTH_DT_I64, SHAPE(3, 3));
    one_node(&o, HTH_OP_NON_MAX_SUPPRESSION);
    void *room = o.out[0].data;
    o.out[0].data = NULL;
    one_eval(&o);
    assert_null(o.out[0].data);
    assert_true(hth_shape_equal(&o.out[0].shape, &SHAPE(2, 3)));
    assert_int_equal(o.out[0].bytes, 48);
    o.out[0].data = room;
    one_eval(&o);
    CHECK(&o, 0, want);
    one_free(&o);
}

static void reorder(hth_tensor from, hth_tensor to)
{
    one o = one_new();
    assert_int_equal(hth_graph_add_value(o.g, NULL, from.dtype, &from.shape, &o.in_value[o.n_in++]),
                     HTH_OK);
    assert_int_equal(hth_graph_add_value(o.g, NULL, to.dtype, &to.shape, &o.out_value[o.n_out++]),
                     HTH_OK);
    one_node(&o, HTH_OP_REORDER);
    assert_int_equal(hth_ref_eval(NULL, o.g, o.n, &from, &to), HTH_OK);
    hth_graph_free(o.g);
}

// Plain -> layout -> plain gives the same bytes; the channels' padding holds zeros.
static void test_reorder(void **state)
{
    float x[2 * 11 * 3 * 2], back[132], mid[512];
    hth_shape s = SHAPE(2, 11, 3, 2);
    for (int i = 0; i < 132; i++) {
        x[i] = (float)(i + 1);
    }
    for (hth_layout l = HTH_LAYOUT_C8; l <= HTH_LAYOUT_NHWC; l++) {
        hth_tensor plain = {HTH_DT_F32, HTH_LAYOUT_PLAIN, s, x, sizeof x},
                   other = {HTH_DT_F32, l, s, mid, 0};
        assert_int_equal(hth_tensor_bytes(HTH_DT_F32, &s, l, &other.bytes), HTH_OK);
        assert_true(other.bytes <= sizeof mid);
        memset(mid, 0x55, sizeof mid);
        memset(back, 0x55, sizeof back);
        reorder(plain, other);
        // Element (1, 9, 2, 1) and, in blocked layouts, the padding after the last channel there.
        static const size_t places[] = {[HTH_LAYOUT_C8] = ((1 * 2 + 1) * 6 + 5) * 8 + 1,
                                        [HTH_LAYOUT_C16] = (6 + 5) * 16 + 9,
                                        [HTH_LAYOUT_NHWC] = 11 * 11 + 9};
        size_t at = places[l];
        assert_true(mid[at] == x[66 + 9 * 6 + 5]);
        assert_true(l == HTH_LAYOUT_NHWC || mid[at + 2] == 0);
        plain.data = back;
        reorder(other, plain);
        assert_memory_equal(back, x, sizeof x);
    }
}

static int dropout_kept(int64_t seed, float *y)
{
    float x[1000];
    const float ratio = 0.25f;
    const uint8_t training = 1;
    int kept = 0;
    for (int i = 0; i < 1000; i++) {
        x[i] = 3;
    }
    one o = one_new();
    one_in_data(&o, HTH_DT_F32, SHAPE(1000), x);
    one_in_data(&o, HTH_DT_F32, SHAPE(1), &ratio);
    one_in_data(&o, HTH_DT_BOOL, SHAPE(1), &training);
    one_out(&o, HTH_DT_F32, SHAPE(1000));
    one_out(&o, HTH_DT_BOOL, SHAPE(1000));
    one_node(&o, HTH_OP_DROPOUT);
    assert_int_equal(hth_node_set_int(o.n, "seed", seed), HTH_OK);
    one_eval(&o);
    memcpy(y, o.out[0].data, sizeof x);
    for (int i = 0; i < 1000; i++) {
        bool keep = ((const uint8_t *)o.out[1].data)[i] != 0;
        assert_true(y[i] == (keep ? 4 : 0));
        kept += keep;
    }
    one_free(&o);
    return kept;
}

static void test_dropout(void **state)
{
    float a[1000], b[1000], c[1000];
    int kept = dropout_kept(7, a);
    assert_in_range(kept, 700, 800);
    dropout_kept(7, b);
    assert_memory_equal(a, b, sizeof a);
    dropout_kept(8, c);
    assert_memory_not_equal(a, c, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv3d),
        cmocka_unit_test(test_conv_transpose),
        cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_shapes_are_checked),
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_einsum),
        cmocka_unit_test(test_einsum_refuses),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_resample),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_fused_attention),
        cmocka_unit_test(test_det),
        cmocka_unit_test(test_softmax_flatten),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_non_max_suppression),
        cmocka_unit_test(test_reorder),
        cmocka_unit_test(test_dropout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
