// SPDX-License-Identifier: Apache-2.0
// Einsum of two operands as a product: every label is a batch label (in both operands and the
// result), a summed one (in both, not in the result), or a row or column label (in one operand and
// the result). Operands are transposed to [batch.., rows.., summed..] and [batch.., summed..,
// columns..], reshaped to one dimension each, multiplied, and the result is brought into its order.
// Transposes that move nothing are not made, and the attention pass looks through the others.
#include "graph/passes/pass_attention.h"

#include <string.h>

typedef struct einsum {
    int node;
    char a[HTH_MAX_RANK + 1], b[HTH_MAX_RANK + 1], y[HTH_MAX_RANK + 1]; // labels
    char batch[HTH_MAX_RANK + 1], rows[HTH_MAX_RANK + 1], cols[HTH_MAX_RANK + 1],
        sums[HTH_MAX_RANK + 1];
    int64_t size[128]; // of each label
} einsum;

// labels_read copies letters up to `stop`; false on anything else (ellipsis, repeated labels).
static bool labels_read(const char **at, const char *stop, char out[HTH_MAX_RANK + 1])
{
    int n = 0;
    for (; **at != '\0' && strchr(stop, **at) == NULL; (*at)++) {
        char c = **at;
        if (c == ' ') {
            continue;
        }
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter || n == HTH_MAX_RANK || memchr(out, c, (size_t)n) != NULL) {
            return false;
        }
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

static bool einsum_parse(const hth_graph *graph, int node, einsum *e)
{
    const hth_node *n = &graph->nodes[node];
    const char *at = hth_node_str(n, "equation", "");
    memset(e, 0, sizeof *e);
    e->node = node;
    if (n->n_inputs != 2 || n->n_post > 0 || graph->values[n->outputs[0]].dtype != HTH_DT_F32 ||
        !labels_read(&at, ",", e->a) || *at++ != ',' || !labels_read(&at, ",-", e->b) ||
        strncmp(at, "->", 2) != 0) {
        return false;
    }
    at += 2;
    const hth_shape *sa = &graph->values[n->inputs[0]].shape,
                    *sb = &graph->values[n->inputs[1]].shape;
    if (!labels_read(&at, "", e->y) || (int)strlen(e->a) != sa->rank ||
        (int)strlen(e->b) != sb->rank) {
        return false;
    }
    for (int i = 0; i < sa->rank; i++) {
        e->size[(int)e->a[i]] = sa->dim[i];
        bool in_b = strchr(e->b, e->a[i]) != NULL, in_y = strchr(e->y, e->a[i]) != NULL;
        if (!in_b && !in_y) {
            return false;
        }
        char *to = in_b ? e->sums : e->rows;
        to = in_b && in_y ? e->batch : to;
        to[strlen(to)] = e->a[i];
    }
    for (int i = 0; i < sb->rank; i++) {
        char c = e->b[i];
        bool in_a = strchr(e->a, c) != NULL;
        if ((in_a && e->size[(int)c] != sb->dim[i]) || (!in_a && strchr(e->y, c) == NULL)) {
            return false; // broadcast of a label, or a label that is only summed
        }
        e->size[(int)c] = sb->dim[i];
        if (!in_a) {
            e->cols[strlen(e->cols)] = c;
        }
    }
    return e->sums[0] != '\0' &&
           strlen(e->batch) + strlen(e->rows) + strlen(e->cols) == strlen(e->y);
}

static int64_t labels_size(const einsum *e, const char *labels)
{
    int64_t n = 1;
    for (; *labels != '\0'; labels++) {
        n *= e->size[(int)*labels];
    }
    return n;
}

static hth_err emit(hth_graph *graph, hth_op op, const int *in, int n_in, const hth_shape *shape,
                    int *out, int *node)
{
    HTH_TRY(hth_graph_add_value(graph, NULL, HTH_DT_F32, shape, out));
    return hth_graph_add_node(graph, op, NULL, in, n_in, out, 1, node);
}

// emit_transpose brings `value` with labels `from` into the order `to`.
static hth_err emit_transpose(hth_graph *graph, const einsum *e, int value, const char *from,
                              const char *to, int *out)
{
    int64_t perm[HTH_MAX_RANK];
    hth_shape s = {.rank = (int)strlen(to)};
    int node;
    *out = value;
    if (strcmp(from, to) == 0) {
        return HTH_OK;
    }
    for (int i = 0; i < s.rank; i++) {
        perm[i] = strchr(from, to[i]) - from;
        s.dim[i] = e->size[(int)to[i]];
    }
    HTH_TRY(emit(graph, HTH_OP_TRANSPOSE, &value, 1, &s, out, &node));
    return hth_node_set_ints(&graph->nodes[node], "perm", perm, s.rank);
}

static hth_err emit_reshape(hth_graph *graph, int value, const hth_shape *shape, int *out)
{
    int in[2] = {value, -1}, node;
    *out = value;
    if (hth_shape_equal(&graph->values[value].shape, shape)) {
        return HTH_OK;
    }
    HTH_TRY(hth_pass_const_ints(graph, NULL, shape->dim, shape->rank, &in[1]));
    return emit(graph, HTH_OP_RESHAPE, in, 2, shape, out, &node);
}

// emit_matrix makes `value` the stack of matrices [batch labels.., first x second].
static hth_err emit_matrix(hth_graph *graph, const einsum *e, int value, const char *labels,
                           const char *first, const char *second, int *out)
{
    char order[3 * HTH_MAX_RANK + 1] = "";
    hth_shape s = {.rank = 0};
    strcat(strcat(strcat(order, e->batch), first), second);
    for (const char *b = e->batch; *b != '\0'; b++) {
        s.dim[s.rank++] = e->size[(int)*b];
    }
    s.dim[s.rank++] = labels_size(e, first);
    s.dim[s.rank++] = labels_size(e, second);
    HTH_TRY(emit_transpose(graph, e, value, labels, order, out));
    return emit_reshape(graph, *out, &s, out);
}

static hth_err einsum_replace(hth_graph *graph, const einsum *e)
{
    int in[2], product, node, y = graph->nodes[e->node].outputs[0];
    char order[3 * HTH_MAX_RANK + 1] = "";
    HTH_TRY(emit_matrix(graph, e, graph->nodes[e->node].inputs[0], e->a, e->rows, e->sums, &in[0]));
    HTH_TRY(emit_matrix(graph, e, graph->nodes[e->node].inputs[1], e->b, e->sums, e->cols, &in[1]));
    hth_shape s = graph->values[in[0]].shape, full = {.rank = 0};
    s.dim[s.rank - 1] = labels_size(e, e->cols);
    HTH_TRY(emit(graph, HTH_OP_MAT_MUL, in, 2, &s, &product, &node));
    strcat(strcat(strcat(order, e->batch), e->rows), e->cols);
    for (const char *c = order; *c != '\0'; c++) {
        full.dim[full.rank++] = e->size[(int)*c];
    }
    HTH_TRY(emit_reshape(graph, product, &full, &product));
    HTH_TRY(emit_transpose(graph, e, product, order, e->y, &product));
    graph->nodes[e->node].deleted = true;
    // The last node made takes the place of the Einsum as the maker of its result.
    int last = graph->values[product].producer;
    hth_pass_set_output(graph, last, y);
    return HTH_OK;
}

hth_err hth_pass_einsum(hth_graph *graph)
{
    einsum e;
    bool any = false;
    for (int i = 0, n = graph->n_nodes; i < n; i++) {
        if (graph->nodes[i].op == HTH_OP_EINSUM && einsum_parse(graph, i, &e) &&
            strlen(e.batch) + 2 <= HTH_MAX_RANK) {
            HTH_TRY(einsum_replace(graph, &e));
            any = true;
        }
    }
    if (any) {
        HTH_TRY(hth_graph_sort(graph));
        HTH_TRY(hth_graph_compact(graph));
    }
    return HTH_OK;
}
