// SPDX-License-Identifier: Apache-2.0
// Points drawn at random, with chances as their squared distances from the nearest centroid: first
// a chunk of them, by its sum, then a point of it.
#include "kernels/kmeans_impl.h"

#include "kernels/philox.h"

#include <math.h>
#include <string.h>

double kmeans_uniform(hth_kmeans_run *run)
{
    uint64_t n = run->draws++, seed = run->what->seed;
    const uint32_t counter[4] = {(uint32_t)n, (uint32_t)(n >> 32), 0, 0};
    hth_philox word = hth_philox_at(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    uint64_t bits = (uint64_t)word.word[0] << 32 | word.word[1];
    return (double)(bits >> 11) * 0x1p-53;
}

size_t kmeans_any(hth_kmeans_run *run)
{
    return (size_t)(kmeans_uniform(run) * (double)run->n);
}

// A chunk of points, by its number among all chunks.
typedef struct draw_place {
    size_t shard, begin, n; // begin: in its shard
    size_t first;           // .. among all points
} draw_place;

static draw_place draw_place_of(const hth_kmeans_run *run, size_t chunk)
{
    draw_place at = {.shard = 0};
    while (chunk >= kmeans_chunks(run->shards[at.shard])) {
        chunk -= kmeans_chunks(run->shards[at.shard]);
        at.first += run->shards[at.shard++]->n;
    }
    at.begin = chunk * HTH_KMEANS_CHUNK;
    size_t left = run->shards[at.shard]->n - at.begin;
    at.n = left < HTH_KMEANS_CHUNK ? left : HTH_KMEANS_CHUNK;
    at.first += at.begin;
    return at;
}

// draw_distances computes seeds->drawn: a chunk's distances, from the newest centroid, too.
static hth_err draw_distances(hth_kmeans_run *run, size_t chunk, draw_place *at)
{
    kmeans_seeds *seeds = run->seeds;
    hth_kmeans_centroids mean = {NULL, run->mean};
    double sum = 0, *sums[1] = {&sum};
    *at = draw_place_of(run, chunk);
    hth_kmeans_shard *shard = run->shards[at->shard];
    hth_kmeans_piece piece = {.first = at->begin, .n = at->n};
    HTH_TRY(kmeans_rows(run, at->shard, piece.first, piece.n, &piece.x));
    memcpy(seeds->drawn, kmeans_nearest(shard) + piece.first, piece.n * sizeof *seeds->drawn);
    shard->ops->spread(shard, &piece, &mean, seeds->rows, 1, true, seeds->drawn, sums);
    return HTH_OK;
}

// draw_last is the last point that has a chance.
static hth_err draw_last(hth_kmeans_run *run, size_t *point)
{
    const kmeans_seeds *seeds = run->seeds;
    draw_place at;
    size_t chunk = seeds->chunks - 1;
    while (chunk > 0 && !(seeds->now[chunk] > 0)) {
        chunk--;
    }
    HTH_TRY(draw_distances(run, chunk, &at));
    size_t i = at.n - 1;
    while (i > 0 && seeds->drawn[i] == 0) {
        i--;
    }
    *point = at.first + i;
    return HTH_OK;
}

hth_err kmeans_draw(hth_kmeans_run *run, size_t *point)
{
    const kmeans_seeds *seeds = run->seeds;
    double at = kmeans_uniform(run) * seeds->total;
    if (!(seeds->total > 0)) {
        *point = kmeans_any(run); // every point is a centroid already
        return HTH_OK;
    }
    for (size_t chunk = 0; chunk < seeds->chunks; chunk++) {
        draw_place place;
        if (at >= seeds->now[chunk]) {
            at -= seeds->now[chunk];
            continue;
        }
        HTH_TRY(draw_distances(run, chunk, &place));
        for (size_t i = 0; i < place.n; i++) {
            if (at < (double)seeds->drawn[i]) {
                *point = place.first + i;
                return HTH_OK;
            }
            at -= (double)seeds->drawn[i];
        }
    }
    return draw_last(run, point); // rounding
}
