// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/resize.cu - Resize of the last dimensions by nearest neighbour or linear
// interpolation: a result per thread. Bytes moved: the result, and x, whose neighbours come from the
// cache.
#include "kernels/cuda/params.h"

// coordinates: 0 half_pixel, 1 pytorch_half_pixel, 2 align_corners, 3 asymmetric.
HTH_FN float resize_coordinate(const hth_resize_params *p, int d, int32_t o)
{
    float in = (float)p->in[d], out = p->scale[d] * in, x = (float)o;
    if (p->coordinates == 2) {
        return out == 1 ? 0 : x * (in - 1) / (out - 1);
    }
    if (p->coordinates == 3) {
        return x / p->scale[d];
    }
    return p->coordinates == 1 && out == 1 ? -0.5f : (x + 0.5f) / p->scale[d] - 0.5f;
}

HTH_FN int32_t resize_clamp(float x, int32_t n)
{
    return x < 0 ? 0 : x > (float)(n - 1) ? n - 1 : (int32_t)x;
}

// nearest: 0 round_prefer_floor, 1 round_prefer_ceil, 2 floor, 3 ceil.
HTH_FN int32_t resize_nearest(const hth_resize_params *p, int d, float x)
{
    float r = p->nearest == 0   ? ceilf(x - 0.5f)
              : p->nearest == 1 ? floorf(x + 0.5f)
              : p->nearest == 2 ? floorf(x)
                                : ceilf(x);
    return resize_clamp(r, p->in[d]);
}

// The two neighbours in dimension d, and the second one's weight.
HTH_FN float resize_pair(const hth_resize_params *p, int d, int32_t o, int32_t at[2])
{
    float x = resize_coordinate(p, d, o), low = floorf(x);
    if (!p->linear) {
        at[0] = at[1] = resize_nearest(p, d, x);
        return 0;
    }
    at[0] = resize_clamp(low, p->in[d]);
    at[1] = resize_clamp(low + 1, p->in[d]);
    return x - low;
}

HTH_KERNEL(hth_resize, hth_resize_params, 1)
{
    uint32_t size_in = (uint32_t)(p->in[0] * p->in[1] * p->in[2]);
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t rest = i;
        int32_t at[3][2];
        float w[3], sum = 0;
        for (int d = 2; d >= 0; d--) {
            w[d] = resize_pair(p, d, (int32_t)(rest % (uint32_t)p->out[d]), at[d]);
            rest /= (uint32_t)p->out[d];
        }
        const float *x = p->x + rest * size_in;
        for (int k = 0; k < 8; k++) {
            int a = k >> 2, b = k >> 1 & 1, c = k & 1;
            float weight = (a ? w[0] : 1 - w[0]) * (b ? w[1] : 1 - w[1]) * (c ? w[2] : 1 - w[2]);
            if (weight != 0) {
                sum += weight * x[(at[0][a] * p->in[1] + at[1][b]) * p->in[2] + at[2][c]];
            }
        }
        p->y[i] = sum;
    }
}
