// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/softmax.cu - Softmax, LogSoftmax and their gradients: a row per block, four elements
// per access where a row's lie side by side. Bytes moved: a row is read up to three times, twice of
// them from the cache where it fits, and written once.
#include "kernels/cuda/params.h"

HTH_FN int64_t softmax_first(const hth_softmax_params *p, uint32_t row)
{
    return (int64_t)(row / p->inner) * p->along * p->inner + row % p->inner;
}

// Elements i .. i + 3 of a row that begins at `first`.
HTH_FN hth_f4 softmax_get(const hth_softmax_params *p, const void *data, int64_t first, uint32_t i,
                          int half)
{
    hth_f4 r = {{0, 0, 0, 0}};
    if (p->inner == 1) {
        return hth_row_get(data, first, i, p->along, half);
    }
    for (uint32_t k = 0; k < hth_row_count(i, p->along); k++) {
        r.v[k] = hth_get(data, first + (int64_t)(i + k) * p->inner, half);
    }
    return r;
}

HTH_FN void softmax_set(const hth_softmax_params *p, int64_t first, uint32_t i, hth_f4 v)
{
    if (p->inner == 1) {
        hth_row_set(p->out, first, i, p->along, v, p->half_out);
        return;
    }
    for (uint32_t k = 0; k < hth_row_count(i, p->along); k++) {
        hth_set(p->out, first + (int64_t)(i + k) * p->inner, v.v[k], p->half_out);
    }
}

HTH_KERNEL(hth_softmax, hth_softmax_params, 5)
{
    int64_t first = softmax_first(p, t->block);
    float *fold = shared + t->n_threads, *folded = fold + HTH_FOLD;
    float part = phase == 0 ? -INFINITY : 0;
    if (phase == 0) {
        for (uint32_t i = 4 * t->thread; i < p->along; i += 4 * t->n_threads) {
            hth_f4 x = softmax_get(p, p->x, first, i, p->half_x);
            for (uint32_t k = 0; k < hth_row_count(i, p->along); k++) {
                part = x.v[k] > part || x.v[k] != x.v[k] ? x.v[k] : part;
            }
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share_max(t, shared);
    } else if (phase == 2) {
        float max = hth_fold_max(fold);
        for (uint32_t i = 4 * t->thread; i < p->along; i += 4 * t->n_threads) {
            hth_f4 x = softmax_get(p, p->x, first, i, p->half_x);
            for (uint32_t k = 0; k < hth_row_count(i, p->along); k++) {
                part += expf(x.v[k] - max);
            }
        }
        shared[t->thread] = part;
    } else if (phase == 3 && t->thread < HTH_FOLD) {
        folded[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 4) {
        float max = hth_fold_max(fold), sum = hth_fold_sum(folded), log_sum = logf(sum);
        for (uint32_t i = 4 * t->thread; i < p->along; i += 4 * t->n_threads) {
            hth_f4 x = softmax_get(p, p->x, first, i, p->half_x);
            for (int k = 0; k < 4; k++) {
                float v = x.v[k] - max;
                x.v[k] = p->logs ? v - log_sum : expf(v) / sum;
            }
            softmax_set(p, first, i, x);
        }
    }
}

HTH_KERNEL(hth_softmax_grad, hth_softmax_params, 3)
{
    int64_t first = softmax_first(p, t->block);
    float *fold = shared + t->n_threads, part = 0;
    if (phase == 0) {
        for (uint32_t i = 4 * t->thread; i < p->along; i += 4 * t->n_threads) {
            hth_f4 d = softmax_get(p, p->x, first, i, p->half_x);
            hth_f4 y = softmax_get(p, p->y, first, i, p->half_y);
            for (int k = 0; k < 4; k++) { // zeros after the row's end
                part += p->logs ? d.v[k] : d.v[k] * y.v[k];
            }
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2) {
        float sum = hth_fold_sum(fold);
        for (uint32_t i = 4 * t->thread; i < p->along; i += 4 * t->n_threads) {
            hth_f4 d = softmax_get(p, p->x, first, i, p->half_x);
            hth_f4 y = softmax_get(p, p->y, first, i, p->half_y);
            for (int k = 0; k < 4; k++) {
                float v = y.v[k];
                d.v[k] = p->logs ? d.v[k] - expf(v) * sum : v * (d.v[k] - sum);
            }
            softmax_set(p, first, i, d);
        }
    }
}
