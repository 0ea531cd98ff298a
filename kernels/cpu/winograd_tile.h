// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd_tile.h - what the kernels of Winograd's F(4x4, 3x3) share: a grid of 6x6
// patches, two apart from the next by 4, and their transform V = B^T d B.
#ifndef HTH_KERNELS_CPU_WINOGRAD_TILE_H
#define HTH_KERNELS_CPU_WINOGRAD_TILE_H

#include "kernels/cpu/winograd_filter.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>

#define WINO        __attribute__((target("avx512f")))
#define WINO_INLINE static inline __attribute__((always_inline, target("avx512f")))

// A blocked image and its tiles: tile (r, c) reads rows 4 r - pad_h .. + 5, columns alike.
typedef struct hth_wino_grid {
    size_t blocks, h, w, pad_h, pad_w; // blocks of 16 channels
    size_t tiles_h, tiles_w;
} hth_wino_grid;

typedef struct hth_wino_tile {
    size_t image, row, col; // of the tile's first output
} hth_wino_tile;

static inline hth_wino_tile hth_wino_where(const hth_wino_grid *g, size_t tile)
{
    size_t per = g->tiles_h * g->tiles_w, in = tile % per;
    return (hth_wino_tile){tile / per, in / g->tiles_w * 4, in % g->tiles_w * 4};
}

// One row of B^T d. The points are 0, +-A, +-B and infinity (winograd_filter.h).
WINO_INLINE void hth_wino_in(__m512 *o, size_t s, __m512 a, __m512 b, __m512 c, __m512 d, __m512 e,
                             __m512 f)
{
    const float a2 = HTH_WINO_A * HTH_WINO_A, b2 = HTH_WINO_B * HTH_WINO_B;
    __m512 p = e - b2 * c, q = HTH_WINO_A * (d - b2 * b);
    __m512 r = e - a2 * c, t = HTH_WINO_B * (d - a2 * b);
    o[0] = a2 * b2 * a - (a2 + b2) * c + e;
    o[s] = p + q;
    o[2 * s] = p - q;
    o[3 * s] = r + t;
    o[4 * s] = r - t;
    o[5 * s] = a2 * b2 * b - (a2 + b2) * d + f;
}

// The patch of tile `tile` in block `block` of x becomes 36 vectors, `step` floats apart from v on.
WINO_INLINE void hth_wino_patch(const hth_wino_grid *g, const float *image, size_t tile,
                                size_t block, float *v, size_t step)
{
    hth_wino_tile at = hth_wino_where(g, tile);
    const float *x = image + (at.image * g->blocks + block) * g->h * g->w * 16;
    __m512 d[36], half[36];
    for (size_t r = 0; r < 6; r++) {
        size_t row = at.row + r - g->pad_h; // wraps below zero: larger than any height
        for (size_t c = 0; c < 6; c++) {
            size_t col = at.col + c - g->pad_w;
            bool inside = row < g->h && col < g->w;
            d[r * 6 + c] =
                inside ? _mm512_loadu_ps(x + (row * g->w + col) * 16) : _mm512_setzero_ps();
        }
    }
    for (size_t c = 0; c < 6; c++) {
        hth_wino_in(half + c, 6, d[c], d[6 + c], d[12 + c], d[18 + c], d[24 + c], d[30 + c]);
    }
    for (size_t r = 0; r < 6; r++) {
        __m512 *h = half + r * 6, o[6];
        hth_wino_in(o, 1, h[0], h[1], h[2], h[3], h[4], h[5]);
        for (size_t c = 0; c < 6; c++) {
            _mm512_storeu_ps(v + (r * 6 + c) * step, o[c]);
        }
    }
}

#endif
