// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/loss.cu - cross-entropy, mean squared error, and the gradients' norm. A row's loss
// by one block, then the sum of all by one; sums of squares by some blocks, then one. Bytes moved:
// cross-entropy reads a row three times, twice of them from the cache; squares read each operand
// once.
#include "graph/autodiff/train_hyper.h"
#include "kernels/cuda/params.h"

HTH_FN int64_t xent_label(const hth_xent_params *p, uint32_t row)
{
    return p->wide ? ((const int64_t *)p->labels)[row] : ((const int32_t *)p->labels)[row];
}

HTH_FN const float *xent_row(const hth_xent_params *p, const float *x, uint32_t row)
{
    return x + (size_t)(row / p->inner) * p->classes * p->inner + row % p->inner;
}

// Phases 0 to 3 of a row: its maximum in fold, its sum of exponentials in folded.
HTH_FN void xent_moments(const hth_xent_params *p, const hth_grid *t, int phase, float *shared)
{
    const float *x = xent_row(p, p->x, t->block);
    float *fold = shared + t->n_threads, *folded = fold + HTH_FOLD, part = phase == 0 ? -INFINITY : 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < p->classes; i += t->n_threads) {
            part = fmaxf(part, x[i * p->inner]);
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share_max(t, shared);
    } else if (phase == 2) {
        float max = hth_fold_max(fold);
        for (uint32_t i = t->thread; i < p->classes; i += t->n_threads) {
            part += expf(x[i * p->inner] - max);
        }
        shared[t->thread] = part;
    } else if (phase == 3 && t->thread < HTH_FOLD) {
        folded[t->thread] = hth_fold_share(t, shared);
    }
}

HTH_KERNEL(hth_xent_rows, hth_xent_params, 5)
{
    float *fold = shared + t->n_threads;
    xent_moments(p, t, phase, shared);
    if (phase == 4 && t->thread == 0) {
        int64_t label = xent_label(p, t->block);
        float loss = NAN;
        if (label == p->ignore) {
            loss = 0;
        } else if (label >= 0 && label < (int64_t)p->classes) {
            loss = logf(hth_fold_sum(fold + HTH_FOLD)) + hth_fold_max(fold) -
                   xent_row(p, p->x, t->block)[label * p->inner];
        }
        p->rows[t->block] = loss;
    }
}

// One block: the loss (out may be NULL) and how many rows count.
HTH_KERNEL(hth_xent_sum, hth_xent_params, 3)
{
    float *counts = shared + t->n_threads, *fold = counts + t->n_threads, sum = 0, n = 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < p->n_rows; i += t->n_threads) {
            sum += p->rows != NULL ? p->rows[i] : 0;
            n += xent_label(p, i) != p->ignore;
        }
        shared[t->thread] = sum;
        counts[t->thread] = n;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
        fold[HTH_FOLD + t->thread] = hth_fold_share(t, counts);
    } else if (phase == 2 && t->thread == 0) {
        float counted = hth_fold_sum(fold + HTH_FOLD);
        p->counted[0] = counted;
        if (p->out != NULL) {
            ((float *)p->out)[0] = hth_fold_sum(fold) / counted;
        }
    }
}

HTH_KERNEL(hth_xent_grad, hth_xent_params, 5)
{
    float *fold = shared + t->n_threads;
    xent_moments(p, t, phase, shared);
    if (phase < 4) {
        return;
    }
    int64_t label = xent_label(p, t->block);
    int counts = label != p->ignore;
    float max = hth_fold_max(fold), sum = hth_fold_sum(fold + HTH_FOLD), n = p->counted[0];
    float bad = label >= 0 && label < (int64_t)p->classes ? 0 : NAN;
    const float *x = xent_row(p, p->x, t->block);
    int64_t dx = x - p->x;
    for (uint32_t i = t->thread; i < p->classes; i += t->n_threads) {
        float g = (expf(x[i * p->inner] - max) / sum - (i == label ? 1.0f : 0.0f)) / n;
        hth_set(p->out, dx + (int64_t)i * p->inner, counts ? g + bad : 0, p->half);
    }
}

HTH_KERNEL(hth_squares, hth_squares_params, 3)
{
    float *fold = shared + t->n_threads, part = 0;
    if (phase == 0) {
        for (uint32_t i = hth_index(t) * 4; i < p->n; i += hth_total(t) * 4) {
            for (uint32_t k = i; k < i + 4 && k < p->n; k++) {
                float d = p->b != NULL ? p->a[k] - p->b[k] : p->a[k];
                part += d * d;
            }
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2 && t->thread == 0) {
        p->part[t->block] = hth_fold_sum(fold);
    }
}

HTH_KERNEL(hth_squares_sum, hth_squares_params, 3)
{
    float *fold = shared + t->n_threads, part = 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < p->n_parts; i += t->n_threads) {
            part += p->part[i];
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2 && t->thread == 0) {
        float sum = hth_fold_sum(fold);
        if (p->max_norm > 0) {
            float norm = sqrtf(sum) * p->hyper[HTH_HYPER_GRAD_SCALE];
            ((float *)p->out)[0] = fminf(1, p->max_norm / (norm + 1e-6f));
        } else {
            ((float *)p->out)[0] = sum * p->factor;
        }
    }
}

HTH_KERNEL(hth_mse_grad, hth_squares_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        hth_set(p->out, i, 2 * (p->a[i] - p->b[i]) * p->factor, p->half);
    }
}
