// SPDX-License-Identifier: Apache-2.0
// base/compare.h - orders for qsort, least first.
#ifndef HTH_BASE_COMPARE_H
#define HTH_BASE_COMPARE_H

#include <stdint.h>

static inline int hth_compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline int hth_compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

#endif
