// SPDX-License-Identifier: Apache-2.0
// kernels/ref/loop.c - loops over strided and broadcast operands, and the strided copy that all
// data movement uses.
//
// A loop first drops dimensions of one element and joins neighbours d, d+1 for which step[d] =
// step[d+1] * dim[d+1] holds for every operand. Equal shapes so become one run, whatever their
// rank, and a broadcast becomes as few runs as it can be.
#include "kernels/ref/ref.h"

#include <string.h>

static bool loop_joins(const ref_iter *it, int d, int64_t dim, const int64_t *step)
{
    for (int k = 0; k < it->n_operands; k++) {
        if (it->step[d][k] != step[k] * dim) {
            return false;
        }
    }
    return true;
}

#define LOOP_PART ((int64_t)1 << 20) // elements of a run that are visited at once

bool ref_iter_strided(ref_iter *it, int rank, const int64_t *dim, int n_operands,
                      const int64_t (*step)[REF_MAX_OPERANDS])
{
    memset(it, 0, sizeof *it);
    it->n_operands = n_operands;
    for (int d = 0; d < rank; d++) {
        if (dim[d] <= 0) {
            return false;
        }
        int last = it->rank - 1;
        if (dim[d] == 1) {
            continue;
        }
        if (last >= 0 && loop_joins(it, last, dim[d], step[d])) {
            it->dim[last] *= dim[d];
        } else {
            last = it->rank++;
            it->dim[last] = dim[d];
        }
        memcpy(it->step[last], step[d], sizeof it->step[last]);
    }
    it->count = 1;
    if (it->rank > 0) {
        it->rank--;
        it->count = it->dim[it->rank];
        memcpy(it->stride, it->step[it->rank], sizeof it->stride);
    }
    it->run = it->count;
    return true;
}

void ref_steps(const hth_shape *shape, int64_t *step)
{
    int64_t n = 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        step[d] = n;
        n *= shape->dim[d];
    }
}

bool ref_iter_broadcast(ref_iter *it, const hth_shape *shape, int n_operands,
                        const hth_shape *const *shapes)
{
    int64_t step[HTH_MAX_RANK][REF_MAX_OPERANDS] = {{0}};
    for (int k = 0; k < n_operands; k++) {
        int64_t own[HTH_MAX_RANK];
        ref_steps(shapes[k], own);
        int lead = shape->rank - shapes[k]->rank;
        for (int d = 0; d < shapes[k]->rank; d++) {
            step[lead + d][k] = shapes[k]->dim[d] == 1 ? 0 : own[d];
        }
    }
    bool any = ref_iter_strided(it, shape->rank, shape->dim, n_operands, step);
    it->count = it->count < LOOP_PART ? it->count : LOOP_PART;
    return any;
}

static void loop_move(ref_iter *it, const int64_t *step, int64_t times)
{
    for (int k = 0; k < it->n_operands; k++) {
        it->offset[k] += times * step[k];
    }
}

// loop_part goes on to the next part of a run, or back to its start: false.
static bool loop_part(ref_iter *it)
{
    bool more = it->done + it->count < it->run;
    loop_move(it, it->stride, more ? it->count : -it->done);
    it->done = more ? it->done + it->count : 0;
    int64_t left = it->run - it->done;
    it->count = left < LOOP_PART ? left : LOOP_PART;
    return more;
}

bool ref_iter_next(ref_iter *it)
{
    it->uncounted += it->count;
    if (it->uncounted >= LOOP_PART) {
        if (hth_pace_over((uint64_t)it->uncounted)) {
            return false;
        }
        it->uncounted = 0;
    }
    if (it->count < it->run && loop_part(it)) {
        return true;
    }
    for (int d = it->rank - 1; d >= 0; d--) {
        bool carry = ++it->at[d] == it->dim[d];
        loop_move(it, it->step[d], carry ? 1 - it->dim[d] : 1);
        if (!carry) {
            return true;
        }
        it->at[d] = 0;
    }
    return false;
}

hth_err ref_can_broadcast(const hth_shape *from, const hth_shape *to)
{
    int lead = to->rank - from->rank;
    bool fits = lead >= 0;
    for (int d = 0; fits && d < from->rank; d++) {
        fits = from->dim[d] == 1 || from->dim[d] == to->dim[lead + d];
    }
    if (!fits) {
        char a[128], b[128];
        return hth_fail(HTH_EINVAL, "shape %s does not broadcast to %s",
                        hth_shape_str(from, a, sizeof a), hth_shape_str(to, b, sizeof b));
    }
    return HTH_OK;
}

