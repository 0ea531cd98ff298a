// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_rewrite.c - rewrites of the forward graph that make its gradient short.
//
// Each says the same computation in a form whose gradient moves fewer bytes. They run when shapes
// are known and before anything is differentiated.
#include "graph/autodiff/train_build.h"

#include "base/pace.h"

#include <string.h>

// A Transpose that only swaps the last two dimensions: what it reads; otherwise -1.
static int swapped(const hth_graph *graph, const hth_node *node, int k)
{
    const hth_node *p = hth_pass_producer(graph, node, k, HTH_OP_TRANSPOSE);
    int rank = p == NULL ? 0 : graph->values[p->inputs[0]].shape.rank;
    int64_t perm[HTH_MAX_RANK];
    if (rank < 2) {
        return -1;
    }
    if (hth_node_ints(p, "perm", perm, HTH_MAX_RANK) < 0) {
        return rank == 2 ? p->inputs[0] : -1;
    }
    for (int i = 0; i < rank; i++) {
        int64_t want = i < rank - 2 ? i : 2 * rank - 3 - i;
        if ((perm[i] < 0 ? perm[i] + rank : perm[i]) != want) {
            return -1;
        }
    }
    return p->inputs[0];
}

// Behind a Transpose the operand may be multiplied by a number (an attention's scale): the number
// goes first. Says whether it did, with the node that multiplies now reading what was transposed.
static bool scale_first(hth_graph *graph, const hth_uses *uses, const hth_node *node, int k)
{
    float scale;
    const hth_node *p = hth_pass_producer(graph, node, k, HTH_OP_MUL);
    for (int side = 0; p != NULL && side < 2; side++) {
        int from =
            hth_pass_scalar(graph, p->inputs[1 - side], &scale) ? swapped(graph, p, side) : -1;
        if (from >= 0 && hth_uses_only(graph, uses, p->outputs[0]) >= 0 &&
            graph->values[p->inputs[1 - side]].shape.rank <= graph->values[from].shape.rank) {
            p->inputs[side] = from;
            graph->values[p->outputs[0]].shape = graph->values[from].shape;
            return true;
        }
    }
    return false;
}

static hth_err shorten_product(hth_graph *graph, const hth_uses *uses, hth_node *node)
{
    static const char *const name[2] = {"transA", "transB"};
    if (graph->values[node->inputs[0]].dtype != HTH_DT_F32) {
        return HTH_OK;
    }
    for (int k = 0; k < 2; k++) {
        int from = swapped(graph, node, k);
        if (from < 0 && node->inputs[0] != node->inputs[1] && scale_first(graph, uses, node, k)) {
            from = node->inputs[k];
        }
        if (from >= 0) {
            node->inputs[k] = from;
            HTH_TRY(hth_node_set_int(node, name[k], hth_node_int(node, name[k], 0) == 0));
        }
    }
    return HTH_OK;
}

// The Relu, or Clip by constants, that alone reads batch norm `i` becomes its post op.
static void fuse_norm(hth_graph *graph, const hth_uses *uses, int i)
{
    int user = hth_uses_only(graph, uses, graph->nodes[i].outputs[0]);
    hth_node *e = user < 0 ? NULL : &graph->nodes[user];
    hth_post_op p = {.op = HTH_OP_RELU, .input = -1};
    if (e != NULL && e->op == HTH_OP_CLIP && e->inputs[0] == graph->nodes[i].outputs[0] &&
        e->n_inputs == 3 && hth_pass_scalar(graph, e->inputs[1], &p.alpha) &&
        hth_pass_scalar(graph, e->inputs[2], &p.beta)) {
        p.op = HTH_OP_CLIP;
    } else if (e == NULL || e->op != HTH_OP_RELU) {
        return;
    }
    graph->nodes[i].post[graph->nodes[i].n_post++] = p;
    e->deleted = true;
    hth_pass_set_output(graph, i, e->outputs[0]);
}

// How many of concatenation `n`'s operands, from the first on, are all of concatenation m's.
static int common_prefix(const hth_node *n, const hth_node *m)
{
    bool same = m->op == HTH_OP_CONCAT && m->n_inputs > 1 && m->n_inputs < n->n_inputs &&
                hth_node_int(m, "axis", 0) == hth_node_int(n, "axis", 0);
    return same && memcmp(m->inputs, n->inputs, (size_t)m->n_inputs * sizeof *m->inputs) == 0
               ? m->n_inputs
               : 0;
}

