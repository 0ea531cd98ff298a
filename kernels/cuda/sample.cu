// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/sample.cu - GridSample and its gradients. Taps are worked out per dimension, in
// double: a coordinate that is an integer must not become a little less. A thread samples one place
// of HTH_SAMPLE_CHANNELS channels. Of the gradient by the image a thread owns a band of one channel
// and takes all places in order, so that nothing is added by two threads. Bytes moved: the grid,
// the result, and x, whose neighbours come from the cache; of dx the taps, dy for each of their
// rows.
#include "kernels/cuda/params.h"

// The taps of one dimension; at -1: outside.
typedef struct sample_line {
    int32_t at[4];
    float weight[4], slope[4]; // slope: of the weight, by the grid's number
} sample_line;

HTH_FN double sample_reflect(double x, double lo, double hi)
{
    double range = hi - lo;
    if (range <= 0) {
        return 0;
    }
    if (x >= lo && x <= hi) {
        return x;
    }
    double far = x < lo ? lo - x : fmax(x - hi, 0.0); // fmax: NaN is not far
    double turns = floor(far / range);
    double rest = far - turns * range;
    return (x < lo) == (fmod(turns, 2.0) == 0) ? lo + rest : hi - rest;
}

// Brings a coordinate or a tap into the image; zeros padding leaves it outside.
HTH_FN double sample_inside(const hth_sample_params *p, double x, double end, double half)
{
    if (p->padding == HTH_SAMPLE_BORDER) {
        return fmin(fmax(x, 0.0), end);
    }
    return p->padding == HTH_SAMPLE_REFLECT ? sample_reflect(x, -half, end + half) : x;
}

// How fast sample_inside's result moves with x, which is outside.
HTH_FN double sample_pace(const hth_sample_params *p, double x, double end, double half)
{
    double range = end + 2 * half, far = x < -half ? -half - x : x - (end + half);
    if (p->padding != HTH_SAMPLE_REFLECT) {
        return p->padding == HTH_SAMPLE_BORDER ? 0 : 1;
    }
    if (range <= 0) {
        return 0;
    }
    return fmod(floor(far / range), 2.0) == 0 ? -1 : 1;
}

// The cubic kernel with a = -0.75, at a distance, and its derivative by the coordinate, which is
// `distance` below the tap.
HTH_FN double sample_cubic(double distance)
{
    const double a = -0.75;
    double x = fabs(distance);
    if (x <= 1) {
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    }
    return x < 2 ? a * (((x - 5) * x + 8) * x - 4) : 0;
}

HTH_FN double sample_cubic_slope(double distance)
{
    const double a = -0.75;
    double x = fabs(distance);
    double rise = 0;
    if (x <= 1) {
        rise = (3 * (a + 2) * x - 2 * (a + 3)) * x;
    } else if (x < 2) {
        rise = (3 * a * x - 10 * a) * x + 8 * a;
    }
    return distance < 0 ? rise : -rise;
}

// The weight of tap t, which is `away` from the coordinate, and how it moves with that.
HTH_FN void sample_weigh(const hth_sample_params *p, int t, double away, double *weight,
                         double *slope)
{
    *weight = 1;
    *slope = 0;
    if (p->width == 2) {
        *weight = 1 - fabs(away);
        *slope = t == 0 ? -1 : 1;
    } else if (p->width == 4) {
        *weight = sample_cubic(away);
        *slope = sample_cubic_slope(away);
    }
}

HTH_FN void sample_taps(const hth_sample_params *p, int d, double g, sample_line *s)
{
    double n = p->dim[d], end = n - 1, half = p->corners ? 0 : 0.5;
    double x = p->corners ? (g + 1) / 2 * end : ((g + 1) * n - 1) / 2;
    double pace = (p->corners ? end : n) / 2;
    x = p->width == 1 ? rint(x) : x;
    if (x < -half || x > end + half) {
        pace *= sample_pace(p, x, end, half);
        x = sample_inside(p, x, end, half);
    }
    double first = p->width == 1 ? x : floor(x) - (p->width == 4);
    for (int t = 0; t < p->width; t++) {
        double at = trunc(sample_inside(p, first + t, end, half)), away = first + t - x;
        s->at[t] = at >= 0 && at <= end ? (int32_t)at : -1;
        double weight, slope;
        sample_weigh(p, t, away, &weight, &slope);
        s->weight[t] = (float)weight;
        s->slope[t] = (float)(pace * slope);
    }
}

// Those of a place in all dimensions; the first ones, which the image does not have, have one.
HTH_FN void sample_lines(const hth_sample_params *p, uint32_t place, sample_line *line)
{
    const float *grid = p->grid + (int64_t)place * p->rank;
    for (int d = 0; d < 3; d++) {
        if (d >= 3 - p->rank) {
            sample_taps(p, d, grid[2 - d], &line[d]);
            continue;
        }
        for (int t = 0; t < p->width; t++) {
            line[d].at[t] = t == 0 ? 0 : -1;
            line[d].weight[t] = t == 0 ? 1 : 0;
            line[d].slope[t] = 0;
        }
    }
}

