// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/move.cu - copies between strided places (Transpose, Slice, Expand, Concat, Split,
// Tile, DepthToSpace, reshapes), Pad, and filling. An element is as wide as the steps allow, up to
// 16 bytes (move.c widens). Bytes moved: the result's twice.
#include "kernels/cuda/params.h"

HTH_FN void move_one(void *out, int64_t to, const void *in, int64_t from, uint32_t element)
{
    switch (element) {
    case 1: ((uint8_t *)out)[to] = ((const uint8_t *)in)[from]; break;
    case 2: ((uint16_t *)out)[to] = ((const uint16_t *)in)[from]; break;
    case 4: ((uint32_t *)out)[to] = ((const uint32_t *)in)[from]; break;
    case 8: ((uint64_t *)out)[to] = ((const uint64_t *)in)[from]; break;
    default: ((hth_u4 *)out)[to] = ((const hth_u4 *)in)[from]; break;
    }
}

HTH_KERNEL(hth_move, hth_move_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        move_one(p->out, p->out_base + hth_offset(i, &p->dims, &p->out_steps), p->in,
                 p->in_base + hth_offset(i, &p->dims, &p->in_steps), p->element);
    }
}

HTH_FN int32_t pad_modulo(int32_t i, int32_t n)
{
    int32_t r = i % n;
    return r < 0 ? r + n : r;
}

// Position i relative to n > 0 kept elements; -1: the constant.
HTH_FN int32_t pad_position(int mode, int32_t i, int32_t n)
{
    if (i >= 0 && i < n) {
        return i;
    }
    if (mode == 2) {
        return i < 0 ? 0 : n - 1;
    }
    if (mode == 3) {
        return pad_modulo(i, n);
    }
    if (mode == 1) {
        int32_t m = n == 1 ? 0 : pad_modulo(i, 2 * (n - 1));
        return m < n ? m : 2 * (n - 1) - m;
    }
    return -1;
}

// The input element of result i; -1: the constant.
HTH_FN int64_t pad_source(const hth_pad_params *p, uint32_t i)
{
    int64_t from = 0;
    for (int d = p->dims.rank - 1; d >= 0; d--) {
        int32_t at = (int32_t)(i % p->dims.dim[d]) - p->before[d];
        i /= p->dims.dim[d];
        int32_t k = pad_position(p->mode, at, p->kept[d]);
        if (k < 0) {
            return -1;
        }
        from += (int64_t)(k + p->first[d]) * p->in_steps.step[d];
    }
    return from;
}

HTH_KERNEL(hth_pad, hth_pad_params, 1)
{
    const hth_u4 zero = {{0, 0, 0, 0}};
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int64_t from = pad_source(p, i);
        if (from >= 0) {
            move_one(p->out, i, p->in, from, p->element);
        } else {
            move_one(p->out, i, p->value != NULL ? p->value : (const void *)&zero, 0, p->element);
        }
    }
}

HTH_KERNEL(hth_fill, hth_fill_params, 1)
{
    uint32_t *out = (uint32_t *)p->out, quads = p->n / 4;
    const hth_u4 four = {{p->value, p->value, p->value, p->value}};
    for (uint32_t i = hth_index(t); i < quads; i += hth_total(t)) {
        ((hth_u4 *)p->out)[i] = four;
    }
    for (uint32_t i = quads * 4 + hth_index(t); i < p->n; i += hth_total(t)) {
        out[i] = p->value;
    }
}
