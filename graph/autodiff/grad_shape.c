// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/grad_shape.c - gradients of operators that move or repeat elements.
#include "graph/autodiff/grad.h"

#include "base/compare.h"
#include "base/alloc.h"

#include <string.h>

void hth_grad_reshape_back(hth_grad *grad, const hth_node *node)
{
    const hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    hth_grad_give(grad, node, 0, hth_grad_reshape(grad, hth_grad_out(grad, node, 0), &s));
}

void hth_grad_transpose(hth_grad *grad, const hth_node *node)
{
    int64_t perm[HTH_MAX_RANK], back[HTH_MAX_RANK];
    int rank = hth_grad_shape(grad, node->inputs[0])->rank;
    bool given = hth_node_ints(node, "perm", perm, HTH_MAX_RANK) >= 0;
    for (int i = 0; i < rank; i++) {
        int64_t p = given ? perm[i] : rank - 1 - i;
        back[p < 0 ? p + rank : p] = i;
    }
    hth_grad_begin(grad, HTH_OP_TRANSPOSE, (int[]){hth_grad_out(grad, node, 0)}, 1, 1);
    hth_grad_ints(grad, "perm", back, rank);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

void hth_grad_expand_back(hth_grad *grad, const hth_node *node)
{
    const hth_shape s = *hth_grad_shape(grad, node->inputs[0]);
    hth_grad_give(grad, node, 0, hth_grad_sum_to(grad, hth_grad_out(grad, node, 0), &s));
}

// Axis by axis: [outer, times, length, inner] summed over times.
void hth_grad_tile(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]);
    hth_shape s = *hth_grad_shape(grad, node->outputs[0]);
    int v = hth_grad_out(grad, node, 0);
    for (int a = 0; a < x.rank; a++) {
        int64_t outer = 1, inner = 1, axis = 1, times = s.dim[a] / (x.dim[a] > 0 ? x.dim[a] : 1);
        for (int i = 0; i < x.rank; i++) {
            outer *= i < a ? s.dim[i] : 1;
            inner *= i > a ? s.dim[i] : 1;
        }
        s.dim[a] = x.dim[a];
        if (times != 1) {
            hth_shape split = {4, {outer, times, x.dim[a], inner}};
            v = hth_grad_reduce(grad, HTH_OP_REDUCE_SUM, hth_grad_reshape(grad, v, &split), &axis,
                                1, false);
        }
    }
    hth_grad_give(grad, node, 0, hth_grad_reshape(grad, v, &x));
}

static int axis_of(const hth_grad *grad, const hth_node *node)
{
    int64_t axis = hth_node_int(node, "axis", 0);
    return (int)(axis < 0 ? axis + hth_grad_shape(grad, node->inputs[0])->rank : axis);
}

void hth_grad_concat(hth_grad *grad, const hth_node *node)
{
    int axis = axis_of(grad, node);
    int *part = NULL;
    int64_t *size = hth_calloc((size_t)node->n_inputs, sizeof *size);
    if (size == NULL || (part = hth_calloc((size_t)node->n_inputs, sizeof *part)) == NULL) {
        if (grad->err == HTH_OK) {
            grad->err = hth_no_memory("a gradient");
        }
        hth_free(size);
        return;
    }
    for (int k = 0; k < node->n_inputs; k++) {
        size[k] = hth_grad_shape(grad, node->inputs[k])->dim[axis];
    }
    int sizes = hth_grad_list(grad, size, node->n_inputs);
    hth_grad_begin(grad, HTH_OP_SPLIT, (int[]){hth_grad_out(grad, node, 0), sizes}, 2,
                   node->n_inputs);
    hth_grad_int(grad, "axis", axis);
    hth_grad_end(grad);
    for (int k = 0; k < node->n_inputs; k++) {
        part[k] = hth_grad_output(grad, k);
    }
    for (int k = 0; k < node->n_inputs; k++) {
        hth_grad_give(grad, node, k, part[k]);
    }
    hth_free(size);
    hth_free(part);
}

void hth_grad_split(hth_grad *grad, const hth_node *node)
{
    int axis = axis_of(grad, node);
    int *part = hth_calloc((size_t)node->n_outputs, sizeof *part);
    if (part == NULL) {
        if (grad->err == HTH_OK) {
            grad->err = hth_no_memory("a gradient");
        }
        return;
    }
    for (int k = 0; k < node->n_outputs; k++) {
        part[k] = hth_grad_out(grad, node, k);
        if (part[k] < 0 && grad->err == HTH_OK) {
            const hth_shape s = *hth_grad_shape(grad, node->outputs[k]);
            part[k] = hth_grad_zeros(grad, &s);
        }
    }
    hth_grad_begin(grad, HTH_OP_CONCAT, part, node->n_outputs, 1);
    hth_grad_int(grad, "axis", axis);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
    hth_free(part);
}

