// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/rotary.cu - RotaryEmbedding: pairs of elements turn by the angle of their position;
// the rest of a head stays. An element per thread. Bytes moved: the input and the result, and the
// tables, which come from the cache for all heads but the first. A position without an angle gives
// zeros.
#include "kernels/cuda/index.h"
#include "kernels/cuda/params.h"

HTH_KERNEL(hth_rotary, hth_rotary_params, 1)
{
    const uint32_t half = p->turned / 2;
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t e = i % p->size, row = i / p->size;
        if (e >= p->turned) {
            p->out[i] = p->x[i];
            continue;
        }
        uint32_t b = row / (p->heads * p->len);
        int64_t place = (int64_t)b * p->len + (p->flat ? row / p->heads % p->len : row % p->len);
        uint32_t pair = p->interleaved ? e / 2 : e % half;
        int second = p->interleaved ? (int)(e % 2) : e >= half;
        int64_t at =
            p->positions != NULL ? hth_index_at(p->positions, p->wide, place, p->rows) : place;
        uint32_t away = p->interleaved ? 1 : half;
        uint32_t other = second ? i - away : i + away;
        float c = at < 0 ? 0 : p->cos[at * half + pair];
        float s = at < 0 ? 0 : p->sin[at * half + pair];
        p->out[i] = second ? s * p->x[other] + c * p->x[i] : c * p->x[i] - s * p->x[other];
    }
}
