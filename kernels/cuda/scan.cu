// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/scan.cu - CumSum: one thread per line along the axis, so that a sum has one order.
// Bytes moved: the result twice.
#include "graph/tensor.h"
#include "kernels/cuda/params.h"

#define SCAN_LINE(T, A)                                                                            \
    {                                                                                              \
        const T *x = (const T *)p->in + first;                                                     \
        T *y = (T *)p->out + first;                                                                \
        A sum = 0;                                                                                 \
        for (uint32_t k = 0; k < p->along; k++) {                                                  \
            int64_t at = (int64_t)(p->reverse ? p->along - 1 - k : k) * p->inner;                  \
            A next = sum + (A)x[at];                                                               \
            y[at] = (T)(p->exclusive ? sum : next);                                                \
            sum = next;                                                                            \
        }                                                                                          \
        break;                                                                                     \
    }

HTH_KERNEL(hth_scan, hth_scan_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int64_t first = (int64_t)(i / p->inner) * p->along * p->inner + i % p->inner;
        switch (p->type) {
        case HTH_DT_F32: SCAN_LINE(float, float)
        case HTH_DT_F64: SCAN_LINE(double, double)
        case HTH_DT_I32: SCAN_LINE(int32_t, uint32_t)
        default: SCAN_LINE(int64_t, uint64_t)
        }
    }
}