// Where the slice starts and how it steps, per dimension; a step to no second element is 1.
static bool slice_read(hth_grad *grad, const hth_node *node, const hth_shape *shape,
                       int64_t *starts, int64_t *steps)
{
    const hth_shape y = *hth_grad_shape(grad, node->outputs[0]);
    int64_t from[HTH_MAX_RANK], axes[HTH_MAX_RANK], step[HTH_MAX_RANK];
    int count = hth_grad_content(grad, node->inputs[1], from, HTH_MAX_RANK);
    bool has_axes = node->n_inputs > 3 && node->inputs[3] >= 0,
         has_steps = node->n_inputs > 4 && node->inputs[4] >= 0;
    if (count < 0 ||
        (has_axes && hth_grad_content(grad, node->inputs[3], axes, HTH_MAX_RANK) != count) ||
        (has_steps && hth_grad_content(grad, node->inputs[4], step, HTH_MAX_RANK) != count)) {
        return false;
    }
    for (int i = 0; i < shape->rank; i++) {
        starts[i] = 0;
        steps[i] = 1;
    }
    for (int i = 0; i < count; i++) {
        int a = has_axes ? (int)axes[i] : i;
        a += a < 0 ? shape->rank : 0;
        int64_t last = shape->dim[a] > 0 ? shape->dim[a] - 1 : 0;
        int64_t at = from[i] < 0 ? from[i] + shape->dim[a] : from[i];
        starts[a] = hth_clamp(at, 0, last);
        steps[a] = has_steps && y.dim[a] > 1 ? step[i] : 1;
    }
    return true;
}

void hth_grad_slice(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]);
    int64_t starts[HTH_MAX_RANK], steps[HTH_MAX_RANK];
    if (!slice_read(grad, node, &x, starts, steps)) {
        hth_grad_fail(grad, "a slice at computed positions has no gradient");
        return;
    }
    hth_grad_begin(grad, HTH_OP_SLICE_GRAD, (int[]){hth_grad_out(grad, node, 0)}, 1, 1);
    hth_grad_ints(grad, "starts", starts, x.rank);
    hth_grad_ints(grad, "steps", steps, x.rank);
    hth_grad_ints(grad, "shape", x.dim, x.rank);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
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
static int pad_scatter(hth_grad *grad, const char *mode, int v, const hth_shape *shape,
                       const int64_t *begin)
{
    for (int a = 0; a < shape->rank && grad->err == HTH_OK; a++) {
        hth_shape s = *hth_grad_shape(grad, v);
        if (s.dim[a] == shape->dim[a] && begin[a] == 0) {
            continue;
        }
        int64_t *index = hth_grad_table(grad, s.dim[a], sizeof *index);
        if (index == NULL) {
            return -1;
        }
        for (int64_t i = 0; i < s.dim[a]; i++) {
            index[i] = pad_source(mode, i - begin[a], shape->dim[a]);
        }
        int list = hth_grad_list(grad, index, s.dim[a]);
        hth_free(index);
        s.dim[a] = shape->dim[a];
        hth_grad_begin(grad, HTH_OP_GATHER_GRAD, (int[]){v, list}, 2, 1);
        hth_grad_int(grad, "axis", a);
        hth_grad_ints(grad, "shape", s.dim, s.rank);
        v = hth_grad_end(grad);
    }
    return v;
}

void hth_grad_pad(hth_grad *grad, const hth_node *node)
{
    const hth_shape x = *hth_grad_shape(grad, node->inputs[0]);
    const char *mode = hth_node_str(node, "mode", "constant");
    int64_t given[2 * HTH_MAX_RANK], axes[HTH_MAX_RANK], back[2 * HTH_MAX_RANK] = {0};
    int count = hth_grad_content(grad, node->inputs[1], given, 2 * HTH_MAX_RANK), n_axes = x.rank;
    bool has_axes = node->n_inputs > 3 && node->inputs[3] >= 0;
    n_axes = has_axes ? hth_grad_content(grad, node->inputs[3], axes, HTH_MAX_RANK) : n_axes;
    if (count < 0 || count != 2 * n_axes) {
        hth_grad_fail(grad, "a pad by computed lengths has no gradient");
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
        hth_grad_give(grad, node, 0,
                      pad_scatter(grad, mode, hth_grad_out(grad, node, 0), &x, begin));
        return;
    }
    int list = hth_grad_list(grad, back, 2 * x.rank);
    hth_grad_give(grad, node, 0, hth_grad_2(grad, HTH_OP_PAD, hth_grad_out(grad, node, 0), list));
}

// DepthToSpace and SpaceToDepth undo each other.
void hth_grad_blocks(hth_grad *grad, const hth_node *node)
{
    hth_op back = node->op == HTH_OP_DEPTH_TO_SPACE ? HTH_OP_SPACE_TO_DEPTH : HTH_OP_DEPTH_TO_SPACE;
    hth_grad_begin(grad, back, (int[]){hth_grad_out(grad, node, 0)}, 1, 1);
    hth_grad_attrs(grad, node);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}

// Operators that are their own gradient: the same node on dy.
void hth_grad_same_on_dy(hth_grad *grad, const hth_node *node)
{
    int in[2] = {hth_grad_out(grad, node, 0), node->n_inputs > 1 ? node->inputs[1] : -1};
    hth_grad_begin(grad, node->op, in, node->n_inputs, 1);
    hth_grad_attrs(grad, node);
    hth_grad_give(grad, node, 0, hth_grad_end(grad));
}
