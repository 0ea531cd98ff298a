// SPDX-License-Identifier: Apache-2.0
// tests/bench/latency.h - what benchmarks of single requests share: percentiles, and what the
// engine itself counts.
#ifndef HTH_TESTS_BENCH_LATENCY_H
#define HTH_TESTS_BENCH_LATENCY_H

#include "client/hearth.h"

#include <jansson.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "%s failed: %s\n", what, hearth_error());
        exit(1);
    }
}

// For qsort.
static inline int latency_by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static inline int latency_by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// latency_at_us is the percentile `part` (0 to 1) of n sorted times.
static inline double latency_at_us(const uint64_t *ns, int n, double part)
{
    return n > 0 ? (double)ns[(int)((double)(n - 1) * part)] / 1e3 : 0;
}

// latency_counted stores what the engine counted for all models until now.
static inline void latency_counted(hearth *h, double *ns, double *requests)
{
    char *text;
    *ns = *requests = 0;
    check(hearth_query(h, "stats", NULL, NULL, NULL, &text) != HEARTH_OK, "stats");
    json_t *j = json_loads(text, 0, NULL), *list = json_object_get(j, "models"), *m;
    size_t i;
    json_array_foreach(list, i, m)
    {
        const json_t *times = json_object_get(m, "times");
        *ns += json_number_value(json_object_get(times, "infer_ns"));
        *requests += json_number_value(json_object_get(m, "requests"));
    }
    json_decref(j);
    hearth_free(text);
}

#endif
