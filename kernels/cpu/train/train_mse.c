// SPDX-License-Identifier: Apache-2.0
// Mean squared error and its gradient. The loss is summed in pieces whose sums are added in order,
// so its bits do not depend on the number of threads.
#include "kernels/cpu/train/train.h"

#include "base/alloc.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vector.h"

#define LANES 16
#define PIECE 4096 // elements summed in f32

typedef struct mse_kernel {
    hth_kernel base;
    int n_threads;
    bool grad;
    size_t n;
} mse_kernel;

typedef struct mse_job {
    const mse_kernel *k;
    const float *y, *target;
    float *dy;
    double *sums; // one per piece
} mse_job;

HTH_VECTOR(mse_sum, (const float *y, const float *target, size_t n, float *lane),
           (y, target, n, lane))
{
    hth_v16 s = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        hth_v16 d = *(const hth_v16 *)(y + i) - *(const hth_v16 *)(target + i);
        s += d * d;
    }
    *(hth_v16 *)lane = s;
    for (; i < n; i++) {
        lane[0] += (y[i] - target[i]) * (y[i] - target[i]);
    }
}

HTH_VECTOR(mse_grad, (const float *y, const float *target, float *dy, size_t n, float scale),
           (y, target, dy, n, scale))
{
    for (size_t i = 0; i < n; i++) {
        dy[i] = scale * (y[i] - target[i]);
    }
}

static void mse_part(void *arg, int i, int n)
{
    const mse_job *j = arg;
    const mse_kernel *k = j->k;
    size_t begin, end, chunks = (k->n + PIECE - 1) / PIECE;
    hth_team_range(chunks, i, n, &begin, &end);
    for (size_t p = begin; p < end; p++) {
        size_t at = p * PIECE, count = k->n - at < PIECE ? k->n - at : PIECE;
        float lane[LANES];
        if (k->grad) {
            mse_grad(j->y + at, j->target + at, j->dy + at, count, 2.0F / (float)k->n);
            continue;
        }
        mse_sum(j->y + at, j->target + at, count, lane);
        j->sums[p] = 0;
        for (size_t l = 0; l < LANES; l++) {
            j->sums[p] += (double)lane[l];
        }
    }
}

static hth_err mse_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const mse_kernel *k = (const mse_kernel *)base;
    mse_job j = {k, args->in[0], args->in[1], args->out[0], args->workspace};
    hth_cpu_share(k->n_threads, k->n, mse_part, &j);
    if (!k->grad) {
        double loss = 0;
        for (size_t p = 0; p < (k->n + PIECE - 1) / PIECE; p++) {
            loss += j.sums[p];
        }
        *(float *)args->out[0] = (float)(loss / (double)k->n);
    }
    return HTH_OK;
}

hth_err cpu_mse_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                        const char *algorithm, hth_kernel **out)
{
    bool grad = node->op == HTH_OP_MSE_GRAD;
    if (algorithm != NULL || node->n_post > 0 || !cpu_plain_f32(graph, node, 2)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layout or post ops", node->name);
    }
    mse_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    k->n_threads = device->props.n_threads;
    k->grad = grad;
    k->n = (size_t)hth_shape_elements(&graph->values[node->inputs[0]].shape);
    k->base =
        (hth_kernel){.run = mse_run,
                     .close = hth_cpu_kernel_free,
                     .implementation = "pieces",
                     .workspace_bytes = grad ? 0 : (k->n + PIECE - 1) / PIECE * sizeof(double),
                     .inplace_input = grad ? 0 : -1};
    *out = &k->base;
    return HTH_OK;
}
