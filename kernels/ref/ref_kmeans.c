// SPDX-License-Identifier: Apache-2.0
// K-means in plain C and double, on one thread: distances are sums of squared differences. What
// devices' K-means is compared with (kernels/kmeans_test.c).
#include "kernels/ref/ref_kmeans.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

typedef struct ref_shard {
    hth_kmeans_shard base;
    hth_kmeans_centroids to;
    hth_kmeans_sums sums; // of the assignment so far
    bool add;
} ref_shard;

static hth_err ref_open(hth_device *device, const hth_kmeans_shard *shard, hth_kmeans_shard **out)
{
    ref_shard *ref = hth_calloc(1, sizeof *ref);
    *out = NULL;
    if (ref == NULL) {
        return hth_no_memory("K-means of %zu points", shard->n);
    }
    ref->base = *shard;
    ref->sums.sum = hth_calloc(shard->k * shard->d, sizeof(double));
    ref->sums.count = hth_calloc(shard->k, sizeof(uint64_t));
    *out = &ref->base;
    if (ref->sums.sum == NULL || ref->sums.count == NULL) {
        shard->ops->close(*out);
        *out = NULL;
        return hth_no_memory("K-means' %zu centroids", shard->k);
    }
    return HTH_OK;
}

static uint64_t ref_bytes(const hth_device *device, const hth_kmeans_shard *shard)
{
    return sizeof(ref_shard) + shard->k * (shard->d + 1) * sizeof(double);
}

static void ref_close(hth_kmeans_shard *shard)
{
    ref_shard *ref = (ref_shard *)shard;
    hth_free(ref->sums.sum);
    hth_free(ref->sums.count);
    hth_free(ref);
}

static void ref_moments(hth_kmeans_shard *shard, const hth_kmeans_piece *piece, const float *origin,
                        float limit, hth_kmeans_moments *out)
{
    size_t d = shard->d;
    out->bad = piece->n;
    for (size_t i = 0; i < piece->n * d && out->bad == piece->n; i++) {
        double x = (double)piece->x[i] - (double)origin[i % d];
        out->sum[i % d] += x;
        out->square[i % d] += x * x;
        out->bad = fabsf(piece->x[i]) <= limit ? piece->n : i / d;
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

static void ref_begin(hth_kmeans_shard *shard, const hth_kmeans_centroids *to, bool add)
{
    ref_shard *ref = (ref_shard *)shard;
    ref->to = *to;
    ref->add = add;
    memset(ref->sums.sum, 0, shard->k * shard->d * sizeof *ref->sums.sum);
    memset(ref->sums.count, 0, shard->k * sizeof *ref->sums.count);
    ref->sums.changed = 0;
    ref->sums.inertia = 0;
}

static void ref_assign(hth_kmeans_shard *shard, const hth_kmeans_piece *piece)
{
    ref_shard *ref = (ref_shard *)shard;
    size_t d = shard->d;
    for (size_t i = 0; i < piece->n; i++) {
        double squared;
        uint32_t *label = &shard->labels[piece->first + i];
        uint32_t c = ref_nearest(shard, piece->x + i * d, ref->to.c, &squared);
        ref->sums.changed += *label != c ? 1 : 0;
        ref->sums.inertia += squared;
        *label = c;
        for (size_t j = 0; j < d; j++) {
            ref->sums.sum[c * d + j] += (double)piece->x[i * d + j];
        }
        ref->sums.count[c]++;
    }
}

static void ref_end(hth_kmeans_shard *shard, hth_kmeans_sums *sums)
{
    const ref_shard *ref = (const ref_shard *)shard;
    if (ref->add) {
        memcpy(sums->sum, ref->sums.sum, shard->k * shard->d * sizeof *sums->sum);
        memcpy(sums->count, ref->sums.count, shard->k * sizeof *sums->count);
    }
    sums->changed = ref->sums.changed;
    sums->inertia = ref->sums.inertia;
}

static void ref_distances(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                          const double *centroids, double *squared)
{
    for (size_t i = 0; i < piece->n; i++) {
        uint32_t label = shard->labels[piece->first + i];
        const double *c = centroids + (label < shard->k ? label : 0) * shard->d;
        squared[i] = label < shard->k ? ref_squared(piece->x + i * shard->d, c, shard->d) : 0;
    }
}

static void ref_spread(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                       const hth_kmeans_centroids *mean, const float *rows, size_t count,
                       bool folds, float *nearest, double *const *sums)
{
    size_t d = shard->d;
    for (size_t c = 0; c < count; c++) {
        for (size_t i = 0; i < piece->n; i++) {
            double squared = 0, *sum = &sums[c][i / HTH_KMEANS_CHUNK];
            for (size_t j = 0; j < d; j++) {
                double apart = (double)piece->x[i * d + j] - (double)rows[c * d + j];
                squared += apart * apart;
            }
            float least = (float)squared < nearest[i] ? (float)squared : nearest[i];
            *sum = (i % HTH_KMEANS_CHUNK == 0 ? 0 : *sum) + (double)least;
            nearest[i] = folds && c == 0 ? least : nearest[i];
        }
    }
}

const hth_kmeans_ops ref_kmeans = {.name = "ref",
                                   .open = ref_open,
                                   .bytes = ref_bytes,
                                   .close = ref_close,
                                   .moments = ref_moments,
                                   .begin = ref_begin,
                                   .assign = ref_assign,
                                   .end = ref_end,
                                   .distances = ref_distances,
                                   .spread = ref_spread};
