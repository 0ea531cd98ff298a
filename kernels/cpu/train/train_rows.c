// SPDX-License-Identifier: Apache-2.0
// Gradients that work row by row on plain tensors: layer norm, softmax, gather; and sums over
// everything but the channels, in any layout (the gradient of a bias). Sums that cross the threads'
// shares are kept per share in the workspace and added in their order.
#include "kernels/cpu/train/train.h"

#include "device/cpu/team.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vector.h"

#include <inttypes.h>

#define LANES 16

typedef struct grad_kernel {
    hth_kernel base;
    int n_threads;
    hth_op op;
    size_t rows, size;     // Gather: indices, elements of a slice
    size_t table;          // Gather: slices of dx
    hth_dtype index_dtype; // Gather
    hth_rows channels;     // sums
} grad_kernel;

typedef struct grad_job {
    const grad_kernel *k;
    void *const *in, *const *out;
    float *parts;
    int64_t *slots; // Gather: checked indices
} grad_job;

static float lanes_sum(const float *lane)
{
    float sum = 0;
    for (size_t l = 0; l < LANES; l++) {
        sum += lane[l];
    }
    return sum;
}

// sums[0..16): of g = dy * scale, sums[16..32): of g * (x - mean); adds to the parameters'
// gradients.
HTH_VECTOR(layer_sums,
           (const float *dy, const float *x, const float *scale, size_t n, float mean, float inv,
            float *sums, float *dscale, float *dbias),
           (dy, x, scale, n, mean, inv, sums, dscale, dbias))
{
    hth_v16 s = {0}, q = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        hth_v16 d = *(const hth_v16 *)(dy + i), v = *(const hth_v16 *)(x + i) - mean;
        hth_v16 g = d * *(const hth_v16 *)(scale + i);
        s += g;
        q += g * v;
        *(hth_v16 *)(dscale + i) += d * (v * inv);
        *(hth_v16 *)(dbias + i) += d;
    }
    *(hth_v16 *)sums = s;
    *(hth_v16 *)(sums + LANES) = q;
    for (; i < n; i++) {
        sums[0] += dy[i] * scale[i];
        sums[LANES] += dy[i] * scale[i] * (x[i] - mean);
        dscale[i] += dy[i] * (x[i] - mean) * inv;
        dbias[i] += dy[i];
    }
}

// dx = inv * (dy * scale - a - (x - mean) * b)
HTH_VECTOR(layer_apply,
           (const float *dy, const float *x, const float *scale, float *dx, size_t n, float mean,
            float inv, float a, float b),
           (dy, x, scale, dx, n, mean, inv, a, b))
{
    for (size_t i = 0; i < n; i++) {
        dx[i] = inv * (dy[i] * scale[i] - a - (x[i] - mean) * b);
    }
}

static void layer_part(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    size_t begin, end;
    float *dscale = j->parts + (size_t)i * 2 * k->size, *dbias = dscale + k->size;
    float sums[2 * LANES];
    hth_team_range(k->rows, i, n, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        const float *dy = (const float *)j->in[0] + r * k->size;
        const float *x = (const float *)j->in[1] + r * k->size, *scale = j->in[2];
        float mean = ((const float *)j->in[3])[r], inv = ((const float *)j->in[4])[r];
        layer_sums(dy, x, scale, k->size, mean, inv, sums, dscale, dbias);
        float a = lanes_sum(sums) / (float)k->size;
        float b = lanes_sum(sums + LANES) * inv * inv / (float)k->size;
        if (j->out[0] != NULL) {
            layer_apply(dy, x, scale, (float *)j->out[0] + r * k->size, k->size, mean, inv, a, b);
        }
    }
}

static void parts_join(const grad_job *job, size_t stride, size_t at, size_t n, int count,
                       float *out)
{
    for (size_t i = 0; i < n && out != NULL; i++) {
        double sum = 0;
        for (int p = 0; p < count; p++) {
            sum += (double)job->parts[(size_t)p * stride + at + i];
        }
        out[i] = (float)sum;
    }
}

static hth_err layer_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const grad_kernel *k = (const grad_kernel *)base;
    grad_job j = {.k = k, .in = args->in, .out = args->out, .parts = args->workspace};
    memset(args->workspace, 0, base->workspace_bytes);
    hth_cpu_share(k->n_threads, k->rows * k->size * 4, layer_part, &j);
    parts_join(&j, 2 * k->size, 0, k->size, k->n_threads, args->out[1]);
    parts_join(&j, 2 * k->size, k->size, k->size, k->n_threads, args->out[2]);
    return HTH_OK;
}

