// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_make.c - how gradient functions make nodes, constants and forms.
#include "graph/autodiff/grad.h"

#include "graph/passes/fold.h"
#include "graph/passes/pass_util.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

static void keep(hth_grad *grad, hth_err err)
{
    if (grad->err == HTH_OK) {
        grad->err = err;
    }
}

void hth_grad_fail(hth_grad *grad, const char *sentence)
{
    const hth_node *n = &grad->g->nodes[grad->forward];
    if (grad->err == HTH_OK) {
        grad->err =
            hth_fail(HTH_ENOTSUP, "node '%s' (%s): %s", n->name, hth_op_name(n->op), sentence);
    }
}

int hth_grad_out(const hth_grad *grad, const hth_node *node, int k)
{
    return k < node->n_outputs && node->outputs[k] >= 0 ? grad->of[node->outputs[k]] : -1;
}

bool hth_grad_wants(const hth_grad *grad, const hth_node *node, int k)
{
    return grad->err == HTH_OK && k < node->n_inputs && node->inputs[k] >= 0 &&
           grad->wants[node->inputs[k]];
}

void hth_grad_give(hth_grad *grad, const hth_node *node, int k, int v)
{
    if (!hth_grad_wants(grad, node, k) || v < 0) {
        return;
    }
    int *of = &grad->of[node->inputs[k]];
    *of = *of < 0 ? v : hth_grad_2(grad, HTH_OP_ADD, *of, v);
}

const hth_shape *hth_grad_shape(const hth_grad *grad, int v)
{
    static const hth_shape scalar;
    return v < 0 ? &scalar : &grad->g->values[v].shape;
}

void hth_grad_begin(hth_grad *grad, hth_op op, const int *in, int n_in, int n_out)
{
    int out[8] = {-1, -1, -1, -1, -1, -1, -1, -1}, *list = out;
    if (n_out > 8) { // a Split
        list = hth_calloc((size_t)n_out, sizeof *list);
        keep(grad, list == NULL ? hth_no_memory("a gradient") : HTH_OK);
    }
    for (int i = 0; i < n_out && grad->err == HTH_OK; i++) {
        keep(grad, hth_graph_add_value(grad->g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &list[i]));
    }
    char *name = grad->made == 0
                     ? hth_asprintf("%s.%s", grad->g->nodes[grad->forward].name, grad->kind)
                     : hth_asprintf("%s.%s.%d", grad->g->nodes[grad->forward].name, grad->kind,
                                    grad->made + 1);
    keep(grad, name == NULL ? hth_no_memory("a gradient") : HTH_OK);
    if (grad->err == HTH_OK) {
        keep(grad, hth_graph_add_node(grad->g, op, name, in, n_in, list, n_out, &grad->node));
        grad->made++;
    }
    hth_free(name);
    if (list != out) {
        hth_free(list);
    }
}

#define GRAD_ATTR(set)                                                                             \
    if (c->err == HTH_OK) {                                                                        \
        keep(c, set);                                                                              \
    }

void hth_grad_attrs(hth_grad *c, const hth_node *from)
{
    GRAD_ATTR(hth_node_copy_attrs(&c->g->nodes[c->node], from))
}

void hth_grad_int(hth_grad *c, const char *name, int64_t v)
{
    GRAD_ATTR(hth_node_set_int(&c->g->nodes[c->node], name, v))
}

void hth_grad_float(hth_grad *c, const char *name, float v)
{
    GRAD_ATTR(hth_node_set_float(&c->g->nodes[c->node], name, v))
}

void hth_grad_str(hth_grad *c, const char *name, const char *v)
{
    GRAD_ATTR(hth_node_set_str(&c->g->nodes[c->node], name, v))
}

void hth_grad_ints(hth_grad *c, const char *name, const int64_t *v, int n)
{
    GRAD_ATTR(hth_node_set_ints(&c->g->nodes[c->node], name, v, n))
}

