// SPDX-License-Identifier: Apache-2.0
// Lloyd's algorithm over shards, a part of a pass at a time: what is the same whatever computes.
// Each iteration adds up the shards' partial sums in the order of the shards and updates the
// centroids once.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define FAR_POINTS ((size_t)1 << 16) // whose distances are looked at together

// ---- begin and end

static hth_err run_check(const hth_kmeans_run *run)
{
    const hth_kmeans *what = run->what;
    if (run->k > run->n) {
        return hth_fail(HTH_EINVAL, "%zu centroids for %zu points: there must be at least as many",
                        run->k, run->n);
    }
    if (what->iterations < 1) {
        return hth_fail(HTH_EINVAL, "0 iterations: at least 1 is needed");
    }
    if (!(what->tolerance >= 0) || !isfinite(what->tolerance)) {
        return hth_fail(HTH_EINVAL, "tolerance %g: it is a finite number of at least 0",
                        what->tolerance);
    }
    for (size_t j = 0; what->init == HTH_KMEANS_GIVEN && j < run->k * run->d; j++) {
        if (!(fabsf(what->start[j]) <= kmeans_limit(run->d))) {
            size_t row = j / run->d;
            return kmeans_bad("start centroid", row, what->start + row * run->d, run->d);
        }
    }
    return HTH_OK;
}

static hth_err run_alloc(hth_kmeans_run *run)
{
    size_t kd = run->k * run->d;
    run->mean = hth_calloc(2 * run->d, sizeof *run->mean);
    run->moments = hth_calloc(3 * run->d, sizeof(double));
    run->memory = hth_calloc(4 * kd, sizeof(double));
    run->all.count = hth_calloc(2 * run->k, sizeof(uint64_t));
    if (run->mean == NULL || run->moments == NULL || run->memory == NULL ||
        run->all.count == NULL) {
        return hth_no_memory("K-means' %zu centroids of %zu columns", run->k, run->d);
    }
    run->origin = run->mean + run->d;
    run->exact = run->moments + 2 * run->d;
    run->centroids = run->memory;
    run->next = run->memory + kd;
    run->all.sum = run->memory + 2 * kd;
    run->part = (hth_kmeans_sums){run->memory + 3 * kd, run->all.count + run->k, 0, 0};
    return HTH_OK;
}

hth_err hth_kmeans_begin(const hth_kmeans *what, hth_kmeans_shard *const *shards, size_t n_shards,
                         const hth_kmeans_saved *saved, hth_kmeans_run **out)
{
    hth_kmeans_run *run = *out = hth_calloc(1, sizeof *run);
    hth_err err;
    if (run == NULL) {
        return hth_no_memory("K-means");
    }
    *run = (hth_kmeans_run){
        .what = what, .shards = shards, .n_shards = n_shards, .d = shards[0]->d, .k = shards[0]->k};
    for (size_t m = 0; m < n_shards; m++) {
        run->n += shards[m]->n;
    }
    HTH_GOTO(run_check(run), fail);
    HTH_GOTO(run_alloc(run), fail);
    if (saved != NULL) {
        memcpy(run->centroids, saved->centroids, run->k * run->d * sizeof(double));
        run->iterations = saved->iterations;
        run->replayed = saved->seeded;
        run->saved = saved->seeded == 0;
        run->converged = saved->converged;
    }
    return HTH_OK;
fail:
    hth_kmeans_finish(run);
    *out = NULL;
    return err;
}

void hth_kmeans_finish(hth_kmeans_run *run)
{
    if (run != NULL) {
        kmeans_seed_close(run->seeds);
        hth_free(run->far);
        hth_free(run->mean);
        hth_free(run->moments);
        hth_free(run->memory);
        hth_free(run->all.count);
        hth_free(run);
    }
}

hth_kmeans_at hth_kmeans_where(const hth_kmeans_run *run)
{
    bool begun = run->saved || run->phase > HTH_KMEANS_SEEDS || kmeans_seeded(run) > 0;
    return (hth_kmeans_at){.phase = run->phase,
                           .iterations = run->iterations,
                           .pass = run->passed,
                           .passes = run->n,
                           .seeded = kmeans_seeded(run),
                           .inertia = run->inertia,
                           .converged = run->converged,
                           .centroids = begun ? run->centroids : NULL};
}

// ---- the first look: mean and variance of the columns

// Sums are of differences from the first point: what all have in common costs no digits.
static hth_err looks_piece(hth_kmeans_run *run, const hth_kmeans_piece *piece)
{
    hth_kmeans_shard *shard = run->shards[run->shard];
    hth_kmeans_moments sums = {.sum = run->moments, .square = run->moments + run->d};
    if (run->passed == 0 && !run->member) {
        memcpy(run->origin, piece->x, run->d * sizeof *run->origin);
    }
    shard->ops->moments(shard, piece, run->origin, kmeans_limit(run->d), &sums);
    return sums.bad == piece->n ? HTH_OK
                                : kmeans_bad("point", run->from + run->passed + sums.bad,
                                             piece->x + sums.bad * run->d, run->d);
}

static void looks_end(hth_kmeans_run *run)
{
    const double *sum = run->moments, *square = run->moments + run->d;
    run->variance = 0;
    for (size_t j = 0; j < run->d; j++) {
        double mean = sum[j] / (double)run->n;
        double spread = square[j] / (double)run->n - mean * mean;
        run->exact[j] = (double)run->origin[j] + mean;
        run->mean[j] = (float)run->exact[j];
        run->variance += (spread > 0 ? spread : 0) / (double)run->d;
    }
}

// ---- passes

