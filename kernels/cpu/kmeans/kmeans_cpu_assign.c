// SPDX-License-Identifier: Apache-2.0
// An assignment on the CPU: labels, and sums of each slot.
//
// Centroids, less the mean, lie tile by tile: (d, centroids of the tile). Those of a part that
// leaves room in the cache meet all panels of a block before the next part does.
#include "kernels/cpu/kmeans/kmeans_cpu_impl.h"

#include "device/cpu/team.h"

#include <math.h>
#include <string.h>

#define KMEANS_PART ((size_t)96 << 10) // floats of a part of the centroids

static void cpu_pack_centroids(cpu_shard *s, const hth_kmeans_centroids *to)
{
    size_t k = s->base.k, d = s->base.d, tiles = cpu_tiles(s, k);
    for (size_t t = 0; t < tiles; t++) {
        size_t first = k * t / tiles, last = k * (t + 1) / tiles;
        float *tile = s->centroids + first * d;
        for (size_t c = first; c < last; c++) {
            double squares = 0;
            for (size_t p = 0; p < d; p++) {
                float x = (float)(to->c[c * d + p] - (double)to->mean[p]);
                tile[p * (last - first) + c - first] = x;
                squares += (double)x * (double)x;
            }
            s->half[c] = (float)(squares / 2);
        }
    }
}

// A block of points, in a thread's scratch: panels, and of each point what a tile has.
typedef struct cpu_block {
    size_t begin, end;
    float *panels, *norm, *best, *second;
    int32_t *label, *doubt;
} cpu_block;

static cpu_block cpu_block_at(const cpu_shard *s, float *scratch, size_t begin, size_t end)
{
    cpu_block b = {.begin = begin, .end = end, .panels = scratch};
    b.norm = b.panels + s->block * s->base.d;
    b.best = b.norm + s->block;
    b.second = b.best + s->block;
    b.label = (int32_t *)(void *)(b.second + s->block);
    b.doubt = b.label + s->block;
    return b;
}

static void cpu_nearest_part(const cpu_shard *s, const cpu_block *b, size_t t0, size_t t1)
{
    size_t k = s->base.k, d = s->base.d, tiles = cpu_tiles(s, k);
    for (size_t i = 0; i < b->end - b->begin; i += s->isa->points) {
        for (size_t t = t0; t < t1; t++) {
            size_t first = k * t / tiles, last = k * (t + 1) / tiles;
            hth_kmeans_tile tile = {.x = b->panels + i * d,
                                    .c = s->centroids + first * d,
                                    .d = d,
                                    .half = s->half + first,
                                    .first = (int32_t)first,
                                    .best = b->best + i,
                                    .label = b->label + i,
                                    .second = b->second + i};
            s->isa->nearest(&tile, last - first);
        }
    }
}

// Compares a point with all centroids in double.
static int32_t cpu_exact(const cpu_call *call, const float *x)
{
    const cpu_shard *s = call->shard;
    double least = INFINITY;
    int32_t label = 0;
    for (size_t c = 0; c < s->base.k; c++) {
        double squared = s->isa->squared(x, s->to + c * s->base.d, s->base.d);
        if (squared < least) {
            least = squared;
            label = (int32_t)c;
        }
    }
    return label;
}

// cpu_nearest finds the labels of a block.
static void cpu_nearest(const cpu_call *call, const cpu_block *b)
{
    const cpu_shard *s = call->shard;
    size_t k = s->base.k, d = s->base.d, tiles = cpu_tiles(s, k), points = s->isa->points;
    size_t n = b->end - b->begin;
    for (size_t i = 0; i < n; i += points) {
        const float *x = cpu_row(call, b->begin + i);
        size_t rows = n - i < points ? n - i : points;
        s->isa->pack(x, d, rows, s->mean, b->panels + i * d, b->norm + i);
    }
    for (size_t i = 0; i < s->block; i++) {
        b->best[i] = b->second[i] = -INFINITY;
        b->label[i] = 0;
    }
    for (size_t t0 = 0, t1; t0 < tiles; t0 = t1) {
        size_t from = k * t0 / tiles;
        for (t1 = t0 + 1; t1 < tiles && (k * (t1 + 1) / tiles - from) * d <= KMEANS_PART;) {
            t1++;
        }
        cpu_nearest_part(s, b, t0, t1);
    }
    if (k > 1) {
        s->isa->doubt(n, d, b->best, b->second, b->norm, b->doubt);
    }
    for (size_t i = 0; k > 1 && i < n; i++) {
        if (b->doubt[i] != 0) {
            b->label[i] = cpu_exact(call, cpu_row(call, b->begin + i));
        }
    }
}

