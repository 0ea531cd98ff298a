// SPDX-License-Identifier: Apache-2.0
// Operators that only move elements: Transpose, Slice, Expand are one strided copy (ref_copy, which
// turns dense runs into memcpy and transposes in tiles), cut along its longest dimension among the
// threads; Reshape and its kin are a copy of bytes, or nothing when input and output share a
// buffer; Gather copies rows.
#include "kernels/cpu/plain.h"

#include "kernels/ref/ref.h"

#include <string.h>

typedef struct move_kernel {
    hth_kernel base;
    const hth_node *node;     // Gather's, for the sentence when it fails
    int n_threads, rank, cut; // cut: the dimension that is shared out
    int64_t dim[HTH_MAX_RANK], from[HTH_MAX_RANK], to[HTH_MAX_RANK], first;
    size_t elem, count;
    int64_t outer, along, inner, rows; // Gather: of the data, and how many indices
    hth_dtype index;
} move_kernel;

typedef struct move_job {
    const move_kernel *k;
    const char *src, *indices;
    char *dst;
    bool failed; // an index out of range; any thread sets it
} move_job;

static void move_share(void *arg, int i, int n)
{
    const move_job *j = arg;
    const move_kernel *k = j->k;
    int64_t dim[HTH_MAX_RANK];
    size_t begin, end;
    memcpy(dim, k->dim, sizeof dim);
    hth_team_range((size_t)dim[k->cut], i, n, &begin, &end);
    dim[k->cut] = (int64_t)(end - begin);
    if (begin < end) {
        int64_t at = (int64_t)begin, size = (int64_t)k->elem;
        ref_copy(k->rank, dim, j->dst + at * k->to[k->cut] * size, k->to,
                 j->src + (k->first + at * k->from[k->cut]) * size, k->from, k->elem);
    }
}

static hth_err move_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const move_kernel *k = (const move_kernel *)base;
    move_job j = {.k = k, .src = args->in[0], .dst = args->out[0]};
    hth_cpu_share(k->n_threads, k->count, move_share, &j);
    return HTH_OK;
}

static void view_share(void *arg, int i, int n)
{
    const move_job *j = arg;
    size_t begin, end;
    hth_team_range(j->k->count * j->k->elem, i, n, &begin, &end);
    memcpy(j->dst + begin, j->src + begin, end - begin);
}

static hth_err view_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const move_kernel *k = (const move_kernel *)base;
    move_job j = {.k = k, .src = args->in[0], .dst = args->out[0]};
    if (j.src != j.dst) {
        hth_cpu_share(k->n_threads, k->count, view_share, &j);
    }
    return HTH_OK;
}

static int64_t gather_index(const move_kernel *kernel, const char *indices, int64_t i)
{
    int64_t at =
        kernel->index == HTH_DT_I64 ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
    return at < 0 ? at + kernel->along : at;
}

static void gather_share(void *arg, int i, int n)
{
    move_job *j = arg;
    const move_kernel *k = j->k;
    size_t begin, end, run = (size_t)k->inner * k->elem;
    hth_team_range((size_t)(k->outer * k->rows), i, n, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        int64_t at = gather_index(k, j->indices, (int64_t)r % k->rows);
        if (at < 0 || at >= k->along) {
            __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
            return;
        }
        int64_t row = (int64_t)r / k->rows * k->along + at;
        memcpy(j->dst + r * run, j->src + (size_t)row * run, run);
    }
}

static hth_err gather_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const move_kernel *k = (const move_kernel *)base;
    move_job j = {.k = k, .src = args->in[0], .indices = args->in[1], .dst = args->out[0]};
    hth_cpu_share(k->n_threads, k->count, gather_share, &j);
    return j.failed
               ? hth_fail(HTH_EINVAL, "node '%s' (Gather): an index is out of range", k->node->name)
               : HTH_OK;
}

static bool move_plain(const hth_graph *graph, const hth_node *node, move_kernel *kernel)
{
    const hth_value *x = &graph->values[node->inputs[0]], *y = &graph->values[node->outputs[0]];
    kernel->elem = hth_dtype_bytes(x->dtype);
    kernel->count = (size_t)hth_shape_elements(&y->shape);
    return x->layout == HTH_LAYOUT_PLAIN && y->layout == HTH_LAYOUT_PLAIN && node->n_post == 0 &&
           kernel->elem > 0 && kernel->count > 0 && node->n_outputs == 1 && x->dtype == y->dtype &&
           hth_shape_elements(&x->shape) > 0;
}

// Strides of the source per dimension of the result.
static bool move_transpose(const hth_node *node, const hth_shape *shape, move_kernel *kernel)
{
    int64_t perm[HTH_MAX_RANK], step[HTH_MAX_RANK];
    int count = hth_node_ints(node, "perm", perm, HTH_MAX_RANK);
    ref_steps(shape, step);
    for (int d = 0; d < shape->rank; d++) {
        int64_t p = count < 0 ? shape->rank - 1 - d : perm[d];
        p += p < 0 ? shape->rank : 0;
        if ((count >= 0 && count != shape->rank) || p < 0 || p >= shape->rank ||
            shape->dim[p] != kernel->dim[d]) {
            return false;
        }
        kernel->from[d] = step[p];
    }
    return true;
}

