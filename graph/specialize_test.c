// SPDX-License-Identifier: Apache-2.0
// Specialization of small graphs made by hand: what is folded, what is refused, where the model is
// cut.
#include "graph/test_eval.h"

#include <time.h>

#define F32 HTH_DT_F32
#define N   HTH_DIM_SYMBOL(0)

static hth_graph *new_graph(const char *symbol)
{
    hth_graph *g;
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    if (symbol != NULL) {
        g->symbols = hth_calloc(1, sizeof *g->symbols);
        g->symbols[g->n_symbols++] = hth_strdup(symbol);
    }
    return g;
}

static hth_tensor shaped(hth_dtype dt, hth_shape shape)
{
    return (hth_tensor){.dtype = dt, .shape = shape};
}

// Reshape(x, Concat(Unsqueeze(Gather(Shape(x), 0)), [-1])), as exporters write x.view(x.size(0),
// -1).
static hth_graph *flatten_model(void)
{
    hth_graph *g = new_graph("N");
    int x = input(g, "x", F32, (hth_shape){4, {N, 3, 4, 5}});
    int zero = constant(g, HTH_DT_I64, (hth_shape){.rank = 0}, &(int64_t){0});
    int n = node(g, HTH_OP_GATHER, node(g, HTH_OP_SHAPE, x, -1, -1), zero, -1);
    int row = node(g, HTH_OP_UNSQUEEZE, n, ints(g, 1, &(int64_t){0}), -1);
    int shape = node(g, HTH_OP_CONCAT, row, ints(g, 1, &(int64_t){-1}), -1);
    int y = node(g, HTH_OP_RESHAPE, x, shape, -1);
    assert_int_equal(hth_graph_add_output(g, y), HTH_OK);
    return g;
}

static void test_shape_arithmetic_disappears(void **state)
{
    hth_graph *g = flatten_model();
    for (int64_t n = 1; n < 4; n++) {
        hth_tensor x = shaped(F32, (hth_shape){4, {n, 3, 4, 5}});
        hth_stage s;
        assert_int_equal(hth_specialize(g, &x, small_eval, NULL, &s), HTH_OK);
        assert_int_equal(hth_graph_check(s.graph), HTH_OK);
        assert_null(s.rest);
        assert_int_equal(s.graph->n_nodes, 1);
        assert_int_equal(s.n_final, 1);
        assert_int_equal(s.final_index[0], 0);
        assert_int_equal(s.value_inputs, 0);
        assert_true(
            hth_shape_equal(&s.graph->values[s.graph->outputs[0]].shape, &(hth_shape){2, {n, 60}}));
        hth_stage_fini(&s);
    }
    hth_graph_free(g);
}

static void expect_refusal(const hth_graph *graph, const hth_tensor *in, hth_err want,
                           const char *text)
{
    hth_stage s;
    assert_int_equal(hth_specialize(graph, in, small_eval, NULL, &s), want);
    assert_string_equal(hth_err_detail(), text);
    assert_null(s.graph);
}

static void test_inputs_must_agree(void **state)
{
    hth_graph *g = new_graph("N");
    int a = input(g, "a", F32, (hth_shape){2, {N, 3}});
    int b = input(g, "b", F32, (hth_shape){2, {N, 3}});
    assert_int_equal(hth_graph_add_output(g, node(g, HTH_OP_ADD, a, b, -1)), HTH_OK);
    hth_tensor in[2] = {shaped(F32, (hth_shape){2, {2, 3}}), shaped(F32, (hth_shape){2, {4, 3}})};
    expect_refusal(g, in, HTH_EINVAL,
                   "input 'b': dimension 0 ('N') is 4, but 2 in an input before it");
    in[1].shape = (hth_shape){2, {2, 5}};
    expect_refusal(g, in, HTH_EINVAL, "input 'b': dimension 1 is 5, the model expects 3");
    in[1].shape = (hth_shape){1, {2}};
    expect_refusal(g, in, HTH_EINVAL, "input 'b' has the shape [2], the model expects [?,3]");
    in[1] = shaped(HTH_DT_I64, (hth_shape){2, {2, 3}});
    expect_refusal(g, in, HTH_EINVAL, "input 'b' is INT64, the model expects FP32");
    in[1] = shaped(F32, (hth_shape){2, {2, 3}});
    in[0].shape.dim[0] = in[1].shape.dim[0] = INT64_MAX / 2;
    hth_stage s;
    assert_int_equal(hth_specialize(g, in, small_eval, NULL, &s), HTH_ETOOBIG);
    hth_graph_free(g);
}

