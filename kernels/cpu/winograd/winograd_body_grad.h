// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_body_grad.h - what Winograd's filter gradient adds to
// winograd_body.h: the transposed transforms, and products summed over tiles. WINO_HALF input
// channels times WINO_VECS vectors of results are in registers at once.
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_BODY_GRAD_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_BODY_GRAD_H

#include "kernels/cpu/winograd/winograd_body_filter.h"

// One row of A y: y's polynomials at the points.
WINO_INLINE void wino_row_points(int pairs, const wino_vec *y, int in, wino_vec *o, int out)
{
    const hth_wino_points *p = &hth_wino_points_of[pairs - 1];
    o[0] = y[0];
    o[(2 * pairs + 1) * out] = y[(2 * pairs - 1) * in];
    WINO_UNROLL
    for (int q = 0; q < pairs; q++) {
        float at = (float)p->at[q], square = at * at;
        wino_vec even = y[(2 * pairs - 2) * in], odd = y[(2 * pairs - 1) * in];
        WINO_UNROLL
        for (int k = pairs - 2; k >= 0; k--) {
            even = even * square + y[2 * k * in];
            odd = odd * square + y[(2 * k + 1) * in];
        }
        odd *= at;
        o[(2 * q + 1) * out] = even + odd;
        o[(2 * q + 2) * out] = even - odd;
    }
}

// One row of G^T m.
WINO_INLINE void wino_row_taps(int pairs, const wino_vec *m, int in, wino_vec *o, int out)
{
    const hth_wino_points *p = &hth_wino_points_of[pairs - 1];
    wino_vec a = m[0] * (float)(1 / p->all[0]), b = {0}, c = m[(2 * pairs + 1) * in];
    WINO_UNROLL
    for (int q = 0; q < pairs; q++) {
        float at = (float)p->at[q], norm = (float)wino_norm(pairs, q);
        wino_vec sum = norm * (m[(2 * q + 1) * in] + m[(2 * q + 2) * in]);
        a += sum;
        b += (norm * at) * (m[(2 * q + 1) * in] - m[(2 * q + 2) * in]);
        c += (at * at) * sum;
    }
    o[0] = a;
    o[out] = b;
    o[2 * out] = c;
}

// dy is zero outside of the image. sums: of WINO_LANES channels.
WINO_INLINE void wino_tile(int pairs, const hth_wino_grid *grid, const float *dy, hth_wino_tile at,
                           float *z, size_t step, double *sums)
{
    enum { MOST = 2 * HTH_WINO_PAIRS + 2 };
    int side = WINO_SIDE(pairs), size = 2 * pairs;
    wino_vec y[(MOST - 2) * (MOST - 2)], half[MOST * (MOST - 2)], o[MOST], sum = {0};
    for (int r = 0; r < size; r++) {
        for (int c = 0; c < size; c++) {
            bool inside = at.row + (size_t)r < grid->oh && at.col + (size_t)c < grid->ow;
            y[r * size + c] =
                inside ? wino_load(dy + ((at.row + (size_t)r) * grid->ow + at.col + (size_t)c) *
                                            WINO_BLOCK)
                       : (wino_vec){0};
            sum += y[r * size + c];
        }
    }
    for (int c = 0; c < size; c++) {
        wino_row_points(pairs, y + c, size, half + c, size);
    }
    for (int r = 0; r < side; r++) {
        wino_row_points(pairs, half + r * size, 1, o, 1);
        WINO_UNROLL
        for (int c = 0; c < side; c++) {
            wino_store(z + (size_t)(r * side + c) * step, o[c]);
        }
    }
    for (int l = 0; sums != NULL && l < WINO_LANES; l++) {
        sums[l] += (double)sum[l];
    }
}

