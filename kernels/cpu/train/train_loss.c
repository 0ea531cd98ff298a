// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy and its gradient, on plain tensors. Logits of one position stand `inner`
// apart: with inner 1 (a class per sample, or classes in the last axis) a row is worked on,
// otherwise (a class per pixel) up to PIECE positions side by side. The loss is the sum of the
// units' sums, in their order.
//
// A position with label y is -sum_k t_k log p_k with t_k = even w_k, and (1 - smoothing) w_y more
// for k = y, where even = smoothing / classes; its gradient p_k sum(t) - t_k. All is divided by the
// sum of the labels' weights; where that is 0, so are loss and gradients (graph/autodiff/train.h).
#include "kernels/cpu/train/train.h"

#include "device/cpu/team.h"
#include "graph/autodiff/train_hyper.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vector.h"

#include <inttypes.h>
#include <math.h>

#define PIECE 256
#define LANES 16

typedef struct xent_kernel {
    hth_kernel base;
    int n_threads;
    bool grad, weighted, part; // part: of a batch, the divisor is given
    float smoothing;
    hth_dtype labels;
    int64_t ignore;
    size_t n, classes, inner, chunks; // images; pieces of an image's positions
} xent_kernel;

typedef struct xent_job {
    const xent_kernel *k;
    const float *x;
    const void *labels;
    const float *weights; // NULL: all are 1
    float *dx;
    float share;     // 1 / the labels' weights
    float own, even; // what the label's class gets of its weight, and each class
    double total;    // of the weights
    double *sums;
} xent_job;

static int64_t xent_label(const xent_kernel *kernel, const void *labels, size_t i)
{
    return kernel->labels == HTH_DT_I32 ? ((const int32_t *)labels)[i]
                                        : ((const int64_t *)labels)[i];
}

// Per position: the largest logit, the sum of exp(logit - largest).
HTH_VECTOR(xent_columns,
           (const float *x, size_t classes, size_t inner, size_t n, float *max, float *sum),
           (x, classes, inner, n, max, sum))
{
    for (size_t i = 0; i < n; i++) {
        max[i] = x[i];
        sum[i] = 0;
    }
    for (size_t c = 1; c < classes; c++) {
        for (size_t i = 0; i < n; i++) {
            float v = x[c * inner + i];
            max[i] = v < max[i] ? max[i] : v;
        }
    }
    for (size_t c = 0; c < classes; c++) {
        for (size_t i = 0; i < n; i++) {
            sum[i] += hth_expf(x[c * inner + i] - max[i]);
        }
    }
}

HTH_VECTOR(xent_columns_grad,
           (const float *x, float *dx, size_t classes, size_t inner, size_t n, const float *max,
            const float *factor),
           (x, dx, classes, inner, n, max, factor))
{
    for (size_t c = 0; c < classes; c++) {
        for (size_t i = 0; i < n; i++) {
            dx[c * inner + i] = hth_expf(x[c * inner + i] - max[i]) * factor[i];
        }
    }
}

HTH_VECTOR(xent_row, (const float *x, size_t n, float *max, float *sum), (x, n, max, sum))
{
    float high[LANES], total[LANES] = {0}, m = x[0], s = 0;
    size_t whole = n / LANES * LANES;
    for (size_t l = 0; l < LANES; l++) {
        high[l] = m;
    }
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t l = 0; l < LANES; l++) {
            high[l] = x[i + l] < high[l] ? high[l] : x[i + l];
        }
    }
    for (size_t l = 0; l < LANES; l++) {
        m = high[l] < m ? m : high[l];
    }
    for (size_t i = whole; i < n; i++) {
        m = x[i] < m ? m : x[i];
    }
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t l = 0; l < LANES; l++) {
            total[l] += hth_expf(x[i + l] - m);
        }
    }
    for (size_t l = 0; l < LANES; l++) {
        s += total[l];
    }
    for (size_t i = whole; i < n; i++) {
        s += hth_expf(x[i] - m);
    }
    *max = m;
    *sum = s;
}

HTH_VECTOR(xent_row_grad, (const float *x, float *dx, size_t n, float max, float factor),
           (x, dx, n, max, factor))
{
    for (size_t i = 0; i < n; i++) {
        dx[i] = hth_expf(x[i] - max) * factor;
    }
}

// Smoothing, of one position: the sum of w_k (x_k - max).
HTH_VECTOR(xent_row_even, (const float *x, const float *w, size_t n, float max, float *out),
           (x, w, n, max, out))
{
    float total[LANES] = {0}, s = 0;
    size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t l = 0; l < LANES; l++) {
            total[l] += (w != NULL ? w[i + l] : 1) * (x[i + l] - max);
        }
    }
    for (size_t l = 0; l < LANES; l++) {
        s += total[l];
    }
    for (size_t i = whole; i < n; i++) {
        s += (w != NULL ? w[i] : 1) * (x[i] - max);
    }
    *out = s;
}

