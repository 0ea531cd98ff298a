// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_body.h - Winograd's transforms of the forward pass and products in
// vectors of WINO_LANES floats. Included once by each file that is compiled for an instruction set,
// which defines WINO_LANES, WINO_BLOCK (channels of a block), WINO_ROWS (tiles at once in a
// product), WINO_HALF and WINO_VECS (of a filter gradient's product); else they are those of SSE2.
//
// Design notes
// Everything is written for a number of pairs of points that is a constant where it is inlined, so
// that loops unroll and coefficients become immediates. Vectors are the compiler's; intrinsics do
// what it has no operator for (min, max, choosing). Memory is read through a type without
// alignment: it costs nothing where data are aligned.
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_BODY_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_BODY_H

#include "kernels/cpu/winograd/winograd_point.h"
#include "kernels/cpu/winograd/winograd_tile.h"

#ifndef WINO_LANES
#define WINO_LANES 4
#define WINO_BLOCK 8
#define WINO_ROWS  6
#define WINO_HALF  4
#define WINO_VECS  2
#endif
#include "kernels/cpu/winograd/winograd_vector.h"

#include <string.h>

#define WINO_SIDE(pairs) (2 * (pairs) + 2) // of a patch

// y where low < z < high, else 0.
WINO_INLINE wino_vec wino_open(wino_vec y, wino_vec z, float low, float high)
{
#if WINO_LANES == 16
    __mmask16 open = _mm512_cmp_ps_mask(z, _mm512_set1_ps(low), _CMP_GT_OQ) &
                     _mm512_cmp_ps_mask(z, _mm512_set1_ps(high), _CMP_LT_OQ);
    return _mm512_maskz_mov_ps(open, y);
#elif WINO_LANES == 8
    __m256 open = _mm256_and_ps(_mm256_cmp_ps(z, _mm256_set1_ps(low), _CMP_GT_OQ),
                                _mm256_cmp_ps(z, _mm256_set1_ps(high), _CMP_LT_OQ));
    return _mm256_and_ps(open, y);
#elif defined(__x86_64__)
    return _mm_and_ps(
        _mm_and_ps(_mm_cmpgt_ps(z, _mm_set1_ps(low)), _mm_cmplt_ps(z, _mm_set1_ps(high))), y);
#else
    for (int i = 0; i < WINO_LANES; i++) {
        y[i] = z[i] > low && z[i] < high ? y[i] : 0;
    }
    return y;
#endif
}

// One row of B^T d: vectors `in` apart in d, `out` apart in o.
WINO_INLINE void wino_row_in(int pairs, const wino_vec *d, int in, wino_vec *o, int out)
{
    const hth_wino_points *p = &hth_wino_points_of[pairs - 1];
    wino_vec even = d[2 * pairs * in], odd = d[(2 * pairs + 1) * in];
    WINO_UNROLL
    for (int k = pairs - 1; k >= 0; k--) {
        even += (float)p->all[k] * d[2 * k * in];
        odd += (float)p->all[k] * d[(2 * k + 1) * in];
    }
    o[0] = even;
    o[(2 * pairs + 1) * out] = odd;
    WINO_UNROLL
    for (int q = 0; q < pairs; q++) {
        even = d[2 * pairs * in];
        odd = d[(2 * pairs - 1) * in];
        WINO_UNROLL
        for (int k = pairs - 2; k >= 0; k--) {
            even += (float)p->but[q][k] * d[(2 * k + 2) * in];
            odd += (float)p->but[q][k] * d[(2 * k + 1) * in];
        }
        odd *= (float)p->at[q];
        o[(2 * q + 1) * out] = even + odd;
        o[(2 * q + 2) * out] = even - odd;
    }
}

// One row of A^T m.
WINO_INLINE void wino_row_out(int pairs, const wino_vec *m, int in, wino_vec *o, int out)
{
    const hth_wino_points *p = &hth_wino_points_of[pairs - 1];
    wino_vec sum[3], diff[3];
    float even[3] = {1, 1, 1}, odd[3];
    WINO_UNROLL
    for (int q = 0; q < pairs; q++) {
        sum[q] = m[(2 * q + 1) * in] + m[(2 * q + 2) * in];
        diff[q] = m[(2 * q + 1) * in] - m[(2 * q + 2) * in];
        odd[q] = (float)p->at[q];
    }
    WINO_UNROLL
    for (int k = 0; k < pairs; k++) {
        wino_vec a = even[0] * sum[0], b = odd[0] * diff[0];
        WINO_UNROLL
        for (int q = 1; q < pairs; q++) {
            a += even[q] * sum[q];
            b += odd[q] * diff[q];
        }
        o[2 * k * out] = k == 0 ? a + m[0] : a;
        o[(2 * k + 1) * out] = k == pairs - 1 ? b + m[(2 * pairs + 1) * in] : b;
        WINO_UNROLL
        for (int q = 0; q < pairs; q++) {
            float square = (float)(p->at[q] * p->at[q]);
            even[q] *= square;
            odd[q] *= square;
        }
    }
}

