// SPDX-License-Identifier: Apache-2.0
// Operators that move elements by a rule that strides can say, one strided copy per piece; and Pad.
#include "kernels/cuda/seq.h"

#include "base/compare.h"

#include <string.h>

// Doubles the element while every step, base and the innermost run allow it.
static size_t move_widen(hth_cuda_loop *loop, size_t element, int64_t *in_base, int64_t *out_base)
{
    int d = loop->rank - 1;
    while (d >= 0 && element < 16 && loop->step[0][d] == 1 && loop->step[1][d] == 1 &&
           loop->dim[d] % 2 == 0 && *in_base % 2 == 0 && *out_base % 2 == 0) {
        for (int k = 0; k < d; k++) {
            if (loop->step[0][k] % 2 != 0 || loop->step[1][k] % 2 != 0) {
                return element;
            }
        }
        for (int k = 0; k < d; k++) {
            loop->step[0][k] /= 2;
            loop->step[1][k] /= 2;
        }
        loop->dim[d] /= 2;
        *in_base /= 2;
        *out_base /= 2;
        element *= 2;
    }
    return element;
}

hth_err hth_cuda_move_between(hth_cuda_seq *seq, hth_cuda_loop *loop, size_t element,
                              const hth_cuda_place *from, int64_t in_base, const hth_cuda_place *to,
                              int64_t out_base)
{
    hth_steps steps[2] = {{{0}}, {{0}}};
    hth_cuda_loop_fold(loop);
    element = move_widen(loop, element, &in_base, &out_base);
    hth_move_params p = {.n = 1, .element = (uint32_t)element};
    p.in_base = in_base;
    p.out_base = out_base;
    HTH_TRY(hth_cuda_loop_store(loop, &p.dims, steps));
    p.in_steps = steps[0];
    p.out_steps = steps[1];
    for (int d = 0; d < loop->rank; d++) {
        p.n *= p.dims.dim[d];
    }
    if (p.n == 0) {
        return HTH_OK;
    }
    hth_cuda_launch_add(seq, HTH_CUDA_hth_move, hth_cuda_blocks(seq, p.n, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_move_params, in), from->from, from->index, from->offset);
    hth_cuda_bind(seq, offsetof(hth_move_params, out), to->from, to->index, to->offset);
    seq->moved_bytes += 2 * p.n * element;
    return HTH_OK;
}

hth_err hth_cuda_move(hth_cuda_seq *seq, hth_cuda_loop *loop, size_t element, int in,
                      int64_t in_base, int out, int64_t out_base)
{
    const hth_cuda_place from = {.from = HTH_CUDA_IN, .index = in},
                         to = {.from = HTH_CUDA_OUT, .index = out};
    return hth_cuda_move_between(seq, loop, element, &from, in_base, &to, out_base);
}

// A loop over `shape` whose operand 0 has the steps `in`, operand 1 the steps `out`.
static void move_loop(hth_cuda_loop *loop, const hth_shape *shape, const int64_t *in,
                      const int64_t *out)
{
    hth_cuda_loop_begin(loop, shape, HTH_LAYOUT_PLAIN);
    loop->n = 2;
    memcpy(loop->step[0], in, (size_t)shape->rank * sizeof *in);
    memcpy(loop->step[1], out, (size_t)shape->rank * sizeof *out);
}

hth_err hth_cuda_view(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                      const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0);
    hth_cuda_loop l = {.rank = 1, .n = 2, .dim = {hth_cuda_count(x)}, .step = {{1}, {1}}};
    seq->base.inplace_input = 0;
    seq->view = true;
    return hth_cuda_move(seq, &l, hth_dtype_bytes(x->dtype), 0, 0, 0, 0);
}

hth_err hth_cuda_transpose(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    int64_t perm[HTH_MAX_RANK], from[HTH_MAX_RANK], in[HTH_MAX_RANK] = {0}, out[HTH_MAX_RANK];
    int rank = x->shape.rank, have = hth_node_ints(node, "perm", perm, HTH_MAX_RANK);
    hth_cuda_loop l;
    hth_cuda_row_major(&x->shape, from);
    hth_cuda_row_major(&y->shape, out);
    for (int d = 0; d < rank; d++) {
        int64_t axis = have < 0 ? rank - 1 - d : perm[d];
        axis += axis < 0 ? rank : 0;
        in[d] = from[axis];
    }
    move_loop(&l, &y->shape, in, out);
    return hth_cuda_move(seq, &l, hth_dtype_bytes(x->dtype), 0, 0, 0, 0);
}