void hth_grad_drop(hth_grad *grad, const char *name)
{
    if (grad->err == HTH_OK) {
        hth_node_drop_attr(&grad->g->nodes[grad->node], name);
    }
}

int hth_grad_end(hth_grad *c)
{
    int wait;
    GRAD_ATTR(hth_infer_node(c->g, c->node, &wait))
    return hth_grad_output(c, 0);
}

int hth_grad_output(const hth_grad *grad, int k)
{
    return grad->err == HTH_OK ? grad->g->nodes[grad->node].outputs[k] : -1;
}

static int plain(hth_grad *grad, hth_op op, const int *in, int n)
{
    hth_grad_begin(grad, op, in, n, 1);
    return hth_grad_end(grad);
}

int hth_grad_1(hth_grad *grad, hth_op op, int a)
{
    return plain(grad, op, (int[]){a}, 1);
}

int hth_grad_2(hth_grad *grad, hth_op op, int a, int b)
{
    return plain(grad, op, (int[]){a, b}, 2);
}

int hth_grad_3(hth_grad *grad, hth_op op, int a, int b, int d)
{
    return plain(grad, op, (int[]){a, b, d}, 3);
}

int hth_grad_equal(hth_grad *grad, int a, int b)
{
    int same = hth_grad_2(grad, HTH_OP_EQUAL, a, b);
    hth_grad_begin(grad, HTH_OP_CAST, &same, 1, 1);
    hth_grad_int(grad, "to", HTH_DT_F32);
    return hth_grad_end(grad);
}

int hth_grad_divisor(hth_grad *grad, int v)
{
    int none = hth_grad_2(grad, HTH_OP_EQUAL, v, hth_grad_scalar(grad, 0));
    return hth_grad_3(grad, HTH_OP_WHERE, none, hth_grad_scalar(grad, INFINITY), v);
}

static int constant(hth_grad *c, hth_dtype dt, const hth_shape *shape, const void *data)
{
    hth_const *k = NULL;
    int v = -1;
    GRAD_ATTR(hth_const_new(dt, shape, data, &k))
    GRAD_ATTR(hth_graph_add_const(c->g, NULL, k, &v))
    if (c->err != HTH_OK) {
        hth_const_rele(k);
        return -1;
    }
    return v;
}

int hth_grad_scalar(hth_grad *grad, float v)
{
    return constant(grad, HTH_DT_F32, &(hth_shape){.rank = 0}, &v);
}

void *hth_grad_table(hth_grad *grad, int64_t count, size_t size)
{
    const uint64_t most = hth_fold_room();
    if (grad->err != HTH_OK) {
        return NULL;
    }
    if (count < 0 || (uint64_t)count > most / size) {
        const hth_node *n = &grad->g->nodes[grad->forward];
        keep(grad,
             hth_fail(HTH_ETOOBIG,
                      "node '%s' (%s): a table of %lld elements would be computed "
                      "beforehand, and %llu bytes are left for such (limits.folded_bytes)",
                      n->name, hth_op_name(n->op), (long long)count, (unsigned long long)most));
        return NULL;
    }
    void *table = hth_calloc((size_t)count + 1, size);
    keep(grad, table == NULL ? hth_no_memory("a constant of a gradient") : HTH_OK);
    return table;
}

int hth_grad_list(hth_grad *grad, const int64_t *v, int64_t n)
{
    return constant(grad, HTH_DT_I64, &(hth_shape){1, {n}}, v);
}

int hth_grad_zeros(hth_grad *grad, const hth_shape *shape)
{
    return hth_grad_2(grad, HTH_OP_EXPAND, hth_grad_scalar(grad, 0),
                      hth_grad_list(grad, shape->dim, shape->rank));
}

int hth_grad_reshape(hth_grad *grad, int v, const hth_shape *shape)
{
    hth_shape want = *shape; // s may stand in the graph's values, which move
    if (v < 0 || hth_shape_equal(hth_grad_shape(grad, v), &want)) {
        return v;
    }
    int list = hth_grad_list(grad, want.dim, want.rank);
    hth_grad_begin(grad, HTH_OP_RESHAPE, (int[]){v, list}, 2, 1);
    hth_grad_int(grad, "allowzero", hth_shape_elements(&want) == 0);
    return hth_grad_end(grad);
}

