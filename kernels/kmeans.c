// SPDX-License-Identifier: Apache-2.0
// Shards of points, and Lloyd's algorithm over them in one call.
#include "kernels/kmeans_impl.h"

#include "kernels/kernel.h"

#include <float.h>
#include <math.h>
#include <string.h>

hth_err hth_kmeans_open_shared(hth_device *device, const hth_kmeans_shard *like,
                               hth_kmeans_shard **out)
{
    hth_kmeans_shard shard = *like;
    *out = NULL;
    shard.ops = hth_kernel_kmeans(device);
    if (shard.ops == NULL) {
        return hth_fail(HTH_ENOTSUP, "device %s has no K-means", device->props.name);
    }
    if (shard.n < 1 || shard.d < 1 || shard.n > UINT32_MAX) {
        return hth_fail(HTH_EINVAL,
                        "K-means of %zu points of %zu columns: at least 1 of each, and "
                        "at most %u points to a device",
                        shard.n, shard.d, UINT32_MAX);
    }
    if (shard.k < 1) {
        return hth_fail(HTH_EINVAL, "%zu centroids: K-means needs at least 1", shard.k);
    }
    return shard.ops->open(device, &shard, out);
}

static hth_err kmeans_shard_new(hth_device *device, const hth_kmeans_shard *like,
                                hth_kmeans_shard **out)
{
    HTH_TRY(hth_kmeans_open_shared(device, like, out));
    memset(like->labels, 0xFF, like->n * sizeof *like->labels);
    return HTH_OK;
}

hth_err hth_kmeans_open(hth_device *device, const float *x, size_t n, size_t d, size_t k,
                        uint32_t *labels, hth_kmeans_shard **out)
{
    const hth_kmeans_shard like = {.x = x, .n = n, .d = d, .k = k, .labels = labels};
    return kmeans_shard_new(device, &like, out);
}

hth_err hth_kmeans_open_points(hth_device *device, const hth_kmeans_points *points, size_t n,
                               size_t d, size_t k, uint32_t *labels, hth_kmeans_shard **out)
{
    const hth_kmeans_shard like = {.points = *points, .n = n, .d = d, .k = k, .labels = labels};
    return kmeans_shard_new(device, &like, out);
}

void hth_kmeans_close(hth_kmeans_shard *shard)
{
    if (shard != NULL) {
        shard->ops->close(shard);
    }
}

uint64_t hth_kmeans_bytes(const hth_device *device, const hth_kmeans *what, size_t n, size_t d)
{
    const hth_kmeans_shard like = {.ops = hth_kernel_kmeans(device), .n = n, .d = d, .k = what->k};
    if (like.ops == NULL) {
        return 0;
    }
    uint64_t seeds = what->init == HTH_KMEANS_PLUS_PLUS ? kmeans_seed_bytes(n, d, what->k) : 0;
    uint64_t run = 4 * (uint64_t)what->k * (d + 1) * sizeof(double) + 8 * d * sizeof(double);
    return like.ops->bytes(device, &like) + run + seeds + n * sizeof(uint32_t);
}

hth_err kmeans_rows(const hth_kmeans_run *run, size_t m, size_t first, size_t count,
                    const float **x)
{
    const hth_kmeans_shard *shard = run->shards[m];
    if (shard->x == NULL) {
        return shard->points.rows(shard->points.ctx, first, count, x);
    }
    *x = shard->x + first * shard->d;
    return HTH_OK;
}

hth_err kmeans_row(const hth_kmeans_run *run, size_t i, const float **x)
{
    size_t m = 0;
    while (i >= run->shards[m]->n) {
        i -= run->shards[m++]->n;
    }
    return kmeans_rows(run, m, i, 1, x);
}

float kmeans_limit(size_t d)
{
    return sqrtf(FLT_MAX / (8.0F * (float)d));
}

hth_err kmeans_bad(const char *what, size_t row, const float *x, size_t d)
{
    size_t j = 0;
    while (j + 1 < d && fabsf(x[j]) <= kmeans_limit(d)) {
        j++;
    }
    if (!isfinite(x[j])) {
        return hth_fail(HTH_EINVAL, "%s %zu, column %zu is %g: K-means needs finite numbers", what,
                        row, j, (double)x[j]);
    }
    return hth_fail(HTH_EINVAL, "%s %zu, column %zu is %g: with %zu columns at most %g", what, row,
                    j, (double)x[j], d, (double)kmeans_limit(d));
}

hth_err hth_kmeans_fit(const hth_kmeans *what, hth_kmeans_shard *const *shards, size_t n_shards,
                       hth_kmeans_result *result)
{
    hth_kmeans_run *run;
    hth_kmeans_at at = {.phase = HTH_KMEANS_LOOKS};
    hth_err err = hth_kmeans_begin(what, shards, n_shards, NULL, &run);
    while (err == HTH_OK && at.phase != HTH_KMEANS_DONE) {
        err = hth_kmeans_go(run, SIZE_MAX);
        at = hth_kmeans_where(run);
    }
    if (err == HTH_OK) {
        size_t kd = what->k * shards[0]->d;
        memcpy(result->centroids, at.centroids, kd * sizeof *result->centroids);
        result->inertia = at.inertia;
        result->iterations = at.iterations;
        result->converged = at.converged;
    }
    hth_kmeans_finish(run);
    return err;
}
