// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/lrn.cu - local response normalisation over channels, and its gradient: an element
// per thread. Bytes moved: x once per element of the window, from the cache but for the first.
#include "kernels/cuda/params.h"

// bias + alpha * (sum of squares around channel c); `first` is position (image, 0, s).
HTH_FN float lrn_sum(const hth_lrn_params *p, uint32_t first, int32_t c)
{
    float sum = 0;
    for (int32_t q = c - p->before; q <= c + p->after; q++) {
        if (q >= 0 && q < (int32_t)p->channels) {
            float v = hth_get(p->x, first + (uint32_t)q * p->inner, p->half_x);
            sum += v * v;
        }
    }
    return p->bias + p->alpha * sum;
}

HTH_KERNEL(hth_lrn, hth_lrn_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t c = i / p->inner % p->channels;
        float x = hth_get(p->x, i, p->half_x);
        float sum = lrn_sum(p, i - c * p->inner, (int32_t)c);
        hth_set(p->out, i, x / powf(sum, p->beta), p->half_out);
    }
}

// The channels whose windows contain c: c - after .. c + before.
HTH_KERNEL(hth_lrn_grad, hth_lrn_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int32_t c = (int32_t)(i / p->inner % p->channels);
        uint32_t first = i - (uint32_t)c * p->inner;
        float own = hth_get(p->dy, i, p->half_dy) * powf(lrn_sum(p, first, c), -p->beta);
        float others = 0;
        for (int32_t q = c - p->after; q <= c + p->before; q++) {
            if (q >= 0 && q < (int32_t)p->channels) {
                uint32_t at = first + (uint32_t)q * p->inner;
                float x = hth_get(p->x, at, p->half_x), dy = hth_get(p->dy, at, p->half_dy);
                others += dy * x * powf(lrn_sum(p, first, q), -p->beta - 1);
            }
        }
        float x = hth_get(p->x, i, p->half_x);
        hth_set(p->out, i, own - 2 * p->alpha * p->beta * x * others, p->half_out);
    }
}
