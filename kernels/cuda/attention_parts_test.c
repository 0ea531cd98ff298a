// SPDX-License-Identifier: Apache-2.0
// Attention as a device sees it: the pass that says it in parts, then every part on CUDA's kernels,
// against the reference's kernel of the whole operator. Types that have no parts are refused.
#include "kernels/cuda/fixture.h"

#include "graph/passes/pass.h"

typedef enum mask_kind {
    MASK_NONE,
    MASK_BOOL,    // [queries, keys], of which one row sees nothing
    MASK_NUMBERS, // [batch, 1, queries, keys], with -inf; one row of one sample sees nothing
    MASK_HEADS,   // [batch, heads, queries, 1]
    MASK_SHORT    // [queries, keys - 2]
} mask_kind;

typedef struct parts_case {
    bool flat;
    int64_t heads, shared, past;
    mask_kind mask;
    bool causal, lengths;
    int64_t left, right;
    float softcap, scale; // 0: the default
    int64_t mode;         // of the scores as an output, -1: not wanted
} parts_case;

enum { BATCH = 2, QUERIES = 5, KEYS = 7, SIZE = 7, V_SIZE = 4 };

static int parts_operand(fixture *f, const parts_case *c, int64_t heads, int64_t len, int64_t size)
{
    return fixture_value(f, c->flat ? SHAPE(BATCH, len, heads * size)
                                    : SHAPE(BATCH, heads, len, size));
}

static int parts_mask(fixture *f, const parts_case *c)
{
    const int64_t keys = c->past + KEYS;
    const hth_shape s = c->mask == MASK_NUMBERS ? SHAPE(BATCH, 1, QUERIES, keys)
                        : c->mask == MASK_HEADS ? SHAPE(BATCH, c->heads, QUERIES, 1)
                        : c->mask == MASK_SHORT ? SHAPE(QUERIES, keys - 2)
                                                : SHAPE(QUERIES, keys);
    float *p = fixture_fill(f, &s);
    uint8_t keep[QUERIES * (KEYS + 8)];
    for (int64_t i = 0; i < hth_shape_elements(&s); i++) {
        p[i] = c->mask == MASK_NUMBERS && (i / keys == 3 || i % 5 == 1) ? -INFINITY : p[i];
        keep[i % (int64_t)sizeof keep] = i / keys != 2 && i % 3 != 0;
    }
    int v = c->mask == MASK_BOOL ? fixture_const_of(f, HTH_DT_BOOL, s, keep)
                                 : fixture_const_of(f, HTH_DT_F32, s, p);
    hth_free(p);
    return v;
}

static void parts_open(fixture *f, const parts_case *c, uint64_t seed)
{
    static const int64_t lengths[BATCH] = {KEYS, 3};
    const int64_t keys = c->past + KEYS;
    fixture_open(f, seed);
    int in[7] = {parts_operand(f, c, c->heads, QUERIES, SIZE),
                 parts_operand(f, c, c->shared, KEYS, SIZE),
                 parts_operand(f, c, c->shared, KEYS, V_SIZE),
                 -1,
                 -1,
                 -1,
                 -1};
    in[3] = c->mask != MASK_NONE ? parts_mask(f, c) : -1;
    if (c->past > 0) {
        in[4] = fixture_value(f, SHAPE(BATCH, c->shared, c->past, SIZE));
        in[5] = fixture_value(f, SHAPE(BATCH, c->shared, c->past, V_SIZE));
    }
    in[6] = c->lengths ? fixture_const_of(f, HTH_DT_I64, SHAPE(BATCH), lengths) : -1;
    int out[4] = {parts_operand(f, c, c->heads, QUERIES, V_SIZE), -1, -1, -1};
    if (c->past > 0) {
        out[1] = fixture_value(f, SHAPE(BATCH, c->shared, keys, SIZE));
        out[2] = fixture_value(f, SHAPE(BATCH, c->shared, keys, V_SIZE));
    }
    out[3] = c->mode >= 0 ? fixture_value(f, SHAPE(BATCH, c->heads, QUERIES, keys)) : -1;
    hth_node *n = fixture_node(f, HTH_OP_ATTENTION, in, 7, out, 4);
    hth_node_set_int(n, "is_causal", c->causal);
    hth_node_set_int(n, "left_window_size", c->left);
    hth_node_set_int(n, "right_window_size", c->right);
    hth_node_set_float(n, "softcap", c->softcap);
    if (c->scale != 0) {
        hth_node_set_float(n, "scale", c->scale);
    }
    if (c->mode >= 0) {
        hth_node_set_int(n, "qk_matmul_output_mode", c->mode);
    }
    if (c->flat) {
        hth_node_set_int(n, "q_num_heads", c->heads);
        hth_node_set_int(n, "kv_num_heads", c->shared);
    }
}

