// SPDX-License-Identifier: Apache-2.0
// Attention: MatMul -> scale, mask -> Softmax -> MatMul becomes one HTH_OP_FUSED_ATTENTION. Its operands are followed
// back through everything that only moves elements (views) or scales them by a constant, to the tensor that a kernel
// really writes; a transpose behind the result becomes the output's strides.
#include "graph/pass_attention.h"

#include "base/alloc.h"
#include "graph/attention.h"

#include <math.h>
#include <string.h>

// A value seen through its producers: element (i0, i1, ..) = scale * base[offset + sum i*stride].
typedef struct view {
    int base;
    int64_t offset;
    int rank;
    int64_t dim[HTH_MAX_RANK], stride[HTH_MAX_RANK];
    float scale;
} view;

static view view_plain(const hth_graph *g, int value)
{
    const hth_shape *s = &g->values[value].shape;
    view v = {.base = value, .rank = s->rank, .scale = 1};
    int64_t stride = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
        v.dim[i] = s->dim[i];
        v.stride[i] = stride;
        stride *= s->dim[i];
    }
    return v;
}

// view_reshape gives the same elements another shape if strides can say so (numpy's rule for reshape without a copy).
static bool view_reshape(view *v, const hth_shape *to)
{
    int64_t dim[HTH_MAX_RANK], stride[HTH_MAX_RANK];
    int n = 0, at = 0;
    for (int i = 0; i < v->rank; i++) { // unit dimensions say nothing
        if (v->dim[i] != 1) {
            dim[n] = v->dim[i];
            stride[n++] = v->stride[i];
        }
    }
    view r = *v;
    r.rank = to->rank;
    for (int i = 0; i < to->rank;) {
        if (to->dim[i] == 1) {
            r.dim[i] = 1;
            r.stride[i++] = 0;
            continue;
        }
        if (at == n) {
            return false;
        }
        // [at, end) of the old dimensions make up [i, last) of the new ones
        int end = at + 1, last = i + 1;
        int64_t have = dim[at], want = to->dim[i];
        while (have != want) {
            if (have < want) {
                if (end == n || stride[end - 1] != stride[end] * dim[end]) {
                    return false;
                }
                have *= dim[end++];
            } else if (last == to->rank) {
                return false;
            } else {
                want *= to->dim[last++];
            }
        }
        int64_t step = stride[end - 1];
        for (int k = last - 1; k >= i; k--) {
            r.dim[k] = to->dim[k];
            r.stride[k] = step;
            step *= to->dim[k];
        }
        i = last;
        at = end;
    }
    *v = r;
    return at == n;
}

static bool view_gather(const hth_graph *g, const hth_node *n, view *v)
{
    int64_t index[1];
    int64_t axis = hth_node_int(n, "axis", 0);
    axis += axis < 0 ? v->rank : 0;
    if (g->values[n->inputs[1]].shape.rank != 0 || hth_pass_ints(g, n->inputs[1], index, 1) != 1) {
        return false;
    }
    v->offset += (index[0] < 0 ? index[0] + v->dim[axis] : index[0]) * v->stride[axis];
    memmove(v->dim + axis, v->dim + axis + 1, (size_t)(v->rank - axis - 1) * sizeof v->dim[0]);
    memmove(v->stride + axis, v->stride + axis + 1, (size_t)(v->rank - axis - 1) * sizeof v->stride[0]);
    v->rank--;
    return true;
}

static bool view_slice(const hth_graph *g, const hth_node *n, const hth_shape *to, view *v)
{
    int64_t start[HTH_MAX_RANK], axis[HTH_MAX_RANK], step[HTH_MAX_RANK];
    int k = hth_pass_ints(g, n->inputs[1], start, HTH_MAX_RANK);
    bool has_axes = n->n_inputs > 3 && n->inputs[3] >= 0, has_steps = n->n_inputs > 4 && n->inputs[4] >= 0;
    if (k < 0 || (has_axes && hth_pass_ints(g, n->inputs[3], axis, HTH_MAX_RANK) != k) ||
        (has_steps && hth_pass_ints(g, n->inputs[4], step, HTH_MAX_RANK) != k)) {
        return false;
    }
    for (int i = 0; i < k; i++) {
        int64_t a = has_axes ? axis[i] : i, s = has_steps ? step[i] : 1;
        a += a < 0 ? v->rank : 0;
        if (s <= 0) {
            return false;
        }
        int64_t from = start[i] < 0 ? start[i] + v->dim[a] : start[i];
        from = from < 0 ? 0 : from > v->dim[a] ? v->dim[a] : from;
        v->offset += from * v->stride[a];
        v->stride[a] *= s;
        v->dim[a] = to->dim[a];
    }
    return true;
}

