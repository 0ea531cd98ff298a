// SPDX-License-Identifier: Apache-2.0
// Where centroids begin. Greedy k-means++ as in scikit-learn (D. Arthur, S. Vassilvitskii,
// "k-means++: The Advantages of Careful Seeding", SODA 2007): each next centroid is, of 2 + log k
// points drawn with chances that grow with their squared distances from the nearest centroid, the
// one that leaves the smallest sum of them.
//
// A pass over the points computes the candidates' columns; between two passes one is chosen, and
// the next are drawn. Random numbers are Philox's, counted: a start depends on seed and points
// alone. A run that goes on has one candidate in each pass for a centroid that it chose before, and
// comes to the same distances and sums.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"
#include "kernels/philox.h"

#include <math.h>
#include <string.h>

// A number in [0, 1) of 53 random bits.
static double seed_uniform(hth_kmeans_run *run)
{
    uint64_t n = run->draws++, seed = run->what->seed;
    const uint32_t counter[4] = {(uint32_t)n, (uint32_t)(n >> 32), 0, 0};
    hth_philox word = hth_philox_at(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    uint64_t bits = (uint64_t)word.word[0] << 32 | word.word[1];
    return (double)(bits >> 11) * 0x1p-53;
}

static size_t seed_any(hth_kmeans_run *run)
{
    return (size_t)(seed_uniform(run) * (double)run->n);
}

static void seed_set(hth_kmeans_run *run, size_t c, const float *x)
{
    for (size_t j = 0; j < run->d; j++) {
        run->centroids[c * run->d + j] = (double)x[j];
    }
}

// Knuth's selection sampling: k of n points, in their order.
static hth_err seed_random(hth_kmeans_run *run)
{
    const float *x;
    for (size_t i = 0, c = 0; c < run->k; i++) {
        if (seed_uniform(run) * (double)(run->n - i) < (double)(run->k - c)) {
            HTH_TRY(kmeans_row(run, i, &x));
            seed_set(run, c++, x);
        }
    }
    return HTH_OK;
}

// Squared distances of all points from the nearest centroid, shard after shard. Candidate j's is
// column[j], which becomes `nearest` when it is chosen.
struct kmeans_seeds {
    size_t tries, chunks; // chunks: of all shards
    size_t c, count;      // the centroid that is chosen in this pass; of so many candidates
    float *memory;
    float *column[HTH_KMEANS_CANDIDATES], *nearest;
    double *sum[HTH_KMEANS_CANDIDATES]; // (chunks) each, of the columns
    double *sums, *now;                 // now: (chunks), of `nearest`
    float *rows;                        // (tries, d)
    double total;                       // of `nearest`
};

static size_t seed_chunks(const hth_kmeans_shard *shard)
{
    return (shard->n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK;
}

// 2 + log of any k is less than HTH_KMEANS_CANDIDATES.
static size_t seed_tries(size_t k)
{
    return 2 + (size_t)log((double)k);
}

uint64_t kmeans_seed_bytes(size_t n, size_t d, size_t k)
{
    return (uint64_t)(seed_tries(k) + 1) *
           (n * sizeof(float) + (n / HTH_KMEANS_CHUNK + 1) * sizeof(double) + d * sizeof(float));
}

static hth_err seed_open(const hth_kmeans_run *run, kmeans_seeds *seeds)
{
    seeds->tries = seed_tries(run->k);
    for (size_t m = 0; m < run->n_shards; m++) {
        seeds->chunks += seed_chunks(run->shards[m]);
    }
    seeds->memory = hth_alloc((seeds->tries + 1) * run->n * sizeof(float));
    seeds->sums = hth_calloc((seeds->tries + 1) * seeds->chunks, sizeof(double));
    seeds->rows = hth_calloc(seeds->tries * run->d, sizeof(float));
    if (seeds->memory == NULL || seeds->sums == NULL || seeds->rows == NULL) {
        return hth_no_memory("K-means' %zu candidates of %zu points", seeds->tries, run->n);
    }
    seeds->now = seeds->sums + seeds->tries * seeds->chunks;
    for (size_t j = 0; j < seeds->tries; j++) {
        seeds->column[j] = seeds->memory + j * run->n;
        seeds->sum[j] = seeds->sums + j * seeds->chunks;
    }
    seeds->nearest = seeds->memory + seeds->tries * run->n;
    for (size_t i = 0; i < run->n; i++) {
        seeds->nearest[i] = INFINITY;
    }
    return HTH_OK;
}

void kmeans_seed_close(kmeans_seeds *seeds)
{
    if (seeds != NULL) {
        hth_free(seeds->memory);
        hth_free(seeds->sums);
        hth_free(seeds->rows);
        hth_free(seeds);
    }
}

size_t kmeans_seeded(const hth_kmeans_run *run)
{
    return run->seeds != NULL ? run->seeds->c : 0;
}

void kmeans_seed_piece(hth_kmeans_run *run, const hth_kmeans_piece *piece)
{
    kmeans_seeds *seeds = run->seeds;
    hth_kmeans_shard *shard = run->shards[run->shard];
    hth_kmeans_centroids mean = {NULL, run->mean};
    float *column[HTH_KMEANS_CANDIDATES];
    double *sums[HTH_KMEANS_CANDIDATES];
    size_t chunk = run->point / HTH_KMEANS_CHUNK;
    for (size_t m = 0; m < run->shard; m++) {
        chunk += seed_chunks(run->shards[m]);
    }
    for (size_t j = 0; j < seeds->count; j++) {
        column[j] = seeds->column[j] + run->passed;
        sums[j] = seeds->sum[j] + chunk;
    }
    shard->ops->spread(shard, piece, &mean, seeds->rows, seeds->count, seeds->nearest + run->passed,
                       column, sums);
}

// seed_best is which candidate leaves the smallest sum, which becomes the total.
static size_t seed_best(kmeans_seeds *seeds)
{
    double total[HTH_KMEANS_CANDIDATES] = {0};
    size_t best = 0;
    for (size_t j = 0; j < seeds->count; j++) {
        for (size_t q = 0; q < seeds->chunks; q++) {
            total[j] += seeds->sum[j][q];
        }
        best = total[j] < total[best] ? j : best;
    }
    seeds->total = total[best];
    return best;
}

// seed_keep makes candidate `best` the newest centroid.
static void seed_keep(hth_kmeans_run *run, size_t best)
{
    kmeans_seeds *seeds = run->seeds;
    float *old = seeds->nearest;
    seeds->nearest = seeds->column[best];
    seeds->column[best] = old;
    memcpy(seeds->now, seeds->sum[best], seeds->chunks * sizeof *seeds->now);
    seed_set(run, seeds->c++, seeds->rows + best * run->d);
}

// seed_draw returns a point, drawn with chances as its squared distance.
static size_t seed_draw(hth_kmeans_run *run)
{
    const kmeans_seeds *seeds = run->seeds;
    double at = seed_uniform(run) * seeds->total;
    if (!(seeds->total > 0)) {
        return seed_any(run); // every point is a centroid already
    }
    size_t first = 0, chunk = 0, last = run->n - 1;
    for (size_t m = 0; m < run->n_shards; first += run->shards[m++]->n) {
        size_t n = run->shards[m]->n;
        for (size_t q = 0; q < seed_chunks(run->shards[m]); q++, chunk++) {
            size_t begin = q * HTH_KMEANS_CHUNK, end = begin + HTH_KMEANS_CHUNK;
            if (at >= seeds->now[chunk]) {
                at -= seeds->now[chunk];
                continue;
            }
            for (size_t i = first + begin; i < first + (end < n ? end : n); i++) {
                if (at < (double)seeds->nearest[i]) {
                    return i;
                }
                at -= (double)seeds->nearest[i];
            }
        }
    }
    while (last > 0 && seeds->nearest[last] == 0) { // rounding: the last that has a chance
        last--;
    }
    return last;
}

static void seed_replay(hth_kmeans_run *run)
{
    kmeans_seeds *seeds = run->seeds;
    run->draws += seeds->count;
    seeds->count = 1;
    for (size_t j = 0; j < run->d; j++) {
        seeds->rows[j] = (float)run->centroids[seeds->c * run->d + j];
    }
}

// seed_next draws the candidates of the next pass.
static hth_err seed_next(hth_kmeans_run *run)
{
    kmeans_seeds *seeds = run->seeds;
    const float *x;
    seeds->count = seeds->c == 0 ? 1 : seeds->tries;
    if (seeds->c < run->replayed) {
        seed_replay(run);
        return HTH_OK;
    }
    for (size_t j = 0; j < seeds->count; j++) {
        HTH_TRY(kmeans_row(run, seeds->c == 0 ? seed_any(run) : seed_draw(run), &x));
        memcpy(seeds->rows + j * run->d, x, run->d * sizeof *x);
    }
    return HTH_OK;
}

hth_err kmeans_seed_passed(hth_kmeans_run *run, bool *over)
{
    seed_keep(run, seed_best(run->seeds));
    *over = run->seeds->c == run->k;
    return *over ? HTH_OK : seed_next(run);
}

hth_err kmeans_seed(hth_kmeans_run *run)
{
    if (run->what->init == HTH_KMEANS_RANDOM) {
        return seed_random(run);
    }
    for (size_t c = 0; run->what->init == HTH_KMEANS_GIVEN && c < run->k; c++) {
        seed_set(run, c, run->what->start + c * run->d);
    }
    if (run->what->init == HTH_KMEANS_GIVEN) {
        return HTH_OK;
    }
    run->seeds = hth_calloc(1, sizeof *run->seeds);
    if (run->seeds == NULL) {
        return hth_no_memory("K-means' candidates");
    }
    HTH_TRY(seed_open(run, run->seeds));
    return seed_next(run);
}