// Buffers of all values: what is a constant or an input filled, the rest garbage.
static hth_tensor *parts_tensors(fixture *f, const hth_graph *graph)
{
    hth_tensor *v = hth_calloc((size_t)graph->n_values, sizeof *v);
    assert_non_null(v);
    for (int i = 0; i < graph->n_values; i++) {
        const hth_value *x = &graph->values[i];
        const void *data;
        v[i] = (hth_tensor){.dtype = x->dtype, .shape = x->shape};
        assert_int_equal(hth_tensor_bytes(x->dtype, &x->shape, x->layout, &v[i].bytes), HTH_OK);
        v[i].data = fixture_buffer(v[i].bytes);
        if (x->constant != NULL) {
            assert_int_equal(hth_const_map(x->constant, &data), HTH_OK);
            memcpy(v[i].data, data, v[i].bytes);
            hth_const_unmap(x->constant);
        }
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        hth_tensor *x = &v[graph->inputs[i]];
        float *p = fixture_fill(f, &x->shape);
        memcpy(x->data, p, x->bytes);
        hth_free(p);
    }
    return v;
}

static void parts_free(hth_tensor *tensor, int n)
{
    for (int i = 0; i < n; i++) {
        hth_free(tensor[i].data);
    }
    hth_free(tensor);
}

static void parts_run(const hth_graph *graph, hth_tensor *tensor, bool reference)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        hth_tensor in[16] = {{0}}, out[8] = {{0}};
        void *from[16] = {NULL}, *to[8] = {NULL};
        hth_kernel *k;
        for (int j = 0; j < n->n_inputs; j++) {
            in[j] = n->inputs[j] < 0 ? in[j] : tensor[n->inputs[j]];
            from[j] = in[j].data;
        }
        for (int j = 0; j < n->n_outputs; j++) {
            out[j] = n->outputs[j] < 0 ? out[j] : tensor[n->outputs[j]];
            to[j] = out[j].data;
        }
        if (reference) {
            assert_int_equal(hth_ref_eval(NULL, graph, n, in, out), HTH_OK);
            continue;
        }
        if (cuda_test_prepare(graph, n, NULL, &k) != HTH_OK) {
            fail_msg("%s: %s", n->name, hth_err_detail());
        }
        void *workspace = fixture_buffer(k->workspace_bytes);
        assert_int_equal(k->run(k, &(hth_kernel_args){from, to, workspace, NULL}), HTH_OK);
        hth_free(workspace);
        hth_kernel_close(k);
    }
}

static void parts_compare(const hth_graph *g, const hth_tensor *got, const hth_graph *h,
                          const hth_tensor *want, size_t number)
{
    for (int i = 0; i < g->n_outputs; i++) {
        const float *a = got[g->outputs[i]].data, *b = want[h->outputs[i]].data;
        int64_t n = hth_shape_elements(&want[h->outputs[i]].shape);
        for (int64_t e = 0; e < n; e++) {
            if (a[e] != b[e] && !(fabsf(a[e] - b[e]) <= 2e-6F * (1 + fabsf(b[e])))) {
                fail_msg("case %zu, output %d: element %lld is %g, not %g", number, i, (long long)e,
                         (double)a[e], (double)b[e]);
            }
        }
    }
}

static void parts_ends(hth_graph *graph, const hth_node *node)
{
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] >= 0 && graph->values[node->inputs[i]].constant == NULL) {
            assert_int_equal(hth_graph_add_input(graph, node->inputs[i]), HTH_OK);
        }
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] >= 0) {
            assert_int_equal(hth_graph_add_output(graph, node->outputs[i]), HTH_OK);
        }
    }
}

static int parts_count(const hth_graph *graph, hth_op op)
{
    int count = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        count += graph->nodes[i].op == op;
    }
    return count;
}

