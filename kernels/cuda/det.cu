// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/det.cu - Det and its gradient, the matrix of cofactors, each a determinant of its
// own: what takes determinants is small. A determinant per thread, by elimination with row pivoting
// in double, in its own part of the workspace. Bytes moved: the matrices, and the workspace as
// often as they have rows.
#include "kernels/cuda/params.h"

// Destroys a, [n, n].
HTH_FN double det_of(double *a, uint32_t n)
{
    double det = 1;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t pivot = k;
        for (uint32_t i = k + 1; i < n; i++) {
            pivot = fabs(a[i * n + k]) > fabs(a[pivot * n + k]) ? i : pivot;
        }
        if (a[pivot * n + k] == 0) {
            return 0;
        }
        for (uint32_t j = 0; j < n && pivot != k; j++) {
            double other = a[k * n + j];
            a[k * n + j] = a[pivot * n + j];
            a[pivot * n + j] = other;
        }
        det *= pivot != k ? -a[k * n + k] : a[k * n + k];
        for (uint32_t i = k + 1; i < n; i++) {
            double f = a[i * n + k] / a[k * n + k];
            for (uint32_t j = k; j < n; j++) {
                a[i * n + j] -= f * a[k * n + j];
            }
        }
    }
    return det;
}

HTH_KERNEL(hth_det, hth_det_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        int64_t cells = (int64_t)p->size * p->size;
        double *a = p->room + i * cells;
        for (int64_t k = 0; k < cells; k++) {
            a[k] = p->x[i * cells + k];
        }
        p->out[i] = (float)det_of(a, p->size);
    }
}

// n: elements; each has the room of a matrix without a row and a column.
HTH_KERNEL(hth_det_grad, hth_det_params, 1)
{
    for (uint32_t i = hth_index(t); i < p->n; i += hth_total(t)) {
        uint32_t cells = p->size * p->size, at = i % cells, row = at / p->size, col = at % p->size;
        uint32_t less = p->size - 1;
        double *to = p->room + (int64_t)i * less * less, *minor = to;
        for (uint32_t k = 0; k < cells; k++) {
            if (k / p->size != row && k % p->size != col) {
                *to++ = p->x[i - at + k];
            }
        }
        double det = det_of(minor, less);
        p->out[i] = (float)((double)p->dy[i / cells] * ((row + col) % 2 != 0 ? -det : det));
    }
}
