// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/kmeans/kmeans_cpu_impl.h - a shard on the CPU, and how a team of threads goes over a
// piece of its points: shared by kmeans_cpu*.c.
#ifndef HTH_KERNELS_CPU_KMEANS_KMEANS_CPU_IMPL_H
#define HTH_KERNELS_CPU_KMEANS_KMEANS_CPU_IMPL_H

#include "kernels/cpu/kmeans/kmeans_cpu.h"

#include <stdatomic.h>

typedef struct cpu_shard {
    hth_kmeans_shard base;
    const hth_kmeans_isa *isa;
    int n_threads;
    size_t slots, dealt, block; // points that are dealt together, and of a block
    double *sum;                // (slots, k, d)
    uint64_t *count;            // (slots, k)
    uint64_t *changed;          // (slots)
    double *inertia;            // (slots)
    bool *used;                 // (slots) it has sums of this assignment
    float *centroids, *half;
    float *scratch; // of each thread: cpu_block's
    size_t scratch_floats;
    double *moments; // (slots, 2, d)
    size_t *bad;     // (slots)
    // of the assignment at work
    const double *to; // (k, d)
    const float *mean;
    bool add;
} cpu_shard;

// What a team does with a piece. Points are dealt to slots, by their number in the shard: of each
// `per_deal` of them the b-th are slot b mod `slots`'s. A task takes all of a slot's points in the
// piece, in their order.
typedef struct cpu_call {
    cpu_shard *shard;
    const hth_kmeans_piece *piece;
    // points [begin, end) of the shard, at most at_once, which are dealt together
    void (*block)(struct cpu_call *call, size_t slot, size_t begin, size_t end, float *scratch);
    size_t slots, per_deal, at_once;
    atomic_size_t next;
    const float *mean, *origin;
    const double *centroids; // (k, d)
    float limit;
    double *squared, *const *chunk_sums;
    size_t candidates;
    bool folds;
    float *nearest; // of the piece
} cpu_call;

// hth_kmeans_cpu_run has a team do what `call` says.
void hth_kmeans_cpu_run(cpu_call *call);

// cpu_row is point `i` of the shard, which lies in the piece.
static inline const float *cpu_row(const cpu_call *call, size_t i)
{
    return call->piece->x + (i - call->piece->first) * call->shard->base.d;
}

// Tile t of `tiles` has centroids [k t / tiles, k (t + 1) / tiles).
static inline size_t cpu_tiles(const cpu_shard *shard, size_t k)
{
    return (k + shard->isa->most - 1) / shard->isa->most;
}

// kmeans_cpu_assign.c
void hth_kmeans_cpu_begin(hth_kmeans_shard *shard, const hth_kmeans_centroids *to, bool add);
void hth_kmeans_cpu_assign(hth_kmeans_shard *shard, const hth_kmeans_piece *piece);
void hth_kmeans_cpu_end(hth_kmeans_shard *shard, hth_kmeans_sums *sums);

// kmeans_cpu_spread.c
void hth_kmeans_cpu_moments(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                            const float *origin, float limit, hth_kmeans_moments *out);
void hth_kmeans_cpu_distances(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                              const double *centroids, double *squared);
void hth_kmeans_cpu_spread(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                           const hth_kmeans_centroids *mean, const float *rows, size_t count,
                           bool folds, float *nearest, double *const *sums);

#endif
