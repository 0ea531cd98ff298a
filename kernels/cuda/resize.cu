// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/resize.cu - Resize of three neighbouring dimensions by nearest neighbour, linear or
// cubic interpolation, and its gradient: a result per thread. The gradient asks which results an
// element is a neighbour of, so that nothing is added by two threads. Bytes moved: the result, and
// x, whose neighbours come from the cache.
#include "kernels/cuda/params.h"

// What one position of the result reads in one dimension: taps at first, first + 1, ..; weights are
// multiplied by `factor`.
typedef struct resize_line {
    double x, first;
    float factor;
    int32_t taps;
} resize_line;

// coordinates: 0 half_pixel, 1 pytorch_half_pixel, 2 align_corners, 3 asymmetric,
// 4 tf_crop_and_resize, 5 half_pixel_symmetric.
// In double: a position that is an integer must not become a little less.
HTH_FN double resize_coordinate(const hth_resize_params *p, int d, int32_t o)
{
    double in = p->in[d], out = p->scale[d] * in, x = o;
    if (p->coordinates == 2) {
        return out == 1 ? 0 : x * (in - 1) / (out - 1);
    }
    if (p->coordinates == 3) {
        return x / p->scale[d];
    }
    if (p->coordinates == 4) {
        double size = p->size[d] * (in - 1);
        return p->from[d] * (in - 1) + (out == 1 ? size / 2 : x * size / (out - 1));
    }
    if (p->coordinates == 1 && out == 1) {
        return -0.5;
    }
    double shift = p->coordinates == 5 ? in / 2 * (1 - p->out[d] / out) : 0;
    return shift + (x + 0.5) / p->scale[d] - 0.5;
}

HTH_FN int32_t resize_clamp(double x, int32_t n)
{
    if (x < 0) {
        return 0;
    }
    return x > (double)(n - 1) ? n - 1 : (int32_t)x;
}

// nearest: 0 round_prefer_floor, 1 round_prefer_ceil, 2 floor, 3 ceil.
HTH_FN double resize_nearest(const hth_resize_params *p, double x)
{
    switch (p->nearest) {
    case 0: return ceil(x - 0.5);
    case 1: return floor(x + 0.5);
    case 2: return floor(x);
    default: return ceil(x);
    }
}

HTH_FN float resize_kernel(const hth_resize_params *p, float distance)
{
    float x = fabsf(distance), a = p->cubic_a;
    if (!p->cubic) {
        return x < 1 ? 1 - x : 0;
    }
    if (x <= 1) {
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    }
    return x < 2 ? a * (((x - 5) * x + 8) * x - 4) : 0;
}

// The weight of tap k, and where it reads.
HTH_FN float resize_tap(const hth_resize_params *p, int d, const resize_line *l, int32_t k,
                        int32_t *at)
{
    double to = l->first + k;
    *at = resize_clamp(to, p->in[d]);
    if (p->taps[d] == 1) {
        return 1;
    }
    if (p->exclude && (to < 0 || to > (double)(p->in[d] - 1))) {
        return 0;
    }
    return resize_kernel(p, (float)((to - l->x) * p->stretch[d])) * l->factor;
}

HTH_FN resize_line resize_at(const hth_resize_params *p, int d, int32_t o)
{
    resize_line l = {(double)o, (double)o, 1, p->taps[d]};
    if (!p->moves[d]) {
        return l;
    }
    l.x = resize_coordinate(p, d, o);
    l.first = p->taps[d] == 1 ? resize_nearest(p, l.x) : ceil(l.x) - p->taps[d] / 2;
    float sum = 0;
    for (int32_t k = 0; p->divides && p->taps[d] > 1 && k < p->taps[d]; k++) {
        int32_t at;
        sum += resize_tap(p, d, &l, k, &at);
    }
    l.factor = sum != 0 ? 1 / sum : 1;
    return l;
}

// Outside of the image that was cut out.
HTH_FN int resize_outside(const hth_resize_params *p, int d, const resize_line *l)
{
    return p->coordinates == 4 && p->moves[d] && (l->x < 0 || l->x > (double)(p->in[d] - 1));
}

