// SPDX-License-Identifier: Apache-2.0
// K-means in plain C and double, on one thread: distances are sums of squared differences. What
// devices' K-means is compared with (kernels/kmeans_test.c).
#include "kernels/ref/ref_kmeans.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

static hth_err ref_open(hth_device *device, const hth_kmeans_shard *shard, hth_kmeans_shard **out)
{
    *out = hth_memdup(shard, sizeof *shard);
    return *out != NULL ? HTH_OK : hth_no_memory("K-means of %zu points", shard->n);
}

static void ref_close(hth_kmeans_shard *shard)
{
    hth_free(shard);
}

static void ref_moments(hth_kmeans_shard *shard, const float *origin, float limit,
                        hth_kmeans_moments *out)
{
    size_t d = shard->d;
    memset(out->sum, 0, d * sizeof *out->sum);
    memset(out->square, 0, d * sizeof *out->square);
    out->bad = shard->n;
    for (size_t i = 0; i < shard->n * d && out->bad == shard->n; i++) {
        double x = (double)shard->x[i] - (double)origin[i % d];
        out->sum[i % d] += x;
        out->square[i % d] += x * x;
        out->bad = fabsf(shard->x[i]) <= limit ? shard->n : i / d;
    }
}

static double ref_squared(const float *x, const double *c, size_t d)
{
    double sum = 0;
    for (size_t j = 0; j < d; j++) {
        sum += ((double)x[j] - c[j]) * ((double)x[j] - c[j]);
    }
    return sum;
}

static uint32_t ref_nearest(const hth_kmeans_shard *shard, const float *x, const double *c,
                            double *squared)
{
    uint32_t nearest = 0;
    *squared = INFINITY;
    for (size_t j = 0; j < shard->k; j++) {
        double apart = ref_squared(x, c + j * shard->d, shard->d);
        nearest = apart < *squared ? (uint32_t)j : nearest;
        *squared = apart < *squared ? apart : *squared;
    }
    return nearest;
}

static void ref_assign(hth_kmeans_shard *shard, const hth_kmeans_centroids *to,
                       hth_kmeans_sums *sums)
{
    size_t d = shard->d;
    if (sums->sum != NULL) {
        memset(sums->sum, 0, shard->k * d * sizeof *sums->sum);
        memset(sums->count, 0, shard->k * sizeof *sums->count);
    }
    sums->changed = 0;
    sums->inertia = 0;
    for (size_t i = 0; i < shard->n; i++) {
        double squared;
        uint32_t c = ref_nearest(shard, shard->x + i * d, to->c, &squared);
        sums->changed += shard->labels[i] != c ? 1 : 0;
        sums->inertia += squared;
        shard->labels[i] = c;
        for (size_t j = 0; sums->sum != NULL && j < d; j++) {
            sums->sum[c * d + j] += (double)shard->x[i * d + j];
        }
        if (sums->count != NULL) {
            sums->count[c]++;
        }
    }
}

static void ref_distances(hth_kmeans_shard *shard, const double *centroids, double *squared)
{
    for (size_t i = 0; i < shard->n; i++) {
        const double *c = centroids + shard->labels[i] * shard->d;
        squared[i] = ref_squared(shard->x + i * shard->d, c, shard->d);
    }
}

static void ref_spread(hth_kmeans_shard *shard, const hth_kmeans_centroids *mean, const float *rows,
                       size_t count, const float *nearest, float *const *columns, double *sums)
{
    size_t d = shard->d, chunks = (shard->n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK;
    for (size_t c = 0; c < count; c++) {
        double *sum = sums + c * chunks;
        memset(sum, 0, chunks * sizeof *sum);
        for (size_t i = 0; i < shard->n; i++) {
            double squared = 0;
            for (size_t j = 0; j < d; j++) {
                double apart = (double)shard->x[i * d + j] - (double)rows[c * d + j];
                squared += apart * apart;
            }
            columns[c][i] = (float)squared < nearest[i] ? (float)squared : nearest[i];
            sum[i / HTH_KMEANS_CHUNK] += (double)columns[c][i];
        }
    }
}

const hth_kmeans_ops ref_kmeans = {.name = "ref",
                                   .open = ref_open,
                                   .close = ref_close,
                                   .moments = ref_moments,
                                   .assign = ref_assign,
                                   .distances = ref_distances,
                                   .spread = ref_spread};
