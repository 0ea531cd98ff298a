// SPDX-License-Identifier: Apache-2.0
// Lowered convolutions in AMX: 32 positions times 32 channels of results in four tiles. A step is
// two blocks of inputs. Of it the patches hold the values rounded to bf16 of all positions, 64
// bytes each, then what was left of them; the filter a tile of pairs of inputs for each vector of
// results, rounded, then what was left. Compiled with flags of its own, reached only where
// hth_isa_amx says so.
#include "kernels/cpu/lowered.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define AMX_ROWS  16  // of a tile
#define AMX_TILE  256 // floats' room of a tile
#define AMX_STEP  1024
#define AMX_LANES 16

typedef struct amx_config {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

// Constant: the compiler takes only the first word of what _tile_loadconfig reads for used.
#define AMX_EIGHT(x)                                                                               \
    {                                                                                              \
        x, x, x, x, x, x, x, x                                                                     \
    }
static const amx_config amx_tiles = {
    .palette = 1, .row_bytes = AMX_EIGHT(64), .rows = AMX_EIGHT(AMX_ROWS)};

static void amx_begin(void)
{
    _tile_loadconfig(&amx_tiles);
}

static void amx_end(void)
{
    _tile_release();
}

// x as a sum of two bf16 vectors. An infinity is the low part alone, which is multiplied once: in
// both it would meet the other factor's low part, of either sign, and give NaN. Above bf16's range
// the high part is its largest number.
static inline void amx_parts(__m512 x, __m256i *high, __m256i *low)
{
    const __m512 most = _mm512_set1_ps(0x1.FEp127F), least = _mm512_set1_ps(-0x1.FEp127F);
    __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(INFINITY), _CMP_NEQ_UQ);
    // operands in this order let a NaN through
    __m512 held = _mm512_maskz_min_ps(finite, most, _mm512_max_ps(least, x));
    *high = (__m256i)_mm512_cvtneps_pbh(held);
    __m512 rounded = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(*high), 16));
    *low = (__m256i)_mm512_cvtneps_pbh(_mm512_sub_ps(x, rounded));
}

static void amx_patches(const hth_lowered_grid *grid, const float *x, size_t first, size_t rows,
                        float *v)
{
    size_t top[2 * AMX_ROWS], left[2 * AMX_ROWS]; // wrap below zero
    size_t taps = grid->kh * grid->kw, count = grid->ib * taps;
    for (size_t r = 0; r < rows; r++) {
        top[r] = (first + r) / grid->ow * grid->stride_h - grid->pad_h;
        left[r] = (first + r) % grid->ow * grid->stride_w - grid->pad_w;
    }
    for (size_t i = 0; i < count + count % 2; i++) {
        const float *from = x + i / taps * grid->h * grid->w * AMX_LANES;
        float *to = v + i / 2 * AMX_STEP + i % 2 * (AMX_LANES / 2);
        size_t down = i % taps / grid->kw * grid->dilation_h,
               right = i % taps % grid->kw * grid->dilation_w;
        for (size_t r = 0; r < rows; r++, to += AMX_LANES) {
            size_t row = top[r] + down, col = left[r] + right;
            __m512 value = _mm512_setzero_ps();
            if (i < count && row < grid->h && col < grid->w) {
                value = _mm512_loadu_ps(from + (row * grid->w + col) * AMX_LANES);
            }
            __m256i high, low;
            amx_parts(value, &high, &low);
            _mm256_store_si256((__m256i *)(void *)to, high);
            _mm256_store_si256((__m256i *)(void *)(to + 2 * AMX_TILE), low);
        }
    }
}

// Pairs of inputs' filters, word by word.
static inline void amx_store_pair(uint16_t *to, __m256i even, __m256i odd)
{
    __m512i pair = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                   _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    _mm512_storeu_si512(to, pair);
}

static void amx_pack(const float *panel, size_t blocks, size_t vecs, float *u)
{
    size_t width = vecs * AMX_LANES;
    for (size_t k = 0; k < blocks * AMX_LANES; k += 2, panel += 2 * width) {
        float *row = u + k / 32 * 2 * vecs * AMX_TILE + k % 32 / 2 * AMX_LANES;
        for (size_t o = 0; o < vecs; o++) {
            __m256i even[2], odd[2];
            amx_parts(_mm512_loadu_ps(panel + o * AMX_LANES), &even[0], &even[1]);
            amx_parts(_mm512_loadu_ps(panel + width + o * AMX_LANES), &odd[0], &odd[1]);
            for (size_t p = 0; p < 2; p++) {
                amx_store_pair((uint16_t *)(void *)(row + (p * vecs + o) * AMX_TILE), even[p],
                               odd[p]);
            }
        }
    }
}