static void test_contents_of_an_input(void **state)
{
    hth_graph *g = new_graph(NULL);
    int x = input(g, "x", F32, (hth_shape){1, {HTH_DIM_UNKNOWN}});
    int shape = input(g, "shape", HTH_DT_I64, (hth_shape){1, {2}});
    assert_int_equal(hth_graph_add_output(g, node(g, HTH_OP_RESHAPE, x, shape, -1)), HTH_OK);
    int64_t want[2] = {3, -1};
    hth_tensor in[2] = {shaped(F32, (hth_shape){1, {12}}), shaped(HTH_DT_I64, (hth_shape){1, {2}})};
    hth_stage s;
    assert_int_equal(hth_specialize(g, in, small_eval, NULL, &s), HTH_ENOTSUP);
    assert_string_equal(hth_err_detail(),
                        "a shape depends on the contents of input 'shape', which are not known");
    assert_int_equal(s.value_inputs, 2);
    in[1].data = want;
    in[1].bytes = sizeof want;
    assert_int_equal(hth_specialize(g, in, small_eval, NULL, &s), HTH_OK);
    assert_int_equal(s.value_inputs, 2);
    assert_int_equal(s.graph->n_inputs, 2); // the model's inputs, also those that are not read
    assert_int_equal(hth_graph_check(s.graph), HTH_OK);
    assert_true(
        hth_shape_equal(&s.graph->values[s.graph->outputs[0]].shape, &(hth_shape){2, {3, 4}}));
    hth_stage_fini(&s);
    hth_graph_free(g);
}

// y = Relu(x); rows = Transpose(NonZero(y)); z = Gather(y * y, rows). Outputs: z, y.
static hth_graph *staged_model(void)
{
    hth_graph *g = new_graph("N");
    int x = input(g, "x", F32, (hth_shape){1, {N}});
    int y = node(g, HTH_OP_RELU, x, -1, -1);
    int square = node(g, HTH_OP_MUL, y, y, -1);
    int rows = node(g, HTH_OP_TRANSPOSE, node(g, HTH_OP_NON_ZERO, y, -1, -1), -1, -1);
    int z = node(g, HTH_OP_GATHER, square, rows, -1);
    assert_int_equal(hth_graph_add_output(g, z), HTH_OK);
    assert_int_equal(hth_graph_add_output(g, y), HTH_OK);
    return g;
}

static void test_stages(void **state)
{
    hth_graph *g = staged_model();
    float data[6] = {-1, 2, 0, 3, -4, 5}, want[3] = {4, 9, 25};
    hth_tensor x = {F32, HTH_LAYOUT_PLAIN, {1, {6}}, data, sizeof data}, out[3], in[3], last_out[1];
    hth_stage s, t;
    assert_int_equal(hth_specialize(g, &x, small_eval, NULL, &s), HTH_OK);
    assert_int_equal(hth_graph_check(s.graph), HTH_OK);
    assert_int_equal(hth_graph_check(s.rest), HTH_OK);
    assert_int_equal(s.value_inputs, 0);
    assert_int_equal(s.graph->n_nodes, 2); // Relu, Mul
    assert_int_equal(s.graph->n_outputs, 3);
    assert_int_equal(s.n_final, 1);
    assert_int_equal(s.final_index[0], 1);
    assert_int_equal(s.rest->n_inputs, 3); // x, y (awaited: first), y * y
    assert_int_equal(s.rest->n_outputs, 1);

    run_graph(s.graph, &x, out);
    in[0] = x;
    in[1] = out[1];
    in[2] = out[2];
    assert_int_equal(hth_specialize(s.rest, in, small_eval, NULL, &t), HTH_OK);
    assert_null(t.rest);
    assert_int_equal(t.value_inputs, 2);
    assert_int_equal(count_op(t.graph, HTH_OP_NON_ZERO), 0);
    assert_int_equal(t.graph->n_nodes, 1); // Gather with folded indices
    assert_int_equal(hth_graph_check(t.graph), HTH_OK);
    run_graph(t.graph, in, last_out);
    assert_true(hth_shape_equal(&last_out[0].shape, &(hth_shape){2, {3, 1}}));
    assert_memory_equal(last_out[0].data, want, sizeof want);
    for (int i = 0; i < 3; i++) {
        free(out[i].data);
    }
    free(last_out[0].data);
    hth_stage_fini(&s);
    hth_stage_fini(&t);
    hth_graph_free(g);
}