HTH_VECTOR(xent_columns_even,
           (const float *x, const float *w, size_t classes, size_t inner, size_t n,
            const float *max, float *out),
           (x, w, classes, inner, n, max, out))
{
    for (size_t i = 0; i < n; i++) {
        out[i] = 0;
    }
    for (size_t c = 0; c < classes; c++) {
        float weight = w != NULL ? w[c] : 1;
        for (size_t i = 0; i < n; i++) {
            out[i] += weight * (x[c * inner + i] - max[i]);
        }
    }
}

// .. and its part of the gradient.
HTH_VECTOR(xent_row_even_grad, (float *dx, const float *w, size_t n, float even), (dx, w, n, even))
{
    for (size_t i = 0; i < n; i++) {
        dx[i] -= even * (w != NULL ? w[i] : 1);
    }
}

HTH_VECTOR(xent_columns_even_grad,
           (float *dx, const float *w, size_t classes, size_t inner, size_t n, const float *even),
           (dx, w, classes, inner, n, even))
{
    for (size_t c = 0; c < classes; c++) {
        float weight = w != NULL ? w[c] : 1;
        for (size_t i = 0; i < n; i++) {
            dx[c * inner + i] -= even[i] * weight;
        }
    }
}

// The positions that a unit works on.
typedef struct xent_piece {
    size_t n, at, label; // positions; of its first logit; of its first label
    float max[PIECE], sum[PIECE];
} xent_piece;

static void xent_loss(const xent_job *job, size_t unit, const xent_piece *piece)
{
    const xent_kernel *k = job->k;
    const float *x = job->x + piece->at;
    float even[PIECE];
    double loss = 0;
    if (k->smoothing > 0 && k->inner == 1) {
        xent_row_even(x, job->weights, k->classes, piece->max[0], even);
    } else if (k->smoothing > 0) {
        xent_columns_even(x, job->weights, k->classes, k->inner, piece->n, piece->max, even);
    }
    for (size_t i = 0; i < piece->n; i++) {
        int64_t label = xent_label(k, job->labels, piece->label + i);
        if (label == k->ignore) {
            continue;
        }
        double log_sum = (double)logf(piece->sum[i]);
        double w = job->weights != NULL ? (double)job->weights[label] : 1;
        loss += (double)job->own * w *
                (log_sum + (double)(piece->max[i] - x[(size_t)label * k->inner + i]));
        if (k->smoothing > 0) {
            loss += (double)job->even * (job->total * log_sum - (double)even[i]);
        }
    }
    job->sums[unit] = loss;
}

static void xent_grad(const xent_job *job, const xent_piece *piece)
{
    const xent_kernel *k = job->k;
    const float *x = job->x + piece->at;
    float *dx = job->dx + piece->at;
    float factor[PIECE], even[PIECE], own[PIECE];
    for (size_t i = 0; i < piece->n; i++) {
        int64_t label = xent_label(k, job->labels, piece->label + i);
        bool counts = label != k->ignore;
        float weight = counts && job->weights != NULL ? job->weights[label] : 1;
        own[i] = counts ? job->own * weight * job->share : 0;
        even[i] = counts ? job->even * job->share : 0;
        factor[i] = (own[i] + even[i] * (float)job->total) / piece->sum[i];
    }
    if (k->inner == 1) {
        xent_row_grad(x, dx, k->classes, piece->max[0], factor[0]);
    } else {
        xent_columns_grad(x, dx, k->classes, k->inner, piece->n, piece->max, factor);
    }
    if (k->smoothing > 0 && k->inner == 1) {
        xent_row_even_grad(dx, job->weights, k->classes, even[0]);
    } else if (k->smoothing > 0) {
        xent_columns_even_grad(dx, job->weights, k->classes, k->inner, piece->n, even);
    }
    for (size_t i = 0; i < piece->n; i++) {
        int64_t label = xent_label(k, job->labels, piece->label + i);
        if (label != k->ignore) {
            dx[(size_t)label * k->inner + i] -= own[i];
        }
    }
}

static void xent_unit(const xent_job *job, size_t unit)
{
    const xent_kernel *k = job->k;
    size_t image = unit / k->chunks, first = unit % k->chunks * PIECE;
    xent_piece p = {.n = k->inner - first < PIECE ? k->inner - first : PIECE,
                    .at = image * k->classes * k->inner + first,
                    .label = image * k->inner + first};
    if (k->inner == 1) {
        xent_row(job->x + p.at, k->classes, p.max, p.sum);
    } else {
        xent_columns(job->x + p.at, k->classes, k->inner, p.n, p.max, p.sum);
    }
    if (k->grad) {
        xent_grad(job, &p);
    } else {
        xent_loss(job, unit, &p);
    }
}

