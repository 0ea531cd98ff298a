// SPDX-License-Identifier: Apache-2.0
// Element-wise operators. Those of f32 are chains: the operator's own steps, then its post ops, in
// one kernel. Other types go through hth_typed.
#include "kernels/cuda/seq.h"

#include "graph/autodiff/train.h"

#include <string.h>

// Chains.

void hth_cuda_chain_begin(hth_cuda_chain *chain, const hth_value *value)
{
    memset(chain, 0, sizeof *chain);
    chain->p.n = hth_cuda_count(value);
    chain->p.half = hth_cuda_half(value);
    chain->lies = value->layout;
    hth_cuda_loop_begin(&chain->loop, &value->shape, value->layout);
}

static int chain_add(hth_cuda_chain *chain, const hth_shape *shape, hth_layout lies, bool half,
                     hth_cuda_from from, int index, size_t offset)
{
    if (chain->loop.n == HTH_CHAIN_OPERANDS) {
        chain->full = true;
        return 0;
    }
    int k = hth_cuda_loop_add(&chain->loop, shape, lies);
    int64_t count = hth_shape_elements(shape);
    bool same = count == (int64_t)chain->p.n && lies == chain->lies;
    chain->p.operand[k].mode = same ? HTH_CHAIN_SAME : HTH_CHAIN_STRIDED;
    if (count == 1) {
        chain->p.operand[k].mode = HTH_CHAIN_ONE;
    }
    chain->p.operand[k].half = half;
    chain->at[k].from = from;
    chain->at[k].index = index;
    chain->at[k].offset = offset;
    chain->moved_bytes += (size_t)count * (half ? sizeof(uint16_t) : sizeof(float));
    return k;
}

int hth_cuda_chain_value(hth_cuda_chain *chain, const hth_value *value, hth_cuda_from from,
                         int index)
{
    return chain_add(chain, &value->shape, value->layout, hth_cuda_half(value), from, index, 0);
}

int hth_cuda_chain_operand(hth_cuda_chain *chain, const hth_shape *shape, hth_cuda_from from,
                           int index, size_t offset)
{
    return chain_add(chain, shape, HTH_LAYOUT_PLAIN, false, from, index, offset);
}

void hth_cuda_chain_step(hth_cuda_chain *chain, hth_op op, int operand, float alpha, float beta)
{
    if (chain->p.n_steps == HTH_CHAIN_STEPS) {
        chain->full = true;
        return;
    }
    chain->p.step[chain->p.n_steps++] = (hth_chain_step){op, 0, operand, alpha, beta};
}

void hth_cuda_chain_posts(hth_cuda_chain *chain, const hth_graph *graph, const hth_node *node)
{
    for (int i = 0; i < node->n_post; i++) {
        const hth_post_op *p = &node->post[i];
        int operand = -1;
        if (p->input >= 0) {
            const hth_value *v = &graph->values[node->inputs[p->input]];
            operand = hth_cuda_chain_value(chain, v, HTH_CUDA_IN, p->input);
        }
        hth_cuda_chain_step(chain, p->op, operand, p->alpha, p->beta);
    }
}

hth_err hth_cuda_chain_end(hth_cuda_seq *seq, hth_cuda_chain *chain, int out)
{
    hth_steps steps[HTH_CUDA_OPERANDS];
    if (chain->full) {
        return hth_fail(HTH_ENOTSUP, "more than %d operands or %d steps", HTH_CHAIN_OPERANDS,
                        HTH_CHAIN_STEPS);
    }
    hth_cuda_loop_fold(&chain->loop);
    HTH_TRY(hth_cuda_loop_store(&chain->loop, &chain->p.dims, steps));
    for (int k = 0; k < chain->loop.n; k++) {
        chain->p.operand[k].steps = steps[k];
    }
    hth_cuda_launch_add(seq, HTH_CUDA_hth_chain,
                        hth_cuda_blocks(seq, (chain->p.n + 3u) / 4u, false), 0, 0, &chain->p,
                        sizeof chain->p);
    hth_cuda_bind(seq, offsetof(hth_chain_params, out), HTH_CUDA_OUT, out, 0);
    for (int k = 0; k < chain->loop.n; k++) {
        hth_cuda_bind(seq,
                      offsetof(hth_chain_params, operand) + (size_t)k * sizeof chain->p.operand[0],
                      chain->at[k].from, chain->at[k].index, chain->at[k].offset);
    }
    seq->moved_bytes +=
        chain->moved_bytes + chain->p.n * (chain->p.half ? sizeof(uint16_t) : sizeof(float));
    return HTH_OK;
}

