// SPDX-License-Identifier: Apache-2.0
// Sums and maxima run in 32 lanes, so that the compiler may vectorise them without reordering what
// the source says.
#include "kernels/cpu/rows.h"

#include "kernels/cpu/vector.h"

#define ROW_LANES 32

// Joins the lanes by halves, into lane 0; each width is a constant for the compiler.
#define ROW_HALF(W, EXPR)                                                                          \
    for (size_t w = (W), l = 0; l < (W); l++) {                                                    \
        lane[l] = (EXPR);                                                                          \
    }
#define ROW_JOIN(EXPR)                                                                             \
    ROW_HALF(16, EXPR)                                                                             \
    ROW_HALF(8, EXPR) ROW_HALF(4, EXPR) ROW_HALF(2, EXPR) ROW_HALF(1, EXPR)

HTH_VECTOR(softmax_row, (const float *x, float *y, size_t n, float hidden), (x, y, n, hidden))
{
    float lane[ROW_LANES], max = -INFINITY, sum = 0;
    size_t whole = n / ROW_LANES * ROW_LANES;
    for (int l = 0; l < ROW_LANES; l++) {
        lane[l] = -INFINITY;
    }
    for (size_t i = 0; i < whole; i += ROW_LANES) {
        for (int l = 0; l < ROW_LANES; l++) {
            lane[l] = x[i + (size_t)l] > lane[l] ? x[i + (size_t)l] : lane[l];
        }
    }
    for (size_t i = whole; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    ROW_JOIN(lane[l] > lane[l + w] ? lane[l] : lane[l + w]);
    max = lane[0] > max ? lane[0] : max;
    if (max == -INFINITY) {
        for (size_t i = 0; i < n; i++) {
            y[i] = hidden;
        }
        return;
    }
    for (int l = 0; l < ROW_LANES; l++) {
        lane[l] = 0;
    }
    for (size_t i = 0; i < whole; i += ROW_LANES) {
        for (int l = 0; l < ROW_LANES; l++) {
            float e = hth_expf(x[i + (size_t)l] - max);
            y[i + (size_t)l] = e;
            lane[l] += e;
        }
    }
    for (size_t i = whole; i < n; i++) {
        y[i] = hth_expf(x[i] - max);
        sum += y[i];
    }
    ROW_JOIN(lane[l] + lane[l + w]);
    sum += lane[0];
    float scale = 1.0F / sum;
    for (size_t i = 0; i < n; i++) {
        y[i] *= scale;
    }
}

void hth_softmax_row(const float *x, float *y, size_t n, float hidden)
{
    softmax_row(x, y, n, hidden);
}

HTH_VECTOR(softmax_mask, (float *x, const float *mask, size_t step, size_t n), (x, mask, step, n))
{
    if (step == 1) {
        for (size_t i = 0; i < n; i++) {
            x[i] += mask[i];
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        x[i] += mask[i * step];
    }
}

void hth_softmax_mask(float *x, const float *mask, size_t step, size_t n)
{
    softmax_mask(x, mask, step, n);
}

#define ROW_SUM(EXPR)                                                                              \
    float lane[ROW_LANES] = {0}, sum = 0;                                                          \
    size_t whole = n / ROW_LANES * ROW_LANES;                                                      \
    for (size_t i = 0; i < whole; i += ROW_LANES) {                                                \
        for (size_t l = 0; l < ROW_LANES; l++) {                                                   \
            float v = x[i + l];                                                                    \
            lane[l] += (EXPR);                                                                     \
        }                                                                                          \
    }                                                                                              \
    for (size_t i = whole; i < n; i++) {                                                           \
        float v = x[i];                                                                            \
        sum += (EXPR);                                                                             \
    }                                                                                              \
    ROW_JOIN(lane[l] + lane[l + w])                                                                \
    *out = sum + lane[0]

HTH_VECTOR(row_sum, (const float *x, size_t n, float *out), (x, n, out))
{
    ROW_SUM(v);
}

HTH_VECTOR(row_squares, (const float *x, size_t n, float mean, float *out), (x, n, mean, out))
{
    ROW_SUM((v - mean) * (v - mean));
}

float hth_row_sum(const float *x, size_t n)
{
    float sum;
    row_sum(x, n, &sum);
    return sum;
}

float hth_row_squares(const float *x, size_t n, float mean)
{
    float sum;
    row_squares(x, n, mean, &sum);
    return sum;
}
