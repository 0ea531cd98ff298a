// SPDX-License-Identifier: Apache-2.0
// Where centroids begin. Greedy k-means++ as in scikit-learn (D. Arthur, S. Vassilvitskii,
// "k-means++: The Advantages of Careful Seeding", SODA 2007): each next centroid is, of 2 + log k
// points drawn with chances that grow with their squared distances from the nearest centroid, the
// one that leaves the smallest sum of them.
//
// A pass over the points adds up what each candidate would leave; between two passes one is chosen,
// and the next are drawn. Distances, of one number for each point, lie where labels do later; they
// follow in the next pass, and for the few points among which one is drawn at once. Random numbers
// are Philox's, counted: a start depends on seed and points alone. A run that goes on has one
// candidate in each pass for a centroid that it chose before, and comes to the same distances and
// sums.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

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
        if (kmeans_uniform(run) * (double)(run->n - i) < (double)(run->k - c)) {
            HTH_TRY(kmeans_row(run, i, &x));
            seed_set(run, c++, x);
        }
    }
    return HTH_OK;
}

// 1 + 2 + log of any k is less than HTH_KMEANS_CANDIDATES.
static size_t seed_tries(size_t k)
{
    return 2 + (size_t)log((double)k);
}

uint64_t kmeans_seed_bytes(size_t n, size_t d, size_t k)
{
    return (uint64_t)(seed_tries(k) + 2) * (n / HTH_KMEANS_CHUNK + 1) * sizeof(double) +
           (uint64_t)(seed_tries(k) + 1) * d * sizeof(float) + HTH_KMEANS_CHUNK * sizeof(float);
}

static hth_err seed_open(hth_kmeans_run *run)
{
    size_t rows = seed_tries(run->k) + 1;
    kmeans_seeds *seeds = run->seeds = hth_calloc(1, sizeof *seeds);
    if (seeds == NULL) {
        return hth_no_memory("K-means' candidates");
    }
    seeds->tries = seed_tries(run->k);
    for (size_t m = 0; m < run->n_shards; m++) {
        seeds->chunks += kmeans_chunks(run->shards[m]);
    }
    seeds->sums = hth_calloc((rows + 1) * seeds->chunks, sizeof(double));
    seeds->rows = hth_calloc(rows * run->d, sizeof(float));
    seeds->drawn = hth_calloc(HTH_KMEANS_CHUNK, sizeof(float));
    if (seeds->sums == NULL || seeds->rows == NULL || seeds->drawn == NULL) {
        return hth_no_memory("K-means' %zu candidates of %zu points", seeds->tries, run->n);
    }
    seeds->now = seeds->sums + rows * seeds->chunks;
    for (size_t j = 0; j < rows; j++) {
        seeds->sum[j] = seeds->sums + j * seeds->chunks;
    }
    return HTH_OK;
}

// seed_new has no distance known yet.
static void seed_new(const hth_kmeans_run *run)
{
    for (size_t m = 0; m < run->n_shards; m++) {
        float *nearest = kmeans_nearest(run->shards[m]);
        for (size_t i = 0; i < run->shards[m]->n; i++) {
            nearest[i] = INFINITY;
        }
    }
}

void kmeans_seed_close(kmeans_seeds *seeds)
{
    if (seeds != NULL) {
        hth_free(seeds->sums);
        hth_free(seeds->rows);
        hth_free(seeds->drawn);
        hth_free(seeds);
    }
}

size_t kmeans_seeded(const hth_kmeans_run *run)
{
    size_t chosen = run->seeds != NULL ? run->seeds->c : 0;
    bool replays = run->phase <= HTH_KMEANS_SEEDS && chosen < run->replayed;
    return replays ? run->replayed : chosen;
}

void kmeans_seed_piece(hth_kmeans_run *run, const hth_kmeans_piece *piece)
{
    kmeans_seeds *seeds = run->seeds;
    hth_kmeans_shard *shard = run->shards[run->shard];
    hth_kmeans_centroids mean = {NULL, run->mean};
    double *sums[HTH_KMEANS_CANDIDATES];
    size_t chunk = run->point / HTH_KMEANS_CHUNK;
    for (size_t m = 0; m < run->shard; m++) {
        chunk += kmeans_chunks(run->shards[m]);
    }
    for (size_t j = 0; j < seeds->count; j++) {
        sums[j] = seeds->sum[j] + chunk;
    }
    shard->ops->spread(shard, piece, &mean, seeds->rows, seeds->count, seeds->folds,
                       kmeans_nearest(shard) + piece->first, sums);
}

// seed_best is which candidate leaves the smallest sum, which becomes the total.
static size_t seed_best(kmeans_seeds *seeds)
{
    double total[HTH_KMEANS_CANDIDATES] = {0};
    size_t first = seeds->folds ? 1 : 0, best = first;
    for (size_t j = first; j < seeds->count; j++) {
        for (size_t q = 0; q < seeds->chunks; q++) {
            total[j] += seeds->sum[j][q];
        }
        best = total[j] < total[best] ? j : best;
    }
    seeds->total = total[best];
    return best;
}

// seed_keep makes candidate `best` the newest centroid, whose distances the next pass will have.
static void seed_keep(hth_kmeans_run *run, size_t best)
{
    kmeans_seeds *seeds = run->seeds;
    const float *row = seeds->rows + best * run->d;
    memcpy(seeds->now, seeds->sum[best], seeds->chunks * sizeof *seeds->now);
    seed_set(run, seeds->c++, row);
    memmove(seeds->rows, row, run->d * sizeof *row);
    seeds->folds = true;
}

