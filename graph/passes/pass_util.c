// SPDX-License-Identifier: Apache-2.0
#include "graph/passes/pass_util.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

hth_err hth_uses_open(const hth_graph *graph, hth_uses *out)
{
    out->count = hth_calloc((size_t)graph->n_values, sizeof(int));
    out->node = hth_alloc((size_t)graph->n_values * sizeof(int));
    if (out->count == NULL || out->node == NULL) {
        hth_uses_close(out);
        return hth_no_memory("a graph pass");
    }
    memset(out->node, -1, (size_t)graph->n_values * sizeof(int));
    for (int i = 0; i < graph->n_nodes; i++) {
        const hth_node *n = &graph->nodes[i];
        for (int k = 0; k < n->n_inputs && !n->deleted; k++) {
            if (n->inputs[k] >= 0) {
                out->count[n->inputs[k]]++;
                out->node[n->inputs[k]] = i;
            }
        }
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        out->count[graph->outputs[i]]++;
    }
    return HTH_OK;
}

void hth_uses_close(hth_uses *uses)
{
    hth_free(uses->count);
    hth_free(uses->node);
    *uses = (hth_uses){0};
}

int hth_uses_only(const hth_graph *graph, const hth_uses *uses, int value)
{
    return uses->count[value] == 1 && !graph->values[value].is_output ? uses->node[value] : -1;
}

const hth_node *hth_pass_producer(const hth_graph *graph, const hth_node *node, int slot, hth_op op)
{
    int v = slot < node->n_inputs ? node->inputs[slot] : -1;
    int p = v < 0 ? -1 : graph->values[v].producer;
    return p >= 0 && graph->nodes[p].op == op && !graph->nodes[p].deleted &&
                   graph->nodes[p].n_post == 0
               ? &graph->nodes[p]
               : NULL;
}

bool hth_pass_scalar(const hth_graph *graph, int value, float *out)
{
    hth_const *c = value < 0 ? NULL : graph->values[value].constant;
    const void *data;
    if (c == NULL || hth_shape_elements(&c->shape) != 1 || !hth_dtype_is_float(c->dtype) ||
        hth_const_map(c, &data) != HTH_OK) {
        return false;
    }
    double d;
    float f;
    uint16_t h;
    switch (c->dtype) {
    case HTH_DT_F64:
        memcpy(&d, data, sizeof d);
        *out = (float)d;
        break;
    case HTH_DT_F16:
    case HTH_DT_BF16:
        memcpy(&h, data, sizeof h);
        *out = c->dtype == HTH_DT_F16 ? hth_f16_to_f32(h) : hth_bf16_to_f32(h);
        break;
    default:
        memcpy(&f, data, sizeof f);
        *out = f;
    }
    hth_const_unmap(c);
    return true;
}

bool hth_pass_near(const hth_graph *graph, int value, float x)
{
    float v;
    return hth_pass_scalar(graph, value, &v) && fabsf(v - x) <= 1e-3f * fabsf(x);
}

int hth_pass_ints(const hth_graph *graph, int value, int64_t *out, int cap)
{
    hth_const *c = value < 0 ? NULL : graph->values[value].constant;
    const void *data;
    int64_t n = c == NULL ? -1 : hth_shape_elements(&c->shape);
    if (n < 0 || n > cap || c->dtype != HTH_DT_I64 || hth_const_map(c, &data) != HTH_OK) {
        return -1;
    }
    memcpy(out, data, (size_t)n * sizeof *out);
    hth_const_unmap(c);
    return (int)n;
}

static hth_err pass_const(hth_graph *graph, const char *name, hth_dtype dt, const void *data,
                          int64_t n, int *out)
{
    hth_const *c;
    hth_shape s = {.rank = 1, .dim = {n}};
    HTH_TRY(hth_const_new(dt, &s, data, &c));
    hth_err err = hth_graph_add_const(graph, name, c, out);
    if (err != HTH_OK) {
        hth_const_rele(c);
    }
    return err;
}

hth_err hth_pass_const_f32(hth_graph *graph, const char *name, const float *data, int64_t n,
                           int *out)
{
    return pass_const(graph, name, HTH_DT_F32, data, n, out);
}

hth_err hth_pass_const_ints(hth_graph *graph, const char *name, const int64_t *data, int n,
                            int *out)
{
    return pass_const(graph, name, HTH_DT_I64, data, n, out);
}

typedef struct scaled {
    hth_const *w, *scale;
    int axis, groups;
} scaled;

static hth_err scaled_materialize(hth_const *constant, void *dst)
{
    const scaled *s = constant->owner;
    const void *w, *scale;
    HTH_TRY(hth_const_map(s->w, &w));
    hth_err err = hth_const_map(s->scale, &scale);
    if (err != HTH_OK) {
        hth_const_unmap(s->w);
        return err;
    }
    const float *from = w, *by = scale;
    float *to = dst;
    int64_t outer = 1, along = constant->shape.dim[s->axis], inner = 1;
    for (int i = 0; i < s->axis; i++) {
        outer *= constant->shape.dim[i];
    }
    for (int i = s->axis + 1; i < constant->shape.rank; i++) {
        inner *= constant->shape.dim[i];
    }
    for (int64_t o = 0; o < outer; o++) {
        int64_t group = outer > 0 ? o * s->groups / outer : 0;
        for (int64_t a = 0; a < along; a++) {
            float f = by[group * along + a];
            for (int64_t i = 0; i < inner; i++) {
                *to++ = *from++ * f;
            }
        }
    }
    hth_const_unmap(s->scale);
    hth_const_unmap(s->w);
    return HTH_OK;
}

static void scaled_release(hth_const *constant)
{
    scaled *s = constant->owner;
    hth_const_rele(s->w);
    hth_const_rele(s->scale);
    hth_free(s);
}

hth_err hth_pass_scaled(hth_const *constant, hth_const *scale, int axis, int groups,
                        hth_const **out)
{
    hth_const *c = hth_calloc(1, sizeof *c);
    scaled *s = hth_calloc(1, sizeof *s);
    if (c == NULL || s == NULL) {
        hth_free(c);
        hth_free(s);
        return hth_no_memory("a derived constant");
    }
    *s = (scaled){hth_const_hold(constant), hth_const_hold(scale), axis, groups};
    int32_t how[2] = {axis, groups};
    hth_chunk piece[] = {{"scaled", 6},
                         {&constant->id, sizeof constant->id},
                         {&scale->id, sizeof scale->id},
                         {how, sizeof how}};
    *c = (hth_const){.dtype = constant->dtype,
                     .shape = constant->shape,
                     .bytes = constant->bytes,
                     .materialize = scaled_materialize,
                     .release = scaled_release,
                     .owner = s,
                     .id = hth_id_of(piece, 4)};
    atomic_init(&c->refs, 1);
    *out = c;
    return HTH_OK;
}

void hth_pass_set_output(hth_graph *graph, int node, int value)
{
    int old = graph->nodes[node].outputs[0];
    graph->values[old].producer = -1;
    graph->nodes[node].outputs[0] = value;
    graph->values[value].producer = node;
}
