// SPDX-License-Identifier: Apache-2.0
// graph/passes/pass_attention_parts.c - Attention said in products and a Softmax, which have
// gradients.
//
// All scores are made at once: what a fused kernel would compute again in the backward pass, the
// planner may, if it pays. Queries of the heads that share keys are rows of one product, so keys
// and values are not repeated. What hides keys is a bias: of causal order and windows a constant,
// of masks and lengths, which come with the batch, computed. A row that may see no key gives zeros
// and gets none: its bias is 0, its result is multiplied by 0.
#include "graph/passes/pass.h"

#include "graph/autodiff/grad.h"
#include "graph/passes/pass_util.h"

#include "base/alloc.h"

#include <math.h>

typedef struct attention {
    hth_grad *c;
    const hth_node *n;
    int64_t batch, heads, shared, queries, keys, past, size, v_size; // shared: heads of keys
    int64_t left, right;                                             // window, -1: open
    int64_t together; // heads whose rows stay one after the other through the Softmax
    bool flat, causal;
    // [.., together * queries, keys] or -1; given: rows that see nothing are as they were
    int bias, bias_given;
    int seen; // [.., together * queries, 1]: 0 for rows that see nothing, else 1; -1: none do
} attention;

static int given(const attention *a, int k)
{
    return k < a->n->n_inputs ? a->n->inputs[k] : -1;
}

static int scaled(attention *a, int v, float factor)
{
    return factor == 1 ? v : hth_grad_2(a->c, HTH_OP_MUL, v, hth_grad_scalar(a->c, factor));
}

static int swapped_heads(attention *a, int v)
{
    hth_grad_begin(a->c, HTH_OP_TRANSPOSE, &v, 1, 1);
    hth_grad_ints(a->c, "perm", (int64_t[]){0, 2, 1, 3}, 4);
    return hth_grad_end(a->c);
}

// Operand k as [batch, heads, sequence, size], after its cache if there is one.
static int operand(attention *a, int k, int64_t heads, int cache)
{
    int v = given(a, k);
    const hth_shape s = *hth_grad_shape(a->c, v);
    if (a->flat) {
        hth_shape split = {4, {s.dim[0], s.dim[1], heads, s.dim[2] / heads}};
        v = swapped_heads(a, hth_grad_reshape(a->c, v, &split));
    }
    if (cache >= 0) {
        hth_grad_begin(a->c, HTH_OP_CONCAT, (int[]){cache, v}, 2, 1);
        hth_grad_int(a->c, "axis", 2);
        v = hth_grad_end(a->c);
    }
    return v;
}

static int transposed(attention *a, int v)
{
    hth_grad_begin(a->c, HTH_OP_TRANSPOSE, &v, 1, 1);
    hth_grad_ints(a->c, "perm", (int64_t[]){0, 1, 3, 2}, 4);
    return hth_grad_end(a->c);
}

// Heads that share keys, one after the other as rows; and apart again.
static int joined(attention *a, int v, int64_t columns)
{
    hth_shape s = {4, {a->batch, a->shared, a->heads / a->shared * a->queries, columns}};
    return hth_grad_reshape(a->c, v, &s);
}

static int apart(attention *a, int v, int64_t columns)
{
    return hth_grad_reshape(a->c, v, &(hth_shape){4, {a->batch, a->heads, a->queries, columns}});
}

static int constant(attention *a, hth_dtype dt, int64_t rows, int64_t columns, const void *data)
{
    hth_const *k = NULL;
    int v = -1;
    hth_grad *c = a->c;
    if (c->err == HTH_OK) {
        c->err = hth_const_new(dt, &(hth_shape){2, {rows, columns}}, data, &k);
    }
    if (c->err == HTH_OK) {
        c->err = hth_graph_add_const(c->g, NULL, k, &v);
    }
    if (c->err != HTH_OK) {
        hth_const_rele(k);
    }
    return c->err == HTH_OK ? v : -1;
}

// What order and windows hide where every key is valid: a constant, and which rows see nothing.
static void bias_of_order(attention *a)
{
    const int64_t rows = a->together * a->queries;
    float *bias = hth_grad_table(a->c, rows * a->keys, sizeof *bias),
          *seen = bias == NULL ? NULL : hth_grad_table(a->c, rows, sizeof *seen);
    bool any = false, blind = false;
    for (int64_t i = 0; seen != NULL && i < rows * a->keys; i++) {
        int64_t j = i % a->keys, at = i / a->keys % a->queries + a->past;
        bool hidden = (a->causal && j > at) || (a->left >= 0 && at - j > a->left) ||
                      (a->right >= 0 && j - at > a->right);
        bias[i] = hidden ? -INFINITY : 0;
        any |= hidden;
        seen[i / a->keys] = hidden ? seen[i / a->keys] : 1;
    }
    for (int64_t i = 0; seen != NULL && i < rows; i++) {
        blind |= seen[i] == 0;
    }
    if (any && seen != NULL) {
        a->bias = a->bias_given = constant(a, HTH_DT_F32, rows, a->keys, bias);
        a->seen = blind ? constant(a, HTH_DT_F32, rows, 1, seen) : -1;
    }
    hth_free(bias);
    hth_free(seen);
}