WINO_INLINE void wino_tiles(int pairs, const hth_wino_grid *grid, const float *dy,
                            const hth_wino_chunk *chunk, size_t begin, size_t end, double *sums)
{
    size_t all = grid->groups * grid->ob, plane = grid->oh * grid->ow * WINO_BLOCK;
    for (size_t u = begin; u < end; u++) {
        size_t tile = u % chunk->count,
               block = chunk->group * grid->ob + chunk->block + u / chunk->count;
        hth_wino_tile at = hth_wino_where(grid, chunk->first + tile);
        for (size_t l = 0; l < WINO_BLOCK; l += WINO_LANES) {
            wino_tile(pairs, grid, dy + (at.image * all + block) * plane + l, at,
                      chunk->v + u * WINO_BLOCK + l, chunk->step,
                      sums == NULL ? NULL : sums + block * WINO_BLOCK + l);
        }
    }
}

// Where vector `vec` of a chunk's channels begins.
WINO_INLINE const float *wino_vector(const hth_wino_chunk *chunk, size_t vec)
{
    size_t channel = vec * WINO_LANES;
    return chunk->v + channel / WINO_BLOCK * chunk->count * WINO_BLOCK + channel % WINO_BLOCK;
}

// WINO_HALF input channels times `vecs` vectors of results, over all tiles of the chunk.
WINO_INLINE void wino_sum_product(size_t tiles, const float *v, const float *const *z, float *m,
                                  size_t mstep, bool fresh, int vecs)
{
    wino_vec acc[WINO_VECS][WINO_HALF];
    for (int o = 0; o < vecs; o++) {
        for (int r = 0; r < WINO_HALF; r++) {
            acc[o][r] = wino_all(0);
            if (!fresh) {
                acc[o][r] = wino_load(m + (size_t)o * mstep + (size_t)r * WINO_LANES);
            }
        }
    }
    for (size_t at = 0; at < tiles * WINO_BLOCK; at += WINO_BLOCK) {
        wino_vec dy[WINO_VECS];
        WINO_UNROLL
        for (int o = 0; o < vecs; o++) {
            dy[o] = wino_load(z[o] + at);
        }
        WINO_UNROLL
        for (int r = 0; r < WINO_HALF; r++) {
            wino_vec x = wino_all(v[at + (size_t)r]);
            WINO_UNROLL
            for (int o = 0; o < vecs; o++) {
                acc[o][r] += x * dy[o];
            }
        }
    }
    for (int o = 0; o < vecs; o++) {
        for (int r = 0; r < WINO_HALF; r++) {
            wino_store(m + (size_t)o * mstep + (size_t)r * WINO_LANES, acc[o][r]);
        }
    }
}

// Unit = (point, group of vectors of results).
static void wino_sum(const hth_wino_sums *sums, size_t begin, size_t end, bool fresh)
{
    size_t vectors = sums->dy.blocks * WINO_BLOCK / WINO_LANES, ins = sums->x.blocks * WINO_BLOCK;
    size_t groups = (vectors + WINO_VECS - 1) / WINO_VECS, mstep = ins * WINO_LANES;
    for (size_t u = begin; u < end; u++) {
        size_t k = u / groups, from = vectors * (u % groups) / groups,
               to = vectors * (u % groups + 1) / groups;
        const float *z[WINO_VECS];
        float *m = sums->m + k * sums->step + from * mstep;
        for (size_t o = 0; o < WINO_VECS; o++) {
            z[o] = wino_vector(&sums->dy, from + o < to ? from + o : from) + k * sums->dy.step;
        }
        for (size_t c = 0; c < ins; c += WINO_HALF, m += WINO_HALF * WINO_LANES) {
            const float *v = sums->x.v + k * sums->x.step +
                             c / WINO_BLOCK * sums->x.count * WINO_BLOCK + c % WINO_BLOCK;
            if (to - from == 1) {
                wino_sum_product(sums->x.count, v, z, m, mstep, fresh, 1);
            } else if (to - from == 2) {
                wino_sum_product(sums->x.count, v, z, m, mstep, fresh, 2);
            } else {
                wino_sum_product(sums->x.count, v, z, m, mstep, fresh, WINO_VECS);
            }
        }
    }
}

