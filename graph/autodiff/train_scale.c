// SPDX-License-Identifier: Apache-2.0
// The new nodes go in front of all others: what depends on a node's number (the random numbers of
// dropout) is as it is for data that were floats beforehand.
#include "graph/autodiff/train_scale.h"

#include "base/alloc.h"

#include <string.h>

#define SCALE_NODES 4

// scale_const adds n numbers that are broadcast along axis 1 of a value of `rank` dimensions.
static hth_err scale_const(hth_graph *graph, const float *v, int n, int rank, int *out)
{
    hth_shape s = {.rank = 0};
    hth_const *c;
    if (n > 1) {
        s.rank = rank - 1; // [channels, 1, ..]
        s.dim[0] = n;
        for (int d = 1; d < s.rank; d++) {
            s.dim[d] = 1;
        }
    }
    HTH_TRY(hth_const_new(HTH_DT_F32, &s, v, &c));
    hth_err err = hth_graph_add_const(graph, NULL, c, out);
    if (err != HTH_OK) {
        hth_const_rele(c);
    }
    return err;
}

static hth_err scale_channels(const hth_value *value, int n, const char *of, const char *option)
{
    if (n <= 1) {
        return HTH_OK;
    }
    if (value->shape.rank < 2 || (value->shape.dim[1] >= 0 && value->shape.dim[1] != n)) {
        return hth_fail(HTH_EINVAL, "%s%s has %d values, but input '%s' has %lld channels (axis 1)",
                        of, option, n, value->name,
                        (long long)(value->shape.rank < 2 ? 1 : value->shape.dim[1]));
    }
    return HTH_OK;
}

// scale_step adds a node that makes *from a new value, or (last) the input that was.
static hth_err scale_step(hth_graph *graph, hth_op op, int operand, int input, bool last, int *from)
{
    const int in[2] = {*from, operand};
    int out = input, node;
    if (!last) {
        hth_shape s = graph->values[input].shape;
        HTH_TRY(hth_graph_add_value(graph, NULL, HTH_DT_F32, &s, &out));
    }
    HTH_TRY(
        hth_graph_add_node(graph, op, "hearth.scale", in, operand >= 0 ? 2 : 1, &out, 1, &node));
    *from = out;
    return op == HTH_OP_CAST ? hth_node_set_int(&graph->nodes[node], "to", HTH_DT_F32) : HTH_OK;
}

// scale_front moves the nodes from `first` on before all others.
static hth_err scale_front(hth_graph *graph, int first)
{
    int n = graph->n_nodes - first;
    hth_node moved[SCALE_NODES];
    memcpy(moved, graph->nodes + first, (size_t)n * sizeof *moved);
    memmove(graph->nodes + n, graph->nodes, (size_t)first * sizeof *moved);
    memcpy(graph->nodes, moved, (size_t)n * sizeof *moved);
    for (int v = 0; v < graph->n_values; v++) {
        int *p = &graph->values[v].producer;
        if (*p >= first) {
            *p -= first;
        } else if (*p >= 0) {
            *p += n;
        }
    }
    return HTH_OK;
}

// scale_moves: mean and deviation apply to the input; those of images to images only.
static bool scale_moves(const hth_train_scale *scale, const hth_value *input)
{
    return !scale->images || input->shape.rank == 4;
}

static hth_err scale_nodes(hth_graph *graph, int input, int raw, const hth_train_scale *scale)
{
    bool bytes = graph->values[raw].dtype == HTH_DT_U8;
    bool moves = scale_moves(scale, &graph->values[input]);
    const struct {
        hth_op op;
        const float *v;
        int n;
    } steps[] = {{HTH_OP_MUL, &scale->scale, bytes && scale->scale != 1},
                 {HTH_OP_SUB, scale->mean, moves ? scale->n_mean : 0},
                 {HTH_OP_DIV, scale->std, moves ? scale->n_std : 0}};
    int left = 0, from = raw, rank = graph->values[input].shape.rank, operand;
    for (int i = 0; i < 3; i++) {
        left += steps[i].n > 0;
    }
    HTH_TRY(bytes ? scale_step(graph, HTH_OP_CAST, -1, input, left == 0, &from) : HTH_OK);
    for (int i = 0; i < 3; i++) {
        if (steps[i].n > 0) {
            HTH_TRY(scale_const(graph, steps[i].v, steps[i].n, rank, &operand));
            HTH_TRY(scale_step(graph, steps[i].op, operand, input, --left == 0, &from));
        }
    }
    return HTH_OK;
}

bool hth_train_scales(const hth_train_scale *scale, hth_dtype dtype, const hth_value *want)
{
    bool images = scale->images && dtype == HTH_DT_F32 && want->shape.rank == 4;
    return want->dtype == HTH_DT_F32 && (images || (scale->on && dtype == HTH_DT_U8));
}

hth_err hth_train_scale_add(hth_graph *graph, int i, hth_dtype dtype, const hth_train_scale *scale)
{
    int input = graph->inputs[i], raw, first = graph->n_nodes;
    hth_shape shape = graph->values[input].shape;
    const char *kind = dtype == HTH_DT_U8 ? "uint8" : "raw";
    const char *of = scale->images ? "--normalize's " : "--";
    if (scale_moves(scale, &graph->values[input])) {
        HTH_TRY(scale_channels(&graph->values[input], scale->n_mean, of, "mean"));
        HTH_TRY(scale_channels(&graph->values[input], scale->n_std, of, "std"));
    }
    char *name = hth_asprintf("%s/%s", graph->values[input].name, kind);
    hth_err err = name != NULL ? hth_graph_add_value(graph, name, dtype, &shape, &raw)
                               : hth_no_memory("a training step");
    hth_free(name);
    HTH_TRY(err);
    HTH_TRY(scale_nodes(graph, input, raw, scale));
    graph->values[input].is_input = false;
    graph->values[raw].is_input = true;
    graph->inputs[i] = raw;
    return scale_front(graph, first);
}