static void test_folding(void **state)
{
    hth_const *folded[2];
    for (int round = 0; round < 2; round++) {
        hth_graph *g = new_graph(NULL);
        float w[6] = {1, 2, 3, 4, 5, 6}, want[6] = {1, 4, 2, 5, 3, 6};
        int calls = 0, x = input(g, "x", F32, (hth_shape){2, {3, 2}});
        int weight = constant(g, F32, (hth_shape){2, {2, 3}}, w);
        int same = node(g, HTH_OP_IDENTITY, weight, -1, -1);
        int y = node(g, HTH_OP_ADD, x, node(g, HTH_OP_TRANSPOSE, same, -1, -1), -1);
        int big = node(g, HTH_OP_CONSTANT_OF_SHAPE, ints(g, 1, &(int64_t){17 << 20}), -1, -1);
        int drop = node(g, HTH_OP_DROPOUT, weight, -1, -1);
        assert_int_equal(hth_graph_add_output(g, y), HTH_OK);
        assert_int_equal(hth_graph_add_output(g, big), HTH_OK);
        assert_int_equal(hth_graph_add_output(g, same), HTH_OK);
        assert_int_equal(hth_graph_add_output(g, drop), HTH_OK);
        hth_tensor in = shaped(F32, (hth_shape){2, {3, 2}});
        hth_stage s;
        assert_int_equal(hth_specialize(g, &in, small_eval, &calls, &s), HTH_OK);
        assert_int_equal(calls, 1); // the transpose; Identity shares
        assert_int_equal(s.graph->n_nodes, 3);
        assert_int_equal(count_op(s.graph, HTH_OP_CONSTANT_OF_SHAPE),
                         1); // 68 MiB from 8 bytes stay a node
        assert_ptr_equal(s.graph->values[s.graph->outputs[2]].constant, g->values[weight].constant);
        const hth_node *add = &s.graph->nodes[s.graph->values[s.graph->outputs[0]].producer];
        folded[round] = hth_const_hold(s.graph->values[add->inputs[1]].constant);
        assert_memory_equal(folded[round]->data, want, sizeof want);
        hth_stage_fini(&s);
        hth_graph_free(g);
    }
    assert_true(hth_id_equal(&folded[0]->id, &folded[1]->id));
    hth_const_rele(folded[0]);
    hth_const_rele(folded[1]);
}

static void test_fold_model(void **state)
{
    hth_graph *g = new_graph("N");
    float w[6] = {1, 2, 3, 4, 5, 6};
    int calls = 0, x = input(g, "x", F32, (hth_shape){2, {N, 2}});
    int t = node(g, HTH_OP_TRANSPOSE, constant(g, F32, (hth_shape){2, {2, 3}}, w), -1, -1);
    int row = node(g, HTH_OP_GATHER, t, ints(g, 1, &(int64_t){2}), -1);
    assert_int_equal(hth_graph_add_output(g, node(g, HTH_OP_ADD, x, row, -1)), HTH_OK);
    assert_int_equal(hth_fold_model(g, small_eval, &calls), HTH_OK);
    assert_int_equal(hth_graph_check(g), HTH_OK);
    assert_int_equal(calls, 2);
    assert_int_equal(g->n_nodes, 1);
    for (int64_t n = 1; n < 3; n++) {
        hth_tensor in = shaped(F32, (hth_shape){2, {n, 2}});
        hth_stage s;
        assert_int_equal(hth_specialize(g, &in, small_eval, &calls, &s), HTH_OK);
        hth_stage_fini(&s);
    }
    assert_int_equal(calls, 2);
    hth_graph_free(g);
}

static void test_out_of_memory(void **state)
{
    hth_graph *models[2] = {flatten_model(), staged_model()};
    float data[6] = {-1, 2, 0, 3, -4, 5};
    hth_tensor in[2] = {shaped(F32, (hth_shape){4, {2, 3, 4, 5}}),
                        {F32, HTH_LAYOUT_PLAIN, {1, {6}}, data, sizeof data}};
    for (int m = 0; m < 2; m++) {
        hth_err err = HTH_ENOMEM;
        int n;
        for (n = 1; err != HTH_OK; n++) {
            int64_t live = hth_alloc_live();
            hth_stage s;
            hth_fault_alloc((uint64_t)n);
            err = hth_specialize(models[m], &in[m], small_eval, NULL, &s);
            hth_fault_alloc(0);
            assert_true(err == HTH_OK || err == HTH_ENOMEM);
            hth_stage_fini(&s);
            assert_int_equal(hth_alloc_live(), live);
        }
        assert_true(n > 10);
        hth_graph_free(models[m]);
    }
}