// One vector of results and one input channel's taps.
WINO_INLINE void wino_gradient_taps(int pairs, const hth_wino_sums *sums, const float *m,
                                    wino_vec *vec)
{
    enum { MOST = 2 * HTH_WINO_PAIRS + 2 };
    int side = WINO_SIDE(pairs);
    wino_vec d[MOST], half[3 * MOST];
    for (int c = 0; c < side; c++) {
        WINO_UNROLL
        for (int r = 0; r < side; r++) {
            d[r] = wino_load(m + (size_t)(r * side + c) * sums->step);
        }
        wino_row_taps(pairs, d, 1, half + c, side);
    }
    for (int r = 0; r < 3; r++) {
        wino_row_taps(pairs, half + r * side, 1, vec + r * 3, 1);
    }
}

WINO_INLINE void wino_gradient(int pairs, const hth_wino_sums *sums, size_t begin, size_t end)
{
    size_t ins = sums->x.blocks * WINO_BLOCK;
    for (size_t u = begin; u < end; u++) {
        size_t vec = u / sums->x.blocks, block = u % sums->x.blocks;
        size_t out = sums->dy.block * WINO_BLOCK + vec * WINO_LANES;
        float tap[WINO_BLOCK * 9][WINO_LANES]; // of all inputs of the block
        for (size_t c = 0; c < WINO_BLOCK; c++) {
            wino_vec o[9];
            wino_gradient_taps(pairs, sums,
                               sums->m + (vec * ins + block * WINO_BLOCK + c) * WINO_LANES, o);
            for (int i = 0; i < 9; i++) {
                wino_store(tap[c * 9 + (size_t)i], o[i]);
            }
        }
        for (size_t l = 0; l < WINO_LANES; l++) {
            for (size_t c = 0; c < WINO_BLOCK; c++) {
                const float *to = hth_wino_taps(sums->filter, sums->dw, sums->x.group, out + l,
                                                (sums->x.block + block) * WINO_BLOCK + c);
                for (size_t i = 0; to != NULL && i < 9; i++) {
                    sums->dw[(size_t)(to - sums->dw) + i] = tap[c * 9 + i][l];
                }
            }
        }
    }
}

#define WINO_BACKWARD(n)                                                                           \
    static void wino_tiles_##n(const hth_wino_grid *g, const float *dy, const hth_wino_chunk *c,   \
                               size_t begin, size_t end, double *sums)                             \
    {                                                                                              \
        wino_tiles(n, g, dy, c, begin, end, sums);                                                 \
    }                                                                                              \
    static void wino_gradient_##n(const hth_wino_sums *s, size_t begin, size_t end)                \
    {                                                                                              \
        wino_gradient(n, s, begin, end);                                                           \
    }
WINO_BACKWARD(1)
WINO_BACKWARD(2)
WINO_BACKWARD(3)

// The table of this instruction set.
#define WINO_TABLE(text)                                                                           \
    {                                                                                              \
        .name = (text), .block = WINO_BLOCK, .lanes = WINO_LANES, .rows = WINO_ROWS,               \
        .half = WINO_HALF, .vecs = WINO_VECS,                                                      \
        .filter = {wino_filter_1, wino_filter_2, wino_filter_3},                                   \
        .constant = {wino_constant_1, wino_constant_2, wino_constant_3},                           \
        .patches = {wino_patches_1, wino_patches_2, wino_patches_3}, .products = wino_products,    \
        .results = {wino_results_1, wino_results_2, wino_results_3},                               \
        .tiles = {wino_tiles_1, wino_tiles_2, wino_tiles_3}, .sum = wino_sum,                      \
        .gradient = {wino_gradient_1, wino_gradient_2, wino_gradient_3},                           \
    }

#endif
