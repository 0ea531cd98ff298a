// SPDX-License-Identifier: Apache-2.0
// What a model may have computed beforehand: memory and operations in proportion to its own size;
// what is too much stays a node, and is refused only where no run could compute it.
#include "graph/passes/fold.h"

#include "base/clock.h"
#include "base/pace.h"
#include "base/settings.h"
#include "graph/test_eval.h"
#include "kernels/kernel.h"

#define MIB ((size_t)1 << 20)

static int reset(void **state)
{
    hth_setting_reset();
    return hth_fold_live() == 0 ? 0 : -1; // every test gives everything back
}

static hth_graph *new_graph(void)
{
    hth_graph *g;
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    return g;
}

// A constant of n floats.
static int floats(hth_graph *graph, int64_t n, float v)
{
    float *data = hth_alloc((size_t)n * sizeof *data);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++) {
        data[i] = v;
    }
    int c = constant(graph, HTH_DT_F32, (hth_shape){1, {n}}, data);
    hth_free(data);
    return c;
}

static void output(hth_graph *graph, int v)
{
    assert_int_equal(hth_graph_add_output(graph, v), HTH_OK);
}

static void fold(hth_graph *graph, int left)
{
    assert_int_equal(hth_fold_model(graph, hth_ref_eval, NULL), HTH_OK);
    assert_int_equal(hth_graph_check(graph), HTH_OK);
    assert_int_equal(graph->n_nodes, left);
}

// Each node doubles: 64 bytes become 64 TiB. One source that is read twice is one source.
static void test_doubling(void **state)
{
    hth_graph *g = new_graph();
    int at = floats(g, 16, 1);
    for (int i = 0; i < 40; i++) {
        at = node(g, HTH_OP_CONCAT, at, at, -1);
        assert_int_equal(hth_node_set_int(last(g), "axis", 0), HTH_OK);
    }
    output(g, at);
    fold(g, 20); // up to 64 MiB
    assert_int_equal(hth_fold_live(), 64 * MIB);
    hth_graph_free(g);
}

// The same with two sources: no larger than they are together, and twice as large each time.
static void test_sources(void **state)
{
    hth_graph *g = new_graph();
    int at = floats(g, 4 << 20, 1);
    for (int i = 0; i < 8; i++) {
        int other = node(g, HTH_OP_NEG, at, -1, -1);
        at = node(g, HTH_OP_CONCAT, at, other, -1);
        assert_int_equal(hth_node_set_int(last(g), "axis", 0), HTH_OK);
    }
    output(g, at);
    assert_int_equal(hth_fold_model(g, hth_ref_eval, NULL), HTH_OK);
    assert_true(g->n_nodes > 8);
    assert_true(hth_fold_live() <= 256 * MIB);
    hth_graph_free(g);
}

// A product that would take minutes is left to a run, and not tried again for each shape.
static void test_work(void **state)
{
    static const int64_t side[] = {1 << 10, 1 << 10};
    hth_graph *g = new_graph();
    hth_stage s;
    assert_int_equal(hth_setting_set("limits.fold_operations", "50000000"), HTH_OK);
    int shape = ints(g, 2, side), w = node(g, HTH_OP_CONSTANT_OF_SHAPE, shape, -1, -1), at = w;
    for (int i = 0; i < 50; i++) {
        at = node(g, HTH_OP_MAT_MUL, w, at, -1);
    }
    output(g, at);
    uint64_t t0 = hth_now_ns();
    fold(g, 50);
    assert_true(g->nodes[0].dear);
    assert_int_equal(hth_specialize(g, NULL, hth_ref_eval, NULL, &s), HTH_OK);
    assert_int_equal(s.graph->n_nodes, 50);
    assert_true(hth_now_ns() - t0 < 20000000000u); // 50 of them: above 50 s
    hth_stage_fini(&s);
    hth_graph_free(g);
}

static hth_err note_live(void *ctx)
{
    uint64_t *most = ctx, live = hth_fold_live();
    *most = live > *most ? live : *most;
    return HTH_OK;
}

// What only the next node reads is given back after it: a long chain takes the memory of two.
static void test_chain(void **state)
{
    uint64_t most = 0;
    hth_graph *g = new_graph();
    hth_pace pace = {
        .most_work = UINT64_MAX, .most_bytes = UINT64_MAX, .turn = note_live, .ctx = &most};
    assert_int_equal(hth_setting_set("limits.fold_bytes", "9MiB"), HTH_OK);
    int at = floats(g, 1 << 20, 1);
    for (int i = 0; i < 40; i++) {
        at = node(g, HTH_OP_NEG, at, -1, -1);
    }
    output(g, at);
    hth_pace *before = hth_pace_enter(&pace);
    fold(g, 0);
    hth_pace_leave(before);
    assert_in_range(most, 4 * MIB, 9 * MIB);
    assert_int_equal(hth_fold_live(), 4 * MIB);
    hth_graph_free(g);
}

