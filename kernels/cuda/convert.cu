// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/convert.cu - copies between f32 and bf16, and transpositions of matrices, which are
// what lies between [N, C, ..] and [N, .., C]. A tile goes through shared memory, whose rows are
// one longer than a tile's, so that both sides are read and written along their rows and no two
// threads of a warp meet in a bank. Bytes moved: the input's and the result's.
#include "kernels/cuda/params.h"

HTH_KERNEL(hth_convert, hth_convert_params, 1)
{
    for (uint32_t i = 4 * hth_index(t); i < p->n; i += 4 * hth_total(t)) {
        hth_set4(p->out, i, p->n - i, hth_get4(p->in, i, p->n - i, p->half_in), p->half_out);
    }
}

HTH_KERNEL(hth_transpose, hth_transpose_params, 2)
{
    uint32_t tiles_r = (p->rows + HTH_TILE - 1) / HTH_TILE;
    uint32_t tiles_c = (p->cols + HTH_TILE - 1) / HTH_TILE, tile = t->block % (tiles_r * tiles_c);
    int64_t base = (int64_t)(t->block / (tiles_r * tiles_c)) * p->rows * p->cols;
    uint32_t r0 = tile / tiles_c * HTH_TILE, c0 = tile % tiles_c * HTH_TILE;
    uint32_t x = t->thread % HTH_TILE, y = t->thread / HTH_TILE;
    for (uint32_t k = y; k < HTH_TILE; k += t->n_threads / HTH_TILE) {
        if (phase == 0 && r0 + k < p->rows && c0 + x < p->cols) {
            int64_t at = base + (int64_t)(r0 + k) * p->cols + c0 + x;
            shared[k * (HTH_TILE + 1) + x] = hth_get(p->in, at, p->half_in);
        } else if (phase == 1 && r0 + x < p->rows && c0 + k < p->cols) {
            int64_t at = base + (int64_t)(c0 + k) * p->rows + r0 + x;
            hth_set(p->out, at, shared[x * (HTH_TILE + 1) + k], p->half_out);
        }
    }
}
