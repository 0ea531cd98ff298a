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

#define FOLD_BYTES ((uint64_t)64 << 20) // of one result with more elements than a source
// Bytes of results for a byte of constants: INT8 becomes FP32, and is scaled.
#define FOLD_PER_CONSTANT 8
#define FOLD_WORK_PER     16 // .. and operations
// Tiny: computed whatever is left. A million of them take seconds and half a gigabyte.
#define FOLD_TINY_IN   1024 // elements of an input
#define FOLD_TINY_OUT  64   // and of an output
#define FOLD_TINY_WORK 65536

static hth_id chain(hth_id before, const void *data, size_t bytes)
{
    hth_chunk piece[2] = {{&before, sizeof before}, {data, bytes}};
    return hth_id_of(piece, 2);
}

static hth_id chain_attr(hth_id id, const hth_attr *attr)
{
    id = chain(id, attr->name, strlen(attr->name));
    id = chain(id, &attr->type, sizeof attr->type);
    switch (attr->type) {
    case HTH_ATTR_INT:
        return chain(id, &attr->u.i, sizeof attr->u.i);
    case HTH_ATTR_FLOAT:
        return chain(id, &attr->u.f, sizeof attr->u.f);
    case HTH_ATTR_STRING:
        return chain(id, attr->u.s, strlen(attr->u.s));
    case HTH_ATTR_INTS:
        return chain(id, attr->u.ints, (size_t)attr->n * sizeof *attr->u.ints);
    case HTH_ATTR_FLOATS:
        return chain(id, attr->u.floats, (size_t)attr->n * sizeof *attr->u.floats);
    case HTH_ATTR_TENSOR:
        return chain(id, &attr->u.tensor->id, sizeof attr->u.tensor->id);
    case HTH_ATTR_STRINGS:
        for (int i = 0; i < attr->n; i++) {
            id = chain(id, attr->u.strings[i], strlen(attr->u.strings[i]) + 1);
        }
        return id;
    }
    return id;
}

// Equal for equal computations, whatever the inputs.
static hth_id node_recipe(const hth_node *node)
{
    const char *name = hth_op_name(node->op);
    hth_chunk piece = {name, strlen(name)};
    hth_id id = hth_id_of(&piece, 1);
    for (int i = 0; i < node->n_attrs; i++) {
        id = chain_attr(id, &node->attrs[i]);
    }
    for (int i = 0; i < node->n_post; i++) {
        const hth_post_op *p = &node->post[i];
        int64_t words[4] = {p->op, p->input, 0, 0};
        memcpy(&words[2], &p->alpha, sizeof p->alpha);
        memcpy(&words[3], &p->beta, sizeof p->beta);
        id = chain(id, words, sizeof words);
    }
    return id;
}

hth_id hth_node_key(const hth_graph *graph, const hth_node *node)
{
    static const hth_id absent;
    hth_id id = node_recipe(node);
    for (int i = 0; i < node->n_inputs; i++) {
        const hth_value *v = node->inputs[i] < 0 ? NULL : &graph->values[node->inputs[i]];
        if (v != NULL && v->constant == NULL) {
            id = chain(id, &node->inputs[i], sizeof node->inputs[i]);
        } else {
            id = chain(id, v == NULL ? &absent : &v->constant->id, sizeof id);
        }
    }
    return id;
}

// Makes `constant` the content of value; the value takes the reference over.
static void become_constant(hth_value *value, hth_const *constant)
{
    value->constant = constant;
    value->dtype = constant->dtype;
    value->shape = constant->shape;
    value->producer = -1;
}

static hth_err fold_to(hth_graph *graph, hth_node *node, hth_dtype dt, const hth_shape *shape,
                       const void *data)
{
    hth_const *c;
    HTH_TRY(hth_const_new(dt, shape, data, &c));
    become_constant(&graph->values[node->outputs[0]], c);
    node->deleted = true;
    return HTH_OK;
}

static hth_err fold_shape(hth_graph *graph, hth_node *node)
{
    const hth_shape *x = &graph->values[node->inputs[0]].shape;
    int from, to;
    hth_infer_shape_range(node, x->rank, &from, &to);
    return fold_to(graph, node, HTH_DT_I64, &(hth_shape){1, {to - from}}, x->dim + from);
}

static hth_err fold_size_of(hth_graph *graph, hth_node *node)
{
    int64_t size = hth_shape_elements(&graph->values[node->inputs[0]].shape);
    return fold_to(graph, node, HTH_DT_I64, &(hth_shape){.rank = 0}, &size);
}

static hth_err fold_shared(hth_graph *graph, hth_node *node, hth_const *constant)
{
    become_constant(&graph->values[node->outputs[0]], hth_const_hold(constant));
    node->deleted = true;
    return HTH_OK;
}

