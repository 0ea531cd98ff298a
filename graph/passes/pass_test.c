// SPDX-License-Identifier: Apache-2.0
// Passes keep a graph's meaning and find what they are for: tiny models as PyTorch's exporters
// write them (tests/tools/make_pass_models.py), every pass in turn, evaluated with the reference
// kernels, against onnxruntime's answers.
#include "base/alloc.h"
#include "base/settings.h"
#include "graph/onnx/onnx.h"
#include "graph/passes/pass.h"
#include "graph/specialize.h"
#include "kernels/kernel.h"
#include "tests/rig/npy_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// evaluate runs a concrete graph node by node with the reference kernels and compares output 0.
static void evaluate(const hth_graph *graph, const hth_tensor *x, const hth_tensor *y,
                     const char *when)
{
    hth_tensor *v = calloc((size_t)graph->n_values, sizeof *v), in[16], out[8];
    for (int i = 0; i < graph->n_values; i++) {
        const hth_value *val = &graph->values[i];
        v[i] = (hth_tensor){.dtype = val->dtype, .layout = val->layout, .shape = val->shape};
        assert_int_equal(hth_tensor_bytes(val->dtype, &val->shape, val->layout, &v[i].bytes),
                         HTH_OK);
        const void *data;
        if (val->constant != NULL) {
            assert_int_equal(hth_const_map(val->constant, &data), HTH_OK);
            v[i].data = (void *)data;
        } else {
            v[i].data = malloc(v[i].bytes + 64);
            memset(v[i].data, 0xFF, v[i].bytes); // NaN: what is not written shows
        }
    }
    memcpy(v[graph->inputs[0]].data, x->data, x->bytes);
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        for (int k = 0; k < n->n_inputs; k++) {
            in[k] = n->inputs[k] < 0 ? (hth_tensor){0} : v[n->inputs[k]];
        }
        for (int k = 0; k < n->n_outputs; k++) {
            out[k] = n->outputs[k] < 0 ? (hth_tensor){0} : v[n->outputs[k]];
        }
        if (hth_ref_eval(NULL, graph, n, in, out) != HTH_OK) {
            fail_msg("%s: node '%s' (%s): %s", when, n->name, hth_op_name(n->op), hth_err_detail());
        }
    }
    const float *got = v[graph->outputs[0]].data, *want = y->data;
    float largest = 0, error = 0;
    for (size_t i = 0; i < y->bytes / sizeof *want; i++) {
        largest = fmaxf(largest, fabsf(want[i]));
        error = isnan(got[i]) ? INFINITY : fmaxf(error, fabsf(got[i] - want[i]));
    }
    if (error > 1e-5f * largest) {
        fail_msg("%s: differs by %g of %g", when, (double)error, (double)largest);
    }
    for (int i = 0; i < graph->n_values; i++) {
        if (graph->values[i].constant != NULL) {
            hth_const_unmap(graph->values[i].constant);
        } else {
            free(v[i].data);
        }
    }
    free(v);
}

static int count(const hth_graph *graph, hth_op op)
{
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        n += graph->nodes[i].op == op;
    }
    return n;
}

// A device that fuses everything and wants nothing blocked.
static bool fuse_all(void *ctx, const hth_graph *graph, const hth_node *node,
                     const hth_post_op *post, int operand)
{
    return node->op == HTH_OP_CONV || node->op == HTH_OP_CONV_TRANSPOSE ||
           node->op == HTH_OP_GEMM || node->op == HTH_OP_MAT_MUL || node->op == HTH_OP_SCALE_SHIFT;
}

// Convolutions in 16-channel blocks; element-wise operators wherever they stand.
static hth_layout blocked(void *ctx, const hth_graph *graph, const hth_node *node, bool *any)
{
    *any = node->op == HTH_OP_ADD || node->op == HTH_OP_MUL || node->op == HTH_OP_RELU ||
           node->op == HTH_OP_SWISH;
    bool conv = node->op == HTH_OP_CONV || node->op == HTH_OP_CONV_TRANSPOSE;
    return conv && graph->values[node->outputs[0]].shape.rank == 4 ? HTH_LAYOUT_C16
                                                                   : HTH_LAYOUT_PLAIN;
}

static bool reads_plain(void *ctx, const hth_graph *graph, const hth_node *node)
{
    return node->op == HTH_OP_CONV && graph->values[node->inputs[0]].shape.dim[1] <= 3;
}

