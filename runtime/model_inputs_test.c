// SPDX-License-Identifier: Apache-2.0
// Synthetic inputs: whatever a model's attributes and signature claim, they stay inside its tables
// and within limits, and are made in one pass.
#include "runtime/model.h"

#include "base/settings.h"
#include "graph/test_eval.h"

#define N 64

static void model_close(hth_model *model, hth_tensor *in, int n)
{
    for (int i = 0; i < n; i++) {
        hth_free(in[i].data);
    }
    hth_graph_free(model->source.graph);
}

// The largest index for a table [4, 7] read along `axis`, through a Cast.
static int64_t largest_index(int64_t axis)
{
    hth_model m = {.name = "m", .max_batch = -1};
    hth_graph *g;
    hth_tensor in[2];
    int64_t largest = 0;
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    m.source.graph = g;
    int index = input(g, "i", HTH_DT_I64, (hth_shape){1, {N}});
    int table = input(g, "x", HTH_DT_F32, (hth_shape){2, {4, 7}});
    int narrow = node(g, HTH_OP_CAST, index, -1, -1);
    int y = node(g, HTH_OP_GATHER, table, narrow, -1);
    assert_int_equal(hth_node_set_int(last(g), "axis", axis), HTH_OK);
    assert_int_equal(hth_graph_add_output(g, y), HTH_OK);
    assert_int_equal(hth_model_synthetic(&m, 1, false, in), HTH_OK);
    for (int i = 0; i < N; i++) {
        int64_t at = ((const int64_t *)in[0].data)[i];
        assert_true(at >= 0);
        largest = at > largest ? at : largest;
    }
    model_close(&m, in, 2);
    return largest;
}

static void test_axes(void **state)
{
    assert_int_equal(largest_index(0), 3);
    assert_int_equal(largest_index(1), 6);
    assert_int_equal(largest_index(-1), 6);
    assert_int_equal(largest_index(-2), 3);
    const int64_t none[] = {INT64_MIN, -((int64_t)1 << 40), -1000, -3, 2, 1000, INT64_MAX};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_int_equal(largest_index(none[i]), 1); // as where there is no table
    }
}

// A chain that no stack and no pass over all nodes for each node would survive.
static void test_chain(void **state)
{
    hth_model m = {.name = "m", .max_batch = -1};
    hth_graph *g;
    hth_tensor in[1];
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    m.source.graph = g;
    int at = input(g, "i", HTH_DT_I64, (hth_shape){1, {N}});
    for (int i = 0; i < 300000; i++) {
        at = node(g, HTH_OP_CAST, at, -1, -1);
    }
    assert_int_equal(hth_graph_add_output(g, at), HTH_OK);
    assert_int_equal(hth_model_synthetic(&m, 1, false, in), HTH_OK);
    model_close(&m, in, 1);
}

// A signature may claim any size: that costs no memory before a request brings such an input.
static void test_size(void **state)
{
    hth_model m = {.name = "m", .max_batch = -1};
    hth_graph *g;
    hth_tensor in[2] = {{.data = NULL}};
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    m.source.graph = g;
    input(g, "large", HTH_DT_F32, (hth_shape){2, {HTH_DIM_SYMBOL(0), (int64_t)1 << 36}});
    input(g, "small", HTH_DT_F32, (hth_shape){1, {HTH_DIM_SYMBOL(0)}});
    assert_int_equal(hth_model_synthetic(&m, 3, false, in), HTH_OK);
    assert_null(in[0].data);
    assert_non_null(in[1].data);
    assert_int_equal(in[0].bytes, (size_t)3 << 38);
    hth_free(in[1].data);
    in[1].data = NULL;
    assert_int_equal(hth_model_synthetic(&m, 3, true, in), HTH_ETOOBIG);
    assert_non_null(strstr(hth_err_detail(), "limits.message_bytes"));
    model_close(&m, in, 2);
}

// An input that the file gives an initializer is a constant here: a request that brings it is told
// so.
static void test_constant(void **state)
{
    hth_model m = {.name = "m", .max_batch = -1};
    hth_graph *g;
    float one = 1;
    hth_tensor out[1];
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    m.source.graph = g;
    int x = input(g, "x", HTH_DT_F32, (hth_shape){1, {1}});
    int w = constant(g, HTH_DT_F32, (hth_shape){1, {1}}, &one);
    g->values[w].initializer = 1;
    assert_int_equal(hth_graph_add_output(g, node(g, HTH_OP_ADD, x, w, -1)), HTH_OK);
    hth_tensor t = {.dtype = HTH_DT_F32, .shape = {1, {1}}, .data = &one, .bytes = sizeof one};
    hth_request_tensor in[] = {{.name = "x", .t = t}, {.name = g->values[w].name, .t = t}};
    char want[128];
    snprintf(want, sizeof want,
             "'%s' is a constant of model 'm' (it has an initializer), not an input",
             g->values[w].name);
    assert_int_equal(hth_model_bind(&m, in, 2, out), HTH_EINVAL);
    assert_string_equal(hth_err_detail(), want);
    in[1].name = "y";
    assert_int_equal(hth_model_bind(&m, in, 2, out), HTH_EINVAL);
    assert_string_equal(hth_err_detail(),
                        "expected 1 inputs but got 2 inputs for model 'm': 'x' FP32 [1]");
    assert_int_equal(hth_model_bind(&m, in, 1, out), HTH_OK);
    hth_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_axes),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_constant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
