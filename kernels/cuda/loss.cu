// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/loss.cu - cross-entropies, mean squared error, and the gradients' norm. A row's loss
// by one block, then the sum of all by one; sums over elements by some blocks, then one. Bytes
// moved: cross-entropy reads a row three times (with label smoothing four), all but the first from
// the cache; sums over elements read each operand once.
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
    float *fold = shared + t->n_threads, *folded = fold + HTH_FOLD;
    float part = phase == 0 ? -INFINITY : 0;
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

// The weight of a label, NaN: it is no class.
HTH_FN float xent_weight(const hth_xent_params *p, int64_t label)
{
    int valid = label >= 0 && label < (int64_t)p->classes;
    return !valid ? NAN : p->weights != NULL ? p->weights[label] : 1;
}

HTH_KERNEL(hth_xent_rows, hth_xent_params, 7)
{
    float *fold = shared + t->n_threads, *even = fold + 2 * HTH_FOLD;
    const float *x = xent_row(p, p->x, t->block);
    xent_moments(p, t, phase, shared);
    if (phase < 4) {
        return;
    }
    float log_sum = logf(hth_fold_sum(fold + HTH_FOLD)), max = hth_fold_max(fold);
    if (phase == 4 && p->smoothing > 0) {
        float part = 0;
        for (uint32_t i = t->thread; i < p->classes; i += t->n_threads) {
            part += xent_weight(p, i) * (log_sum + max - x[i * p->inner]);
        }
        shared[t->thread] = part;
    } else if (phase == 5 && p->smoothing > 0 && t->thread < HTH_FOLD) {
        even[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 6 && t->thread == 0) {
        int64_t label = xent_label(p, t->block);
        float loss = NAN;
        if (label == p->ignore) {
            loss = 0;
        } else if (label >= 0 && label < (int64_t)p->classes) {
            loss = (1 - p->smoothing) * xent_weight(p, label) *
                   (log_sum + max - x[label * p->inner]);
            loss += p->smoothing > 0 ? p->smoothing / (float)p->classes * hth_fold_sum(even) : 0;
        }
        p->rows[t->block] = loss;
    }
}

// One block: the loss (out may be NULL), what the rows' labels weigh, and all classes.
HTH_KERNEL(hth_xent_sum, hth_xent_params, 3)
{
    float *norms = shared + t->n_threads, *totals = norms + t->n_threads;
    float *fold = totals + t->n_threads, sum = 0, norm = 0, total = 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < p->n_rows; i += t->n_threads) {
            int64_t label = xent_label(p, i);
            sum += p->rows != NULL ? p->rows[i] : 0;
            norm += label != p->ignore ? xent_weight(p, label) : 0;
        }
        for (uint32_t i = t->thread; i < p->classes && p->weights != NULL; i += t->n_threads) {
            total += p->weights[i];
        }
        shared[t->thread] = sum;
        norms[t->thread] = norm;
        totals[t->thread] = total;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
        fold[HTH_FOLD + t->thread] = hth_fold_share(t, norms);
        fold[2 * HTH_FOLD + t->thread] = hth_fold_share(t, totals);
    } else if (phase == 2 && t->thread == 0) {
        norm = p->hyper != NULL ? p->hyper[HTH_HYPER_LOSS_NORM] : hth_fold_sum(fold + HTH_FOLD);
        norm = norm == 0 ? INFINITY : norm; // nothing weighs: loss and gradients are 0
        p->counted[0] = norm;
        p->counted[1] = p->weights != NULL ? hth_fold_sum(fold + 2 * HTH_FOLD) : (float)p->classes;
        if (p->out != NULL) {
            ((float *)p->out)[0] = hth_fold_sum(fold) / norm;
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
    float own = (1 - p->smoothing) * xent_weight(p, label);
    float even = p->smoothing / (float)p->classes, all = own + even * p->counted[1];
    const float *x = xent_row(p, p->x, t->block);
    int64_t dx = x - p->x;
    for (uint32_t i = t->thread; i < p->classes; i += t->n_threads) {
        float g = expf(x[i * p->inner] - max) / sum * all - (i == label ? own : 0);
        g -= even > 0 ? even * xent_weight(p, i) : 0;
        hth_set(p->out, dx + (int64_t)i * p->inner, counts ? g / n : 0, p->half);
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
            float given = p->hyper[HTH_HYPER_CLIP];
            ((float *)p->out)[0] = given > 0 ? given : fminf(1, p->max_norm / (norm + 1e-6f));
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

// The positive target's part of element i, weighted.
HTH_FN float bce_positive(const hth_bce_params *p, uint32_t i)
{
    float w = p->weights == NULL ? 1 : p->weights[i / p->inner % p->classes];
    return w * p->y[i];
}

HTH_KERNEL(hth_bce, hth_bce_params, 3)
{
    float *fold = shared + t->n_threads, part = 0;
    if (phase == 0) {
        for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
            float positive = bce_positive(p, i), negative = 1 - p->y[i], x = p->x[i];
            part += negative * (x > 0 ? x : 0) - positive * (x < 0 ? x : 0);
            part += (negative + positive) * log1pf(expf(-fabsf(x)));
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2 && t->thread == 0) {
        p->part[t->block] = hth_fold_sum(fold);
    }
}

HTH_KERNEL(hth_bce_grad, hth_bce_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        float positive = bce_positive(p, i), negative = 1 - p->y[i], x = p->x[i];
        float e = expf(-fabsf(x)), q = 1 / (1 + e);
        float g = negative * (x < 0 ? e * q : q) - positive * (x < 0 ? q : e * q);
        hth_set(p->out, i, g * p->factor, p->half);
    }
}
