// SPDX-License-Identifier: Apache-2.0
// graph/test_eval.h - for tests in graph/: builds graphs in few words, computes a handful of
// operators, runs a graph.
//
// The operators are written as plainly as can be (one loop each, float and int64 only), independent
// of the kernels.
#ifndef HTH_GRAPH_TEST_EVAL_H
#define HTH_GRAPH_TEST_EVAL_H

#include "graph/specialize.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNUSED __attribute__((unused))

static UNUSED int value(hth_graph *graph, const char *name, hth_dtype dt, hth_shape shape)
{
    int v;
    assert_int_equal(hth_graph_add_value(graph, name, dt, &shape, &v), HTH_OK);
    return v;
}

static UNUSED int input(hth_graph *graph, const char *name, hth_dtype dt, hth_shape shape)
{
    int v = value(graph, name, dt, shape);
    assert_int_equal(hth_graph_add_input(graph, v), HTH_OK);
    return v;
}

static UNUSED int constant(hth_graph *graph, hth_dtype dt, hth_shape shape, const void *data)
{
    hth_const *c;
    int v;
    assert_int_equal(hth_const_new(dt, &shape, data, &c), HTH_OK);
    assert_int_equal(hth_graph_add_const(graph, NULL, c, &v), HTH_OK);
    return v;
}

static UNUSED int ints(hth_graph *graph, int n, const int64_t *v)
{
    return constant(graph, HTH_DT_I64, (hth_shape){1, {n}}, v);
}

// Adds a node of up to three inputs (-1: none) and one output, whose value it returns.
static UNUSED int node(hth_graph *graph, hth_op op, int a, int b, int c)
{
    int out = value(graph, NULL, HTH_DT_NONE, HTH_SHAPE_UNKNOWN), in[3] = {a, b, c};
    int n = 3, index;
    while (n > 0 && in[n - 1] < 0) {
        n--;
    }
    assert_int_equal(hth_graph_add_node(graph, op, NULL, in, n, &out, 1, &index), HTH_OK);
    if (op == HTH_OP_CONCAT) { // it has no default
        assert_int_equal(hth_node_set_int(&graph->nodes[index], "axis", 0), HTH_OK);
    }
    return out;
}

static UNUSED hth_node *last(hth_graph *graph)
{
    return &graph->nodes[graph->n_nodes - 1];
}

static UNUSED int count_op(const hth_graph *graph, hth_op op)
{
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        n += graph->nodes[i].op == op;
    }
    return n;
}

// The flat index into a tensor of shape, broadcast, of element k of a tensor of shape `full`.
static int64_t broadcast_index(const hth_shape *shape, const hth_shape *full, int64_t k)
{
    int64_t at = 0, step = 1;
    for (int i = 1; i <= full->rank; i++) {
        int64_t c = k % full->dim[full->rank - i];
        k /= full->dim[full->rank - i];
        if (i <= shape->rank) {
            at += shape->dim[shape->rank - i] == 1 ? 0 : c * step;
            step *= shape->dim[shape->rank - i];
        }
    }
    return at;
}

static void eval_binary(hth_op op, const hth_tensor *in, hth_tensor *out)
{
    for (int64_t k = 0; k < hth_shape_elements(&out->shape); k++) {
        int64_t a = broadcast_index(&in[0].shape, &out->shape, k);
        int64_t b = broadcast_index(&in[1].shape, &out->shape, k);
        if (out->dtype == HTH_DT_F32) {
            float x = ((float *)in[0].data)[a], y = ((float *)in[1].data)[b];
            ((float *)out->data)[k] = op == HTH_OP_ADD ? x + y : x * y;
        } else {
            int64_t x = ((int64_t *)in[0].data)[a], y = ((int64_t *)in[1].data)[b];
            ((int64_t *)out->data)[k] = op == HTH_OP_ADD ? x + y : x * y;
        }
    }
}

// Every operator that only moves elements: element k of the result is element `at` of the input.
static void eval_transpose(const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    int64_t perm[HTH_MAX_RANK], size = (int64_t)hth_dtype_bytes(out->dtype);
    int rank = out->shape.rank;
    if (hth_node_ints(node, "perm", perm, HTH_MAX_RANK) < 0) {
        for (int i = 0; i < rank; i++) {
            perm[i] = rank - 1 - i;
        }
    }
    for (int64_t k = 0; k < hth_shape_elements(&out->shape); k++) {
        int64_t c[HTH_MAX_RANK] = {0}, left = k, at = 0;
        for (int i = rank - 1; i >= 0; i--) {
            c[perm[i]] = left % out->shape.dim[i];
            left /= out->shape.dim[i];
        }
        for (int i = 0; i < rank; i++) {
            at = at * in->shape.dim[i] + c[i];
        }
        memcpy((char *)out->data + k * size, (char *)in->data + at * size, (size_t)size);
    }
}

