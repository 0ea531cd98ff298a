// SPDX-License-Identifier: Apache-2.0
// kernels/kmeans_impl.h - what the files of kernels/kmeans*.c share.
#ifndef HTH_KERNELS_KMEANS_IMPL_H
#define HTH_KERNELS_KMEANS_IMPL_H

#include "kernels/kmeans.h"

typedef struct kmeans_fit {
    const hth_kmeans *what;
    hth_kmeans_shard *const *shards;
    size_t n_shards, n, d, k; // n: points of all shards
    float *mean;              // (d)
    double variance;          // of a column, in the mean
    double *memory;           // of all that is (k, d)
    double *centroids, *next; // (k, d)
    hth_kmeans_sums all, part;
    size_t draws; // random numbers so far
} kmeans_fit;

// kmeans_row returns point `i` of all.
const float *kmeans_row(const kmeans_fit *fit, size_t i);

// kmeans_seed sets fit->centroids as fit->what->init says. HTH_ENOMEM.
hth_err kmeans_seed(kmeans_fit *fit);

// kmeans_update makes fit->next of the sums fit->all, and stores the sum of the squared moves. An
// empty cluster takes the point that is farthest from its centroid, away from a cluster that has
// others; if all points lie on their centroids, it stays where it was. HTH_ENOMEM.
hth_err kmeans_update(kmeans_fit *fit, double *shift);

#endif
