// SPDX-License-Identifier: Apache-2.0
// kernels/kmeans.h - K-means: k centroids with the smallest sum of squared distances from n points
// of d numbers to the nearest of them (Lloyd's algorithm).
//
// Design notes
// Points are divided into *shards*, one for each member that computes: a device, with threads of
// its own. A shard does what costs n k d, by its device's hth_kmeans_ops: it assigns its points and
// adds them up per centroid. Sums of all shards are added in the order of the shards; only then are
// centroids updated, by what is the same for all devices (kmeans.c). There is no n x k matrix.
//
// Labels, sums, centroids and the inertia are those of double precision. Most distances are
// computed in f32, as |c|^2/2 - x c of points and centroids less the mean of all points. On the CPU
// results do not depend on the number of threads (kernels/cpu/kmeans/).
//
// All calls are made by the thread that owns the shards' device; nothing is locked.
#ifndef HTH_KERNELS_KMEANS_H
#define HTH_KERNELS_KMEANS_H

#include "device/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_KMEANS_CHUNK      4096u // points whose squared distances are one partial sum, in spread
#define HTH_KMEANS_CANDIDATES 64    // rows of spread, at most

typedef struct hth_kmeans_shard {
    const struct hth_kmeans_ops *ops;
    const float *x; // (n, d) row-major, in host memory
    size_t n, d, k;
    uint32_t *labels; // (n): of the last assignment; UINT32_MAX before the first
} hth_kmeans_shard;

// Partial sums: of a shard, and of all once they are added.
typedef struct hth_kmeans_sums {
    double *sum;      // (k, d): of the points that are nearest to each centroid
    uint64_t *count;  // (k)
    uint64_t changed; // how many points have another label than before
    double inertia;   // sum of squared distances
} hth_kmeans_sums;

// What points are compared with.
typedef struct hth_kmeans_centroids {
    const double *c;   // (k, d)
    const float *mean; // (d), of all points
} hth_kmeans_centroids;

// First looks at the points, less `origin`: sums and sums of squares.
typedef struct hth_kmeans_moments {
    double *sum, *square; // (d) each
    size_t bad;           // the first point with a value beyond the limit, or not a number; n: none
} hth_kmeans_moments;

// What a device computes of a shard.
typedef struct hth_kmeans_ops {
    const char *name;
    hth_err (*open)(hth_device *device, const hth_kmeans_shard *shard, hth_kmeans_shard **out);
    void (*close)(hth_kmeans_shard *shard);
    void (*moments)(hth_kmeans_shard *shard, const float *origin, float limit,
                    hth_kmeans_moments *out);
    // Labels become the nearest centroids, the first of equal ones. Fills sums->sum and count where
    // sum is not NULL, else sums->inertia (squared differences in double); always `changed`.
    void (*assign)(hth_kmeans_shard *shard, const hth_kmeans_centroids *to, hth_kmeans_sums *sums);
    // Squared distances (n) to the centroids of the points' labels.
    void (*distances)(hth_kmeans_shard *shard, const double *centroids, double *squared);
    // columns[j][i] = min(nearest[i], |x[i] - rows[j]|^2) for `count` rows (count, d); `sums`
    // (count, chunks) gets sums of each HTH_KMEANS_CHUNK of a column.
    void (*spread)(hth_kmeans_shard *shard, const hth_kmeans_centroids *mean, const float *rows,
                   size_t count, const float *nearest, float *const *columns, double *sums);
} hth_kmeans_ops;

typedef enum hth_kmeans_init {
    HTH_KMEANS_PLUS_PLUS, // greedy k-means++: of 2 + log k points drawn the best
    HTH_KMEANS_RANDOM,    // k different points
    HTH_KMEANS_GIVEN      // `start`
} hth_kmeans_init;

typedef struct hth_kmeans {
    size_t k;
    size_t iterations; // at most
    // Stops once the centroids' squared moves add up to at most this times the mean variance of the
    // columns, or no label changes.
    double tolerance;
    hth_kmeans_init init;
    const float *start; // (k, d)
    uint64_t seed;      // same seed, points and shards: same start
} hth_kmeans;

typedef struct hth_kmeans_result {
    double *centroids; // (k, d), the caller's
    double inertia;
    size_t iterations; // that were done
    bool converged;    // false: after the last iteration that was allowed
} hth_kmeans_result;

// hth_kmeans_open makes the shard of n points on `device`. `x` (n, d) and `labels` (n, written) are
// borrowed until hth_kmeans_close. HTH_EINVAL: no points, no columns, or no centroids; HTH_ENOTSUP:
// the device has no K-means; HTH_ENOMEM.
hth_err hth_kmeans_open(hth_device *device, const float *x, size_t n, size_t d, size_t k,
                        uint32_t *labels, hth_kmeans_shard **out);
void hth_kmeans_close(hth_kmeans_shard *shard); // NULL is allowed

// hth_kmeans_fit finds centroids of the points of all shards, which have the same d and k. Labels
// and inertia belong to the centroids that it returns. Empty clusters get the points that are
// farthest from their centroids, as in scikit-learn. Blocks. HTH_EINVAL, before anything is
// computed: k above the number of points, a value that is not finite or too large, a setting out of
// range; HTH_ENOMEM. On error the result is undefined, and nothing is held.
hth_err hth_kmeans_fit(const hth_kmeans *what, hth_kmeans_shard *const *shards, size_t n_shards,
                       hth_kmeans_result *result);

#endif
