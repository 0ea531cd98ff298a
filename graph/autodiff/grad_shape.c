// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_shape.c - gradients of operators that move or repeat elements.
#include "graph/autodiff/grad.h"

#include "base/compare.h"
#include "base/alloc.h"

#include <string.h>

void hth_grad_reshape_back(hth_grad *c, const hth_node *n)
{
    const hth_shape s = *hth_grad_shape(c, n->inputs[0]);
    hth_grad_give(c, n, 0, hth_grad_reshape(c, hth_grad_out(c, n, 0), &s));
}

void hth_grad_transpose(hth_grad *c, const hth_node *n)
{
    int64_t perm[HTH_MAX_RANK], back[HTH_MAX_RANK];
    int rank = hth_grad_shape(c, n->inputs[0])->rank;
    bool given = hth_node_ints(n, "perm", perm, HTH_MAX_RANK) >= 0;
    for (int i = 0; i < rank; i++) {
        int64_t p = given ? perm[i] : rank - 1 - i;
        back[p < 0 ? p + rank : p] = i;
    }
    hth_grad_begin(c, HTH_OP_TRANSPOSE, (int[]){hth_grad_out(c, n, 0)}, 1, 1);
    hth_grad_ints(c, "perm", back, rank);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

void hth_grad_expand_back(hth_grad *c, const hth_node *n)
{
    const hth_shape s = *hth_grad_shape(c, n->inputs[0]);
    hth_grad_give(c, n, 0, hth_grad_sum_to(c, hth_grad_out(c, n, 0), &s));
}

// Axis by axis: [outer, times, length, inner] summed over times.
void hth_grad_tile(hth_grad *c, const hth_node *n)
{
    const hth_shape x = *hth_grad_shape(c, n->inputs[0]);
    hth_shape s = *hth_grad_shape(c, n->outputs[0]);
    int v = hth_grad_out(c, n, 0);
    for (int a = 0; a < x.rank; a++) {
        int64_t outer = 1, inner = 1, axis = 1, times = s.dim[a] / (x.dim[a] > 0 ? x.dim[a] : 1);
        for (int i = 0; i < x.rank; i++) {
            outer *= i < a ? s.dim[i] : 1;
            inner *= i > a ? s.dim[i] : 1;
        }
        s.dim[a] = x.dim[a];
        if (times != 1) {
            hth_shape split = {4, {outer, times, x.dim[a], inner}};
            v = hth_grad_reduce(c, HTH_OP_REDUCE_SUM, hth_grad_reshape(c, v, &split), &axis, 1,
                                false);
        }
    }
    hth_grad_give(c, n, 0, hth_grad_reshape(c, v, &x));
}

static int axis_of(const hth_grad *c, const hth_node *n)
{
    int64_t axis = hth_node_int(n, "axis", 0);
    return (int)(axis < 0 ? axis + hth_grad_shape(c, n->inputs[0])->rank : axis);
}

void hth_grad_concat(hth_grad *c, const hth_node *n)
{
    int axis = axis_of(c, n), *part = NULL;
    int64_t *size = hth_calloc((size_t)n->n_inputs, sizeof *size);
    if (size == NULL || (part = hth_calloc((size_t)n->n_inputs, sizeof *part)) == NULL) {
        c->err = c->err == HTH_OK ? hth_fail(HTH_ENOMEM, "no memory for a gradient") : c->err;
        hth_free(size);
        return;
    }
    for (int k = 0; k < n->n_inputs; k++) {
        size[k] = hth_grad_shape(c, n->inputs[k])->dim[axis];
    }
    int sizes = hth_grad_list(c, size, n->n_inputs);
    hth_grad_begin(c, HTH_OP_SPLIT, (int[]){hth_grad_out(c, n, 0), sizes}, 2, n->n_inputs);
    hth_grad_int(c, "axis", axis);
    hth_grad_end(c);
    for (int k = 0; k < n->n_inputs; k++) {
        part[k] = hth_grad_output(c, k);
    }
    for (int k = 0; k < n->n_inputs; k++) {
        hth_grad_give(c, n, k, part[k]);
    }
    hth_free(size);
    hth_free(part);
}

void hth_grad_split(hth_grad *c, const hth_node *n)
{
    int axis = axis_of(c, n), *part = hth_calloc((size_t)n->n_outputs, sizeof *part);
    if (part == NULL) {
        c->err = c->err == HTH_OK ? hth_fail(HTH_ENOMEM, "no memory for a gradient") : c->err;
        return;
    }
    for (int k = 0; k < n->n_outputs; k++) {
        part[k] = hth_grad_out(c, n, k);
        if (part[k] < 0 && c->err == HTH_OK) {
            const hth_shape s = *hth_grad_shape(c, n->outputs[k]);
            part[k] = hth_grad_zeros(c, &s);
        }
    }
    hth_grad_begin(c, HTH_OP_CONCAT, part, n->n_outputs, 1);
    hth_grad_int(c, "axis", axis);
    hth_grad_give(c, n, 0, hth_grad_end(c));
    hth_free(part);
}

// Where the slice starts and how it steps, per dimension; a step to no second element is 1.
static bool slice_read(hth_grad *c, const hth_node *n, const hth_shape *x, int64_t *starts,
                       int64_t *steps)
{
    const hth_shape y = *hth_grad_shape(c, n->outputs[0]);
    int64_t from[HTH_MAX_RANK], axes[HTH_MAX_RANK], step[HTH_MAX_RANK];
    int count = hth_grad_content(c, n->inputs[1], from, HTH_MAX_RANK);
    bool has_axes = n->n_inputs > 3 && n->inputs[3] >= 0,
         has_steps = n->n_inputs > 4 && n->inputs[4] >= 0;
    if (count < 0 || (has_axes && hth_grad_content(c, n->inputs[3], axes, HTH_MAX_RANK) != count) ||
        (has_steps && hth_grad_content(c, n->inputs[4], step, HTH_MAX_RANK) != count)) {
        return false;
    }
    for (int i = 0; i < x->rank; i++) {
        starts[i] = 0;
        steps[i] = 1;
    }
    for (int i = 0; i < count; i++) {
        int a = has_axes ? (int)axes[i] : i;
        a += a < 0 ? x->rank : 0;
        int64_t last = x->dim[a] > 0 ? x->dim[a] - 1 : 0;
        int64_t at = from[i] < 0 ? from[i] + x->dim[a] : from[i];
        starts[a] = hth_clamp(at, 0, last);
        steps[a] = has_steps && y.dim[a] > 1 ? step[i] : 1;
    }
    return true;
}

void hth_grad_slice(hth_grad *c, const hth_node *n)
{
    const hth_shape x = *hth_grad_shape(c, n->inputs[0]);
    int64_t starts[HTH_MAX_RANK], steps[HTH_MAX_RANK];
    if (!slice_read(c, n, &x, starts, steps)) {
        hth_grad_fail(c, "a slice at computed positions has no gradient");
        return;
    }
    hth_grad_begin(c, HTH_OP_SLICE_GRAD, (int[]){hth_grad_out(c, n, 0)}, 1, 1);
    hth_grad_ints(c, "starts", starts, x.rank);
    hth_grad_ints(c, "steps", steps, x.rank);
    hth_grad_ints(c, "shape", x.dim, x.rank);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

// Which element of the input stands at position p of the padded axis.
static int64_t pad_source(const char *mode, int64_t p, int64_t n)
{
    int64_t period = mode[0] == 'w' ? n : 2 * (n - 1);
    if (mode[0] == 'e' || period <= 0) { // edge
        return hth_clamp(p, 0, n - 1);
    }
    p = (p % period + period) % period;
    return p < n ? p : period - p; // reflect; for wrap p < n always
}

// Padding with a copy of elements is a gather along each axis; its gradient scatters back.
static int pad_scatter(hth_grad *c, const char *mode, int v, const hth_shape *x,
                       const int64_t *begin)
{
    for (int a = 0; a < x->rank && c->err == HTH_OK; a++) {
        hth_shape s = *hth_grad_shape(c, v);
        if (s.dim[a] == x->dim[a] && begin[a] == 0) {
            continue;
        }
        int64_t *index = hth_calloc((size_t)s.dim[a] + 1, sizeof *index);
        if (index == NULL) {
            c->err = hth_fail(HTH_ENOMEM, "no memory for a gradient");
            return -1;
        }
        for (int64_t i = 0; i < s.dim[a]; i++) {
            index[i] = pad_source(mode, i - begin[a], x->dim[a]);
        }
        int list = hth_grad_list(c, index, (int)s.dim[a]);
        hth_free(index);
        s.dim[a] = x->dim[a];
        hth_grad_begin(c, HTH_OP_GATHER_GRAD, (int[]){v, list}, 2, 1);
        hth_grad_int(c, "axis", a);
        hth_grad_ints(c, "shape", s.dim, s.rank);
        v = hth_grad_end(c);
    }
    return v;
}

void hth_grad_pad(hth_grad *c, const hth_node *n)
{
    const hth_shape x = *hth_grad_shape(c, n->inputs[0]);
    const char *mode = hth_node_str(n, "mode", "constant");
    int64_t given[2 * HTH_MAX_RANK], axes[HTH_MAX_RANK], back[2 * HTH_MAX_RANK] = {0};
    int count = hth_grad_content(c, n->inputs[1], given, 2 * HTH_MAX_RANK), n_axes = x.rank;
    bool has_axes = n->n_inputs > 3 && n->inputs[3] >= 0;
    n_axes = has_axes ? hth_grad_content(c, n->inputs[3], axes, HTH_MAX_RANK) : n_axes;
    if (count < 0 || count != 2 * n_axes) {
        hth_grad_fail(c, "a pad by computed lengths has no gradient");
        return;
    }
    for (int i = 0; i < n_axes; i++) {
        int a = has_axes ? (int)axes[i] : i;
        a += a < 0 ? x.rank : 0;
        back[a] = -given[i];
        back[x.rank + a] = -given[n_axes + i];
    }
    if (mode[0] != 'c') {
        int64_t begin[HTH_MAX_RANK];
        for (int i = 0; i < x.rank; i++) {
            begin[i] = -back[i];
        }
        hth_grad_give(c, n, 0, pad_scatter(c, mode, hth_grad_out(c, n, 0), &x, begin));
        return;
    }
    int list = hth_grad_list(c, back, 2 * x.rank);
    hth_grad_give(c, n, 0, hth_grad_2(c, HTH_OP_PAD, hth_grad_out(c, n, 0), list));
}

// DepthToSpace and SpaceToDepth undo each other.
void hth_grad_blocks(hth_grad *c, const hth_node *n)
{
    hth_op back = n->op == HTH_OP_DEPTH_TO_SPACE ? HTH_OP_SPACE_TO_DEPTH : HTH_OP_DEPTH_TO_SPACE;
    hth_grad_begin(c, back, (int[]){hth_grad_out(c, n, 0)}, 1, 1);
    hth_grad_attrs(c, n);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}

// Operators that are their own gradient: the same node on dy.
void hth_grad_same_on_dy(hth_grad *c, const hth_node *n)
{
    int in[2] = {hth_grad_out(c, n, 0), n->n_inputs > 1 ? n->inputs[1] : -1};
    hth_grad_begin(c, n->op, in, n->n_inputs, 1);
    hth_grad_attrs(c, n);
    hth_grad_give(c, n, 0, hth_grad_end(c));
}
