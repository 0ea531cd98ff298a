// SPDX-License-Identifier: Apache-2.0
// Where centroids begin. Greedy k-means++ as in scikit-learn (D. Arthur, S. Vassilvitskii,
// "k-means++: The Advantages of Careful Seeding", SODA 2007): each next centroid is, of 2 + log k
// points drawn with chances that grow with their squared distances from the nearest centroid, the
// one that leaves the smallest sum of them.
//
// Random numbers are Philox's, counted: a start depends on seed and points alone.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"
#include "kernels/philox.h"

#include <math.h>
#include <string.h>

// A number in [0, 1) of 53 random bits.
static double seed_uniform(kmeans_fit *fit)
{
    uint64_t n = fit->draws++, seed = fit->what->seed;
    const uint32_t counter[4] = {(uint32_t)n, (uint32_t)(n >> 32), 0, 0};
    hth_philox word = hth_philox_at(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    uint64_t bits = (uint64_t)word.word[0] << 32 | word.word[1];
    return (double)(bits >> 11) * 0x1p-53;
}

static size_t seed_any(kmeans_fit *fit)
{
    return (size_t)(seed_uniform(fit) * (double)fit->n);
}

static void seed_set(kmeans_fit *fit, size_t c, const float *x)
{
    for (size_t j = 0; j < fit->d; j++) {
        fit->centroids[c * fit->d + j] = (double)x[j];
    }
}

// Knuth's selection sampling: k of n points, in their order.
static void seed_random(kmeans_fit *fit)
{
    for (size_t i = 0, c = 0; c < fit->k; i++) {
        if (seed_uniform(fit) * (double)(fit->n - i) < (double)(fit->k - c)) {
            seed_set(fit, c++, kmeans_row(fit, i));
        }
    }
}

// Squared distances of all points from the nearest centroid, shard after shard. Candidate j's is
// column[j], which becomes `nearest` when it is chosen.
typedef struct seed_state {
    size_t tries, chunks; // chunks: of all shards
    float *memory;
    float *column[HTH_KMEANS_CANDIDATES], *nearest;
    double *sums, *now; // (tries, chunks); (chunks), of `nearest`
    float *rows;        // (tries, d)
    double total;       // of `nearest`
} seed_state;

static size_t seed_chunks(const hth_kmeans_shard *shard)
{
    return (shard->n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK;
}

static hth_err seed_open(const kmeans_fit *fit, seed_state *state)
{
    // 2 + log of any k is less than HTH_KMEANS_CANDIDATES.
    *state = (seed_state){.tries = 2 + (size_t)log((double)fit->k)};
    for (size_t m = 0; m < fit->n_shards; m++) {
        state->chunks += seed_chunks(fit->shards[m]);
    }
    state->memory = hth_alloc((state->tries + 1) * fit->n * sizeof(float));
    state->sums = hth_calloc((state->tries + 1) * state->chunks, sizeof(double));
    state->rows = hth_calloc(state->tries * fit->d, sizeof(float));
    if (state->memory == NULL || state->sums == NULL || state->rows == NULL) {
        return hth_no_memory("K-means' %zu candidates of %zu points", state->tries, fit->n);
    }
    state->now = state->sums + state->tries * state->chunks;
    for (size_t j = 0; j < state->tries; j++) {
        state->column[j] = state->memory + j * fit->n;
    }
    state->nearest = state->memory + state->tries * fit->n;
    for (size_t i = 0; i < fit->n; i++) {
        state->nearest[i] = INFINITY;
    }
    return HTH_OK;
}

static void seed_close(seed_state *state)
{
    hth_free(state->memory);
    hth_free(state->sums);
    hth_free(state->rows);
}

// seed_try computes the columns of the first `count` rows and keeps the best; returns which it was.
static size_t seed_try(kmeans_fit *fit, seed_state *state, size_t count)
{
    hth_kmeans_centroids mean = {NULL, fit->mean};
    float *column[HTH_KMEANS_CANDIDATES];
    double total[HTH_KMEANS_CANDIDATES] = {0};
    size_t first = 0, chunk = 0, best = 0;
    for (size_t m = 0; m < fit->n_shards; m++) {
        hth_kmeans_shard *shard = fit->shards[m];
        for (size_t j = 0; j < count; j++) {
            column[j] = state->column[j] + first;
        }
        double *sums = state->sums + chunk * state->tries;
        shard->ops->spread(shard, &mean, state->rows, count, state->nearest + first, column, sums);
        for (size_t j = 0; j < count * seed_chunks(shard); j++) {
            total[j / seed_chunks(shard)] += sums[j];
        }
        first += shard->n;
        chunk += seed_chunks(shard);
    }
    for (size_t j = 1; j < count; j++) {
        best = total[j] < total[best] ? j : best;
    }
    state->total = total[best];
    return best;
}

// seed_keep makes candidate `best` the newest centroid c.
static void seed_keep(kmeans_fit *fit, seed_state *state, size_t c, size_t best)
{
    float *old = state->nearest;
    state->nearest = state->column[best];
    state->column[best] = old;
    for (size_t m = 0, chunk = 0; m < fit->n_shards; m++) {
        size_t chunks = seed_chunks(fit->shards[m]);
        const double *sums = state->sums + chunk * state->tries + best * chunks;
        memcpy(state->now + chunk, sums, chunks * sizeof *sums);
        chunk += chunks;
    }
    seed_set(fit, c, state->rows + best * fit->d);
}

// seed_draw returns a point, drawn with chances as its squared distance.
static size_t seed_draw(kmeans_fit *fit, const seed_state *state)
{
    double at = seed_uniform(fit) * state->total;
    if (!(state->total > 0)) {
        return seed_any(fit); // every point is a centroid already
    }
    size_t first = 0, chunk = 0, last = fit->n - 1;
    for (size_t m = 0; m < fit->n_shards; first += fit->shards[m++]->n) {
        size_t n = fit->shards[m]->n;
        for (size_t q = 0; q < seed_chunks(fit->shards[m]); q++, chunk++) {
            size_t begin = q * HTH_KMEANS_CHUNK, end = begin + HTH_KMEANS_CHUNK;
            if (at >= state->now[chunk]) {
                at -= state->now[chunk];
                continue;
            }
            for (size_t i = first + begin; i < first + (end < n ? end : n); i++) {
                if (at < (double)state->nearest[i]) {
                    return i;
                }
                at -= (double)state->nearest[i];
            }
        }
    }
    while (last > 0 && state->nearest[last] == 0) { // rounding: the last that has a chance
        last--;
    }
    return last;
}

static hth_err seed_plus_plus(kmeans_fit *fit)
{
    seed_state state;
    hth_err err;
    HTH_GOTO(seed_open(fit, &state), done);
    for (size_t c = 0; c < fit->k; c++) {
        size_t tries = c == 0 ? 1 : state.tries;
        for (size_t j = 0; j < tries; j++) {
            size_t i = c == 0 ? seed_any(fit) : seed_draw(fit, &state);
            memcpy(state.rows + j * fit->d, kmeans_row(fit, i), fit->d * sizeof(float));
        }
        seed_keep(fit, &state, c, seed_try(fit, &state, tries));
    }
done:
    seed_close(&state);
    return err;
}

hth_err kmeans_seed(kmeans_fit *fit)
{
    if (fit->what->init == HTH_KMEANS_PLUS_PLUS) {
        return seed_plus_plus(fit);
    }
    if (fit->what->init == HTH_KMEANS_RANDOM) {
        seed_random(fit);
        return HTH_OK;
    }
    for (size_t c = 0; c < fit->k; c++) {
        seed_set(fit, c, fit->what->start + c * fit->d);
    }
    return HTH_OK;
}
