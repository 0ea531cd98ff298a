// SPDX-License-Identifier: Apache-2.0
// Names of Winograd's algorithms, and what a node means to them: grid, groups, filter.
#include "kernels/cpu/winograd/winograd.h"

#include "base/isa.h"
#include "kernels/ref/ref_window.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_BYTES ((size_t)8 << 20)
#define PLAN_MERGE 4 // more of a filter's zeros are not worth multiplying

// The instruction set for tensors of layout `layout`, NULL: none.
static const hth_wino_isa *plan_isa(hth_layout layout)
{
    int bytes = hth_isa_bytes();
    if (layout == HTH_LAYOUT_C16) {
        return bytes >= 64 ? &hth_wino_avx512 : NULL;
    }
    if (layout != HTH_LAYOUT_C8) {
        return NULL;
    }
    return bytes >= 32 ? &hth_wino_avx2 : &hth_wino_sse2;
}

static hth_err plan_parse(const char *algorithm, hth_wino_plan *plan)
{
    int rows = 0, columns = 0, used = 0;
    if (algorithm == NULL || sscanf(algorithm, "winograd_%dx%d:%n", &rows, &columns, &used) != 2 ||
        used == 0 || rows != columns || (rows != 2 && rows != 4 && rows != 6)) {
        return HTH_ENOTSUP;
    }
    const char *at = algorithm + used, *isa = plan->isa->name;
    if (strlen(algorithm) >= sizeof plan->name || strncmp(at, isa, strlen(isa)) != 0) {
        return HTH_ENOTSUP;
    }
    at += strlen(isa);
    plan->bytes = PLAN_BYTES;
    if (at[0] == ':' && isdigit((unsigned char)at[1])) {
        char *unit;
        unsigned long count = strtoul(at + 1, &unit, 10);
        if (count == 0 || count > 1 << 20 || (*unit != 'M' && *unit != 'K')) {
            return HTH_ENOTSUP;
        }
        plan->bytes = (size_t)count << (*unit == 'M' ? 20 : 10);
        at = unit + 1;
    }
    plan->run = strcmp(at, ":run") == 0;
    strcpy(plan->name, algorithm);
    plan->pairs = rows / 2;
    plan->points = (size_t)(rows + 2) * (size_t)(rows + 2);
    return *at == '\0' || plan->run ? HTH_OK : HTH_ENOTSUP;
}

// How many of a node's groups make whole blocks; all of them when fewer do not.
static size_t plan_merge(size_t groups, size_t ins, size_t outs, size_t block)
{
    size_t merge = 1;
    while (merge < groups &&
           (groups % merge != 0 || ins * merge % block != 0 || outs * merge % block != 0)) {
        merge++;
    }
    return merge;
}

// x, y: of the convolution that is computed; the gradient of an image is that of dy, padded by what
// the filter reaches beyond.
static hth_err plan_geometry(const hth_node *node, const hth_shape *x, const hth_shape *y,
                             const hth_shape *w, hth_wino_plan *plan)
{
    bool back = node->op == HTH_OP_CONV_GRAD_DATA;
    size_t groups = (size_t)hth_node_int(node, "group", 1), block = plan->isa->block;
    size_t ins = (size_t)x->dim[1] / groups, outs = (size_t)y->dim[1] / groups;
    hth_wino_grid *g = &plan->grid;
    ref_window win;
    const hth_shape *image = back ? y : x;
    const hth_shape *result = back ? x : y;
    HTH_TRY(ref_window_init(&win, node, image, result, w->dim + 2, 2));
    for (int i = 1; i < 3; i++) {
        win.pad[i] = back ? 2 - win.pad[i] : win.pad[i];
        if (win.stride[i] != 1 || win.dilation[i] != 1) {
            return hth_fail(HTH_ENOTSUP, "node '%s': stride or dilation", node->name);
        }
    }
    size_t merge = plan_merge(groups, ins, outs, block);
    plan->filter = (hth_wino_filter){.out = outs * merge,
                                     .in = ins * merge,
                                     .groups = groups / merge,
                                     .merge = merge,
                                     .back = back};
    *g = (hth_wino_grid){.groups = groups / merge,
                         .ib = (ins * merge + block - 1) / block,
                         .ob = (outs * merge + block - 1) / block,
                         .h = (size_t)x->dim[2],
                         .w = (size_t)x->dim[3],
                         .oh = (size_t)y->dim[2],
                         .ow = (size_t)y->dim[3],
                         .pad_h = (size_t)win.pad[1],
                         .pad_w = (size_t)win.pad[2],
                         .size = (size_t)plan->pairs * 2};
    g->tiles_h = (g->oh + g->size - 1) / g->size;
    g->tiles_w = (g->ow + g->size - 1) / g->size;
    g->tiles = (size_t)x->dim[0] * g->tiles_h * g->tiles_w;
    return HTH_OK;
}

