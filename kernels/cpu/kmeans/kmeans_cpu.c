// SPDX-License-Identifier: Apache-2.0
// K-means on the CPU: one pass over the points does everything while a block of them is in the
// second-level cache: turn, compare, add up.
//
// Points are divided into *slots*, by their number alone. A thread takes the next slot that nobody
// has begun; each slot has sums of its own, which are added in the order of the slots: the bits do
// not depend on threads. Where sums of all slots would take more than KMEANS_MOST_BYTES there are
// as many slots as threads, and the bits are the same for the same number of threads.
//
// Centroids, less the mean, lie tile by tile: (d, centroids of the tile). Those of a part that
// leaves room in the cache meet all panels of a block before the next part does.
#include "kernels/cpu/kmeans/kmeans_cpu.h"

#include "base/alloc.h"
#include "base/isa.h"
#include "device/cpu/team.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define KMEANS_SLOTS      64
#define KMEANS_SLOT_LEAST 1024 // points
#define KMEANS_MOST_BYTES ((size_t)64 << 20)
#define KMEANS_BLOCK      ((size_t)32 << 10) // floats of a block's panels
#define KMEANS_PART       ((size_t)96 << 10) // floats of a part of the centroids

typedef struct cpu_shard {
    hth_kmeans_shard base;
    const hth_kmeans_isa *isa;
    int n_threads;
    size_t slots, block; // block: points
    double *sum;         // (slots, k, d)
    uint64_t *count;     // (slots, k)
    uint64_t *changed;   // (slots)
    double *inertia;     // (slots)
    float *centroids, *half;
    float *scratch; // of each thread: cpu_block's
    size_t scratch_floats;
    double *moments; // (slots, 2, d)
    size_t *bad;     // (slots)
} cpu_shard;

// What a team does slot by slot.
typedef struct cpu_call {
    cpu_shard *shard;
    void (*slot)(struct cpu_call *call, size_t slot, float *scratch);
    size_t slots, per_slot; // per_slot: points of each but the last; 0: evenly
    atomic_size_t next;
    const float *mean, *origin, *nearest;
    const double *centroids; // (k, d)
    hth_kmeans_sums *sums;
    float limit;
    double *squared, *chunk_sums;
    size_t candidates;
    float *const *columns;
} cpu_call;

static void cpu_work(void *arg, int i, int n)
{
    cpu_call *call = arg;
    float *scratch = call->shard->scratch + (size_t)i * call->shard->scratch_floats;
    for (size_t slot; (slot = atomic_fetch_add(&call->next, 1)) < call->slots;) {
        call->slot(call, slot, scratch);
    }
}

static void cpu_slots(cpu_call *call)
{
    hth_team_set(call->shard->n_threads);
    hth_team_run(cpu_work, call);
}

static void cpu_range(const cpu_call *call, size_t slot, size_t *begin, size_t *end)
{
    size_t n = call->shard->base.n;
    if (call->per_slot == 0) {
        hth_team_range(n, (int)slot, (int)call->slots, begin, end);
        return;
    }
    *begin = slot * call->per_slot;
    *end = *begin + call->per_slot < n ? *begin + call->per_slot : n;
}

static void cpu_moments_slot(cpu_call *call, size_t slot, float *scratch)
{
    cpu_shard *s = call->shard;
    size_t d = s->base.d, begin, end;
    double *sum = s->moments + slot * 2 * d;
    uint32_t limit;
    memcpy(&limit, &call->limit, sizeof limit);
    cpu_range(call, slot, &begin, &end);
    memset(sum, 0, 2 * d * sizeof *sum);
    s->bad[slot] = s->base.n;
    for (size_t i = begin; i < end; i++) {
        if (s->isa->moments(s->base.x + i * d, d, call->origin, sum, sum + d) > limit) {
            s->bad[slot] = i;
            return;
        }
    }
}

