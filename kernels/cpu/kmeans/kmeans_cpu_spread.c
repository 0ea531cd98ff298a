// SPDX-License-Identifier: Apache-2.0
// Looks at points on the CPU that assign none: moments, distances, candidates of k-means++.
#include "kernels/cpu/kmeans/kmeans_cpu_impl.h"

#include <string.h>

static void cpu_moments_block(cpu_call *call, size_t slot, size_t begin, size_t end, float *scratch)
{
    cpu_shard *s = call->shard;
    size_t d = s->base.d;
    double *sum = s->moments + slot * 2 * d;
    uint32_t limit;
    memcpy(&limit, &call->limit, sizeof limit);
    for (size_t i = begin; i < end && i < s->bad[slot]; i++) {
        if (s->isa->moments(cpu_row(call, i), d, call->origin, sum, sum + d) > limit) {
            s->bad[slot] = i;
        }
    }
}

void hth_kmeans_cpu_moments(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                            const float *origin, float limit, hth_kmeans_moments *out)
{
    cpu_shard *s = (cpu_shard *)shard;
    cpu_call call = {.shard = s,
                     .piece = piece,
                     .block = cpu_moments_block,
                     .origin = origin,
                     .limit = limit,
                     .slots = s->slots,
                     .per_deal = s->dealt,
                     .at_once = s->block};
    memset(s->moments, 0, s->slots * 2 * shard->d * sizeof *s->moments);
    for (size_t slot = 0; slot < s->slots; slot++) {
        s->bad[slot] = SIZE_MAX;
    }
    hth_kmeans_cpu_run(&call);
    out->bad = piece->n;
    for (size_t slot = 0; slot < s->slots; slot++) {
        const double *part = s->moments + slot * 2 * shard->d;
        for (size_t p = 0; p < shard->d; p++) {
            out->sum[p] += part[p];
            out->square[p] += part[shard->d + p];
        }
        bool before = s->bad[slot] != SIZE_MAX && s->bad[slot] - piece->first < out->bad;
        out->bad = before ? s->bad[slot] - piece->first : out->bad;
    }
}

static void cpu_distances_block(cpu_call *call, size_t slot, size_t begin, size_t end,
                                float *scratch)
{
    const cpu_shard *s = call->shard;
    size_t d = s->base.d;
    for (size_t i = begin; i < end; i++) {
        uint32_t label = s->base.labels[i];
        const double *c = call->centroids + (label < s->base.k ? label : 0) * d;
        call->squared[i - call->piece->first] =
            label < s->base.k ? s->isa->squared(cpu_row(call, i), c, d) : 0;
    }
}

void hth_kmeans_cpu_distances(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                              const double *centroids, double *squared)
{
    cpu_shard *s = (cpu_shard *)shard;
    cpu_call call = {.shard = s,
                     .piece = piece,
                     .block = cpu_distances_block,
                     .slots = s->slots,
                     .per_deal = s->dealt,
                     .at_once = s->block,
                     .centroids = centroids,
                     .squared = squared};
    hth_kmeans_cpu_run(&call);
}

// The sum of what is nearer, a panel's distances or the nearest ones, in eight lanes.
static double cpu_minima(const float *squared, const float *nearest, size_t rows)
{
    double lanes[8] = {0}, sum = 0;
    for (size_t i = 0; i < rows; i++) {
        lanes[i % 8] += (double)(squared[i] < nearest[i] ? squared[i] : nearest[i]);
    }
    for (int l = 0; l < 8; l++) {
        sum += lanes[l];
    }
    return sum;
}

static void cpu_fold(const float *squared, float *nearest, size_t rows)
{
    for (size_t i = 0; i < rows; i++) {
        nearest[i] = squared[i] < nearest[i] ? squared[i] : nearest[i];
    }
}

// A block is a chunk, whose sums nobody else has.
static void cpu_spread_block(cpu_call *call, size_t slot, size_t begin, size_t end, float *panel)
{
    const cpu_shard *s = call->shard;
    size_t d = s->base.d, k = call->candidates, tiles = cpu_tiles(s, k);
    size_t before = call->piece->first; // distances begin with the piece
    float *norm = panel + s->block * d, *out = norm + s->block;
    double sum[HTH_KMEANS_CANDIDATES] = {0};
    for (size_t i = begin; i < end; i += s->isa->points) {
        size_t rows = end - i < s->isa->points ? end - i : s->isa->points, at = i - before;
        s->isa->pack(cpu_row(call, i), d, rows, call->mean, panel, norm);
        for (size_t t = 0; t < tiles; t++) {
            size_t first = k * t / tiles, last = k * (t + 1) / tiles;
            hth_kmeans_tile tile = {.x = panel, .c = s->centroids + first * d, .d = d, .out = out};
            s->isa->spread(&tile, last - first);
            for (size_t j = first; j < last; j++) {
                const float *squared = out + (j - first) * s->isa->points;
                if (call->folds && j == 0) { // before others look at them
                    cpu_fold(squared, call->nearest + at, rows);
                }
                sum[j] += cpu_minima(squared, call->nearest + at, rows);
            }
        }
    }
    for (size_t j = 0; j < k; j++) {
        call->chunk_sums[j][(begin - before) / HTH_KMEANS_CHUNK] = sum[j];
    }
}

void hth_kmeans_cpu_spread(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                           const hth_kmeans_centroids *mean, const float *rows, size_t count,
                           bool folds, float *nearest, double *const *sums)
{
    cpu_shard *s = (cpu_shard *)shard;
    size_t d = shard->d, tiles = cpu_tiles(s, count);
    cpu_call call = {.shard = s,
                     .piece = piece,
                     .block = cpu_spread_block,
                     .slots = (piece->n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK,
                     .per_deal = HTH_KMEANS_CHUNK,
                     .at_once = HTH_KMEANS_CHUNK,
                     .mean = mean->mean,
                     .nearest = nearest,
                     .chunk_sums = sums,
                     .candidates = count,
                     .folds = folds};
    for (size_t t = 0; t < tiles; t++) {
        size_t first = count * t / tiles, last = count * (t + 1) / tiles;
        for (size_t c = first; c < last; c++) {
            for (size_t p = 0; p < d; p++) {
                float *to = s->centroids + first * d + p * (last - first) + c - first;
                *to = rows[c * d + p] - mean->mean[p];
            }
        }
    }
    hth_kmeans_cpu_run(&call);
}
