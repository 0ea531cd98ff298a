// SPDX-License-Identifier: Apache-2.0
// Sums of all points become centroids.
#include "kernels/kmeans_impl.h"

static void update_add(hth_kmeans_run *run)
{
    for (size_t j = 0; j < run->k * run->d; j++) {
        run->all.sum[j] += run->part.sum[j];
    }
    for (size_t c = 0; c < run->k; c++) {
        run->all.count[c] += run->part.count[c];
    }
    run->all.changed += run->part.changed;
}

// The inertia of the centroids that points were compared with, by their sums: with deviations from
// the mean, |x - c|^2 adds up to |x|^2 - 2 c x + |c|^2.
static double update_inertia(const hth_kmeans_run *run)
{
    double inertia = run->variance * (double)run->d * (double)run->n;
    for (size_t c = 0; c < run->k; c++) {
        double count = (double)run->all.count[c];
        for (size_t j = 0; j < run->d; j++) {
            double mean = run->exact[j], at = run->centroids[c * run->d + j] - mean;
            inertia += at * (count * at - 2 * (run->all.sum[c * run->d + j] - count * mean));
        }
    }
    return inertia > 0 ? inertia : 0;
}

void kmeans_collect(hth_kmeans_run *run)
{
    for (size_t m = 0; m < run->n_shards; m++) {
        run->shards[m]->ops->end(run->shards[m], m == 0 ? &run->all : &run->part);
        if (m > 0) {
            update_add(run);
        }
    }
}

// Makes run->next of the sums of all points; returns the sum of the squared moves.
static double update_move(hth_kmeans_run *run)
{
    double shift = 0;
    for (size_t c = 0; c < run->k; c++) {
        double count = (double)run->all.count[c];
        for (size_t j = c * run->d; j < (c + 1) * run->d; j++) {
            run->next[j] = count > 0 ? run->all.sum[j] / count : run->centroids[j];
            double move = run->next[j] - run->centroids[j];
            shift += move * move;
        }
    }
    return shift;
}

void kmeans_update(hth_kmeans_run *run)
{
    double shift = update_move(run), *old = run->centroids;
    run->centroids = run->next;
    run->next = old;
    run->iterations++;
    run->converged = run->all.changed == 0 || shift <= run->what->tolerance * run->variance;
    bool over = run->converged || run->iterations >= run->what->iterations;
    run->phase = over ? HTH_KMEANS_ENDS : HTH_KMEANS_ITERATES;
}

hth_err kmeans_summed(hth_kmeans_run *run)
{
    size_t empty = kmeans_empty(run);
    run->inertia = update_inertia(run);
    if (empty > 0) {
        run->phase = HTH_KMEANS_REFILLS;
        return kmeans_far_open(run, empty);
    }
    kmeans_update(run);
    return HTH_OK;
}

void kmeans_ends(hth_kmeans_run *run)
{
    run->inertia = 0;
    for (size_t m = 0; m < run->n_shards; m++) {
        hth_kmeans_sums last = {0};
        run->shards[m]->ops->end(run->shards[m], &last);
        run->inertia += last.inertia;
    }
}