// The candidates' rows of the next pass. They follow the newest centroid's, if there is one.
static float *seed_rows(const hth_kmeans_run *run)
{
    return run->seeds->rows + (run->seeds->folds ? run->d : 0);
}

static void seed_replay(hth_kmeans_run *run)
{
    kmeans_seeds *seeds = run->seeds;
    float *row = seed_rows(run);
    run->draws += seeds->c == 0 ? 1 : seeds->tries;
    seeds->count = seeds->folds ? 2 : 1;
    for (size_t j = 0; j < run->d; j++) {
        row[j] = (float)run->centroids[seeds->c * run->d + j];
    }
}

// seed_next draws the candidates of the next pass.
static hth_err seed_next(hth_kmeans_run *run)
{
    kmeans_seeds *seeds = run->seeds;
    size_t tries = seeds->c == 0 ? 1 : seeds->tries;
    const float *x;
    if (seeds->c < run->replayed) {
        seed_replay(run);
        return HTH_OK;
    }
    for (size_t j = 0; j < tries; j++) {
        size_t point;
        if (seeds->c == 0) {
            point = kmeans_any(run);
        } else {
            HTH_TRY(kmeans_draw(run, &point));
        }
        HTH_TRY(kmeans_row(run, point, &x));
        memcpy(seed_rows(run) + j * run->d, x, run->d * sizeof *x);
    }
    seeds->count = tries + (seeds->folds ? 1 : 0);
    return HTH_OK;
}

hth_err kmeans_seed_passed(hth_kmeans_run *run, bool *over)
{
    seed_keep(run, seed_best(run->seeds));
    *over = run->seeds->c == run->k;
    if (!*over) {
        return seed_next(run);
    }
    for (size_t m = 0; m < run->n_shards; m++) {
        memset(run->shards[m]->labels, 0xFF, run->shards[m]->n * sizeof(uint32_t));
    }
    return HTH_OK;
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
    HTH_TRY(seed_open(run));
    seed_new(run);
    return seed_next(run);
}

// ---- members

// What a pass leaves of a member's range, and zeros of others' chunks: sums (count, chunks).
static size_t seed_sums(const kmeans_seeds *seeds)
{
    return seeds->count * seeds->chunks;
}

size_t kmeans_seed_part_bytes(size_t n, size_t k)
{
    return (seed_tries(k) + 1) * ((n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK) * sizeof(double);
}

void kmeans_seed_part(const hth_kmeans_run *run, double *part)
{
    const kmeans_seeds *seeds = run->seeds;
    size_t first = run->from / HTH_KMEANS_CHUNK;
    size_t n = (run->range + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK;
    memset(part, 0, seed_sums(seeds) * sizeof *part);
    for (size_t j = 0; j < seeds->count; j++) {
        memcpy(part + j * seeds->chunks + first, seeds->sum[j] + first, n * sizeof *part);
    }
}

void kmeans_seed_join(hth_kmeans_run *run, const void *const *parts, size_t n_parts)
{
    const kmeans_seeds *seeds = run->seeds;
    memset(seeds->sums, 0, seed_sums(seeds) * sizeof *seeds->sums);
    for (size_t i = 0; i < n_parts; i++) {
        const double *part = parts[i];
        for (size_t j = 0; j < seed_sums(seeds); j++) {
            seeds->sums[j] += part[j];
        }
    }
}

// What another member needs to choose the same, before the chunks' sums (chunks) and the rows.
typedef struct seed_head {
    uint64_t c, count, folds, draws;
    double total;
} seed_head;

size_t kmeans_seed_state_bytes(size_t n, size_t d, size_t k)
{
    return sizeof(seed_head) + (n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK * sizeof(double) +
           ((seed_tries(k) + 1) * d * sizeof(float) + 7) / 8 * 8;
}

void kmeans_seed_write(const hth_kmeans_run *run, void *state)
{
    const kmeans_seeds *seeds = run->seeds;
    seed_head *head = state;
    double *now = (double *)(void *)(head + 1);
    *head = (seed_head){seeds->c, seeds->count, seeds->folds, run->draws, seeds->total};
    memcpy(now, seeds->now, seeds->chunks * sizeof *now);
    memcpy(now + seeds->chunks, seeds->rows, (seeds->tries + 1) * run->d * sizeof *seeds->rows);
}

hth_err kmeans_seed_read(hth_kmeans_run *run, const void *state)
{
    seed_head head;
    memcpy(&head, state, sizeof head);
    HTH_TRY(seed_open(run));
    kmeans_seeds *seeds = run->seeds;
    const double *now = (const double *)(const void *)((const char *)state + sizeof head);
    size_t folds = head.folds != 0 ? 1 : 0;
    if (head.c >= run->k || head.count <= folds || head.count > seeds->tries + folds) {
        return hth_fail(HTH_ECORRUPT, "the state of another member is of no run like this");
    }
    seeds->c = (size_t)head.c;
    seeds->count = (size_t)head.count;
    seeds->folds = folds > 0;
    seeds->total = head.total;
    run->draws = (size_t)head.draws;
    memcpy(seeds->now, now, seeds->chunks * sizeof *now);
    memcpy(seeds->rows, now + seeds->chunks, (seeds->tries + 1) * run->d * sizeof *seeds->rows);
    return HTH_OK;
}
