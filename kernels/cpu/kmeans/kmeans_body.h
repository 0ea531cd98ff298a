// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/kmeans/kmeans_body.h - the loops of kmeans_cpu.h in vectors of WINO_LANES floats.
// Included once by each file that is compiled for an instruction set, which defines WINO_LANES and
// KMEANS_MOST (centroids of a tile).
#ifndef HTH_KERNELS_CPU_KMEANS_KMEANS_BODY_H
#define HTH_KERNELS_CPU_KMEANS_KMEANS_BODY_H

#include "kernels/cpu/kmeans/kmeans_cpu.h"
#include "kernels/cpu/winograd/winograd_vector.h"

#include <math.h>
#include <string.h>

#ifndef KMEANS_MOST
#define KMEANS_MOST 6
#endif
#define KMEANS_POINTS (2 * WINO_LANES)

typedef int32_t kmeans_int __attribute__((vector_size(WINO_LANES * 4)));
typedef int32_t kmeans_int_mem __attribute__((vector_size(WINO_LANES * 4), aligned(4), may_alias));
typedef float kmeans_float4 __attribute__((vector_size(16)));
typedef float kmeans_float4_mem __attribute__((vector_size(16), aligned(4), may_alias));
typedef float kmeans_float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double kmeans_double8 __attribute__((vector_size(64)));
typedef double kmeans_double8_mem __attribute__((vector_size(64), aligned(8), may_alias));

#if WINO_LANES == 16
#define KMEANS_MIN(a, b) ((wino_vec)_mm512_min_ps(a, b))
#define KMEANS_MAX(a, b) ((wino_vec)_mm512_max_ps(a, b))
#elif WINO_LANES == 8
#define KMEANS_MIN(a, b) ((wino_vec)_mm256_min_ps(a, b))
#define KMEANS_MAX(a, b) ((wino_vec)_mm256_max_ps(a, b))
#else
#define KMEANS_MIN(a, b) kmeans_choose((a) < (b), a, b)
#define KMEANS_MAX(a, b) kmeans_choose((a) > (b), a, b)
#endif

WINO_INLINE wino_vec kmeans_choose(kmeans_int first, wino_vec a, wino_vec b)
{
    return (wino_vec)(((kmeans_int)a & first) | ((kmeans_int)b & ~first));
}

// Where `score` is larger than *best it takes its place, and j that of *label.
WINO_INLINE void kmeans_take(wino_vec score, int32_t j, wino_vec *best, wino_vec *second,
                             kmeans_int *label)
{
    *second = KMEANS_MAX(*second, KMEANS_MIN(*best, score));
#if WINO_LANES == 16
    __mmask16 more = _mm512_cmp_ps_mask(score, *best, _CMP_GT_OQ);
    *best = _mm512_mask_mov_ps(*best, more, score);
    *label = (kmeans_int)_mm512_mask_set1_epi32((__m512i)*label, more, j);
#else
    kmeans_int more = score > *best, all = j - (kmeans_int){0};
    *best = kmeans_choose(more, score, *best);
    *label = (all & more) | (*label & ~more);
#endif
}

WINO_INLINE void kmeans_nearest_tile(const hth_kmeans_tile *tile, int m)
{
    wino_vec score[2][KMEANS_MOST];
    const float *x = tile->x, *c = tile->c;
    WINO_UNROLL
    for (int j = 0; j < m; j++) {
        score[0][j] = score[1][j] = wino_all(-tile->half[j]);
    }
    for (size_t p = 0; p < tile->d; p++, x += KMEANS_POINTS, c += m) {
        wino_vec x0 = wino_load(x), x1 = wino_load(x + WINO_LANES);
        for (int j = 0; j < m; j++) {
            wino_vec all = wino_all(c[j]);
            score[0][j] += all * x0;
            score[1][j] += all * x1;
        }
    }
    WINO_UNROLL
    for (int r = 0; r < 2; r++) {
        float *at = tile->best + r * WINO_LANES;
        kmeans_int_mem *label = (kmeans_int_mem *)(void *)(tile->label + r * WINO_LANES);
        wino_vec best = wino_load(at), second = wino_load(tile->second + r * WINO_LANES);
        kmeans_int whose = *label;
        for (int j = 0; j < m; j++) {
            kmeans_take(score[r][j], tile->first + j, &best, &second, &whose);
        }
        wino_store(at, best);
        wino_store(tile->second + r * WINO_LANES, second);
        *label = whose;
    }
}