// Dense blocks concatenate all that came before, again and again. Said as the concatenation before
// and one more, the gradient of each level is one sum instead of one per operand. From the last to
// the first, so that operands are compared as they were.
static hth_err shorten_concats(hth_graph *graph)
{
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        hth_node *n = &graph->nodes[i];
        int from = -1, longest = 0;
        HTH_TRY(hth_pace_step(n->op == HTH_OP_CONCAT && n->n_inputs > 2 ? (uint64_t)i * 4 : 1));
        for (int j = i - 1; n->op == HTH_OP_CONCAT && n->n_inputs > 2 && j >= 0; j--) {
            int k = graph->nodes[j].deleted ? 0 : common_prefix(n, &graph->nodes[j]);
            from = k > longest ? j : from;
            longest = k > longest ? k : longest;
        }
        if (from >= 0) {
            n->inputs[0] = graph->nodes[from].outputs[0];
            n->n_inputs -= longest - 1;
            memmove(n->inputs + 1, n->inputs + longest,
                    (size_t)(n->n_inputs - 1) * sizeof *n->inputs);
        }
    }
    return HTH_OK;
}

// The constant scalar index of Gather `node`, counted from 0; -1 when it is not one.
static int64_t gather_index(const hth_graph *graph, const hth_node *node, int axis)
{
    int64_t at, axis_of = hth_node_int(node, "axis", 0);
    const hth_shape *s = &graph->values[node->inputs[0]].shape;
    if (node->op != HTH_OP_GATHER || (axis_of < 0 ? axis_of + s->rank : axis_of) != axis ||
        graph->values[node->inputs[1]].shape.rank != 0 ||
        hth_pass_ints(graph, node->inputs[1], &at, 1) != 1) {
        return -1;
    }
    return at < 0 ? at + s->dim[axis] : at;
}

#define MAX_PARTS 8

// Finds the Gathers that take `x` apart along an axis, all of it: part[index]. 0: there are none.
static int find_parts(const hth_graph *graph, const hth_uses *uses, int x, int first, int *part,
                      int *axis)
{
    const hth_shape *s = &graph->values[x].shape;
    int64_t a = hth_node_int(&graph->nodes[first], "axis", 0);
    *axis = (int)(a < 0 ? a + s->rank : a);
    int n = s->rank > 0 && s->dim[*axis] <= MAX_PARTS ? (int)s->dim[*axis] : 0, found = 0;
    memset(part, -1, MAX_PARTS * sizeof *part);
    if (n < 2 || uses->count[x] != n || graph->values[x].is_output) {
        return 0;
    }
    for (int i = first; i < graph->n_nodes && found < n; i++) {
        int64_t at = graph->nodes[i].n_inputs > 0 && graph->nodes[i].inputs[0] == x
                         ? gather_index(graph, &graph->nodes[i], *axis)
                         : -1;
        if (at >= 0 && at < n && part[at] < 0) {
            part[at] = i;
            found++;
        }
    }
    return found == n ? n : 0;
}

// Query, key and value gathered one by one from a packed tensor: a Split and three Reshapes, whose
// gradient is one Concat instead of scatters and sums.
static hth_err split_gathers(hth_graph *graph, int x, const int *part, int n, int axis)
{
    int out[MAX_PARTS], node, wait;
    int64_t ones[MAX_PARTS];
    hth_shape s = graph->values[x].shape;
    s.dim[axis] = 1;
    for (int i = 0; i < n; i++) {
        int shape;
        const hth_shape y = graph->values[graph->nodes[part[i]].outputs[0]].shape;
        ones[i] = 1;
        HTH_TRY(hth_graph_add_value(graph, NULL, HTH_DT_F32, &s, &out[i]));
        HTH_TRY(hth_pass_const_ints(graph, NULL, y.dim, y.rank, &shape));
        graph->nodes[part[i]].op = HTH_OP_RESHAPE;
        graph->nodes[part[i]].inputs[0] = out[i];
        graph->nodes[part[i]].inputs[1] = shape;
        hth_node_drop_attr(&graph->nodes[part[i]], "axis");
        HTH_TRY(hth_node_set_int(&graph->nodes[part[i]], "allowzero", hth_shape_elements(&y) == 0));
    }
    int in[2] = {x};
    HTH_TRY(hth_pass_const_ints(graph, NULL, ones, n, &in[1]));
    HTH_TRY(hth_graph_add_node(graph, HTH_OP_SPLIT, NULL, in, 2, out, n, &node));
    HTH_TRY(hth_node_set_int(&graph->nodes[node], "axis", axis));
    return hth_infer_node(graph, node, &wait);
}