static int where(attention *a, int condition)
{
    hth_grad *c = a->c;
    return hth_grad_3(c, HTH_OP_WHERE, condition, hth_grad_scalar(c, 0),
                      hth_grad_scalar(c, -INFINITY));
}

// With lengths L key j is valid for j < L, and query i stands at i + L - queries: what is hidden is
// where L is at most one constant, or at least another.
static void bias_of_lengths(attention *a, int lengths)
{
    hth_grad *c = a->c;
    int64_t n = a->queries * a->keys;
    int64_t *low = hth_grad_table(a->c, 2 * n, sizeof *low);
    for (int64_t i = 0; low != NULL && i < n; i++) {
        int64_t j = i % a->keys, after = j - i / a->keys + a->queries; // L - after = at - j
        low[i] = a->causal && after - 1 > j ? after - 1 : j;
        low[i] = a->right >= 0 && after - a->right - 1 > low[i] ? after - a->right - 1 : low[i];
        low[n + i] = a->left + after + 1;
    }
    int least = low == NULL ? -1 : constant(a, HTH_DT_I64, a->queries, a->keys, low);
    int most = low == NULL ? -1 : constant(a, HTH_DT_I64, a->queries, a->keys, low + n);
    hth_free(low);
    int each = hth_grad_reshape(c, lengths, &(hth_shape){4, {a->batch, 1, 1, 1}});
    int keep = hth_grad_2(c, HTH_OP_GREATER, each, least);
    if (a->left >= 0) {
        keep = hth_grad_2(c, HTH_OP_AND, keep, hth_grad_2(c, HTH_OP_LESS, each, most));
    }
    a->bias = where(a, keep);
}

// A mask of booleans, or of numbers to add; keys after its end are hidden.
static void bias_of_mask(attention *a, int mask)
{
    hth_grad *c = a->c;
    const hth_shape s = *hth_grad_shape(c, mask);
    int64_t width = s.rank > 0 ? s.dim[s.rank - 1] : 1, back[2 * HTH_MAX_RANK] = {0};
    if (s.rank == 0) {
        mask = hth_grad_reshape(c, mask, &(hth_shape){1, {1}});
    }
    if (c->err == HTH_OK && c->g->values[mask].dtype == HTH_DT_BOOL) {
        mask = where(a, mask);
    }
    if (width != 1 && width < a->keys) {
        back[2 * s.rank - 1] = a->keys - width;
        int list = hth_grad_list(c, back, 2 * s.rank);
        mask = hth_grad_3(c, HTH_OP_PAD, mask, list, hth_grad_scalar(c, -INFINITY));
    }
    a->bias = a->bias < 0 ? mask : hth_grad_2(c, HTH_OP_ADD, a->bias, mask);
}

// Everything that hides keys, and the rows that see none.
static void make_bias(attention *a)
{
    hth_grad *c = a->c;
    int mask = given(a, 3), lengths = given(a, 6);
    int64_t last = -1;
    if (lengths >= 0) {
        bias_of_lengths(a, lengths);
    } else if (a->causal || a->left >= 0 || a->right >= 0) {
        bias_of_order(a);
    }
    if (mask >= 0) {
        bias_of_mask(a, mask);
    }
    a->bias_given = a->bias;
    if (mask >= 0 || lengths >= 0) { // known with the batch only
        int best = hth_grad_reduce(c, HTH_OP_REDUCE_MAX, a->bias, &last, 1, true);
        int seen = hth_grad_2(c, HTH_OP_GREATER, best, hth_grad_scalar(c, -INFINITY));
        a->bias = hth_grad_3(c, HTH_OP_WHERE, seen, a->bias, hth_grad_scalar(c, 0));
        hth_grad_begin(c, HTH_OP_CAST, &seen, 1, 1);
        hth_grad_int(c, "to", HTH_DT_F32);
        a->seen = hth_grad_end(c);
    } else if (a->seen >= 0) {
        int none = hth_grad_2(c, HTH_OP_EQUAL, a->seen, hth_grad_scalar(c, 0));
        a->bias = hth_grad_3(c, HTH_OP_WHERE, none, hth_grad_scalar(c, 0), a->bias);
    }
}

// The node's output k is `v`.
static void result(attention *a, int k, int v)
{
    hth_grad *c = a->c;
    if (k >= a->n->n_outputs || a->n->outputs[k] < 0) {
        return;
    }
    hth_grad_1(c, HTH_OP_IDENTITY, v);
    if (c->err == HTH_OK) {
        hth_pass_set_output(c->g, c->node, a->n->outputs[k]);
    }
}

static int visible(attention *a, int v)
{
    return a->seen < 0 ? v : hth_grad_2(a->c, HTH_OP_MUL, v, a->seen);
}

