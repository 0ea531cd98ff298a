// SPDX-License-Identifier: Apache-2.0
// The product of a row-strided A and a B in panels.
//
// A tile of up to 14 rows and one panel (two vectors) lives in registers: 28 of AVX-512's 32 hold
// sums, each pair of B's vectors serves all rows. Around it, as Goto and van de Geijn have it
// ("Anatomy of high-performance matrix multiplication", 2008): a block of A's rows and GEMM_DEPTH
// of its columns is copied to the thread's scratch (second-level cache, rows at a constant distance
// that avoids cache sets falling together) and meets all of B's panels in turn. While a panel is
// used, the next is prefetched: at few rows B comes from memory, and this hides it. Sums over more
// than GEMM_DEPTH columns are kept in C in between.
#include "kernels/cpu/gemm.h"

#include "device/cpu/team.h"
#include "kernels/cpu/vector.h"
#include "kernels/ref/ref.h"

#define GEMM_DEPTH  768
#define GEMM_STRIDE (GEMM_DEPTH + 16) // floats between rows of the block of A
#define GEMM_ROWS   140       // of the block: 430 KiB, with two panels' parts below 3/4 of 1 MiB
#define GEMM_EDGE   (14 * 32) // floats of the largest tile
#define GEMM_SPLIT  256       // rows from which threads share rows instead of columns
#define GEMM_STRIP  16        // rows of a dense B that go to all panels in turn
#define GEMM_AHEAD  4         // steps: B goes to the first-level cache, which a panel does not fit

typedef float gemm_v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float gemm_v8 __attribute__((vector_size(32), aligned(4), may_alias));

typedef struct gemm_tile {
    size_t k;
    const float *a, *b; // rows at GEMM_STRIDE; part of a panel
    float *c;
    size_t c_row;
    bool add;         // to what c holds
    const char *next; // what to prefetch, and how many bytes per step
    size_t next_step;
} gemm_tile;

#define GEMM_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#define GEMM_ZERO(r)     V s##r = {0}, t##r = {0};
#define GEMM_STEP(r)                                                                               \
    if (rows > (r)) {                                                                              \
        s##r += a[(r)*GEMM_STRIDE] * b0;                                                           \
        t##r += a[(r)*GEMM_STRIDE] * b1;                                                           \
    }
#define GEMM_STORE(r)                                                                              \
    if (rows > (r)) {                                                                              \
        V *to = (V *)(g->c + (r)*g->c_row);                                                        \
        if (g->add) {                                                                              \
            s##r += to[0];                                                                         \
            t##r += to[1];                                                                         \
        }                                                                                          \
        to[0] = s##r;                                                                              \
        to[1] = t##r;                                                                              \
    }
#define GEMM_BODY(V)                                                                               \
    const float *a = g->a, *b = g->b;                                                              \
    const char *next = g->next;                                                                    \
    GEMM_EACH_ROW(GEMM_ZERO)                                                                       \
    for (size_t p = 0; p < g->k; p++, a++, b += sizeof(V) / 2) {                                   \
        V b0 = ((const V *)b)[0], b1 = ((const V *)b)[1];                                          \
        __builtin_prefetch(b + GEMM_AHEAD * sizeof(V) / 2, 0, 3);                                  \
        __builtin_prefetch(b + GEMM_AHEAD * sizeof(V) / 2 + sizeof(V) / 4, 0, 3);                  \
        __builtin_prefetch(next, 0, 2);                                                            \
        __builtin_prefetch(next + 64, 0, 2);                                                       \
        next += g->next_step;                                                                      \
        GEMM_EACH_ROW(GEMM_STEP)                                                                   \
    }                                                                                              \
    GEMM_EACH_ROW(GEMM_STORE)

HTH_INLINE void gemm_body_16(const gemm_tile *g, int rows)
{
    typedef gemm_v16 V;
    GEMM_BODY(V)
}

HTH_INLINE void gemm_body_8(const gemm_tile *g, int rows)
{
    typedef gemm_v8 V;
    GEMM_BODY(V)
}

#define GEMM_CASE_16(r)                                                                            \
    case (r) + 1:                                                                                  \
        gemm_body_16(g, (r) + 1);                                                                  \
        break;
HTH_TARGET_512 static void gemm_tile_512(const gemm_tile *g, int rows)
{
    switch (rows) {
        GEMM_EACH_ROW(GEMM_CASE_16)
    }
}

