// SPDX-License-Identifier: Apache-2.0
// Cost tables as documents. See profile.h.
#include "convsel/profile.h"

#include "base/alloc.h"

#include <jansson.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROFILE_FORMAT "hearth-profile-1"
#define PROFILE_CHOICE 1.0 // us: what starting a node takes that only moves bytes

typedef struct profile_entry {
    char *node, *plain; // descriptor; .. without layouts
    hth_choice *list;
    int n;
} profile_entry;

struct hth_profile {
    char device[160];
    uint64_t memory_bytes;
    hth_link link;
    double traffic; // bytes per second of nodes that only move bytes; 0: unknown
    profile_entry *entry;
    int n, cap;
};

static hth_err no_memory(void)
{
    return hth_fail(HTH_ENOMEM, "no memory for a cost table");
}

void hth_profile_close(hth_profile *p)
{
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->n; i++) {
        hth_free(p->entry[i].node);
        hth_free(p->entry[i].plain);
        hth_free(p->entry[i].list);
    }
    hth_free(p->entry);
    hth_free(p);
}

hth_err hth_profile_new(const char *name, uint64_t memory_bytes, const hth_link *link,
                        hth_profile **out)
{
    hth_profile *p = *out = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return no_memory();
    }
    snprintf(p->device, sizeof p->device, "%s", name);
    p->memory_bytes = memory_bytes;
    p->link = *link;
    return HTH_OK;
}

static const profile_entry *profile_entry_of(const hth_profile *p, const char *node)
{
    for (int i = 0; i < p->n; i++) {
        if (strcmp(p->entry[i].node, node) == 0) {
            return &p->entry[i];
        }
    }
    return NULL;
}

static void profile_plain(char *text)
{
    for (hth_layout l = HTH_LAYOUT_C8; l <= HTH_LAYOUT_NHWC; l++) {
        const char *name = hth_layout_name(l);
        size_t n = strlen(name);
        for (char *at = strstr(text, name); at != NULL; at = strstr(at, name)) {
            if (at > text && at[-1] == ']') { // after a shape
                memmove(at, at + n, strlen(at + n) + 1);
            } else {
                at += n;
            }
        }
    }
}

// Takes over nothing; the list is copied.
static hth_err profile_put(hth_profile *p, const char *node, const hth_choice *list, int n)
{
    if (HTH_GROW(p->entry, p->n, p->cap) != 0) {
        return no_memory();
    }
    profile_entry *e = &p->entry[p->n];
    *e = (profile_entry){.node = hth_strdup(node),
                         .plain = hth_strdup(node),
                         .list = hth_memdup(list, (size_t)n * sizeof *list),
                         .n = n};
    p->n++; // closing frees what is there
    if (e->node == NULL || e->plain == NULL || e->list == NULL) {
        return no_memory();
    }
    profile_plain(e->plain);
    return HTH_OK;
}

static double profile_bytes(const hth_graph *g, const hth_node *n)
{
    double sum = 0;
    for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
        int v = i < n->n_inputs ? n->inputs[i] : n->outputs[i - n->n_inputs];
        size_t bytes = 0;
        if (v >= 0) {
            const hth_value *x = &g->values[v];
            sum += hth_tensor_bytes(x->dtype, &x->shape, x->layout, &bytes) == HTH_OK
                       ? (double)bytes
                       : 0;
        }
    }
    return sum;
}

hth_err hth_profile_add(hth_profile *p, const hth_graph *g, const hth_node *n,
                        const hth_choice *list, int count)
{
    char node[HTH_CONVSEL_KEY];
    hth_convsel_describe(g, n, node, sizeof node);
    if (count == 0 || profile_entry_of(p, node) != NULL) {
        return HTH_OK;
    }
    if (!hth_convsel_has_menu(n->op) && list[0].time_us > 0) {
        p->traffic = fmax(p->traffic, profile_bytes(g, n) / list[0].time_us * 1e6);
    }
    return profile_put(p, node, list, count);
}