static bool view_split(const hth_graph *g, const hth_node *n, int value, view *v)
{
    int64_t axis = hth_node_int(n, "axis", 0), before = 0;
    axis += axis < 0 ? v->rank : 0;
    for (int k = 0; k < n->n_outputs && n->outputs[k] != value; k++) {
        before += n->outputs[k] < 0 ? 0 : g->values[n->outputs[k]].shape.dim[axis];
        if (n->outputs[k] < 0) {
            return false;
        }
    }
    v->offset += before * v->stride[axis];
    v->dim[axis] = g->values[value].shape.dim[axis];
    return true;
}

static view view_of(const hth_graph *g, int value, int depth);

// view_through applies node `n`, which makes `value`, to the view of its input; false when it is not a view.
static bool view_through(const hth_graph *g, const hth_node *n, int value, int depth, view *out)
{
    const hth_shape *to = &g->values[value].shape;
    float c;
    int64_t perm[HTH_MAX_RANK];
    if (n->op == HTH_OP_MUL || n->op == HTH_OP_DIV) {
        int k = n->op == HTH_OP_MUL && hth_pass_scalar(g, n->inputs[0], &c) ? 1 : 0;
        if (!hth_pass_scalar(g, n->inputs[1 - k], &c) || !hth_shape_equal(to, &g->values[n->inputs[k]].shape)) {
            return false;
        }
        *out = view_of(g, n->inputs[k], depth);
        out->scale *= n->op == HTH_OP_MUL ? c : 1 / c;
        return true;
    }
    *out = view_of(g, n->inputs[0], depth);
    view from = *out;
    switch (n->op) {
    case HTH_OP_IDENTITY:
        return true;
    case HTH_OP_RESHAPE:
    case HTH_OP_FLATTEN:
    case HTH_OP_SQUEEZE:
    case HTH_OP_UNSQUEEZE:
        return view_reshape(out, to);
    case HTH_OP_TRANSPOSE:
        if (hth_node_ints(n, "perm", perm, HTH_MAX_RANK) != from.rank) {
            return false;
        }
        for (int i = 0; i < from.rank; i++) {
            out->dim[i] = from.dim[perm[i]];
            out->stride[i] = from.stride[perm[i]];
        }
        return true;
    case HTH_OP_EXPAND:
        if (from.rank != to->rank) {
            return false;
        }
        for (int i = 0; i < from.rank; i++) {
            out->stride[i] = from.dim[i] == to->dim[i] ? from.stride[i] : 0;
            out->dim[i] = to->dim[i];
        }
        return true;
    case HTH_OP_GATHER:
        return view_gather(g, n, out);
    case HTH_OP_SLICE:
        return view_slice(g, n, to, out);
    case HTH_OP_SPLIT:
        return view_split(g, n, value, out);
    default:
        return false;
    }
}

static view view_of(const hth_graph *g, int value, int depth)
{
    const hth_value *v = &g->values[value];
    view seen;
    // 24 steps: the longest chains that exporters leave have about ten.
    if (depth < 24 && v->producer >= 0 && v->dtype == HTH_DT_F32 && g->nodes[v->producer].n_post == 0 &&
        g->nodes[v->producer].inputs[0] >= 0 && view_through(g, &g->nodes[v->producer], value, depth + 1, &seen)) {
        return seen;
    }
    return view_plain(g, value);
}

// view_4d writes a view of rank 2 to 4 as the operand of an attention; missing leading dimensions are 1.
static bool view_4d(const view *v, hth_attention_view *out, int64_t dim[4])
{
    *out = (hth_attention_view){.offset = v->offset};
    for (int i = 0; i < 4; i++) {
        int from = i - (4 - v->rank);
        dim[i] = from < 0 ? 1 : v->dim[from];
        out->stride[i] = from < 0 ? 0 : v->stride[from];
    }
    return v->rank >= 2 && v->rank <= 4;
}

typedef struct found { // an attention in the graph
    int scores, probs, result; // nodes: first MatMul, Softmax, second MatMul
    float scale;
    int mask; // value added to the scores, -1: none
    int where; // Where node that masks by a constant condition, -1: none
} found;

// where_mask says that `n` replaces scores by minus infinity (or nearly) where a constant condition says so.
static bool where_mask(const hth_graph *g, const hth_node *n, int *scores)
{
    float c;
    for (int k = 1; k <= 2; k++) {
        if (g->values[n->inputs[0]].constant != NULL && hth_pass_scalar(g, n->inputs[k], &c) && c < -1e4f) {
            *scores = n->inputs[3 - k];
            return true;
        }
    }
    return false;
}