static int parts_check(const parts_case *c, size_t number)
{
    fixture f;
    hth_graph *g;
    parts_open(&f, c, number + 1);
    parts_ends(f.graph, &f.graph->nodes[f.node]);
    assert_int_equal(hth_graph_clone(f.graph, &g), HTH_OK);
    assert_int_equal(hth_pass_attention_parts(g), HTH_OK);
    assert_int_equal(hth_graph_check(g), HTH_OK);
    assert_int_equal(parts_count(g, HTH_OP_ATTENTION), 0);
    assert_int_equal(hth_pass_simplify(g), HTH_OK);
    assert_int_equal(hth_pass_pattern(g), HTH_OK);
    assert_int_equal(hth_graph_compact(g), HTH_OK);
    assert_int_equal(hth_graph_check(g), HTH_OK);
    int fused = parts_count(g, HTH_OP_FUSED_ATTENTION);
    hth_tensor *want = parts_tensors(&f, f.graph), *got = parts_tensors(&f, g);
    for (int i = 0; i < g->n_inputs; i++) {
        memcpy(got[g->inputs[i]].data, want[f.graph->inputs[i]].data,
               want[f.graph->inputs[i]].bytes);
    }
    parts_run(f.graph, want, true);
    parts_run(g, got, false);
    parts_compare(g, got, f.graph, want, number);
    parts_free(want, f.graph->n_values);
    parts_free(got, g->n_values);
    hth_graph_free(g);
    fixture_close(&f);
    return fused;
}

static const parts_case parts_cases[] = {
    {false, 3, 3, 0, MASK_NONE, false, false, -1, -1, 0, 0, -1},
    {true, 3, 3, 0, MASK_NONE, true, false, -1, -1, 0, 0.3F, -1},
    {false, 4, 2, 0, MASK_NONE, true, false, -1, -1, 0, 0, 0},
    {true, 4, 1, 0, MASK_BOOL, false, false, -1, -1, 0, 0, -1},
    {false, 2, 2, 3, MASK_NONE, true, false, -1, -1, 0, 0, -1},
    {true, 4, 2, 3, MASK_NUMBERS, true, false, -1, -1, 0, 0, 3},
    {false, 4, 4, 0, MASK_HEADS, false, false, -1, -1, 2, 0, 1},
    {false, 2, 2, 0, MASK_SHORT, false, false, -1, -1, 0, 0, 2},
    {true, 2, 1, 2, MASK_SHORT, true, false, -1, -1, 1.5F, 0.7F, 2},
    {false, 2, 2, 0, MASK_NONE, false, false, 1, 2, 0, 0, -1},
    {true, 6, 3, 4, MASK_NONE, true, false, 2, -1, 0, 0, 3},
    {false, 2, 2, 0, MASK_NONE, true, true, -1, -1, 0, 0, -1},
    {false, 4, 2, 0, MASK_BOOL, true, true, 1, 0, 3, 0, 0},
    {true, 2, 2, 0, MASK_NUMBERS, false, true, -1, 1, 0, 0, 3},
    {false, 3, 1, 0, MASK_BOOL, false, false, -1, -1, 0.5F, 0, 1},
    {true, 2, 2, 0, MASK_BOOL, true, false, -1, -1, 0, 0, 2},
    {false, 6, 2, 0, MASK_NONE, false, false, 0, 1, 0, 0, -1},
};

static void attention_in_parts(void **state)
{
    int fused = 0;
    for (size_t i = 0; i < sizeof parts_cases / sizeof *parts_cases; i++) {
        fused += parts_check(&parts_cases[i], i);
    }
    print_message("# of %zu attentions %d became one kernel again\n",
                  sizeof parts_cases / sizeof *parts_cases, fused);
    assert_true(fused > 0);
}

// No parts of FP16: the node stays, and is refused with the reason.
static void other_types(void **state)
{
    fixture f;
    hth_kernel *k;
    parts_open(&f, &parts_cases[0], 1);
    for (int v = 0; v < f.graph->n_values; v++) {
        f.graph->values[v].dtype = HTH_DT_F16;
    }
    parts_ends(f.graph, &f.graph->nodes[f.node]);
    assert_int_equal(hth_pass_attention_parts(f.graph), HTH_OK);
    assert_int_equal(parts_count(f.graph, HTH_OP_ATTENTION), 1);
    assert_int_equal(cuda_test_prepare(f.graph, &f.graph->nodes[0], NULL, &k), HTH_ENOTSUP);
    assert_non_null(strstr(hth_err_detail(), "products and a Softmax"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_in_parts),
                                       cmocka_unit_test(other_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
