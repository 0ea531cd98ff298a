// SPDX-License-Identifier: Apache-2.0
// Sums become centroids. Empty clusters are filled as by scikit-learn: the points with the largest
// distances from the centroids that they were assigned to become centroids, largest first, and
// leave the sums of their clusters. Unlike there a cluster's last point stays.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"

#include <stdlib.h>

#define FAR_POINTS ((size_t)1 << 16) // whose distances are looked at together

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

// far_piece looks at the points of a piece that begins at point `first` of all.
static hth_err far_piece(const hth_kmeans_run *run, size_t m, const hth_kmeans_piece *piece,
                         size_t first, size_t most, far_point *heap)
{
    hth_kmeans_shard *shard = run->shards[m];
    double *squared = hth_calloc(piece->n, sizeof *squared);
    if (squared == NULL) {
        return hth_no_memory("K-means' distances of %zu points", piece->n);
    }
    shard->ops->distances(shard, piece, run->centroids, squared);
    for (size_t i = 0; i < piece->n; i++) {
        far_point point = {squared[i], first + i, shard->labels[piece->first + i]};
        if (squared[i] > 0 && far_less(&heap[0], &point)) {
            heap[0] = point;
            far_sink(heap, most, 0);
        }
    }
    hth_free(squared);
    return HTH_OK;
}

// The `most` farthest points of all shards, farthest first. Points that lie on their centroids do
// not count: where there are too few, the last have the row SIZE_MAX.
static hth_err far_find(const hth_kmeans_run *run, size_t most, far_point *heap)
{
    for (size_t i = 0; i < most; i++) {
        heap[i] = (far_point){.squared = 0, .row = SIZE_MAX};
    }
    for (size_t m = 0, first = 0; m < run->n_shards; first += run->shards[m++]->n) {
        const hth_kmeans_shard *shard = run->shards[m];
        size_t count = shard->x == NULL ? shard->points.most : FAR_POINTS;
        for (size_t i = 0; i < shard->n; i += count) {
            hth_kmeans_piece piece = {.first = i, .n = shard->n - i < count ? shard->n - i : count};
            HTH_TRY(kmeans_rows(run, m, i, piece.n, &piece.x));
            HTH_TRY(far_piece(run, m, &piece, first + i, most, heap));
        }
    }
    qsort(heap, most, sizeof *heap, far_first);
    return HTH_OK;
}

static hth_err far_move(hth_kmeans_run *run, const far_point *point, size_t empty)
{
    const float *x;
    double *from = run->all.sum + point->label * run->d, *to = run->all.sum + empty * run->d;
    HTH_TRY(kmeans_row(run, point->row, &x));
    for (size_t j = 0; j < run->d; j++) {
        from[j] -= (double)x[j];
        to[j] = (double)x[j];
    }
    run->all.count[point->label]--;
    run->all.count[empty] = 1;
    return HTH_OK;
}

// Twice as many points as clusters are empty: some may be the last of their cluster.
static hth_err kmeans_relocate(hth_kmeans_run *run, size_t empty)
{
    size_t most = 2 * empty < run->n ? 2 * empty : run->n, next = 0;
    far_point *far = hth_calloc(most, sizeof *far);
    hth_err err;
    if (far == NULL) {
        return hth_no_memory("K-means' %zu empty clusters", empty);
    }
    HTH_GOTO(far_find(run, most, far), done);
    for (size_t c = 0; c < run->k; c++) {
        if (run->all.count[c] > 0) {
            continue;
        }
        while (next < most && far[next].row != SIZE_MAX && run->all.count[far[next].label] < 2) {
            next++;
        }
        if (next == most || far[next].row == SIZE_MAX) {
            break;
        }
        HTH_GOTO(far_move(run, &far[next++], c), done);
    }
done:
    hth_free(far);
    return err;
}

hth_err kmeans_update(hth_kmeans_run *run, double *shift)
{
    size_t empty = 0;
    for (size_t c = 0; c < run->k; c++) {
        empty += run->all.count[c] == 0 ? 1 : 0;
    }
    if (empty > 0) {
        HTH_TRY(kmeans_relocate(run, empty));
    }
    *shift = 0;
    for (size_t c = 0; c < run->k; c++) {
        double count = (double)run->all.count[c];
        for (size_t j = c * run->d; j < (c + 1) * run->d; j++) {
            run->next[j] = count > 0 ? run->all.sum[j] / count : run->centroids[j];
            double move = run->next[j] - run->centroids[j];
            *shift += move * move;
        }
    }
    return HTH_OK;
}