// Constants of the file give room in proportion.
static void test_proportion(void **state)
{
    assert_int_equal(hth_setting_set("limits.fold_bytes", "0"), HTH_OK);
    assert_int_equal(hth_setting_set("limits.fold_operations", "0"), HTH_OK);
    for (int own = 0; own < 2; own++) {
        hth_graph *g = new_graph();
        int w = floats(g, 1 << 16, 1);
        g->values[w].initializer = own;
        output(g, node(g, HTH_OP_NEG, w, -1, -1));
        fold(g, 1 - own);
        hth_graph_free(g);
    }
}

// Shape arithmetic is computed whatever is left.
static void test_tiny(void **state)
{
    static const int64_t dims[] = {2, 3, 4};
    hth_graph *g = new_graph();
    assert_int_equal(hth_setting_set("limits.fold_bytes", "0"), HTH_OK);
    assert_int_equal(hth_setting_set("limits.fold_operations", "0"), HTH_OK);
    assert_int_equal(hth_setting_set("limits.folded_bytes", "1"), HTH_OK);
    int shape = ints(g, 3, dims), at = shape;
    for (int i = 0; i < 100; i++) {
        at = node(g, HTH_OP_ADD, at, shape, -1);
    }
    output(g, at);
    fold(g, 0);
    const void *data;
    assert_int_equal(hth_const_map(g->values[g->outputs[0]].constant, &data), HTH_OK);
    assert_int_equal(((const int64_t *)data)[2], 404);
    hth_const_unmap(g->values[g->outputs[0]].constant);
    hth_graph_free(g);
}

// All models together.
static void test_together(void **state)
{
    hth_graph *g[3];
    assert_int_equal(hth_setting_set("limits.folded_bytes", "10MiB"), HTH_OK);
    for (int i = 0; i < 3; i++) {
        g[i] = new_graph();
        output(g[i], node(g[i], HTH_OP_NEG, floats(g[i], 1 << 20, 1), -1, -1));
        fold(g[i], i == 2);
        assert_true(hth_fold_live() <= 10 * MIB);
    }
    for (int i = 0; i < 3; i++) {
        hth_graph_free(g[i]);
    }
}

// A size that is data cannot be left to a run: the refusal says how much, and what sets the limit.
static void test_dynamic(void **state)
{
    for (int k = 0; k < 2; k++) {
        hth_graph *g = new_graph();
        hth_setting_reset();
        assert_int_equal(hth_setting_set(k == 0 ? "limits.fold_bytes" : "limits.fold_operations",
                                         k == 0 ? "1MiB" : "1000"),
                         HTH_OK);
        output(g, node(g, HTH_OP_NON_ZERO, floats(g, 1 << 20, 1), -1, -1));
        assert_int_equal(hth_fold_model(g, hth_ref_eval, NULL), HTH_ETOOBIG);
        assert_non_null(strstr(hth_err_detail(), "NonZero"));
        assert_non_null(strstr(hth_err_detail(),
                               k == 0 ? "has 8388608 bytes, and 1048576" : "1000 operations"));
        assert_non_null(strstr(hth_err_detail(), "limits.fold_"));
        hth_graph_free(g);
    }
}

static hth_err end_third(void *ctx)
{
    int *n = ctx;
    return ++*n == 3 ? hth_fail(HTH_ECANCELED, "nobody wants it") : HTH_OK;
}

// Others have their turns within one long node, and it can be ended there.
static void test_turns(void **state)
{
    static const int64_t side[] = {512, 512};
    int turns = 0;
    hth_graph *g = new_graph();
    hth_pace pace = {
        .most_work = UINT64_MAX, .most_bytes = UINT64_MAX, .turn = end_third, .ctx = &turns};
    int shape = ints(g, 2, side), w = node(g, HTH_OP_CONSTANT_OF_SHAPE, shape, -1, -1);
    output(g, node(g, HTH_OP_MAT_MUL, w, w, -1));
    hth_pace *before = hth_pace_enter(&pace);
    assert_int_equal(hth_fold_model(g, hth_ref_eval, NULL), HTH_ECANCELED);
    hth_pace_leave(before);
    assert_non_null(strstr(hth_err_detail(), "nobody wants it"));
    assert_int_equal(turns, 3);
    hth_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_doubling, reset, reset),
        cmocka_unit_test_setup_teardown(test_sources, reset, reset),
        cmocka_unit_test_setup_teardown(test_work, reset, reset),
        cmocka_unit_test_setup_teardown(test_chain, reset, reset),
        cmocka_unit_test_setup_teardown(test_proportion, reset, reset),
        cmocka_unit_test_setup_teardown(test_tiny, reset, reset),
        cmocka_unit_test_setup_teardown(test_together, reset, reset),
        cmocka_unit_test_setup_teardown(test_dynamic, reset, reset),
        cmocka_unit_test_setup_teardown(test_turns, reset, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