hth_err hth_cuda_expand(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    int64_t out[HTH_MAX_RANK];
    hth_cuda_loop l;
    hth_cuda_loop_begin(&l, &y->shape, HTH_LAYOUT_PLAIN);
    hth_cuda_loop_add(&l, &x->shape, HTH_LAYOUT_PLAIN);
    hth_cuda_row_major(&y->shape, out);
    memcpy(l.step[l.n++], out, (size_t)y->shape.rank * sizeof *out);
    return hth_cuda_move(seq, &l, hth_dtype_bytes(x->dtype), 0, 0, 0, 0);
}

// Each axis is one of repetitions and one of elements.
hth_err hth_cuda_tile(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                      const char *algorithm)
{
    const hth_shape *x = &hth_cuda_in(graph, node, 0)->shape,
                    *y = &hth_cuda_out(graph, node, 0)->shape;
    int64_t in[HTH_MAX_RANK], out[HTH_MAX_RANK];
    hth_cuda_loop l = {.n = 2};
    hth_cuda_row_major(x, in);
    hth_cuda_row_major(y, out);
    for (int d = 0; d < x->rank; d++) {
        l.dim[l.rank] = y->dim[d] / x->dim[d];
        l.step[1][l.rank++] = x->dim[d] * out[d];
        l.dim[l.rank] = x->dim[d];
        l.step[0][l.rank] = in[d];
        l.step[1][l.rank++] = out[d];
    }
    return hth_cuda_move(seq, &l, hth_dtype_bytes(hth_cuda_in(graph, node, 0)->dtype), 0, 0, 0, 0);
}

// First position and count of one axis of a slice; the step is clamped to +-dim.
static int64_t move_slice_axis(int64_t dim, int64_t *start, int64_t end, int64_t *step)
{
    bool forward = *step > 0;
    int64_t low = forward ? 0 : -1, high = low + dim;
    *start += *start < 0 ? dim : 0;
    end += end < 0 ? dim : 0;
    *start = hth_clamp(*start, 0, high);
    end = hth_clamp(end, low, high);
    int64_t distance = forward ? end - *start : *start - end;
    *step = hth_clamp(*step, -dim, dim);
    int64_t stride = forward ? *step : -*step;
    return distance <= 0 || stride == 0 ? 0 : (distance - 1) / stride + 1;
}

hth_err hth_cuda_slice(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                       const char *algorithm)
{
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    int64_t v[4][HTH_MAX_RANK], in[HTH_MAX_RANK], out[HTH_MAX_RANK], base = 0;
    int count[4];
    hth_cuda_loop l;
    for (int i = 0; i < 4; i++) {
        HTH_TRY(hth_cuda_ints(graph, node, i + 1, v[i], HTH_MAX_RANK, &count[i]));
    }
    hth_cuda_row_major(&x->shape, in);
    hth_cuda_row_major(&y->shape, out);
    for (int i = 0; i < count[0]; i++) {
        int64_t axis = count[2] < 0 ? i : v[2][i];
        int64_t step = count[3] < 0 ? 1 : v[3][i];
        axis += axis < 0 ? x->shape.rank : 0;
        int64_t start = v[0][i], k = move_slice_axis(x->shape.dim[axis], &start, v[1][i], &step);
        base += k > 0 ? start * in[axis] : 0;
        in[axis] *= step;
    }
    move_loop(&l, &y->shape, in, out);
    return hth_cuda_move(seq, &l, hth_dtype_bytes(x->dtype), 0, base, 0, 0);
}

