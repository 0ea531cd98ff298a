// SPDX-License-Identifier: Apache-2.0
// Element-wise operators. Those of f32 are chains: the operator's own steps, then its post ops, in
// one kernel. Other types go through hth_typed.
#include "kernels/cuda/seq.h"

#include "graph/autodiff/train.h"

#include <string.h>

// Chains.

void hth_cuda_chain_begin(hth_cuda_chain *c, const hth_value *y)
{
    memset(c, 0, sizeof *c);
    c->p.n = hth_cuda_count(y);
    c->p.half = hth_cuda_half(y);
    c->lies = y->layout;
    hth_cuda_loop_begin(&c->loop, &y->shape, y->layout);
}

static int chain_add(hth_cuda_chain *c, const hth_shape *s, hth_layout lies, bool half,
                     hth_cuda_from from, int index, size_t offset)
{
    if (c->loop.n == HTH_CHAIN_OPERANDS) {
        c->full = true;
        return 0;
    }
    int k = hth_cuda_loop_add(&c->loop, s, lies);
    int64_t count = hth_shape_elements(s);
    bool same = count == (int64_t)c->p.n && lies == c->lies;
    c->p.operand[k].mode = same ? HTH_CHAIN_SAME : HTH_CHAIN_STRIDED;
    if (count == 1) {
        c->p.operand[k].mode = HTH_CHAIN_ONE;
    }
    c->p.operand[k].half = half;
    c->at[k].from = from;
    c->at[k].index = index;
    c->at[k].offset = offset;
    c->moved_bytes += (size_t)count * (half ? sizeof(uint16_t) : sizeof(float));
    return k;
}

int hth_cuda_chain_value(hth_cuda_chain *c, const hth_value *v, hth_cuda_from from, int index)
{
    return chain_add(c, &v->shape, v->layout, hth_cuda_half(v), from, index, 0);
}

int hth_cuda_chain_operand(hth_cuda_chain *c, const hth_shape *s, hth_cuda_from from, int index,
                           size_t offset)
{
    return chain_add(c, s, HTH_LAYOUT_PLAIN, false, from, index, offset);
}

void hth_cuda_chain_step(hth_cuda_chain *c, hth_op op, int operand, float alpha, float beta)
{
    if (c->p.n_steps == HTH_CHAIN_STEPS) {
        c->full = true;
        return;
    }
    c->p.step[c->p.n_steps++] = (hth_chain_step){op, 0, operand, alpha, beta};
}

void hth_cuda_chain_posts(hth_cuda_chain *c, const hth_graph *g, const hth_node *n)
{
    for (int i = 0; i < n->n_post; i++) {
        const hth_post_op *p = &n->post[i];
        int operand = -1;
        if (p->input >= 0) {
            const hth_value *v = &g->values[n->inputs[p->input]];
            operand = hth_cuda_chain_value(c, v, HTH_CUDA_IN, p->input);
        }
        hth_cuda_chain_step(c, p->op, operand, p->alpha, p->beta);
    }
}

hth_err hth_cuda_chain_end(hth_cuda_seq *s, hth_cuda_chain *c, int out)
{
    hth_steps steps[HTH_CUDA_OPERANDS];
    if (c->full) {
        return hth_fail(HTH_ENOTSUP, "more than %d operands or %d steps", HTH_CHAIN_OPERANDS,
                        HTH_CHAIN_STEPS);
    }
    hth_cuda_loop_fold(&c->loop);
    HTH_TRY(hth_cuda_loop_store(&c->loop, &c->p.dims, steps));
    for (int k = 0; k < c->loop.n; k++) {
        c->p.operand[k].steps = steps[k];
    }
    hth_cuda_launch_add(s, HTH_CUDA_hth_chain, hth_cuda_blocks(s, (c->p.n + 3u) / 4u, false), 0, 0,
                        &c->p, sizeof c->p);
    hth_cuda_bind(s, offsetof(hth_chain_params, out), HTH_CUDA_OUT, out, 0);
    for (int k = 0; k < c->loop.n; k++) {
        hth_cuda_bind(s, offsetof(hth_chain_params, operand) + (size_t)k * sizeof c->p.operand[0],
                      c->at[k].from, c->at[k].index, c->at[k].offset);
    }
    s->moved_bytes += c->moved_bytes + c->p.n * (c->p.half ? sizeof(uint16_t) : sizeof(float));
    return HTH_OK;
}

bool hth_cuda_chain_takes(const hth_post_op *p)
{
    switch (p->op) {
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
        return p->input < 0;
    case HTH_OP_ADD:
    case HTH_OP_MUL:
    case HTH_OP_RELU_GRAD:
        return p->input >= 0;
    default:
        return false;
    }
}

