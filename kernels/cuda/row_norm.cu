// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/row_norm.cu - layer, RMS, group and instance norm and their gradients: a row of
// elements with moments of its own per block, four per access. Bytes moved: a row three times,
// twice of them from the cache where it fits, and its result; the parameters' gradients read dy and
// x once more.
#include "kernels/cuda/params.h"

HTH_FN uint32_t rows_param(const hth_rows_params *p, uint32_t row, uint32_t i)
{
    return row % p->groups * p->per + i / p->inner;
}

// Phases 0 to 3: sums of x, then of squared distances, folded into fold and folded. With `mean`
// given by fold alone.
HTH_FN void rows_moments(const hth_rows_params *p, const hth_grid *t, int phase, float *shared)
{
    int64_t first = (int64_t)t->block * p->size;
    float *fold = shared + 2 * t->n_threads, part = 0;
    if (phase == 0) {
        for (uint32_t i = 4 * t->thread; i < p->size && p->centre; i += 4 * t->n_threads) {
            hth_f4 x = hth_row_get(p->x, first, i, p->size, p->half_x);
            part += (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]);
        }
        shared[t->thread] = part;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
    } else if (phase == 2) {
        float mean = hth_fold_sum(fold) / (float)p->size;
        for (uint32_t i = 4 * t->thread; i < p->size; i += 4 * t->n_threads) {
            hth_f4 x = hth_row_get(p->x, first, i, p->size, p->half_x);
            for (uint32_t k = 0; k < hth_row_count(i, p->size); k++) {
                part += (x.v[k] - mean) * (x.v[k] - mean);
            }
        }
        shared[t->thread] = part;
    } else if (phase == 3 && t->thread < HTH_FOLD) {
        fold[HTH_FOLD + t->thread] = hth_fold_share(t, shared);
    }
}

HTH_FN float rows_mean(const hth_rows_params *p, const hth_grid *t, const float *shared)
{
    return p->given_mean != NULL ? p->given_mean[t->block]
                                 : hth_fold_sum(shared + 2 * t->n_threads) / (float)p->size;
}

HTH_FN float rows_inv(const hth_rows_params *p, const hth_grid *t, const float *shared)
{
    const float *folded = shared + 2 * t->n_threads + HTH_FOLD;
    return p->given_inv != NULL ? p->given_inv[t->block]
                                : 1 / sqrtf(hth_fold_sum(folded) / (float)p->size + p->eps);
}

HTH_FN void rows_keep(const hth_rows_params *p, const hth_grid *t, float mean, float inv)
{
    if (t->thread == 0 && p->mean != NULL) {
        p->mean[t->block] = mean;
    }
    if (t->thread == 0 && p->inv != NULL) {
        p->inv[t->block] = inv;
    }
}

HTH_KERNEL(hth_rows, hth_rows_params, 5)
{
    rows_moments(p, t, phase, shared);
    if (phase < 4) {
        return;
    }
    int64_t first = (int64_t)t->block * p->size;
    float mean = rows_mean(p, t, shared), inv = rows_inv(p, t, shared);
    for (uint32_t i = 4 * t->thread; i < p->size; i += 4 * t->n_threads) {
        hth_f4 x = hth_row_get(p->x, first, i, p->size, p->half_x);
        for (uint32_t e = 0; e < hth_row_count(i, p->size); e++) {
            uint32_t k = rows_param(p, t->block, i + e);
            float shift = p->bias != NULL ? p->bias[k] : 0;
            x.v[e] = (x.v[e] - mean) * inv * p->scale[k] + shift;
        }
        hth_row_set(p->out, first, i, p->size, x, p->half_out);
    }
    rows_keep(p, t, mean, inv);
}

// Four elements of dy, times their parameters.
HTH_FN hth_f4 rows_scaled(const hth_rows_params *p, uint32_t row, uint32_t i)
{
    hth_f4 g = hth_row_get(p->dy, (int64_t)row * p->size, i, p->size, p->half_dy);
    for (uint32_t e = 0; e < hth_row_count(i, p->size); e++) {
        g.v[e] *= p->scale[rows_param(p, row, i + e)];
    }
    return g;
}

HTH_KERNEL(hth_rows_grad, hth_rows_params, 7)
{
    int64_t first = (int64_t)t->block * p->size;
    float *dots = shared + t->n_threads, *fold = shared + 2 * t->n_threads + 2 * HTH_FOLD;
    if (phase < 4 && p->given_mean == NULL) {
        rows_moments(p, t, phase, shared);
    } else if (phase == 4) {
        float mean = rows_mean(p, t, shared), inv = rows_inv(p, t, shared), sum = 0, dot = 0;
        for (uint32_t i = 4 * t->thread; i < p->size; i += 4 * t->n_threads) {
            hth_f4 g = rows_scaled(p, t->block, i); // zeros after the row's end
            hth_f4 x = hth_row_get(p->x, first, i, p->size, p->half_x);
            for (int e = 0; e < 4; e++) {
                sum += g.v[e];
                dot += g.v[e] * ((x.v[e] - mean) * inv);
            }
        }
        shared[t->thread] = sum;
        dots[t->thread] = dot;
        rows_keep(p, t, mean, inv);
    } else if (phase == 5 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
        fold[HTH_FOLD + t->thread] = hth_fold_share(t, dots);
    } else if (phase == 6 && p->out != NULL) {
        float mean = rows_mean(p, t, shared), inv = rows_inv(p, t, shared);
        float sum = hth_fold_sum(fold), dot = hth_fold_sum(fold + HTH_FOLD);
        for (uint32_t i = 4 * t->thread; i < p->size; i += 4 * t->n_threads) {
            hth_f4 g = rows_scaled(p, t->block, i);
            hth_f4 x = hth_row_get(p->x, first, i, p->size, p->half_x);
            for (int e = 0; e < 4; e++) {
                g.v[e] = inv * (g.v[e] - (sum + (x.v[e] - mean) * inv * dot) / (float)p->size);
            }
            hth_row_set(p->out, first, i, p->size, g, p->half_out);
        }
    }
}

// A parameter per block, over the rows of its group.
HTH_KERNEL(hth_rows_grad_params, hth_rows_params, 3)
{
    uint32_t group = t->block / p->per, first = t->block % p->per * p->inner;
    uint32_t n = p->rows / p->groups * p->inner;
    float *dots = shared + t->n_threads, *fold = dots + t->n_threads, sum = 0, dot = 0;
    if (phase == 0) {
        for (uint32_t i = t->thread; i < n; i += t->n_threads) {
            uint32_t row = i / p->inner * p->groups + group;
            uint32_t at = row * p->size + first + i % p->inner;
            float dy = hth_get(p->dy, at, p->half_dy), x = hth_get(p->x, at, p->half_x);
            sum += dy;
            dot += dy * ((x - p->given_mean[row]) * p->given_inv[row]);
        }
        shared[t->thread] = sum;
        dots[t->thread] = dot;
    } else if (phase == 1 && t->thread < HTH_FOLD) {
        fold[t->thread] = hth_fold_share(t, shared);
        fold[HTH_FOLD + t->thread] = hth_fold_share(t, dots);
    } else if (phase == 2 && t->thread == 0) {
        if (p->dbias != NULL) {
            p->dbias[t->block] = hth_fold_sum(fold);
        }
        if (p->dscale != NULL) {
            p->dscale[t->block] = hth_fold_sum(fold + HTH_FOLD);
        }
    }
}
