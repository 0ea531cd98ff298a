// SPDX-License-Identifier: Apache-2.0
// graph/passes/fold.c - constant folding of one node.
//
// A folded constant's id is the hash of how it was made: operator, attributes, the sources' ids,
// which output. So two models, or two specializations of one model, that share sources share what
// is folded from them, and no large result is ever hashed. Dropout and BatchNormalization are left
// alone: what they compute depends on training.
#include "graph/passes/fold.h"

#include "graph/infer.h"

#include "base/alloc.h"
#include "base/pace.h"
#include "base/settings.h"

#include <string.h>
#include <unistd.h>

#define FOLD_BYTES        ((uint64_t)64 << 20) // of one result that is larger than its sources
#define FOLD_PER_CONSTANT 4                    // bytes of results for a byte of constants ..
#define FOLD_WORK_PER     16                   // .. and operations
// Tiny: computed whatever is left. A million of them take seconds and half a gigabyte.
#define FOLD_TINY_IN   1024 // elements of an input
#define FOLD_TINY_OUT  64   // and of an output
#define FOLD_TINY_WORK 65536

static hth_id chain(hth_id before, const void *data, size_t bytes)
{
    hth_chunk piece[2] = {{&before, sizeof before}, {data, bytes}};
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
    hth_chunk piece = {name, strlen(name)};
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

static hth_err fold_size_of(hth_graph *g, hth_node *n)
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

// ---- the account

static _Atomic uint64_t fold_live;

uint64_t hth_fold_live(void)
{
    return fold_live;
}

static void fold_free(hth_const *c)
{
    fold_live -= c->bytes;
    hth_free(c->owner);
}

// Room for results of all models together.
static uint64_t fold_room(void)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_FOLDED_BYTES), live = fold_live;
    if (most == 0) {
        most = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4;
    }
    return live < most ? most - live : 0;
}

static uint64_t fold_add(uint64_t a, uint64_t b, uint64_t times)
{
    uint64_t more, sum;
    return __builtin_mul_overflow(b, times, &more) || __builtin_add_overflow(a, more, &sum)
               ? UINT64_MAX
               : sum;
}

hth_err hth_fold_open(hth_fold *f, const hth_graph *g, uint64_t more, hth_eval_fn eval, void *ctx)
{
    uint64_t constants = more;
    *f = (hth_fold){.eval = eval, .ctx = ctx, .n_values = g->n_values};
    f->users = hth_calloc((size_t)g->n_values + 1, sizeof *f->users);
    f->seen = hth_calloc((size_t)g->n_values + 1, sizeof *f->seen);
    if (f->users == NULL || f->seen == NULL) {
        hth_fold_close(f);
        return hth_fail(HTH_ENOMEM, "no memory to fold a model");
    }
    for (int v = 0; v < g->n_values; v++) {
        // Of the file: what was folded, or shares such a constant, is no reason to fold more.
        bool own = g->values[v].constant != NULL && g->values[v].initializer != 0;
        constants = fold_add(constants, own ? g->values[v].constant->bytes : 0, 1);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const hth_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_inputs && !n->deleted; k++) {
            f->users[n->inputs[k] < 0 ? g->n_values : n->inputs[k]]++;
        }
    }
    for (int i = 0; i < g->n_outputs; i++) {
        f->users[g->outputs[i]]++;
    }
    f->bytes =
        fold_add((uint64_t)hth_setting_int(HTH_SET_LIMIT_FOLD_BYTES), constants, FOLD_PER_CONSTANT);
    f->work = fold_add((uint64_t)hth_setting_int(HTH_SET_LIMIT_FOLD_OPERATIONS), constants,
                       FOLD_WORK_PER);
    return HTH_OK;
}

void hth_fold_close(hth_fold *f)
{
    hth_free(f->users);
    hth_free(f->seen);
    f->users = f->seen = NULL;
}

// fold_release gives back the results that only node n, which is folded now, was to read.
static void fold_release(hth_graph *g, const hth_node *n, hth_fold *f)
{
    for (int i = 0; i < n->n_inputs; i++) {
        int v = n->inputs[i];
        if (v < 0 || v >= f->n_values || --f->users[v] > 0 || g->values[v].constant == NULL) {
            continue;
        }
        hth_const *c = g->values[v].constant;
        if (c->release == fold_free && atomic_load(&c->refs) == 1) {
            f->bytes = fold_add(f->bytes, c->bytes, 1);
        }
        hth_const_rele(c);
        g->values[v].constant = NULL;
    }
}