HTH_FN float sample_weight(const sample_line *line, int d, int t, int moved)
{
    return d == moved ? line[d].slope[t] : line[d].weight[t];
}

// A channel's value at a place; how fast it changes with dimension `moved`, unless that is -1.
HTH_FN float sample_at(const hth_sample_params *p, const sample_line *line, int moved,
                       const float *x)
{
    float sum = 0;
    for (int a = 0; a < p->width; a++) {
        for (int b = 0; b < p->width && line[0].at[a] >= 0; b++) {
            const float w = sample_weight(line, 0, a, moved) * sample_weight(line, 1, b, moved);
            const int64_t row = ((int64_t)line[0].at[a] * p->dim[1] + line[1].at[b]) * p->dim[2];
            for (int c = 0; c < p->width && line[1].at[b] >= 0; c++) {
                int32_t at = line[2].at[c];
                sum += at >= 0 ? w * sample_weight(line, 2, c, moved) * x[row + at] : 0;
            }
        }
    }
    return sum;
}

// n: places of all images, for each group of channels.
HTH_KERNEL(hth_sample, hth_sample_params, 1)
{
    uint32_t groups = (p->channels + HTH_SAMPLE_CHANNELS - 1) / HTH_SAMPLE_CHANNELS;
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t place = i % p->places, group = i / p->places % groups, b = i / p->places / groups;
        uint32_t c = group * HTH_SAMPLE_CHANNELS;
        uint32_t end =
            c + HTH_SAMPLE_CHANNELS < p->channels ? c + HTH_SAMPLE_CHANNELS : p->channels;
        sample_line line[3];
        sample_lines(p, b * p->places + place, line);
        for (; c < end; c++) {
            int64_t image = (int64_t)b * p->channels + c;
            p->out[image * p->places + place] = sample_at(p, line, -1, p->x + image * p->size);
        }
    }
}

// n: places of all images; the taps of each, for hth_sample_grad.
HTH_KERNEL(hth_sample_taps, hth_sample_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        sample_line line[3];
        sample_lines(p, i, line);
        for (int d = 0; d < 3; d++) {
            for (int k = 0; k < p->width; k++) {
                const hth_sample_tap tap = {line[d].at[k], line[d].weight[k]};
                p->tap[((int64_t)i * 3 + d) * p->width + k] = tap;
            }
        }
    }
}

// What a place gives to the rows [low, high) of its first real dimension.
HTH_FN void sample_give(const hth_sample_params *p, const hth_sample_tap *tap, float dy, int band,
                        int32_t low, int32_t high, float *dx)
{
    const int w = p->width;
    for (int k = 0; k < w * w * w; k++) {
        const hth_sample_tap *a = &tap[k / (w * w)], *b = &tap[w + k / w % w],
                             *c = &tap[2 * w + k % w];
        int32_t row = band == 0 ? a->at : b->at;
        row = band == 2 ? c->at : row;
        if (a->at >= 0 && b->at >= 0 && c->at >= 0 && row >= low && row < high) {
            dx[((int64_t)a->at * p->dim[1] + b->at) * p->dim[2] + c->at] +=
                a->weight * b->weight * c->weight * dy;
        }
    }
}

// out was filled with zeros. n: bands of all channels, those of neighbouring channels side by side:
// their threads walk the same way.
HTH_KERNEL(hth_sample_grad, hth_sample_params, 1)
{
    const int band = 3 - p->rank;
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t c = i % p->channels, k = i / p->channels % p->bands,
                 b = i / p->channels / p->bands;
        int64_t image = (int64_t)b * p->channels + c;
        int32_t low = (int32_t)((int64_t)p->dim[band] * k / p->bands);
        int32_t high = (int32_t)((int64_t)p->dim[band] * (k + 1) / p->bands);
        const float *dy = p->dy + image * p->places;
        for (uint32_t place = 0; place < p->places; place++) {
            const hth_sample_tap *tap = p->tap + ((int64_t)b * p->places + place) * 3 * p->width;
            int mine = 0;
            for (int w = 0; w < p->width; w++) {
                int32_t at = tap[band * p->width + w].at;
                mine |= at >= low && at < high;
            }
            if (mine) {
                sample_give(p, tap, dy[place], band, low, high, p->out + image * p->size);
            }
        }
    }
}

// n: places of all images: how the result moves with each of a place's numbers.
HTH_KERNEL(hth_sample_grad_grid, hth_sample_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t b = i / p->places, place = i % p->places;
        sample_line line[3];
        sample_lines(p, i, line);
        float sum[3] = {0, 0, 0};
        for (uint32_t c = 0; c < p->channels; c++) {
            int64_t image = (int64_t)b * p->channels + c;
            float dy = p->dy[image * p->places + place];
            for (int d = 3 - p->rank; d < 3; d++) {
                sum[d] += dy * sample_at(p, line, d, p->x + image * p->size);
            }
        }
        for (int d = 3 - p->rank; d < 3; d++) {
            p->out[(int64_t)i * p->rank + 2 - d] = sum[d];
        }
    }
}