// scores_walk goes back from the Softmax's input over scaling and masking to the first MatMul.
static bool scores_walk(const hth_graph *g, const hth_uses *u, found *f)
{
    int v = g->nodes[f->probs].inputs[0];
    float c;
    for (int step = 0; step < 6; step++) {
        int p = g->values[v].producer;
        if (p < 0 || hth_uses_only(g, u, v) < 0 || g->nodes[p].n_post > 0) {
            return false;
        }
        const hth_node *n = &g->nodes[p];
        if (n->op == HTH_OP_MAT_MUL) {
            f->scores = p;
            return true;
        }
        bool scaled = n->op == HTH_OP_MUL || n->op == HTH_OP_DIV;
        if (scaled && hth_pass_scalar(g, n->inputs[1], &c)) {
            f->scale *= n->op == HTH_OP_MUL ? c : 1 / c;
            v = n->inputs[0];
        } else if (n->op == HTH_OP_MUL && hth_pass_scalar(g, n->inputs[0], &c)) {
            f->scale *= c;
            v = n->inputs[1];
        } else if (n->op == HTH_OP_WHERE && f->mask < 0 && f->where < 0 && f->scale == 1 && where_mask(g, n, &v)) {
            f->where = p;
        } else if (n->op == HTH_OP_ADD && f->mask < 0 && f->where < 0 && f->scale == 1) {
            int a = g->values[n->inputs[0]].producer; // the scores are the side that a MatMul or a scaling makes
            bool first = a >= 0 && (g->nodes[a].op == HTH_OP_MAT_MUL || g->nodes[a].op == HTH_OP_MUL ||
                                    g->nodes[a].op == HTH_OP_DIV) &&
                         hth_shape_equal(&g->values[n->inputs[0]].shape, &g->values[v].shape);
            f->mask = n->inputs[first ? 1 : 0];
            v = n->inputs[first ? 0 : 1];
        } else {
            return false;
        }
        if (g->values[v].shape.rank < 2) {
            return false;
        }
    }
    return false;
}

static bool attention_find(const hth_graph *g, const hth_uses *u, int i, found *f)
{
    const hth_node *s = &g->nodes[i];
    const hth_value *x = &g->values[s->inputs[0]];
    int64_t axis = hth_node_int(s, "axis", -1);
    *f = (found){.probs = i, .scale = 1, .mask = -1, .where = -1};
    f->result = hth_uses_only(g, u, s->outputs[0]);
    return s->n_post == 0 && x->dtype == HTH_DT_F32 && (axis == -1 || axis == x->shape.rank - 1) && f->result >= 0 &&
           g->nodes[f->result].op == HTH_OP_MAT_MUL && g->nodes[f->result].inputs[0] == s->outputs[0] &&
           g->nodes[f->result].n_post == 0 && scores_walk(g, u, f);
}

// mask_from_where adds the constant 0 / -inf mask of a Where with a constant condition.
static hth_err mask_from_where(hth_graph *g, const hth_node *n, int *out)
{
    hth_const *cond = g->values[n->inputs[0]].constant, *mask;
    float c;
    bool masked_where_true = hth_pass_scalar(g, n->inputs[1], &c) && c < -1e4f;
    const void *data;
    int64_t count = hth_shape_elements(&cond->shape);
    float *f = hth_alloc((size_t)count * sizeof *f);
    if (f == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for an attention mask");
    }
    hth_err err = hth_const_map(cond, &data);
    for (int64_t i = 0; err == HTH_OK && i < count; i++) {
        f[i] = (((const uint8_t *)data)[i] != 0) == masked_where_true ? -INFINITY : 0;
    }
    if (err == HTH_OK) {
        hth_const_unmap(cond);
        err = hth_const_adopt(HTH_DT_F32, &cond->shape, f, NULL, &mask);
    }
    if (err != HTH_OK) {
        hth_free(f);
        return err;
    }
    err = hth_graph_add_const(g, NULL, mask, out);
    if (err != HTH_OK) {
        hth_const_rele(mask);
    }
    return err;
}

static bool mask_view(const hth_graph *g, int mask, const int64_t dim[4], hth_attention_view *out)
{
    const hth_shape *s = &g->values[mask].shape;
    int64_t stride = 1;
    *out = (hth_attention_view){0};
    if (s->rank > 4 || g->values[mask].dtype != HTH_DT_F32) {
        return false;
    }
    for (int i = s->rank - 1, at = 3; i >= 0; i--, at--) {
        if (s->dim[i] != 1 && s->dim[i] != dim[at]) {
            return false;
        }
        out->stride[at] = s->dim[i] == 1 ? 0 : stride;
        stride *= s->dim[i];
    }
    return true;
}

