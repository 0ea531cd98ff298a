// SPDX-License-Identifier: Apache-2.0
// kernels/kmeans.h - K-means: k centroids with the smallest sum of squared distances from n points
// of d numbers to the nearest of them (Lloyd's algorithm).
//
// Design notes
// Points are divided into *shards*, one for each member that computes: a device, with threads of
// its own. A shard does what costs n k d, by its device's hth_kmeans_ops: it assigns its points and
// adds them up per centroid. Sums of all shards are added in the order of the shards; only then are
// centroids updated, by what is the same for all devices (kmeans.c). There is no n x k matrix.
//
// A shard's points lie in memory, or are read *piece* by piece, so that there may be more of them
// than memory holds. A *run* goes on by so many points at a time (kmeans_run.c), and can be left
// in between. How points are cut changes no bit of the result.
//
// Labels, sums, centroids and the inertia are those of double precision. Most distances are
// computed in f32, as |c|^2/2 - x c of points and centroids less the mean of all points. On the CPU
// results do not depend on the number of threads (kernels/cpu/kmeans/).
//
// All calls are made by the thread that owns the shards' device; nothing is locked.
//
// Several *members*, each with a run over all points, compute a range of them each (further below,
// kmeans_member.c): what crosses between them is a *part* of each pass, which the caller passes on.
#ifndef HTH_KERNELS_KMEANS_H
#define HTH_KERNELS_KMEANS_H

#include "device/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_KMEANS_CHUNK      4096u // points whose squared distances are one partial sum, in spread
#define HTH_KMEANS_CANDIDATES 64    // rows of spread, at most

// Points that are read when they are looked at.
typedef struct hth_kmeans_points {
    // rows has *x point to `count` points from `first`, until the next call: of one block of `most`
    // points, of which the first one begins with point 0.
    hth_err (*rows)(void *ctx, size_t first, size_t count, const float **x);
    void *ctx;
    size_t most; // a multiple of HTH_KMEANS_CHUNK
} hth_kmeans_points;

typedef struct hth_kmeans_shard {
    const struct hth_kmeans_ops *ops;
    const float *x;           // (n, d) row-major, in host memory; NULL: by `points`
    hth_kmeans_points points; // unused with x
    size_t n, d, k;
    // (n): of the last assignment; UINT32_MAX before the first, after which k-means++ has distances
    // (float) in their place while it chooses.
    uint32_t *labels;
} hth_kmeans_shard;

// Points [first, first + n) of a shard.
typedef struct hth_kmeans_piece {
    const float *x; // (n, d)
    size_t first, n;
} hth_kmeans_piece;

// Partial sums: of a shard, and of all once they are added.
typedef struct hth_kmeans_sums {
    double *sum;      // (k, d): of the points that are nearest to each centroid
    uint64_t *count;  // (k)
    uint64_t changed; // how many points have another label than before
    double inertia;   // sum of squared distances
} hth_kmeans_sums;

// What points are compared with.
typedef struct hth_kmeans_centroids {
    const double *c;   // (k, d)
    const float *mean; // (d), of all points
} hth_kmeans_centroids;

// First looks at the points, less `origin`: sums and sums of squares.
typedef struct hth_kmeans_moments {
    double *sum, *square; // (d) each
    size_t bad; // the piece's first point with a value beyond the limit, or not a number; n: none
} hth_kmeans_moments;