static const profile_entry *profile_look(const hth_profile *p, char *node)
{
    const profile_entry *e = profile_entry_of(p, node);
    profile_plain(node);
    for (int i = 0; e == NULL && i < p->n; i++) {
        e = strcmp(p->entry[i].plain, node) == 0 ? &p->entry[i] : NULL;
    }
    return e;
}

hth_err hth_profile_find(const hth_profile *p, const hth_graph *g, const hth_node *n,
                         hth_choice *list, int cap, int *count)
{
    char node[HTH_CONVSEL_KEY];
    hth_convsel_describe(g, n, node, sizeof node);
    const profile_entry *e = profile_look(p, node);
    *count = 0;
    if (e == NULL && (hth_convsel_has_menu(n->op) || p->traffic <= 0)) {
        return hth_fail(HTH_ENOENT, "the profile of '%s' has no node '%s': %s", p->device, n->name,
                        node);
    }
    if (e == NULL) {
        list[(*count)++] =
            (hth_choice){.name = "default",
                         .error = -1,
                         .split = 1,
                         .deterministic = true,
                         .time_us = PROFILE_CHOICE + profile_bytes(g, n) / p->traffic * 1e6};
    } else {
        *count = e->n < cap ? e->n : cap;
        memcpy(list, e->list, (size_t)*count * sizeof *list);
    }
    hth_convsel_front(list, *count, hth_convsel_tolerance(g, HTH_CONVSEL_TOLERANCE));
    return HTH_OK;
}

const char *hth_profile_device(const hth_profile *p)
{
    return p->device;
}

const hth_link *hth_profile_link(const hth_profile *p)
{
    return &p->link;
}

uint64_t hth_profile_memory(const hth_profile *p)
{
    return p->memory_bytes;
}

// Files.

static json_t *file_choice(const hth_choice *c)
{
    return json_pack("{s:s, s:f, s:I, s:f, s:i, s:b, s:b}", "name", c->name, "time_us", c->time_us,
                     "workspace", (json_int_t)c->workspace_bytes, "error", c->error, "split",
                     c->split, "accumulates", c->accumulates, "deterministic", c->deterministic);
}

json_t *hth_profile_json(const hth_profile *p)
{
    json_t *nodes = json_array();
    bool whole = nodes != NULL;
    for (int i = 0; whole && i < p->n; i++) {
        json_t *choices = json_array();
        for (int k = 0; k < p->entry[i].n; k++) {
            whole = json_array_append_new(choices, file_choice(&p->entry[i].list[k])) == 0 && whole;
        }
        json_t *o = json_pack("{s:s, s:o}", "node", p->entry[i].node, "choices", choices);
        whole = json_array_append_new(nodes, o) == 0 && whole;
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:{s:f, s:f, s:f, s:f}, s:f, s:o}", "format", PROFILE_FORMAT, "device",
        p->device, "memory_bytes", (json_int_t)p->memory_bytes, "link", "h2d",
        p->link.h2d_bytes_per_s, "d2h", p->link.d2h_bytes_per_s, "latency_us", p->link.latency_us,
        "interference", p->link.interference, "traffic_bytes_per_s", p->traffic, "nodes", nodes);
    if (!whole) {
        json_decref(root);
        return NULL;
    }
    return root;
}

// A number in [least, most]; missing: dflt (NAN: it must be there).
static hth_err file_number(const json_t *o, const char *key, double least, double most, double dflt,
                           double *out)
{
    const json_t *v = json_object_get(o, key);
    *out = v == NULL ? dflt : json_number_value(v);
    if (v == NULL ? isnan(dflt) : !json_is_number(v) || !(*out >= least && *out <= most)) {
        return hth_fail(HTH_EINVAL, "'%s' %s", key,
                        v == NULL ? "is missing" : "is not a valid number");
    }
    return HTH_OK;
}

