// SPDX-License-Identifier: Apache-2.0
// base/compare.h - orders for qsort, ascending, what ordered values say, and bounds.
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

// hth_median of n >= 1 ascending values: of an even number the mean of the two in the middle.
static inline double hth_median(const double *sorted, int n)
{
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

// hth_percentile is what `percent` of n >= 1 ascending values do not exceed: one of them, by the
// nearest rank.
static inline double hth_percentile(const double *sorted, int n, int percent)
{
    int64_t rank = ((int64_t)n * percent + 99) / 100;
    return sorted[rank > 1 ? rank - 1 : 0];
}

// hth_clamp is `low` where x is less, else x, at most `high`.
static inline int64_t hth_clamp(int64_t x, int64_t low, int64_t high)
{
    int64_t at_most_high = x > high ? high : x;
    return x < low ? low : at_most_high;
}

#endif