static hth_err shorten_gathers(hth_graph *graph)
{
    hth_uses u;
    HTH_TRY(hth_uses_open(graph, &u));
    hth_err err = HTH_OK;
    int n_nodes = graph->n_nodes, part[MAX_PARTS], axis;
    for (int i = 0; err == HTH_OK && i < n_nodes; i++) {
        int x = graph->nodes[i].op == HTH_OP_GATHER ? graph->nodes[i].inputs[0] : -1;
        err = hth_pace_step(x >= 0 ? (uint64_t)(n_nodes - i) : 1);
        int n = err == HTH_OK && x >= 0 && graph->values[x].dtype == HTH_DT_F32
                    ? find_parts(graph, &u, x, i, part, &axis)
                    : 0;
        err = n > 0 ? split_gathers(graph, x, part, n, axis) : err;
    }
    hth_uses_close(&u);
    if (err == HTH_OK && graph->n_nodes > n_nodes) {
        return hth_graph_sort(graph);
    }
    return err;
}

// A maximum commutes with Relu and Clip, which are monotone: after the pool they work on what is
// left, and the pool's gradient needs no mask of its own size. i: the MaxPool.
static void pool_first(hth_graph *graph, const hth_uses *uses, int i)
{
    hth_node *pool = &graph->nodes[i];
    int y = pool->inputs[0], z = pool->outputs[0], r = graph->values[y].producer;
    hth_node *relu = r < 0 ? NULL : &graph->nodes[r];
    if (relu == NULL || (relu->op != HTH_OP_RELU && relu->op != HTH_OP_CLIP) ||
        pool->n_outputs > 1 || pool->n_post > 0 || relu->n_post > 0 ||
        hth_uses_only(graph, uses, y) < 0) {
        return;
    }
    int x = relu->inputs[0];
    hth_node swap = *pool;
    *pool = *relu;
    *relu = swap;
    relu->inputs[0] = x;
    relu->outputs[0] = y;
    pool->inputs[0] = y;
    pool->outputs[0] = z;
    graph->values[y].shape = graph->values[z].shape;
}

hth_err train_shorten(hth_graph *graph)
{
    HTH_TRY(shorten_gathers(graph));
    HTH_TRY(shorten_concats(graph));
    hth_uses u;
    HTH_TRY(hth_uses_open(graph, &u));
    hth_err err = HTH_OK;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i].op == HTH_OP_MAX_POOL) {
            pool_first(graph, &u, i);
        }
    }
    for (int i = 0; err == HTH_OK && i < graph->n_nodes; i++) {
        if (graph->nodes[i].op == HTH_OP_MAT_MUL) {
            err = shorten_product(graph, &u, &graph->nodes[i]);
        } else if (graph->nodes[i].op == HTH_OP_BATCH_NORM_TRAIN && graph->nodes[i].n_post == 0) {
            fuse_norm(graph, &u, i);
        }
    }
    hth_uses_close(&u);
    HTH_TRY(err);
    return hth_graph_compact(graph);
}

hth_err train_shorten_backward(hth_graph *graph)
{
    hth_uses u;
    HTH_TRY(hth_uses_open(graph, &u));
    hth_err err = HTH_OK;
    for (int i = 0; err == HTH_OK && i < graph->n_nodes; i++) {
        hth_node *n = &graph->nodes[i];
        const hth_node *sum =
            n->op == HTH_OP_RELU_GRAD ? hth_pass_producer(graph, n, 0, HTH_OP_ADD) : NULL;
        const hth_shape *s = sum == NULL ? NULL : &graph->values[sum->outputs[0]].shape;
        if (sum != NULL && n->n_inputs == 2 && hth_uses_only(graph, &u, n->inputs[0]) >= 0 &&
            hth_shape_equal(s, &graph->values[sum->inputs[0]].shape) &&
            hth_shape_equal(s, &graph->values[sum->inputs[1]].shape)) {
            n->inputs[0] = sum->inputs[0];
            err = hth_node_add_input(n, sum->inputs[1]);
        }
    }
    hth_uses_close(&u);
    return err;
}
