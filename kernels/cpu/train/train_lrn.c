// SPDX-License-Identifier: Apache-2.0
// Gradient of local response normalisation, y_c = x_c d_c^-beta with d_c = bias + alpha / size *
// (sum of x^2 over the window of c): dx_q = dy_q d_q^-beta - 2 alpha beta / size x_q (sum over the
// windows that q is in of dy_c x_c d_c^(-beta - 1)).
//
// All channels of a piece of positions are brought into the thread's scratch, a row per channel, so
// that windows are rows above and below, whatever the layout.
#include "kernels/cpu/train/train.h"

#include "base/alloc.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vector.h"

#define PIECE 32 // positions

typedef struct lrn_kernel {
    hth_kernel base;
    int n_threads;
    hth_layout layout;
    size_t images, channels, positions, before, after; // channels of a window besides its own
    float alpha, beta, bias;                           // alpha: over the window's size
} lrn_kernel;

typedef struct lrn_job {
    const lrn_kernel *k;
    const float *dy, *x;
    float *dx, *scratch;
} lrn_job;

// Rows of PIECE: square = alpha x^2.
HTH_VECTOR(lrn_square, (const float *x, float *square, size_t n, float alpha),
           (x, square, n, alpha))
{
    for (size_t i = 0; i < n; i++) {
        square[i] = alpha * x[i] * x[i];
    }
}

// d = bias + the sum of `rows` rows of squares.
HTH_VECTOR(lrn_window, (const float *square, size_t rows, float bias, float *d),
           (square, rows, bias, d))
{
    float sum[PIECE];
    for (size_t i = 0; i < PIECE; i++) {
        sum[i] = bias;
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < PIECE; i++) {
            sum[i] += square[r * PIECE + i];
        }
    }
    memcpy(d, sum, sizeof sum);
}

// d^-0.75, the usual exponent; others take powf.
HTH_VECTOR(lrn_power, (float *d, size_t n), (d, n))
{
    for (size_t i = 0; i < n; i++) {
        float root = sqrtf(d[i]);
        d[i] = 1 / (root * sqrtf(root));
    }
}

// dy becomes dy d^-beta, `share` dy x d^(-beta - 1).
HTH_VECTOR(lrn_share,
           (float *dy, const float *x, const float *d, const float *power, float *share, size_t n),
           (dy, x, d, power, share, n))
{
    for (size_t i = 0; i < n; i++) {
        dy[i] *= power[i];
        share[i] = dy[i] * x[i] / d[i];
    }
}

// dy becomes dx: less factor x (sum of `rows` rows of shares).
HTH_VECTOR(lrn_apply, (float *dy, const float *x, const float *share, size_t rows, float factor),
           (dy, x, share, rows, factor))
{
    float sum[PIECE] = {0};
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < PIECE; i++) {
            sum[i] += share[r * PIECE + i];
        }
    }
    for (size_t i = 0; i < PIECE; i++) {
        dy[i] -= factor * x[i] * sum[i];
    }
}

// Channel c's row of the piece at `first`, `count` positions, between tensor and scratch.
static void lrn_move(const lrn_kernel *kernel, size_t image, size_t c, size_t first, size_t count,
                     const float *from, float *to, bool out)
{
    size_t step,
        base = hth_layout_at(kernel->layout, kernel->channels, kernel->positions, image, c, &step);
    for (size_t i = 0; i < count; i++) {
        size_t at = base + (first + i) * step;
        if (out) {
            to[at] = from[i];
        } else {
            to[i] = from[at];
        }
    }
    for (size_t i = count; !out && i < PIECE; i++) {
        to[i] = 0;
    }
}

