// SPDX-License-Identifier: Apache-2.0
// Concat and Split in any layout: both move pieces between one whole tensor and several parts. Seen
// as [outer, length along the axis, inner], a piece is contiguous, except along blocked channels
// that do not begin at a block's edge: those go lane by lane.
#include "kernels/cpu/blocked.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

#include <string.h>

typedef struct concat_part {
    size_t from,
        length; // along the axis: whole units (elements, or blocks of channels when aligned)
} concat_part;

typedef struct concat_kernel {
    hth_kernel base;
    int n_threads, n_parts;
    bool split, lanes; // lanes: blocked channels, some part not aligned
    size_t outer, whole, inner, elem, block;
    concat_part *parts;
} concat_kernel;

typedef struct concat_job {
    const concat_kernel *k;
    char *whole;
    void *const *parts;
} concat_job;

static void concat_move(bool split, char *whole, char *part, size_t bytes)
{
    if (bytes > 0 && split) { // an empty part may have no address
        memcpy(part, whole, bytes);
    } else if (bytes > 0) {
        memcpy(whole, part, bytes);
    }
}

// Channels one by one, at positions [begin, end); the last channel of the destination zeroes the
// padding after it.
static void concat_lanes(const concat_kernel *kernel, float *whole, float *part, size_t outer,
                         const concat_part *p, size_t begin, size_t end)
{
    size_t b = kernel->block, s = kernel->inner;
    size_t whole_blocks = (kernel->whole + b - 1) / b, part_blocks = (p->length + b - 1) / b;
    whole += outer * whole_blocks * b * s;
    part += outer * part_blocks * b * s;
    for (size_t c = 0; c < p->length; c++) {
        size_t w = p->from + c;
        float *to = whole + w / b * b * s + w % b, *from = part + c / b * b * s + c % b;
        if (kernel->split) {
            float *swap = to;
            to = from;
            from = swap;
        }
        bool last = kernel->split ? c + 1 == p->length : w + 1 == kernel->whole;
        size_t lane = (kernel->split ? c : w) % b;
        size_t pad = last ? b - 1 - lane : 0;
        for (size_t i = begin; i < end; i++) {
            to[i * b] = from[i * b];
            for (size_t l = 1; l <= pad; l++) {
                to[i * b + l] = 0;
            }
        }
    }
}

static void concat_run_part(void *arg, int i, int n)
{
    const concat_job *j = arg;
    const concat_kernel *k = j->k;
    size_t begin, end;
    if (k->lanes) { // parts share blocks of the whole: a thread takes a range of positions
        hth_team_range(k->inner, i, n, &begin, &end);
        for (size_t o = 0; o < k->outer; o++) {
            for (int p = 0; p < k->n_parts; p++) {
                concat_lanes(k, (float *)(void *)j->whole, j->parts[p], o, &k->parts[p], begin,
                             end);
            }
        }
        return;
    }
    size_t unit = k->inner * k->elem;
    for (size_t o = 0; o < k->outer; o++) {
        for (int p = 0; p < k->n_parts; p++) {
            size_t bytes = k->parts[p].length * unit;
            hth_team_range(bytes, i, n, &begin, &end);
            concat_move(k->split, j->whole + (o * k->whole + k->parts[p].from) * unit + begin,
                        (char *)j->parts[p] + o * bytes + begin, end - begin);
        }
    }
}

static hth_err concat_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const concat_kernel *k = (const concat_kernel *)base;
    concat_job j = {k, args->out[0], args->in};
    if (k->split) {
        j = (concat_job){k, args->in[0], args->out};
    }
    hth_team_set(k->n_threads);
    hth_team_run(concat_run_part, &j);
    return HTH_OK;
}

static void concat_close(hth_kernel *base)
{
    concat_kernel *k = (concat_kernel *)base;
    hth_free(k->parts);
    hth_free(k);
}

