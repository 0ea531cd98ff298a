// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/softmax.cu - Softmax, LogSoftmax and their gradients: a row per block. Bytes moved:
// a row is read up to three times, twice of them from the cache where it fits, and written once.
#include "kernels/cuda/params.h"

HTH_FN uint32_t softmax_first(const hth_softmax_params *p, uint32_t row)
{
    return row / p->inner * p->along * p->inner + row % p->inner;
}

HTH_KERNEL(hth_softmax, hth_softmax_params, 5)
{
    const float *x = p->x + softmax_first(p, t->block);
    float *fold = shared + t->n_threads, *folded = fold + HTH_FOLD, part = phase == 0 ? -INFINITY : 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < p->along; i += t->n_threads) {
            float v = x[i * p->inner];
            part = v > part || v != v ? v : part;
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share_max(t, shared);
    } else if (phase == 2) {
        float max = hth_fold_max(fold);
        for (uint32_t i = t->thread; i < p->along; i += t->n_threads) {
            part += expf(x[i * p->inner] - max);
        }
        shared[t->thread] = part;
    } else if (phase == 3 && t->thread < HTH_FOLD) {
        folded[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 4) {
        float max = hth_fold_max(fold), sum = hth_fold_sum(folded), log_sum = logf(sum);
        float *y = p->out + softmax_first(p, t->block);
        for (uint32_t i = t->thread; i < p->along; i += t->n_threads) {
            float v = x[i * p->inner] - max;
            y[i * p->inner] = p->logs ? v - log_sum : expf(v) / sum;
        }
    }
}

HTH_KERNEL(hth_softmax_grad, hth_softmax_params, 3)
{
    uint32_t first = softmax_first(p, t->block);
    const float *dy = p->x + first, *y = p->y + first;
    float *fold = shared + t->n_threads, part = 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < p->along; i += t->n_threads) {
            part += p->logs ? dy[i * p->inner] : dy[i * p->inner] * y[i * p->inner];
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2) {
        float sum = hth_fold_sum(fold);
        for (uint32_t i = t->thread; i < p->along; i += t->n_threads) {
            float d = dy[i * p->inner], v = y[i * p->inner];
            p->out[first + i * p->inner] = p->logs ? d - expf(v) * sum : v * (d - sum);
        }
    }
}
