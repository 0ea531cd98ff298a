// SPDX-License-Identifier: Apache-2.0
// Patterns: what exporters write out in elementary operators becomes the one operator that it is.
// Each finder is called with the node that it is anchored at (an Erf, a Tanh, a Sigmoid, a Sqrt,
// ..), walks its neighbours, and rewrites the last node of the pattern in place; what became unused
// falls to compaction. From the anchor on, inner values must have no other reader; what comes
// before it may have one, and is then computed for that one, too.
#include "graph/passes/pass.h"

#include "base/alloc.h"
#include "graph/passes/pass_attention.h"
#include "graph/passes/pass_util.h"

#include <math.h>

// only_user returns the only reader of node n's result if it is an `op`, else -1.
static int only_user(const hth_graph *graph, const hth_uses *uses, int node, hth_op op)
{
    int user = hth_uses_only(graph, uses, graph->nodes[node].outputs[0]);
    return user >= 0 && graph->nodes[user].op == op && !graph->nodes[user].deleted &&
                   graph->nodes[user].n_post == 0
               ? user
               : -1;
}

// other_operand returns the operand of binary node `node` that is not `value`, or -1 when `value`
// is not an operand.
static int other_operand(const hth_node *node, int value)
{
    if (node->n_inputs != 2) {
        return -1;
    }
    if (node->inputs[0] == value) {
        return node->inputs[1];
    }
    return node->inputs[1] == value ? node->inputs[0] : -1;
}

// scalar_operand stores the constant scalar operand of `node` and returns the other operand, or -1.
static int scalar_operand(const hth_graph *graph, const hth_node *node, float *c)
{
    for (int k = 0; k < 2 && node->n_inputs == 2; k++) {
        if (hth_pass_scalar(graph, node->inputs[k], c)) {
            return node->inputs[1 - k];
        }
    }
    return -1;
}

static bool near(float a, float b)
{
    return fabsf(a - b) <= 1e-3f * fabsf(b);
}

// become turns node `at` into the unary (or n-ary) operator `op` over `inputs`.
static hth_err become(hth_graph *graph, int at, hth_op op, const int *inputs, int n_inputs)
{
    hth_node *n = &graph->nodes[at];
    int *copy = hth_memdup(inputs, (size_t)n_inputs * sizeof *inputs);
    if (copy == NULL) {
        return hth_no_memory("a graph pass");
    }
    for (int i = 0; i < n->n_attrs; i++) {
        n->attrs[i].name[0] = '\0'; // the old operator's attributes mean nothing to the new one
    }
    hth_free(n->inputs);
    n->inputs = copy;
    n->n_inputs = n_inputs;
    n->op = op;
    return HTH_OK;
}

// gelu_tail finds, after value `v` = 1 + erf(..) or 1 + tanh(..), the product 0.5 * x * v in any
// order; returns its last node, or -1.
static int gelu_tail(const hth_graph *graph, const hth_uses *uses, int add, int x)
{
    float c;
    int m = only_user(graph, uses, add, HTH_OP_MUL);
    if (m < 0) {
        return -1;
    }
    int other = other_operand(&graph->nodes[m], graph->nodes[add].outputs[0]);
    if (other == x) { // (x * v) * 0.5
        int half = only_user(graph, uses, m, HTH_OP_MUL);
        return half >= 0 && scalar_operand(graph, &graph->nodes[half], &c) >= 0 && near(c, 0.5f)
                   ? half
                   : -1;
    }
    int p = other < 0 ? -1 : graph->values[other].producer;
    if (p >= 0 && graph->nodes[p].op == HTH_OP_MUL &&
        scalar_operand(graph, &graph->nodes[p], &c) == x && near(c, 0.5f)) {
        return m; // (x * 0.5) * v
    }
    if (hth_pass_scalar(graph, other, &c) && near(c, 0.5f)) { // (v * 0.5) * x
        int last = only_user(graph, uses, m, HTH_OP_MUL);
        return last >= 0 && other_operand(&graph->nodes[last], graph->nodes[m].outputs[0]) == x
                   ? last
                   : -1;
    }
    return -1;
}

