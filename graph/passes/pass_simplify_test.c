// SPDX-License-Identifier: Apache-2.0
// hth_pass_simplify: what each rule removes, and random graphs that must compute the same bits
// before and after.
#include "graph/passes/pass.h"
#include "graph/test_eval.h"

#include <stdio.h>

#define F32 HTH_DT_F32

static hth_graph *new_graph(void)
{
    hth_graph *g;
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    return g;
}

// Infers the shape of the last node's output and returns it.
static int inferred(hth_graph *graph, int value)
{
    int wait;
    if (hth_infer_node(graph, graph->n_nodes - 1, &wait) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    return value;
}

static int transpose(hth_graph *graph, int x, const int64_t *perm)
{
    int y = node(graph, HTH_OP_TRANSPOSE, x, -1, -1);
    assert_int_equal(hth_node_set_ints(last(graph), "perm", perm, graph->values[x].shape.rank),
                     HTH_OK);
    return inferred(graph, y);
}

static int unary(hth_graph *graph, hth_op op, int x)
{
    return inferred(graph, node(graph, op, x, -1, -1));
}

static int reshape(hth_graph *graph, int x, int n, const int64_t *dims)
{
    return inferred(graph, node(graph, HTH_OP_RESHAPE, x, ints(graph, n, dims), -1));
}

static void simplify(hth_graph *graph)
{
    assert_int_equal(hth_pass_simplify(graph), HTH_OK);
    assert_int_equal(hth_graph_check(graph), HTH_OK);
}

static void test_what_does_nothing(void **state)
{
    hth_graph *g = new_graph();
    int64_t zeros[6] = {0}, big[3] = {100, 100, 100}, flip[3] = {-1, 1, 1};
    int x = unary(g, HTH_OP_RELU, input(g, "x", F32, (hth_shape){3, {2, 1, 3}}));
    int y = unary(g, HTH_OP_IDENTITY, unary(g, HTH_OP_DROPOUT, x));
    y = node(g, HTH_OP_CAST, y, -1, -1);
    assert_int_equal(hth_node_set_int(last(g), "to", F32), HTH_OK);
    y = reshape(g, inferred(g, y), 3, (int64_t[]){2, 1, 3});
    y = inferred(g, node(g, HTH_OP_PAD, y, ints(g, 6, zeros), -1));
    y = inferred(g, node(g, HTH_OP_SLICE, y, ints(g, 3, zeros), ints(g, 3, big)));
    y = unary(g, HTH_OP_CONCAT, y);
    y = transpose(g, y, (int64_t[]){0, 1, 2});
    y = unary(g, HTH_OP_RELU, y);
    // A slice that turns an axis round has the same shape, and stays.
    y = inferred(g, node(g, HTH_OP_SLICE, y, ints(g, 3, (int64_t[]){-1, 0, 0}),
                         ints(g, 3, (int64_t[]){-100, 100, 100})));
    assert_int_equal(hth_node_add_input(last(g), -1), HTH_OK);
    assert_int_equal(hth_node_add_input(last(g), ints(g, 3, flip)), HTH_OK);
    inferred(g, y);
    assert_int_equal(hth_graph_add_output(g, y), HTH_OK);
    simplify(g);
    assert_int_equal(g->n_nodes, 3);
    assert_int_equal(count_op(g, HTH_OP_RELU), 2);
    assert_int_equal(count_op(g, HTH_OP_SLICE), 1);
    hth_graph_free(g);
}

static void test_dropout_that_drops_stays(void **state)
{
    for (int training = 0; training < 2; training++) {
        hth_graph *g = new_graph();
        bool on = true;
        int x = input(g, "x", F32, (hth_shape){1, {4}});
        int mode = constant(g, HTH_DT_BOOL, (hth_shape){.rank = 0}, &on);
        int ratio = constant(g, F32, (hth_shape){.rank = 0}, &(float){0.5F});
        int a = inferred(g, node(g, HTH_OP_DROPOUT, x, ratio, mode));
        int b = inferred(g, node(g, HTH_OP_DROPOUT, x, ratio, -1));
        g->training = training;
        assert_int_equal(hth_graph_add_output(g, unary(g, HTH_OP_RELU, a)), HTH_OK);
        assert_int_equal(hth_graph_add_output(g, unary(g, HTH_OP_RELU, b)), HTH_OK);
        simplify(g);
        assert_int_equal(count_op(g, HTH_OP_DROPOUT), 1 + training);
        hth_graph_free(g);
    }
}

static void test_chains_merge(void **state)
{
    hth_graph *g = new_graph();
    int x = input(g, "x", F32, (hth_shape){3, {2, 3, 4}});
    int a = transpose(g, transpose(g, x, (int64_t[]){1, 2, 0}), (int64_t[]){2, 0, 1}); // nothing
    int b =
        transpose(g, transpose(g, x, (int64_t[]){1, 2, 0}), (int64_t[]){1, 0, 2}); // one, {2,1,0}
    int c = reshape(g, reshape(g, reshape(g, x, 1, (int64_t[]){24}), 2, (int64_t[]){4, 6}), 2,
                    (int64_t[]){8, 3});
    assert_int_equal(hth_graph_add_output(g, unary(g, HTH_OP_RELU, a)), HTH_OK);
    assert_int_equal(hth_graph_add_output(g, b), HTH_OK);
    assert_int_equal(hth_graph_add_output(g, c), HTH_OK);
    simplify(g);
    assert_int_equal(g->n_nodes, 3);
    assert_int_equal(count_op(g, HTH_OP_RESHAPE), 1);
    int64_t perm[3], want[3] = {2, 1, 0};
    assert_int_equal(hth_node_ints(&g->nodes[g->values[g->outputs[1]].producer], "perm", perm, 3),
                     3);
    assert_memory_equal(perm, want, sizeof want);
    hth_graph_free(g);
}

static void test_equal_nodes_join(void **state)
{
    hth_graph *g = new_graph();
    float one = 1, two = 2;
    int x = input(g, "x", F32, (hth_shape){1, {4}});
    int sum[3]; // the first two equal: their constants have the same content
    for (int i = 0; i < 3; i++) {
        int k = constant(g, F32, (hth_shape){1, {1}}, i < 2 ? &one : &two);
        sum[i] = unary(g, HTH_OP_RELU, inferred(g, node(g, HTH_OP_ADD, x, k, -1)));
    }
    int y = inferred(g, node(g, HTH_OP_MUL, sum[0], sum[1], -1));
    assert_int_equal(hth_graph_add_output(g, inferred(g, node(g, HTH_OP_ADD, y, sum[2], -1))),
                     HTH_OK);
    simplify(g);
    assert_int_equal(count_op(g, HTH_OP_ADD), 3); // x + 1, x + 2, the last
    assert_int_equal(count_op(g, HTH_OP_RELU), 2);
    hth_graph_free(g);
}

static void test_outputs_keep_their_names(void **state)
{
    hth_graph *g = new_graph();
    int x = input(g, "x", F32, (hth_shape){1, {4}}), out[4];
    const char *name[4] = {"same", "relu", "again", "twice"};
    int y = unary(g, HTH_OP_RELU, x);
    int source[4] = {x, y, y, x};
    for (int i = 0; i < 4; i++) {
        out[i] = value(g, name[i], F32, (hth_shape){1, {4}});
        hth_op op = i == 3 ? HTH_OP_RELU : HTH_OP_IDENTITY;
        assert_int_equal(hth_graph_add_node(g, op, NULL, &source[i], 1, &out[i], 1, NULL), HTH_OK);
        assert_int_equal(hth_graph_add_output(g, out[i]), HTH_OK);
    }
    simplify(g);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(g->values[g->outputs[i]].name, name[i]);
        for (int k = 0; k < i; k++) {
            assert_int_not_equal(g->outputs[i], g->outputs[k]);
        }
    }
    assert_int_equal(count_op(g, HTH_OP_IDENTITY), 2); // x to "same"; "relu" to "again"
    assert_int_equal(count_op(g, HTH_OP_RELU), 2); // "relu" is a buffer of its own, so is "twice"
    hth_graph_free(g);
}

