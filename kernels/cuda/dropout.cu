// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/dropout.cu - dropout in training by Philox, four elements of one counter per thread:
// the mask of every device (kernels/philox.h). Bytes moved: x and y.
#include "kernels/cuda/params.h"
#include "kernels/philox.h"

HTH_KERNEL(hth_dropout, hth_dropout_params, 1)
{
    for (uint32_t i = hth_index(t) * 4; i < p->n; i += hth_total(t) * 4) {
        hth_philox w = hth_dropout_words(i / 4, p->step[0], p->salt);
        for (uint32_t k = 0; k < 4 && i + k < p->n; k++) {
            p->y[i + k] = hth_dropout_keeps(&w, (int)k, p->threshold) ? p->x[i + k] * p->scale : 0;
        }
    }
}