static void cpu_assign_block(cpu_call *call, size_t slot, size_t begin, size_t end, float *scratch)
{
    cpu_shard *s = call->shard;
    size_t d = s->base.d, k = s->base.k;
    double *sum = s->sum + slot * k * d;
    uint64_t *count = s->count + slot * k;
    if (!s->used[slot]) {
        s->used[slot] = true;
        s->changed[slot] = 0;
        s->inertia[slot] = 0;
        if (s->add) {
            memset(sum, 0, k * d * sizeof *sum);
            memset(count, 0, k * sizeof *count);
        }
    }
    cpu_block b = cpu_block_at(s, scratch, begin, end);
    cpu_nearest(call, &b);
    for (size_t j = begin; j < end; j++) {
        uint32_t c = (uint32_t)b.label[j - begin];
        const float *x = cpu_row(call, j);
        s->changed[slot] += s->base.labels[j] != c ? 1 : 0;
        s->base.labels[j] = c;
        if (s->add) {
            s->isa->add(x, d, sum + c * d);
            count[c]++;
        } else {
            s->inertia[slot] += s->isa->squared(x, s->to + c * d, d);
        }
    }
}

void hth_kmeans_cpu_begin(hth_kmeans_shard *shard, const hth_kmeans_centroids *to, bool add)
{
    cpu_shard *s = (cpu_shard *)shard;
    s->to = to->c;
    s->mean = to->mean;
    s->add = add;
    memset(s->used, 0, s->slots * sizeof *s->used);
    cpu_pack_centroids(s, to);
}

void hth_kmeans_cpu_assign(hth_kmeans_shard *shard, const hth_kmeans_piece *piece)
{
    cpu_shard *s = (cpu_shard *)shard;
    cpu_call call = {.shard = s,
                     .piece = piece,
                     .block = cpu_assign_block,
                     .slots = s->slots,
                     .per_deal = s->dealt,
                     .at_once = s->block};
    hth_kmeans_cpu_run(&call);
}

typedef struct cpu_total {
    const cpu_shard *shard;
    hth_kmeans_sums *sums;
} cpu_total;

// Each thread adds the slots' sums of some of the centroids.
static void cpu_join(void *arg, int i, int n)
{
    const cpu_total *total = arg;
    const cpu_shard *s = total->shard;
    size_t k = s->base.k, d = s->base.d, begin, end;
    hth_team_range(k, i, n, &begin, &end);
    double *to = total->sums->sum;
    memset(to + begin * d, 0, (end - begin) * d * sizeof *to);
    memset(total->sums->count + begin, 0, (end - begin) * sizeof *s->count);
    for (size_t slot = 0; slot < s->slots; slot++) {
        const double *from = s->sum + slot * k * d;
        for (size_t j = begin * d; s->used[slot] && j < end * d; j++) {
            to[j] += from[j];
        }
        for (size_t c = begin; s->used[slot] && c < end; c++) {
            total->sums->count[c] += s->count[slot * k + c];
        }
    }
}

void hth_kmeans_cpu_end(hth_kmeans_shard *shard, hth_kmeans_sums *sums)
{
    cpu_shard *s = (cpu_shard *)shard;
    if (s->add) {
        hth_team_set(s->n_threads);
        hth_team_run(cpu_join, &(cpu_total){s, sums});
    }
    sums->changed = 0;
    sums->inertia = 0;
    for (size_t slot = 0; slot < s->slots; slot++) {
        sums->changed += s->used[slot] ? s->changed[slot] : 0;
        sums->inertia += s->used[slot] ? s->inertia[slot] : 0;
    }
}
