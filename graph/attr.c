// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include "base/alloc.h"

#include <string.h>

const hth_attr *hth_node_attr(const hth_node *n, const char *name)
{
    for (int i = 0; i < n->n_attrs; i++) {
        if (strcmp(n->attrs[i].name, name) == 0) {
            return &n->attrs[i];
        }
    }
    return NULL;
}

int64_t hth_node_int(const hth_node *n, const char *name, int64_t dflt)
{
    const hth_attr *a = hth_node_attr(n, name);
    return a != NULL && a->type == HTH_ATTR_INT ? a->u.i : dflt;
}

float hth_node_float(const hth_node *n, const char *name, float dflt)
{
    const hth_attr *a = hth_node_attr(n, name);
    return a != NULL && a->type == HTH_ATTR_FLOAT ? a->u.f : dflt;
}

const char *hth_node_str(const hth_node *n, const char *name, const char *dflt)
{
    const hth_attr *a = hth_node_attr(n, name);
    return a != NULL && a->type == HTH_ATTR_STRING ? a->u.s : dflt;
}

int hth_node_ints(const hth_node *n, const char *name, int64_t *out, int cap)
{
    const hth_attr *a = hth_node_attr(n, name);
    if (a == NULL || a->type != HTH_ATTR_INTS) {
        return -1;
    }
    for (int i = 0; i < a->n && i < cap; i++) {
        out[i] = a->u.ints[i];
    }
    return a->n;
}

int hth_node_axis(const hth_node *n, const char *name, int64_t dflt, int rank)
{
    int64_t axis = hth_node_int(n, name, dflt);
    if (axis < -(int64_t)rank || axis >= rank) {
        return -1;
    }
    return (int)(axis < 0 ? axis + rank : axis);
}

void hth_attr_clear(hth_attr *a)
{
    switch (a->type) {
    case HTH_ATTR_STRING:
        hth_free(a->u.s);
        break;
    case HTH_ATTR_INTS:
        hth_free(a->u.ints);
        break;
    case HTH_ATTR_FLOATS:
        hth_free(a->u.floats);
        break;
    case HTH_ATTR_STRINGS:
        for (int i = 0; i < a->n; i++) {
            hth_free(a->u.strings[i]);
        }
        hth_free(a->u.strings);
        break;
    case HTH_ATTR_TENSOR:
        hth_const_rele(a->u.tensor);
        break;
    case HTH_ATTR_INT:
    case HTH_ATTR_FLOAT:
        break;
    }
    hth_free(a->name);
}

void hth_node_clear(hth_node *n)
{
    for (int i = 0; i < n->n_attrs; i++) {
        hth_attr_clear(&n->attrs[i]);
    }
    hth_free(n->attrs);
    hth_free(n->name);
    hth_free(n->inputs);
    hth_free(n->outputs);
    memset(n, 0, sizeof *n);
}

hth_err hth_node_put_attr(hth_node *n, hth_attr a)
{
    for (int i = 0; i < n->n_attrs; i++) {
        if (strcmp(n->attrs[i].name, a.name) == 0) {
            hth_attr_clear(&n->attrs[i]);
            n->attrs[i] = a;
            return HTH_OK;
        }
    }
    hth_attr *grown = hth_realloc(n->attrs, (size_t)n->n_attrs + 1, sizeof *grown);
    if (grown == NULL) {
        hth_attr_clear(&a);
        return hth_fail(HTH_ENOMEM, "no memory for an attribute");
    }
    n->attrs = grown;
    grown[n->n_attrs++] = a;
    return HTH_OK;
}

void hth_node_drop_attr(hth_node *n, const char *name)
{
    for (int i = 0; i < n->n_attrs; i++) {
        if (strcmp(n->attrs[i].name, name) == 0) {
            hth_attr_clear(&n->attrs[i]);
            n->attrs[i] = n->attrs[--n->n_attrs];
            return;
        }
    }
}

static hth_err attr_put_named(hth_node *n, const char *name, hth_attr a)
{
    a.name = hth_strdup(name);
    if (a.name == NULL) {
        hth_attr_clear(&a);
        return hth_fail(HTH_ENOMEM, "no memory for an attribute");
    }
    return hth_node_put_attr(n, a);
}

hth_err hth_node_set_int(hth_node *n, const char *name, int64_t v)
{
    return attr_put_named(n, name, (hth_attr){.type = HTH_ATTR_INT, .u.i = v});
}

hth_err hth_node_set_float(hth_node *n, const char *name, float v)
{
    return attr_put_named(n, name, (hth_attr){.type = HTH_ATTR_FLOAT, .u.f = v});
}

hth_err hth_node_set_str(hth_node *n, const char *name, const char *v)
{
    char *s = hth_strdup(v);
    return s == NULL ? hth_fail(HTH_ENOMEM, "no memory for an attribute")
                     : attr_put_named(n, name, (hth_attr){.type = HTH_ATTR_STRING, .u.s = s});
}

hth_err hth_node_set_ints(hth_node *n, const char *name, const int64_t *v, int count)
{
    int64_t *copy = hth_memdup(v, (size_t)count * sizeof *v);
    return copy == NULL
               ? hth_fail(HTH_ENOMEM, "no memory for an attribute")
               : attr_put_named(n, name,
                                (hth_attr){.type = HTH_ATTR_INTS, .n = count, .u.ints = copy});
}

static hth_err attr_copy(hth_node *to, const hth_attr *a)
{
    hth_attr c = {.type = a->type, .n = a->n};
    switch (a->type) {
    case HTH_ATTR_INT:
        return hth_node_set_int(to, a->name, a->u.i);
    case HTH_ATTR_FLOAT:
        return hth_node_set_float(to, a->name, a->u.f);
    case HTH_ATTR_STRING:
        return hth_node_set_str(to, a->name, a->u.s);
    case HTH_ATTR_INTS:
        return hth_node_set_ints(to, a->name, a->u.ints, a->n);
    case HTH_ATTR_FLOATS:
        c.u.floats = hth_memdup(a->u.floats, (size_t)a->n * sizeof(float));
        break;
    case HTH_ATTR_TENSOR:
        c.u.tensor = hth_const_hold(a->u.tensor);
        break;
    case HTH_ATTR_STRINGS:
        c.n = 0;
        c.u.strings = hth_calloc((size_t)a->n, sizeof(char *));
        for (; c.u.strings != NULL && c.n < a->n; c.n++) {
            c.u.strings[c.n] = hth_strdup(a->u.strings[c.n]);
            if (c.u.strings[c.n] == NULL) {
                hth_attr_clear(&c);
                return hth_fail(HTH_ENOMEM, "no memory for an attribute");
            }
        }
        break;
    }
    return c.u.floats == NULL ? hth_fail(HTH_ENOMEM, "no memory for an attribute")
                              : attr_put_named(to, a->name, c);
}

hth_err hth_node_copy_attrs(hth_node *to, const hth_node *from)
{
    for (int i = 0; i < from->n_attrs; i++) {
        HTH_TRY(attr_copy(to, &from->attrs[i]));
    }
    return HTH_OK;
}