static hth_err gelu_become(hth_graph *graph, int last, int x, bool tanh_form)
{
    HTH_TRY(become(graph, last, HTH_OP_GELU, &x, 1));
    return hth_node_set_str(&graph->nodes[last], "approximate", tanh_form ? "tanh" : "none");
}

// Hendrycks and Gimpel 2016: 0.5 x (1 + erf(x / sqrt 2)).
static hth_err find_gelu_erf(hth_graph *graph, const hth_uses *uses, int i)
{
    float c;
    const hth_node *scale = hth_pass_producer(graph, &graph->nodes[i], 0, HTH_OP_DIV);
    bool divides = scale != NULL;
    scale = divides ? scale : hth_pass_producer(graph, &graph->nodes[i], 0, HTH_OP_MUL);
    int x = scale == NULL ? -1 : scalar_operand(graph, scale, &c);
    int add = only_user(graph, uses, i, HTH_OP_ADD);
    if (x < 0 || add < 0 || !near(divides ? c : 1 / c, 1.41421356f) ||
        (divides && scale->inputs[0] != x) || scalar_operand(graph, &graph->nodes[add], &c) < 0 ||
        !near(c, 1)) {
        return HTH_OK;
    }
    int last = gelu_tail(graph, uses, add, x);
    return last < 0 ? HTH_OK : gelu_become(graph, last, x, false);
}

// is_cube says that value `v` is x^3.
static bool is_cube(const hth_graph *graph, int v, int x)
{
    int p = v < 0 ? -1 : graph->values[v].producer;
    const hth_node *n = p < 0 ? NULL : &graph->nodes[p];
    if (n != NULL && n->op == HTH_OP_POW) {
        return n->inputs[0] == x && hth_pass_near(graph, n->inputs[1], 3);
    }
    int square = n != NULL && n->op == HTH_OP_MUL ? other_operand(n, x) : -1;
    int q = square < 0 ? -1 : graph->values[square].producer;
    return q >= 0 && ((graph->nodes[q].op == HTH_OP_MUL && graph->nodes[q].inputs[0] == x &&
                       graph->nodes[q].inputs[1] == x) ||
                      (graph->nodes[q].op == HTH_OP_POW && graph->nodes[q].inputs[0] == x &&
                       hth_pass_near(graph, graph->nodes[q].inputs[1], 2)));
}

// The tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
static hth_err find_gelu_tanh(hth_graph *graph, const hth_uses *uses, int i)
{
    float c;
    const hth_node *outer = hth_pass_producer(graph, &graph->nodes[i], 0, HTH_OP_MUL);
    int sum = outer == NULL ? -1 : scalar_operand(graph, outer, &c);
    int p = sum < 0 || !near(c, 0.7978845608f) ? -1 : graph->values[sum].producer;
    if (p < 0 || graph->nodes[p].op != HTH_OP_ADD) {
        return HTH_OK;
    }
    int add = only_user(graph, uses, i, HTH_OP_ADD);
    if (add < 0 || scalar_operand(graph, &graph->nodes[add], &c) < 0 || !near(c, 1)) {
        return HTH_OK;
    }
    for (int k = 0; k < 2; k++) {
        int x = graph->nodes[p].inputs[k];
        const hth_node *cubic = hth_pass_producer(graph, &graph->nodes[p], 1 - k, HTH_OP_MUL);
        int cube = cubic == NULL ? -1 : scalar_operand(graph, cubic, &c);
        if (cube >= 0 && near(c, 0.044715f) && is_cube(graph, cube, x)) {
            int last = gelu_tail(graph, uses, add, x);
            return last < 0 ? HTH_OK : gelu_become(graph, last, x, true);
        }
    }
    return HTH_OK;
}

