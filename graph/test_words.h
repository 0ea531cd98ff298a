// SPDX-License-Identifier: Apache-2.0
// graph/test_words.h - for tests: a model graph from a line of text.
//
//   text      = statement ; statement ; .. ; -> output output ..
//   statement = NAME:DIM,DIM,.. [TYPE]           an input; a dimension is a number or a letter
//             | NAME .. = Op(ARGUMENT ..) ATTRIBUTE=VALUE ..
//   argument  = NAME | _ (absent) | #1,-2 (vector of int64) | #s3 (scalar int64) | #f2,3 (floats of
//               that shape: 0.5, 1.5, ..) | #v2,1 (vector of floats) | #b1 (scalar bool)
//   value     = 1 | 1,2 (ints, for attributes that are lists) | 'text' | 0.5 (float)
#ifndef HTH_GRAPH_TEST_WORDS_H
#define HTH_GRAPH_TEST_WORDS_H

#include "base/alloc.h"
#include "graph/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int words_find(const hth_graph *graph, const char *name)
{
    for (int v = 0; v < graph->n_values; v++) {
        if (strcmp(graph->values[v].name, name) == 0) {
            return v;
        }
    }
    fail_msg("'%s' is not defined", name);
    return -1;
}

static int words_list(const char *p, int64_t *out, int cap)
{
    int n = 0;
    for (char *end; n < cap && *p != 0; p = *end == ',' ? end + 1 : end) {
        out[n++] = strtoll(p, &end, 10);
        if (end == p || (*end != ',' && *end != 0)) {
            fail_msg("'%s' is not a list of numbers", p);
        }
    }
    return n;
}

static int words_constant(hth_graph *graph, const char *p)
{
    int64_t n[16];
    float f[512];
    uint8_t truth;
    hth_const *c;
    int count = words_list(p + (strchr("sfvb", p[0]) != NULL && p[0] != 0), n, 16), v;
    hth_shape vector = {1, {count}}, shape = {.rank = count};
    hth_err err;
    if (p[0] == 'f') {
        memcpy(shape.dim, n, sizeof shape.dim);
        assert_true(hth_shape_elements(&shape) <= 512);
        for (int i = 0; i < 512; i++) {
            f[i] = (float)(i % 7) + 0.5F;
        }
        err = hth_const_new(HTH_DT_F32, &shape, f, &c);
    } else if (p[0] == 'v') {
        for (int i = 0; i < count; i++) {
            f[i] = (float)n[i];
        }
        err = hth_const_new(HTH_DT_F32, &vector, f, &c);
    } else if (p[0] == 'b') {
        truth = n[0] != 0;
        err = hth_const_new(HTH_DT_BOOL, &(hth_shape){.rank = 0}, &truth, &c);
    } else {
        err = hth_const_new(HTH_DT_I64, p[0] == 's' ? &(hth_shape){.rank = 0} : &vector, n, &c);
    }
    assert_int_equal(err, HTH_OK);
    assert_int_equal(hth_graph_add_const(graph, NULL, c, &v), HTH_OK);
    return v;
}

static int64_t words_symbol(hth_graph *graph, const char *name)
{
    for (int s = 0; s < graph->n_symbols; s++) {
        if (strcmp(graph->symbols[s], name) == 0) {
            return HTH_DIM_SYMBOL(s);
        }
    }
    char **grown = hth_realloc(graph->symbols, (size_t)graph->n_symbols + 1, sizeof *grown);
    assert_non_null(grown);
    graph->symbols = grown;
    grown[graph->n_symbols] = hth_strdup(name);
    return HTH_DIM_SYMBOL(graph->n_symbols++);
}