// The attributes that the formulas of chain.cu call alpha and beta, and their defaults.
static void element_attributes(const hth_node *n, hth_op op, float *a, float *b)
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
            *a = hth_node_float(n, table[i].a, table[i].alpha);
            *b = table[i].b != NULL ? hth_node_float(n, table[i].b, table[i].beta) : 0;
        }
    }
    if (op == HTH_OP_GELU) {
        *a = hth_node_str(n, "approximate", "none")[0] == 't';
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

static hth_err element_own_steps(hth_cuda_chain *c, const hth_graph *g, const hth_node *n,
                                 const int *operand, int count)
{
    float a = 0, b = 0;
    if (element_binary(n->op) || element_variadic(n->op)) {
        hth_op op = n->op == HTH_OP_SUM || n->op == HTH_OP_MEAN ? HTH_OP_ADD : n->op;
        for (int i = 1; i < count; i++) {
            hth_cuda_chain_step(c, op, operand[i], 1, 0);
        }
        if (n->op == HTH_OP_MEAN) {
            hth_cuda_chain_step(c, n->op, -1, 1 / (float)count, 0);
        }
        return HTH_OK;
    }
    if (n->op == HTH_OP_RELU_GRAD) {
        float low = hth_node_float(n, "low", 0), high = hth_node_float(n, "high", INFINITY);
        if (count > 2) {
            hth_cuda_chain_step(c, HTH_OP_ADD, operand[2], 1, 0);
        }
        hth_cuda_chain_step(c, n->op, operand[1], low, high);
        return HTH_OK;
    }
    if (n->op == HTH_OP_ELEMENT_GRAD) {
        hth_op of = hth_op_find(hth_node_str(n, "of", ""));
        element_attributes(n, of, &a, &b);
        hth_cuda_chain_step(c, n->op, operand[1], a, b);
        c->p.step[c->p.n_steps - 1].of = of;
        return HTH_OK;
    }
    if (n->op == HTH_OP_CLIP) {
        HTH_TRY(hth_cuda_float(g, n, 1, -INFINITY, &a));
        HTH_TRY(hth_cuda_float(g, n, 2, INFINITY, &b));
    } else {
        element_attributes(n, n->op, &a, &b);
    }
    hth_cuda_chain_step(c, n->op, -1, a, b);
    return HTH_OK;
}

static int element_operands(const hth_graph *g, const hth_node *n)
{
    int count = 0;
    while (hth_cuda_in(g, n, count) != NULL) {
        count++;
    }
    bool several = element_binary(n->op) || element_variadic(n->op) || n->op == HTH_OP_RELU_GRAD ||
                   n->op == HTH_OP_ELEMENT_GRAD;
    return several ? count : 1;
}

hth_err hth_cuda_element(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                         const char *algorithm)
{
    const hth_value *y = hth_cuda_out(g, n, 0);
    int operand[HTH_CHAIN_OPERANDS], count = element_operands(g, n);
    hth_cuda_chain c;
    const hth_value *exponent = n->op == HTH_OP_POW ? hth_cuda_in(g, n, 1) : NULL;
    if ((y->dtype != HTH_DT_F32 && y->dtype != HTH_DT_BF16) ||
        (exponent != NULL && !hth_dtype_is_float(exponent->dtype))) {
        return hth_cuda_typed(s, g, n, algorithm);
    }
    HTH_TRY(hth_cuda_need_float(g, n, count, 1));
    if (count > HTH_CHAIN_OPERANDS) {
        return hth_fail(HTH_ENOTSUP, "%d inputs: at most %d", count, HTH_CHAIN_OPERANDS);
    }
    hth_cuda_chain_begin(&c, y);
    for (int i = 0; i < count; i++) {
        operand[i] = hth_cuda_chain_value(&c, hth_cuda_in(g, n, i), HTH_CUDA_IN, i);
    }
    HTH_TRY(element_own_steps(&c, g, n, operand, count));
    hth_cuda_chain_posts(&c, g, n);
    s->posts_done = true;
    bool like = c.p.operand[0].mode == HTH_CHAIN_SAME && c.p.operand[0].half == c.p.half;
    s->base.inplace_input = like ? 0 : -1;
    return hth_cuda_chain_end(s, &c, 0);
}

// A value per channel (axis 1) of an image of shape x.
static hth_shape element_channels(const hth_shape *x)
{
    hth_shape s = {.rank = x->rank};
    for (int d = 0; d < x->rank; d++) {
        s.dim[d] = d == 1 ? x->dim[1] : 1;
    }
    return s;
}

// ScaleShift: x * scale + shift. BatchNormalization: (x - mean) / sqrt(var + eps) * scale + bias.
hth_err hth_cuda_scale_shift(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                             const char *algorithm)
{
    const hth_value *x = hth_cuda_in(g, n, 0);
    bool norm = n->op == HTH_OP_BATCH_NORMALIZATION;
    int count = norm ? 5 : 3, k[5];
    hth_cuda_chain c;
    const hth_value *y = hth_cuda_out(g, n, 0);
    HTH_TRY(hth_cuda_need_float(g, n, 1, 1));
    for (int i = 1; i < count; i++) {
        HTH_TRY(hth_cuda_in(g, n, i)->dtype == HTH_DT_F32
                    ? HTH_OK
                    : hth_fail(HTH_ENOTSUP, "parameters that are not FP32"));
    }
    if (x->shape.rank < 2 || hth_node_int(n, "training_mode", 0) != 0) {
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
        hth_cuda_chain_step(&c, n->op, k[4], hth_node_float(n, "epsilon", 1e-5f), 0);
    }
    hth_cuda_chain_step(&c, HTH_OP_MUL, k[1], 0, 0);
    hth_cuda_chain_step(&c, HTH_OP_ADD, k[2], 1, 0);
    hth_cuda_chain_posts(&c, g, n);
    s->posts_done = true;
    s->base.inplace_input = x->dtype == y->dtype ? 0 : -1;
    return hth_cuda_chain_end(s, &c, 0);
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

static hth_err typed_check(const hth_graph *g, const hth_node *n, int count)
{
    for (int i = 0; i < count; i++) {
        if (hth_cuda_in(g, n, i) == NULL && n->op != HTH_OP_CLIP) {
            return hth_fail(HTH_ENOTSUP, "an input is absent");
        }
    }
    const hth_value *x = hth_cuda_in(g, n, 0), *y = hth_cuda_out(g, n, 0);
    if (!typed_of_floats(n->op) && hth_dtype_is_float(x->dtype) && y->dtype != HTH_DT_BOOL) {
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

hth_err hth_cuda_typed(hth_cuda_seq *s, const hth_graph *g, const hth_node *n,
                       const char *algorithm)
{
    const hth_value *y = hth_cuda_out(g, n, 0);
    const hth_shape scalar = {.rank = 0};
    int count = typed_operands(n->op);
    hth_cuda_loop l;
    if (count == 0 || (count == 2 && hth_cuda_in(g, n, 2) != NULL)) {
        return hth_fail(HTH_ENOTSUP, "%s", hth_dtype_name(y->dtype));
    }
    HTH_TRY(typed_check(g, n, count));
    hth_typed_params p = {.n = hth_cuda_count(y),
                          .op = n->op,
                          .n_operands = count,
                          .out_type = y->dtype,
                          .flags = hth_node_int(n, "detect_positive", 1) != 0};
    p.flags |= (hth_node_int(n, "detect_negative", 1) != 0) << 1;
    p.flags |= (hth_node_int(n, "fmod", 0) != 0) << 2;
    p.flags |= (strcmp(hth_node_str(n, "direction", "LEFT"), "RIGHT") != 0) << 3;
    hth_cuda_loop_begin(&l, &y->shape, HTH_LAYOUT_PLAIN);
    for (int i = 0; i < count; i++) {
        const hth_value *v = hth_cuda_in(g, n, i); // NULL: a bound that is absent
        hth_cuda_loop_add(&l, v != NULL ? &v->shape : &scalar, HTH_LAYOUT_PLAIN);
        p.type[i] = v != NULL ? v->dtype : y->dtype;
        s->moved_bytes += v != NULL ? hth_cuda_bytes(v) : 0;
    }
    hth_cuda_loop_fold(&l);
    HTH_TRY(hth_cuda_loop_store(&l, &p.dims, p.steps));
    hth_cuda_launch_add(s, HTH_CUDA_hth_typed, hth_cuda_blocks(s, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(s, offsetof(hth_typed_params, out), HTH_CUDA_OUT, 0, 0);
    for (int i = 0; i < count; i++) {
        size_t at = offsetof(hth_typed_params, in) + (size_t)i * sizeof p.in[0];
        if (hth_cuda_in(g, n, i) != NULL) {
            hth_cuda_bind(s, at, HTH_CUDA_IN, i, 0);
        }
    }
    s->moved_bytes += hth_cuda_bytes(y);
    return HTH_OK;
}