static const hth_fuse_oracle oracle = {fuse_all, blocked, reads_plain, NULL};

// Has transposes' axes be counted from the end, as a model may write them.
static bool from_the_end;

static void perms_from_the_end(hth_graph *graph)
{
    for (int i = 0; i < graph->n_nodes && from_the_end; i++) {
        hth_node *n = &graph->nodes[i];
        int64_t perm[HTH_MAX_RANK];
        int rank = n->op == HTH_OP_TRANSPOSE ? hth_node_ints(n, "perm", perm, HTH_MAX_RANK) : 0;
        for (int k = 0; k < rank; k++) {
            perm[k] -= rank;
        }
        if (rank > 0) {
            assert_int_equal(hth_node_set_ints(n, "perm", perm, rank), HTH_OK);
        }
    }
}

static hth_graph *prepare(const char *name, hth_tensor *x, hth_tensor *y)
{
    char path[256];
    hth_graph *model;
    hth_stage s;
    snprintf(path, sizeof path, "tests/data/passes/%s.x.npy", name);
    assert_true(npy_data(path, x));
    snprintf(path, sizeof path, "tests/data/passes/%s.y.npy", name);
    assert_true(npy_data(path, y));
    snprintf(path, sizeof path, "tests/data/passes/%s.onnx", name);
    if (hth_onnx_load_file(path, &model) != HTH_OK ||
        hth_specialize(model, x, hth_ref_eval, NULL, &s) != HTH_OK) {
        fail_msg("%s: %s", name, hth_err_detail());
    }
    hth_graph *g = s.graph;
    s.graph = NULL;
    hth_stage_fini(&s);
    hth_graph_free(model);
    perms_from_the_end(g);
    evaluate(g, x, y, "as it came");
    return g;
}

typedef hth_err (*pass_fn)(hth_graph *graph);

static void run_pass(hth_graph *graph, pass_fn pass, const hth_tensor *x, const hth_tensor *y,
                     const char *when)
{
    assert_int_equal(pass(graph), HTH_OK);
    if (hth_graph_check(graph) != HTH_OK) {
        fail_msg("%s: %s", when, hth_err_detail());
    }
    evaluate(graph, x, y, when);
}

static hth_graph *run_passes(const char *name)
{
    hth_tensor x, y;
    hth_graph *g = prepare(name, &x, &y);
    run_pass(g, hth_pass_attention_parts, &x, &y, "with attention in parts");
    run_pass(g, hth_pass_simplify, &x, &y, "after simplify");
    run_pass(g, hth_pass_pattern, &x, &y, "after pattern");
    run_pass(g, hth_pass_fold_norm, &x, &y, "after fold_norm");
    assert_int_equal(hth_pass_fuse(g, &oracle), HTH_OK);
    assert_int_equal(hth_graph_check(g), HTH_OK);
    evaluate(g, &x, &y, "after fuse");
    hth_graph *blocked_graph;
    assert_int_equal(hth_graph_clone(g, &blocked_graph), HTH_OK);
    assert_int_equal(hth_pass_layout(blocked_graph, &oracle), HTH_OK);
    assert_int_equal(hth_graph_check(blocked_graph), HTH_OK);
    for (int i = 0; i < blocked_graph->n_outputs; i++) {
        assert_int_equal(blocked_graph->values[blocked_graph->outputs[i]].layout, HTH_LAYOUT_PLAIN);
    }
    hth_free(x.data);
    hth_free(y.data);
    hth_graph_free(g);
    return blocked_graph;
}

static void test_residual(void **state)
{
    hth_graph *g = run_passes("residual");
    assert_int_equal(count(g, HTH_OP_BATCH_NORMALIZATION), 0);
    assert_int_equal(count(g, HTH_OP_SCALE_SHIFT), 1); // the one that follows an activation
    assert_int_equal(count(g, HTH_OP_SIGMOID), 0);
    assert_int_equal(count(g, HTH_OP_RELU), 0); // all fused
    assert_int_equal(count(g, HTH_OP_ADD), 0);
    assert_true(count(g, HTH_OP_REORDER) <= 4); // only at the borders
    hth_graph_free(g);
}