// What a node would take.
typedef struct fold_size {
    uint64_t in, out; // bytes: of distinct inputs, of outputs of known shapes
    bool dynamic;     // an output's size is data
    bool tiny;
    int64_t most; // elements of an output
} fold_size;

// fold_measure is false when not all inputs are constants, or the outputs are impossibly large.
static bool fold_measure(const hth_graph *g, int node, hth_fold *f, fold_size *s)
{
    const hth_node *n = &g->nodes[node];
    size_t bytes;
    *s = (fold_size){.tiny = true};
    for (int i = 0; i < n->n_inputs; i++) {
        const hth_value *v = n->inputs[i] < 0 ? NULL : &g->values[n->inputs[i]];
        if (v != NULL && v->constant == NULL) {
            return false;
        }
        bool again = v != NULL && n->inputs[i] < f->n_values &&
                     f->seen[n->inputs[i]] == node + 1; // one source, however often it is read
        if (v != NULL && n->inputs[i] < f->n_values) {
            f->seen[n->inputs[i]] = node + 1;
        }
        s->in = fold_add(s->in, v != NULL && !again ? v->constant->bytes : 0, 1);
        s->tiny = s->tiny && (v == NULL || hth_shape_elements(&v->shape) <= FOLD_TINY_IN);
    }
    for (int i = 0; i < n->n_outputs; i++) {
        const hth_value *v = n->outputs[i] < 0 ? NULL : &g->values[n->outputs[i]];
        if (v != NULL && !hth_shape_known(&v->shape)) {
            s->dynamic = true;
        } else if (v != NULL) {
            int64_t elements = hth_shape_elements(&v->shape);
            if (hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &bytes) != HTH_OK) {
                return false;
            }
            s->out = fold_add(s->out, bytes, 1);
            s->most = elements > s->most ? elements : s->most;
        }
    }
    s->tiny = s->tiny && !s->dynamic && s->most <= FOLD_TINY_OUT;
    return true;
}

// Are all inputs constants, and is the result small enough?
static bool foldable(const hth_graph *g, int node, hth_fold *f, int64_t max_elements, fold_size *s)
{
    const hth_node *n = &g->nodes[node];
    if (n->op == HTH_OP_DROPOUT || n->op == HTH_OP_BATCH_NORMALIZATION || n->dear ||
        !fold_measure(g, node, f, s)) {
        return false;
    }
    return s->dynamic || s->tiny ||
           (s->most <= max_elements && (s->out <= FOLD_BYTES || s->out <= s->in) &&
            s->out <= f->bytes && s->out <= fold_room());
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

static hth_err fold_too_large(const hth_node *n, uint64_t bytes, uint64_t left)
{
    return hth_fail(HTH_ETOOBIG,
                    "node '%s' (%s): its result, whose size is data, has %llu bytes, and %llu are "
                    "left to compute beforehand (limits.fold_bytes)",
                    n->name, hth_op_name(n->op), (unsigned long long)bytes,
                    (unsigned long long)left);
}

static hth_err evaluate(evaluation *e, const hth_graph *g, const hth_node *n, const hth_fold *f)
{
    uint64_t room = fold_room(), left = f->bytes < room ? f->bytes : room;
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] < 0) {
            continue;
        }
        const hth_value *v = &g->values[n->outputs[i]];
        hth_tensor *t = &e->out[i];
        bool dynamic = !hth_shape_known(&v->shape);
        *t = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        if (dynamic) {
            HTH_TRY(f->eval(f->ctx, g, n, e->in, e->out)); // asks for the size
        }
        HTH_TRY(hth_tensor_bytes(t->dtype, &t->shape, HTH_LAYOUT_PLAIN, &t->bytes));
        if (dynamic && t->bytes > left) {
            return fold_too_large(n, t->bytes, left);
        }
        t->data = hth_alloc_aligned(t->bytes, 64);
        if (t->data == NULL) {
            return hth_fail(HTH_ENOMEM, "no memory to fold node '%s': %zu bytes", n->name,
                            t->bytes);
        }
    }
    return f->eval(f->ctx, g, n, e->in, e->out);
}