HTH_VECTOR(softmax_back, (const float *dy, const float *y, float *dx, size_t n), (dy, y, dx, n))
{
    float lane[LANES] = {0}, sum = 0;
    hth_v16 s = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        s += *(const hth_v16 *)(dy + i) * *(const hth_v16 *)(y + i);
    }
    *(hth_v16 *)lane = s;
    for (size_t l = 0; l < LANES; l++) {
        sum += lane[l];
    }
    for (; i < n; i++) {
        sum += dy[i] * y[i];
    }
    for (i = 0; i < n; i++) {
        dx[i] = y[i] * (dy[i] - sum);
    }
}

HTH_VECTOR(log_softmax_back, (const float *dy, const float *y, float *dx, size_t n), (dy, y, dx, n))
{
    float lane[LANES] = {0}, sum = 0;
    hth_v16 s = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        s += *(const hth_v16 *)(dy + i);
    }
    *(hth_v16 *)lane = s;
    for (size_t l = 0; l < LANES; l++) {
        sum += lane[l];
    }
    for (; i < n; i++) {
        sum += dy[i];
    }
    for (i = 0; i < n; i++) {
        dx[i] = dy[i] - hth_expf(y[i]) * sum;
    }
}

static void softmax_part(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    size_t begin, end;
    hth_team_range(k->rows, i, n, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        const float *dy = (const float *)j->in[0] + r * k->size;
        const float *y = (const float *)j->in[1] + r * k->size;
        float *dx = (float *)j->out[0] + r * k->size;
        if (k->op == HTH_OP_SOFTMAX_GRAD) {
            softmax_back(dy, y, dx, k->size);
        } else {
            log_softmax_back(dy, y, dx, k->size);
        }
    }
}

static hth_err softmax_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const grad_kernel *k = (const grad_kernel *)base;
    grad_job j = {.k = k, .in = args->in, .out = args->out};
    hth_cpu_share(k->n_threads, k->rows * k->size * 4, softmax_part, &j);
    return HTH_OK;
}

// A thread adds to its own columns of all slices, so the order of additions is the indices'.
static void gather_part(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const grad_kernel *k = j->k;
    size_t begin, end;
    float *dx = j->out[0];
    hth_team_range(k->size, i, n, &begin, &end);
    for (size_t t = 0; t < k->table; t++) {
        memset(dx + t * k->size + begin, 0, (end - begin) * sizeof *dx);
    }
    for (size_t r = 0; r < k->rows; r++) {
        const float *from = (const float *)j->in[0] + r * k->size;
        float *to = dx + (size_t)j->slots[r] * k->size;
        for (size_t c = begin; c < end; c++) {
            to[c] += from[c];
        }
    }
}

static hth_err gather_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const grad_kernel *k = (const grad_kernel *)base;
    grad_job j = {.k = k, .in = args->in, .out = args->out, .slots = args->workspace};
    for (size_t r = 0; r < k->rows; r++) {
        int64_t at = k->index_dtype == HTH_DT_I32 ? ((const int32_t *)args->in[1])[r]
                                                  : ((const int64_t *)args->in[1])[r];
        j.slots[r] = at < 0 ? at + (int64_t)k->table : at;
        if (j.slots[r] < 0 || j.slots[r] >= (int64_t)k->table) {
            return hth_fail(HTH_EINVAL, "index %" PRId64 " is outside of %zu slices", at, k->table);
        }
    }
    hth_cpu_share(k->n_threads, (k->rows + k->table) * k->size, gather_part, &j);
    return HTH_OK;
}

HTH_VECTOR(channel_sums, (const float *x, size_t n, float *out), (x, n, out))
{
    hth_v16 a = {0}, b = {0};
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        a += *(const hth_v16 *)(x + i);
        b += *(const hth_v16 *)(x + i + LANES);
    }
    *(hth_v16 *)out = a + b;
    for (; i < n; i++) {
        out[i % LANES] += x[i];
    }
}

static void channel_part(void *arg, int i, int n)
{
    const grad_job *j = arg;
    const hth_rows *r = &j->k->channels;
    size_t begin, end, row = r->s * r->b;
    hth_team_range(r->n * r->blocks, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        float lane[LANES];
        float *part = j->parts + u * r->b;
        channel_sums((const float *)j->in[0] + u * row, row, lane);
        for (size_t l = r->b; l < LANES; l++) {
            lane[l % r->b] += lane[l];
        }
        memcpy(part, lane, r->b * sizeof *part);
    }
}

static hth_err channel_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const grad_kernel *k = (const grad_kernel *)base;
    const hth_rows *r = &k->channels;
    grad_job j = {.k = k, .in = args->in, .out = args->out, .parts = args->workspace};
    hth_cpu_share(k->n_threads, r->n * r->blocks * r->s * r->b, channel_part, &j);
    parts_join(&j, r->blocks * r->b, 0, r->c, (int)r->n, args->out[0]);
    return HTH_OK;
}