// Concat and Gather along axis 0: rows.
static void eval_rows(const hth_node *node, const hth_tensor *in, hth_tensor *out)
{
    char *dst = out->data;
    if (node->op == HTH_OP_CONCAT) {
        for (int i = 0; i < node->n_inputs; i++) {
            memcpy(dst, in[i].data, in[i].bytes);
            dst += in[i].bytes;
        }
        return;
    }
    size_t row = in[0].shape.dim[0] > 0 ? in[0].bytes / (size_t)in[0].shape.dim[0] : 0;
    for (int64_t k = 0; k < hth_shape_elements(&in[1].shape); k++) {
        int64_t at = ((int64_t *)in[1].data)[k];
        at += at < 0 ? in[0].shape.dim[0] : 0;
        memcpy(dst + (size_t)k * row, (char *)in[0].data + (size_t)at * row, row);
    }
}

static void eval_non_zero(const hth_tensor *in, hth_tensor *out)
{
    int64_t found = 0;
    assert_int_equal(in->shape.rank, 1);
    for (int64_t i = 0; i < in->shape.dim[0]; i++) {
        if (((float *)in->data)[i] != 0) {
            if (out->data != NULL) {
                ((int64_t *)out->data)[found] = i;
            }
            found++;
        }
    }
    out->shape = (hth_shape){2, {1, found}};
    out->bytes = (size_t)found * 8;
}

// An hth_eval_fn. ctx: NULL, or an int that counts the calls.
static UNUSED hth_err small_eval(void *ctx, const hth_graph *graph, const hth_node *node,
                                 const hth_tensor *in, hth_tensor *out)
{
    if (ctx != NULL) {
        ++*(int *)ctx;
    }
    switch (node->op) {
    case HTH_OP_ADD:
    case HTH_OP_MUL:
        eval_binary(node->op, in, out);
        return HTH_OK;
    case HTH_OP_RELU:
        for (size_t i = 0; i < out->bytes / sizeof(float); i++) {
            float x = ((float *)in->data)[i];
            ((float *)out->data)[i] = x > 0 ? x : 0;
        }
        return HTH_OK;
    case HTH_OP_TRANSPOSE:
        eval_transpose(node, in, out);
        return HTH_OK;
    case HTH_OP_CONCAT:
    case HTH_OP_GATHER:
        eval_rows(node, in, out);
        return HTH_OK;
    case HTH_OP_NON_ZERO:
        eval_non_zero(in, out);
        return HTH_OK;
    case HTH_OP_CONSTANT_OF_SHAPE:
        memset(out->data, 0, out->bytes);
        return HTH_OK;
    case HTH_OP_IDENTITY:
    case HTH_OP_DROPOUT:
    case HTH_OP_CAST: // to the same type
    case HTH_OP_RESHAPE:
    case HTH_OP_SQUEEZE:
    case HTH_OP_UNSQUEEZE:
    case HTH_OP_FLATTEN:
    case HTH_OP_PAD:   // by nothing
    case HTH_OP_SLICE: // of everything
        memcpy(out->data, in->data, out->bytes);
        return HTH_OK;
    default:
        return hth_fail(HTH_ENOTSUP, "the test does not compute %s", hth_op_name(node->op));
    }
}

static UNUSED hth_tensor tensor_of(const hth_value *value, void *data)
{
    hth_tensor t = {value->dtype, HTH_LAYOUT_PLAIN, value->shape, data, 0};
    assert_int_equal(hth_tensor_bytes(t.dtype, &t.shape, t.layout, &t.bytes), HTH_OK);
    return t;
}

// Runs a concrete graph; out[i] (as many as the graph has outputs) gets fresh memory that the
// caller frees.
static UNUSED void run_graph(const hth_graph *graph, const hth_tensor *inputs, hth_tensor *out)
{
    hth_tensor *t = calloc((size_t)graph->n_values, sizeof *t);
    for (int i = 0; i < graph->n_values; i++) {
        const hth_value *v = &graph->values[i];
        t[i] = tensor_of(v, v->constant != NULL ? (void *)v->constant->data : NULL);
        if (v->producer >= 0) {
            t[i].data = calloc(1, t[i].bytes + 1);
        }
    }
    for (int i = 0; i < graph->n_inputs; i++) {
        t[graph->inputs[i]].data = inputs[i].data;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        hth_tensor in[8] = {0}, res[4] = {0};
        for (int k = 0; k < n->n_inputs; k++) {
            in[k] = n->inputs[k] < 0 ? in[k] : t[n->inputs[k]];
        }
        for (int k = 0; k < n->n_outputs; k++) {
            res[k] = n->outputs[k] < 0 ? res[k] : t[n->outputs[k]];
        }
        assert_int_equal(small_eval(NULL, graph, n, in, res), HTH_OK);
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        out[i] = t[graph->outputs[i]];
        out[i].data = memcpy(calloc(1, out[i].bytes + 1), out[i].data, out[i].bytes);
    }
    for (int i = 0; i < graph->n_values; i++) {
        if (graph->values[i].producer >= 0) {
            free(t[i].data);
        }
    }
    free(t);
}

#endif
