// SPDX-License-Identifier: Apache-2.0
// Attention: MatMul -> scale, mask -> Softmax -> MatMul becomes one HTH_OP_FUSED_ATTENTION. Its
// operands are followed back through everything that only moves elements (views) or scales them by
// a constant, to the tensor that a kernel really writes; a transpose after the result becomes the
// output's strides.
#include "graph/passes/pass_attention.h"

#include "base/compare.h"
#include "base/alloc.h"
#include "graph/attention.h"

#include <math.h>
#include <string.h>

// A value seen through its producers: element (i0, i1, ..) = scale * base[offset + sum of index *
// stride], where each dimension is a product of *factors* with a stride each. Exporters merge batch
// and heads into one dimension, move it, and split it again: in between no single stride describes
// it, but its factors do.
#define VIEW_FACTORS 24
typedef struct factor {
    int64_t size, stride;
} factor;
typedef struct view {
    int base;
    int64_t offset;
    float scale;
    int rank;
    int64_t dim[HTH_MAX_RANK];
    int n[HTH_MAX_RANK]; // factors of each dimension, outermost first; sizes of 1 have none
    factor f[HTH_MAX_RANK][VIEW_FACTORS];
} view;

static void view_put(view *v, int d, int64_t size, int64_t stride)
{
    if (size == 1) {
        return;
    }
    if (v->n[d] > 0 && v->f[d][v->n[d] - 1].stride == size * stride) { // continues the one before
        v->f[d][v->n[d] - 1].size *= size;
        v->f[d][v->n[d] - 1].stride = stride;
    } else if (v->n[d] < VIEW_FACTORS) {
        v->f[d][v->n[d]++] = (factor){size, stride};
    }
}

static view view_plain(const hth_graph *graph, int value)
{
    const hth_shape *s = &graph->values[value].shape;
    view v = {.base = value, .rank = s->rank, .scale = 1};
    int64_t stride = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
        v.dim[i] = s->dim[i];
        view_put(&v, i, s->dim[i], stride);
        stride *= s->dim[i];
    }
    return v;
}

// view_reshape gives the same elements another shape: the factors in row-major order, cut anew;
// false when a cut would have to go through a factor that it does not divide, or there are none.
static bool view_reshape(view *v, const hth_shape *to)
{
    factor all[HTH_MAX_RANK * VIEW_FACTORS];
    int n = 0, at = 0;
    if (hth_shape_elements(to) == 0) {
        return false;
    }
    for (int i = 0; i < v->rank; i++) {
        for (int k = 0; k < v->n[i]; k++) {
            all[n++] = v->f[i][k];
        }
    }
    view r = {.base = v->base, .offset = v->offset, .scale = v->scale, .rank = to->rank};
    for (int i = 0; i < to->rank; i++) {
        r.dim[i] = to->dim[i];
        for (int64_t need = to->dim[i]; need > 1;) {
            if (at == n || r.n[i] == VIEW_FACTORS) {
                return false;
            }
            factor *f = &all[at];
            if (need % f->size == 0) {
                view_put(&r, i, f->size, f->stride);
                need /= f->size;
                at++;
            } else if (f->size % need == 0) {
                f->size /= need;
                view_put(&r, i, need, f->stride * f->size);
                need = 1;
            } else {
                return false;
            }
        }
    }
    *v = r;
    return at == n;
}

static void view_copy_dim(view *to, int i, const view *from, int k)
{
    to->dim[i] = from->dim[k];
    to->n[i] = from->n[k];
    memcpy(to->f[i], from->f[k], sizeof to->f[i]);
}

// view_perm reads a transpose's axes, which a model may count from the end; false: it names none.
static bool view_perm(const hth_node *node, int rank, int64_t *perm)
{
    bool given = hth_node_ints(node, "perm", perm, HTH_MAX_RANK) == rank;
    for (int i = 0; i < rank && given; i++) {
        perm[i] += perm[i] < 0 ? rank : 0;
    }
    return given;
}

static bool view_gather(const hth_graph *graph, const hth_node *node, view *v)
{
    int64_t index[1];
    int64_t axis = hth_node_int(node, "axis", 0);
    axis += axis < 0 ? v->rank : 0;
    if (graph->values[node->inputs[1]].shape.rank != 0 ||
        hth_pass_ints(graph, node->inputs[1], index, 1) != 1) {
        return false;
    }
    int64_t rest = index[0] < 0 ? index[0] + v->dim[axis] : index[0];
    if (rest < 0 || rest >= v->dim[axis]) {
        return false; // outside: left to the kernel, which says so
    }
    for (int k = v->n[axis] - 1; k >= 0; k--) {
        v->offset += rest % v->f[axis][k].size * v->f[axis][k].stride;
        rest /= v->f[axis][k].size;
    }
    for (int i = (int)axis; i + 1 < v->rank; i++) {
        view_copy_dim(v, i, v, i + 1);
    }
    v->rank--;
    return true;
}