#define GEMM_CASE_8(r)                                                                             \
    case (r) + 1:                                                                                  \
        gemm_body_8(g, (r) + 1);                                                                   \
        break;
#define GEMM_SIX(X) X(0) X(1) X(2) X(3) X(4) X(5)
HTH_TARGET_256 static void gemm_tile_256(const gemm_tile *g, int rows)
{
    switch (rows) {
        GEMM_SIX(GEMM_CASE_8)
    }
}

static void gemm_tile_any(const gemm_tile *g, int rows)
{
    switch (rows) {
        GEMM_SIX(GEMM_CASE_8)
    }
}

typedef struct gemm_isa {
    void (*tile)(const gemm_tile *tile, int rows);
    size_t width, rows;
} gemm_isa;

static const gemm_isa *gemm_isa_here(void)
{
    static const gemm_isa wide = {gemm_tile_512, 32, 14}, half = {gemm_tile_256, 16, 6},
                          any = {gemm_tile_any, 16, 6};
    if (HTH_HAS_512) {
        return &wide;
    }
    return HTH_HAS_256 ? &half : &any;
}

int hth_gemm_width(void)
{
    return (int)gemm_isa_here()->width;
}

size_t hth_gemm_panels(size_t n)
{
    size_t w = gemm_isa_here()->width;
    return (n + w - 1) / w;
}

size_t hth_gemm_packed_bytes(size_t k, size_t n)
{
    return hth_gemm_panels(n) * gemm_isa_here()->width * k * sizeof(float);
}

size_t hth_gemm_scratch_bytes(size_t m)
{
    return (GEMM_EDGE + (m < GEMM_ROWS ? m : GEMM_ROWS) * GEMM_STRIDE) * sizeof(float);
}

// Rows [p0, p1) of one panel; `from` is where the panel begins in B.
static void gemm_pack_rows(const float *from, size_t row, size_t cols, size_t w, size_t p0,
                           size_t p1, float *to)
{
    if (cols == 32) { // of a length that the compiler knows
        for (size_t p = p0; p < p1; p++) {
            memcpy(to + p * w, from + p * row, 32 * sizeof *to);
        }
        return;
    }
    for (size_t p = p0; p < p1; p++) {
        memcpy(to + p * w, from + p * row, cols * sizeof *to);
        memset(to + p * w + cols, 0, (w - cols) * sizeof *to);
    }
}

// Rows of B that are dense are read a strip of rows at a time, as they lie: a panel at a time would
// read a few bytes of each, of all of B, again and again.
static void gemm_pack_strips(const float *b, size_t row, size_t k, size_t n, size_t first,
                             size_t last, float *dst)
{
    size_t w = gemm_isa_here()->width;
    for (size_t p0 = 0, p1; p0 < k; p0 = p1) {
        p1 = k - p0 < GEMM_STRIP ? k : p0 + GEMM_STRIP;
        for (size_t q = first; q < last; q++) {
            size_t cols = n - q * w < w ? n - q * w : w;
            gemm_pack_rows(b + q * w, row, cols, w, p0, p1, dst + q * w * k);
        }
    }
}

void hth_gemm_pack(const float *b, size_t row, size_t col, size_t k, size_t n, size_t first,
                   size_t last, float *dst)
{
    size_t w = gemm_isa_here()->width;
    if (col == 1) {
        gemm_pack_strips(b, row, k, n, first, last, dst);
        return;
    }
    for (size_t q = first; q < last; q++) {
        const float *from = b + q * w * col;
        float *to = dst + q * w * k;
        size_t cols = n - q * w < w ? n - q * w : w;
        const int64_t dim[2] = {(int64_t)k, (int64_t)cols}, step[2] = {(int64_t)w, 1},
                      from_step[2] = {(int64_t)row, (int64_t)col};
        if (cols < w) {
            memset(to, 0, k * w * sizeof *to);
        }
        ref_copy(2, dim, to, step, from, from_step, sizeof *to);
    }
}

// A block of A: rows [i0, i1), columns [k0, k0 + depth), scaled by alpha.
static void gemm_copy_a(const hth_gemm *gemm, size_t i0, size_t i1, size_t k0, size_t depth,
                        float *to)
{
    const float *from = gemm->a + i0 * gemm->a_row + k0 * gemm->a_col;
    const int64_t dim[2] = {(int64_t)(i1 - i0), (int64_t)depth}, step[2] = {GEMM_STRIDE, 1},
                  from_step[2] = {(int64_t)gemm->a_row, (int64_t)gemm->a_col};
    ref_copy(2, dim, to, step, from, from_step, sizeof *to);
    if (gemm->alpha == 1) {
        return;
    }
    for (size_t i = i0; i < i1; i++, to += GEMM_STRIDE) {
        for (size_t p = 0; p < depth; p++) {
            to[p] *= gemm->alpha;
        }
    }
}

