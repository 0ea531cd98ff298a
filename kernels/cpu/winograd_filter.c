// SPDX-License-Identifier: Apache-2.0
// Constant filters are transformed once, in double. Parameters change with every step: a vector of
// outputs' filters is gathered, a vector per tap, and transformed side by side
// (winograd_body_filter.h).
#include "kernels/cpu/winograd_filter.h"

#include "kernels/cpu/winograd_point.h"

#include <string.h>

static size_t filter_up(size_t channels, size_t block)
{
    return (channels + block - 1) / block * block;
}

static size_t filter_points(int pairs)
{
    size_t side = (size_t)(2 * pairs + 2);
    return side * side;
}

size_t hth_wino_filter_floats(const hth_wino_isa *isa, int pairs, const hth_wino_filter *f)
{
    size_t whole = HTH_WINO_PANEL * isa->lanes, ins = filter_up(f->in, isa->block);
    size_t outs = filter_up(f->out, isa->block), rest = outs % whole;
    return filter_points(pairs) *
           (outs / whole * hth_wino_point(ins, whole) + (rest > 0 ? hth_wino_point(ins, rest) : 0));
}

size_t hth_wino_panel_floats(const hth_wino_isa *isa, int pairs, const hth_wino_filter *f)
{
    return filter_points(pairs) *
           hth_wino_point(filter_up(f->in, isa->block), HTH_WINO_PANEL * isa->lanes);
}

// G has a row of three per point.
static void filter_matrix(int pairs, double G[][3])
{
    const hth_wino_points *p = &hth_wino_points_of[pairs - 1];
    memset(G, 0, (size_t)(2 * pairs + 2) * sizeof G[0]);
    G[0][0] = 1 / p->all[0];
    G[2 * pairs + 1][2] = 1;
    for (int q = 0; q < pairs; q++) {
        double at = p->at[q], norm = 0;
        for (int k = pairs - 1; k >= 0; k--) {
            norm = norm * at * at + p->but[q][k];
        }
        for (int k = 0; k < 3; k++, at *= p->at[q]) {
            double value = at / p->at[q] / (2 * p->at[q] * p->at[q] * norm);
            G[2 * q + 1][k] = value;
            G[2 * q + 2][k] = k == 1 ? -value : value;
        }
    }
}

// All points of one output and one input channel.
static void filter_one(const hth_wino_filter *f, const float *g, int side, double G[][3], float *u,
                       size_t step)
{
    for (int k = 0; k < side * side; k++) {
        double sum = 0;
        for (int t = 0; t < 9; t++) {
            sum += G[k / side][t / 3] * (double)g[f->back ? 8 - t : t] * G[k % side][t % 3];
        }
        u[(size_t)k * step] = (float)sum;
    }
}

void hth_wino_filter_pack(const hth_wino_isa *isa, int pairs, const hth_wino_filter *f,
                          const float *w, float *u)
{
    double G[2 * HTH_WINO_PAIRS + 2][3];
    int side = 2 * pairs + 2;
    size_t ins = filter_up(f->in, isa->block), outs = filter_up(f->out, isa->block);
    size_t whole = HTH_WINO_PANEL * isa->lanes, floats = hth_wino_filter_floats(isa, pairs, f);
    filter_matrix(pairs, G);
    memset(u, 0, f->groups * floats * sizeof *u);
    for (size_t i = 0; i < f->groups * f->out * f->in; i++) {
        size_t group = i / f->in / f->out, o = i / f->in % f->out, c = i % f->in;
        size_t first = o / whole * whole, width = outs - first < whole ? outs - first : whole;
        const float *g = hth_wino_taps(f, w, group, o, c);
        if (g != NULL) {
            filter_one(f, g, side, G,
                       u + group * floats +
                           first / whole * filter_points(pairs) * hth_wino_point(ins, whole) +
                           c * width + (o - first),
                       hth_wino_point(ins, width));
        }
    }
}