// view_cut keeps `count` elements of dimension `d` from `from` on, every step-th.
static bool view_cut(view *v, int d, int64_t from, int64_t step, int64_t count)
{
    if (from == 0 && step == 1 && count == v->dim[d]) {
        return true;
    }
    if (v->n[d] > 1) {
        return false;
    }
    factor f = v->n[d] == 1 ? v->f[d][0] : (factor){1, 0};
    v->offset += from * f.stride;
    v->n[d] = 0;
    v->dim[d] = count;
    view_put(v, d, count, f.stride * step);
    return true;
}

static bool view_slice(const hth_graph *graph, const hth_node *node, const hth_shape *to, view *v)
{
    int64_t start[HTH_MAX_RANK], axis[HTH_MAX_RANK], step[HTH_MAX_RANK];
    int k = hth_pass_ints(graph, node->inputs[1], start, HTH_MAX_RANK);
    bool has_axes = node->n_inputs > 3 && node->inputs[3] >= 0,
         has_steps = node->n_inputs > 4 && node->inputs[4] >= 0;
    if (k < 0 || (has_axes && hth_pass_ints(graph, node->inputs[3], axis, HTH_MAX_RANK) != k) ||
        (has_steps && hth_pass_ints(graph, node->inputs[4], step, HTH_MAX_RANK) != k)) {
        return false;
    }
    for (int i = 0; i < k; i++) {
        int64_t a = has_axes ? axis[i] : i;
        int64_t s = has_steps ? step[i] : 1;
        a += a < 0 ? v->rank : 0;
        int64_t from = start[i] < 0 ? start[i] + v->dim[a] : start[i];
        from = hth_clamp(from, 0, v->dim[a]);
        if (s <= 0 || !view_cut(v, (int)a, from, s, to->dim[a])) {
            return false;
        }
    }
    return true;
}

static bool view_split(const hth_graph *graph, const hth_node *node, int value, view *v)
{
    int64_t axis = hth_node_int(node, "axis", 0), before = 0;
    axis += axis < 0 ? v->rank : 0;
    for (int k = 0; k < node->n_outputs && node->outputs[k] != value; k++) {
        if (node->outputs[k] < 0) {
            return false;
        }
        before += graph->values[node->outputs[k]].shape.dim[axis];
    }
    return view_cut(v, (int)axis, before, 1, graph->values[value].shape.dim[axis]);
}

static view view_of(const hth_graph *graph, int value, int depth);

// view_through applies node `node`, which makes `value`, to the view of its input; false when it is
// not a view.
static bool view_through(const hth_graph *graph, const hth_node *node, int value, int depth,
                         view *out)
{
    const hth_shape *to = &graph->values[value].shape;
    float c;
    int64_t perm[HTH_MAX_RANK];
    if (node->op == HTH_OP_MUL || node->op == HTH_OP_DIV) {
        int k = node->op == HTH_OP_MUL && hth_pass_scalar(graph, node->inputs[0], &c) ? 1 : 0;
        if (!hth_pass_scalar(graph, node->inputs[1 - k], &c) ||
            !hth_shape_equal(to, &graph->values[node->inputs[k]].shape)) {
            return false;
        }
        *out = view_of(graph, node->inputs[k], depth);
        out->scale *= node->op == HTH_OP_MUL ? c : 1 / c;
        return true;
    }
    *out = view_of(graph, node->inputs[0], depth);
    view from = *out;
    switch (node->op) {
    case HTH_OP_IDENTITY:
        return true;
    case HTH_OP_RESHAPE:
    case HTH_OP_FLATTEN:
    case HTH_OP_SQUEEZE:
    case HTH_OP_UNSQUEEZE:
        return view_reshape(out, to);
    case HTH_OP_TRANSPOSE:
        if (!view_perm(node, from.rank, perm)) {
            return false;
        }
        for (int i = 0; i < from.rank; i++) {
            view_copy_dim(out, i, &from, (int)perm[i]);
        }
        return true;
    case HTH_OP_EXPAND:
        if (from.rank != to->rank) {
            return false;
        }
        for (int i = 0; i < from.rank; i++) {
            if (from.dim[i] != to->dim[i]) {
                out->dim[i] = to->dim[i];
                view_put(out, i, to->dim[i], 0);
            }
        }
        return true;
    case HTH_OP_GATHER:
        return view_gather(graph, node, out);
    case HTH_OP_SLICE:
        return view_slice(graph, node, to, out);
    case HTH_OP_SPLIT:
        return view_split(graph, node, value, out);
    default:
        return false;
    }
}