bool hth_cuda_chain_takes(const hth_post_op *op)
{
    switch (op->op) {
    case HTH_OP_RELU:
    case HTH_OP_SIGMOID:
    case HTH_OP_TANH:
    case HTH_OP_HARD_SWISH:
    case HTH_OP_CLIP:
    case HTH_OP_SWISH:
    case HTH_OP_GELU:
    case HTH_OP_HARD_SIGMOID:
    case HTH_OP_ELU:
    case HTH_OP_LEAKY_RELU:
        return op->input < 0;
    case HTH_OP_ADD:
    case HTH_OP_MUL:
    case HTH_OP_RELU_GRAD:
        return op->input >= 0;
    default:
        return false;
    }
}

// The attributes that the formulas of chain.cu call alpha and beta, and their defaults.
static void element_attributes(const hth_node *node, hth_op op, float *a, float *b)
{
    static const struct {
        hth_op op;
        const char *a, *b;
        float alpha, beta;
    } table[] = {
        {HTH_OP_CELU, "alpha", NULL, 1, 0},
        {HTH_OP_ELU, "alpha", NULL, 1, 0},
        {HTH_OP_HARD_SIGMOID, "alpha", "beta", 0.2f, 0.5f},
        {HTH_OP_LEAKY_RELU, "alpha", NULL, 0.01f, 0},
        {HTH_OP_SELU, "alpha", "gamma", 1.67326319217681884765625f, 1.05070102214813232421875f},
        {HTH_OP_SHRINK, "bias", "lambd", 0, 0.5f},
        {HTH_OP_SWISH, "alpha", NULL, 1, 0},
        {HTH_OP_THRESHOLDED_RELU, "alpha", NULL, 1, 0},
    };
    *a = *b = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].op == op) {
            *a = hth_node_float(node, table[i].a, table[i].alpha);
            *b = table[i].b != NULL ? hth_node_float(node, table[i].b, table[i].beta) : 0;
        }
    }
    if (op == HTH_OP_GELU) {
        *a = hth_node_str(node, "approximate", "none")[0] == 't';
    }
}

static bool element_binary(hth_op op)
{
    return op == HTH_OP_ADD || op == HTH_OP_SUB || op == HTH_OP_MUL || op == HTH_OP_DIV ||
           op == HTH_OP_POW || op == HTH_OP_PRELU;
}

static bool element_variadic(hth_op op)
{
    return op == HTH_OP_SUM || op == HTH_OP_MEAN || op == HTH_OP_MIN || op == HTH_OP_MAX;
}

static hth_err element_own_steps(hth_cuda_chain *chain, const hth_graph *graph,
                                 const hth_node *node, const int *operand, int count)
{
    float a = 0, b = 0;
    if (element_binary(node->op) || element_variadic(node->op)) {
        hth_op op = node->op == HTH_OP_SUM || node->op == HTH_OP_MEAN ? HTH_OP_ADD : node->op;
        for (int i = 1; i < count; i++) {
            hth_cuda_chain_step(chain, op, operand[i], 1, 0);
        }
        if (node->op == HTH_OP_MEAN) {
            hth_cuda_chain_step(chain, node->op, -1, 1 / (float)count, 0);
        }
        return HTH_OK;
    }
    if (node->op == HTH_OP_RELU_GRAD) {
        float low = hth_node_float(node, "low", 0), high = hth_node_float(node, "high", INFINITY);
        if (count > 2) {
            hth_cuda_chain_step(chain, HTH_OP_ADD, operand[2], 1, 0);
        }
        hth_cuda_chain_step(chain, node->op, operand[1], low, high);
        return HTH_OK;
    }
    if (node->op == HTH_OP_ELEMENT_GRAD) {
        hth_op of = hth_op_find(hth_node_str(node, "of", ""));
        element_attributes(node, of, &a, &b);
        hth_cuda_chain_step(chain, node->op, operand[1], a, b);
        chain->p.step[chain->p.n_steps - 1].of = of;
        return HTH_OK;
    }
    if (node->op == HTH_OP_CLIP) {
        HTH_TRY(hth_cuda_float(graph, node, 1, -INFINITY, &a));
        HTH_TRY(hth_cuda_float(graph, node, 2, INFINITY, &b));
    } else {
        element_attributes(node, node->op, &a, &b);
    }
    hth_cuda_chain_step(chain, node->op, -1, a, b);
    return HTH_OK;
}

