// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_body_filter.h - what transforms filters: WINO_LANES outputs side by
// side, computed ones in float, constant ones in double. Their taps are nine vectors, whose
// elements lie a filter (data gradient) or all filters of an output (forward) apart in memory.
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_BODY_FILTER_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_BODY_FILTER_H

#include "kernels/cpu/winograd/winograd_body.h"

// Half as many doubles.
typedef double wino_wide __attribute__((vector_size(WINO_LANES * 4)));
typedef float wino_half __attribute__((vector_size(WINO_LANES * 2)));
typedef float wino_half_mem __attribute__((vector_size(WINO_LANES * 2), aligned(4), may_alias));

// One row of G g.
#define WINO_ROW_FILTER(name, vec, real)                                                           \
    WINO_INLINE void name(int pairs, const vec *g, int in, vec *o, int out)                        \
    {                                                                                              \
        const hth_wino_points *p = &hth_wino_points_of[pairs - 1];                                 \
        o[0] = g[0] * (real)(1 / p->all[0]);                                                       \
        o[(2 * pairs + 1) * out] = g[2 * in];                                                      \
        WINO_UNROLL                                                                                \
        for (int q = 0; q < pairs; q++) {                                                          \
            real at = (real)p->at[q], norm = (real)wino_norm(pairs, q);                            \
            vec even = norm * g[0] + (norm * at * at) * g[2 * in], odd = (norm * at) * g[in];      \
            o[(2 * q + 1) * out] = even + odd;                                                     \
            o[(2 * q + 2) * out] = even - odd;                                                     \
        }                                                                                          \
    }
WINO_ROW_FILTER(wino_row_filter, wino_vec, float)
WINO_ROW_FILTER(wino_row_wide, wino_wide, double)

#if defined(__x86_64__)
// Four floats of WINO_LANES / 4 rows that are 4 * `step` apart, side by side.
WINO_INLINE wino_vec wino_quads(const float *p, size_t step)
{
#if WINO_LANES == 16
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 4 * step), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 8 * step), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(p + 12 * step), 3);
#elif WINO_LANES == 8
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4 * step),
                                1);
#else
    (void)step;
    return _mm_loadu_ps(p);
#endif
}

#if WINO_LANES == 16
#define WINO_LOW(a, b)  _mm512_unpacklo_ps(a, b)
#define WINO_HIGH(a, b) _mm512_unpackhi_ps(a, b)
#define WINO_PAIRS_LOW(a, b)                                                                       \
    _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
#define WINO_PAIRS_HIGH(a, b)                                                                      \
    _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
#elif WINO_LANES == 8
#define WINO_LOW(a, b)  _mm256_unpacklo_ps(a, b)
#define WINO_HIGH(a, b) _mm256_unpackhi_ps(a, b)
#define WINO_PAIRS_LOW(a, b)                                                                       \
    _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
#define WINO_PAIRS_HIGH(a, b)                                                                      \
    _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
#else
#define WINO_LOW(a, b)        _mm_unpacklo_ps(a, b)
#define WINO_HIGH(a, b)       _mm_unpackhi_ps(a, b)
#define WINO_PAIRS_LOW(a, b)  _mm_movelh_ps(a, b)
#define WINO_PAIRS_HIGH(a, b) _mm_movehl_ps(b, a)
#endif

// Columns 0..3 of WINO_LANES rows of floats, a vector each: transposed in squares of four, which
// is several times faster than gathering.
WINO_INLINE void wino_columns(const float *p, size_t step, wino_vec *vec)
{
    wino_vec a = wino_quads(p, step), b = wino_quads(p + step, step);
    wino_vec c = wino_quads(p + 2 * step, step), d = wino_quads(p + 3 * step, step);
    wino_vec ab = WINO_LOW(a, b), cd = WINO_LOW(c, d);
    vec[0] = WINO_PAIRS_LOW(ab, cd);
    vec[1] = WINO_PAIRS_HIGH(ab, cd);
    ab = WINO_HIGH(a, b);
    cd = WINO_HIGH(c, d);
    vec[2] = WINO_PAIRS_LOW(ab, cd);
    vec[3] = WINO_PAIRS_HIGH(ab, cd);
}
#endif

// Taps of WINO_LANES outputs, a vector per tap.
WINO_INLINE void wino_taps(const hth_wino_filter *filter, const float *w, size_t group, size_t out,
                           size_t c, wino_vec *tap)
{
    const float *first = hth_wino_taps(filter, w, group, out, c);
#if defined(__x86_64__)
    if (filter->merge == 1 && first != NULL && filter->out - out >= WINO_LANES) {
        size_t step = filter->back ? 9 : filter->in * 9;
        wino_vec plain[9], last[4];
        wino_columns(first, step, plain);
        wino_columns(first + 4, step, plain + 4);
        wino_columns(first + 5, step, last);
        plain[8] = last[3];
        WINO_UNROLL
        for (int t = 0; t < 9; t++) {
            tap[t] = plain[filter->back ? 8 - t : t];
        }
        return;
    }
#endif
    (void)first;
    float plain[9][WINO_LANES] = {{0}};
    for (size_t l = 0; l < WINO_LANES; l++) {
        const float *from = hth_wino_taps(filter, w, group, out + l, c);
        for (int t = 0; from != NULL && t < 9; t++) {
            plain[t][l] = from[filter->back ? 8 - t : t];
        }
    }
    for (int t = 0; t < 9; t++) {
        tap[t] = wino_load(plain[t]);
    }
}