static void cpu_moments(hth_kmeans_shard *shard, const float *origin, float limit,
                        hth_kmeans_moments *out)
{
    cpu_shard *s = (cpu_shard *)shard;
    cpu_call call = {
        .shard = s, .slot = cpu_moments_slot, .origin = origin, .limit = limit, .slots = s->slots};
    cpu_slots(&call);
    memset(out->sum, 0, shard->d * sizeof *out->sum);
    memset(out->square, 0, shard->d * sizeof *out->square);
    out->bad = shard->n;
    for (size_t slot = 0; slot < s->slots; slot++) {
        const double *part = s->moments + slot * 2 * shard->d;
        for (size_t p = 0; p < shard->d; p++) {
            out->sum[p] += part[p];
            out->square[p] += part[shard->d + p];
        }
        out->bad = s->bad[slot] < out->bad ? s->bad[slot] : out->bad;
    }
}

// Tile t of `tiles` has centroids [k t / tiles, k (t + 1) / tiles).
static size_t cpu_tiles(const cpu_shard *s, size_t k)
{
    return (k + s->isa->most - 1) / s->isa->most;
}

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
        double squared = s->isa->squared(x, call->centroids + c * s->base.d, s->base.d);
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
        const float *x = s->base.x + (b->begin + i) * d;
        size_t rows = n - i < points ? n - i : points;
        s->isa->pack(x, d, rows, call->mean, b->panels + i * d, b->norm + i);
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
            b->label[i] = cpu_exact(call, s->base.x + (b->begin + i) * d);
        }
    }
}

static void cpu_assign_slot(cpu_call *call, size_t slot, float *scratch)
{
    cpu_shard *s = call->shard;
    size_t d = s->base.d, k = s->base.k, begin, end;
    bool add = call->sums->sum != NULL;
    double *sum = s->sum + slot * k * d, inertia = 0;
    uint64_t *count = s->count + slot * k, changed = 0;
    if (add) {
        memset(sum, 0, k * d * sizeof *sum);
        memset(count, 0, k * sizeof *count);
    }
    cpu_range(call, slot, &begin, &end);
    for (size_t i = begin; i < end; i += s->block) {
        cpu_block b = cpu_block_at(s, scratch, i, end - i < s->block ? end : i + s->block);
        cpu_nearest(call, &b);
        for (size_t j = i; j < b.end; j++) {
            uint32_t c = (uint32_t)b.label[j - i];
            const float *x = s->base.x + j * d;
            changed += s->base.labels[j] != c ? 1 : 0;
            s->base.labels[j] = c;
            if (add) {
                s->isa->add(x, d, sum + c * d);
                count[c]++;
            } else {
                inertia += s->isa->squared(x, call->centroids + c * d, d);
            }
        }
    }
    s->changed[slot] = changed;
    s->inertia[slot] = inertia;
}

// Each thread adds the slots' sums of some of the centroids.
static void cpu_join(void *arg, int i, int n)
{
    const cpu_call *call = arg;
    const cpu_shard *s = call->shard;
    size_t k = s->base.k, d = s->base.d, begin, end;
    hth_team_range(k, i, n, &begin, &end);
    double *to = call->sums->sum;
    memcpy(to + begin * d, s->sum + begin * d, (end - begin) * d * sizeof *to);
    memcpy(call->sums->count + begin, s->count + begin, (end - begin) * sizeof *s->count);
    for (size_t slot = 1; slot < s->slots; slot++) {
        const double *from = s->sum + slot * k * d;
        for (size_t j = begin * d; j < end * d; j++) {
            to[j] += from[j];
        }
        for (size_t c = begin; c < end; c++) {
            call->sums->count[c] += s->count[slot * k + c];
        }
    }
}

