// SPDX-License-Identifier: Apache-2.0
// kernels/kmeans_impl.h - what the files of kernels/kmeans*.c share.
#ifndef HTH_KERNELS_KMEANS_IMPL_H
#define HTH_KERNELS_KMEANS_IMPL_H

#include "kernels/kmeans.h"

// What k-means++ knows while it chooses.
typedef struct kmeans_seeds {
    size_t tries, chunks;               // chunks: of all shards
    size_t c, count;                    // the centroid that is chosen in this pass; of so many rows
    bool folds;                         // row 0 is the centroid before, which no distance has yet
    double *sum[HTH_KMEANS_CANDIDATES]; // (chunks) each, of a row's pass
    double *sums, *now;                 // (1 + tries, chunks); now: (chunks), of the distances
    float *rows;                        // (1 + tries, d)
    float *drawn;                       // (HTH_KMEANS_CHUNK) distances of a chunk
    double total;                       // of all distances
} kmeans_seeds;

// A point that is far from its centroid.
typedef struct kmeans_far {
    double squared;
    size_t row; // among all points; SIZE_MAX: there is none
    uint32_t label;
    const float *x; // (d); NULL: to be read
} kmeans_far;

// A pass goes over all points of all shards, or over a member's range of its one shard; `shard` and
// `point` are where it is.
struct hth_kmeans_run {
    const hth_kmeans *what;
    hth_kmeans_shard *const *shards;
    size_t n_shards, n, d, k; // n: points of all shards
    hth_kmeans_phase phase;
    size_t shard, point, passed; // passed: points of the pass that are done
    bool member, again;
    size_t from, range;       // a member's: its first point, and how many
    float *mean;              // (d)
    double *exact;            // (d) the mean in double
    double variance;          // of a column, in the mean
    float *origin;            // (d) the first point
    double *moments;          // (2, d) sums and sums of squares
    double *memory;           // of all that is (k, d)
    double *centroids, *next; // (k, d)
    hth_kmeans_sums all, part;
    kmeans_far *far;     // a heap of the farthest points; NULL: no cluster is empty
    size_t n_far;        // .. at most
    kmeans_seeds *seeds; // NULL: no k-means++, or it is over
    size_t draws;        // random numbers so far
    size_t replayed;     // centroids that k-means++ chose before the run was left
    bool saved;          // it goes on with centroids that there are
    size_t iterations;
    double inertia;
    bool converged;
};

// kmeans_rows has *x point to `count` points of shard `m`, from `first`, until the next call.
hth_err kmeans_rows(const hth_kmeans_run *run, size_t m, size_t first, size_t count,
                    const float **x);
// kmeans_row does so with point `i` of all.
hth_err kmeans_row(const hth_kmeans_run *run, size_t i, const float **x);
// kmeans_bad says what is wrong with a point of that number; HTH_EINVAL.
hth_err kmeans_bad(const char *what, size_t row, const float *x, size_t d);
// kmeans_limit is the largest value whose squared distances stay finite in f32, with d columns.
float kmeans_limit(size_t d);

// kmeans_joined goes on after a pass whose sums are those of all points.
hth_err kmeans_joined(hth_kmeans_run *run);
// kmeans_begin_pass begins a pass of the present phase, of all points or of the member's range.
void kmeans_begin_pass(hth_kmeans_run *run);

// kmeans_chunks is how many chunks a shard has; kmeans_nearest the squared distances of its points
// from the nearest centroid, but for the newest one (seeds->folds).
static inline size_t kmeans_chunks(const hth_kmeans_shard *shard)
{
    return (shard->n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK;
}

static inline float *kmeans_nearest(const hth_kmeans_shard *shard)
{
    return (float *)(void *)shard->labels;
}

// kmeans_draw.c: a number in [0, 1) of 53 random bits; any point; and one that is drawn, with
// chances as its distance.
double kmeans_uniform(hth_kmeans_run *run);
size_t kmeans_any(hth_kmeans_run *run);
hth_err kmeans_draw(hth_kmeans_run *run, size_t *point);

// kmeans_seed begins: it sets run->centroids, or opens run->seeds, whose passes follow.
hth_err kmeans_seed(hth_kmeans_run *run);
// kmeans_seed_piece takes part of a pass; kmeans_seed_passed ends it, *over after the last one.
void kmeans_seed_piece(hth_kmeans_run *run, const hth_kmeans_piece *piece);
hth_err kmeans_seed_passed(hth_kmeans_run *run, bool *over);
void kmeans_seed_close(kmeans_seeds *seeds); // NULL is allowed
size_t kmeans_seeded(const hth_kmeans_run *run);
// kmeans_seed_bytes is what k-means++ takes.
uint64_t kmeans_seed_bytes(size_t n, size_t d, size_t k);

// What crosses between members: a part of a pass, whose sums are joined; and the state between two
// passes, but for the distances, which all share.
size_t kmeans_seed_part_bytes(size_t n, size_t k);
void kmeans_seed_part(const hth_kmeans_run *run, double *part);
void kmeans_seed_join(hth_kmeans_run *run, const void *const *parts, size_t n_parts);
size_t kmeans_seed_state_bytes(size_t n, size_t d, size_t k);
void kmeans_seed_write(const hth_kmeans_run *run, void *state);
hth_err kmeans_seed_read(hth_kmeans_run *run, const void *state);

// kmeans_empty counts the clusters without points in run->all.
size_t kmeans_empty(const hth_kmeans_run *run);
// kmeans_far_open makes run->far ready for so many empty clusters; a pass fills it piece by piece,
// and kmeans_far_sort brings the farthest first. HTH_ENOMEM.
hth_err kmeans_far_open(hth_kmeans_run *run, size_t empty);
void kmeans_far_begin(hth_kmeans_run *run);
hth_err kmeans_far_piece(hth_kmeans_run *run, const hth_kmeans_piece *piece);
void kmeans_far_sort(kmeans_far *far, size_t n);
// kmeans_refill has empty clusters take points of far[0 .. n), which is sorted: each the farthest
// that is left, away from a cluster that has others. Where all points lie on their centroids a
// cluster stays where it was.
hth_err kmeans_refill(hth_kmeans_run *run, const kmeans_far *far, size_t n);
// kmeans_collect adds up what the shards found in an assignment, kmeans_ends in the last one.
void kmeans_collect(hth_kmeans_run *run);
void kmeans_ends(hth_kmeans_run *run);
// kmeans_summed follows an assignment whose sums are those of all points: kmeans_update, or where
// clusters are empty another pass before that. HTH_ENOMEM.
hth_err kmeans_summed(hth_kmeans_run *run);
// kmeans_update moves the centroids, which ends an iteration.
void kmeans_update(hth_kmeans_run *run);

#endif
