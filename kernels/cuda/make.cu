// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/make.cu - results that are made of few numbers: EyeLike, ConstantOfShape, Range; and
// the list of positions that Compress takes. Bytes moved: the result.
#include "kernels/cuda/index.h"
#include "kernels/cuda/number.h"
#include "kernels/cuda/params.h"

// `value` where `cols` is 0, else on diagonal k of a matrix; zeros elsewhere.
HTH_KERNEL(hth_make, hth_make_params, 1)
{
    const uint64_t value[2] = {p->value, p->value};
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int here = p->cols == 0 || (int64_t)(i % p->cols) == (int64_t)(i / p->cols) + p->k;
        hth_element_copy(p->out, i, value, here ? 0 : -1, p->element);
    }
}

// start + i * delta, of integers as their type wraps, of floats rounded once.
HTH_KERNEL(hth_range, hth_make_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        hth_number v = {0, 0};
        switch (p->type) {
        case HTH_DT_F16:
        case HTH_DT_BF16:
            v.f = hth_number_get(p->type, p->start, 0).f +
                  (double)i * hth_number_get(p->type, p->delta, 0).f;
            hth_number_set(p->type, p->out, i, v);
            break;
        case HTH_DT_F32:
            ((float *)p->out)[i] = (float)((double)*(const float *)p->start +
                                           (double)i * (double)*(const float *)p->delta);
            break;
        case HTH_DT_F64:
            ((double *)p->out)[i] =
                *(const double *)p->start + (double)i * *(const double *)p->delta;
            break;
        case HTH_DT_I16:
            ((int16_t *)p->out)[i] = (int16_t)((uint32_t)*(const int16_t *)p->start +
                                               i * (uint32_t)*(const int16_t *)p->delta);
            break;
        case HTH_DT_I32:
            ((uint32_t *)p->out)[i] =
                *(const uint32_t *)p->start + i * *(const uint32_t *)p->delta;
            break;
        default:
            ((uint64_t *)p->out)[i] =
                *(const uint64_t *)p->start + (uint64_t)i * *(const uint64_t *)p->delta;
        }
    }
}

// One block: the places of what is true among n booleans, in order. Each thread counts its part,
// then knows where its own begin.
HTH_KERNEL(hth_compress, hth_make_params, 3)
{
    const uint8_t *keep = (const uint8_t *)p->start;
    uint32_t *count = (uint32_t *)(void *)shared, part = (p->n + t->n_threads - 1) / t->n_threads;
    uint32_t from = t->thread * part < p->n ? t->thread * part : p->n;
    uint32_t end = p->n - from < part ? p->n : from + part, at = 0;
    if (phase == 1 && t->thread == 0) {
        for (uint32_t i = 0; i < t->n_threads; i++) {
            uint32_t own = count[i];
            count[i] = at;
            at += own;
        }
    }
    if (phase == 1) {
        return;
    }
    at = phase == 2 ? count[t->thread] : 0;
    for (uint32_t i = from; i < end; i++) {
        if (keep[i] != 0) {
            if (phase == 2) {
                ((int64_t *)p->out)[at] = i;
            }
            at++;
        }
    }
    if (phase == 0) {
        count[t->thread] = at;
    }
}