static void cpu_assign(hth_kmeans_shard *shard, const hth_kmeans_centroids *to,
                       hth_kmeans_sums *sums)
{
    cpu_shard *s = (cpu_shard *)shard;
    cpu_call call = {.shard = s,
                     .slot = cpu_assign_slot,
                     .slots = s->slots,
                     .mean = to->mean,
                     .centroids = to->c,
                     .sums = sums};
    cpu_pack_centroids(s, to);
    cpu_slots(&call);
    if (sums->sum != NULL) {
        hth_team_run(cpu_join, &call);
    }
    sums->changed = 0;
    sums->inertia = 0;
    for (size_t slot = 0; slot < s->slots; slot++) {
        sums->changed += s->changed[slot];
        sums->inertia += s->inertia[slot];
    }
}

static void cpu_distances_slot(cpu_call *call, size_t slot, float *scratch)
{
    const cpu_shard *s = call->shard;
    size_t d = s->base.d, begin, end;
    cpu_range(call, slot, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const double *c = call->centroids + s->base.labels[i] * d;
        call->squared[i] = s->isa->squared(s->base.x + i * d, c, d);
    }
}

static void cpu_distances(hth_kmeans_shard *shard, const double *centroids, double *squared)
{
    cpu_shard *s = (cpu_shard *)shard;
    cpu_call call = {.shard = s,
                     .slot = cpu_distances_slot,
                     .slots = s->slots,
                     .centroids = centroids,
                     .squared = squared};
    cpu_slots(&call);
}

// A panel's distances become minima; returns their sum, in eight lanes.
static double cpu_minima(const float *squared, const float *nearest, size_t rows, float *column)
{
    double lanes[8] = {0}, sum = 0;
    for (size_t i = 0; i < rows; i++) {
        column[i] = squared[i] < nearest[i] ? squared[i] : nearest[i];
        lanes[i % 8] += (double)column[i];
    }
    for (int l = 0; l < 8; l++) {
        sum += lanes[l];
    }
    return sum;
}

static void cpu_spread_slot(cpu_call *call, size_t slot, float *panel)
{
    const cpu_shard *s = call->shard;
    size_t d = s->base.d, k = call->candidates, tiles = cpu_tiles(s, k), begin, end;
    float *norm = panel + s->block * d, *out = norm + s->block;
    double sum[HTH_KMEANS_CANDIDATES] = {0};
    cpu_range(call, slot, &begin, &end);
    for (size_t i = begin; i < end; i += s->isa->points) {
        size_t rows = end - i < s->isa->points ? end - i : s->isa->points;
        s->isa->pack(s->base.x + i * d, d, rows, call->mean, panel, norm);
        for (size_t t = 0; t < tiles; t++) {
            size_t first = k * t / tiles, last = k * (t + 1) / tiles;
            hth_kmeans_tile tile = {
                .x = panel, .c = call->shard->centroids + first * d, .d = d, .out = out};
            s->isa->spread(&tile, last - first);
            for (size_t j = first; j < last; j++) {
                const float *squared = out + (j - first) * s->isa->points;
                sum[j] += cpu_minima(squared, call->nearest + i, rows, call->columns[j] + i);
            }
        }
    }
    for (size_t j = 0; j < k; j++) {
        call->chunk_sums[j * call->slots + slot] = sum[j];
    }
}