// view_of looks through at most `depth` producers.
static view view_of(const hth_graph *graph, int value, int depth)
{
    const hth_value *v = &graph->values[value];
    view seen;
    if (depth > 0 && v->producer >= 0 && v->dtype == HTH_DT_F32 &&
        graph->nodes[v->producer].n_post == 0 && graph->nodes[v->producer].inputs[0] >= 0 &&
        view_through(graph, &graph->nodes[v->producer], value, depth - 1, &seen)) {
        return seen;
    }
    return view_plain(graph, value);
}

// An operand of an attention: a view in which every dimension has one stride. Rank 2 to 4; missing
// leading dimensions are 1.
typedef struct operand {
    int base, rank;
    float scale;
    int64_t dim[4];
    hth_attention_view view;
} operand;

static bool operand_of_view(const view *v, operand *out)
{
    *out = (operand){
        .base = v->base, .rank = v->rank, .scale = v->scale, .view = {.offset = v->offset}};
    for (int i = 0; i < 4; i++) {
        int from = i - (4 - v->rank);
        if (from >= 0 && v->n[from] > 1) {
            return false;
        }
        out->dim[i] = from < 0 ? 1 : v->dim[from];
        out->view.stride[i] = from < 0 || v->n[from] == 0 ? 0 : v->f[from][0].stride;
    }
    return v->rank >= 2 && v->rank <= 4;
}

// operand_find looks as far through `value`'s producers as ends in an operand; 24: the longest
// chains that exporters leave have about ten.
static bool operand_find(const hth_graph *graph, int value, operand *out)
{
    for (int depth = 24; depth >= 0; depth--) {
        view v = view_of(graph, value, depth);
        if (operand_of_view(&v, out)) {
            return true;
        }
    }
    return false;
}

typedef struct found {         // an attention in the graph
    int scores, probs, result; // nodes: first MatMul, Softmax, second MatMul
    float scale;
    int mask;  // value added to the scores, -1: none
    int where; // Where node that masks by a constant condition, -1: none
} found;

// masks_where_true says which of its branches masks: Where takes inputs[1] where the condition
// holds.
static bool masks_where_true(const hth_graph *graph, const hth_node *node)
{
    float c;
    return hth_pass_scalar(graph, node->inputs[1], &c) && c < -1e4f;
}

// rows_stay says that the constant condition of `node` leaves something of every row. A row masked
// whole by a large negative number is uniform after the Softmax, by minus infinity it is not.
static bool rows_stay(const hth_graph *graph, const hth_node *node)
{
    hth_const *cond = graph->values[node->inputs[0]].constant;
    bool where_true = masks_where_true(graph, node), whole = false;
    int64_t count = hth_shape_elements(&cond->shape), masked = 0;
    int64_t row = cond->shape.rank > 0 ? cond->shape.dim[cond->shape.rank - 1] : 1;
    const void *data;
    if (hth_const_map(cond, &data) != HTH_OK) {
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        masked = i % row == 0 ? 0 : masked;
        masked += (((const uint8_t *)data)[i] != 0) == where_true;
        whole |= masked == row;
    }
    hth_const_unmap(cond);
    return !whole;
}

// where_mask says that `node` replaces scores by minus infinity (or nearly) where a constant
// condition says so.
static bool where_mask(const hth_graph *graph, const hth_node *node, int *scores)
{
    float c;
    for (int k = 1; k <= 2; k++) {
        if (graph->values[node->inputs[0]].constant != NULL &&
            hth_pass_scalar(graph, node->inputs[k], &c) && c < -1e4f && rows_stay(graph, node)) {
            *scores = node->inputs[3 - k];
            return true;
        }
    }
    return false;
}

static bool as_they_are(const hth_node *node)
{
    return hth_node_int(node, "transA", 0) == 0 && hth_node_int(node, "transB", 0) == 0;
}