static int element_operands(const hth_graph *graph, const hth_node *node)
{
    int count = 0;
    while (hth_cuda_in(graph, node, count) != NULL) {
        count++;
    }
    bool several = element_binary(node->op) || element_variadic(node->op) ||
                   node->op == HTH_OP_RELU_GRAD || node->op == HTH_OP_ELEMENT_GRAD;
    return several ? count : 1;
}

hth_err hth_cuda_element(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                         const char *algorithm)
{
    const hth_value *y = hth_cuda_out(graph, node, 0);
    int operand[HTH_CHAIN_OPERANDS], count = element_operands(graph, node);
    hth_cuda_chain c;
    const hth_value *exponent = node->op == HTH_OP_POW ? hth_cuda_in(graph, node, 1) : NULL;
    if ((y->dtype != HTH_DT_F32 && y->dtype != HTH_DT_BF16) ||
        (exponent != NULL && !hth_dtype_is_float(exponent->dtype))) {
        return hth_cuda_typed(seq, graph, node, algorithm);
    }
    HTH_TRY(hth_cuda_need_float(graph, node, count, 1));
    if (count > HTH_CHAIN_OPERANDS) {
        return hth_fail(HTH_ENOTSUP, "%d inputs: at most %d", count, HTH_CHAIN_OPERANDS);
    }
    hth_cuda_chain_begin(&c, y);
    for (int i = 0; i < count; i++) {
        operand[i] = hth_cuda_chain_value(&c, hth_cuda_in(graph, node, i), HTH_CUDA_IN, i);
    }
    HTH_TRY(element_own_steps(&c, graph, node, operand, count));
    hth_cuda_chain_posts(&c, graph, node);
    seq->posts_done = true;
    bool like = c.p.operand[0].mode == HTH_CHAIN_SAME && c.p.operand[0].half == c.p.half;
    seq->base.inplace_input = like ? 0 : -1;
    return hth_cuda_chain_end(seq, &c, 0);
}

// A value per channel (axis 1) of an image of shape.
static hth_shape element_channels(const hth_shape *shape)
{
    hth_shape s = {.rank = shape->rank};
    for (int d = 0; d < shape->rank; d++) {
        s.dim[d] = d == 1 ? shape->dim[1] : 1;
    }
    return s;
}

// ScaleShift: x * scale + shift. BatchNormalization: (x - mean) / sqrt(var + eps) * scale + bias.
hth_err hth_cuda_scale_shift(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                             const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    bool norm = node->op == HTH_OP_BATCH_NORMALIZATION;
    int count = norm ? 5 : 3, k[5];
    hth_cuda_chain c;
    const hth_value *y = hth_cuda_out(graph, node, 0);
    HTH_TRY(hth_cuda_need_float(graph, node, 1, 1));
    for (int i = 1; i < count; i++) {
        HTH_TRY(hth_cuda_in(graph, node, i)->dtype == HTH_DT_F32
                    ? HTH_OK
                    : hth_fail(HTH_ENOTSUP, "parameters that are not FP32"));
    }
    if (x->shape.rank < 2 || hth_node_int(node, "training_mode", 0) != 0) {
        return hth_fail(HTH_ENOTSUP, "no channels, or training_mode");
    }
    hth_shape channels = element_channels(&x->shape);
    hth_cuda_chain_begin(&c, y);
    k[0] = hth_cuda_chain_value(&c, x, HTH_CUDA_IN, 0);
    for (int i = 1; i < count; i++) {
        k[i] = hth_cuda_chain_operand(&c, &channels, HTH_CUDA_IN, i, 0);
    }
    if (norm) {
        hth_cuda_chain_step(&c, HTH_OP_SUB, k[3], 0, 0);
        hth_cuda_chain_step(&c, node->op, k[4], hth_node_float(node, "epsilon", 1e-5f), 0);
    }
    hth_cuda_chain_step(&c, HTH_OP_MUL, k[1], 0, 0);
    hth_cuda_chain_step(&c, HTH_OP_ADD, k[2], 1, 0);
    hth_cuda_chain_posts(&c, graph, node);
    seq->posts_done = true;
    seq->base.inplace_input = x->dtype == y->dtype ? 0 : -1;
    return hth_cuda_chain_end(seq, &c, 0);
}

// Other types.

// Whether hth_typed has operator `op` of floats.
static bool typed_of_floats(hth_op op)
{
    switch (op) {
    case HTH_OP_CAST:
    case HTH_OP_CAST_LIKE:
    case HTH_OP_WHERE:
    case HTH_OP_MOD:
    case HTH_OP_POW:
    case HTH_OP_CLIP:
    case HTH_OP_ADD:
    case HTH_OP_SUB:
    case HTH_OP_MUL:
    case HTH_OP_DIV:
    case HTH_OP_MIN:
    case HTH_OP_MAX:
    case HTH_OP_NEG:
    case HTH_OP_ABS:
    case HTH_OP_RELU:
        return true;
    default:
        return false;
    }
}