// evaluate_within is evaluate within what is left. *over: it took more.
static hth_err evaluate_within(evaluation *e, const hth_graph *g, const hth_node *n, hth_fold *f,
                               const fold_size *s, bool *over)
{
    hth_pace *before = hth_pace_now();
    hth_pace own = {.most_work = f->work, .most_bytes = f->bytes};
    if (s->tiny && f->work < FOLD_TINY_WORK) {
        own.most_work = FOLD_TINY_WORK;
    }
    if (s->tiny && f->bytes < FOLD_BYTES) {
        own.most_bytes = FOLD_BYTES;
    }
    if (before != NULL) {
        own.turn = before->turn;
        own.ctx = before->ctx;
    }
    hth_pace_enter(&own);
    hth_err err = evaluate(e, g, n, f);
    hth_pace_leave(before);
    f->work -= own.work < f->work ? own.work : f->work;
    *over = own.over;
    if (own.over) {
        err = hth_fail(err,
                       "node '%s' (%s), whose size is data: to compute it beforehand, %s "
                       "(limits.fold_operations, limits.fold_bytes)",
                       n->name, hth_op_name(n->op), own.detail);
    }
    return err == HTH_OK ? hth_pace_step(own.work) : err;
}

static hth_err adopt_outputs(evaluation *e, hth_graph *g, hth_node *n, hth_fold *f)
{
    hth_id recipe = hth_node_key(g, n);
    for (int32_t i = 0; i < n->n_outputs; i++) {
        if (n->outputs[i] < 0) {
            continue;
        }
        hth_id id = chain(recipe, &i, sizeof i);
        hth_const *c;
        HTH_TRY(hth_const_adopt(e->out[i].dtype, &e->out[i].shape, e->out[i].data, &id, &c));
        c->release = fold_free;
        fold_live += c->bytes;
        f->bytes -= c->bytes < f->bytes ? c->bytes : f->bytes;
        e->out[i].data = NULL;
        become_constant(&g->values[n->outputs[i]], c);
    }
    n->deleted = true;
    return HTH_OK;
}

static hth_err fold_by_eval(hth_graph *g, int node, hth_fold *f, const fold_size *s)
{
    evaluation e = {0};
    hth_node *n = &g->nodes[node];
    bool over = false;
    hth_err err = evaluation_open(&e, g, n);
    if (err == HTH_OK) {
        err = evaluate_within(&e, g, n, f, s, &over);
    }
    if (err == HTH_OK) {
        err = adopt_outputs(&e, g, n, f);
    } else if ((err == HTH_ENOTSUP || over) && !s->dynamic) {
        n->dear = over;
        err = HTH_OK; // what the host cannot compute, or not now, may still run on the device
    }
    evaluation_close(&e, g, n);
    return err;
}

static hth_err fold_node(hth_graph *g, int node, hth_fold *f, int64_t max_elements)
{
    fold_size s;
    hth_node *n = &g->nodes[node];
    switch (n->op) {
    case HTH_OP_SHAPE:
        return fold_shape(g, n);
    case HTH_OP_SIZE:
        return fold_size_of(g, n);
    case HTH_OP_CONSTANT:
        return fold_constant(g, n);
    case HTH_OP_IDENTITY:
        if (g->values[n->inputs[0]].constant != NULL) {
            return fold_shared(g, n, g->values[n->inputs[0]].constant);
        }
        return HTH_OK;
    default:
        return n->n_outputs > 0 && n->outputs[0] >= 0 && foldable(g, node, f, max_elements, &s)
                   ? fold_by_eval(g, node, f, &s)
                   : HTH_OK;
    }
}

hth_err hth_fold_node(hth_graph *g, int node, hth_fold *f, int64_t max_elements, bool *folded)
{
    hth_err err = fold_node(g, node, f, max_elements);
    *folded = err == HTH_OK && g->nodes[node].deleted;
    if (*folded) {
        fold_release(g, &g->nodes[node], f);
    }
    return err;
}