WINO_INLINE void kmeans_spread_tile(const hth_kmeans_tile *tile, int m)
{
    wino_vec sum[2][KMEANS_MOST];
    const float *x = tile->x, *c = tile->c;
    WINO_UNROLL
    for (int j = 0; j < m; j++) {
        sum[0][j] = sum[1][j] = (wino_vec){0};
    }
    for (size_t p = 0; p < tile->d; p++, x += KMEANS_POINTS, c += m) {
        wino_vec x0 = wino_load(x), x1 = wino_load(x + WINO_LANES);
        for (int j = 0; j < m; j++) {
            wino_vec all = wino_all(c[j]), d0 = x0 - all, d1 = x1 - all;
            sum[0][j] += d0 * d0;
            sum[1][j] += d1 * d1;
        }
    }
    WINO_UNROLL
    for (int j = 0; j < m; j++) {
        wino_store(tile->out + j * KMEANS_POINTS, sum[0][j]);
        wino_store(tile->out + j * KMEANS_POINTS + WINO_LANES, sum[1][j]);
    }
}

#define KMEANS_CASE(body, m)                                                                       \
    case m:                                                                                        \
        body(tile, m);                                                                             \
        break
#if KMEANS_MOST > 6
#define KMEANS_CASES(body)                                                                         \
    KMEANS_CASE(body, 7);                                                                          \
    KMEANS_CASE(body, 8);                                                                          \
    KMEANS_CASE(body, 9);                                                                          \
    KMEANS_CASE(body, 10);                                                                         \
    KMEANS_CASE(body, 11);                                                                         \
    KMEANS_CASE(body, 12);                                                                         \
    KMEANS_CASE(body, 13);                                                                         \
    KMEANS_CASE(body, 14)