// Thousands of Shape-Gather-Unsqueeze-Concat-Reshape groups: the time grows with the nodes, not
// with their square.
static void test_large_graph(void **state)
{
    double ms[2];
    for (int round = 0; round < 2; round++) {
        hth_graph *g = new_graph("N");
        int x = input(g, "x", F32, (hth_shape){2, {N, 8}});
        int zero = constant(g, HTH_DT_I64, (hth_shape){.rank = 0}, &(int64_t){0});
        int axis = ints(g, 1, &(int64_t){0}), tail = ints(g, 1, &(int64_t){-1});
        for (int i = 0; i < (round == 0 ? 1000 : 4000); i++) {
            int n = node(g, HTH_OP_GATHER, node(g, HTH_OP_SHAPE, x, -1, -1), zero, -1);
            int shape = node(g, HTH_OP_CONCAT, node(g, HTH_OP_UNSQUEEZE, n, axis, -1), tail, -1);
            x = node(g, HTH_OP_RESHAPE, x, shape, -1);
        }
        assert_int_equal(hth_graph_add_output(g, x), HTH_OK);
        hth_tensor in = shaped(F32, (hth_shape){2, {4, 8}});
        hth_stage s;
        clock_t start = clock();
        assert_int_equal(hth_specialize(g, &in, small_eval, NULL, &s), HTH_OK);
        ms[round] = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
        print_message("%d nodes: %.1f ms\n", g->n_nodes, ms[round]);
        assert_int_equal(s.graph->n_nodes, round == 0 ? 1000 : 4000);
        hth_stage_fini(&s);
        hth_graph_free(g);
    }
    assert_true(ms[1] < 16 * ms[0] + 50); // 4 times the nodes; generous
}

// Sizes that do not add up, in any order, and attributes that are not there: refused, not guessed.
static void test_contradictions(void **state)
{
    static const int64_t sizes[][2] = {{4, -1}, {-1, 5}, {5, -1}, {3, 2}, {INT64_MAX, INT64_MIN}};
    hth_stage s;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        hth_graph *g = new_graph("N");
        int x = input(g, "x", HTH_DT_F32, (hth_shape){1, {4}}), in[2] = {x, ints(g, 2, sizes[k])};
        int out[2] = {value(g, "a", HTH_DT_NONE, HTH_SHAPE_UNKNOWN),
                      value(g, "b", HTH_DT_NONE, HTH_SHAPE_UNKNOWN)};
        assert_int_equal(hth_graph_add_node(g, HTH_OP_SPLIT, NULL, in, 2, out, 2, NULL), HTH_OK);
        assert_int_equal(hth_graph_add_output(g, out[0]), HTH_OK);
        assert_int_equal(hth_graph_add_output(g, out[1]), HTH_OK);
        hth_tensor t = {.dtype = HTH_DT_F32, .shape = {1, {4}}};
        assert_int_equal(hth_specialize(g, &t, small_eval, NULL, &s), HTH_EINVAL);
        hth_graph_free(g);
    }
    hth_graph *g = new_graph("N");
    int x = input(g, "x", HTH_DT_F32, (hth_shape){2, {4, 4}});
    assert_int_equal(hth_graph_add_output(g, node(g, HTH_OP_CONCAT, x, x, -1)), HTH_OK);
    hth_node_drop_attr(last(g), "axis");
    hth_tensor t = {.dtype = HTH_DT_F32, .shape = {2, {4, 4}}};
    assert_int_equal(hth_specialize(g, &t, small_eval, NULL, &s), HTH_EINVAL);
    assert_non_null(strstr(hth_err_detail(), "attribute 'axis' is missing"));
    hth_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape_arithmetic_disappears),
        cmocka_unit_test(test_inputs_must_agree),
        cmocka_unit_test(test_contents_of_an_input),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_folding),
        cmocka_unit_test(test_fold_model),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_large_graph),
        cmocka_unit_test(test_contradictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
