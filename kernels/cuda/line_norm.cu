// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/line_norm.cu - norms without parameters over any axes: LpNormalization divides by a
// norm, MeanVarianceNormalization takes the mean away and divides by the deviation. A block per
// result of the reduction; what it reads again comes from the cache where it is short. Hardmax: a
// row per thread. Bytes moved: the input twice (three times), the result.
#include "graph/op.h"
#include "kernels/cuda/params.h"

HTH_FN float line_get(const hth_reduce_params *p, int64_t base, uint32_t i)
{
    return ((const float *)p->in)[base + hth_offset(i, &p->inner, &p->inner_steps)];
}

// shared: a part per thread, then the folded parts of a first and of a second sum.
HTH_KERNEL(hth_line_norm, hth_reduce_params, 5)
{
    float *first = shared + t->n_threads, *second = first + HTH_FOLD, sum = 0, mean = 0;
    const int centred = p->op == HTH_OP_MEAN_VARIANCE_NORMALIZATION;
    const int64_t base = hth_offset(t->block, &p->outer, &p->outer_steps);
    if (phase == 1 || phase == 3) {
        if (t->thread < HTH_FOLD) {
            (phase == 1 ? first : second)[t->thread] = hth_fold_share(t, shared);
        }
        return;
    }
    if (phase > 0 && centred) {
        mean = hth_fold_sum(first) / (float)p->n_in;
    }
    if (phase == 4) {
        float norm = centred ? sqrtf(hth_fold_sum(second) / (float)p->n_in) + 1e-9F
                             : hth_fold_sum(first);
        norm = !centred && p->p != 1 ? sqrtf(norm) : norm;
        for (uint32_t i = t->thread; i < p->n_in; i += t->n_threads) {
            int64_t at = base + hth_offset(i, &p->inner, &p->inner_steps);
            float x = ((const float *)p->in)[at] - mean;
            ((float *)p->out)[at] = norm != 0 ? x / norm : x;
        }
        return;
    }
    for (uint32_t i = t->thread; i < p->n_in && (phase == 0 || centred); i += t->n_threads) {
        float x = line_get(p, base, i) - mean;
        if (centred && phase == 0) {
            sum += x;
        } else {
            sum += !centred && p->p == 1 ? fabsf(x) : x * x;
        }
    }
    shared[t->thread] = sum;
}

// Rows of `along` elements, `inner` apart; of equal ones the first.
HTH_KERNEL(hth_hardmax, hth_hardmax_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->rows; i += hth_total(t)) {
        int64_t base = (int64_t)(i / p->inner) * p->along * p->inner + i % p->inner;
        uint32_t best = 0;
        for (uint32_t k = 1; k < p->along; k++) {
            best = p->x[base + (int64_t)k * p->inner] > p->x[base + (int64_t)best * p->inner] ? k
                                                                                             : best;
        }
        for (uint32_t k = 0; k < p->along; k++) {
            p->out[base + (int64_t)k * p->inner] = k == best ? 1 : 0;
        }
    }
}