// "x:N,3 i64"
static void words_input(hth_graph *graph, char *text)
{
    char *save, *dims, *name = strtok_r(text, ": ", &save), *dim;
    hth_shape s = {.rank = 0};
    int v;
    dims = strtok_r(NULL, " ", &save);
    const char *type = strtok_r(NULL, " ", &save);
    hth_dtype dt = HTH_DT_F32;
    if (type != NULL) {
        dt = strcmp(type, "i64") == 0 ? HTH_DT_I64 : HTH_DT_BOOL;
        assert_true(dt == HTH_DT_I64 || strcmp(type, "bool") == 0);
    }
    for (dim = dims != NULL ? strtok_r(dims, ",", &save) : NULL; dim != NULL;
         dim = strtok_r(NULL, ",", &save)) {
        if (dim[0] == '?') {
            s.dim[s.rank++] = HTH_DIM_UNKNOWN;
        } else {
            bool symbol = dim[0] >= 'A' && dim[0] <= 'Z';
            s.dim[s.rank++] = symbol ? words_symbol(graph, dim) : strtoll(dim, NULL, 10);
        }
    }
    assert_int_equal(hth_graph_add_value(graph, name, dt, &s, &v), HTH_OK);
    assert_int_equal(hth_graph_add_input(graph, v), HTH_OK);
}

static bool words_is_list(const char *name)
{
    static const char *const lists[] = {"perm",      "axes",    "pads",        "kernel_shape",
                                        "dilations", "strides", "output_shape"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (strcmp(lists[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void words_attribute(hth_node *node, char *text)
{
    int64_t list[16];
    char *value = strchr(text, '=');
    assert_non_null(value);
    *value++ = 0;
    if (value[0] == '\'') {
        value[strlen(value) - 1] = 0;
        assert_int_equal(hth_node_set_str(node, text, value + 1), HTH_OK);
    } else if (words_is_list(text)) {
        int count = words_list(value, list, 16);
        assert_int_equal(hth_node_set_ints(node, text, list, count), HTH_OK);
    } else if (strchr(value, '.') != NULL) {
        assert_int_equal(hth_node_set_float(node, text, strtof(value, NULL)), HTH_OK);
    } else {
        assert_int_equal(hth_node_set_int(node, text, strtoll(value, NULL, 10)), HTH_OK);
    }
}

// "a b=Op(c #1) axis=0"
static void words_node(hth_graph *graph, char *text)
{
    int in[16], out[16], n_in = 0, n_out = 0, node;
    char *equals = strchr(text, '='), *open = strchr(text, '('), *close, *save, *word;
    assert_non_null(equals);
    assert_non_null(open);
    close = strchr(open, ')');
    assert_non_null(close);
    *equals = *open = *close = 0;
    char *name = equals + 1 + strspn(equals + 1, " ");
    hth_op op = hth_op_find(name);
    if (op == HTH_OP_NONE) {
        fail_msg("there is no operator '%s'", name);
    }
    for (word = strtok_r(open + 1, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        if (word[0] == '#') {
            in[n_in++] = words_constant(graph, word + 1);
        } else {
            in[n_in++] = word[0] == '_' ? -1 : words_find(graph, word);
        }
    }
    char first[32] = "";
    for (word = strtok_r(text, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        snprintf(first, sizeof first, "%s", first[0] != 0 ? first : word);
        if (word[0] == '_') {
            out[n_out++] = -1;
            continue;
        }
        assert_int_equal(
            hth_graph_add_value(graph, word, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &out[n_out++]),
            HTH_OK);
    }
    assert_int_equal(hth_graph_add_node(graph, op, first, in, n_in, out, n_out, &node), HTH_OK);
    for (word = strtok_r(close + 1, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        words_attribute(&graph->nodes[node], word);
    }
}

// words_graph makes the graph; the caller frees it.
static __attribute__((unused)) hth_graph *words_graph(const char *text)
{
    hth_graph *g;
    char *copy = strdup(text), *save, *inner;
    assert_non_null(copy);
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    for (char *s = strtok_r(copy, ";", &save); s != NULL; s = strtok_r(NULL, ";", &save)) {
        s += strspn(s, " ");
        if (strncmp(s, "->", 2) == 0) {
            for (char *o = strtok_r(s + 2, " ", &inner); o != NULL;
                 o = strtok_r(NULL, " ", &inner)) {
                assert_int_equal(hth_graph_add_output(g, words_find(g, o)), HTH_OK);
            }
        } else if (strchr(s, '(') != NULL) {
            words_node(g, s);
        } else {
            words_input(g, s);
        }
    }
    free(copy);
    if (hth_graph_check(g) != HTH_OK) {
        fail_msg("%s: %s", text, hth_err_detail());
    }
    return g;
}

#endif