// What a pair's rows of G are divided by.
WINO_INLINE double wino_norm(int pairs, int q)
{
    const hth_wino_points *p = &hth_wino_points_of[pairs - 1];
    double z = p->at[q] * p->at[q], at = 0;
    WINO_UNROLL
    for (int k = pairs - 1; k >= 0; k--) {
        at = at * z + p->but[q][k];
    }
    return 1 / (2 * z * at);
}

WINO_INLINE void wino_patch(int pairs, const hth_wino_grid *grid, const float *x, hth_wino_tile at,
                            float *v, size_t step)
{
    enum { MOST = 2 * HTH_WINO_PAIRS + 2 };
    int side = WINO_SIDE(pairs);
    wino_vec d[MOST * MOST], half[MOST * MOST], o[MOST];
    size_t top = at.row - grid->pad_h, left = at.col - grid->pad_w; // wrap: larger than any size
    bool inside = top < grid->h && grid->h - top >= (size_t)side && left < grid->w &&
                  grid->w - left >= (size_t)side;
    for (int r = 0; r < side; r++) {
        size_t row = top + (size_t)r;
        if (inside) {
            const float *from = x + (row * grid->w + left) * WINO_BLOCK;
            for (int c = 0; c < side; c++) {
                d[r * side + c] = wino_load(from + (size_t)c * WINO_BLOCK);
            }
            continue;
        }
        for (int c = 0; c < side; c++) {
            size_t col = left + (size_t)c;
            d[r * side + c] = row < grid->h && col < grid->w
                                  ? wino_load(x + (row * grid->w + col) * WINO_BLOCK)
                                  : (wino_vec){0};
        }
    }
    for (int c = 0; c < side; c++) {
        wino_row_in(pairs, d + c, side, half + c, side);
    }
    for (int r = 0; r < side; r++) {
        wino_row_in(pairs, half + r * side, 1, o, 1);
        WINO_UNROLL
        for (int c = 0; c < side; c++) {
            wino_store(v + (size_t)(r * side + c) * step, o[c]);
        }
    }
}

WINO_INLINE void wino_patches(int pairs, const hth_wino_grid *grid, const float *x,
                              const hth_wino_chunk *chunk, size_t begin, size_t end)
{
    size_t all = grid->groups * grid->ib, plane = grid->h * grid->w * WINO_BLOCK;
    for (size_t u = begin; u < end; u++) {
        size_t tile = u % chunk->count, block = u / chunk->count;
        hth_wino_tile at = hth_wino_where(grid, chunk->first + tile);
        const float *from =
            x + (at.image * all + chunk->group * grid->ib + chunk->block + block) * plane;
        for (size_t l = 0; l < WINO_BLOCK; l += WINO_LANES) {
            wino_patch(pairs, grid, from + l, at, chunk->v + u * WINO_BLOCK + l, chunk->step);
        }
    }
}

// `rows` tiles times `vecs` vectors of results, over `blocks` blocks of inputs that are `next`
// floats apart; added to what is in m unless that is `fresh`.
WINO_INLINE void wino_tile_product(const float *u, const float *v, size_t blocks, size_t next,
                                   float *m, size_t mstep, bool fresh, int rows, int vecs)
{
    wino_vec acc[HTH_WINO_PANEL][WINO_ROWS];
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < vecs; o++) {
            acc[o][r] = wino_all(0);
            if (!fresh) {
                acc[o][r] = wino_load(m + (size_t)o * mstep + (size_t)r * WINO_LANES);
            }
        }
    }
    for (size_t b = 0; b < blocks; b++, v += next) {
        for (size_t l = 0; l < WINO_BLOCK; l++, u += vecs * WINO_LANES) {
            wino_vec u0 = wino_load(u), u1 = vecs == 2 ? wino_load(u + WINO_LANES) : u0;
            for (int r = 0; r < rows; r++) {
                wino_vec x = wino_all(v[(size_t)r * WINO_BLOCK + l]);
                acc[0][r] += x * u0;
                if (vecs == 2) {
                    acc[1][r] += x * u1;
                }
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < vecs; o++) {
            wino_store(m + (size_t)o * mstep + (size_t)r * WINO_LANES, acc[o][r]);
        }
    }
}

#define WINO_CASE(R)                                                                               \
    case R:                                                                                        \
        if (vecs == 2) {                                                                           \
            wino_tile_product(u, v, blocks, next, m, mstep, fresh, R, 2);                          \
        } else {                                                                                   \
            wino_tile_product(u, v, blocks, next, m, mstep, fresh, R, 1);                          \
        }                                                                                          \
        break