static void rewrite(attention *a)
{
    hth_grad *c = a->c;
    const hth_node *n = a->n;
    float cap = hth_node_float(n, "softcap", 0);
    int64_t mode = hth_node_int(n, "qk_matmul_output_mode", 0);
    float scale = hth_node_attr(n, "scale") != NULL ? hth_node_float(n, "scale", 1)
                                                    : (float)(1 / sqrt((double)a->size));
    int q = operand(a, 0, a->heads, -1), k = operand(a, 1, a->shared, given(a, 4)),
        v = operand(a, 2, a->shared, given(a, 5));
    result(a, 1, k);
    result(a, 2, v);
    int rows = joined(a, scaled(a, q, scale), a->size);
    int s = hth_grad_2(c, HTH_OP_MAT_MUL, rows, transposed(a, k));
    s = a->together > 1 ? s : apart(a, s, a->keys);
    int wanted = s; // the fourth output
    if (cap > 0) {
        s = scaled(a, hth_grad_1(c, HTH_OP_TANH, scaled(a, s, 1 / cap)), cap);
        wanted = mode > 0 ? s : wanted;
    }
    make_bias(a);
    if (a->bias >= 0) {
        wanted = mode == 2 ? hth_grad_2(c, HTH_OP_ADD, s, a->bias_given) : wanted;
        s = hth_grad_2(c, HTH_OP_ADD, s, a->bias);
    }
    hth_grad_begin(c, HTH_OP_SOFTMAX, &s, 1, 1);
    hth_grad_int(c, "axis", -1);
    int p = hth_grad_end(c);
    result(a, 3, mode == 3 ? visible(a, p) : wanted);
    int y = hth_grad_2(c, HTH_OP_MAT_MUL, a->together > 1 ? p : joined(a, p, a->keys), v);
    y = a->together > 1 ? apart(a, visible(a, y), a->v_size) : visible(a, apart(a, y, a->v_size));
    if (a->flat) {
        hth_shape whole = {3, {a->batch, a->queries, a->heads * a->v_size}};
        y = hth_grad_reshape(c, swapped_heads(a, y), &whole);
    }
    result(a, 0, y);
}

static void read_sizes(attention *a)
{
    const hth_graph *g = a->c->g;
    const hth_shape *q = &g->values[a->n->inputs[0]].shape, *k = &g->values[a->n->inputs[1]].shape,
                    *v = &g->values[a->n->inputs[2]].shape;
    a->flat = q->rank == 3;
    a->batch = q->dim[0];
    a->heads = a->flat ? hth_node_int(a->n, "q_num_heads", 1) : q->dim[1];
    a->shared = a->flat ? hth_node_int(a->n, "kv_num_heads", 1) : k->dim[1];
    a->queries = q->dim[a->flat ? 1 : 2];
    a->size = a->flat ? q->dim[2] / a->heads : q->dim[3];
    a->v_size = a->flat ? v->dim[2] / a->shared : v->dim[3];
    a->past = given(a, 4) >= 0 ? g->values[given(a, 4)].shape.dim[2] : 0;
    a->keys = a->past + k->dim[a->flat ? 1 : 2];
    a->causal = hth_node_int(a->n, "is_causal", 0) != 0;
    a->left = hth_node_int(a->n, "left_window_size", -1);
    a->right = hth_node_int(a->n, "right_window_size", -1);
    a->bias = a->bias_given = a->seen = -1;
    // masks, lengths and scores that are wanted are of single heads
    bool single =
        given(a, 3) >= 0 || given(a, 6) >= 0 || (a->n->n_outputs > 3 && a->n->outputs[3] >= 0);
    a->together = single ? 1 : a->heads / a->shared;
}

// All of f32, but for masks of booleans and lengths; nothing is empty but a cache.
static bool has_parts(const hth_graph *graph, const hth_node *node)
{
    for (int k = 0; k < node->n_inputs; k++) {
        const hth_value *v = node->inputs[k] >= 0 ? &graph->values[node->inputs[k]] : NULL;
        bool cache = k == 4 || k == 5;
        bool fits = v == NULL || v->dtype == (k == 6 ? HTH_DT_I64 : HTH_DT_F32) ||
                    (k == 3 && v->dtype == HTH_DT_BOOL);
        if (!fits || (v != NULL && !cache && hth_shape_elements(&v->shape) == 0)) {
            return false;
        }
    }
    return true;
}

hth_err hth_pass_attention_parts(hth_graph *graph)
{
    int n_nodes = graph->n_nodes;
    for (int i = 0; i < n_nodes; i++) {
        const hth_node n = graph->nodes[i]; // nodes move while others are added
        if (n.op != HTH_OP_ATTENTION || !has_parts(graph, &n)) {
            continue;
        }
        hth_grad c = {.g = graph, .forward = i, .kind = "part"};
        attention a = {.c = &c, .n = &n};
        read_sizes(&a);
        rewrite(&a);
        HTH_TRY(c.err);
        graph->nodes[i].deleted = true;
    }
    HTH_TRY(graph->n_nodes > n_nodes ? hth_graph_sort(graph) : HTH_OK);
    return hth_graph_compact(graph);
}