// attention_describe fills `a` and the operands' values; false when the shapes are not an attention's.
static bool attention_describe(const hth_graph *g, const found *f, hth_attention *a, int base[3])
{
    const hth_node *first = &g->nodes[f->scores], *second = &g->nodes[f->result];
    view q = view_of(g, first->inputs[0], 0), k = view_of(g, first->inputs[1], 0), v = view_of(g, second->inputs[1], 0);
    int64_t dq[4], dk[4], dv[4];
    if (k.rank < 2 || v.scale != 1) {
        return false;
    }
    int64_t t = k.dim[k.rank - 1], s = k.stride[k.rank - 1]; // K^T is what is multiplied
    k.dim[k.rank - 1] = k.dim[k.rank - 2];
    k.stride[k.rank - 1] = k.stride[k.rank - 2];
    k.dim[k.rank - 2] = t;
    k.stride[k.rank - 2] = s;
    if (!view_4d(&q, &a->q, dq) || !view_4d(&k, &a->k, dk) || !view_4d(&v, &a->v, dv) || dq[3] != dk[3] ||
        dk[2] != dv[2] || memcmp(dq, dk, 2 * sizeof dq[0]) != 0 || memcmp(dq, dv, 2 * sizeof dq[0]) != 0) {
        return false;
    }
    a->b0 = dq[0];
    a->b1 = dq[1];
    a->t = dq[2];
    a->s = dk[2];
    a->d = dq[3];
    a->e = dv[3];
    a->scale = f->scale * q.scale * k.scale;
    base[0] = q.base;
    base[1] = k.base;
    base[2] = v.base;
    return true;
}

// output_view chooses where the result goes: as the second MatMul's value, or as the transpose behind it.
static int output_view(const hth_graph *g, const hth_uses *u, const found *f, hth_attention *a, int *transpose)
{
    int y = g->nodes[f->result].outputs[0], user = hth_uses_only(g, u, y);
    view v = view_plain(g, y);
    int64_t perm[HTH_MAX_RANK], dim[4];
    *transpose = -1;
    if (user >= 0 && g->nodes[user].op == HTH_OP_TRANSPOSE && g->nodes[user].n_post == 0 &&
        hth_node_ints(&g->nodes[user], "perm", perm, HTH_MAX_RANK) == v.rank) {
        view moved = view_plain(g, g->nodes[user].outputs[0]);
        for (int i = 0; i < v.rank; i++) {
            v.stride[perm[i]] = moved.stride[i];
        }
        *transpose = user;
        y = g->nodes[user].outputs[0];
    }
    (void)view_4d(&v, &a->out, dim);
    return y;
}

static hth_err attention_replace(hth_graph *g, const hth_uses *u, const found *f)
{
    hth_attention a = {0};
    int in[4] = {-1, -1, -1, f->mask}, transpose;
    if (!attention_describe(g, f, &a, in)) {
        return HTH_OK;
    }
    if (f->where >= 0) {
        HTH_TRY(mask_from_where(g, &g->nodes[f->where], &in[3]));
    }
    const int64_t dim[4] = {a.b0, a.b1, a.t, a.s};
    a.has_mask = in[3] >= 0;
    if (a.has_mask && !mask_view(g, in[3], dim, &a.mask)) {
        return HTH_OK;
    }
    int y = output_view(g, u, f, &a, &transpose);
    // The node takes the second MatMul's place: its operands are all made before that.
    hth_node *n = &g->nodes[f->result];
    int *inputs = hth_memdup(in, (a.has_mask ? 4 : 3) * sizeof in[0]);
    if (inputs == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for an attention");
    }
    hth_free(n->inputs);
    n->inputs = inputs;
    n->n_inputs = a.has_mask ? 4 : 3;
    n->op = HTH_OP_FUSED_ATTENTION;
    if (transpose >= 0) {
        g->nodes[transpose].deleted = true;
        hth_pass_set_output(g, f->result, y);
    }
    return hth_attention_set(n, &a);
}

hth_err hth_pass_attention(hth_graph *g, const hth_uses *u)
{
    found f;
    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op == HTH_OP_SOFTMAX && !g->nodes[i].deleted && attention_find(g, u, i, &f)) {
            HTH_TRY(attention_replace(g, u, &f));
        }
    }
    return HTH_OK;
}
