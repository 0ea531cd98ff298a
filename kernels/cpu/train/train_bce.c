// SPDX-License-Identifier: Apache-2.0
// Binary cross-entropy of logits and its gradient, on plain tensors. With y the target, w the
// weight of positive ones and e = exp(-|x|), an element is
//   (1 - y) max(x, 0) + w y max(-x, 0) + (1 - y + w y) log(1 + e).
// The loss is summed in pieces whose sums are added in order, so its bits do not depend on the
// number of threads.
#include "kernels/cpu/train/train.h"

#include "kernels/cpu/plain.h"

#define LANES 16
#define PIECE 4096 // elements of a unit

typedef struct bce_kernel {
    hth_kernel base;
    int n_threads;
    bool grad;
    size_t n, weights, inner; // elements; of the weights, 0: there are none; that share one
} bce_kernel;

typedef struct bce_job {
    const bce_kernel *k;
    const float *x, *target, *weights;
    float *dx;
    double *sums; // one per piece
} bce_job;

// log(1 + e) of e from 0 to 1, to about an ulp: 2 artanh(e / (2 + e)) as a series.
HTH_INLINE float bce_log1p(float e)
{
    float z = e / (2.0F + e), s = z * z, p = 1.0F / 15;
    p = p * s + 1.0F / 13;
    p = p * s + 1.0F / 11;
    p = p * s + 1.0F / 9;
    p = p * s + 1.0F / 7;
    p = p * s + 1.0F / 5;
    p = p * s + 1.0F / 3;
    return 2 * z * (p * s + 1);
}

// w: of each element, NULL: `one` of all.
HTH_VECTOR(bce_sum,
           (const float *x, const float *y, const float *w, float one, size_t n, float *lane),
           (x, y, w, one, n, lane))
{
    for (size_t i = 0; i < n; i++) {
        float positive = (w != NULL ? w[i] : one) * y[i], negative = 1 - y[i];
        float high = x[i] < 0 ? 0 : x[i];
        float low = x[i] < 0 ? -x[i] : 0;
        float e = hth_expf(-(high + low));
        lane[i] = negative * high + positive * low + (negative + positive) * bce_log1p(e);
    }
}

HTH_VECTOR(bce_grad,
           (const float *x, const float *y, const float *w, float one, size_t n, float scale,
            float *dx),
           (x, y, w, one, n, scale, dx))
{
    for (size_t i = 0; i < n; i++) {
        float positive = (w != NULL ? w[i] : one) * y[i], negative = 1 - y[i];
        float e = hth_expf(x[i] < 0 ? x[i] : -x[i]), q = 1 / (1 + e);
        float over = x[i] < 0 ? e * q : q;  // the sigmoid
        float under = x[i] < 0 ? q : e * q; // 1 - the sigmoid
        dx[i] = scale * (negative * over - positive * under);
    }
}

// A run of elements that share a weight, or whose weights lie like them.
static double bce_run_of(const bce_job *job, size_t at, size_t n)
{
    const bce_kernel *k = job->k;
    float one = 1, each[256];
    const float *w = NULL;
    double sum = 0;
    if (k->weights > 0 && k->inner == 1) {
        w = job->weights + at % k->weights;
    } else if (k->weights > 0) {
        one = job->weights[at / k->inner % k->weights];
    }
    if (k->grad) {
        bce_grad(job->x + at, job->target + at, w, one, n, 1.0F / (float)k->n, job->dx + at);
        return 0;
    }
    for (size_t i = 0; i < n; i += 256) {
        size_t m = n - i < 256 ? n - i : 256;
        bce_sum(job->x + at + i, job->target + at + i, w != NULL ? w + i : NULL, one, m, each);
        for (size_t e = 0; e < m; e++) {
            sum += (double)each[e];
        }
    }
    return sum;
}

static void bce_part(void *arg, int i, int n)
{
    const bce_job *j = arg;
    const bce_kernel *k = j->k;
    size_t begin, end, chunks = (k->n + PIECE - 1) / PIECE;
    size_t run = k->inner == 1 ? k->weights : k->inner;
    run = k->weights == 0 ? k->n : run;
    hth_team_range(chunks, i, n, &begin, &end);
    for (size_t p = begin; p < end; p++) {
        size_t at = p * PIECE, last = k->n - at < PIECE ? k->n : at + PIECE;
        double sum = 0;
        while (at < last) {
            size_t count = run - at % run < last - at ? run - at % run : last - at;
            sum += bce_run_of(j, at, count);
            at += count;
        }
        if (!k->grad) {
            j->sums[p] = sum;
        }
    }
}

static hth_err bce_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const bce_kernel *k = (const bce_kernel *)base;
    bce_job j = {.k = k,
                 .x = args->in[0],
                 .target = args->in[1],
                 .weights = k->weights > 0 ? args->in[2] : NULL,
                 .dx = args->out[0],
                 .sums = args->workspace};
    hth_cpu_share(k->n_threads, k->n * 16, bce_part, &j);
    if (!k->grad) {
        double loss = 0;
        for (size_t p = 0; p < (k->n + PIECE - 1) / PIECE; p++) {
            loss += j.sums[p];
        }
        *(float *)args->out[0] = (float)(loss / (double)k->n);
    }
    return HTH_OK;
}

// How many weights there are, and how many elements in a row share one.
static hth_err bce_weights(bce_kernel *kernel, const hth_graph *graph, const hth_node *node)
{
    const hth_shape *s = &graph->values[node->inputs[0]].shape;
    int64_t axis = hth_node_int(node, "axis", 1);
    axis += axis < 0 ? s->rank : 0;
    kernel->inner = kernel->n;
    if (node->n_inputs < 3 || node->inputs[2] < 0) {
        return HTH_OK;
    }
    kernel->weights = (size_t)hth_shape_elements(&graph->values[node->inputs[2]].shape);
    if (kernel->weights > 1) {
        kernel->inner = 1;
        for (int64_t i = axis + 1; i < s->rank; i++) {
            kernel->inner *= (size_t)s->dim[i];
        }
    }
    bool agree = kernel->weights == 1 ||
                 (axis >= 0 && axis < s->rank && (size_t)s->dim[axis] == kernel->weights);
    return agree ? HTH_OK
                 : hth_fail(HTH_EINVAL, "node '%s': weights and logits do not agree", node->name);
}

hth_err cpu_bce_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                        const char *algorithm, hth_kernel **out)
{
    bce_kernel k = {.n_threads = device->props.n_threads, .grad = node->op == HTH_OP_BCE_GRAD};
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, node->n_inputs)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or post ops", node->name);
    }
    k.n = (size_t)hth_shape_elements(&graph->values[node->inputs[0]].shape);
    HTH_TRY(bce_weights(&k, graph, node));
    k.base =
        (hth_kernel){.run = bce_run,
                     .close = hth_cpu_kernel_free,
                     .implementation = "pieces",
                     .workspace_bytes = k.grad ? 0 : (k.n + PIECE - 1) / PIECE * sizeof(double),
                     .inplace_input = k.grad ? 0 : -1};
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