static hth_err grad_make(hth_device *device, const hth_node *node, grad_kernel *kernel,
                         const char *name,
                         hth_err (*run)(const hth_kernel *kernel, const hth_kernel_args *args),
                         hth_kernel **out)
{
    kernel->n_threads = device->props.n_threads;
    kernel->op = node->op;
    kernel->base.run = run;
    kernel->base.close = hth_cpu_kernel_free;
    kernel->base.implementation = name;
    return hth_cpu_kernel_made(node, &kernel->base, sizeof *kernel, out);
}

static hth_err grad_refuse(const hth_node *node)
{
    return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or axis", node->name);
}

// Rows of what lies from `axis` on; with `flatten` false that must be the last axis.
static bool grad_rows(const hth_graph *graph, const hth_node *node, bool flatten,
                      grad_kernel *kernel)
{
    const hth_shape *s = &graph->values[node->inputs[0]].shape;
    int64_t axis = hth_node_int(node, "axis", -1);
    axis += axis < 0 ? s->rank : 0;
    if (axis < 0 || axis >= s->rank || (!flatten && axis + 1 != s->rank)) {
        return false;
    }
    kernel->rows = kernel->size = 1;
    for (int i = 0; i < s->rank; i++) {
        *(i < axis ? &kernel->rows : &kernel->size) *= (size_t)s->dim[i];
    }
    return true;
}

hth_err cpu_layer_norm_grad_prepare(hth_device *device, const hth_graph *graph,
                                    const hth_node *node, const char *algorithm, hth_kernel **out)
{
    grad_kernel k = {.base.inplace_input = node->outputs[0] < 0 ? -1 : 0};
    if (algorithm != NULL || node->n_post > 0 || node->n_outputs != 3 ||
        !cpu_plain_f32(graph, node, node->n_inputs) || !grad_rows(graph, node, true, &k) ||
        (size_t)hth_shape_elements(&graph->values[node->inputs[2]].shape) != k.size ||
        (size_t)hth_shape_elements(&graph->values[node->inputs[3]].shape) != k.rows) {
        return grad_refuse(node);
    }
    k.base.workspace_bytes = (size_t)device->props.n_threads * 2 * k.size * sizeof(float);
    return grad_make(device, node, &k, "rows", layer_run, out);
}

hth_err cpu_softmax_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                                 const char *algorithm, hth_kernel **out)
{
    grad_kernel k = {.base.inplace_input = 0};
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, 2) ||
        !grad_rows(graph, node, hth_node_int(node, "flatten", 0) != 0, &k)) {
        return grad_refuse(node);
    }
    return grad_make(device, node, &k, "rows", softmax_run, out);
}

hth_err cpu_gather_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                                const char *algorithm, hth_kernel **out)
{
    const hth_value *index = &graph->values[node->inputs[1]],
                    *dx = &graph->values[node->outputs[0]];
    grad_kernel k = {.base.inplace_input = -1, .size = 1, .index_dtype = index->dtype};
    int64_t axis = hth_node_int(node, "axis", 0), rows = hth_shape_elements(&index->shape);
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, 1) || rows <= 0 ||
        (axis != 0 && axis != -dx->shape.rank) || dx->shape.rank < 1 ||
        (index->dtype != HTH_DT_I32 && index->dtype != HTH_DT_I64)) {
        return grad_refuse(node);
    }
    k.rows = (size_t)rows;
    k.table = (size_t)dx->shape.dim[0];
    for (int i = 1; i < dx->shape.rank; i++) {
        k.size *= (size_t)dx->shape.dim[i];
    }
    k.base.workspace_bytes = k.rows * sizeof(int64_t);
    return (size_t)hth_shape_elements(&graph->values[node->inputs[0]].shape) != k.rows * k.size
               ? grad_refuse(node)
               : grad_make(device, node, &k, "columns", gather_run, out);
}

// All axes but that of the channels.
static bool channel_axes(const hth_graph *graph, const hth_node *node)
{
    int rank = graph->values[node->inputs[0]].shape.rank;
    return rank >= 3 && rank <= 5 && hth_node_int(node, "keepdims", 1) == 0 &&
           cpu_reduce_axes(graph, node, rank) == (1U << rank) - 1 - 2;
}

hth_err cpu_channel_sum_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                                const char *algorithm, hth_kernel **out)
{
    const hth_value *x = &graph->values[node->inputs[0]];
    grad_kernel k = {.base.inplace_input = -1};
    if (algorithm != NULL || node->n_post > 0 || x->dtype != HTH_DT_F32 ||
        !channel_axes(graph, node) || hth_shape_elements(&x->shape) <= 0 ||
        !hth_rows_of(&x->shape, x->layout, &k.channels)) {
        return grad_refuse(node);
    }
    k.base.workspace_bytes = k.channels.n * k.channels.blocks * k.channels.b * sizeof(float);
    return grad_make(device, node, &k, "channels", channel_run, out);
}

hth_layout cpu_channel_sum_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                                  bool *any)
{
    *any = channel_axes(graph, node) && graph->values[node->inputs[0]].dtype == HTH_DT_F32;
    return HTH_LAYOUT_PLAIN;
}