typedef struct gemm_pass {
    const gemm_isa *isa;
    size_t i0, i1, k0, depth, first, last; // rows, columns of A, panels
    float *block, *edge;                   // packed A; a tile of the last, narrower panel
} gemm_pass;

// All tiles of one panel's part; the next part is prefetched evenly meanwhile.
static void gemm_panel(const hth_gemm *gemm, const gemm_pass *pass, size_t q)
{
    size_t w = pass->isa->width, rows = pass->i1 - pass->i0,
           tiles = (rows + pass->isa->rows - 1) / pass->isa->rows;
    size_t cols = gemm->n - q * w < w ? gemm->n - q * w : w;
    bool end = pass->k0 + pass->depth == gemm->k, full = cols == w;
    const float *b = gemm->b + (q * gemm->k + pass->k0) * w;
    size_t bytes = q + 1 < pass->last ? pass->depth * w * sizeof(float) : 0,
           step = bytes / pass->depth / tiles;
    const char *next = (const char *)(bytes ? b + gemm->k * w : b);
    for (size_t t = 0; t < tiles; t++) {
        size_t r0 = rows * t / tiles, r1 = rows * (t + 1) / tiles;
        float *c = gemm->c + (pass->i0 + r0) * gemm->c_row + q * w;
        float *to = full ? c : pass->edge;
        size_t to_row = full ? gemm->c_row : w;
        gemm_tile tile = {.k = pass->depth,
                          .a = pass->block + r0 * GEMM_STRIDE,
                          .b = b,
                          .c = to,
                          .c_row = to_row,
                          .add = full && pass->k0 > 0,
                          .next = next + step * pass->depth * t,
                          .next_step = step};
        pass->isa->tile(&tile, (int)(r1 - r0));
        for (size_t i = 0; !full && i < r1 - r0; i++) {
            for (size_t j = 0; j < cols; j++) {
                c[i * gemm->c_row + j] =
                    pass->edge[i * w + j] + (pass->k0 > 0 ? c[i * gemm->c_row + j] : 0);
            }
        }
        if (end && gemm->post != NULL) {
            hth_epilogue_apply(gemm->post, c, gemm->c_row, gemm->first_row + pass->i0 + r0, r1 - r0,
                               q * w, cols);
        }
    }
}

void hth_gemm_block(const hth_gemm *gemm, size_t i0, size_t i1, size_t p0, size_t p1,
                    float *scratch)
{
    gemm_pass s = {.isa = gemm_isa_here(),
                   .first = p0,
                   .last = p1,
                   .block = scratch + GEMM_EDGE,
                   .edge = scratch};
    size_t blocks = (i1 - i0 + GEMM_ROWS - 1) / GEMM_ROWS,
           parts = (gemm->k + GEMM_DEPTH - 1) / GEMM_DEPTH;
    for (size_t r = 0; r < blocks; r++) {
        s.i0 = i0 + (i1 - i0) * r / blocks;
        s.i1 = i0 + (i1 - i0) * (r + 1) / blocks;
        for (size_t d = 0; d < parts; d++) {
            s.k0 = gemm->k * d / parts;
            s.depth = gemm->k * (d + 1) / parts - s.k0;
            gemm_copy_a(gemm, s.i0, s.i1, s.k0, s.depth, s.block);
            for (size_t q = p0; q < p1; q++) {
                gemm_panel(gemm, &s, q);
            }
        }
    }
}

void hth_gemm_share(const hth_gemm *gemm, int i, int n, float *scratch)
{
    size_t panels = hth_gemm_panels(gemm->n), begin, end;
    if (gemm->m >= GEMM_SPLIT || panels < (size_t)n) {
        hth_team_range(gemm->m, i, n, &begin, &end);
        hth_gemm_block(gemm, begin, end, 0, panels, scratch);
    } else {
        hth_team_range(panels, i, n, &begin, &end);
        hth_gemm_block(gemm, 0, gemm->m, begin, end, scratch);
    }
}