#else
#define KMEANS_CASES(body)
#endif
#define KMEANS_TILES(name, body)                                                                   \
    static void name(const hth_kmeans_tile *tile, size_t centroids)                                \
    {                                                                                              \
        switch (centroids) {                                                                       \
            KMEANS_CASE(body, 1);                                                                  \
            KMEANS_CASE(body, 2);                                                                  \
            KMEANS_CASE(body, 3);                                                                  \
            KMEANS_CASE(body, 4);                                                                  \
            KMEANS_CASE(body, 5);                                                                  \
            KMEANS_CASE(body, 6);                                                                  \
            KMEANS_CASES(body);                                                                    \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    }
KMEANS_TILES(kmeans_nearest, kmeans_nearest_tile)
KMEANS_TILES(kmeans_spread, kmeans_spread_tile)

// In each 128-bit lane: the low or high halves of a and b, in turns of one float or of two.
#if WINO_LANES == 16
#define KMEANS_LOW1(a, b)  ((wino_vec)_mm512_unpacklo_ps(a, b))
#define KMEANS_HIGH1(a, b) ((wino_vec)_mm512_unpackhi_ps(a, b))
#define KMEANS_LOW2(a, b)  ((wino_vec)_mm512_unpacklo_pd((__m512d)(a), (__m512d)(b)))
#define KMEANS_HIGH2(a, b) ((wino_vec)_mm512_unpackhi_pd((__m512d)(a), (__m512d)(b)))
#elif WINO_LANES == 8
#define KMEANS_LOW1(a, b)  ((wino_vec)_mm256_unpacklo_ps(a, b))
#define KMEANS_HIGH1(a, b) ((wino_vec)_mm256_unpackhi_ps(a, b))
#define KMEANS_LOW2(a, b)  ((wino_vec)_mm256_unpacklo_pd((__m256d)(a), (__m256d)(b)))
#define KMEANS_HIGH2(a, b) ((wino_vec)_mm256_unpackhi_pd((__m256d)(a), (__m256d)(b)))
#else
#define KMEANS_LOW1(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define KMEANS_HIGH1(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define KMEANS_LOW2(a, b)  __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define KMEANS_HIGH2(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#endif

// Four columns of the rows i, i + 4, i + 8 ..: a lane of 128 bits each.
WINO_INLINE wino_vec kmeans_rows(const float *const *row, int i, size_t p)
{
    kmeans_float4 part[WINO_LANES / 4];
    wino_vec all;
    WINO_UNROLL
    for (int l = 0; l < WINO_LANES / 4; l++) {
        part[l] = *(const kmeans_float4_mem *)(const void *)(row[4 * l + i] + p);
    }
#if WINO_LANES == 16
    all = (wino_vec)_mm512_castps128_ps512((__m128)part[0]);
    all = (wino_vec)_mm512_insertf32x4((__m512)all, (__m128)part[1], 1);
    all = (wino_vec)_mm512_insertf32x4((__m512)all, (__m128)part[2], 2);
    all = (wino_vec)_mm512_insertf32x4((__m512)all, (__m128)part[3], 3);
#elif WINO_LANES == 8
    all = __builtin_shufflevector(part[0], part[1], 0, 1, 2, 3, 4, 5, 6, 7);
#else
    all = part[0];
#endif
    return all;
}

// Four rows of four columns become four columns of a panel, less the mean; returns their squares.
WINO_INLINE wino_vec kmeans_turn(const float *const *row, size_t p, const float *mean, float *to)
{
    wino_vec a = kmeans_rows(row, 0, p), b = kmeans_rows(row, 1, p), c = kmeans_rows(row, 2, p),
             e = kmeans_rows(row, 3, p);
    wino_vec ab = KMEANS_LOW1(a, b), ce = KMEANS_LOW1(c, e);
    wino_vec x0 = KMEANS_LOW2(ab, ce) - mean[p], x1 = KMEANS_HIGH2(ab, ce) - mean[p + 1];
    ab = KMEANS_HIGH1(a, b);
    ce = KMEANS_HIGH1(c, e);
    wino_vec x2 = KMEANS_LOW2(ab, ce) - mean[p + 2], x3 = KMEANS_HIGH2(ab, ce) - mean[p + 3];
    wino_store(to, x0);
    wino_store(to + KMEANS_POINTS, x1);
    wino_store(to + 2 * KMEANS_POINTS, x2);
    wino_store(to + 3 * KMEANS_POINTS, x3);
    return x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3;
}

// The next panel's lines are asked for evenly.
static void kmeans_pack(const float *x, size_t d, size_t rows, const float *mean, float *panel,
                        float *norm)
{
    const char *ahead = (const char *)(x + rows * d);
    for (size_t r = 0; r < KMEANS_POINTS; r += WINO_LANES) {
        const float *row[WINO_LANES];
        float *to = panel + r;
        wino_vec squares = {0};
        for (size_t l = 0; l < WINO_LANES; l++) {
            row[l] = x + (r + l < rows ? r + l : rows - 1) * d;
        }
        size_t p = 0;
        for (; p + 4 <= d; p += 4, to += 4 * KMEANS_POINTS, ahead += 16 * WINO_LANES) {
            for (size_t line = 0; line < 16 * WINO_LANES; line += 64) {
                __builtin_prefetch(ahead + line, 0, 3);
            }
            squares += kmeans_turn(row, p, mean, to);
        }
        for (; p < d; p++, to += KMEANS_POINTS) {
            for (size_t l = 0; l < WINO_LANES; l++) {
                to[l] = row[l][p] - mean[p];
            }
            squares += wino_load(to) * wino_load(to);
        }
        wino_store(norm + r, squares);
    }
}

// A sum of d products in f32 is off by some sqrt(d) half units of |x| |c|; twice that is allowed
// for, and the units of |c|^2 / 2. Neither of the two |c| is above |x| and the second's distance.
static void kmeans_doubt(size_t n, size_t d, const float *best, const float *second,
                         const float *norm, int32_t *doubt)
{
    const float unit = 0x1p-23F, products = unit * (sqrtf((float)d) + 2);
    for (size_t i = 0; i < n; i++) {
        float squared = norm[i] - 2 * second[i], x = sqrtf(norm[i]);
        float c = x + sqrtf(squared > 0 ? squared : 0);
        float gap = best[i] - second[i];
        doubt[i] = gap <= 2 * products * x * c + unit * c * c ? 1 : 0;
    }
}

#define KMEANS_WIDE(x)                                                                             \
    __builtin_convertvector(*(const kmeans_float8 *)(const void *)(x), kmeans_double8)

static void kmeans_add(const float *x, size_t d, double *sum)
{
    size_t p = 0;
    for (; p + 8 <= d; p += 8) {
        *(kmeans_double8_mem *)(void *)(sum + p) += KMEANS_WIDE(x + p);
    }
    for (; p < d; p++) {
        sum[p] += (double)x[p];
    }
}

static double kmeans_squared(const float *x, const double *c, size_t d)
{
    kmeans_double8 lanes = {0};
    double sum = 0;
    size_t p = 0;
    for (; p + 8 <= d; p += 8) {
        kmeans_double8 apart =
            KMEANS_WIDE(x + p) - *(const kmeans_double8_mem *)(const void *)(c + p);
        lanes += apart * apart;
    }
    for (; p < d; p++) {
        double apart = (double)x[p] - c[p];
        sum += apart * apart;
    }
    for (int l = 0; l < 8; l++) {
        sum += lanes[l];
    }
    return sum;
}

static uint32_t kmeans_moments(const float *x, size_t d, const float *origin, double *sum,
                               double *square)
{
    uint32_t largest = 0;
    for (size_t p = 0; p < d; p++) {
        double apart = (double)x[p] - (double)origin[p];
        uint32_t bits;
        memcpy(&bits, &x[p], sizeof bits);
        bits &= 0x7FFFFFFF;
        largest = bits > largest ? bits : largest;
        sum[p] += apart;
        square[p] += apart * apart;
    }
    return largest;
}

#define KMEANS_TABLE(text)                                                                         \
    {                                                                                              \
        .name = text, .points = KMEANS_POINTS, .most = KMEANS_MOST, .pack = kmeans_pack,           \
        .nearest = kmeans_nearest, .doubt = kmeans_doubt, .spread = kmeans_spread,                 \
        .add = kmeans_add, .squared = kmeans_squared, .moments = kmeans_moments                    \
    }

#endif
