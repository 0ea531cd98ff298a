// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy over axis 1 and its gradient, on plain tensors. Logits of one position
// stand `inner` apart: with inner 1 (a class per sample) a row is worked on, otherwise (a class per
// pixel) up to PIECE positions side by side. The loss is the sum of the units' sums, in their
// order.
#include "kernels/cpu/train/train.h"

#include "device/cpu/team.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vector.h"

#include <inttypes.h>

#define PIECE 256
#define LANES 16

typedef struct xent_kernel {
    hth_kernel base;
    int n_threads;
    bool grad;
    hth_dtype labels;
    int64_t ignore;
    size_t n, classes, inner, chunks; // images; pieces of an image's positions
} xent_kernel;

typedef struct xent_job {
    const xent_kernel *k;
    const float *x;
    const void *labels;
    float *dx, share; // 1 / counted labels
    double *sums;
} xent_job;

static int64_t xent_label(const xent_kernel *k, const void *labels, size_t i)
{
    return k->labels == HTH_DT_I32 ? ((const int32_t *)labels)[i] : ((const int64_t *)labels)[i];
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

static void xent_unit(const xent_job *j, size_t unit)
{
    const xent_kernel *k = j->k;
    size_t image = unit / k->chunks, first = unit % k->chunks * PIECE;
    size_t n = k->inner - first < PIECE ? k->inner - first : PIECE;
    size_t at = image * k->classes * k->inner + first;
    const float *x = j->x + at;
    float max[PIECE], sum[PIECE], factor[PIECE];
    double loss = 0;
    if (k->inner == 1) {
        xent_row(x, k->classes, max, sum);
    } else {
        xent_columns(x, k->classes, k->inner, n, max, sum);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t label = xent_label(k, j->labels, image * k->inner + first + i);
        factor[i] = label == k->ignore ? 0 : j->share / sum[i];
        loss += k->grad || label == k->ignore
                    ? 0
                    : (double)logf(sum[i]) + (double)(max[i] - x[(size_t)label * k->inner + i]);
    }
    if (!k->grad) {
        j->sums[unit] = loss;
        return;
    }
    float *dx = j->dx + at;
    if (k->inner == 1) {
        xent_row_grad(x, dx, k->classes, max[0], factor[0]);
    } else {
        xent_columns_grad(x, dx, k->classes, k->inner, n, max, factor);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t label = xent_label(k, j->labels, image * k->inner + first + i);
        if (label != k->ignore) {
            dx[(size_t)label * k->inner + i] -= j->share;
        }
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

// Labels that count; a label that is no class is an error of the data.
static hth_err xent_count(const xent_kernel *k, const void *labels, size_t *count)
{
    *count = 0;
    for (size_t i = 0; i < k->n * k->inner; i++) {
        int64_t label = xent_label(k, labels, i);
        if (label != k->ignore && (label < 0 || label >= (int64_t)k->classes)) {
            return hth_fail(HTH_EINVAL, "label %" PRId64 " is outside of %zu classes", label,
                            k->classes);
        }
        *count += label != k->ignore;
    }
    return HTH_OK;
}

static hth_err xent_run(const hth_kernel *base, const hth_kernel_args *a)
{
    const xent_kernel *k = (const xent_kernel *)base;
    xent_job j = {k, a->in[0], a->in[1], a->out[0], 0, a->workspace};
    size_t counted, units = k->n * k->chunks;
    HTH_TRY(xent_count(k, j.labels, &counted));
    j.share = 1.0F / (float)counted;
    hth_cpu_share(k->n_threads, k->n * k->classes * k->inner * 8, xent_part, &j);
    if (!k->grad) {
        double loss = 0;
        for (size_t u = 0; u < units; u++) {
            loss += j.sums[u];
        }
        *(float *)a->out[0] = (float)(loss / (double)counted);
    }
    return HTH_OK;
}

hth_err cpu_xent_prepare(hth_device *d, const hth_graph *g, const hth_node *n,
                         const char *algorithm, hth_kernel **out)
{
    const hth_value *x = &g->values[n->inputs[0]], *labels = &g->values[n->inputs[1]];
    xent_kernel k = {.n_threads = d->props.n_threads,
                     .grad = n->op == HTH_OP_SOFTMAX_XENT_GRAD,
                     .labels = labels->dtype,
                     .ignore = hth_node_int(n, "ignore_index", -100),
                     .inner = 1};
    if (algorithm != NULL || n->n_post > 0 || x->shape.rank < 2 || !cpu_plain_f32(g, n, 1) ||
        (labels->dtype != HTH_DT_I32 && labels->dtype != HTH_DT_I64)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or post ops", n->name);
    }
    k.n = (size_t)x->shape.dim[0];
    k.classes = (size_t)x->shape.dim[1];
    for (int i = 2; i < x->shape.rank; i++) {
        k.inner *= (size_t)x->shape.dim[i];
    }
    k.chunks = (k.inner + PIECE - 1) / PIECE;
    if ((size_t)hth_shape_elements(&labels->shape) != k.n * k.inner) {
        return hth_fail(HTH_EINVAL, "node '%s': labels and logits do not agree", n->name);
    }
    k.base = (hth_kernel){.run = xent_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "pieces",
                          .workspace_bytes = k.grad ? 0 : k.n * k.chunks * sizeof(double),
                          .inplace_input = k.grad ? 0 : -1};
    return hth_cpu_kernel_made(n, &k.base, sizeof k, out);
}