// Constant: one attribute, which inference has found to be numeric.
static hth_err fold_constant(hth_graph *graph, hth_node *node)
{
    const hth_value *v = &graph->values[node->outputs[0]];
    for (int i = 0; i < node->n_attrs; i++) {
        const hth_attr *a = &node->attrs[i];
        switch (a->type) {
        case HTH_ATTR_TENSOR:
            return fold_shared(graph, node, a->u.tensor);
        case HTH_ATTR_INT:
            return fold_to(graph, node, v->dtype, &v->shape, &a->u.i);
        case HTH_ATTR_FLOAT:
            return fold_to(graph, node, v->dtype, &v->shape, &a->u.f);
        case HTH_ATTR_INTS:
            return fold_to(graph, node, v->dtype, &v->shape, a->u.ints);
        case HTH_ATTR_FLOATS:
            return fold_to(graph, node, v->dtype, &v->shape, a->u.floats);
        default:
            break;
        }
    }
    return hth_fail(HTH_EINVAL, "node '%s' (Constant) has no value", node->name);
}

// ---- the account

static _Atomic uint64_t fold_live;

uint64_t hth_fold_live(void)
{
    return fold_live;
}

static void fold_free(hth_const *constant)
{
    fold_live -= constant->bytes;
    hth_free(constant->owner);
}

uint64_t hth_fold_room(void)
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

hth_err hth_fold_open(hth_fold *fold, const hth_graph *graph, uint64_t more, hth_eval_fn eval,
                      void *ctx)
{
    uint64_t constants = more;
    *fold = (hth_fold){.eval = eval, .ctx = ctx, .n_values = graph->n_values};
    fold->users = hth_calloc((size_t)graph->n_values + 1, sizeof *fold->users);
    fold->seen = hth_calloc((size_t)graph->n_values + 1, sizeof *fold->seen);
    if (fold->users == NULL || fold->seen == NULL) {
        hth_fold_close(fold);
        return hth_no_memory("folding a model");
    }
    for (int v = 0; v < graph->n_values; v++) {
        // Of the file: what was folded, or shares such a constant, is no reason to fold more.
        bool own = graph->values[v].constant != NULL && graph->values[v].initializer != 0;
        constants = fold_add(constants, own ? graph->values[v].constant->bytes : 0, 1);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        for (int k = 0; k < n->n_inputs && !n->deleted; k++) {
            fold->users[n->inputs[k] < 0 ? graph->n_values : n->inputs[k]]++;
        }
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        fold->users[graph->outputs[i]]++;
    }
    fold->bytes =
        fold_add((uint64_t)hth_setting_int(HTH_SET_LIMIT_FOLD_BYTES), constants, FOLD_PER_CONSTANT);
    fold->work = fold_add((uint64_t)hth_setting_int(HTH_SET_LIMIT_FOLD_OPERATIONS), constants,
                          FOLD_WORK_PER);
    return HTH_OK;
}

void hth_fold_close(hth_fold *fold)
{
    hth_free(fold->users);
    hth_free(fold->seen);
    fold->users = fold->seen = NULL;
}

// fold_release gives back the results that only node, which is folded now, was to read.
static void fold_release(hth_graph *graph, const hth_node *node, hth_fold *fold)
{
    for (int i = 0; i < node->n_inputs; i++) {
        int v = node->inputs[i];
        if (v < 0 || v >= fold->n_values || --fold->users[v] > 0 ||
            graph->values[v].constant == NULL) {
            continue;
        }
        hth_const *c = graph->values[v].constant;
        if (c->release == fold_free && atomic_load(&c->refs) == 1) {
            fold->bytes = fold_add(fold->bytes, c->bytes, 1);
        }
        hth_const_rele(c);
        graph->values[v].constant = NULL;
    }
}

// What a node would take.
typedef struct fold_size {
    uint64_t in, out; // bytes: of distinct inputs, of outputs of known shapes
    bool dynamic;     // an output's size is data
    bool tiny;
    int64_t source, most; // the most elements of an input, of an output
} fold_size;

