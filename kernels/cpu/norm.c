// SPDX-License-Identifier: Apache-2.0
// LayerNormalization, RMSNormalization, GroupNormalization, InstanceNormalization: rows of numbers
// with a mean and a variance each, computed in two passes over a row that is in the cache after the
// first. Scale and bias differ per element (Layer, RMS) or per channel (Group, Instance).
#include "kernels/cpu/plain.h"

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector.h"

typedef struct norm_kernel {
    hth_kernel base;
    int n_threads;
    size_t rows, size;     // a row has `size` elements
    size_t channels, runs; // per row: runs of size / runs elements share a parameter; 0: none do
    size_t per_group;      // GroupNormalization before opset 21: parameters are the group's
    bool center, has_bias, has_mean, has_inv;
    float epsilon;
} norm_kernel;

typedef struct norm_job {
    const norm_kernel *k;
    const float *x, *scale, *bias;
    float *y, *mean, *inv;
} norm_job;

HTH_VECTOR(norm_scale,
           (const float *x, float *y, size_t n, float mean, float inv, const float *scale,
            const float *bias),
           (x, y, n, mean, inv, scale, bias))
{
    if (bias == NULL) {
        for (size_t i = 0; i < n; i++) {
            y[i] = (x[i] - mean) * inv * scale[i];
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) * inv * scale[i] + bias[i];
    }
}

HTH_VECTOR(norm_line, (const float *x, float *y, size_t n, float a, float b), (x, y, n, a, b))
{
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * a + b;
    }
}

static void norm_row(const norm_job *job, size_t r)
{
    const norm_kernel *k = job->k;
    const float *x = job->x + r * k->size;
    float *y = job->y + r * k->size;
    float n = (float)k->size;
    float mean = k->center ? hth_row_sum(x, k->size) / n : 0;
    float inv = 1.0F / sqrtf(hth_row_squares(x, k->size, mean) / n + k->epsilon);
    if (job->mean != NULL) {
        job->mean[r] = mean;
    }
    if (job->inv != NULL) {
        job->inv[r] = inv;
    }
    if (k->runs == 0) {
        norm_scale(x, y, k->size, mean, inv, job->scale, job->bias);
        return;
    }
    size_t run = k->size / k->runs, first = r * k->runs % k->channels;
    for (size_t c = 0; c < k->runs; c++) {
        size_t p = (first + c) / k->per_group;
        float a = inv * job->scale[p];
        norm_line(x + c * run, y + c * run, run, a, job->bias[p] - mean * a);
    }
}

static void norm_share(void *arg, int i, int n)
{
    const norm_job *j = arg;
    size_t begin, end;
    hth_team_range(j->k->rows, i, n, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        norm_row(j, r);
    }
}

static hth_err norm_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const norm_kernel *k = (const norm_kernel *)base;
    norm_job j = {k,    args->in[0], args->in[1], k->has_bias ? args->in[2] : NULL, args->out[0],
                  NULL, NULL};
    if (k->runs == 0 && k->center) {
        j.mean = k->has_mean ? args->out[1] : NULL;
        j.inv = k->has_inv ? args->out[2] : NULL;
    }
    hth_cpu_share(k->n_threads, k->rows * k->size * 2, norm_share, &j);
    return HTH_OK;
}

static size_t norm_span(const hth_shape *shape, int from, int to)
{
    size_t n = 1;
    for (int d = from; d < to; d++) {
        n *= (size_t)shape->dim[d];
    }
    return n;
}

static bool norm_layer(const hth_graph *graph, const hth_node *node, norm_kernel *kernel)
{
    const hth_shape *s = &graph->values[node->inputs[0]].shape;
    int64_t axis = hth_node_int(node, "axis", -1);
    axis += axis < 0 ? s->rank : 0;
    if (axis < 0 || axis >= s->rank) {
        return false;
    }
    kernel->rows = norm_span(s, 0, (int)axis);
    kernel->size = norm_span(s, (int)axis, s->rank);
    kernel->center = node->op == HTH_OP_LAYER_NORMALIZATION;
    kernel->has_bias = node->n_inputs > 2 && node->inputs[2] >= 0;
    kernel->has_mean = node->n_outputs > 1 && node->outputs[1] >= 0;
    kernel->has_inv = node->n_outputs > 2 && node->outputs[2] >= 0;
    for (int i = 1; i < 2 + kernel->has_bias; i++) {
        if ((size_t)hth_shape_elements(&graph->values[node->inputs[i]].shape) != kernel->size) {
            return false;
        }
    }
    return kernel->center || node->n_outputs == 1;
}

static bool norm_group(const hth_graph *graph, const hth_node *node, norm_kernel *kernel)
{
    const hth_shape *s = &graph->values[node->inputs[0]].shape;
    if (s->rank < 2) {
        return false;
    }
    size_t c = (size_t)s->dim[1], groups = c;
    if (node->op == HTH_OP_GROUP_NORMALIZATION) {
        groups = (size_t)hth_node_int(node, "num_groups", 0);
    }
    size_t params = (size_t)hth_shape_elements(&graph->values[node->inputs[1]].shape);
    if (groups == 0 || c % groups != 0 || (params != c && params != groups) ||
        (size_t)hth_shape_elements(&graph->values[node->inputs[2]].shape) != params) {
        return false;
    }
    kernel->rows = (size_t)s->dim[0] * groups;
    kernel->runs = c / groups;
    kernel->channels = c;
    kernel->per_group = c / params;
    kernel->size = kernel->runs * norm_span(s, 2, s->rank);
    kernel->center = kernel->has_bias = true;
    return true;
}

hth_err cpu_norm_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    norm_kernel k = {.n_threads = device->props.n_threads,
                     .epsilon = hth_node_float(node, "epsilon", 1e-5F)};
    bool layer = node->op == HTH_OP_LAYER_NORMALIZATION || node->op == HTH_OP_RMSNORMALIZATION;
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, node->n_inputs) ||
        !(layer ? norm_layer(graph, node, &k) : norm_group(graph, node, &k))) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or parameters", node->name);
    }
    k.base = (hth_kernel){.run = norm_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "rows",
                          .inplace_input = 0};
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
