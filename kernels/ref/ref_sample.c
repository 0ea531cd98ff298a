// SPDX-License-Identifier: Apache-2.0
// kernels/ref/ref_sample.c - GridSample in one to three dimensions, and its gradient.
//
// Per output position the taps (offset and weight) are worked out once and serve all channels. A
// coordinate outside is first brought in by the padding mode, then each tap again, as the
// specification's reference does. The gradient by the grid needs how each weight changes with each
// coordinate: its slopes, made only when asked for.
#include "kernels/ref/ref_num.h"

#include <math.h>
#include <string.h>

#define SAMPLE_DIMS 3
#define SAMPLE_TAPS 64 // four per dimension

typedef struct sample {
    int rank, width; // width: taps per dimension (1 nearest, 2 linear, 4 cubic)
    char padding;    // z(eros), b(order), r(eflection)
    bool corners;
    int64_t dim[SAMPLE_DIMS], step[SAMPLE_DIMS];
    int n; // taps of the position at hand
    int64_t offset[SAMPLE_TAPS];
    double weight[SAMPLE_TAPS];
    bool slopes;                            // make them, too
    double slope[SAMPLE_DIMS][SAMPLE_TAPS]; // of the weight, by the grid's number for a dimension
} sample;

static double sample_reflect(double x, double lo, double hi)
{
    double range = hi - lo;
    if (range <= 0) {
        return 0;
    }
    if (x >= lo && x <= hi) {
        return x;
    }
    double far = x < lo ? lo - x : fmax(x - hi, 0); // fmax: NaN is not far
    double turns = floor(far / range), rest = far - turns * range;
    return (x < lo) == (fmod(turns, 2) == 0) ? lo + rest : hi - rest;
}

// Brings a coordinate or a tap into the image; zeros padding leaves it outside.
static double sample_inside(const sample *s, double x, int64_t n)
{
    double half = s->corners ? 0 : 0.5;
    if (s->padding == 'b') {
        return fmin(fmax(x, 0), (double)(n - 1));
    }
    return s->padding == 'r' ? sample_reflect(x, -half, (double)(n - 1) + half) : x;
}

static double sample_weight(const sample *s, double distance)
{
    if (s->width == 1) {
        return 1;
    }
    return s->width == 2 ? 1 - fabs(distance) : ref_cubic(distance, -0.75);
}

// How fast sample_inside's result moves with x, which is outside.
static double sample_pace(const sample *s, double x, int64_t n)
{
    double half = s->corners ? 0 : 0.5, range = (double)(n - 1) + 2 * half;
    if (s->padding != 'r') {
        return s->padding == 'b' ? 0 : 1;
    }
    double far = x < -half ? -half - x : x - ((double)(n - 1) + half);
    if (range <= 0) {
        return 0;
    }
    return fmod(floor(far / range), 2) == 0 ? -1 : 1;
}

// The derivative of tap t's weight by the coordinate, which is `distance` below it.
static double sample_slope(const sample *s, int t, double distance)
{
    const double a = -0.75;
    double x = fabs(distance);
    if (s->width == 1) {
        return 0;
    }
    if (s->width == 2) {
        return t == 0 ? -1 : 1;
    }
    double rise = 0;
    if (x <= 1) {
        rise = (3 * (a + 2) * x - 2 * (a + 3)) * x;
    } else if (x < 2) {
        rise = (3 * a * x - 10 * a) * x + 8 * a;
    }
    return distance < 0 ? rise : -rise;
}

// The slopes of new tap n, which is old tap i times tap t of dimension d.
static void sample_slopes(const sample *s, double slope[SAMPLE_DIMS][SAMPLE_TAPS], int n, int i,
                          int d, double weight, double own)
{
    for (int e = 0; e < d; e++) {
        slope[e][n] = s->slope[e][i] * weight;
    }
    slope[d][n] = s->weight[i] * own;
}

// Multiplies the taps so far by the taps of dimension d at coordinate x, which the grid's number
// moves by `pace`.
static void sample_dimension(sample *s, int d, double x, double pace)
{
    int64_t offset[SAMPLE_TAPS];
    double weight[SAMPLE_TAPS], half = s->corners ? 0 : 0.5, end = (double)(s->dim[d] - 1);
    double slope[SAMPLE_DIMS][SAMPLE_TAPS] = {{0}};
    int n = 0;
    x = s->width == 1 ? rint(x) : x;
    if (x < -half || x > end + half) {
        pace *= sample_pace(s, x, s->dim[d]);
        x = sample_inside(s, x, s->dim[d]);
    }
    double first = s->width == 1 ? x : floor(x) - (s->width == 4);
    for (int t = 0; t < s->width; t++) {
        double at = trunc(sample_inside(s, first + t, s->dim[d]));
        if (!(at >= 0 && at <= end)) {
            continue;
        }
        for (int i = 0; i < s->n; i++, n++) {
            offset[n] = s->offset[i] + (int64_t)at * s->step[d];
            weight[n] = s->weight[i] * sample_weight(s, first + t - x);
            if (s->slopes) {
                sample_slopes(s, slope, n, i, d, sample_weight(s, first + t - x),
                              pace * sample_slope(s, t, first + t - x));
            }
        }
    }
    // cppcheck-suppress uninitvar ; false: the first n are written
    memcpy(s->offset, offset, (size_t)n * sizeof *offset);
    // cppcheck-suppress uninitvar ; false: the first n are written
    memcpy(s->weight, weight, (size_t)n * sizeof *weight);
    if (s->slopes) {
        memcpy(s->slope, slope, sizeof slope);
    }
    s->n = n;
}