// The pieces of `whole` along the node's axis, into it or out of it.
static hth_err move_chunks(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                           bool into)
{
    const hth_value *whole = into ? hth_cuda_out(graph, node, 0) : hth_cuda_in(graph, node, 0);
    int64_t wide[HTH_MAX_RANK], axis = hth_node_int(node, "axis", 0), at = 0;
    axis += axis < 0 ? whole->shape.rank : 0;
    if (axis < 0 || axis >= whole->shape.rank) {
        return hth_fail(HTH_ENOTSUP, "axis is out of range");
    }
    hth_cuda_steps(&whole->shape, whole->layout, wide);
    int count = into ? node->n_inputs : node->n_outputs;
    for (int i = 0; i < count; i++) {
        const hth_value *chunk = into ? hth_cuda_in(graph, node, i) : hth_cuda_out(graph, node, i);
        if (chunk == NULL || chunk->dtype != whole->dtype) {
            return hth_fail(HTH_ENOTSUP, "input %d is absent, or of another type", i);
        }
        hth_cuda_loop l;
        hth_shape whole_of = whole->shape; // the piece's place in it: the same steps
        hth_cuda_loop_begin(&l, &chunk->shape, whole->layout);
        int dense = hth_cuda_loop_add(&l, &chunk->shape, chunk->layout);
        int in_whole = hth_cuda_loop_add(&l, &whole_of, whole->layout);
        if (!into) {
            for (int d = 0; d < l.rank; d++) {
                int64_t step = l.step[dense][d];
                l.step[dense][d] = l.step[in_whole][d];
                l.step[in_whole][d] = step;
            }
        }
        int64_t base = at * wide[axis];
        size_t element = hth_dtype_bytes(whole->dtype);
        if (into) {
            HTH_TRY(hth_cuda_move(seq, &l, element, i, 0, 0, base));
        } else {
            HTH_TRY(hth_cuda_move(seq, &l, element, 0, base, i, 0));
        }
        at += chunk->shape.dim[axis];
    }
    return HTH_OK;
}

hth_err hth_cuda_concat(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                        const char *algorithm)
{
    return move_chunks(seq, graph, node, true);
}

hth_err hth_cuda_split(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                       const char *algorithm)
{
    return move_chunks(seq, graph, node, false);
}

// DepthToSpace and SpaceToDepth. The large image is [N, C, H, b, W, b]; the small one has its two
// b in the channels: [N, b, b, C, H, W], or [N, C, b, b, H, W] (mode CRD).
hth_err hth_cuda_blocks_space(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                              const char *algorithm)
{
    bool to_space = node->op == HTH_OP_DEPTH_TO_SPACE;
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    const hth_shape *small = to_space ? &x->shape : &y->shape;
    int64_t b = hth_node_int(node, "blocksize", 1), c = small->dim[1] / b / b;
    bool crd = strcmp(hth_node_str(node, "mode", "DCR"), "CRD") == 0;
    const hth_shape large = {6, {small->dim[0], c, small->dim[2], b, small->dim[3], b}};
    int64_t hw = small->dim[2] * small->dim[3], wide[6], deep[6] = {small->dim[1] * hw};
    hth_cuda_loop l;
    if (small->rank != 4) {
        return hth_fail(HTH_ENOTSUP, "%d dimensions", small->rank);
    }
    hth_cuda_row_major(&large, wide);
    deep[1] = (crd ? b * b : 1) * hw;
    deep[2] = small->dim[3];
    deep[3] = (crd ? b : b * c) * hw;
    deep[4] = 1;
    deep[5] = (crd ? 1 : c) * hw;
    if (to_space) {
        move_loop(&l, &large, deep, wide);
    } else {
        move_loop(&l, &large, wide, deep);
    }
    return hth_cuda_move(seq, &l, hth_dtype_bytes(x->dtype), 0, 0, 0, 0);
}

void hth_cuda_fill(hth_cuda_seq *seq, int out, uint32_t words, uint32_t value)
{
    const hth_fill_params p = {.n = words, .value = value};
    hth_cuda_launch_add(seq, HTH_CUDA_hth_fill, hth_cuda_blocks(seq, p.n / 4, true), 0, 0, &p,
                        sizeof p);
    hth_cuda_bind(seq, offsetof(hth_fill_params, out), HTH_CUDA_OUT, out, 0);
    seq->moved_bytes += (size_t)words * 4;
}

static void move_fill(hth_cuda_seq *seq, const hth_value *value)
{
    hth_cuda_fill(seq, 0, (uint32_t)((hth_cuda_bytes(value) + 3) / 4), 0);
}