static hth_err file_read_choice(const json_t *o, hth_choice *c)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    double workspace, split;
    *c = (hth_choice){.accumulates = json_is_true(json_object_get(o, "accumulates")),
                      .deterministic = !json_is_false(json_object_get(o, "deterministic"))};
    if (name == NULL || name[0] == '\0' || strlen(name) >= sizeof c->name) {
        return hth_fail(HTH_EINVAL, "'name' is not a string of 1 to %zu characters",
                        sizeof c->name - 1);
    }
    snprintf(c->name, sizeof c->name, "%s", name);
    HTH_TRY(file_number(o, "time_us", 0, 1e12, NAN, &c->time_us));
    HTH_TRY(file_number(o, "workspace", 0, 1e15, 0, &workspace));
    HTH_TRY(file_number(o, "error", -1, INFINITY, -1, &c->error));
    HTH_TRY(file_number(o, "split", 1, 1 << 20, 1, &split));
    c->workspace_bytes = (uint64_t)workspace;
    c->split = (int)split;
    return HTH_OK;
}

static int file_order(const void *a, const void *b)
{
    double x = ((const hth_choice *)a)->time_us, y = ((const hth_choice *)b)->time_us;
    return (x > y) - (x < y);
}

static hth_err file_read_node(hth_profile *p, const json_t *o)
{
    hth_choice list[HTH_MAX_CHOICES];
    const char *node = json_string_value(json_object_get(o, "node"));
    const json_t *choices = json_object_get(o, "choices");
    size_t n = json_array_size(choices);
    if (node == NULL || n == 0 || n > HTH_MAX_CHOICES) {
        return hth_fail(HTH_EINVAL, "needs a \"node\" and 1 to %d \"choices\"", HTH_MAX_CHOICES);
    }
    for (size_t i = 0; i < n; i++) {
        hth_err err = file_read_choice(json_array_get(choices, i), &list[i]);
        if (err != HTH_OK) {
            return hth_err_prefix(err, "choices[%zu]", i);
        }
    }
    qsort(list, n, sizeof *list, file_order);
    return profile_entry_of(p, node) != NULL
               ? hth_fail(HTH_EINVAL, "the same node is listed twice: %.200s", node)
               : profile_put(p, node, list, (int)n);
}

static hth_err file_read(const json_t *root, hth_profile **out)
{
    const char *device = json_string_value(json_object_get(root, "device"));
    const json_t *link = json_object_get(root, "link"), *nodes = json_object_get(root, "nodes");
    hth_link l;
    double memory, traffic;
    HTH_TRY(file_number(link, "h2d", 1, 1e15, NAN, &l.h2d_bytes_per_s));
    HTH_TRY(file_number(link, "d2h", 1, 1e15, NAN, &l.d2h_bytes_per_s));
    HTH_TRY(file_number(link, "latency_us", 0, 1e9, 0, &l.latency_us));
    HTH_TRY(file_number(link, "interference", 0, 2, 0, &l.interference));
    HTH_TRY(file_number(root, "memory_bytes", 1, 1e15, NAN, &memory));
    HTH_TRY(file_number(root, "traffic_bytes_per_s", 0, 1e15, 0, &traffic));
    if (!json_is_array(nodes)) {
        return hth_fail(HTH_EINVAL, "'nodes' is not a list");
    }
    HTH_TRY(hth_profile_new(device != NULL ? device : "?", (uint64_t)memory, &l, out));
    (*out)->traffic = traffic;
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        hth_err err = file_read_node(*out, json_array_get(nodes, i));
        if (err != HTH_OK) {
            return hth_err_prefix(err, "nodes[%zu]", i);
        }
    }
    return HTH_OK;
}

hth_err hth_profile_from_json(const json_t *root, hth_profile **out)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    *out = NULL;
    if (format == NULL || strcmp(format, PROFILE_FORMAT) != 0) {
        return hth_fail(HTH_ENOTSUP, "profile: format is not \"" PROFILE_FORMAT "\"");
    }
    hth_err err = file_read(root, out);
    if (err != HTH_OK) {
        hth_err_prefix(err, "profile");
        hth_profile_close(*out);
        *out = NULL;
    }
    return err;
}