#define LOOP_COPY(type)                                                                            \
    static void copy_run_##type(type *d, int64_t ds, const type *s, int64_t ss, int64_t n)         \
    {                                                                                              \
        if (ds == 1 && ss == 0) {                                                                  \
            type v = *s;                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                      \
                d[i] = v;                                                                          \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            d[i * ds] = s[i * ss];                                                                 \
        }                                                                                          \
    }                                                                                              \
    static void copy_tile_##type(type *d, int64_t ds, const type *s, int64_t ss, int64_t rows,     \
                                 int64_t cols)                                                     \
    {                                                                                              \
        for (int64_t j0 = 0; j0 < cols; j0 += 16) {                                                \
            int64_t j1 = j0 + 16 < cols ? j0 + 16 : cols;                                          \
            for (int64_t i = 0; i < rows; i++) {                                                   \
                for (int64_t j = j0; j < j1; j++) {                                                \
                    d[i * ds + j] = s[j * ss + i];                                                 \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
LOOP_COPY(uint8_t)
LOOP_COPY(uint16_t)
LOOP_COPY(uint32_t)
LOOP_COPY(uint64_t)

static void copy_run(void *d, int64_t ds, const void *s, int64_t ss, int64_t n, size_t bytes)
{
    if (ds == 1 && ss == 1) {
        memcpy(d, s, (size_t)n * bytes);
    } else if (bytes == 4) {
        copy_run_uint32_t(d, ds, s, ss, n);
    } else if (bytes == 8) {
        copy_run_uint64_t(d, ds, s, ss, n);
    } else if (bytes == 2) {
        copy_run_uint16_t(d, ds, s, ss, n);
    } else {
        copy_run_uint8_t(d, ds, s, ss, n);
    }
}

// Transposition of 4-byte elements, the usual ones, in blocks of 4 x 4 that the registers hold.
typedef uint32_t loop_v4 __attribute__((vector_size(16), aligned(4), may_alias));

static void copy_block_4x4(uint32_t *d, int64_t ds, const uint32_t *s, int64_t ss)
{
    loop_v4 a = *(const loop_v4 *)s, b = *(const loop_v4 *)(s + ss),
            c = *(const loop_v4 *)(s + 2 * ss), e = *(const loop_v4 *)(s + 3 * ss);
    loop_v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5),
            ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
            ce0 = __builtin_shufflevector(c, e, 0, 4, 1, 5),
            ce1 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
    *(loop_v4 *)d = __builtin_shufflevector(ab0, ce0, 0, 1, 4, 5);
    *(loop_v4 *)(d + ds) = __builtin_shufflevector(ab0, ce0, 2, 3, 6, 7);
    *(loop_v4 *)(d + 2 * ds) = __builtin_shufflevector(ab1, ce1, 0, 1, 4, 5);
    *(loop_v4 *)(d + 3 * ds) = __builtin_shufflevector(ab1, ce1, 2, 3, 6, 7);
}

static void copy_tile_by_4(uint32_t *d, int64_t ds, const uint32_t *s, int64_t ss, int64_t rows,
                           int64_t cols)
{
    int64_t r4 = rows & ~(int64_t)3, c4 = cols & ~(int64_t)3;
    for (int64_t j0 = 0; j0 < c4; j0 += 16) {
        int64_t j1 = j0 + 16 < c4 ? j0 + 16 : c4;
        for (int64_t i = 0; i < r4; i += 4) {
            for (int64_t j = j0; j < j1; j += 4) {
                copy_block_4x4(d + i * ds + j, ds, s + j * ss + i, ss);
            }
        }
    }
    copy_tile_uint32_t(d + r4 * ds, ds, s + r4, ss, rows - r4, cols);
    copy_tile_uint32_t(d + c4, ds, s + c4 * ss, ss, r4, cols - c4);
}

// copy_tile transposes rows x cols: d[i * ds + j] = s[j * ss + i]. Strips of 16 columns keep the
// source's lines in the first-level cache until every row has used them.
static void copy_tile(void *d, int64_t ds, const void *s, int64_t ss, int64_t rows, int64_t cols,
                      size_t bytes)
{
    if (bytes == 4) {
        copy_tile_by_4(d, ds, s, ss, rows, cols);
    } else if (bytes == 8) {
        copy_tile_uint64_t(d, ds, s, ss, rows, cols);
    } else if (bytes == 2) {
        copy_tile_uint16_t(d, ds, s, ss, rows, cols);
    } else {
        copy_tile_uint8_t(d, ds, s, ss, rows, cols);
    }
}

void ref_copy(int rank, const int64_t *dim, void *dst, const int64_t *dst_step, const void *src,
              const int64_t *src_step, size_t element_bytes)
{
    int64_t step[REF_MAX_LOOP][REF_MAX_OPERANDS] = {{0}};
    for (int d = 0; d < rank; d++) {
        step[d][0] = dst_step[d];
        step[d][1] = src_step[d];
    }
    ref_iter it;
    if (!ref_iter_strided(&it, rank, dim, 2, step)) {
        return;
    }
    // A transposition: the run is dense in dst, and a loop outside is dense in src. That loop goes
    // into the tile.
    int row = it.rank - 1;
    while (row >= 0 && !(it.step[row][1] == 1 && it.stride[0] == 1 && it.stride[1] > 1)) {
        row--;
    }
    int64_t rows = 0, rows_step = 0;
    if (row >= 0) {
        rows = it.dim[row];
        rows_step = it.step[row][0];
        for (int d = row + 1; d < it.rank; d++) {
            it.dim[d - 1] = it.dim[d];
            memcpy(it.step[d - 1], it.step[d], sizeof it.step[d]);
        }
        it.rank--;
    }
    char *to = dst;
    const char *from = src;
    int64_t size = (int64_t)element_bytes;
    for (bool more = true; more; more = ref_iter_next(&it)) {
        if (row >= 0) {
            copy_tile(to + it.offset[0] * size, rows_step, from + it.offset[1] * size, it.stride[1],
                      rows, it.count, element_bytes);
        } else {
            copy_run(to + it.offset[0] * size, it.stride[0], from + it.offset[1] * size,
                     it.stride[1], it.count, element_bytes);
        }
    }
}
