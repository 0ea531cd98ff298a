// SPDX-License-Identifier: Apache-2.0
// graph/fold.c - constant folding of one node.
//
// A folded constant's id is the hash of how it was made: operator, attributes, the sources' ids,
// which output. So two models, or two specializations of one model, that share sources share what
// is folded from them, and no large result is ever hashed. Dropout and BatchNormalization are left
// alone: what they compute depends on training.
#include "graph/fold.h"

#include "graph/infer.h"

#include "base/alloc.h"

#include <string.h>

static hth_id chain(hth_id before, const void *data, size_t bytes)
{
    hth_piece piece[2] = {{&before, sizeof before}, {data, bytes}};
    return hth_id_of(piece, 2);
}

static hth_id chain_attr(hth_id id, const hth_attr *a)
{
    id = chain(id, a->name, strlen(a->name));
    id = chain(id, &a->type, sizeof a->type);
    switch (a->type) {
    case HTH_ATTR_INT:
        return chain(id, &a->u.i, sizeof a->u.i);
    case HTH_ATTR_FLOAT:
        return chain(id, &a->u.f, sizeof a->u.f);
    case HTH_ATTR_STRING:
        return chain(id, a->u.s, strlen(a->u.s));
    case HTH_ATTR_INTS:
        return chain(id, a->u.ints, (size_t)a->n * sizeof *a->u.ints);
    case HTH_ATTR_FLOATS:
        return chain(id, a->u.floats, (size_t)a->n * sizeof *a->u.floats);
    case HTH_ATTR_TENSOR:
        return chain(id, &a->u.tensor->id, sizeof a->u.tensor->id);
    case HTH_ATTR_STRINGS:
        for (int i = 0; i < a->n; i++) {
            id = chain(id, a->u.strings[i], strlen(a->u.strings[i]) + 1);
        }
        return id;
    }
    return id;
}

// Equal for equal computations, whatever the inputs.
static hth_id node_recipe(const hth_node *n)
{
    const char *name = hth_op_name(n->op);
    hth_piece piece = {name, strlen(name)};
    hth_id id = hth_id_of(&piece, 1);
    for (int i = 0; i < n->n_attrs; i++) {
        id = chain_attr(id, &n->attrs[i]);
    }
    for (int i = 0; i < n->n_post; i++) {
        const hth_post_op *p = &n->post[i];
        int64_t words[4] = {p->op, p->input, 0, 0};
        memcpy(&words[2], &p->alpha, sizeof p->alpha);
        memcpy(&words[3], &p->beta, sizeof p->beta);
        id = chain(id, words, sizeof words);
    }
    return id;
}

hth_id hth_node_key(const hth_graph *g, const hth_node *n)
{
    static const hth_id absent;
    hth_id id = node_recipe(n);
    for (int i = 0; i < n->n_inputs; i++) {
        const hth_value *v = n->inputs[i] < 0 ? NULL : &g->values[n->inputs[i]];
        if (v != NULL && v->constant == NULL) {
            id = chain(id, &n->inputs[i], sizeof n->inputs[i]);
        } else {
            id = chain(id, v == NULL ? &absent : &v->constant->id, sizeof id);
        }
    }
    return id;
}

// Makes `c` the content of value v; the value takes the reference over.
static void become_constant(hth_value *v, hth_const *c)
{
    v->constant = c;
    v->dtype = c->dtype;
    v->shape = c->shape;
    v->producer = -1;
}

static hth_err fold_to(hth_graph *g, hth_node *n, hth_dtype dt, const hth_shape *s,
                       const void *data)
{
    hth_const *c;
    HTH_TRY(hth_const_new(dt, s, data, &c));
    become_constant(&g->values[n->outputs[0]], c);
    n->deleted = true;
    return HTH_OK;
}

static hth_err fold_shape(hth_graph *g, hth_node *n)
{
    const hth_shape *x = &g->values[n->inputs[0]].shape;
    int from, to;
    hth_infer_shape_range(n, x->rank, &from, &to);
    return fold_to(g, n, HTH_DT_I64, &(hth_shape){1, {to - from}}, x->dim + from);
}

static hth_err fold_size(hth_graph *g, hth_node *n)
{
    int64_t size = hth_shape_elements(&g->values[n->inputs[0]].shape);
    return fold_to(g, n, HTH_DT_I64, &(hth_shape){.rank = 0}, &size);
}

static hth_err fold_shared(hth_graph *g, hth_node *n, hth_const *c)
{
    become_constant(&g->values[n->outputs[0]], hth_const_hold(c));
    n->deleted = true;
    return HTH_OK;
}

// Constant: one attribute, which inference has found to be numeric.
static hth_err fold_constant(hth_graph *g, hth_node *n)
{
    const hth_value *v = &g->values[n->outputs[0]];
    for (int i = 0; i < n->n_attrs; i++) {
        const hth_attr *a = &n->attrs[i];
        switch (a->type) {
        case HTH_ATTR_TENSOR:
            return fold_shared(g, n, a->u.tensor);
        case HTH_ATTR_INT:
            return fold_to(g, n, v->dtype, &v->shape, &a->u.i);
        case HTH_ATTR_FLOAT:
            return fold_to(g, n, v->dtype, &v->shape, &a->u.f);
        case HTH_ATTR_INTS:
            return fold_to(g, n, v->dtype, &v->shape, a->u.ints);
        case HTH_ATTR_FLOATS:
            return fold_to(g, n, v->dtype, &v->shape, a->u.floats);
        default:
            break;
        }
    }
    return hth_fail(HTH_EINVAL, "node '%s' (Constant) has no value", n->name);
}

