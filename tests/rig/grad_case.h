// SPDX-License-Identifier: Apache-2.0
// tests/rig/grad_case.h - models of one node that are said in one line: operator, operands,
// attributes. Every float operand is a parameter; the loss compares the output.
//
//   Op x[2,3] w+[3] i:[2]{0,1} f=[2]{1,2} s={2} - ; name=1,2 name='text' name=0.5
//   x[..] parameter, values in (-1, 1) away from 0, no two alike; w+[..] positive, w^[..] above 1;
//   x![..]{..} parameter of these values;
//   i:[..]{..} constant int64; f=[..]{..} constant float, without {} zeros; - absent; >2 the output
//   that is compared
#ifndef HTH_TESTS_RIG_GRAD_CASE_H
#define HTH_TESTS_RIG_GRAD_CASE_H

#include "graph/autodiff/train.h"
#include "kernels/kernel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_OPERANDS 8

typedef struct grad_case {
    hth_graph *g;
    int in[MAX_OPERANDS], n_in, out;
    uint32_t seed;
} grad_case;

static inline float next_value(grad_case *c, char kind)
{
    c->seed = c->seed * 1664525u + 1013904223u;
    float v = 0.1f + 0.9f * (float)(c->seed >> 8) / 16777216.0f;
    if (kind == '^') {
        return 1 + v;
    }
    return kind == '+' || (c->seed & 0x80) ? v : -v;
}

// "[2,3]" at *p; a scalar without.
static inline hth_shape read_shape(const char **p)
{
    hth_shape s = {0};
    if (**p == '[') {
        ++*p;
        while (**p != ']') {
            s.dim[s.rank++] = strtoll(*p, (char **)p, 10);
            *p += **p == ',';
        }
        ++*p;
    }
    return s;
}

// "{1,2.5}" at *p.
static inline int read_numbers(const char **p, double *out)
{
    int n = 0;
    assert_int_equal(**p, '{');
    ++*p;
    while (**p != '}') {
        out[n++] = strtod(*p, (char **)p);
        *p += **p == ',';
    }
    ++*p;
    return n;
}

static inline int add_constant(grad_case *c, hth_dtype dt, const hth_shape *shape, const double *v)
{
    int64_t ints[64];
    float floats[64];
    hth_const *k;
    int value, n = (int)hth_shape_elements(shape);
    for (int i = 0; i < n; i++) {
        ints[i] = dt == HTH_DT_I64 ? (int64_t)v[i] : 0;
        floats[i] = (float)v[i];
    }
    const void *data = dt == HTH_DT_I64 ? (const void *)ints : floats;
    uint8_t bits[64];
    for (int i = 0; dt == HTH_DT_BOOL && i < n; i++) {
        bits[i] = v[i] != 0;
        data = bits;
    }
    assert_int_equal(hth_const_new(dt, shape, data, &k), HTH_OK);
    assert_int_equal(hth_graph_add_const(c->g, NULL, k, &value), HTH_OK);
    return value;
}

// given: its values, NULL: those of its kind.
static inline int add_parameter(grad_case *c, const hth_shape *shape, char kind,
                                const double *given)
{
    hth_const *k;
    int value;
    float *data = malloc((size_t)hth_shape_elements(shape) * sizeof *data + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < hth_shape_elements(shape); i++) {
        data[i] = given != NULL ? (float)given[i] : next_value(c, kind);
    }
    assert_int_equal(hth_const_new(HTH_DT_F32, shape, data, &k), HTH_OK);
    free(data);
    assert_int_equal(hth_graph_add_const(c->g, NULL, k, &value), HTH_OK);
    c->g->values[value].initializer = value + 1;
    return value;
}

// One operand at *p.
static inline int read_operand(grad_case *c, const char **p)
{
    double v[64] = {0};
    if (**p == '-') {
        ++*p;
        return -1;
    }
    ++*p; // its name
    char kind = **p;
    *p += kind != '[' && kind != '{';
    hth_shape s = read_shape(p);
    if (kind == '[' || kind == '+' || kind == '^') {
        return add_parameter(c, &s, kind, NULL);
    }
    if (**p == '{') {
        int n = read_numbers(p, v);
        assert_int_equal(n, hth_shape_elements(&s));
    }
    if (kind == '!') {
        return add_parameter(c, &s, kind, v);
    }
    hth_dtype dtype = kind == '?' ? HTH_DT_BOOL : HTH_DT_F32;
    return add_constant(c, kind == ':' ? HTH_DT_I64 : dtype, &s, v);
}

static inline void read_attribute(hth_node *node, const char **p)
{
    char name[64], text[64];
    int64_t v[16];
    int count = 0, len = (int)strcspn(*p, "=");
    snprintf(name, sizeof name, "%.*s", len, *p);
    *p += len + 1;
    if (**p == '\'') {
        len = (int)strcspn(++*p, "'");
        snprintf(text, sizeof text, "%.*s", len, *p);
        *p += len + 1;
        assert_int_equal(hth_node_set_str(node, name, text), HTH_OK);
        return;
    }
    len = (int)strcspn(*p, " ");
    if (memchr(*p, '.', (size_t)len) != NULL) {
        assert_int_equal(hth_node_set_float(node, name, strtof(*p, (char **)p)), HTH_OK);
        return;
    }
    bool list = memchr(*p, ',', (size_t)len) != NULL;
    while (**p != ' ' && **p != '\0') {
        v[count++] = strtoll(*p, (char **)p, 10);
        if (**p == ',') {
            ++*p;
            list = true;
        }
    }
    assert_int_equal(list ? hth_node_set_ints(node, name, v, count)
                          : hth_node_set_int(node, name, v[0]),
                     HTH_OK);
}

static bool grad_seen[HTH_N_OPS]; // operators of the cases so far

static inline hth_op find_op(const char *name)
{
    hth_op op = hth_op_find(name);
    assert_int_not_equal(op, HTH_OP_NONE);
    grad_seen[op] = true;
    return op;
}

static inline void case_read(grad_case *c, const char *line)
{
    char op[64];
    int out[MAX_OPERANDS] = {0}, n_out = 1, which = 0, len = (int)strcspn(line, " "), node;
    const char *p = line + len;
    snprintf(op, sizeof op, "%.*s", len, line);
    assert_int_equal(hth_graph_new(&c->g), HTH_OK);
    for (; *p == ' '; p += *p == ' ' && p[1] == ' ') {
        if (*++p == ';' || *p == '\0') {
            break;
        }
        if (*p == '>') { // ">2": three outputs, the last is compared; ">2/3": of three
            which = (int)strtol(p + 1, (char **)&p, 10);
            n_out = *p == '/' ? (int)strtol(p + 1, (char **)&p, 10) : which + 1;
            continue;
        }
        c->in[c->n_in++] = read_operand(c, &p);
    }
    for (int i = 0; i < n_out; i++) {
        assert_int_equal(hth_graph_add_value(c->g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &out[i]),
                         HTH_OK);
    }
    assert_int_equal(
        hth_graph_add_node(c->g, find_op(op), "node", c->in, c->n_in, out, n_out, &node), HTH_OK);
    p += *p == ';';
    while (*p == ' ' && p[1] != '\0') {
        ++p;
        read_attribute(&c->g->nodes[node], &p);
    }
    assert_int_equal(hth_graph_add_output(c->g, out[which]), HTH_OK);
}

#endif