static unsigned seed;
static int dice(int n)
{
    seed = seed * 1103515245U + 12345U;
    return (int)((seed >> 16) % (unsigned)n);
}

// One more random node on a random value among pool[0..n).
static int random_node(hth_graph *graph, const int *pool, int n)
{
    static const int64_t shapes[4][3] = {{2, 3, 4}, {24, 1, 1}, {4, 6, 1}, {3, 8, 1}};
    static const int64_t perms[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const hth_op unaries[] = {HTH_OP_IDENTITY, HTH_OP_RELU, HTH_OP_DROPOUT, HTH_OP_CONCAT,
                                     HTH_OP_FLATTEN};
    int x = pool[dice(n)], other = pool[dice(n)];
    switch (dice(6)) {
    case 0:
        return reshape(graph, x, 3, shapes[dice(4)]);
    case 1:
        return graph->values[x].shape.rank == 3 ? transpose(graph, x, perms[dice(6)])
                                                : unary(graph, HTH_OP_TRANSPOSE, x);
    case 2:
        return inferred(graph, node(graph, HTH_OP_UNSQUEEZE, unary(graph, HTH_OP_FLATTEN, x),
                                    ints(graph, 1, &(int64_t){0}), -1));
    case 3:
        other = hth_shape_equal(&graph->values[x].shape, &graph->values[other].shape) ? other : x;
        return inferred(graph, node(graph, dice(2) ? HTH_OP_ADD : HTH_OP_MUL, x, other, -1));
    case 4:
        return inferred(
            graph, node(graph, HTH_OP_ADD, x,
                        constant(graph, F32, (hth_shape){1, {1}}, &(float){(float)dice(2)}), -1));
    default:
        return unary(graph, unaries[dice(5)], x);
    }
}

static void check_same(const hth_graph *before, const hth_graph *after, const hth_tensor *tensor)
{
    hth_tensor a[8], b[8];
    assert_int_equal(before->n_outputs, after->n_outputs);
    run_graph(before, tensor, a);
    run_graph(after, tensor, b);
    for (int i = 0; i < before->n_outputs; i++) {
        assert_string_equal(before->values[before->outputs[i]].name,
                            after->values[after->outputs[i]].name);
        assert_true(hth_shape_equal(&a[i].shape, &b[i].shape));
        assert_memory_equal(a[i].data, b[i].data, a[i].bytes);
        free(a[i].data);
        free(b[i].data);
    }
}

static void test_random_graphs(void **state)
{
    float data[24];
    hth_tensor x = {F32, HTH_LAYOUT_PLAIN, {3, {2, 3, 4}}, data, sizeof data};
    int nodes = 0, left = 0;
    for (int i = 0; i < 24; i++) {
        data[i] = (float)(i % 7) / 4 - 0.75F;
    }
    for (unsigned round = 0; round < 400; round++) {
        hth_graph *g = new_graph(), *before;
        int pool[40], n = 0;
        seed = round;
        pool[n++] = input(g, "x", F32, x.shape);
        while (n < 30) {
            pool[n] = random_node(g, pool, n);
            n++;
        }
        for (int i = 0; i < 4; i++) {
            int v = pool[1 + dice(n - 1)];
            if (!g->values[v].is_output) {
                assert_int_equal(hth_graph_add_output(g, v), HTH_OK);
            }
        }
        assert_int_equal(hth_graph_clone(g, &before), HTH_OK);
        assert_int_equal(hth_graph_compact(before), HTH_OK);
        simplify(g);
        check_same(before, g, &x);
        nodes += before->n_nodes;
        left += g->n_nodes;
        int once = g->n_nodes;
        simplify(g);
        assert_int_equal(g->n_nodes, once); // nothing is left for a second time
        hth_graph_free(before);
        hth_graph_free(g);
    }
    print_message("%d nodes -> %d\n", nodes, left);
    assert_true(left < nodes * 3 / 4);
}

static void test_out_of_memory(void **state)
{
    hth_err err = HTH_ENOMEM;
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        int64_t live = hth_alloc_live();
        hth_graph *g = new_graph();
        int x = input(g, "x", F32, (hth_shape){3, {2, 3, 4}});
        int y = transpose(g, transpose(g, x, (int64_t[]){1, 2, 0}), (int64_t[]){1, 0, 2});
        y = unary(g, HTH_OP_FLATTEN, reshape(g, y, 1, (int64_t[]){24}));
        assert_int_equal(hth_graph_add_output(g, y), HTH_OK);
        hth_fault_alloc(nth);
        err = hth_pass_simplify(g);
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        hth_graph_free(g);
        assert_int_equal(hth_alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_does_nothing),
        cmocka_unit_test(test_dropout_that_drops_stays),
        cmocka_unit_test(test_chains_merge),
        cmocka_unit_test(test_equal_nodes_join),
        cmocka_unit_test(test_outputs_keep_their_names),
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