// fold_measure is false when not all inputs are constants, or the outputs are impossibly large.
static bool fold_measure(const hth_graph *graph, int node, hth_fold *fold, fold_size *size)
{
    const hth_node *n = &graph->nodes[node];
    size_t bytes;
    *size = (fold_size){.tiny = true};
    for (int i = 0; i < n->n_inputs; i++) {
        const hth_value *v = n->inputs[i] < 0 ? NULL : &graph->values[n->inputs[i]];
        if (v != NULL && v->constant == NULL) {
            return false;
        }
        bool again = v != NULL && n->inputs[i] < fold->n_values &&
                     fold->seen[n->inputs[i]] == node + 1; // one source, however often it is read
        if (v != NULL && n->inputs[i] < fold->n_values) {
            fold->seen[n->inputs[i]] = node + 1;
        }
        size->in = fold_add(size->in, v != NULL && !again ? v->constant->bytes : 0, 1);
        int64_t elements = v != NULL ? hth_shape_elements(&v->shape) : 0;
        size->tiny = size->tiny && elements <= FOLD_TINY_IN;
        size->source = elements > size->source ? elements : size->source;
    }
    for (int i = 0; i < n->n_outputs; i++) {
        const hth_value *v = n->outputs[i] < 0 ? NULL : &graph->values[n->outputs[i]];
        if (v != NULL && !hth_shape_known(&v->shape)) {
            size->dynamic = true;
        } else if (v != NULL) {
            int64_t elements = hth_shape_elements(&v->shape);
            if (hth_tensor_bytes(v->dtype, &v->shape, HTH_LAYOUT_PLAIN, &bytes) != HTH_OK) {
                return false;
            }
            size->out = fold_add(size->out, bytes, 1);
            size->most = elements > size->most ? elements : size->most;
        }
    }
    size->tiny = size->tiny && !size->dynamic && size->most <= FOLD_TINY_OUT;
    return true;
}

// Are all inputs constants, and is the result small enough?
static bool foldable(const hth_graph *graph, int node, hth_fold *fold, int64_t max_elements,
                     fold_size *size)
{
    const hth_node *n = &graph->nodes[node];
    if (n->op == HTH_OP_DROPOUT || n->op == HTH_OP_BATCH_NORMALIZATION || n->dear ||
        !fold_measure(graph, node, fold, size)) {
        return false;
    }
    return size->dynamic || size->tiny ||
           (size->most <= max_elements &&
            (size->out <= FOLD_BYTES || size->out <= size->in || size->most <= size->source) &&
            size->out <= fold->bytes && size->out <= hth_fold_room());
}

// The tensors of one evaluation. Inputs are mapped, outputs owned until they become constants.
typedef struct evaluation {
    hth_tensor *in, *out;
    int n_mapped;
} evaluation;

static hth_err evaluation_open(evaluation *e, const hth_graph *graph, const hth_node *node)
{
    e->in = hth_calloc((size_t)node->n_inputs + 1, sizeof *e->in);
    e->out = hth_calloc((size_t)node->n_outputs, sizeof *e->out);
    if (e->in == NULL || e->out == NULL) {
        return hth_no_memory("folding node '%s'", node->name);
    }
    for (; e->n_mapped < node->n_inputs; e->n_mapped++) {
        if (node->inputs[e->n_mapped] < 0) {
            continue;
        }
        hth_const *c = graph->values[node->inputs[e->n_mapped]].constant;
        const void *data;
        HTH_TRY(hth_const_map(c, &data));
        e->in[e->n_mapped] =
            (hth_tensor){c->dtype, HTH_LAYOUT_PLAIN, c->shape, (void *)data, c->bytes};
    }
    return HTH_OK;
}

static void evaluation_close(evaluation *e, const hth_graph *graph, const hth_node *node)
{
    for (int i = 0; i < e->n_mapped; i++) {
        if (node->inputs[i] >= 0) {
            hth_const_unmap(graph->values[node->inputs[i]].constant);
        }
    }
    for (int i = 0; e->out != NULL && i < node->n_outputs; i++) {
        hth_free(e->out[i].data);
    }
    hth_free(e->in);
    hth_free(e->out);
}

static hth_err fold_too_large(const hth_node *node, uint64_t bytes, uint64_t left)
{
    return hth_fail(HTH_ETOOBIG,
                    "node '%s' (%s): its result, whose size is data, has %llu bytes, and %llu are "
                    "left to compute beforehand (limits.fold_bytes)",
                    node->name, hth_op_name(node->op), (unsigned long long)bytes,
                    (unsigned long long)left);
}

static hth_err evaluate(evaluation *e, const hth_graph *graph, const hth_node *node,
                        const hth_fold *fold)
{
    uint64_t room = hth_fold_room(), left = fold->bytes < room ? fold->bytes : room;
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] < 0) {
            continue;
        }
        const hth_value *v = &graph->values[node->outputs[i]];
        hth_tensor *t = &e->out[i];
        bool dynamic = !hth_shape_known(&v->shape);
        *t = (hth_tensor){.dtype = v->dtype, .shape = v->shape};
        if (dynamic) {
            HTH_TRY(fold->eval(fold->ctx, graph, node, e->in, e->out)); // asks for the size
        }
        HTH_TRY(hth_tensor_bytes(t->dtype, &t->shape, HTH_LAYOUT_PLAIN, &t->bytes));
        if (dynamic && t->bytes > left) {
            return fold_too_large(node, t->bytes, left);
        }
        t->data = hth_alloc_aligned(t->bytes, 64);
        if (t->data == NULL) {
            return hth_no_memory("folding node '%s': %zu bytes", node->name, t->bytes);
        }
    }
    return fold->eval(fold->ctx, graph, node, e->in, e->out);
}