static void lrn_chunk(const lrn_job *job, size_t image, size_t first, float *scratch)
{
    const lrn_kernel *k = job->k;
    size_t channels = k->channels, n = channels * PIECE, left = k->positions - first;
    size_t count = left < PIECE ? left : PIECE;
    float *x = scratch, *dy = x + n, *d = dy + n, *power = d + n, *share = power + n;
    for (size_t c = 0; c < channels; c++) {
        lrn_move(k, image, c, first, count, job->x, x + c * PIECE, false);
        lrn_move(k, image, c, first, count, job->dy, dy + c * PIECE, false);
    }
    lrn_square(x, share, n, k->alpha);
    for (size_t c = 0; c < channels; c++) {
        size_t from = c < k->before ? 0 : c - k->before;
        size_t to = c + k->after < channels ? c + k->after + 1 : channels;
        lrn_window(share + from * PIECE, to - from, k->bias, d + c * PIECE);
    }
    memcpy(power, d, n * sizeof *d);
    if (k->beta == 0.75F) {
        lrn_power(power, n);
    } else {
        for (size_t i = 0; i < n; i++) {
            power[i] = powf(power[i], -k->beta);
        }
    }
    lrn_share(dy, x, d, power, share, n);
    for (size_t c = 0; c < channels; c++) { // those whose windows reach c
        size_t from = c < k->after ? 0 : c - k->after;
        size_t to = c + k->before < channels ? c + k->before + 1 : channels;
        lrn_apply(dy + c * PIECE, x + c * PIECE, share + from * PIECE, to - from,
                  2 * k->alpha * k->beta);
    }
    for (size_t c = 0; c < channels; c++) {
        lrn_move(k, image, c, first, count, dy + c * PIECE, job->dx, true);
    }
}

static void lrn_part(void *arg, int i, int n)
{
    const lrn_job *j = arg;
    const lrn_kernel *k = j->k;
    size_t begin, end, chunks = (k->positions + PIECE - 1) / PIECE;
    hth_team_range(k->images * chunks, i, n, &begin, &end);
    for (size_t u = begin; u < end; u++) {
        lrn_chunk(j, u / chunks, u % chunks * PIECE,
                  j->scratch + (size_t)i * 5 * PIECE * k->channels);
    }
}

// Lanes after the last channel.
static void lrn_clear(const lrn_kernel *kernel, float *dx)
{
    hth_rows r;
    const hth_shape s = {
        3, {(int64_t)kernel->images, (int64_t)kernel->channels, (int64_t)kernel->positions}};
    bool blocked = hth_rows_of(&s, kernel->layout, &r) && r.b > 1 && r.c % r.b != 0;
    for (size_t b = 0; blocked && b < r.n; b++) {
        hth_rows_clear(&r, r.blocks - 1, dx + ((b + 1) * r.blocks - 1) * r.s * r.b);
    }
}

static hth_err lrn_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const lrn_kernel *k = (const lrn_kernel *)base;
    lrn_job j = {k, args->in[0], args->in[1], args->out[0], args->workspace};
    lrn_clear(k, j.dx);
    hth_cpu_share(k->n_threads, k->images * k->channels * k->positions * 16, lrn_part, &j);
    return HTH_OK;
}

hth_err cpu_lrn_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                             const char *algorithm, hth_kernel **out)
{
    const hth_value *dy = &graph->values[node->inputs[0]], *x = &graph->values[node->inputs[1]],
                    *dx = &graph->values[node->outputs[0]];
    int64_t size = hth_node_int(node, "size", 1);
    hth_rows rows;
    if (algorithm != NULL || node->n_post > 0 || x->dtype != HTH_DT_F32 || x->shape.rank < 2 ||
        size < 1 || dy->layout != x->layout || dx->layout != x->layout ||
        hth_shape_elements(&x->shape) <= 0 || !hth_rows_of(&x->shape, x->layout, &rows)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype or layout", node->name);
    }
    lrn_kernel *k = hth_calloc(1, sizeof *k);
    if (k == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    *k = (lrn_kernel){.base = {.run = lrn_run,
                               .close = hth_cpu_kernel_free,
                               .implementation = "windows",
                               .workspace_bytes = (size_t)device->props.n_threads * 5 * PIECE *
                                                  rows.c * sizeof(float),
                               .inplace_input = 0},
                      .n_threads = device->props.n_threads,
                      .layout = x->layout,
                      .images = rows.n,
                      .channels = rows.c,
                      .positions = rows.s,
                      .before = (size_t)(size - 1) / 2,
                      .after = (size_t)size / 2,
                      .alpha = hth_node_float(node, "alpha", 1e-4F) / (float)size,
                      .beta = hth_node_float(node, "beta", 0.75F),
                      .bias = hth_node_float(node, "bias", 1)};
    *out = &k->base;
    return HTH_OK;
}
