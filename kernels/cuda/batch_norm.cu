// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/batch_norm.cu - batch norm in training: a channel's statistics, and its gradients,
// by one block each. What follows per element is hth_chain's (forward) and
// hth_channel_grad_apply's. Bytes moved: x twice for the statistics (mean first, then squared
// distances: no cancellation); dy and x once for the sums of the gradient, once more for dx, which
// is written.
#include "kernels/cuda/params.h"

// Element i of a channel's batch * size.
HTH_FN uint32_t channel_at(uint32_t channels, uint32_t size, uint32_t c, uint32_t i)
{
    return (i / size * channels + c) * size + i % size;
}

HTH_FN void channel_finish(const hth_channel_params *p, uint32_t c, float mean, float var)
{
    float n = (float)p->batch * (float)p->size, unbiased = n > 1 ? var * n / (n - 1) : var;
    p->mean[c] = mean;
    p->inv[c] = 1 / sqrtf(var + p->eps);
    if (p->new_mean != NULL) {
        p->new_mean[c] = p->momentum * p->running_mean[c] + (1 - p->momentum) * mean;
    }
    if (p->new_var != NULL) {
        p->new_var[c] = p->momentum * p->running_var[c] + (1 - p->momentum) * unbiased;
    }
}

HTH_KERNEL(hth_channel_stats, hth_channel_params, 5)
{
    uint32_t c = t->block, n = p->batch * p->size;
    float *fold = shared + t->n_threads, *folded = fold + HTH_FOLD, part = 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < n; i += t->n_threads) {
            part += hth_get(p->x, channel_at(p->channels, p->size, c, i), p->half);
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2) {
        float mean = hth_fold_sum(fold) / (float)n;
        for (uint32_t i = t->thread; i < n; i += t->n_threads) {
            float d = hth_get(p->x, channel_at(p->channels, p->size, c, i), p->half) - mean;
            part += d * d;
        }
        shared[t->thread] = part;
    } else if (phase == 3 && t->thread < HTH_FOLD) {
        folded[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 4 && t->thread == 0) {
        channel_finish(p, c, hth_fold_sum(fold) / (float)n, hth_fold_sum(folded) / (float)n);
    }
}

// dy of element `at`, where the forward pass's fused Relu or Clip was open.
HTH_FN float channel_dy(const hth_channel_grad_params *p, uint32_t c, uint32_t at)
{
    float dy = hth_get(p->dy, at, p->half_dy);
    if (p->bias == NULL) {
        return dy;
    }
    float y = (hth_get(p->x, at, p->half_x) - p->mean[c]) * (p->scale[c] * p->inv[c]) + p->bias[c];
    return y > p->low && y < p->high ? dy : 0;
}

HTH_KERNEL(hth_channel_grad, hth_channel_grad_params, 3)
{
    uint32_t c = t->block, n = p->batch * p->size;
    float *dots = shared + t->n_threads, *fold = dots + t->n_threads, sum = 0, dot = 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < n; i += t->n_threads) {
            uint32_t at = channel_at(p->channels, p->size, c, i);
            float dy = channel_dy(p, c, at);
            sum += dy;
            dot += dy * ((hth_get(p->x, at, p->half_x) - p->mean[c]) * p->inv[c]);
        }
        shared[t->thread] = sum;
        dots[t->thread] = dot;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
        fold[HTH_FOLD + t->thread] = hth_fold_share(t, dots);
    } else if (phase == 2 && t->thread == 0) {
        p->dbias[c] = hth_fold_sum(fold);
        p->dscale[c] = hth_fold_sum(fold + HTH_FOLD);
    }
}

HTH_KERNEL(hth_channel_grad_apply, hth_channel_grad_params, 1)
{
    float n = (float)p->batch * (float)p->size;
    uint32_t total = p->batch * p->channels * p->size;
    for (uint32_t i = hth_index(t); i < total; i += hth_total(t)) {
        uint32_t c = i / p->inner % p->channels;
        float xhat = (hth_get(p->x, i, p->half_x) - p->mean[c]) * p->inv[c];
        float mean = (p->dbias[c] + xhat * p->dscale[c]) / n;
        hth_set(p->dx, i, p->scale[c] * p->inv[c] * (channel_dy(p, c, i) - mean), p->half_dx);
    }
}
