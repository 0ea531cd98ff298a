// SPDX-License-Identifier: Apache-2.0
// Empty clusters are filled as by scikit-learn: the points with the largest distances from the
// centroids that they were assigned to become centroids, largest first, and leave the sums of their
// clusters. Unlike there a cluster's last point stays.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"

#include <stdlib.h>

// The order of a heap whose first is the nearest of the far: equal ones by their place.
static bool far_less(const kmeans_far *a, const kmeans_far *b)
{
    return a->squared < b->squared || (a->squared == b->squared && a->row > b->row);
}

static int far_first(const void *a, const void *b)
{
    const kmeans_far *x = a, *y = b;
    return (int)far_less(x, y) - (int)far_less(y, x);
}

static void far_sink(kmeans_far *heap, size_t n, size_t i)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && far_less(&heap[child + 1], &heap[child]) ? 1 : 0;
        if (!far_less(&heap[child], &heap[i])) {
            return;
        }
        kmeans_far held = heap[i];
        heap[i] = heap[child];
        heap[child] = held;
    }
}

size_t kmeans_empty(const hth_kmeans_run *run)
{
    size_t empty = 0;
    for (size_t c = 0; c < run->k; c++) {
        empty += run->all.count[c] == 0 ? 1 : 0;
    }
    return empty;
}

// Twice as many points as clusters are empty: some may be the last of their cluster.
hth_err kmeans_far_open(hth_kmeans_run *run, size_t empty)
{
    hth_free(run->far);
    run->n_far = 2 * empty < run->n ? 2 * empty : run->n;
    run->far = hth_calloc(run->n_far, sizeof *run->far);
    return run->far != NULL ? HTH_OK : hth_no_memory("K-means' %zu empty clusters", empty);
}

// Points that lie on their centroids do not count: where there are too few, the last have the row
// SIZE_MAX.
void kmeans_far_begin(hth_kmeans_run *run)
{
    for (size_t i = 0; i < run->n_far; i++) {
        run->far[i] = (kmeans_far){.squared = 0, .row = SIZE_MAX};
    }
}

hth_err kmeans_far_piece(hth_kmeans_run *run, const hth_kmeans_piece *piece)
{
    hth_kmeans_shard *shard = run->shards[run->shard];
    double *squared = hth_calloc(piece->n, sizeof *squared);
    if (squared == NULL) {
        return hth_no_memory("K-means' distances of %zu points", piece->n);
    }
    shard->ops->distances(shard, piece, run->centroids, squared);
    for (size_t i = 0; i < piece->n; i++) {
        kmeans_far point = {squared[i], run->from + run->passed + i,
                            shard->labels[piece->first + i], NULL};
        if (squared[i] > 0 && far_less(&run->far[0], &point)) {
            run->far[0] = point;
            far_sink(run->far, run->n_far, 0);
        }
    }
    hth_free(squared);
    return HTH_OK;
}

void kmeans_far_sort(kmeans_far *far, size_t n)
{
    qsort(far, n, sizeof *far, far_first);
}

static hth_err far_move(hth_kmeans_run *run, const kmeans_far *point, size_t empty)
{
    const float *x = point->x;
    double *from = run->all.sum + point->label * run->d, *to = run->all.sum + empty * run->d;
    if (x == NULL) {
        HTH_TRY(kmeans_row(run, point->row, &x));
    }
    for (size_t j = 0; j < run->d; j++) {
        from[j] -= (double)x[j];
        to[j] = (double)x[j];
    }
    run->all.count[point->label]--;
    run->all.count[empty] = 1;
    return HTH_OK;
}

hth_err kmeans_refill(hth_kmeans_run *run, const kmeans_far *far, size_t n)
{
    size_t next = 0;
    for (size_t c = 0; c < run->k; c++) {
        if (run->all.count[c] > 0) {
            continue;
        }
        while (next < n && far[next].row != SIZE_MAX && run->all.count[far[next].label] < 2) {
            next++;
        }
        if (next == n || far[next].row == SIZE_MAX) {
            break;
        }
        HTH_TRY(far_move(run, &far[next++], c));
    }
    return HTH_OK;
}