// evaluate_within is evaluate within what is left. *over: it took more.
static hth_err evaluate_within(evaluation *e, const hth_graph *graph, const hth_node *node,
                               hth_fold *fold, const fold_size *size, bool *over)
{
    hth_pace *before = hth_pace_now();
    hth_pace own = {.most_work = fold->work, .most_bytes = fold->bytes};
    if (size->tiny && fold->work < FOLD_TINY_WORK) {
        own.most_work = FOLD_TINY_WORK;
    }
    if (size->tiny && fold->bytes < FOLD_BYTES) {
        own.most_bytes = FOLD_BYTES;
    }
    if (before != NULL) {
        own.turn = before->turn;
        own.ctx = before->ctx;
    }
    hth_pace_enter(&own);
    hth_err err = evaluate(e, graph, node, fold);
    hth_pace_leave(before);
    fold->work -= own.work < fold->work ? own.work : fold->work;
    *over = own.over;
    if (own.over) {
        err = hth_fail(err,
                       "node '%s' (%s), whose size is data: to compute it beforehand, %s "
                       "(limits.fold_operations, limits.fold_bytes)",
                       node->name, hth_op_name(node->op), own.detail);
    }
    HTH_TRY(err);
    return hth_pace_step(own.work);
}

static hth_err adopt_outputs(evaluation *e, hth_graph *graph, hth_node *node, hth_fold *fold)
{
    hth_id recipe = hth_node_key(graph, node);
    for (int32_t i = 0; i < node->n_outputs; i++) {
        if (node->outputs[i] < 0) {
            continue;
        }
        hth_id id = chain(recipe, &i, sizeof i);
        hth_const *c;
        HTH_TRY(hth_const_adopt(e->out[i].dtype, &e->out[i].shape, e->out[i].data, &id, &c));
        c->release = fold_free;
        fold_live += c->bytes;
        fold->bytes -= c->bytes < fold->bytes ? c->bytes : fold->bytes;
        e->out[i].data = NULL;
        become_constant(&graph->values[node->outputs[i]], c);
    }
    node->deleted = true;
    return HTH_OK;
}

static hth_err fold_by_eval(hth_graph *graph, int node, hth_fold *fold, const fold_size *size)
{
    evaluation e = {0};
    hth_node *n = &graph->nodes[node];
    bool over = false;
    hth_err err = evaluation_open(&e, graph, n);
    if (err == HTH_OK) {
        err = evaluate_within(&e, graph, n, fold, size, &over);
    }
    if (err == HTH_OK) {
        err = adopt_outputs(&e, graph, n, fold);
    } else if ((err == HTH_ENOTSUP || over) && !size->dynamic) {
        n->dear = over;
        err = HTH_OK; // what the host cannot compute, or not now, may still run on the device
    }
    evaluation_close(&e, graph, n);
    return err;
}

static hth_err fold_node(hth_graph *graph, int node, hth_fold *fold, int64_t max_elements)
{
    fold_size s;
    hth_node *n = &graph->nodes[node];
    switch (n->op) {
    case HTH_OP_SHAPE:
        return fold_shape(graph, n);
    case HTH_OP_SIZE:
        return fold_size_of(graph, n);
    case HTH_OP_CONSTANT:
        return fold_constant(graph, n);
    case HTH_OP_IDENTITY:
        if (graph->values[n->inputs[0]].constant != NULL) {
            return fold_shared(graph, n, graph->values[n->inputs[0]].constant);
        }
        return HTH_OK;
    default:
        return n->n_outputs > 0 && n->outputs[0] >= 0 &&
                       foldable(graph, node, fold, max_elements, &s)
                   ? fold_by_eval(graph, node, fold, &s)
                   : HTH_OK;
    }
}

hth_err hth_fold_node(hth_graph *graph, int node, hth_fold *fold, int64_t max_elements,
                      bool *folded)
{
    hth_err err = fold_node(graph, node, fold, max_elements);
    *folded = err == HTH_OK && graph->nodes[node].deleted;
    if (*folded) {
        fold_release(graph, &graph->nodes[node], fold);
    }
    return err;
}
