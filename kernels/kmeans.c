// SPDX-License-Identifier: Apache-2.0
// Lloyd's algorithm over shards: what is the same whatever computes. Each iteration adds up the
// shards' partial sums in the order of the shards and updates the centroids once.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"
#include "kernels/kernel.h"

#include <float.h>
#include <math.h>
#include <string.h>

hth_err hth_kmeans_open(hth_device *device, const float *x, size_t n, size_t d, size_t k,
                        uint32_t *labels, hth_kmeans_shard **out)
{
    const hth_kmeans_ops *ops = hth_kernel_kmeans(device);
    *out = NULL;
    if (ops == NULL) {
        return hth_fail(HTH_ENOTSUP, "device %s has no K-means", device->props.name);
    }
    if (n < 1 || d < 1 || n > UINT32_MAX) {
        return hth_fail(HTH_EINVAL,
                        "K-means of %zu points of %zu columns: at least 1 of each, and "
                        "at most %u points to a device",
                        n, d, UINT32_MAX);
    }
    if (k < 1) {
        return hth_fail(HTH_EINVAL, "%zu centroids: K-means needs at least 1", k);
    }
    hth_kmeans_shard shard = {.ops = ops, .x = x, .n = n, .d = d, .k = k, .labels = labels};
    HTH_TRY(ops->open(device, &shard, out));
    memset(labels, 0xFF, n * sizeof *labels);
    return HTH_OK;
}

void hth_kmeans_close(hth_kmeans_shard *shard)
{
    if (shard != NULL) {
        shard->ops->close(shard);
    }
}

const float *kmeans_row(const kmeans_fit *fit, size_t i)
{
    size_t m = 0;
    while (i >= fit->shards[m]->n) {
        i -= fit->shards[m++]->n;
    }
    return fit->shards[m]->x + i * fit->d;
}

// The largest value whose squared distances stay finite in f32, with d columns.
static float kmeans_limit(size_t d)
{
    return sqrtf(FLT_MAX / (8.0F * (float)d));
}

static hth_err kmeans_bad(const char *what, size_t row, const float *x, size_t d)
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

static hth_err kmeans_check(const kmeans_fit *fit)
{
    const hth_kmeans *what = fit->what;
    if (fit->k > fit->n) {
        return hth_fail(HTH_EINVAL, "%zu centroids for %zu points: there must be at least as many",
                        fit->k, fit->n);
    }
    if (what->iterations < 1) {
        return hth_fail(HTH_EINVAL, "0 iterations: at least 1 is needed");
    }
    if (!(what->tolerance >= 0) || !isfinite(what->tolerance)) {
        return hth_fail(HTH_EINVAL, "tolerance %g: it is a finite number of at least 0",
                        what->tolerance);
    }
    for (size_t j = 0; what->init == HTH_KMEANS_GIVEN && j < fit->k * fit->d; j++) {
        if (!(fabsf(what->start[j]) <= kmeans_limit(fit->d))) {
            size_t row = j / fit->d;
            return kmeans_bad("start centroid", row, what->start + row * fit->d, fit->d);
        }
    }
    return HTH_OK;
}

// Mean and variance of the columns, and whether all values can be computed with. Sums are of
// differences from the first point: what all have in common costs no digits.
static hth_err kmeans_moments(kmeans_fit *fit)
{
    double *sum = hth_calloc(4 * fit->d, sizeof *sum), *square = sum + fit->d;
    hth_kmeans_moments part = {.sum = sum + 2 * fit->d, .square = sum + 3 * fit->d};
    hth_err err = HTH_OK;
    if (sum == NULL) {
        return hth_no_memory("K-means' mean of %zu columns", fit->d);
    }
    const float *origin = fit->shards[0]->x;
    for (size_t m = 0, first = 0; m < fit->n_shards; first += fit->shards[m++]->n) {
        hth_kmeans_shard *shard = fit->shards[m];
        shard->ops->moments(shard, origin, kmeans_limit(fit->d), &part);
        if (part.bad < shard->n) {
            const float *bad = shard->x + part.bad * fit->d;
            HTH_GOTO(kmeans_bad("point", first + part.bad, bad, fit->d), done);
        }
        for (size_t j = 0; j < fit->d; j++) {
            sum[j] += part.sum[j];
            square[j] += part.square[j];
        }
    }
    fit->variance = 0;
    for (size_t j = 0; j < fit->d; j++) {
        double mean = sum[j] / (double)fit->n;
        double spread = square[j] / (double)fit->n - mean * mean;
        fit->mean[j] = (float)((double)origin[j] + mean);
        fit->variance += (spread > 0 ? spread : 0) / (double)fit->d;
    }
done:
    hth_free(sum);
    return err;
}