// Fills sizes from the whole tensor and its parts; HTH_ENOTSUP when they lie differently.
static hth_err concat_geometry(concat_kernel *kernel, const hth_graph *graph, const hth_node *node,
                               int whole, const int *parts, int axis)
{
    const hth_value *v = &graph->values[whole];
    size_t b = (size_t)hth_layout_block(v->layout), from = 0;
    kernel->outer = kernel->inner = 1;
    for (int i = 0; i < v->shape.rank; i++) {
        size_t dim = (size_t)v->shape.dim[i];
        dim = i == 1 && b != 0 && axis != 1 ? (dim + b - 1) / b : dim;
        if (i != axis) {
            *(i < axis ? &kernel->outer : &kernel->inner) *= dim;
        }
    }
    kernel->whole = (size_t)v->shape.dim[axis];
    kernel->elem = hth_dtype_bytes(v->dtype);
    kernel->block = b;
    bool aligned = true;
    for (int p = 0; p < kernel->n_parts; p++) {
        const hth_value *t = &graph->values[parts[p]];
        if (parts[p] < 0 || t->layout != v->layout || t->dtype != v->dtype || kernel->elem == 0 ||
            v->layout == HTH_LAYOUT_NHWC) {
            return hth_fail(HTH_ENOTSUP, "node '%s': layouts differ", node->name);
        }
        kernel->parts[p] = (concat_part){from, (size_t)t->shape.dim[axis]};
        from += kernel->parts[p].length;
        aligned = aligned && (b == 0 || p + 1 == kernel->n_parts || from % b == 0);
    }
    if (b != 0 && axis == 1 &&
        aligned) { // in units of blocks; only the last part may end inside one
        kernel->whole = (kernel->whole + b - 1) / b;
        for (int p = 0; p < kernel->n_parts; p++) {
            kernel->parts[p].from /= b;
            kernel->parts[p].length = (kernel->parts[p].length + b - 1) / b;
        }
    }
    kernel->lanes = b != 0 && axis == 1 && !aligned;
    kernel->inner *= b != 0 && !kernel->lanes ? b : 1;
    return HTH_OK;
}

static hth_err concat_open(hth_device *device, const hth_graph *graph, const hth_node *node,
                           bool split, hth_kernel **out)
{
    int whole = split ? node->inputs[0] : node->outputs[0], rank = graph->values[whole].shape.rank;
    int axis = hth_node_axis(node, "axis", 0, rank);
    if (node->n_post > 0 || axis < 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': post ops, or no axis", node->name);
    }
    concat_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->base = (hth_kernel){
        .run = concat_run, .close = concat_close, .implementation = "copy", .inplace_input = -1};
    k->n_threads = device->props.n_threads;
    k->split = split;
    k->n_parts = split ? node->n_outputs : node->n_inputs;
    k->parts = hth_calloc((size_t)k->n_parts, sizeof *k->parts);
    hth_err err = HTH_ENOMEM;
    if (k->parts == NULL) {
        (void)hth_fail(err, "out of memory for node '%s'", node->name);
    } else {
        err = concat_geometry(k, graph, node, whole, split ? node->outputs : node->inputs, axis);
    }
    if (err != HTH_OK) {
        concat_close(&k->base);
        return err;
    }
    *out = &k->base;
    return HTH_OK;
}

hth_err cpu_concat_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const char *algorithm, hth_kernel **out)
{
    return algorithm != NULL ? HTH_ENOTSUP : concat_open(device, graph, node, false, out);
}

hth_err cpu_split_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                          const char *algorithm, hth_kernel **out)
{
    return algorithm != NULL ? HTH_ENOTSUP : concat_open(device, graph, node, true, out);
}

hth_layout cpu_concat_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                             bool *any)
{
    hth_layout l = cpu_any_layout(device, graph, node, any);
    for (int i = 0; i < node->n_inputs; i++) {
        *any = *any && graph->values[node->inputs[i]].constant == NULL; // constants stay plain
    }
    return l;
}

// Blocked only where every part begins at a block's edge: lane by lane is slower than plain.
hth_layout cpu_split_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                            bool *any)
{
    hth_layout blocked, l = cpu_any_layout(device, graph, node, any);
    int64_t block = hth_cpu_block(device, &blocked), axis = hth_node_int(node, "axis", 0);
    axis = axis < 0 ? axis + graph->values[node->inputs[0]].shape.rank : axis;
    for (int i = 0; i < node->n_outputs; i++) {
        bool last = i + 1 == node->n_outputs;
        *any = *any && node->outputs[i] >= 0 &&
               (axis != 1 || last || graph->values[node->outputs[i]].shape.dim[1] % block == 0);
    }
    return l;
}