int hth_grad_expand(hth_grad *grad, int v, const hth_shape *shape)
{
    if (v < 0 || hth_shape_equal(hth_grad_shape(grad, v), shape)) {
        return v;
    }
    return hth_grad_2(grad, HTH_OP_EXPAND, v, hth_grad_list(grad, shape->dim, shape->rank));
}

int hth_grad_reduce(hth_grad *grad, hth_op op, int v, const int64_t *axes, int n, bool keep_dims)
{
    int list = hth_grad_list(grad, axes, n);
    hth_grad_begin(grad, op, (int[]){v, list}, 2, 1);
    hth_grad_int(grad, "keepdims", keep_dims);
    return hth_grad_end(grad);
}

int hth_grad_sum_to(hth_grad *grad, int v, const hth_shape *shape)
{
    const hth_shape want = *shape, have = *hth_grad_shape(grad, v);
    int64_t axes[HTH_MAX_RANK];
    int n = 0, extra = have.rank - want.rank;
    if (v < 0 || grad->err != HTH_OK) {
        return -1;
    }
    for (int i = 0; i < have.rank; i++) {
        if (i < extra || (want.dim[i - extra] == 1 && have.dim[i] != 1)) {
            axes[n++] = i;
        }
    }
    v = n > 0 ? hth_grad_reduce(grad, HTH_OP_REDUCE_SUM, v, axes, n, false) : v;
    return hth_grad_reshape(grad, v, &want);
}

int hth_grad_spatial_sum(hth_grad *grad, int v)
{
    int64_t axes[HTH_MAX_RANK] = {0};
    int rank = hth_grad_shape(grad, v)->rank;
    for (int i = 2; i < rank; i++) {
        axes[i - 1] = i;
    }
    return hth_grad_reduce(grad, HTH_OP_REDUCE_SUM, v, axes, rank > 1 ? rank - 1 : 1, false);
}

int hth_grad_content(hth_grad *grad, int v, int64_t *out, int cap)
{
    hth_const *k = v < 0 ? NULL : grad->g->values[v].constant;
    const void *data;
    if (k == NULL || k->dtype != HTH_DT_I32) {
        return hth_pass_ints(grad->g, v, out, cap);
    }
    int64_t n = hth_shape_elements(&k->shape);
    if (n > cap || hth_const_map(k, &data) != HTH_OK) {
        return -1;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t x;
        memcpy(&x, (const char *)data + i * 4, sizeof x);
        out[i] = x;
    }
    hth_const_unmap(k);
    return (int)n;
}

int hth_grad_extend(hth_grad *c, int k)
{
    int wait;
    while (c->err == HTH_OK && c->g->nodes[c->forward].n_outputs <= k) {
        int v;
        keep(c, hth_graph_add_value(c->g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &v));
        hth_node *n = &c->g->nodes[c->forward];
        int *more = c->err != HTH_OK
                        ? NULL
                        : hth_realloc(n->outputs, (size_t)n->n_outputs + 1, sizeof *more);
        if (more == NULL) {
            keep(c, hth_no_memory("a gradient"));
            return -1;
        }
        n->outputs = more;
        n->outputs[n->n_outputs++] = v;
        c->g->values[v].producer = c->forward;
    }
    hth_node *n = &c->g->nodes[c->forward];
    for (int i = 0; c->err == HTH_OK && i <= k; i++) {
        if (n->outputs[i] < 0) {
            int v;
            keep(c, hth_graph_add_value(c->g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &v));
            if (c->err == HTH_OK) {
                n->outputs[i] = v;
                c->g->values[v].producer = c->forward;
            }
        }
    }
    GRAD_ATTR(hth_infer_node(c->g, c->forward, &wait))
    return c->err == HTH_OK ? n->outputs[k] : -1;
}