// Are all inputs constants, and is the result small enough?
static bool foldable(const hth_graph *g, const hth_node *n, size_t max_bytes, int64_t max_elements)
{
    size_t in = 0, out = 0, bytes;
    bool dynamic = false, few = true;
    if (n->op == HTH_OP_DROPOUT || n->op == HTH_OP_BATCH_NORMALIZATION) {
        return false;
    }
    for (int i = 0; i < n->n_inputs; i++) {
        const hth_value *v = n->inputs[i] < 0 ? NULL : &g->values[n->inputs[i]];
        if (v != NULL && v->constant == NULL) {
            return false;
        }
        in += v != NULL ? v->constant->bytes : 0;
    }
    for (int i = 0; i < n->n_outputs; i++) {
        const hth_value *v = n->outputs[i] < 0 ? NULL : &g->values[n->outputs[i]];
        if (v == NULL) {
            continue;
        }
        if (!hth_shape_known(&v->shape)) {
            dynamic = true;
        } else if (hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &bytes) != HTH_OK ||
                   __builtin_add_overflow(out, bytes, &out)) {
            return false;
        } else {
            few = few && hth_shape_elements(&v->shape) <= max_elements;
        }
    }
    return dynamic || (few && (out <= max_bytes || out <= in));
}

// The tensors of one evaluation. Inputs are mapped, outputs owned until they become constants.
typedef struct evaluation {
    hth_tensor *in, *out;
    int n_mapped;
} evaluation;

static hth_err evaluation_open(evaluation *e, const hth_graph *g, const hth_node *n)
{
    e->in = hth_calloc((size_t)n->n_inputs + 1, sizeof *e->in);
    e->out = hth_calloc((size_t)n->n_outputs, sizeof *e->out);
    if (e->in == NULL || e->out == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory to fold node '%s'", n->name);
    }
    for (; e->n_mapped < n->n_inputs; e->n_mapped++) {
        if (n->inputs[e->n_mapped] < 0) {
            continue;
        }
        hth_const *c = g->values[n->inputs[e->n_mapped]].constant;
        const void *data;
        HTH_TRY(hth_const_map(c, &data));
        e->in[e->n_mapped] =
            (hth_tensor){c->dtype, HTH_LAYOUT_PLAIN, c->shape, (void *)data, c->bytes};
    }
    return HTH_OK;
}

static void evaluation_close(evaluation *e, const hth_graph *g, const hth_node *n)
{
    for (int i = 0; i < e->n_mapped; i++) {
        if (n->inputs[i] >= 0) {
            hth_const_unmap(g->values[n->inputs[i]].constant);
        }
    }
    for (int i = 0; e->out != NULL && i < n->n_outputs; i++) {
        hth_free(e->out[i].data);
    }
    hth_free(e->in);
    hth_free(e->out);
}

static hth_err evaluate(evaluation *e, const hth_graph *g, const hth_node *n, hth_eval_fn eval,
                        void *ctx)
{
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] < 0) {
            continue;
        }
        const hth_value *v = &g->values[n->outputs[i]];
        hth_tensor *t = &e->out[i];
        *t = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        if (!hth_shape_known(&v->shape)) {
            HTH_TRY(eval(ctx, g, n, e->in, e->out)); // asks for the size
        }
        HTH_TRY(hth_tensor_bytes(t->dtype, &t->shape, HTH_LAYOUT_PLAIN, &t->bytes));
        t->data = hth_alloc_aligned(t->bytes, 64);
        if (t->data == NULL) {
            return hth_fail(HTH_ENOMEM, "no memory to fold node '%s': %zu bytes", n->name,
                            t->bytes);
        }
    }
    return eval(ctx, g, n, e->in, e->out);
}

static hth_err adopt_outputs(evaluation *e, hth_graph *g, hth_node *n)
{
    hth_id recipe = hth_node_key(g, n);
    for (int32_t i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] < 0) {
            continue;
        }
        hth_id id = chain(recipe, &i, sizeof i);
        hth_const *c;
        HTH_TRY(hth_const_adopt(e->out[i].dtype, &e->out[i].shape, e->out[i].data, &id, &c));
        e->out[i].data = NULL;
        become_constant(&g->values[n->outputs[i]], c);
    }
    n->deleted = true;
    return HTH_OK;
}

static hth_err fold_by_eval(hth_graph *g, hth_node *n, hth_eval_fn eval, void *ctx, bool *folded)
{
    evaluation e = {0};
    bool dynamic = !hth_shape_known(&g->values[n->outputs[0]].shape);
    hth_err err = evaluation_open(&e, g, n);
    err = err == HTH_OK ? evaluate(&e, g, n, eval, ctx) : err;
    if (err == HTH_OK) {
        err = adopt_outputs(&e, g, n);
    } else if (err == HTH_ENOTSUP && !dynamic) {
        err = HTH_OK; // what the host cannot compute may still run on the device
    }
    evaluation_close(&e, g, n);
    *folded = n->deleted;
    return err;
}

hth_err hth_fold_node(hth_graph *g, int node, size_t max_bytes, int64_t max_elements,
                      hth_eval_fn eval, void *ctx, bool *folded)
{
    hth_node *n = &g->nodes[node];
    *folded = true;
    if (n->op == HTH_OP_SHAPE) {
        return fold_shape(g, n);
    }
    if (n->op == HTH_OP_SIZE) {
        return fold_size(g, n);
    }
    if (n->op == HTH_OP_CONSTANT) {
        return fold_constant(g, n);
    }
    if (n->op == HTH_OP_IDENTITY && g->values[n->inputs[0]].constant != NULL) {
        return fold_shared(g, n, g->values[n->inputs[0]].constant);
    }
    *folded = false;
    if (n->n_outputs == 0 || n->outputs[0] < 0 || !foldable(g, n, max_bytes, max_elements)) {
        return HTH_OK;
    }
    return fold_by_eval(g, n, eval, ctx, folded);
}