static void cpu_spread(hth_kmeans_shard *shard, const hth_kmeans_centroids *mean, const float *rows,
                       size_t count, const float *nearest, float *const *columns, double *sums)
{
    cpu_shard *s = (cpu_shard *)shard;
    size_t d = shard->d, tiles = cpu_tiles(s, count);
    cpu_call call = {.shard = s,
                     .slot = cpu_spread_slot,
                     .slots = (shard->n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK,
                     .per_slot = HTH_KMEANS_CHUNK,
                     .mean = mean->mean,
                     .nearest = nearest,
                     .chunk_sums = sums,
                     .candidates = count,
                     .columns = columns};
    for (size_t t = 0; t < tiles; t++) {
        size_t first = count * t / tiles, last = count * (t + 1) / tiles;
        for (size_t c = first; c < last; c++) {
            for (size_t p = 0; p < d; p++) {
                float *to = s->centroids + first * d + p * (last - first) + c - first;
                *to = rows[c * d + p] - mean->mean[p];
            }
        }
    }
    cpu_slots(&call);
}

static void cpu_close(hth_kmeans_shard *shard)
{
    cpu_shard *s = (cpu_shard *)shard;
    hth_free(s->sum);
    hth_free(s->count);
    hth_free(s->changed);
    hth_free(s->inertia);
    hth_free(s->centroids);
    hth_free(s->half);
    hth_free(s->scratch);
    hth_free(s->moments);
    hth_free(s->bad);
    hth_free(s);
}

static const hth_kmeans_isa *cpu_isa(void)
{
    int bytes = hth_isa_bytes();
    if (bytes >= 64) {
        return &hth_kmeans_avx512;
    }
    return bytes >= 32 ? &hth_kmeans_avx2 : &hth_kmeans_sse2;
}

static void cpu_divide(cpu_shard *s)
{
    size_t points = s->isa->points, n = s->base.n, d = s->base.d;
    size_t threads = (size_t)s->n_threads, most = KMEANS_SLOTS;
    if (s->base.k * (d + 1) > KMEANS_MOST_BYTES / sizeof(double) / KMEANS_SLOTS || threads > most) {
        most = threads;
    }
    s->slots = n / KMEANS_SLOT_LEAST < most ? n / KMEANS_SLOT_LEAST : most;
    s->slots = s->slots < 1 ? 1 : s->slots;
    s->block = KMEANS_BLOCK / d / points * points;
    s->block = s->block < points ? points : s->block;
    s->block = s->block > KMEANS_SLOT_LEAST ? KMEANS_SLOT_LEAST : s->block;
    s->scratch_floats = (s->block * (d + 5) + s->isa->most * points + 15) / 16 * 16;
}

static hth_err cpu_open(hth_device *device, const hth_kmeans_shard *shard, hth_kmeans_shard **out)
{
    cpu_shard *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("K-means of %zu points", shard->n);
    }
    *s = (cpu_shard){.base = *shard, .isa = cpu_isa(), .n_threads = device->props.n_threads};
    size_t k = shard->k, d = shard->d,
           held = (k > HTH_KMEANS_CANDIDATES ? k : HTH_KMEANS_CANDIDATES) * d;
    cpu_divide(s);
    s->sum = hth_alloc_large(s->slots * k * d * sizeof *s->sum);
    s->count = hth_calloc(s->slots * k, sizeof *s->count);
    s->changed = hth_calloc(s->slots, sizeof *s->changed);
    s->inertia = hth_calloc(s->slots, sizeof *s->inertia);
    s->centroids = hth_alloc_aligned(held * sizeof *s->centroids, 64);
    s->half = hth_calloc(k, sizeof *s->half);
    s->scratch =
        hth_alloc_aligned((size_t)s->n_threads * s->scratch_floats * sizeof *s->scratch, 64);
    s->moments = hth_calloc(s->slots * 2 * d, sizeof *s->moments);
    s->bad = hth_calloc(s->slots, sizeof *s->bad);
    if (s->sum == NULL || s->count == NULL || s->changed == NULL || s->inertia == NULL ||
        s->centroids == NULL || s->half == NULL || s->scratch == NULL || s->moments == NULL ||
        s->bad == NULL) {
        cpu_close(&s->base);
        return hth_no_memory("K-means' %zu centroids of %zu columns", k, d);
    }
    *out = &s->base;
    return HTH_OK;
}

const hth_kmeans_ops hth_kmeans_cpu = {.name = "cpu",
                                       .open = cpu_open,
                                       .close = cpu_close,
                                       .moments = cpu_moments,
                                       .assign = cpu_assign,
                                       .distances = cpu_distances,
                                       .spread = cpu_spread};
