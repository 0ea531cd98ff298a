// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/dropout.cu - dropout in training by Philox, four elements of one counter per thread:
// the mask of every device (kernels/philox.h). Bytes moved: x and y.
#include "kernels/cuda/params.h"
#include "kernels/philox.h"

HTH_KERNEL(hth_dropout, hth_dropout_params, 1)
{
    for (uint32_t i = hth_index(t) * 4; i < p->n; i += hth_total(t) * 4) {
        hth_philox w = hth_dropout_words(i / 4, p->step[0], p->salt);
        hth_f4 v = hth_get4(p->x, i, p->n - i, p->half_x);
        for (int k = 0; k < 4; k++) {
            v.v[k] = hth_dropout_keeps(&w, k, p->threshold) ? v.v[k] * p->scale : 0;
        }
        hth_set4(p->y, i, p->n - i, v, p->half_y);
    }
}
