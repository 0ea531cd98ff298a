// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/lowered_body.h - the product and the copies of lowered.h in vectors of WINO_LANES
// floats, a block of channels each. Included once by each file that is compiled for an instruction
// set, which defines WINO_LANES and LOWERED_ROWS (positions at once in a product).
#ifndef HTH_KERNELS_CPU_LOWERED_BODY_H
#define HTH_KERNELS_CPU_LOWERED_BODY_H

#include "kernels/cpu/lowered.h"
#include "kernels/cpu/winograd/winograd_vector.h"

#include <string.h>

#ifndef LOWERED_ROWS
#define LOWERED_ROWS 6
#endif

// What is read later goes to the second-level cache, lines that are written to the first.
#define LOWERED_LINE 16 // floats of a cache line

WINO_INLINE wino_vec lowered_bias(const hth_lowered_tile *tile, size_t at)
{
    wino_vec b = {0};
    if (tile->bias != NULL && tile->outs > at) {
        size_t left = tile->outs - at;
        memcpy(&b, tile->bias + at, (left < WINO_LANES ? left : WINO_LANES) * sizeof(float));
    }
    return b;
}

WINO_INLINE void lowered_product(const hth_lowered_tile *tile, int rows, int vecs)
{
    wino_vec acc[HTH_LOWERED_PANEL][LOWERED_ROWS];
    const float *u = tile->u, *v = tile->v, *u_ahead = tile->u_ahead, *v_ahead = tile->v_ahead;
    WINO_UNROLL
    for (int o = 0; o < vecs; o++) {
        wino_vec b = lowered_bias(tile, (size_t)o * WINO_LANES);
        for (int r = 0; r < rows; r++) {
            acc[o][r] = b;
        }
    }
    for (size_t b = 0; b < tile->blocks; b++, v += tile->next, v_ahead += tile->next) {
        const float *written = b < (size_t)vecs ? tile->y + b * tile->plane : v;
        for (size_t l = 0; l < WINO_LANES; l++, u += vecs * WINO_LANES, u_ahead += LOWERED_LINE) {
            wino_vec u0 = wino_load(u), u1 = vecs == 2 ? wino_load(u + WINO_LANES) : u0;
            __builtin_prefetch(u_ahead, 0, 2);
            __builtin_prefetch(v_ahead + l * WINO_LANES, 0, 2);
            __builtin_prefetch(written + l * WINO_LANES, 1, 3);
            for (int r = 0; r < rows; r++) {
                wino_vec x = wino_all(v[(size_t)r * WINO_LANES + l]);
                acc[0][r] += x * u0;
                if (vecs == 2) {
                    acc[1][r] += x * u1;
                }
            }
        }
    }
    const float *add = tile->add;
    float *y = tile->y, scale = tile->add_scale, low = tile->low, high = tile->high;
    WINO_UNROLL
    for (int o = 0; o < vecs; o++) {
        for (int r = 0; r < rows; r++) {
            size_t at = (size_t)o * tile->plane + (size_t)r * WINO_LANES;
            wino_vec sum = acc[o][r];
            if (add != NULL) {
                sum += scale * wino_load(add + at);
            }
            wino_store(y + at, wino_clamp(sum, low, high));
        }
    }
}

#define LOWERED_CASE(R)                                                                            \
    case R:                                                                                        \
        if (vecs == 2) {                                                                           \
            lowered_product(t, R, 2);                                                              \
        } else {                                                                                   \
            lowered_product(t, R, 1);                                                              \
        }                                                                                          \
        break

static void lowered_rows(const hth_lowered_tile *t, size_t rows, size_t vecs)
{
    switch (rows) {
        LOWERED_CASE(1);
        LOWERED_CASE(2);
        LOWERED_CASE(3);
        LOWERED_CASE(4);
        LOWERED_CASE(5);
        LOWERED_CASE(6);
#if LOWERED_ROWS > 6
        LOWERED_CASE(7);
        LOWERED_CASE(8);
        LOWERED_CASE(9);
        LOWERED_CASE(10);
        LOWERED_CASE(11);
        LOWERED_CASE(12);
        LOWERED_CASE(13);
        LOWERED_CASE(14);
#endif
    default:
        break;
    }
}

static void lowered_patches(const hth_lowered_grid *grid, const float *x, size_t first, size_t rows,
                            float *v)
{
    size_t top[LOWERED_ROWS], left[LOWERED_ROWS]; // wrap below zero
    for (size_t r = 0; r < rows; r++) {
        top[r] = (first + r) / grid->ow * grid->stride_h - grid->pad_h;
        left[r] = (first + r) % grid->ow * grid->stride_w - grid->pad_w;
    }
    for (size_t b = 0; b < grid->ib; b++, x += grid->h * grid->w * WINO_LANES) {
        for (size_t tap = 0; tap < grid->kh * grid->kw; tap++, v += LOWERED_ROWS * WINO_LANES) {
            size_t down = tap / grid->kw * grid->dilation_h,
                   right = tap % grid->kw * grid->dilation_w;
            for (size_t r = 0; r < rows; r++) {
                size_t row = top[r] + down, col = left[r] + right;
                wino_store(v + r * WINO_LANES,
                           row < grid->h && col < grid->w
                               ? wino_load(x + (row * grid->w + col) * WINO_LANES)
                               : (wino_vec){0});
            }
        }
    }
}

#endif
