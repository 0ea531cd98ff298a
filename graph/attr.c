// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include "base/alloc.h"

#include <string.h>

const hth_attr *hth_node_attr(const hth_node *node, const char *name)
{
    for (int i = 0; i < node->n_attrs; i++) {
        if (strcmp(node->attrs[i].name, name) == 0) {
            return &node->attrs[i];
        }
    }
    return NULL;
}

int64_t hth_node_int(const hth_node *node, const char *name, int64_t dflt)
{
    const hth_attr *a = hth_node_attr(node, name);
    return a != NULL && a->type == HTH_ATTR_INT ? a->u.i : dflt;
}

float hth_node_float(const hth_node *node, const char *name, float dflt)
{
    const hth_attr *a = hth_node_attr(node, name);
    return a != NULL && a->type == HTH_ATTR_FLOAT ? a->u.f : dflt;
}

const char *hth_node_str(const hth_node *node, const char *name, const char *dflt)
{
    const hth_attr *a = hth_node_attr(node, name);
    return a != NULL && a->type == HTH_ATTR_STRING ? a->u.s : dflt;
}

int hth_node_ints(const hth_node *node, const char *name, int64_t *out, int cap)
{
    const hth_attr *a = hth_node_attr(node, name);
    if (a == NULL || a->type != HTH_ATTR_INTS) {
        return -1;
    }
    for (int i = 0; i < a->n && i < cap; i++) {
        out[i] = a->u.ints[i];
    }
    return a->n;
}

int hth_node_axis(const hth_node *node, const char *name, int64_t dflt, int rank)
{
    int64_t axis = hth_node_int(node, name, dflt);
    if (axis < -(int64_t)rank || axis >= rank) {
        return -1;
    }
    return (int)(axis < 0 ? axis + rank : axis);
}

void hth_attr_clear(hth_attr *attr)
{
    switch (attr->type) {
    case HTH_ATTR_STRING:
        hth_free(attr->u.s);
        break;
    case HTH_ATTR_INTS:
        hth_free(attr->u.ints);
        break;
    case HTH_ATTR_FLOATS:
        hth_free(attr->u.floats);
        break;
    case HTH_ATTR_STRINGS:
        for (int i = 0; i < attr->n; i++) {
            hth_free(attr->u.strings[i]);
        }
        hth_free(attr->u.strings);
        break;
    case HTH_ATTR_TENSOR:
        hth_const_rele(attr->u.tensor);
        break;
    case HTH_ATTR_INT:
    case HTH_ATTR_FLOAT:
        break;
    }
    hth_free(attr->name);
}

void hth_node_clear(hth_node *node)
{
    for (int i = 0; i < node->n_attrs; i++) {
        hth_attr_clear(&node->attrs[i]);
    }
    hth_free(node->attrs);
    hth_free(node->name);
    hth_free(node->inputs);
    hth_free(node->outputs);
    memset(node, 0, sizeof *node);
}

hth_err hth_node_put_attr(hth_node *node, hth_attr attr)
{
    for (int i = 0; i < node->n_attrs; i++) {
        if (strcmp(node->attrs[i].name, attr.name) == 0) {
            hth_attr_clear(&node->attrs[i]);
            node->attrs[i] = attr;
            return HTH_OK;
        }
    }
    hth_attr *grown = hth_realloc(node->attrs, (size_t)node->n_attrs + 1, sizeof *grown);
    if (grown == NULL) {
        hth_attr_clear(&attr);
        return hth_no_memory("an attribute");
    }
    node->attrs = grown;
    grown[node->n_attrs++] = attr;
    return HTH_OK;
}

void hth_node_drop_attr(hth_node *node, const char *name)
{
    for (int i = 0; i < node->n_attrs; i++) {
        if (strcmp(node->attrs[i].name, name) == 0) {
            hth_attr_clear(&node->attrs[i]);
            node->attrs[i] = node->attrs[--node->n_attrs];
            return;
        }
    }
}

static hth_err attr_put_named(hth_node *node, const char *name, hth_attr attr)
{
    attr.name = hth_strdup(name);
    if (attr.name == NULL) {
        hth_attr_clear(&attr);
        return hth_no_memory("an attribute");
    }
    return hth_node_put_attr(node, attr);
}

hth_err hth_node_set_int(hth_node *node, const char *name, int64_t v)
{
    return attr_put_named(node, name, (hth_attr){.type = HTH_ATTR_INT, .u.i = v});
}

hth_err hth_node_set_float(hth_node *node, const char *name, float v)
{
    return attr_put_named(node, name, (hth_attr){.type = HTH_ATTR_FLOAT, .u.f = v});
}

hth_err hth_node_set_str(hth_node *node, const char *name, const char *v)
{
    char *s = hth_strdup(v);
    return s == NULL ? hth_no_memory("an attribute")
                     : attr_put_named(node, name, (hth_attr){.type = HTH_ATTR_STRING, .u.s = s});
}

hth_err hth_node_set_ints(hth_node *node, const char *name, const int64_t *v, int count)
{
    int64_t *copy = hth_memdup(v, (size_t)count * sizeof *v);
    return copy == NULL
               ? hth_no_memory("an attribute")
               : attr_put_named(node, name,
                                (hth_attr){.type = HTH_ATTR_INTS, .n = count, .u.ints = copy});
}

static hth_err attr_copy(hth_node *to, const hth_attr *attr)
{
    hth_attr c = {.type = attr->type, .n = attr->n};
    switch (attr->type) {
    case HTH_ATTR_INT:
        return hth_node_set_int(to, attr->name, attr->u.i);
    case HTH_ATTR_FLOAT:
        return hth_node_set_float(to, attr->name, attr->u.f);
    case HTH_ATTR_STRING:
        return hth_node_set_str(to, attr->name, attr->u.s);
    case HTH_ATTR_INTS:
        return hth_node_set_ints(to, attr->name, attr->u.ints, attr->n);
    case HTH_ATTR_FLOATS:
        c.u.floats = hth_memdup(attr->u.floats, (size_t)attr->n * sizeof(float));
        break;
    case HTH_ATTR_TENSOR:
        c.u.tensor = hth_const_hold(attr->u.tensor);
        break;
    case HTH_ATTR_STRINGS:
        c.n = 0;
        c.u.strings = hth_calloc((size_t)attr->n, sizeof(char *));
        for (; c.u.strings != NULL && c.n < attr->n; c.n++) {
            c.u.strings[c.n] = hth_strdup(attr->u.strings[c.n]);
            if (c.u.strings[c.n] == NULL) {
                hth_attr_clear(&c);
                return hth_no_memory("an attribute");
            }
        }
        break;
    }
    return c.u.floats == NULL ? hth_no_memory("an attribute") : attr_put_named(to, attr->name, c);
}

hth_err hth_node_copy_attrs(hth_node *to, const hth_node *from)
{
    for (int i = 0; i < from->n_attrs; i++) {
        HTH_TRY(attr_copy(to, &from->attrs[i]));
    }
    return HTH_OK;
}