// What a device computes of a shard.
typedef struct hth_kmeans_ops {
    const char *name;
    hth_err (*open)(hth_device *device, const hth_kmeans_shard *shard, hth_kmeans_shard **out);
    uint64_t (*bytes)(const hth_device *device, const hth_kmeans_shard *shard); // that it takes
    void (*close)(hth_kmeans_shard *shard);
    // Adds the piece's to out->sum and out->square, and sets out->bad.
    void (*moments)(hth_kmeans_shard *shard, const hth_kmeans_piece *piece, const float *origin,
                    float limit, hth_kmeans_moments *out);
    // An assignment: begin, then assign of all points in their order, then end. Labels become the
    // nearest centroids, the first of equal ones. end fills, after `add`, sums->sum and count, else
    // sums->inertia (squared differences in double); always `changed`. What `to`
    // points to is borrowed until then.
    void (*begin)(hth_kmeans_shard *shard, const hth_kmeans_centroids *to, bool add);
    void (*assign)(hth_kmeans_shard *shard, const hth_kmeans_piece *piece);
    void (*end)(hth_kmeans_shard *shard, hth_kmeans_sums *sums);
    // Squared distances (piece->n) to the centroids of the points' labels; 0 where a label is none,
    // which others can write in the memory of a group.
    void (*distances)(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                      const double *centroids, double *squared);
    // Candidates of k-means++: with `folds` nearest[i] becomes min(nearest[i], |x[i] - rows[0]|^2);
    // then sums[j][..] gets sums of each HTH_KMEANS_CHUNK of min(nearest[i], |x[i] - rows[j]|^2),
    // for `count` rows (count, d). i is a point of the piece, which begins at a multiple of
    // HTH_KMEANS_CHUNK.
    void (*spread)(hth_kmeans_shard *shard, const hth_kmeans_piece *piece,
                   const hth_kmeans_centroids *mean, const float *rows, size_t count, bool folds,
                   float *nearest, double *const *sums);
} hth_kmeans_ops;

typedef enum hth_kmeans_init {
    HTH_KMEANS_PLUS_PLUS, // greedy k-means++: of 2 + log k points drawn the best
    HTH_KMEANS_RANDOM,    // k different points
    HTH_KMEANS_GIVEN      // `start`
} hth_kmeans_init;

typedef struct hth_kmeans {
    size_t k;
    size_t iterations; // at most
    // Stops once the centroids' squared moves add up to at most this times the mean variance of the
    // columns, or no label changes.
    double tolerance;
    hth_kmeans_init init;
    const float *start; // (k, d)
    uint64_t seed;      // same seed, points and shards: same start
} hth_kmeans;

typedef struct hth_kmeans_result {
    double *centroids; // (k, d), the caller's
    double inertia;
    size_t iterations; // that were done
    bool converged;    // false: after the last iteration that was allowed
} hth_kmeans_result;

// hth_kmeans_open makes the shard of n points on `device`. `x` (n, d) and `labels` (n, written) are
// borrowed until hth_kmeans_close. HTH_EINVAL: no points, no columns, or no centroids; HTH_ENOTSUP:
// the device has no K-means; HTH_ENOMEM.
hth_err hth_kmeans_open(hth_device *device, const float *x, size_t n, size_t d, size_t k,
                        uint32_t *labels, hth_kmeans_shard **out);
// hth_kmeans_open_points is the same for points that are read; points->ctx outlives the shard.
hth_err hth_kmeans_open_points(hth_device *device, const hth_kmeans_points *points, size_t n,
                               size_t d, size_t k, uint32_t *labels, hth_kmeans_shard **out);
// hth_kmeans_open_shared opens what `like` describes (without ops): its labels, in memory that is
// shared with other members, keep what they have.
hth_err hth_kmeans_open_shared(hth_device *device, const hth_kmeans_shard *like,
                               hth_kmeans_shard **out);
void hth_kmeans_close(hth_kmeans_shard *shard); // NULL is allowed
// hth_kmeans_bytes is the memory that a run over one shard takes on `device`, at most, with its
// labels and without its points; 0: the device has no K-means.
uint64_t hth_kmeans_bytes(const hth_device *device, const hth_kmeans *what, size_t n, size_t d);

// hth_kmeans_fit finds centroids of the points of all shards, which have the same d and k. Labels
// and inertia belong to the centroids that it returns. Empty clusters get the points that are
// farthest from their centroids, as in scikit-learn. Blocks. HTH_EINVAL, before anything is
// computed: k above the number of points, a value that is not finite or too large, a setting out of
// range; HTH_ENOMEM. On error the result is undefined, and nothing is held.
hth_err hth_kmeans_fit(const hth_kmeans *what, hth_kmeans_shard *const *shards, size_t n_shards,
                       hth_kmeans_result *result);

// ---- the same, a part at a time

