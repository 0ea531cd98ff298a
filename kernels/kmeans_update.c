// SPDX-License-Identifier: Apache-2.0
// Sums become centroids. Empty clusters are filled as by scikit-learn: the points with the largest
// distances from the centroids that they were assigned to become centroids, largest first, and
// leave the sums of their clusters. Unlike there a cluster's last point stays.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"

#include <stdlib.h>

typedef struct far_point {
    double squared;
    size_t row; // among all points
    uint32_t label;
} far_point;

// The order of a heap whose first is the nearest of the far: equal ones by their place.
static bool far_less(const far_point *a, const far_point *b)
{
    return a->squared < b->squared || (a->squared == b->squared && a->row > b->row);
}

static int far_first(const void *a, const void *b)
{
    const far_point *x = a, *y = b;
    return (int)far_less(x, y) - (int)far_less(y, x);
}

static void far_sink(far_point *heap, size_t n, size_t i)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && far_less(&heap[child + 1], &heap[child]) ? 1 : 0;
        if (!far_less(&heap[child], &heap[i])) {
            return;
        }
        far_point held = heap[i];
        heap[i] = heap[child];
        heap[child] = held;
    }
}

// The `most` farthest points of all shards, farthest first. Points that lie on their centroids do
// not count: where there are too few, the last have the row SIZE_MAX.
static hth_err far_find(const kmeans_fit *fit, size_t most, far_point *heap)
{
    for (size_t i = 0; i < most; i++) {
        heap[i] = (far_point){.squared = 0, .row = SIZE_MAX};
    }
    for (size_t m = 0, first = 0; m < fit->n_shards; first += fit->shards[m++]->n) {
        hth_kmeans_shard *shard = fit->shards[m];
        double *squared = hth_calloc(shard->n, sizeof *squared);
        if (squared == NULL) {
            return hth_no_memory("K-means' distances of %zu points", shard->n);
        }
        shard->ops->distances(shard, fit->centroids, squared);
        for (size_t i = 0; i < shard->n; i++) {
            far_point point = {squared[i], first + i, shard->labels[i]};
            if (squared[i] > 0 && far_less(&heap[0], &point)) {
                heap[0] = point;
                far_sink(heap, most, 0);
            }
        }
        hth_free(squared);
    }
    qsort(heap, most, sizeof *heap, far_first);
    return HTH_OK;
}

static void far_move(kmeans_fit *fit, const far_point *point, size_t empty)
{
    const float *x = kmeans_row(fit, point->row);
    double *from = fit->all.sum + point->label * fit->d, *to = fit->all.sum + empty * fit->d;
    for (size_t j = 0; j < fit->d; j++) {
        from[j] -= (double)x[j];
        to[j] = (double)x[j];
    }
    fit->all.count[point->label]--;
    fit->all.count[empty] = 1;
}

// Twice as many points as clusters are empty: some may be the last of their cluster.
static hth_err kmeans_relocate(kmeans_fit *fit, size_t empty)
{
    size_t most = 2 * empty < fit->n ? 2 * empty : fit->n, next = 0;
    far_point *far = hth_calloc(most, sizeof *far);
    hth_err err;
    if (far == NULL) {
        return hth_no_memory("K-means' %zu empty clusters", empty);
    }
    HTH_GOTO(far_find(fit, most, far), done);
    for (size_t c = 0; c < fit->k; c++) {
        if (fit->all.count[c] > 0) {
            continue;
        }
        while (next < most && far[next].row != SIZE_MAX && fit->all.count[far[next].label] < 2) {
            next++;
        }
        if (next == most || far[next].row == SIZE_MAX) {
            break;
        }
        far_move(fit, &far[next++], c);
    }
done:
    hth_free(far);
    return err;
}

hth_err kmeans_update(kmeans_fit *fit, double *shift)
{
    size_t empty = 0;
    for (size_t c = 0; c < fit->k; c++) {
        empty += fit->all.count[c] == 0 ? 1 : 0;
    }
    if (empty > 0) {
        HTH_TRY(kmeans_relocate(fit, empty));
    }
    *shift = 0;
    for (size_t c = 0; c < fit->k; c++) {
        double count = (double)fit->all.count[c];
        for (size_t j = c * fit->d; j < (c + 1) * fit->d; j++) {
            fit->next[j] = count > 0 ? fit->all.sum[j] / count : fit->centroids[j];
            double move = fit->next[j] - fit->centroids[j];
            *shift += move * move;
        }
    }
    return HTH_OK;
}
