// SPDX-License-Identifier: Apache-2.0
// Gradient of group and instance normalisation. A group of an image is one run of memory: its
// moments are computed again (nothing but x needs to be kept), then dy and dy (x - mean) are summed
// per channel, then dx is written while the run is in a cache. Channel sums of all images are kept
// and added in the images' order, so the bits do not depend on the number of threads.
#include "kernels/cpu/train/train.h"

#include "base/alloc.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector.h"

#define LANES 16

typedef struct group_kernel {
    hth_kernel base;
    int n_threads;
    size_t images, groups, per, size; // per: channels of a group
    bool by_group;                    // parameters are the group's
    float epsilon;
} group_kernel;

typedef struct group_job {
    const group_kernel *k;
    const float *dy, *x, *scale;
    float *dx;
    double *sums; // [images][channels]{dscale, dbias}
} group_job;

HTH_VECTOR(group_dots, (const float *dy, const float *x, size_t n, float mean, float *out),
           (dy, x, n, mean, out))
{
    hth_v16 s = {0}, q = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        hth_v16 d = *(const hth_v16 *)(dy + i);
        s += d;
        q += d * (*(const hth_v16 *)(x + i) - mean);
    }
    *(hth_v16 *)out = s;
    *(hth_v16 *)(out + LANES) = q;
    for (; i < n; i++) {
        out[0] += dy[i];
        out[LANES] += dy[i] * (x[i] - mean);
    }
}

// dx = a dy + b (x - mean) + c
HTH_VECTOR(group_apply,
           (const float *dy, const float *x, float *dx, size_t n, float mean, float a, float b,
            float c),
           (dy, x, dx, n, mean, a, b, c))
{
    for (size_t i = 0; i < n; i++) {
        dx[i] = a * dy[i] + (b * (x[i] - mean) + c);
    }
}

static void group_row(const group_job *job, size_t row)
{
    const group_kernel *k = job->k;
    size_t count = k->per * k->size, group = row % k->groups;
    const float *x = job->x + row * count, *dy = job->dy + row * count;
    double n = (double)count, first = 0, second = 0;
    double *sums = job->sums + row * k->per * 2;
    float mean = hth_row_sum(x, count) / (float)count;
    double inv = 1 / sqrt((double)hth_row_squares(x, count, mean) / n + (double)k->epsilon);
    for (size_t c = 0; c < k->per; c++) {
        float part[2 * LANES], scale = job->scale[k->by_group ? group : group * k->per + c];
        double s = 0, q = 0;
        group_dots(dy + c * k->size, x + c * k->size, k->size, mean, part);
        for (size_t l = 0; l < LANES; l++) {
            s += (double)part[l];
            q += (double)part[LANES + l];
        }
        sums[2 * c] = q * inv;
        sums[2 * c + 1] = s;
        first += s * (double)scale;
        second += q * (double)scale;
    }
    for (size_t c = 0; job->dx != NULL && c < k->per; c++) {
        double a = inv * (double)job->scale[k->by_group ? group : group * k->per + c];
        group_apply(dy + c * k->size, x + c * k->size, job->dx + row * count + c * k->size, k->size,
                    mean, (float)a, (float)(-inv * inv * inv * second / n),
                    (float)(-inv * first / n));
    }
}

static void group_part(void *arg, int i, int n)
{
    const group_job *j = arg;
    size_t begin, end;
    hth_team_range(j->k->images * j->k->groups, i, n, &begin, &end);
    for (size_t row = begin; row < end; row++) {
        group_row(j, row);
    }
}

// Parameter p's gradient: `what` 0: of the scale, 1: of the bias.
static double group_total(const group_job *job, size_t p, size_t what)
{
    const group_kernel *k = job->k;
    size_t channels = k->groups * k->per, span = k->by_group ? k->per : 1;
    double sum = 0;
    for (size_t b = 0; b < k->images; b++) {
        for (size_t c = 0; c < span; c++) {
            sum += job->sums[(b * channels + p * span + c) * 2 + what];
        }
    }
    return sum;
}

static hth_err group_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const group_kernel *k = (const group_kernel *)base;
    group_job j = {k, args->in[0], args->in[1], args->in[2], args->out[0], args->workspace};
    size_t parameters = k->by_group ? k->groups : k->groups * k->per;
    hth_cpu_share(k->n_threads, k->images * k->groups * k->per * k->size * 4, group_part, &j);
    for (size_t what = 0; what < 2; what++) {
        float *out = args->out[1 + what];
        for (size_t p = 0; out != NULL && p < parameters; p++) {
            out[p] = (float)group_total(&j, p, what);
        }
    }
    return HTH_OK;
}

hth_err cpu_group_norm_grad_prepare(hth_device *device, const hth_graph *graph,
                                    const hth_node *node, const char *algorithm, hth_kernel **out)
{
    const hth_shape *x = &graph->values[node->inputs[1]].shape;
    int64_t groups = hth_node_int(node, "num_groups", 1), size = 1,
            scales = hth_shape_elements(&graph->values[node->inputs[2]].shape);
    if (algorithm != NULL || node->n_post > 0 || node->n_outputs != 3 || x->rank < 2 ||
        !cpu_plain_f32(graph, node, 3) || groups < 1 || x->dim[1] % groups != 0 ||
        (scales != x->dim[1] && scales != groups)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or groups", node->name);
    }
    for (int i = 2; i < x->rank; i++) {
        size *= x->dim[i];
    }
    group_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    *k = (group_kernel){
        .base = {.run = group_run,
                 .close = hth_cpu_kernel_free,
                 .implementation = "groups",
                 .workspace_bytes = (size_t)(x->dim[0] * x->dim[1]) * 2 * sizeof(double),
                 .inplace_input = node->outputs[0] < 0 ? -1 : 0},
        .n_threads = device->props.n_threads,
        .images = (size_t)x->dim[0],
        .groups = (size_t)groups,
        .per = (size_t)(x->dim[1] / groups),
        .size = (size_t)size,
        .by_group = scales != x->dim[1],
        .epsilon = hth_node_float(node, "epsilon", 1e-5F)};
    *out = &k->base;
    return HTH_OK;
}