WINO_INLINE void wino_filter(int pairs, const hth_wino_filter *filter, const float *w, float *u,
                             size_t group, size_t panel, size_t begin, size_t end)
{
    enum { MOST = 2 * HTH_WINO_PAIRS + 2 };
    int side = WINO_SIDE(pairs);
    size_t all = (filter->out + WINO_BLOCK - 1) / WINO_BLOCK * (WINO_BLOCK / WINO_LANES);
    size_t first = panel * HTH_WINO_PANEL;
    size_t vecs = all - first < HTH_WINO_PANEL ? all - first : HTH_WINO_PANEL;
    size_t width = vecs * WINO_LANES, step = hth_wino_point(end - begin, width);
    for (size_t k = 0; k < (end - begin) * vecs; k++) {
        // along what is contiguous in memory
        size_t vec = filter->back ? k % vecs : k / (end - begin);
        size_t c = filter->back ? k / vecs : k % (end - begin);
        float *to = u + (c * vecs + vec) * WINO_LANES;
        wino_vec tap[9], half[3 * MOST], row[MOST];
        wino_taps(filter, w, group, (first + vec) * WINO_LANES, begin + c, tap);
        for (int i = 0; i < 3; i++) {
            wino_row_filter(pairs, tap + i, 3, half + i, 3);
        }
        for (int r = 0; r < side; r++) {
            wino_row_filter(pairs, half + r * 3, 1, row, 1);
            WINO_UNROLL
            for (int i = 0; i < side; i++) {
                wino_store(to + (size_t)(r * side + i) * step, row[i]);
            }
        }
    }
}

// Half a vector of outputs: taps, as vectors of floats have them, to all points.
WINO_INLINE void wino_constant_half(int pairs, const float *taps, float *to, size_t step)
{
    enum { MOST = 2 * HTH_WINO_PAIRS + 2 };
    int side = WINO_SIDE(pairs);
    wino_wide tap[9], half[3 * MOST], row[MOST];
    for (int t = 0; t < 9; t++) {
        wino_half plain = *(const wino_half_mem *)(const void *)(taps + t * WINO_LANES);
        tap[t] = __builtin_convertvector(plain, wino_wide);
    }
    for (int i = 0; i < 3; i++) {
        wino_row_wide(pairs, tap + i, 3, half + i, 3);
    }
    for (int r = 0; r < side; r++) {
        wino_row_wide(pairs, half + r * 3, 1, row, 1);
        WINO_UNROLL
        for (int i = 0; i < side; i++) {
            float *at = to + (size_t)(r * side + i) * step;
            *(wino_half_mem *)(void *)at = __builtin_convertvector(row[i], wino_half);
        }
    }
}

WINO_INLINE void wino_constant(int pairs, const hth_wino_filter *filter, const float *w, float *u,
                               size_t group, size_t panel, size_t begin, size_t end)
{
    size_t ins = (filter->in + WINO_BLOCK - 1) / WINO_BLOCK * WINO_BLOCK;
    size_t all = (filter->out + WINO_BLOCK - 1) / WINO_BLOCK * (WINO_BLOCK / WINO_LANES);
    size_t first = panel * HTH_WINO_PANEL;
    size_t vecs = all - first < HTH_WINO_PANEL ? all - first : HTH_WINO_PANEL;
    size_t step = hth_wino_point(ins, vecs * WINO_LANES);
    for (size_t k = 0; k < (end - begin) * vecs; k++) {
        size_t c = begin + k / vecs, vec = k % vecs;
        float *to = u + (c * vecs + vec) * WINO_LANES, taps[9 * WINO_LANES];
        wino_vec tap[9];
        wino_taps(filter, w, group, (first + vec) * WINO_LANES, c, tap);
        for (int t = 0; t < 9; t++) {
            wino_store(taps + t * WINO_LANES, tap[t]);
        }
        wino_constant_half(pairs, taps, to, step);
        wino_constant_half(pairs, taps + WINO_LANES / 2, to + WINO_LANES / 2, step);
    }
}

#define WINO_FORWARD(n)                                                                            \
    static void wino_filter_##n(const hth_wino_filter *f, const float *w, float *u, size_t group,  \
                                size_t panel, size_t begin, size_t end)                            \
    {                                                                                              \
        wino_filter(n, f, w, u, group, panel, begin, end);                                         \
    }                                                                                              \
    static void wino_constant_##n(const hth_wino_filter *f, const float *w, float *u,              \
                                  size_t group, size_t panel, size_t begin, size_t end)            \
    {                                                                                              \
        wino_constant(n, f, w, u, group, panel, begin, end);                                       \
    }                                                                                              \
    static void wino_patches_##n(const hth_wino_grid *g, const float *x, const hth_wino_chunk *c,  \
                                 size_t begin, size_t end)                                         \
    {                                                                                              \
        wino_patches(n, g, x, c, begin, end);                                                      \
    }                                                                                              \
    static void wino_results_##n(const hth_wino_job *j, const hth_wino_part *part)                 \
    {                                                                                              \
        wino_results(n, j, part);                                                                  \
    }
WINO_FORWARD(1)
WINO_FORWARD(2)
WINO_FORWARD(3)

#endif