// scores_walk goes back from the Softmax's input over scaling and masking to the first MatMul.
static bool scores_walk(const hth_graph *graph, const hth_uses *uses, found *f)
{
    int v = graph->nodes[f->probs].inputs[0];
    float c;
    for (int step = 0; step < 6; step++) {
        int p = graph->values[v].producer;
        if (p < 0 || hth_uses_only(graph, uses, v) < 0 || graph->nodes[p].n_post > 0) {
            return false;
        }
        const hth_node *n = &graph->nodes[p];
        if (n->op == HTH_OP_MAT_MUL) {
            f->scores = p;
            return as_they_are(n);
        }
        bool scaled = n->op == HTH_OP_MUL || n->op == HTH_OP_DIV;
        if (scaled && hth_pass_scalar(graph, n->inputs[1], &c)) {
            f->scale *= n->op == HTH_OP_MUL ? c : 1 / c;
            v = n->inputs[0];
        } else if (n->op == HTH_OP_MUL && hth_pass_scalar(graph, n->inputs[0], &c)) {
            f->scale *= c;
            v = n->inputs[1];
        } else if (n->op == HTH_OP_WHERE && f->mask < 0 && f->where < 0 && f->scale == 1 &&
                   where_mask(graph, n, &v)) {
            f->where = p;
        } else if (n->op == HTH_OP_ADD && f->mask < 0 && f->where < 0 && f->scale == 1) {
            int a = graph->values[n->inputs[0]]
                        .producer; // the scores are the side that a MatMul or a scaling makes
            bool first =
                a >= 0 &&
                (graph->nodes[a].op == HTH_OP_MAT_MUL || graph->nodes[a].op == HTH_OP_MUL ||
                 graph->nodes[a].op == HTH_OP_DIV) &&
                hth_shape_equal(&graph->values[n->inputs[0]].shape, &graph->values[v].shape);
            f->mask = n->inputs[first ? 1 : 0];
            v = n->inputs[first ? 0 : 1];
        } else {
            return false;
        }
        if (graph->values[v].shape.rank < 2) {
            return false;
        }
    }
    return false;
}

static bool attention_find(const hth_graph *graph, const hth_uses *uses, int i, found *f)
{
    const hth_node *s = &graph->nodes[i];
    const hth_value *x = &graph->values[s->inputs[0]];
    int64_t axis = hth_node_int(s, "axis", -1);
    *f = (found){.probs = i, .scale = 1, .mask = -1, .where = -1};
    f->result = hth_uses_only(graph, uses, s->outputs[0]);
    return s->n_post == 0 && x->dtype == HTH_DT_F32 && (axis == -1 || axis == x->shape.rank - 1) &&
           f->result >= 0 && graph->nodes[f->result].op == HTH_OP_MAT_MUL &&
           graph->nodes[f->result].inputs[0] == s->outputs[0] &&
           graph->nodes[f->result].n_post == 0 && as_they_are(&graph->nodes[f->result]) &&
           scores_walk(graph, uses, f);
}

// mask_from_where adds the constant 0 / -inf mask of a Where with a constant condition.
static hth_err mask_from_where(hth_graph *graph, const hth_node *node, int *out)
{
    hth_const *cond = graph->values[node->inputs[0]].constant, *mask;
    bool where_true = masks_where_true(graph, node);
    const void *data;
    int64_t count = hth_shape_elements(&cond->shape);
    float *f = hth_alloc((size_t)count * sizeof *f);
    if (f == NULL) {
        return hth_no_memory("an attention mask");
    }
    hth_err err = hth_const_map(cond, &data);
    for (int64_t i = 0; err == HTH_OK && i < count; i++) {
        f[i] = (((const uint8_t *)data)[i] != 0) == where_true ? -INFINITY : 0;
    }
    if (err == HTH_OK) {
        hth_const_unmap(cond);
        err = hth_const_adopt(HTH_DT_F32, &cond->shape, f, NULL, &mask);
    }
    if (err != HTH_OK) {
        hth_free(f);
        return err;
    }
    err = hth_graph_add_const(graph, NULL, mask, out);
    if (err != HTH_OK) {
        hth_const_rele(mask);
    }
    return err;
}