void kmeans_begin_pass(hth_kmeans_run *run)
{
    hth_kmeans_centroids to = {run->centroids, run->mean};
    bool assigns = run->phase == HTH_KMEANS_ITERATES || run->phase == HTH_KMEANS_ENDS;
    if (run->phase == HTH_KMEANS_LOOKS) {
        memset(run->moments, 0, 2 * run->d * sizeof *run->moments);
    }
    run->shard = run->passed = 0;
    run->point = run->from;
    if (run->phase == HTH_KMEANS_REFILLS) {
        kmeans_far_begin(run);
    }
    for (size_t m = 0; m < run->n_shards && assigns; m++) {
        run->shards[m]->ops->begin(run->shards[m], &to, run->phase == HTH_KMEANS_ITERATES);
    }
}

// run_iterates begins the iterations, of which a run that goes on may have done all.
static void run_iterates(hth_kmeans_run *run)
{
    bool over = run->converged || run->iterations >= run->what->iterations;
    kmeans_seed_close(run->seeds);
    run->seeds = NULL;
    run->phase = over ? HTH_KMEANS_ENDS : HTH_KMEANS_ITERATES;
}

static hth_err run_seeds(hth_kmeans_run *run)
{
    if (!run->saved) {
        HTH_TRY(kmeans_seed(run));
    }
    if (run->seeds != NULL) {
        run->phase = HTH_KMEANS_SEEDS;
    } else {
        run_iterates(run);
    }
    return HTH_OK;
}

// run_seeded ends a pass of k-means++, which is many of them.
static hth_err run_seeded(hth_kmeans_run *run)
{
    bool over;
    HTH_TRY(kmeans_seed_passed(run, &over));
    if (over) {
        run_iterates(run);
    }
    return HTH_OK;
}

static hth_err run_joined(hth_kmeans_run *run)
{
    switch (run->phase) {
    case HTH_KMEANS_LOOKS:
        looks_end(run);
        return run_seeds(run);
    case HTH_KMEANS_SEEDS:
        return run_seeded(run);
    case HTH_KMEANS_ITERATES:
        return kmeans_summed(run);
    case HTH_KMEANS_REFILLS:
        hth_free(run->far);
        run->far = NULL;
        kmeans_update(run);
        return HTH_OK;
    case HTH_KMEANS_ENDS:
    case HTH_KMEANS_DONE:
        break;
    }
    run->phase = HTH_KMEANS_DONE;
    return HTH_OK;
}

hth_err kmeans_joined(hth_kmeans_run *run)
{
    HTH_TRY(run_joined(run));
    run->from = run->range = 0; // a member's next one is decided later
    kmeans_begin_pass(run);
    return HTH_OK;
}

// run_collect adds up what the shards found.
static hth_err run_collect(hth_kmeans_run *run)
{
    if (run->phase == HTH_KMEANS_ITERATES) {
        kmeans_collect(run);
    } else if (run->phase == HTH_KMEANS_ENDS) {
        kmeans_ends(run);
    } else if (run->phase == HTH_KMEANS_REFILLS) {
        kmeans_far_sort(run->far, run->n_far);
        return kmeans_refill(run, run->far, run->n_far);
    }
    return HTH_OK;
}

// run_passed ends a pass; a member's end with hth_kmeans_join.
static hth_err run_passed(hth_kmeans_run *run)
{
    if (run->member) {
        return HTH_OK;
    }
    HTH_TRY(run_collect(run));
    return kmeans_joined(run);
}

static hth_err run_piece(hth_kmeans_run *run, const hth_kmeans_piece *piece)
{
    hth_kmeans_shard *shard = run->shards[run->shard];
    if (run->phase == HTH_KMEANS_LOOKS) {
        return looks_piece(run, piece);
    }
    if (run->phase == HTH_KMEANS_REFILLS) {
        return kmeans_far_piece(run, piece);
    }
    if (run->phase == HTH_KMEANS_SEEDS) {
        kmeans_seed_piece(run, piece);
    } else {
        shard->ops->assign(shard, piece);
    }
    return HTH_OK;
}

// run_left is how many points of the present shard are not done.
static size_t run_left(const hth_kmeans_run *run)
{
    size_t end = run->member ? run->from + run->range : run->shards[run->shard]->n;
    return end - run->point;
}

// run_count is how many of at most `points` points come next. Seeds are added up in whole chunks.
static size_t run_count(const hth_kmeans_run *run, size_t points)
{
    const hth_kmeans_shard *shard = run->shards[run->shard];
    size_t left = run_left(run);
    if (run->phase == HTH_KMEANS_SEEDS) {
        size_t chunks = points / HTH_KMEANS_CHUNK;
        points = (chunks > 0 ? chunks : 1) * HTH_KMEANS_CHUNK;
    }
    if (run->phase == HTH_KMEANS_REFILLS && points > FAR_POINTS) {
        points = FAR_POINTS;
    }
    if (shard->x == NULL) {
        size_t rest = shard->points.most - run->point % shard->points.most;
        points = points < rest ? points : rest;
    }
    points = points > 0 ? points : 1;
    return points < left ? points : left;
}

hth_err hth_kmeans_go(hth_kmeans_run *run, size_t points)
{
    size_t done = 0;
    bool passed = run->phase == HTH_KMEANS_DONE || (run->member && hth_kmeans_ranged(run));
    if (passed) {
        return HTH_OK;
    }
    while (!passed && (done == 0 || done < points)) {
        hth_kmeans_piece piece = {.first = run->point, .n = run_count(run, points - done)};
        HTH_TRY(kmeans_rows(run, run->shard, piece.first, piece.n, &piece.x));
        HTH_TRY(run_piece(run, &piece));
        done += piece.n;
        run->passed += piece.n;
        run->point += piece.n;
        if (run_left(run) == 0) {
            run->point = 0;
            run->shard++;
        }
        passed = run->shard == run->n_shards;
    }
    return passed ? run_passed(run) : HTH_OK;
}