// x * sigmoid(x) is Swish; x * hardsigmoid(x) with slope 1/6 is HardSwish.
static hth_err find_gated(hth_graph *graph, const hth_uses *uses, int i)
{
    const hth_node *gate = &graph->nodes[i];
    int x = gate->inputs[0], last = only_user(graph, uses, i, HTH_OP_MUL);
    if (last < 0 || other_operand(&graph->nodes[last], gate->outputs[0]) != x) {
        return HTH_OK;
    }
    if (gate->op == HTH_OP_HARD_SIGMOID && (!near(hth_node_float(gate, "alpha", 0.2f), 1.0f / 6) ||
                                            !near(hth_node_float(gate, "beta", 0.5f), 0.5f))) {
        return HTH_OK;
    }
    return become(graph, last, gate->op == HTH_OP_SIGMOID ? HTH_OP_SWISH : HTH_OP_HARD_SWISH, &x,
                  1);
}

// mean_of_last says that value `v` is ReduceMean over the last axis, kept; returns what it reduces,
// or -1.
static int mean_of_last(const hth_graph *graph, int v)
{
    int p = v < 0 ? -1 : graph->values[v].producer;
    int64_t axis;
    if (p < 0 || graph->nodes[p].op != HTH_OP_REDUCE_MEAN ||
        hth_node_int(&graph->nodes[p], "keepdims", 1) != 1 || graph->nodes[p].n_inputs < 2 ||
        hth_pass_ints(graph, graph->nodes[p].inputs[1], &axis, 1) != 1) {
        return -1;
    }
    int x = graph->nodes[p].inputs[0];
    return axis == -1 || axis == graph->values[x].shape.rank - 1 ? x : -1;
}

// square_of returns y when value `v` is y * y, else -1.
static int square_of(const hth_graph *graph, int v)
{
    int p = v < 0 ? -1 : graph->values[v].producer;
    if (p < 0) {
        return -1;
    }
    const hth_node *n = &graph->nodes[p];
    bool square = (n->op == HTH_OP_POW && hth_pass_near(graph, n->inputs[1], 2)) ||
                  (n->op == HTH_OP_MUL && n->inputs[0] == n->inputs[1]);
    return square ? n->inputs[0] : -1;
}

// vector_operand returns the constant (or parameter) f32 [n] operand of `op` node `at`, where n is
// the last dimension; -1 otherwise.
static int vector_operand(const hth_graph *graph, int at, int data)
{
    int c = at < 0 ? -1 : other_operand(&graph->nodes[at], data);
    const hth_shape *s = &graph->values[data].shape;
    return c >= 0 && graph->values[c].producer < 0 && graph->values[c].shape.rank == 1 &&
                   graph->values[c].shape.dim[0] == s->dim[s->rank - 1]
               ? c
               : -1;
}

// Ba et al. 2016, written out: d = x - mean(x); d / sqrt(mean(d^2) + eps) * weight + bias. Anchored
// at the Sqrt. Without the mean it is RMS normalisation (Zhang and Sennrich 2019).
static hth_err find_layer_norm(hth_graph *graph, const hth_uses *uses, int i)
{
    float eps;
    const hth_node *plus = hth_pass_producer(graph, &graph->nodes[i], 0, HTH_OP_ADD);
    int var = plus == NULL ? -1 : scalar_operand(graph, plus, &eps);
    int d = square_of(graph, mean_of_last(graph, var));
    int div = only_user(graph, uses, i, HTH_OP_DIV);
    if (d < 0 || div < 0 || graph->values[d].dtype != HTH_DT_F32 ||
        graph->nodes[div].inputs[0] != d ||
        graph->nodes[div].inputs[1] != graph->nodes[i].outputs[0]) {
        return HTH_OK;
    }
    const hth_node *sub =
        graph->values[d].producer < 0 ? NULL : &graph->nodes[graph->values[d].producer];
    bool centred = sub != NULL && sub->op == HTH_OP_SUB &&
                   mean_of_last(graph, sub->inputs[1]) == sub->inputs[0];
    int mul = only_user(graph, uses, div, HTH_OP_MUL);
    int weight = vector_operand(graph, mul, graph->nodes[div].outputs[0]);
    if (weight < 0) {
        return HTH_OK;
    }
    int add = centred ? only_user(graph, uses, mul, HTH_OP_ADD) : -1;
    int bias = vector_operand(graph, add, graph->nodes[mul].outputs[0]);
    int last = bias >= 0 ? add : mul;
    const int in[3] = {centred ? sub->inputs[0] : d, weight, bias};
    hth_op op = centred ? HTH_OP_LAYER_NORMALIZATION : HTH_OP_RMSNORMALIZATION;
    HTH_TRY(become(graph, last, op, in, bias >= 0 ? 3 : 2));
    HTH_TRY(hth_node_set_int(&graph->nodes[last], "axis", -1));
    return hth_node_set_float(&graph->nodes[last], "epsilon", eps);
}