static void kmeans_add(kmeans_fit *fit)
{
    for (size_t j = 0; j < fit->k * fit->d; j++) {
        fit->all.sum[j] += fit->part.sum[j];
    }
    for (size_t c = 0; c < fit->k; c++) {
        fit->all.count[c] += fit->part.count[c];
    }
    fit->all.changed += fit->part.changed;
}

static void kmeans_assign(kmeans_fit *fit)
{
    hth_kmeans_centroids to = {fit->centroids, fit->mean};
    for (size_t m = 0; m < fit->n_shards; m++) {
        hth_kmeans_sums *sums = m == 0 ? &fit->all : &fit->part;
        fit->shards[m]->ops->assign(fit->shards[m], &to, sums);
        if (m > 0) {
            kmeans_add(fit);
        }
    }
}

static hth_err kmeans_lloyd(kmeans_fit *fit, hth_kmeans_result *result)
{
    double enough = fit->what->tolerance * fit->variance, shift = 0;
    result->converged = false;
    for (result->iterations = 0;
         result->iterations < fit->what->iterations && !result->converged;) {
        kmeans_assign(fit);
        HTH_TRY(kmeans_update(fit, &shift));
        double *old = fit->centroids;
        fit->centroids = fit->next;
        fit->next = old;
        result->iterations++;
        result->converged = fit->all.changed == 0 || shift <= enough;
    }
    hth_kmeans_centroids to = {fit->centroids, fit->mean};
    result->inertia = 0;
    for (size_t m = 0; m < fit->n_shards; m++) {
        hth_kmeans_sums last = {0};
        fit->shards[m]->ops->assign(fit->shards[m], &to, &last);
        result->inertia += last.inertia;
    }
    return HTH_OK;
}

static hth_err kmeans_alloc(kmeans_fit *fit)
{
    size_t kd = fit->k * fit->d;
    fit->mean = hth_calloc(fit->d, sizeof *fit->mean);
    fit->memory = hth_calloc(4 * kd, sizeof(double));
    fit->all.count = hth_calloc(2 * fit->k, sizeof(uint64_t));
    if (fit->mean == NULL || fit->memory == NULL || fit->all.count == NULL) {
        return hth_no_memory("K-means' %zu centroids of %zu columns", fit->k, fit->d);
    }
    fit->centroids = fit->memory;
    fit->next = fit->memory + kd;
    fit->all.sum = fit->memory + 2 * kd;
    fit->part = (hth_kmeans_sums){fit->memory + 3 * kd, fit->all.count + fit->k, 0, 0};
    return HTH_OK;
}

hth_err hth_kmeans_fit(const hth_kmeans *what, hth_kmeans_shard *const *shards, size_t n_shards,
                       hth_kmeans_result *result)
{
    kmeans_fit fit = {
        .what = what, .shards = shards, .n_shards = n_shards, .d = shards[0]->d, .k = shards[0]->k};
    hth_err err;
    for (size_t m = 0; m < n_shards; m++) {
        fit.n += shards[m]->n;
    }
    HTH_TRY(kmeans_check(&fit));
    HTH_GOTO(kmeans_alloc(&fit), done);
    HTH_GOTO(kmeans_moments(&fit), done);
    HTH_GOTO(kmeans_seed(&fit), done);
    HTH_GOTO(kmeans_lloyd(&fit, result), done);
    memcpy(result->centroids, fit.centroids, fit.k * fit.d * sizeof(double));
done:
    hth_free(fit.mean);
    hth_free(fit.memory);
    hth_free(fit.all.count);
    return err;
}