static void expect_attention(const char *name)
{
    hth_graph *g = run_passes(name);
    assert_int_equal(count(g, HTH_OP_FUSED_ATTENTION), 1);
    assert_int_equal(count(g, HTH_OP_SOFTMAX), 0);
    assert_int_equal(count(g, HTH_OP_TRANSPOSE), 0); // all taken over as views
    assert_int_equal(count(g, HTH_OP_ERF) + count(g, HTH_OP_TANH), 0);
    hth_graph_free(g);
}

static void test_attention(void **state)
{
    expect_attention("attention");
    expect_attention("attention_masked");
    expect_attention("attention_biased");
}

static void test_attention_from_the_end(void **state)
{
    from_the_end = true;
    expect_attention("attention");
    expect_attention("attention_masked");
    from_the_end = false;
}

// The operator itself, of heads that share keys, causal, after rotations, which stay.
static void test_attention_operator(void **state)
{
    hth_graph *g = run_passes("operators");
    assert_int_equal(count(g, HTH_OP_ATTENTION), 0);
    assert_int_equal(count(g, HTH_OP_ROTARY_EMBEDDING), 2);
    print_message("# of the operator: %d fused, %d softmax, %d nodes\n",
                  count(g, HTH_OP_FUSED_ATTENTION), count(g, HTH_OP_SOFTMAX), g->n_nodes);
    hth_graph_free(g);
}

// The constant of what order hides grows as queries times keys: too large is refused, not tried.
static void test_attention_table(void **state)
{
    hth_tensor x, y;
    hth_graph *g = prepare("operators", &x, &y);
    assert_int_equal(hth_setting_set("limits.folded_bytes", "1"), HTH_OK);
    hth_err err = hth_pass_attention_parts(g);
    assert_int_equal(hth_setting_set("limits.folded_bytes", "0"), HTH_OK);
    assert_int_equal(err, HTH_ETOOBIG);
    assert_non_null(strstr(hth_err_detail(), "limits.folded_bytes"));
    hth_free(x.data);
    hth_free(y.data);
    hth_graph_free(g);
}

// Recurrences whose batch comes first are the usual ones between transposes.
static void test_batch_first(void **state)
{
    hth_graph *g = run_passes("batch_first");
    assert_int_equal(count(g, HTH_OP_LSTM) + count(g, HTH_OP_GRU), 2);
    assert_true(count(g, HTH_OP_TRANSPOSE) >= 3);
    for (int i = 0; i < g->n_nodes; i++) {
        assert_null(hth_node_attr(&g->nodes[i], "layout"));
    }
    hth_graph_free(g);
}

static void test_written_norm(void **state)
{
    hth_graph *g = run_passes("written_norm");
    assert_int_equal(count(g, HTH_OP_LAYER_NORMALIZATION), 1);
    assert_int_equal(count(g, HTH_OP_RMSNORMALIZATION), 1);
    assert_int_equal(g->n_nodes, 2);
    hth_graph_free(g);
}

static hth_err passes_run(hth_graph *graph)
{
    HTH_TRY(hth_pass_simplify(graph));
    HTH_TRY(hth_pass_pattern(graph));
    HTH_TRY(hth_pass_fold_norm(graph));
    HTH_TRY(hth_pass_fuse(graph, &oracle));
    return hth_pass_layout(graph, &oracle);
}

// Every allocation of every pass is made to fail once: an error, no leak, a graph that can still be
// freed.
static void test_no_memory(void **state)
{
    hth_tensor x, y;
    hth_graph *g = prepare("residual", &x, &y), *c;
    for (uint64_t n = 1;; n++) {
        assert_int_equal(hth_graph_clone(g, &c), HTH_OK);
        uint64_t before = hth_alloc_count();
        hth_fault_alloc(n);
        hth_err err = passes_run(c);
        hth_fault_alloc(0);
        before = hth_alloc_count() - before;
        assert_true(err == HTH_OK || err == HTH_ENOMEM); // a pass may also do without
        hth_graph_free(c);
        if (before < n) { // nothing failed: every allocation has had its turn
            assert_int_equal(err, HTH_OK);
            break;
        }
    }
    hth_graph_free(g);
    hth_free(x.data);
    hth_free(y.data);
    assert_int_equal(hth_alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_residual),
                                       cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_attention_from_the_end),
                                       cmocka_unit_test(test_attention_operator),
                                       cmocka_unit_test(test_attention_table),
                                       cmocka_unit_test(test_batch_first),
                                       cmocka_unit_test(test_written_norm),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
