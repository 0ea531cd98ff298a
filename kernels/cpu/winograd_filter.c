// SPDX-License-Identifier: Apache-2.0
// U = G g G^T of every filter. Constant filters are transformed once, in double. Parameters change
// with every step: sixteen outputs' filters are gathered, a vector per tap, and transformed side by
// side; the threads share the pairs of (block of outputs, input channel).
#include "kernels/cpu/winograd_filter.h"

#include "device/cpu/team.h"

#include <string.h>

size_t hth_wino_filter_floats(const hth_wino_filter *f)
{
    return 36 * ((f->out + 15) / 16) * ((f->in + 15) / 16) * 16 * 16;
}

// Floats from one output to the next, from one input to the next.
static size_t filter_out(const hth_wino_filter *f)
{
    return f->back ? 9 : f->in * 9;
}

static size_t filter_in(const hth_wino_filter *f)
{
    return f->back ? f->out * 9 : 9;
}

void hth_wino_filter_pack(const hth_wino_filter *f, const float *w, float *u)
{
    const double a = HTH_WINO_A, b = HTH_WINO_B, na = 2 * a * a * (a * a - b * b),
                 nb = 2 * b * b * (b * b - a * a);
    const double G[6][3] = {{1 / (a * a * b * b), 0, 0},   {1 / na, a / na, a * a / na},
                            {1 / na, -a / na, a * a / na}, {1 / nb, b / nb, b * b / nb},
                            {1 / nb, -b / nb, b * b / nb}, {0, 0, 1}};
    size_t ob = (f->out + 15) / 16, in = (f->in + 15) / 16 * 16;
    memset(u, 0, hth_wino_filter_floats(f) * sizeof *u);
    for (size_t i = 0; i < f->out * f->in; i++) {
        size_t o = i / f->in, c = i % f->in;
        const float *g = w + o * filter_out(f) + c * filter_in(f);
        for (size_t k = 0; k < 36; k++) {
            double sum = 0;
            for (size_t t = 0; t < 9; t++) {
                sum += G[k / 6][t / 3] * (double)g[f->back ? 8 - t : t] * G[k % 6][t % 3];
            }
            u[((k * ob + o / 16) * in + c) * 16 + o % 16] = (float)sum;
        }
    }
}

#if defined(__x86_64__)

#include <immintrin.h>

#define FILTER        __attribute__((target("avx512f")))
#define FILTER_INLINE static inline __attribute__((always_inline, target("avx512f")))

typedef struct filter_job {
    const hth_wino_filter *f;
    const float *w;
    float *u;
} filter_job;

FILTER_INLINE void filter_row(__m512 *o, size_t s, __m512 a, __m512 b, __m512 c)
{
    const float a2 = HTH_WINO_A * HTH_WINO_A, b2 = HTH_WINO_B * HTH_WINO_B;
    const float na = 1 / (2 * a2 * (a2 - b2)), nb = 1 / (2 * b2 * (b2 - a2));
    __m512 p = na * (a + a2 * c), q = (na * HTH_WINO_A) * b;
    __m512 r = nb * (a + b2 * c), t = (nb * HTH_WINO_B) * b;
    o[0] = a * (1 / (a2 * b2));
    o[s] = p + q;
    o[2 * s] = p - q;
    o[3 * s] = r + t;
    o[4 * s] = r - t;
    o[5 * s] = c;
}

// Block `block` of outputs, input channel `c`.
FILTER static void filter_unit(const filter_job *j, size_t block, size_t c)
{
    const hth_wino_filter *f = j->f;
    size_t ob = (f->out + 15) / 16, in = (f->in + 15) / 16 * 16, step = ob * in * 16;
    size_t left = f->out - block * 16;
    float *u = j->u + (block * in + c) * 16;
    __m512 g[9], half[18], row[6];
    __mmask16 lanes = (__mmask16)(left < 16 ? (1U << left) - 1 : 0xFFFF);
    lanes = c < f->in ? lanes : 0;
    __m512i at =
        _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                           _mm512_set1_epi32((int)filter_out(f)));
    size_t from = c < f->in ? block * 16 * filter_out(f) + c * filter_in(f) : 0;
    for (size_t t = 0; t < 9; t++) {
        g[t] = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, at,
                                        j->w + from + (f->back ? 8 - t : t), 4);
    }
    for (size_t i = 0; i < 3; i++) {
        filter_row(half + i, 3, g[i], g[3 + i], g[6 + i]);
    }
    for (size_t r = 0; r < 6; r++) {
        filter_row(row, 1, half[r * 3], half[r * 3 + 1], half[r * 3 + 2]);
        for (size_t i = 0; i < 6; i++) {
            _mm512_storeu_ps(u + (r * 6 + i) * step, row[i]);
        }
    }
}

static void filter_part(void *arg, int i, int n)
{
    const filter_job *j = arg;
    size_t begin, end, in = (j->f->in + 15) / 16 * 16;
    hth_team_range((j->f->out + 15) / 16 * in, i, n, &begin, &end);
    for (size_t k = begin; k < end; k++) {
        filter_unit(j, k / in, k % in);
    }
}

void hth_wino_filter_run(const hth_wino_filter *f, const float *w, float *u)
{
    filter_job j = {f, w, u};
    hth_team_run(filter_part, &j);
}

#endif