// ReduceMean over all spatial axes, kept, is GlobalAveragePool, of at most three dimensions as all
// windows are. (Not kept: a Reshape after would be needed; the mean over [C, H*W] is as fast as it
// stands.)
static hth_err find_global_pool(hth_graph *graph, int i)
{
    const hth_node *n = &graph->nodes[i];
    const hth_value *x = &graph->values[n->inputs[0]];
    int64_t axes[HTH_MAX_RANK];
    unsigned seen = 0;
    int rank = x->shape.rank,
        k = n->n_inputs > 1 ? hth_pass_ints(graph, n->inputs[1], axes, HTH_MAX_RANK) : -1;
    if (rank < 4 || rank > 5 || k != rank - 2 || x->dtype != HTH_DT_F32 ||
        hth_node_int(n, "keepdims", 1) != 1) {
        return HTH_OK;
    }
    for (int a = 0; a < k; a++) {
        int64_t axis = axes[a] < 0 ? axes[a] + rank : axes[a];
        seen |= axis >= 2 && axis < rank ? 1u << axis : 0;
    }
    int in = n->inputs[0];
    return seen == (1u << rank) - 4 ? become(graph, i, HTH_OP_GLOBAL_AVERAGE_POOL, &in, 1) : HTH_OK;
}

static hth_err pattern_node(hth_graph *graph, const hth_uses *uses, int i)
{
    const hth_node *n = &graph->nodes[i];
    if (n->deleted || n->n_post > 0 || n->outputs[0] < 0) {
        return HTH_OK;
    }
    switch (n->op) {
    case HTH_OP_ERF:
        return find_gelu_erf(graph, uses, i);
    case HTH_OP_TANH:
        return find_gelu_tanh(graph, uses, i);
    case HTH_OP_SIGMOID:
    case HTH_OP_HARD_SIGMOID:
        return find_gated(graph, uses, i);
    case HTH_OP_SQRT:
        return find_layer_norm(graph, uses, i);
    case HTH_OP_REDUCE_MEAN:
        return find_global_pool(graph, i);
    default:
        return HTH_OK;
    }
}

static hth_err pattern(hth_graph *graph, bool attention)
{
    hth_uses u;
    HTH_TRY(hth_pass_einsum(graph));
    HTH_TRY(hth_uses_open(graph, &u));
    hth_err err = HTH_OK;
    for (int i = 0; i < graph->n_nodes && err == HTH_OK; i++) {
        err = pattern_node(graph, &u, i);
    }
    if (err == HTH_OK && attention) {
        err = hth_pass_attention(graph, &u);
    }
    hth_uses_close(&u);
    HTH_TRY(err);
    return hth_graph_compact(graph);
}

hth_err hth_pass_pattern(hth_graph *graph)
{
    return pattern(graph, true);
}

hth_err hth_pass_elementary(hth_graph *graph)
{
    return pattern(graph, false);
}