typedef struct hth_kmeans_run hth_kmeans_run;
typedef enum hth_kmeans_phase {
    HTH_KMEANS_LOOKS,    // all points are looked at: their mean, and whether they are numbers
    HTH_KMEANS_SEEDS,    // k-means++: a pass over the points for each centroid
    HTH_KMEANS_ITERATES, // a pass for each iteration
    HTH_KMEANS_REFILLS,  // .. and one more where clusters are empty: the farthest points
    HTH_KMEANS_ENDS,     // labels and inertia of the last centroids
    HTH_KMEANS_DONE
} hth_kmeans_phase;
typedef struct hth_kmeans_at {
    hth_kmeans_phase phase;
    size_t iterations;   // that are done, those before a resumption included
    size_t pass, passes; // points of the present pass that are done, and that it has
    size_t seeded;       // centroids that k-means++ has chosen, before a resumption too
    double inertia;      // of the centroids before the last iteration; in the end of the last ones
    bool converged;
    const double *centroids; // (k, d) the present ones, or `seeded` of them; NULL: it has none yet
} hth_kmeans_at;

// Where a run stood that goes on.
typedef struct hth_kmeans_saved {
    const double *centroids; // (k, d)
    size_t iterations;       // that led to them
    size_t seeded;           // 0, or only so many of them, which k-means++ had chosen
    bool converged;          // no iteration follows
} hth_kmeans_saved;

// hth_kmeans_begin checks the settings. `what` and the shards are borrowed until hth_kmeans_finish;
// `saved` until this returns; NULL: it begins as what->init says. HTH_EINVAL, HTH_ENOMEM.
hth_err hth_kmeans_begin(const hth_kmeans *what, hth_kmeans_shard *const *shards, size_t n_shards,
                         const hth_kmeans_saved *saved, hth_kmeans_run **out);
// hth_kmeans_go goes on by some `points`, at most to the end of a pass. HTH_EINVAL: a value that is
// not finite or too large; HTH_ENOMEM; what reading points failed with. After an error the run can
// only be finished.
hth_err hth_kmeans_go(hth_kmeans_run *run, size_t points);
hth_kmeans_at hth_kmeans_where(const hth_kmeans_run *run);
void hth_kmeans_finish(hth_kmeans_run *run); // NULL is allowed

// ---- a member's run
// In each pass a member computes a range of points (hth_kmeans_range, hth_kmeans_go), writes what
// it found (hth_kmeans_part), and goes on with what all found (hth_kmeans_join): in the same order
// the same bits. A range can be computed again, also another one, until the pass is joined.

// hth_kmeans_member makes a run that has just begun, of one shard of all points, a member's. Labels
// are shared by all members, and so are k-means++'s distances in their place.
void hth_kmeans_member(hth_kmeans_run *run);
// hth_kmeans_range begins the present pass of points [first, first + n). `again`: labels may be of
// an attempt at this pass that was given up, so that it is no sign of the end if none changes.
// HTH_EINVAL: a range of k-means++ is not of whole chunks (HTH_KMEANS_CHUNK).
hth_err hth_kmeans_range(hth_kmeans_run *run, size_t first, size_t n, bool again);
// hth_kmeans_trial, after the range of the first look, assigns at most *points of its points, and
// stores how many, to centroids that do not count: how long that takes tells what an iteration
// will. Labels are spoilt.
hth_err hth_kmeans_trial(hth_kmeans_run *run, size_t *points);
// hth_kmeans_ranged: all of the range is computed.
bool hth_kmeans_ranged(const hth_kmeans_run *run);
// hth_kmeans_part writes at most hth_kmeans_part_bytes, aligned to 8. HTH_EIO and so on: a point
// cannot be read.
size_t hth_kmeans_part_bytes(const hth_kmeans *what, size_t n, size_t d);
hth_err hth_kmeans_part(hth_kmeans_run *run, void *part);
// hth_kmeans_join ends the pass with the parts of all who had points of it, in their order.
// HTH_ECORRUPT: they are of no run like this; HTH_ENOMEM.
hth_err hth_kmeans_join(hth_kmeans_run *run, const void *const *parts, size_t n_parts);
// Between two passes a run's state can be written (aligned to 8), and another member's run go on
// from it. HTH_ECORRUPT, HTH_ENOMEM.
size_t hth_kmeans_state_bytes(const hth_kmeans *what, size_t n, size_t d);
void hth_kmeans_state_write(const hth_kmeans_run *run, void *state);
hth_err hth_kmeans_state_read(hth_kmeans_run *run, const void *state);

#endif