static void xent_part(void *arg, int i, int n)
{
    const xent_job *j = arg;
    size_t begin, end;
    hth_team_range(j->k->n * j->k->chunks, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        xent_unit(j, u);
    }
}

// The weights of the labels that count; a label that is no class is an error of the data.
static hth_err xent_norm(const xent_kernel *kernel, const xent_job *job, double *sum)
{
    *sum = 0;
    for (size_t i = 0; i < kernel->n * kernel->inner; i++) {
        int64_t label = xent_label(kernel, job->labels, i);
        if (label == kernel->ignore) {
            continue;
        }
        if (label < 0 || label >= (int64_t)kernel->classes) {
            return hth_fail(HTH_EINVAL, "label %" PRId64 " is outside of %zu classes", label,
                            kernel->classes);
        }
        *sum += job->weights != NULL ? (double)job->weights[label] : 1;
    }
    return HTH_OK;
}

static hth_err xent_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const xent_kernel *k = (const xent_kernel *)base;
    xent_job j = {.k = k,
                  .x = args->in[0],
                  .labels = args->in[1],
                  .weights = k->weighted ? args->in[2] : NULL,
                  .dx = args->out[0],
                  .own = 1 - k->smoothing,
                  .even = k->smoothing / (float)k->classes,
                  .total = (double)k->classes,
                  .sums = args->workspace};
    double norm;
    HTH_TRY(xent_norm(k, &j, &norm));
    if (k->part) {
        norm = (double)((const float *)args->in[3])[HTH_HYPER_LOSS_NORM];
    }
    norm = norm == 0 ? (double)INFINITY : norm;
    if (k->weighted) {
        j.total = 0;
        for (size_t c = 0; c < k->classes; c++) {
            j.total += (double)j.weights[c];
        }
    }
    j.share = 1.0F / (float)norm;
    hth_cpu_share(k->n_threads, k->n * k->classes * k->inner * 8, xent_part, &j);
    if (!k->grad) {
        double loss = 0;
        for (size_t u = 0; u < k->n * k->chunks; u++) {
            loss += j.sums[u];
        }
        *(float *)args->out[0] = (float)(loss / norm);
    }
    return HTH_OK;
}

static bool xent_has(const hth_node *node, int input)
{
    return input < node->n_inputs && node->inputs[input] >= 0;
}

// Images, classes and positions of the logits.
static hth_err xent_shape(xent_kernel *kernel, const hth_graph *graph, const hth_node *node)
{
    const hth_value *x = &graph->values[node->inputs[0]], *labels = &graph->values[node->inputs[1]];
    int64_t axis = hth_node_int(node, "axis", 1);
    axis += axis < 0 ? x->shape.rank : 0;
    kernel->n = kernel->inner = 1;
    for (int i = 0; i < x->shape.rank; i++) {
        size_t *count = i < axis ? &kernel->n : &kernel->inner;
        *(i == axis ? &kernel->classes : count) *= (size_t)x->shape.dim[i];
    }
    kernel->chunks = (kernel->inner + PIECE - 1) / PIECE;
    bool agree = (size_t)hth_shape_elements(&labels->shape) == kernel->n * kernel->inner;
    if (kernel->weighted) {
        const hth_value *w = &graph->values[node->inputs[2]];
        agree = agree && (size_t)hth_shape_elements(&w->shape) == kernel->classes;
    }
    return agree ? HTH_OK
                 : hth_fail(HTH_EINVAL, "node '%s': labels and logits do not agree", node->name);
}

hth_err cpu_xent_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    const hth_value *x = &graph->values[node->inputs[0]], *labels = &graph->values[node->inputs[1]];
    xent_kernel k = {.n_threads = device->props.n_threads,
                     .grad = node->op == HTH_OP_SOFTMAX_XENT_GRAD,
                     .weighted = xent_has(node, 2),
                     .part = xent_has(node, 3),
                     .smoothing = hth_node_float(node, "smoothing", 0),
                     .labels = labels->dtype,
                     .ignore = hth_node_int(node, "ignore_index", -100),
                     .classes = 1};
    if (algorithm != NULL || node->n_post > 0 || x->shape.rank < 2 ||
        !cpu_plain_f32(graph, node, 1) ||
        (k.weighted && graph->values[node->inputs[2]].dtype != HTH_DT_F32) ||
        (labels->dtype != HTH_DT_I32 && labels->dtype != HTH_DT_I64)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or post ops", node->name);
    }
    HTH_TRY(xent_shape(&k, graph, node));
    k.base = (hth_kernel){.run = xent_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "pieces",
                          .workspace_bytes = k.grad ? 0 : k.n * k.chunks * sizeof(double),
                          .inplace_input = k.grad ? 0 : -1};
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