// Image, result and filter of the convolution that the node computes or derives.
typedef struct plan_values {
    const hth_value *x, *y, *w;
} plan_values;

static plan_values plan_values_of(const hth_graph *graph, const hth_node *node)
{
    bool filter = node->op == HTH_OP_CONV_GRAD_FILTER;
    const hth_value *x = &graph->values[node->inputs[0]], *other = &graph->values[node->inputs[1]];
    const hth_value *result = &graph->values[node->outputs[0]];
    return filter ? (plan_values){x, other, result} : (plan_values){x, result, other};
}

// What does not depend on layouts; plan has an instruction set and a tile.
static hth_err plan_node(const hth_node *node, const plan_values *values, hth_wino_plan *plan)
{
    const hth_value *x = values->x, *y = values->y, *w = values->w;
    if (x->dtype != HTH_DT_F32 || w->dtype != HTH_DT_F32 || x->shape.rank != 4 ||
        w->shape.dim[2] != 3 || w->shape.dim[3] != 3 || hth_shape_elements(&x->shape) <= 0 ||
        hth_shape_elements(&y->shape) <= 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': Winograd is for 3x3 in blocks of f32", node->name);
    }
    return plan_geometry(node, &x->shape, &y->shape, &w->shape, plan);
}

hth_err hth_wino_describe(hth_device *device, const hth_graph *graph, const hth_node *node,
                          const char *algorithm, hth_wino_plan *plan)
{
    plan_values v = plan_values_of(graph, node);
    *plan = (hth_wino_plan){.isa = plan_isa(v.x->layout)};
    if ((node->op != HTH_OP_CONV && node->op != HTH_OP_CONV_GRAD_DATA &&
         node->op != HTH_OP_CONV_GRAD_FILTER) ||
        plan->isa == NULL || v.y->layout != v.x->layout || plan_parse(algorithm, plan) != HTH_OK) {
        return hth_fail(HTH_ENOTSUP, "node '%s': no such Winograd", node->name);
    }
    return plan_node(node, &v, plan);
}

bool cpu_winograd_fits(const hth_graph *graph, const hth_node *node, hth_layout layout)
{
    plan_values v = plan_values_of(graph, node);
    hth_wino_plan p = {.isa = plan_isa(layout), .pairs = 1};
    return p.isa != NULL && node->op != HTH_OP_CONV_TRANSPOSE &&
           plan_node(node, &v, &p) == HTH_OK && p.filter.merge <= PLAN_MERGE;
}

static int plan_name(char (*names)[HTH_WINO_NAME], int n, int cap, int size, const char *isa,
                     const char *more)
{
    if (n < cap) {
        snprintf(names[n++], HTH_WINO_NAME, "winograd_%dx%d:%s%s", size, size, isa, more);
    }
    return n;
}

int cpu_winograd_names(hth_device *device, const hth_graph *graph, const hth_node *node,
                       char (*names)[HTH_WINO_NAME], int cap)
{
    static const char *const dial[HTH_WINO_PAIRS][5] = {
        {"", ":2M"}, {"", ":16M", ":4M", ":2M", ":1M"}, {"", ":4M"}};
    const hth_wino_isa *isa = plan_isa(graph->values[node->inputs[0]].layout);
    hth_wino_plan p;
    char name[HTH_WINO_NAME];
    int count = 0;
    for (int pairs = 1; isa != NULL && pairs <= HTH_WINO_PAIRS; pairs++) {
        snprintf(name, sizeof name, "winograd_%dx%d:%s", 2 * pairs, 2 * pairs, isa->name);
        if (hth_wino_describe(device, graph, node, name, &p) != HTH_OK ||
            p.filter.merge > PLAN_MERGE ||
            (pairs > 1 && p.grid.oh * 2 <= p.grid.size && p.grid.ow * 2 <= p.grid.size)) {
            continue; // half of such a tile would be thrown away
        }
        for (int k = 0; k < 5 && dial[pairs - 1][k] != NULL; k++) {
            count = plan_name(names, count, cap, 2 * pairs, isa->name, dial[pairs - 1][k]);
        }
        if (node->op == HTH_OP_CONV && graph->values[node->inputs[1]].constant != NULL &&
            pairs == 2) {
            count = plan_name(names, count, cap, 2 * pairs, isa->name, ":run");
            count = plan_name(names, count, cap, 2 * pairs, isa->name, ":2M:run");
        }
    }
    return count;
}