hth_err hth_cuda_slice_grad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                            const char *algorithm)
{
    const hth_value *dy = hth_cuda_in(graph, node, 0), *dx = hth_cuda_out(graph, node, 0);
    int64_t starts[HTH_MAX_RANK], steps[HTH_MAX_RANK], in[HTH_MAX_RANK], out[HTH_MAX_RANK];
    int rank = dx->shape.rank;
    int64_t base = 0;
    hth_cuda_loop l;
    HTH_TRY(dy->dtype == dx->dtype ? hth_cuda_need_float(graph, node, 1, 1)
                                   : hth_fail(HTH_ENOTSUP, "gradients of several types"));
    if (hth_node_ints(node, "starts", starts, HTH_MAX_RANK) != rank ||
        hth_node_ints(node, "steps", steps, HTH_MAX_RANK) != rank) {
        return hth_fail(HTH_ENOTSUP, "starts and steps do not fit the shape");
    }
    hth_cuda_row_major(&dy->shape, in);
    hth_cuda_row_major(&dx->shape, out);
    for (int d = 0; d < rank; d++) {
        base += starts[d] * out[d];
        out[d] *= steps[d];
    }
    move_fill(seq, dx);
    move_loop(&l, &dy->shape, in, out);
    return hth_cuda_move(seq, &l, hth_dtype_bytes(dx->dtype), 0, 0, 0, base);
}

static hth_err pad_amounts(const hth_graph *graph, const hth_node *node, hth_pad_params *params,
                           const hth_shape *x, const hth_shape *y)
{
    int64_t amount[2 * HTH_MAX_RANK], axes[HTH_MAX_RANK], after[HTH_CUDA_RANK] = {0};
    int count, n_axes;
    HTH_TRY(hth_cuda_ints(graph, node, 1, amount, 2 * HTH_MAX_RANK, &count));
    HTH_TRY(hth_cuda_ints(graph, node, 3, axes, HTH_MAX_RANK, &n_axes));
    int pairs = count / 2;
    for (int i = 0; i < pairs; i++) {
        int64_t a = n_axes < 0 ? i : axes[i];
        a += a < 0 ? x->rank : 0;
        params->before[a] = (int32_t)amount[i];
        after[a] = amount[pairs + i];
    }
    for (int d = 0; d < x->rank; d++) {
        params->first[d] = params->before[d] < 0 ? -params->before[d] : 0;
        int64_t crop = params->first[d] + (after[d] < 0 ? -after[d] : 0);
        params->before[d] = params->before[d] > 0 ? params->before[d] : 0;
        params->kept[d] = (int32_t)(x->dim[d] - crop);
        params->dims.dim[d] = (uint32_t)y->dim[d];
        if (params->kept[d] <= 0) {
            return hth_fail(HTH_ENOTSUP, "nothing is left of axis %d", d);
        }
    }
    return HTH_OK;
}

hth_err hth_cuda_pad(hth_cuda_seq *seq, const hth_graph *graph, const hth_node *node,
                     const char *algorithm)
{
    static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
    const hth_value *x = hth_cuda_in(graph, node, 0), *y = hth_cuda_out(graph, node, 0);
    hth_pad_params p = {.n = hth_cuda_count(y), .element = (uint32_t)hth_dtype_bytes(x->dtype)};
    const char *mode = hth_node_str(node, "mode", "constant");
    if (x->shape.rank > HTH_CUDA_RANK || x->shape.rank == 0) {
        return hth_fail(HTH_ENOTSUP, "%d dimensions", x->shape.rank);
    }
    while (p.mode < 3 && strcmp(mode, modes[p.mode]) != 0) {
        p.mode++;
    }
    p.dims.rank = x->shape.rank;
    HTH_TRY(pad_amounts(graph, node, &p, &x->shape, &y->shape));
    hth_cuda_row_major(&x->shape, p.in_steps.step);
    hth_cuda_launch_add(seq, HTH_CUDA_hth_pad, hth_cuda_blocks(seq, p.n, true), 0, 0, &p, sizeof p);
    hth_cuda_bind(seq, offsetof(hth_pad_params, in), HTH_CUDA_IN, 0, 0);
    hth_cuda_bind(seq, offsetof(hth_pad_params, out), HTH_CUDA_OUT, 0, 0);
    if (hth_cuda_in(graph, node, 2) != NULL) {
        hth_cuda_bind(seq, offsetof(hth_pad_params, value), HTH_CUDA_IN, 2, 0);
    }
    seq->moved_bytes += hth_cuda_bytes(x) + hth_cuda_bytes(y);
    return HTH_OK;
}
