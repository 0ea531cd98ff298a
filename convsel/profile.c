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

void hth_profile_close(hth_profile *profile)
{
    if (profile == NULL) {
        return;
    }
    for (int i = 0; i < profile->n; i++) {
        hth_free(profile->entry[i].node);
        hth_free(profile->entry[i].plain);
        hth_free(profile->entry[i].list);
    }
    hth_free(profile->entry);
    hth_free(profile);
}

hth_err hth_profile_new(const char *name, uint64_t memory_bytes, const hth_link *link,
                        hth_profile **out)
{
    hth_profile *p = *out = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_no_memory("a cost table");
    }
    snprintf(p->device, sizeof p->device, "%s", name);
    p->memory_bytes = memory_bytes;
    p->link = *link;
    return HTH_OK;
}

static const profile_entry *profile_entry_of(const hth_profile *profile, const char *node)
{
    for (int i = 0; i < profile->n; i++) {
        if (strcmp(profile->entry[i].node, node) == 0) {
            return &profile->entry[i];
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
static hth_err profile_put(hth_profile *profile, const char *node, const hth_choice *list, int n)
{
    if (HTH_GROW(profile->entry, profile->n, profile->cap) != 0) {
        return hth_no_memory("a cost table");
    }
    profile_entry *e = &profile->entry[profile->n];
    *e = (profile_entry){.node = hth_strdup(node),
                         .plain = hth_strdup(node),
                         .list = hth_memdup(list, (size_t)n * sizeof *list),
                         .n = n};
    profile->n++; // closing frees what is there
    if (e->node == NULL || e->plain == NULL || e->list == NULL) {
        return hth_no_memory("a cost table");
    }
    profile_plain(e->plain);
    return HTH_OK;
}

static double profile_bytes(const hth_graph *graph, const hth_node *node)
{
    double sum = 0;
    for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
        int v = i < node->n_inputs ? node->inputs[i] : node->outputs[i - node->n_inputs];
        size_t bytes = 0;
        if (v >= 0) {
            const hth_value *x = &graph->values[v];
            sum += hth_tensor_bytes(x->dtype, &x->shape, x->layout, &bytes) == HTH_OK
                       ? (double)bytes
                       : 0;
        }
    }
    return sum;
}

hth_err hth_profile_add(hth_profile *profile, const hth_graph *graph, const hth_node *n,
                        const hth_choice *list, int count)
{
    char node[HTH_CONVSEL_KEY];
    hth_convsel_describe(graph, n, node, sizeof node);
    if (count == 0 || profile_entry_of(profile, node) != NULL) {
        return HTH_OK;
    }
    if (!hth_convsel_has_menu(n->op) && list[0].time_us > 0) {
        profile->traffic = fmax(profile->traffic, profile_bytes(graph, n) / list[0].time_us * 1e6);
    }
    return profile_put(profile, node, list, count);
}

static const profile_entry *profile_look(const hth_profile *profile, char *node)
{
    const profile_entry *e = profile_entry_of(profile, node);
    profile_plain(node);
    for (int i = 0; e == NULL && i < profile->n; i++) {
        e = strcmp(profile->entry[i].plain, node) == 0 ? &profile->entry[i] : NULL;
    }
    return e;
}

hth_err hth_profile_find(const hth_profile *profile, const hth_graph *graph, const hth_node *n,
                         hth_choice *list, int cap, int *count)
{
    char node[HTH_CONVSEL_KEY];
    hth_convsel_describe(graph, n, node, sizeof node);
    const profile_entry *e = profile_look(profile, node);
    *count = 0;
    if (e == NULL && (hth_convsel_has_menu(n->op) || profile->traffic <= 0)) {
        return hth_fail(HTH_ENOENT, "the profile of '%s' has no node '%s': %s", profile->device,
                        n->name, node);
    }
    if (e == NULL) {
        list[(*count)++] = (hth_choice){.name = "default",
                                        .error = -1,
                                        .split = 1,
                                        .deterministic = true,
                                        .time_us = PROFILE_CHOICE + profile_bytes(graph, n) /
                                                                        profile->traffic * 1e6};
    } else {
        *count = e->n < cap ? e->n : cap;
        memcpy(list, e->list, (size_t)*count * sizeof *list);
    }
    hth_convsel_front(list, *count, hth_convsel_tolerance(graph, HTH_CONVSEL_TOLERANCE));
    return HTH_OK;
}

const char *hth_profile_device(const hth_profile *profile)
{
    return profile->device;
}

const hth_link *hth_profile_link(const hth_profile *profile)
{
    return &profile->link;
}

uint64_t hth_profile_memory(const hth_profile *profile)
{
    return profile->memory_bytes;
}

// Files.

static json_t *file_choice(const hth_choice *choice)
{
    return json_pack("{s:s, s:f, s:I, s:f, s:i, s:b, s:b}", "name", choice->name, "time_us",
                     choice->time_us, "workspace", (json_int_t)choice->workspace_bytes, "error",
                     choice->error, "split", choice->split, "accumulates", choice->accumulates,
                     "deterministic", choice->deterministic);
}

json_t *hth_profile_json(const hth_profile *profile)
{
    json_t *nodes = json_array();
    bool whole = nodes != NULL;
    for (int i = 0; whole && i < profile->n; i++) {
        json_t *choices = json_array();
        for (int k = 0; k < profile->entry[i].n; k++) {
            whole = json_array_append_new(choices, file_choice(&profile->entry[i].list[k])) == 0 &&
                    whole;
        }
        json_t *o = json_pack("{s:s, s:o}", "node", profile->entry[i].node, "choices", choices);
        whole = json_array_append_new(nodes, o) == 0 && whole;
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:{s:f, s:f, s:f, s:f, s:f}, s:f, s:o}", "format", PROFILE_FORMAT,
        "device", profile->device, "memory_bytes", (json_int_t)profile->memory_bytes, "link", "h2d",
        profile->link.h2d_bytes_per_s, "d2h", profile->link.d2h_bytes_per_s, "latency_us",
        profile->link.latency_us, "interference", profile->link.interference, "copy_us",
        profile->link.copy_us, "traffic_bytes_per_s", profile->traffic, "nodes", nodes);
    if (!whole) {
        json_decref(root);
        return NULL;
    }
    return root;
}

// A number in [least, most]; missing: dflt (NAN: it must be there).
static hth_err file_number(const json_t *json, const char *key, double least, double most,
                           double dflt, double *out)
{
    const json_t *v = json_object_get(json, key);
    *out = v == NULL ? dflt : json_number_value(v);
    if (v == NULL ? isnan(dflt) : !json_is_number(v) || !(*out >= least && *out <= most)) {
        return hth_fail(HTH_EINVAL, "'%s' %s", key,
                        v == NULL ? "is missing" : "is not a valid number");
    }
    return HTH_OK;
}

static hth_err file_read_choice(const json_t *json, hth_choice *choice)
{
    const char *name = json_string_value(json_object_get(json, "name"));
    double workspace, split;
    *choice = (hth_choice){.accumulates = json_is_true(json_object_get(json, "accumulates")),
                           .deterministic = !json_is_false(json_object_get(json, "deterministic"))};
    if (name == NULL || name[0] == '\0' || strlen(name) >= sizeof choice->name) {
        return hth_fail(HTH_EINVAL, "'name' is not a string of 1 to %zu characters",
                        sizeof choice->name - 1);
    }
    snprintf(choice->name, sizeof choice->name, "%s", name);
    HTH_TRY(file_number(json, "time_us", 0, HTH_CONVSEL_MOST_US, NAN, &choice->time_us));
    HTH_TRY(file_number(json, "workspace", 0, HTH_CONVSEL_MOST_BYTES, 0, &workspace));
    HTH_TRY(file_number(json, "error", -1, INFINITY, -1, &choice->error));
    HTH_TRY(file_number(json, "split", 1, 1 << 20, 1, &split));
    choice->workspace_bytes = (uint64_t)workspace;
    choice->split = (int)split;
    return HTH_OK;
}

static int file_order(const void *a, const void *b)
{
    double x = ((const hth_choice *)a)->time_us, y = ((const hth_choice *)b)->time_us;
    return (x > y) - (x < y);
}

static hth_err file_read_node(hth_profile *profile, const json_t *json)
{
    hth_choice list[HTH_MAX_CHOICES];
    const char *node = json_string_value(json_object_get(json, "node"));
    const json_t *choices = json_object_get(json, "choices");
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
    return profile_entry_of(profile, node) != NULL
               ? hth_fail(HTH_EINVAL, "the same node is listed twice: %.200s", node)
               : profile_put(profile, node, list, (int)n);
}

static hth_err file_read(const json_t *root, hth_profile **out)
{
    const char *device = json_string_value(json_object_get(root, "device"));
    const json_t *link = json_object_get(root, "link"), *nodes = json_object_get(root, "nodes");
    hth_link l;
    double memory, traffic;
    HTH_TRY(file_number(link, "h2d", 1, HTH_CONVSEL_MOST_BYTES, NAN, &l.h2d_bytes_per_s));
    HTH_TRY(file_number(link, "d2h", 1, HTH_CONVSEL_MOST_BYTES, NAN, &l.d2h_bytes_per_s));
    HTH_TRY(file_number(link, "latency_us", 0, 1e9, 0, &l.latency_us));
    HTH_TRY(file_number(link, "interference", 0, 2, 0, &l.interference));
    HTH_TRY(file_number(link, "copy_us", 0, 1e9, 0, &l.copy_us));
    HTH_TRY(file_number(root, "memory_bytes", 1, HTH_CONVSEL_MOST_BYTES, NAN, &memory));
    HTH_TRY(file_number(root, "traffic_bytes_per_s", 0, HTH_CONVSEL_MOST_BYTES, 0, &traffic));
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
