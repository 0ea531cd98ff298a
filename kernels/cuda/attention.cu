// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/attention.cu - softmax(scale * Q K^T + mask) V over views (graph/attention.h): one
// row of Q per block, its scores in shared memory. Bytes moved: Q, the result, and K and V once per
// row, from the cache where they fit. A row that may see no key gives zeros.
#include "kernels/cuda/params.h"

enum { VIEW_Q, VIEW_K, VIEW_V, VIEW_OUT, VIEW_MASK };

HTH_FN int64_t attention_at(const int64_t *view, uint32_t b0, uint32_t b1, uint32_t i, uint32_t k)
{
    return view[0] + (int64_t)b0 * view[1] + (int64_t)b1 * view[2] + (int64_t)i * view[3] +
           (int64_t)k * view[4];
}

HTH_FN float attention_score(const hth_attention_params *p, uint32_t b0, uint32_t b1, uint32_t row,
                             uint32_t s)
{
    int64_t q = attention_at(p->view[VIEW_Q], b0, b1, row, 0);
    int64_t k = attention_at(p->view[VIEW_K], b0, b1, s, 0);
    float sum = 0;
    for (uint32_t i = 0; i < p->d; i++) {
        sum += hth_get(p->q, q + (int64_t)i * p->view[VIEW_Q][4], p->half[VIEW_Q]) *
               hth_get(p->k, k + (int64_t)i * p->view[VIEW_K][4], p->half[VIEW_K]);
    }
    sum *= p->scale;
    if (p->mask == NULL) {
        return sum;
    }
    return sum +
           hth_get(p->mask, attention_at(p->view[VIEW_MASK], b0, b1, row, s), p->half[VIEW_MASK]);
}

// Shared: a part per thread, two folds, then the scores.
HTH_KERNEL(hth_attention, hth_attention_params, 5)
{
    uint32_t row = t->block % p->t, b1 = t->block / p->t % p->b1, b0 = t->block / p->t / p->b1;
    float *fold = shared + t->n_threads, *folded = fold + HTH_FOLD, *score = folded + HTH_FOLD;
    float part = phase == 0 ? -INFINITY : 0;
    if (phase == 0) {
        for (uint32_t s = t->thread; s < p->s; s += t->n_threads) {
            score[s] = attention_score(p, b0, b1, row, s);
            part = score[s] > part || score[s] != score[s] ? score[s] : part;
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share_max(t, shared);
    } else if (phase == 2) {
        float max = hth_fold_max(fold), zero = isinf(max) && max < 0 ? 0 : max;
        for (uint32_t s = t->thread; s < p->s; s += t->n_threads) {
            score[s] = expf(score[s] - zero);
            part += score[s];
        }
        shared[t->thread] = part;
    } else if (phase == 3 && t->thread < HTH_FOLD) {
        folded[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 4) {
        float sum = hth_fold_sum(folded);
        for (uint32_t e = t->thread; e < p->e; e += t->n_threads) {
            int64_t v = attention_at(p->view[VIEW_V], b0, b1, 0, e);
            float acc = 0;
            for (uint32_t s = 0; s < p->s; s++) {
                acc += score[s] *
                       hth_get(p->v, v + (int64_t)s * p->view[VIEW_V][3], p->half[VIEW_V]);
            }
            hth_set(p->out, attention_at(p->view[VIEW_OUT], b0, b1, row, e),
                    sum == 0 ? 0 : acc / sum, p->half[VIEW_OUT]);
        }
    }
}