// Sums of two vectors of results to c, tile by tile: positions' halves, of each the vectors.
static void amx_sum_two(const hth_lowered_tile *tile, float *c)
{
    const float *u = tile->u, *v = tile->v, *ahead = tile->u_ahead;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t b = 0; b < tile->blocks; b += 2, u += 4 * AMX_TILE, v += AMX_STEP) {
        for (int i = 0; i < 32; i++, ahead += 16) {
            __builtin_prefetch(ahead, 0, 2);
        }
        _tile_loadd(4, v + 2 * AMX_TILE, 64);
        _tile_loadd(6, u, 64);
        _tile_loadd(7, u + AMX_TILE, 64);
        _tile_loadd(5, v + 3 * AMX_TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(4, v, 64);
        _tile_loadd(5, v + AMX_TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(6, u + 2 * AMX_TILE, 64);
        _tile_loadd(7, u + 3 * AMX_TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, 64);
    _tile_stored(2, c + AMX_TILE, 64);
    _tile_stored(1, c + 2 * AMX_TILE, 64);
    _tile_stored(3, c + 3 * AMX_TILE, 64);
}

static void amx_sum_one(const hth_lowered_tile *tile, float *c)
{
    const float *u = tile->u, *v = tile->v;
    _tile_zero(0);
    _tile_zero(2);
    for (size_t b = 0; b < tile->blocks; b += 2, u += 2 * AMX_TILE, v += AMX_STEP) {
        _tile_loadd(4, v, 64);
        _tile_loadd(5, v + AMX_TILE, 64);
        _tile_loadd(6, u, 64);
        _tile_loadd(7, u + AMX_TILE, 64);
        _tile_dpbf16ps(0, 4, 7);
        _tile_dpbf16ps(2, 5, 7);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(4, v + 2 * AMX_TILE, 64);
        _tile_loadd(5, v + 3 * AMX_TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stored(0, c, 64);
    _tile_stored(2, c + AMX_TILE, 64);
}

static void amx_product(const hth_lowered_tile *tile, size_t rows, size_t vecs)
{
    _Alignas(64) float c[4 * AMX_TILE]; // [vector][position][channel]
    if (vecs == 2) {
        amx_sum_two(tile, c);
    } else {
        amx_sum_one(tile, c);
    }
    __m512 low = _mm512_set1_ps(tile->low), high = _mm512_set1_ps(tile->high);
    __m512 scale = _mm512_set1_ps(tile->add_scale);
    for (size_t o = 0; o < vecs; o++) {
        size_t left = tile->outs > o * AMX_LANES ? tile->outs - o * AMX_LANES : 0;
        __mmask16 there = (__mmask16)((1U << (left < AMX_LANES ? left : AMX_LANES)) - 1);
        __m512 bias = tile->bias == NULL ? _mm512_setzero_ps()
                                         : _mm512_maskz_loadu_ps(there, tile->bias + o * AMX_LANES);
        const float *sums = c + o * 2 * AMX_TILE;
        for (size_t r = 0; r < rows; r++) {
            size_t at = o * tile->plane + r * AMX_LANES;
            __m512 y = _mm512_add_ps(_mm512_load_ps(sums + r * AMX_LANES), bias);
            if (tile->add != NULL) {
                y = _mm512_fmadd_ps(scale, _mm512_loadu_ps(tile->add + at), y);
            }
            // operands in this order let a NaN through
            _mm512_storeu_ps(tile->y + at, _mm512_min_ps(high, _mm512_max_ps(low, y)));
        }
    }
}

const hth_lowered_isa hth_lowered_amx = {.name = "amx",
                                         .block = AMX_LANES,
                                         .rows = 2 * AMX_ROWS,
                                         .even = 2,
                                         .copies = true,
                                         .begin = amx_begin,
                                         .end = amx_end,
                                         .product = amx_product,
                                         .patches = amx_patches,
                                         .pack = amx_pack};

#else

const hth_lowered_isa hth_lowered_amx; // another architecture, or a compiler without
#endif