HTH_FN float resize_sum(const hth_resize_params *p, const resize_line *l, int64_t base)
{
    int32_t at[3];
    float sum = 0;
    for (int32_t a = 0; a < l[0].taps; a++) {
        float wa = resize_tap(p, 0, &l[0], a, &at[0]);
        for (int32_t b = 0; wa != 0 && b < l[1].taps; b++) {
            float wb = wa * resize_tap(p, 1, &l[1], b, &at[1]);
            int64_t row = ((int64_t)at[0] * p->in[1] + at[1]) * p->in[2];
            for (int32_t c = 0; wb != 0 && c < l[2].taps; c++) {
                float w = wb * resize_tap(p, 2, &l[2], c, &at[2]);
                sum += w != 0 ? w * hth_get(p->x, base + (row + at[2]) * p->inner, p->half) : 0;
            }
        }
    }
    return sum;
}

HTH_KERNEL(hth_resize, hth_resize_params, 1)
{
    uint32_t size_in = (uint32_t)(p->in[0] * p->in[1] * p->in[2]);
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t rest = i / p->inner;
        resize_line l[3];
        int outside = 0;
        for (int d = 2; d >= 0; d--) {
            l[d] = resize_at(p, d, (int32_t)(rest % (uint32_t)p->out[d]));
            outside |= resize_outside(p, d, &l[d]);
            rest /= (uint32_t)p->out[d];
        }
        int64_t base = (int64_t)rest * size_in * p->inner + i % p->inner;
        hth_set(p->y, i, outside ? p->outside : resize_sum(p, l, base), p->half);
    }
}

// The results that may have element i of dimension d as a neighbour: [*low, *high].
HTH_FN void resize_range(const hth_resize_params *p, int d, int32_t i, int32_t *low, int32_t *high)
{
    double ratio = p->in[d] > 1 && p->coordinates == 2
                       ? (double)(p->out[d] - 1) / (double)(p->in[d] - 1)
                       : p->scale[d];
    double margin = (p->taps[d] / 2 + 1) * ratio + 2;
    int whole = p->in[d] == 1 || p->coordinates == 4;
    if (!p->moves[d]) {
        *low = *high = i;
        return;
    }
    *low = whole ? 0 : resize_clamp(floor(i * ratio - margin), p->out[d]);
    *high = whole ? p->out[d] - 1 : resize_clamp(ceil((i + 1) * ratio + margin), p->out[d]);
}

// What element i weighs in result o.
HTH_FN float resize_weight(const hth_resize_params *p, int d, int32_t o, int32_t i)
{
    resize_line l = resize_at(p, d, o);
    float sum = 0;
    for (int32_t k = 0; k < l.taps && !resize_outside(p, d, &l); k++) {
        int32_t at;
        float w = resize_tap(p, d, &l, k, &at);
        sum += at == i ? w : 0;
    }
    return sum;
}

// x: the gradient of the result; y: that of the input, whose sizes are `in`.
HTH_KERNEL(hth_resize_grad, hth_resize_params, 1)
{
    uint32_t size_out = (uint32_t)(p->out[0] * p->out[1] * p->out[2]);
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int32_t at[3], low[3], high[3];
        uint32_t rest = i / p->inner;
        float sum = 0;
        for (int d = 2; d >= 0; d--) {
            at[d] = (int32_t)(rest % (uint32_t)p->in[d]);
            rest /= (uint32_t)p->in[d];
            resize_range(p, d, at[d], &low[d], &high[d]);
        }
        int64_t base = (int64_t)rest * size_out * p->inner + i % p->inner;
        for (int32_t a = low[0]; a <= high[0]; a++) {
            float wa = resize_weight(p, 0, a, at[0]);
            for (int32_t b = low[1]; wa != 0 && b <= high[1]; b++) {
                float wb = wa * resize_weight(p, 1, b, at[1]);
                int64_t row = ((int64_t)a * p->out[1] + b) * p->out[2];
                for (int32_t c = low[2]; wb != 0 && c <= high[2]; c++) {
                    float w = wb * resize_weight(p, 2, c, at[2]);
                    sum += w != 0 ? w * hth_get(p->x, base + (row + c) * p->inner, p->half) : 0;
                }
            }
        }
        hth_set(p->y, i, sum, p->half);
    }
}