static bool mask_view(const hth_graph *graph, int mask, const int64_t dim[4],
                      hth_attention_view *out)
{
    const hth_shape *s = &graph->values[mask].shape;
    int64_t stride = 1;
    *out = (hth_attention_view){0};
    if (s->rank > 4 || graph->values[mask].dtype != HTH_DT_F32) {
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

// attention_describe fills `attention` and the operands' values; false when the shapes are not an
// attention's.
static bool attention_describe(const hth_graph *graph, const found *f, hth_attention *attention,
                               int base[3])
{
    const hth_node *first = &graph->nodes[f->scores], *second = &graph->nodes[f->result];
    operand q, k, v;
    if (!operand_find(graph, first->inputs[0], &q) || !operand_find(graph, first->inputs[1], &k) ||
        !operand_find(graph, second->inputs[1], &v) || v.scale != 1) {
        return false;
    }
    // K^T is what is multiplied: its last two dimensions change places.
    int64_t d = k.dim[2], stride = k.view.stride[2];
    k.dim[2] = k.dim[3];
    k.view.stride[2] = k.view.stride[3];
    k.dim[3] = d;
    k.view.stride[3] = stride;
    if (q.dim[3] != k.dim[3] || k.dim[2] != v.dim[2] ||
        memcmp(q.dim, k.dim, 2 * sizeof q.dim[0]) != 0 ||
        memcmp(q.dim, v.dim, 2 * sizeof q.dim[0]) != 0) {
        return false;
    }
    *attention = (hth_attention){.b0 = q.dim[0],
                                 .b1 = q.dim[1],
                                 .t = q.dim[2],
                                 .s = k.dim[2],
                                 .d = q.dim[3],
                                 .e = v.dim[3],
                                 .q = q.view,
                                 .k = k.view,
                                 .v = v.view,
                                 .scale = f->scale * q.scale * k.scale};
    base[0] = q.base;
    base[1] = k.base;
    base[2] = v.base;
    return true;
}

// output_view chooses where the result goes: as the second MatMul's value, or as the transpose
// after it.
static int output_view(const hth_graph *graph, const hth_uses *uses, const found *f,
                       hth_attention *attention, int *transpose)
{
    int y = graph->nodes[f->result].outputs[0], user = hth_uses_only(graph, uses, y);
    view v = view_plain(graph, y), moved, placed = v;
    int64_t perm[HTH_MAX_RANK];
    operand out;
    *transpose = -1;
    if (user >= 0 && graph->nodes[user].op == HTH_OP_TRANSPOSE && graph->nodes[user].n_post == 0 &&
        view_perm(&graph->nodes[user], v.rank, perm)) {
        moved = view_plain(graph, graph->nodes[user].outputs[0]);
        for (int i = 0; i < v.rank; i++) {
            view_copy_dim(&placed, (int)perm[i], &moved, i);
        }
        *transpose = user;
        y = graph->nodes[user].outputs[0];
    }
    (void)operand_of_view(&placed, &out); // plain and transposed values have one stride each
    attention->out = out.view;
    return y;
}

static hth_err attention_replace(hth_graph *graph, const hth_uses *uses, const found *f)
{
    hth_attention a = {0};
    int in[4] = {-1, -1, -1, f->mask}, transpose;
    if (!attention_describe(graph, f, &a, in)) {
        return HTH_OK;
    }
    if (f->where >= 0) {
        HTH_TRY(mask_from_where(graph, &graph->nodes[f->where], &in[3]));
    }
    const int64_t dim[4] = {a.b0, a.b1, a.t, a.s};
    a.has_mask = in[3] >= 0;
    if (a.has_mask && !mask_view(graph, in[3], dim, &a.mask)) {
        return HTH_OK;
    }
    int y = output_view(graph, uses, f, &a, &transpose);
    // The node takes the second MatMul's place: its operands are all made before that.
    hth_node *n = &graph->nodes[f->result];
    int *inputs = hth_memdup(in, (a.has_mask ? 4 : 3) * sizeof in[0]);
    if (inputs == NULL) {
        return hth_no_memory("an attention");
    }
    hth_free(n->inputs);
    n->inputs = inputs;
    n->n_inputs = a.has_mask ? 4 : 3;
    n->op = HTH_OP_FUSED_ATTENTION;
    if (transpose >= 0) {
        graph->nodes[transpose].deleted = true;
        hth_pass_set_output(graph, f->result, y);
    }
    return hth_attention_set(n, &a);
}

hth_err hth_pass_attention(hth_graph *graph, const hth_uses *uses)
{
    found f;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i].op == HTH_OP_SOFTMAX && !graph->nodes[i].deleted &&
            attention_find(graph, uses, i, &f)) {
            HTH_TRY(attention_replace(graph, uses, &f));
        }
    }
    return HTH_OK;
}
