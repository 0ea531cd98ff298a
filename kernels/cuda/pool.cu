// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/pool.cu - pooling over windows of up to three dimensions, and its gradients. A
// result per thread; the gradient asks for each element of x which windows hold it, so that nothing
// is added by two threads and the sum has one order. Bytes moved: x and y once, windows that
// overlap read from the cache.
#include "kernels/cuda/params.h"

HTH_FN void pool_position(const int32_t size[3], uint32_t i, int32_t at[3])
{
    at[2] = (int32_t)(i % (uint32_t)size[2]);
    i /= (uint32_t)size[2];
    at[1] = (int32_t)(i % (uint32_t)size[1]);
    at[0] = (int32_t)(i / (uint32_t)size[1]);
}

HTH_FN uint32_t pool_elements(const int32_t size[3])
{
    return (uint32_t)size[0] * (uint32_t)size[1] * (uint32_t)size[2];
}

// The input element under a tap of the window at `at`; -1: none.
HTH_FN int32_t pool_touch(const hth_pool_params *p, const int32_t at[3], const int32_t tap[3])
{
    int32_t index = 0;
    for (int i = 0; i < 3; i++) {
        int32_t x = at[i] * p->stride[i] - p->pad[i] + tap[i] * p->dilation[i];
        if (x < 0 || x >= p->in[i]) {
            return -1;
        }
        index = index * p->in[i] + x;
    }
    return index;
}

// What AveragePool divides by: taps in the image, or in image and pads.
HTH_FN float pool_divisor(const hth_pool_params *p, const int32_t at[3])
{
    int32_t n = 1;
    for (int i = 0; i < 3; i++) {
        int32_t count = 0;
        for (int32_t k = 0; k < p->k[i]; k++) {
            int32_t x = at[i] * p->stride[i] - p->pad[i] + k * p->dilation[i];
            count +=
                x < p->in[i] + (p->count_pads ? p->pad_end[i] : 0) && (p->count_pads || x >= 0);
        }
        n *= count;
    }
    return (float)n;
}

typedef struct pool_result {
    float value;
    int32_t tap, where;
} pool_result;

HTH_FN pool_result pool_window(const hth_pool_params *p, int64_t base, const int32_t at[3])
{
    pool_result r = {p->kind == HTH_POOL_MAX ? -INFINITY : 0, 0, -1};
    int32_t n_taps = p->k[0] * p->k[1] * p->k[2], tap[3];
    for (int32_t k = 0; k < n_taps; k++) {
        pool_position(p->k, (uint32_t)k, tap);
        int32_t i = pool_touch(p, at, tap);
        if (i < 0) {
            continue;
        }
        float v = hth_get(p->x, base + (int64_t)i * p->inner, p->half);
        if (p->kind != HTH_POOL_MAX) {
            r.value += p->kind == HTH_POOL_LP ? powf(fabsf(v), p->p) : v;
        } else if (r.where < 0 || v > r.value || (v != v && r.value == r.value)) {
            r.value = v;
            r.tap = k;
            r.where = i;
        }
    }
    return r;
}

HTH_KERNEL(hth_pool, hth_pool_params, 1)
{
    uint32_t size_in = pool_elements(p->in), size_out = pool_elements(p->out);
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t row = i / p->inner, image = row / size_out;
        int32_t at[3];
        pool_position(p->out, row % size_out, at);
        pool_result r =
            pool_window(p, (int64_t)image * size_in * p->inner + i % p->inner, at);
        if (p->kind == HTH_POOL_AVERAGE) {
            float n = pool_divisor(p, at);
            r.value = n > 0 ? r.value / n : 0;
        } else if (p->kind == HTH_POOL_LP) {
            r.value = powf(r.value, 1 / p->p);
        }
        hth_set(p->y, i, r.value, p->half);
        if (p->tap != NULL) {
            p->tap[i] = (uint8_t)r.tap;
        }
        if (p->where != NULL) {
            p->where[i] = (int64_t)image * size_in + r.where;
        }
    }
}

// The output position whose window has `at` under `tap`; false: none.
HTH_FN int pool_window_of(const hth_pool_params *p, const int32_t at[3], const int32_t tap[3],
                          int32_t out[3])
{
    for (int i = 0; i < 3; i++) {
        int32_t x = at[i] + p->pad[i] - tap[i] * p->dilation[i];
        out[i] = x / p->stride[i];
        if (x < 0 || x % p->stride[i] != 0 || out[i] >= p->out[i]) {
            return 0;
        }
    }
    return 1;
}

// x: the gradient of y; y: that of x.
HTH_KERNEL(hth_pool_grad, hth_pool_params, 1)
{
    uint32_t size_in = pool_elements(p->in), size_out = pool_elements(p->out);
    int32_t n_taps = p->k[0] * p->k[1] * p->k[2];
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int32_t at[3], tap[3], out[3];
        float sum = 0;
        uint32_t row = i / p->inner;
        pool_position(p->in, row % size_in, at);
        for (int32_t k = n_taps - 1; k >= 0; k--) { // windows in their order
            pool_position(p->k, (uint32_t)k, tap);
            if (!pool_window_of(p, at, tap, out)) {
                continue;
            }
            uint32_t o = row / size_in * size_out +
                         (uint32_t)((out[0] * p->out[1] + out[1]) * p->out[2] + out[2]);
            o = o * p->inner + i % p->inner;
            if (p->kind == HTH_POOL_AVERAGE) {
                sum += hth_get(p->x, o, p->half) / pool_divisor(p, out);
            } else if (p->tap[o] == k) {
                sum += hth_get(p->x, o, p->half);
            }
        }
        hth_set(p->y, i, sum, p->half);
    }
}
