// SPDX-License-Identifier: Apache-2.0
// K-means on the CPU: one pass over the points does everything while a block of them is in the
// second-level cache: turn, compare, add up.
//
// Points are dealt to *slots*, some 1000 at a time, by their number alone. A thread takes the next
// slot that nobody has begun; each slot has sums of its own, which are added in the order of the
// slots: the bits depend neither on threads nor on how a pass is cut into pieces. Where sums of
// many slots would take more than KMEANS_MOST_BYTES there are fewer, but as many as threads; beyond
// KMEANS_SLOTS_LEAST threads the bits are the same for the same number of them.
#include "kernels/cpu/kmeans/kmeans_cpu_impl.h"

#include "base/alloc.h"
#include "base/isa.h"
#include "device/cpu/team.h"

#include <string.h>

#define KMEANS_SLOTS       64
#define KMEANS_SLOTS_LEAST 8
#define KMEANS_SLOT_LEAST  1024 // points
#define KMEANS_DEALT       1024 // points that are dealt together, at most
#define KMEANS_MOST_BYTES  ((size_t)32 << 20)
#define KMEANS_BLOCK       ((size_t)32 << 10) // floats of a block's panels

// cpu_slot has its blocks in the piece done, beginning with the first one.
static void cpu_slot(cpu_call *call, size_t slot, float *scratch)
{
    size_t first = call->piece->first, end = first + call->piece->n, per = call->per_deal;
    size_t block = first / per, skip = (slot + call->slots - block % call->slots) % call->slots;
    for (size_t b = block + skip; b * per < end; b += call->slots) {
        size_t from = b * per > first ? b * per : first;
        size_t to = (b + 1) * per < end ? (b + 1) * per : end;
        for (size_t at = from; at < to; at += call->at_once) {
            call->block(call, slot, at, to - at < call->at_once ? to : at + call->at_once, scratch);
        }
    }
}

static void cpu_work(void *arg, int i, int n)
{
    cpu_call *call = arg;
    float *scratch = call->shard->scratch + (size_t)i * call->shard->scratch_floats;
    for (size_t slot; (slot = atomic_fetch_add(&call->next, 1)) < call->slots;) {
        cpu_slot(call, slot, scratch);
    }
}

void hth_kmeans_cpu_run(cpu_call *call)
{
    hth_team_set(call->shard->n_threads);
    hth_team_run(cpu_work, call);
}

static void cpu_close(hth_kmeans_shard *shard)
{
    cpu_shard *s = (cpu_shard *)shard;
    hth_free(s->sum);
    hth_free(s->count);
    hth_free(s->changed);
    hth_free(s->inertia);
    hth_free(s->used);
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

static size_t cpu_at_most(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t cpu_at_least(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void cpu_divide(cpu_shard *s)
{
    size_t points = s->isa->points, n = s->base.n, d = s->base.d;
    size_t threads = (size_t)s->n_threads;
    size_t most = KMEANS_MOST_BYTES / (s->base.k * (d + 1) * sizeof(double));
    most = cpu_at_least(cpu_at_most(most, KMEANS_SLOTS), cpu_at_least(KMEANS_SLOTS_LEAST, threads));
    s->slots = cpu_at_least(cpu_at_most(n / KMEANS_SLOT_LEAST, most), 1);
    s->block = cpu_at_least(KMEANS_BLOCK / d / points * points, points);
    s->block = cpu_at_most(s->block, KMEANS_DEALT);
    s->dealt = KMEANS_DEALT / s->block * s->block;
    s->scratch_floats = (s->block * (d + 5) + s->isa->most * points + 15) / 16 * 16;
}

// Centroids of an assignment, or of candidates.
static size_t cpu_held(const cpu_shard *s)
{
    return cpu_at_least(s->base.k, HTH_KMEANS_CANDIDATES) * s->base.d;
}

static uint64_t cpu_bytes(const hth_device *device, const hth_kmeans_shard *shard)
{
    cpu_shard s = {.base = *shard, .isa = cpu_isa(), .n_threads = device->props.n_threads};
    cpu_divide(&s);
    uint64_t slot = shard->k * (shard->d + 1) * sizeof(double) + 2 * shard->d * sizeof(double);
    return s.slots * slot + (cpu_held(&s) + shard->k) * sizeof(float) +
           (uint64_t)s.n_threads * s.scratch_floats * sizeof(float);
}

static hth_err cpu_open(hth_device *device, const hth_kmeans_shard *shard, hth_kmeans_shard **out)
{
    cpu_shard *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("K-means of %zu points", shard->n);
    }
    *s = (cpu_shard){.base = *shard, .isa = cpu_isa(), .n_threads = device->props.n_threads};
    size_t k = shard->k, d = shard->d;
    cpu_divide(s);
    s->sum = hth_alloc_large(s->slots * k * d * sizeof *s->sum);
    s->count = hth_calloc(s->slots * k, sizeof *s->count);
    s->changed = hth_calloc(s->slots, sizeof *s->changed);
    s->inertia = hth_calloc(s->slots, sizeof *s->inertia);
    s->used = hth_calloc(s->slots, sizeof *s->used);
    s->centroids = hth_alloc_aligned(cpu_held(s) * sizeof *s->centroids, 64);
    s->half = hth_calloc(k, sizeof *s->half);
    s->scratch =
        hth_alloc_aligned((size_t)s->n_threads * s->scratch_floats * sizeof *s->scratch, 64);
    s->moments = hth_calloc(s->slots * 2 * d, sizeof *s->moments);
    s->bad = hth_calloc(s->slots, sizeof *s->bad);
    if (s->sum == NULL || s->count == NULL || s->changed == NULL || s->inertia == NULL ||
        s->used == NULL || s->centroids == NULL || s->half == NULL || s->scratch == NULL ||
        s->moments == NULL || s->bad == NULL) {
        cpu_close(&s->base);
        return hth_no_memory("K-means' %zu centroids of %zu columns", k, d);
    }
    *out = &s->base;
    return HTH_OK;
}

const hth_kmeans_ops hth_kmeans_cpu = {.name = "cpu",
                                       .open = cpu_open,
                                       .bytes = cpu_bytes,
                                       .close = cpu_close,
                                       .moments = hth_kmeans_cpu_moments,
                                       .begin = hth_kmeans_cpu_begin,
                                       .assign = hth_kmeans_cpu_assign,
                                       .end = hth_kmeans_cpu_end,
                                       .distances = hth_kmeans_cpu_distances,
                                       .spread = hth_kmeans_cpu_spread};
