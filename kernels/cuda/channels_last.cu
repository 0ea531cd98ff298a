// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/channels_last.cu - sums by channel of [rows, channels]: batch norm's statistics and
// gradients, and a bias's gradient. A thread has four channels of a range of rows, so that
// neighbours read neighbours; a second kernel joins the ranges of a channel in their order: the
// same bits every time. Bytes moved: x once for statistics (running mean and squared distances,
// which ranges are joined by), dy, and x where it is wanted, once for the gradient; the parts
// twice.
#include "kernels/cuda/params.h"

typedef struct last_range {
    uint32_t channel, part, begin, end; // rows
} last_range;

HTH_FN uint32_t last_begin(const hth_last_params *p, uint32_t part)
{
    return (uint32_t)((uint64_t)p->rows * part / p->parts);
}

HTH_FN int last_share(const hth_last_params *p, const hth_grid *t, last_range *r)
{
    uint32_t groups = (p->channels + 3) / 4, i = hth_index(t);
    r->part = i / groups;
    r->channel = i % groups * 4;
    r->begin = last_begin(p, r->part);
    r->end = r->part < p->parts ? last_begin(p, r->part + 1) : 0;
    return r->part < p->parts;
}

// Channels c .. c + 3 of a row; in one access where rows begin at multiples of four.
HTH_FN hth_f4 last_row(const hth_last_params *p, const void *x, uint32_t row, uint32_t c, int half)
{
    int64_t at = (int64_t)row * p->channels + c;
    uint32_t left = p->channels - c;
    hth_f4 v = {{0, 0, 0, 0}};
    if (p->channels % 4 == 0) {
        return hth_get4(x, at, 4, half);
    }
    for (uint32_t k = 0; k < 4 && k < left; k++) {
        v.v[k] = hth_get(x, at + k, half);
    }
    return v;
}

HTH_FN void last_keep(const hth_last_params *p, int which, const last_range *r, const float v[4])
{
    for (uint32_t k = 0; k < 4 && r->channel + k < p->channels; k++) {
        p->part[which][(int64_t)r->part * p->channels + r->channel + k] = v[k];
    }
}

HTH_KERNEL(hth_last_stats, hth_last_params, 1)
{
    last_range r;
    float mean[4] = {0, 0, 0, 0}, squares[4] = {0, 0, 0, 0};
    if (!last_share(p, t, &r)) {
        return;
    }
    for (uint32_t row = r.begin; row < r.end; row++) {
        hth_f4 x = last_row(p, p->stats.x, row, r.channel, p->stats.half);
        float share = 1 / (float)(row - r.begin + 1);
        for (int k = 0; k < 4; k++) {
            float d = x.v[k] - mean[k];
            mean[k] += d * share;
            squares[k] += d * (x.v[k] - mean[k]);
        }
    }
    last_keep(p, 0, &r, mean);
    last_keep(p, 1, &r, squares);
}

HTH_KERNEL(hth_last_stats_join, hth_last_params, 1)
{
    const hth_channel_params *s = &p->stats;
    uint32_t c = hth_index(t);
    float mean = 0, squares = 0, n = 0;
    if (c >= p->channels) {
        return;
    }
    for (uint32_t k = 0; k < p->parts; k++) {
        float rows = (float)(last_begin(p, k + 1) - last_begin(p, k)), all = n + rows;
        float d = p->part[0][(int64_t)k * p->channels + c] - mean;
        if (rows > 0) {
            mean += d * (rows / all);
            squares += p->part[1][(int64_t)k * p->channels + c] + d * d * (n * rows / all);
            n = all;
        }
    }
    float var = squares / n;
    s->mean[c] = mean;
    s->inv[c] = 1 / sqrtf(var + s->eps);
    if (s->new_mean != NULL) {
        s->new_mean[c] = s->momentum * s->running_mean[c] + (1 - s->momentum) * mean;
    }
    if (s->new_var != NULL) {
        float unbiased = n > 1 ? squares / (n - 1) : var;
        s->new_var[c] = s->momentum * s->running_var[c] + (1 - s->momentum) * unbiased;
    }
}

// dy of channel c, where the forward pass's fused Relu or Clip was open.
HTH_FN float last_dy(const hth_channel_grad_params *p, uint32_t c, float dy, float x)
{
    if (p->bias == NULL) {
        return dy;
    }
    float y = (x - p->mean[c]) * (p->scale[c] * p->inv[c]) + p->bias[c];
    return y > p->low && y < p->high ? dy : 0;
}

HTH_KERNEL(hth_last_sums, hth_last_params, 1)
{
    const hth_channel_grad_params *g = &p->grad;
    last_range r;
    float sum[4] = {0, 0, 0, 0}, dot[4] = {0, 0, 0, 0};
    if (!last_share(p, t, &r)) {
        return;
    }
    for (uint32_t row = r.begin; row < r.end; row++) {
        hth_f4 dy = last_row(p, g->dy, row, r.channel, g->half_dy), x = dy;
        if (g->x != NULL) {
            x = last_row(p, g->x, row, r.channel, g->half_x);
        }
        for (uint32_t k = 0; k < 4 && r.channel + k < p->channels; k++) {
            uint32_t c = r.channel + k;
            float d = g->x != NULL ? last_dy(g, c, dy.v[k], x.v[k]) : dy.v[k];
            sum[k] += d;
            dot[k] += g->x != NULL ? d * ((x.v[k] - g->mean[c]) * g->inv[c]) : 0;
        }
    }
    last_keep(p, 0, &r, sum);
    if (g->x != NULL) {
        last_keep(p, 1, &r, dot);
    }
}

HTH_KERNEL(hth_last_sums_join, hth_last_params, 1)
{
    uint32_t c = hth_index(t);
    float sum = 0, dot = 0;
    if (c >= p->channels) {
        return;
    }
    for (uint32_t k = 0; k < p->parts; k++) {
        sum += p->part[0][(int64_t)k * p->channels + c];
        dot += p->grad.x != NULL ? p->part[1][(int64_t)k * p->channels + c] : 0;
    }
    p->grad.dbias[c] = sum;
    if (p->grad.x != NULL) {
        p->grad.dscale[c] = dot;
    }
}