static hth_err typed_check(const hth_graph *graph, const hth_node *node, int count)
{
    for (int i = 0; i < count; i++) {
        if (hth_cuda_in(graph, node, i) == NULL && node->op != HTH_OP_CLIP) {
            return hth_fail(HTH_ENOTSUP, "an input is absent");
        }
    }
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    if (!typed_of_floats(node->op) && hth_dtype_is_float(x->dtype) && y->dtype != HTH_DT_BOOL) {
        return hth_fail(HTH_ENOTSUP, "%s", hth_dtype_name(x->dtype));
    }
    return HTH_OK;
}

static int typed_operands(hth_op op)
{
    switch (op) {
    case HTH_OP_WHERE:
    case HTH_OP_CLIP:
        return 3;
    case HTH_OP_CAST:
    case HTH_OP_CAST_LIKE:
    case HTH_OP_NOT:
    case HTH_OP_BITWISE_NOT:
    case HTH_OP_IS_NA_N:
    case HTH_OP_IS_INF:
    case HTH_OP_NEG:
    case HTH_OP_ABS:
    case HTH_OP_SIGN:
    case HTH_OP_RELU:
        return 1;
    case HTH_OP_ADD:
    case HTH_OP_SUB:
    case HTH_OP_MUL:
    case HTH_OP_DIV:
    case HTH_OP_MIN:
    case HTH_OP_MAX:
    case HTH_OP_MOD:
    case HTH_OP_POW:
    case HTH_OP_BIT_SHIFT:
    case HTH_OP_BITWISE_AND:
    case HTH_OP_BITWISE_OR:
    case HTH_OP_BITWISE_XOR:
    case HTH_OP_AND:
    case HTH_OP_OR:
    case HTH_OP_XOR:
    case HTH_OP_EQUAL:
    case HTH_OP_LESS:
    case HTH_OP_LESS_OR_EQUAL:
    case HTH_OP_GREATER:
    case HTH_OP_GREATER_OR_EQUAL:
        return 2;
    default:
        return 0;
    }
}

hth_err hth_cuda_typed(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                       const char *algorithm)
{
    const hth_value *y = hth_cuda_out(graph, node, 0);
    const hth_shape scalar = {.rank = 0};
    int count = typed_operands(node->op);
    hth_cuda_loop l;
    if (count == 0 || (count == 2 && hth_cuda_in(graph, node, 2) != NULL)) {
        return hth_fail(HTH_ENOTSUP, "%s", hth_dtype_name(y->dtype));
    }
    HTH_TRY(typed_check(graph, node, count));
    hth_typed_params p = {.n = hth_cuda_count(y),
                          .op = node->op,
                          .n_operands = count,
                          .out_type = y->dtype,
                          .flags = hth_node_int(node, "detect_positive", 1) != 0};
    p.flags |= (hth_node_int(node, "detect_negative", 1) != 0) << 1;
    p.flags |= (hth_node_int(node, "fmod", 0) != 0) << 2;
    p.flags |= (strcmp(hth_node_str(node, "direction", "LEFT"), "RIGHT") != 0) << 3;
    hth_cuda_loop_begin(&l, &y->shape, HTH_LAYOUT_PLAIN);
    for (int i = 0; i < count; i++) {
        const hth_value *v = hth_cuda_in(graph, node, i); // NULL: a bound that is absent
        hth_cuda_loop_add(&l, v != NULL ? &v->shape : &scalar, HTH_LAYOUT_PLAIN);
        p.type[i] = v != NULL ? v->dtype : y->dtype;
        seq->moved_bytes += v != NULL ? hth_cuda_bytes(v) : 0;
    }
    hth_cuda_loop_fold(&l);
    HTH_TRY(hth_cuda_loop_store(&l, &p.dims, p.steps));
    hth_cuda_launch_add(seq, HTH_CUDA_hth_typed, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_typed_params, out), HTH_CUDA_OUT, 0, 0);
    for (int i = 0; i < count; i++) {
        size_t at = offsetof(hth_typed_params, in) + (size_t)i * sizeof p.in[0];
        if (hth_cuda_in(graph, node, i) != NULL) {
            hth_cuda_bind(seq, at, HTH_CUDA_IN, i, 0);
        }
    }
    seq->moved_bytes += hth_cuda_bytes(y);
    return HTH_OK;
}