static void sample_taps(sample *s, const double *grid)
{
    s->n = 1;
    s->offset[0] = 0;
    s->weight[0] = 1;
    for (int d = 0; d < s->rank; d++) {
        double g = grid[s->rank - 1 - d], n = (double)s->dim[d];
        double x = s->corners ? (g + 1) / 2 * (n - 1) : ((g + 1) * n - 1) / 2;
        sample_dimension(s, d, x, (s->corners ? n - 1 : n) / 2);
    }
}

static hth_err sample_init(sample *s, const hth_node *node, const hth_tensor *x,
                           const hth_tensor *grid, const hth_tensor *y)
{
    const char *mode = hth_node_str(node, "mode", "linear");
    int rank = x->shape.rank - 2, last = grid->shape.rank - 1;
    if (rank < 1 || rank > SAMPLE_DIMS) {
        return hth_fail(HTH_ENOTSUP, "%d spatial dimensions are not supported", rank);
    }
    if (grid->shape.rank != rank + 2 || grid->shape.dim[last] != rank ||
        grid->shape.dim[0] != x->shape.dim[0] ||
        ref_count(y) != ref_span(&x->shape, 0, 2) * ref_span(&grid->shape, 1, last)) {
        return hth_fail(HTH_EINVAL, "the shapes of input, grid and output do not agree");
    }
    *s = (sample){.rank = rank,
                  .width = strstr(mode, "cubic") ? 4 : 2,
                  .padding = hth_node_str(node, "padding_mode", "zeros")[0],
                  .corners = hth_node_int(node, "align_corners", 0) != 0};
    if (strcmp(mode, "nearest") == 0) {
        s->width = 1;
    }
    for (int d = 0; d < rank; d++) {
        s->dim[d] = x->shape.dim[2 + d];
        s->step[d] = ref_span(&x->shape, 3 + d, x->shape.rank);
    }
    return HTH_OK;
}

static hth_err sample_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                           hth_tensor *out)
{
    sample s;
    double *x, *grid, *y;
    HTH_TRY(sample_init(&s, node, &in[0], &in[1], &out[0]));
    HTH_TRY(ref_wide(mem, &in[0], &x));
    HTH_TRY(ref_wide(mem, &in[1], &grid));
    HTH_TRY(REF_TAKE(mem, ref_count(&out[0]), &y));
    int64_t channels = in[0].shape.dim[1], size = ref_span(&in[0].shape, 2, in[0].shape.rank);
    int64_t places = ref_span(&in[1].shape, 1, in[1].shape.rank - 1);
    uint64_t work = (uint64_t)(channels + 1) * SAMPLE_TAPS;
    for (int64_t p = 0; p < in[0].shape.dim[0] * places && size > 0 && !hth_pace_over(work); p++) {
        int64_t b = p / places, at = p % places;
        sample_taps(&s, grid + p * s.rank);
        for (int64_t c = b * channels; c < (b + 1) * channels; c++) {
            for (int t = 0; t < s.n; t++) {
                y[c * places + at] += s.weight[t] * x[c * size + s.offset[t]];
            }
        }
    }
    ref_round(y, &out[0]);
    return HTH_OK;
}

REF_OP(ref_grid_sample, sample_body)

// What channel c of position `at` gives: dx to the taps, and to dgrid what x they read.
static void sample_back(const sample *s, double dy, const double *x, double *dx, double *dgrid)
{
    for (int t = 0; t < s->n; t++) {
        dx[s->offset[t]] += s->weight[t] * dy;
        for (int d = 0; d < s->rank; d++) {
            dgrid[s->rank - 1 - d] += s->slope[d][t] * x[s->offset[t]] * dy;
        }
    }
}

static hth_err sample_grad_body(ref_mem *mem, const hth_node *node, const hth_tensor *in,
                                hth_tensor *out)
{
    sample s;
    double *dy, *x, *grid, *dx, *dgrid;
    HTH_TRY(sample_init(&s, node, &in[1], &in[2], &in[0]));
    s.slopes = true;
    HTH_TRY(ref_wide(mem, &in[0], &dy));
    HTH_TRY(ref_wide(mem, &in[1], &x));
    HTH_TRY(ref_wide(mem, &in[2], &grid));
    HTH_TRY(REF_TAKE(mem, ref_count(&in[1]), &dx));
    HTH_TRY(REF_TAKE(mem, ref_count(&in[2]), &dgrid));
    int64_t channels = in[1].shape.dim[1], size = ref_span(&in[1].shape, 2, in[1].shape.rank);
    int64_t places = ref_span(&in[2].shape, 1, in[2].shape.rank - 1);
    uint64_t work = (uint64_t)(channels + 1) * SAMPLE_TAPS;
    for (int64_t p = 0; p < in[1].shape.dim[0] * places && size > 0 && !hth_pace_over(work); p++) {
        int64_t b = p / places, at = p % places;
        sample_taps(&s, grid + p * s.rank);
        for (int64_t c = b * channels; c < (b + 1) * channels; c++) {
            sample_back(&s, dy[c * places + at], x + c * size, dx + c * size, dgrid + p * s.rank);
        }
    }
    const double *result[] = {dx, dgrid};
    for (int k = 0; k < 2; k++) {
        if (ref_out(node, out, k)) {
            HTH_TRY(ref_need_same(&out[k], &in[k + 1]));
            ref_round(result[k], &out[k]);
        }
    }
    return HTH_OK;
}

REF_OP(ref_grid_sample_grad, sample_grad_body)
