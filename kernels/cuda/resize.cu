// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/resize.cu - Resize of the last dimensions by nearest neighbour or linear
// interpolation, and its gradient: a result per thread. The gradient asks which results an element is
// a neighbour of, so that nothing is added by two threads. Bytes moved: the result, and x, whose
// neighbours come from the cache.
#include "kernels/cuda/params.h"

// coordinates: 0 half_pixel, 1 pytorch_half_pixel, 2 align_corners, 3 asymmetric.
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
    return p->coordinates == 1 && out == 1 ? -0.5 : (x + 0.5) / p->scale[d] - 0.5;
}

HTH_FN int32_t resize_clamp(double x, int32_t n)
{
    return x < 0 ? 0 : x > (double)(n - 1) ? n - 1 : (int32_t)x;
}

// nearest: 0 round_prefer_floor, 1 round_prefer_ceil, 2 floor, 3 ceil.
HTH_FN int32_t resize_nearest(const hth_resize_params *p, int d, double x)
{
    double r = p->nearest == 0   ? ceil(x - 0.5)
               : p->nearest == 1 ? floor(x + 0.5)
               : p->nearest == 2 ? floor(x)
                                 : ceil(x);
    return resize_clamp(r, p->in[d]);
}

// The two neighbours in dimension d, and the second one's weight.
HTH_FN float resize_pair(const hth_resize_params *p, int d, int32_t o, int32_t at[2])
{
    double x = resize_coordinate(p, d, o), low = floor(x);
    if (!p->linear) {
        at[0] = at[1] = resize_nearest(p, d, x);
        return 0;
    }
    at[0] = resize_clamp(low, p->in[d]);
    at[1] = resize_clamp(low + 1, p->in[d]);
    return (float)(x - low);
}

HTH_KERNEL(hth_resize, hth_resize_params, 1)
{
    uint32_t size_in = (uint32_t)(p->in[0] * p->in[1] * p->in[2]);
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t rest = i / p->inner;
        int32_t at[3][2];
        float w[3], sum = 0;
        for (int d = 2; d >= 0; d--) {
            w[d] = resize_pair(p, d, (int32_t)(rest % (uint32_t)p->out[d]), at[d]);
            rest /= (uint32_t)p->out[d];
        }
        int64_t base = (int64_t)rest * size_in * p->inner + i % p->inner;
        for (int k = 0; k < 8; k++) {
            int a = k >> 2, b = k >> 1 & 1, c = k & 1;
            float weight = (a ? w[0] : 1 - w[0]) * (b ? w[1] : 1 - w[1]) * (c ? w[2] : 1 - w[2]);
            if (weight != 0) {
                int64_t from = (at[0][a] * p->in[1] + at[1][b]) * p->in[2] + at[2][c];
                sum += weight * hth_get(p->x, base + from * p->inner, p->half);
            }
        }
        hth_set(p->y, i, sum, p->half);
    }
}

// The results that may have element i of dimension d as a neighbour: [*low, *high].
HTH_FN void resize_range(const hth_resize_params *p, int d, int32_t i, int32_t *low, int32_t *high)
{
    float ratio = p->in[d] > 1 && p->coordinates == 2
                      ? (float)(p->out[d] - 1) / (float)(p->in[d] - 1)
                      : (float)p->scale[d];
    float margin = 2 * ratio + 2;
    int whole = p->in[d] == 1;
    *low = whole ? 0 : resize_clamp(floorf((float)i * ratio - margin), p->out[d]);
    *high = whole ? p->out[d] - 1 : resize_clamp(ceilf((float)(i + 1) * ratio + margin), p->out[d]);
}

HTH_FN float resize_weight(const hth_resize_params *p, int d, int32_t o, int32_t i)
{
    int32_t at[2];
    float w = resize_pair(p, d, o, at);
    return (at[0] == i ? 1 - w : 0) + (at[1] == i ? w : 0);
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
                for (int32_t c = low[2]; wb != 0 && c <= high[2]; c++) {
                    float w = wb * resize_weight(p, 2, c, at[2]);
                    int64_t from = (a * p->out[1] + b) * p->out[2] + c;
                    sum += w != 0 ? w * hth_get(p->x, base + from * p->inner, p->half) : 0;
                }
            }
        }
        hth_set(p->y, i, sum, p->half);
    }
}