static bool move_expand(const hth_shape *shape, move_kernel *kernel)
{
    int64_t step[HTH_MAX_RANK];
    int lead = kernel->rank - shape->rank;
    ref_steps(shape, step);
    for (int d = 0; d < kernel->rank && lead >= 0; d++) {
        kernel->from[d] = d < lead || shape->dim[d - lead] == 1 ? 0 : step[d - lead];
    }
    return lead >= 0;
}

static const int64_t *move_ints(const hth_graph *graph, const hth_node *node, int input,
                                int64_t *count)
{
    const hth_const *c =
        node->inputs[input] < 0 ? NULL : graph->values[node->inputs[input]].constant;
    if (c == NULL || c->data == NULL || c->dtype != HTH_DT_I64) {
        return NULL;
    }
    *count = hth_shape_elements(&c->shape);
    return c->data;
}

// Slices by constants with positive steps; shape inference has clamped the result's size already.
static bool move_slice(const hth_graph *graph, const hth_node *node, const hth_shape *shape,
                       move_kernel *kernel)
{
    int64_t count = 0, axes_count = 0, steps_count = 0;
    const int64_t *starts = move_ints(graph, node, 1, &count), *axes = NULL, *steps = NULL;
    if (node->n_inputs > 3 && node->inputs[3] >= 0 &&
        !(axes = move_ints(graph, node, 3, &axes_count))) {
        return false;
    }
    if (node->n_inputs > 4 && node->inputs[4] >= 0 &&
        !(steps = move_ints(graph, node, 4, &steps_count))) {
        return false;
    }
    if (starts == NULL || (axes && axes_count != count) || (steps && steps_count != count)) {
        return false;
    }
    ref_steps(shape, kernel->from);
    for (int64_t i = 0; i < count; i++) {
        int64_t a = axes ? axes[i] : i, start = starts[i];
        int64_t step = steps ? steps[i] : 1;
        a += a < 0 ? shape->rank : 0;
        if (a < 0 || a >= shape->rank || step <= 0) {
            return false;
        }
        start += start < 0 ? shape->dim[a] : 0;
        start = start < 0 ? 0 : start;
        if (kernel->dim[a] == 0 || (kernel->dim[a] - 1) > (shape->dim[a] - 1 - start) / step) {
            return false;
        }
        kernel->first += start * kernel->from[a];
        kernel->from[a] *=
            kernel->dim[a] > 1 ? step : 0; // the step of one element may be of any size
    }
    return true;
}

// The strides of what the node does; false: it is not known beforehand, or no strided copy.
static bool move_strides(const hth_graph *graph, const hth_node *node, const hth_shape *shape,
                         move_kernel *kernel)
{
    switch (node->op) {
    case HTH_OP_TRANSPOSE:
        return move_transpose(node, shape, kernel);
    case HTH_OP_EXPAND:
        return move_expand(shape, kernel);
    default:
        return move_slice(graph, node, shape, kernel);
    }
}

hth_err cpu_move_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    move_kernel k = {.n_threads = device->props.n_threads};
    const hth_shape *x = &graph->values[node->inputs[0]].shape,
                    *y = &graph->values[node->outputs[0]].shape;
    k.base = (hth_kernel){.run = move_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "move",
                          .inplace_input = -1};
    k.rank = y->rank;
    memcpy(k.dim, y->dim, sizeof k.dim);
    ref_steps(y, k.to);
    if (algorithm != NULL || !move_plain(graph, node, &k) || !move_strides(graph, node, x, &k)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not a strided copy known beforehand", node->name);
    }
    bool same = k.count == (size_t)hth_shape_elements(x);
    for (int i = 0; i < k.rank; i++) {
        k.cut = k.dim[i] > k.dim[k.cut] && k.dim[k.cut] < 8 * k.n_threads ? i : k.cut;
        same = same && (k.dim[i] == 1 || k.from[i] == k.to[i]);
    }
    if (same) { // nothing moves
        k.base.run = view_run;
        k.base.inplace_input = 0;
    }
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}

hth_err cpu_view_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    move_kernel k = {.n_threads = device->props.n_threads};
    k.base = (hth_kernel){.run = view_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "view",
                          .inplace_input = 0};
    if (algorithm != NULL || !move_plain(graph, node, &k) ||
        k.count != (size_t)hth_shape_elements(&graph->values[node->inputs[0]].shape)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not a view", node->name);
    }
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}

hth_err cpu_gather_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const char *algorithm, hth_kernel **out)
{
    move_kernel k = {.node = node, .n_threads = device->props.n_threads, .outer = 1, .inner = 1};
    const hth_shape *x = &graph->values[node->inputs[0]].shape;
    const hth_value *indices = &graph->values[node->inputs[1]];
    int64_t axis = hth_node_int(node, "axis", 0);
    axis += axis < 0 ? x->rank : 0;
    k.base = (hth_kernel){.run = gather_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "gather",
                          .inplace_input = -1};
    k.index = indices->dtype;
    k.rows = hth_shape_elements(&indices->shape);
    if (algorithm != NULL || !move_plain(graph, node, &k) || axis < 0 || axis >= x->rank ||
        indices->layout != HTH_LAYOUT_PLAIN || (k.index != HTH_DT_I64 && k.index != HTH_DT_I32)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': not a gathering of rows", node->name);
    }
    for (int i = 0; i < x->rank; i++) {
        if (i != axis) {
            *(i < axis ? &k.outer : &k.inner) *= x->dim[i];
        }
    }
    k.along = x->dim[axis];
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