static void wino_rows(const float *u, const float *v, size_t blocks, size_t next, float *m,
                      size_t mstep, bool fresh, size_t rows, size_t vecs)
{
    switch (rows) {
        WINO_CASE(1);
        WINO_CASE(2);
        WINO_CASE(3);
        WINO_CASE(4);
        WINO_CASE(5);
        WINO_CASE(6);
#if WINO_ROWS > 6
        WINO_CASE(7);
        WINO_CASE(8);
        WINO_CASE(9);
        WINO_CASE(10);
        WINO_CASE(11);
        WINO_CASE(12);
        WINO_CASE(13);
        WINO_CASE(14);
#endif
    default:
        break;
    }
}

// Results of one tile, one vector of channels: `channel` is its first within the group.
WINO_INLINE void wino_result(int pairs, const hth_wino_job *job, size_t tile, size_t channel,
                             const float *m, size_t mstep)
{
    enum { MOST = 2 * HTH_WINO_PAIRS + 2 };
    const hth_wino_grid *g = job->grid;
    int side = WINO_SIDE(pairs), size = 2 * pairs;
    hth_wino_tile at = hth_wino_where(g, tile);
    size_t block = job->at.group * g->ob + channel / WINO_BLOCK;
    size_t image =
        (at.image * g->groups * g->ob + block) * g->oh * g->ow * WINO_BLOCK + channel % WINO_BLOCK;
    wino_vec d[MOST], half[MOST * MOST], o[MOST], b = {0};
    if (job->bias != NULL) {
        size_t left = channel < job->filter->out ? job->filter->out - channel : 0;
        memcpy(&b, job->bias + job->at.group * job->filter->out + channel,
               (left < WINO_LANES ? left : WINO_LANES) * sizeof(float));
    }
    for (int c = 0; c < side; c++) {
        WINO_UNROLL
        for (int r = 0; r < side; r++) {
            d[r] = wino_load(m + (size_t)(r * side + c) * mstep);
        }
        wino_row_out(pairs, d, 1, half + c, side);
    }
    for (int r = 0; r < size && at.row + (size_t)r < g->oh; r++) {
        wino_row_out(pairs, half + r * side, 1, o, 1);
        for (int c = 0; c < size && at.col + (size_t)c < g->ow; c++) {
            size_t to = image + ((at.row + (size_t)r) * g->ow + at.col + (size_t)c) * WINO_BLOCK;
            wino_vec y = o[c] + b;
            if (job->add != NULL) {
                y += job->add_scale * wino_load(job->add + to);
            }
            y = wino_clamp(y, job->low, job->high);
            if (job->mask != NULL) {
                y = wino_open(y, wino_load(job->mask + to), job->mask_low, job->mask_high);
            }
            wino_store(job->y + to, y);
        }
    }
}

static size_t wino_vecs(const hth_wino_grid *grid, size_t panel)
{
    size_t left = grid->ob * WINO_BLOCK / WINO_LANES - panel * HTH_WINO_PANEL;
    return left < HTH_WINO_PANEL ? left : HTH_WINO_PANEL;
}

static void wino_products(const hth_wino_job *job, const hth_wino_part *part, const float *u)
{
    const hth_wino_grid *g = job->grid;
    const hth_wino_chunk *c = &job->at;
    size_t vecs = wino_vecs(g, part->panel), n = part->to - part->from;
    size_t ustep = hth_wino_point(part->blocks * WINO_BLOCK, vecs * WINO_LANES);
    size_t mstep = n * WINO_LANES, mpoint = HTH_WINO_PANEL * mstep + HTH_WINO_LINE;
    size_t chunks = (n + WINO_ROWS - 1) / WINO_ROWS; // of nearly equal sizes
    size_t next = c->count * WINO_BLOCK;
    for (size_t k = 0; k < (g->size + 2) * (g->size + 2); k++) {
        const float *v = c->v + k * c->step + part->block * next + part->from * WINO_BLOCK;
        for (size_t p = 0; p < chunks; p++) {
            size_t begin = n * p / chunks, end = n * (p + 1) / chunks;
            wino_rows(u + k * ustep, v + begin * WINO_BLOCK, part->blocks, next,
                      part->m + k * mpoint + begin * WINO_LANES, mstep, part->block == 0,
                      end - begin, vecs);
        }
    }
}

WINO_INLINE void wino_results(int pairs, const hth_wino_job *job, const hth_wino_part *part)
{
    size_t vecs = wino_vecs(job->grid, part->panel), n = part->to - part->from;
    size_t mstep = n * WINO_LANES, mpoint = HTH_WINO_PANEL * mstep + HTH_WINO_LINE;
    for (size_t o = 0; o < vecs; o++) {
        for (size_t t = 0; t < n; t++) {
            wino_result(pairs, job, job->at.first + part->from + t,
                        (part->panel * HTH_WINO_PANEL + o) * WINO_LANES,
                        part->m + o * mstep + t * WINO_LANES, mpoint);
        }
    }
}

#endif
