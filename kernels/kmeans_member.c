// SPDX-License-Identifier: Apache-2.0
// A run whose points are computed by several members, each with a range of them in each pass. All
// add up the same parts in the same order, and so take the same way through the algorithm.
//
// What is read of a part or a state that decides an address is checked: other processes write it.
#include "kernels/kmeans_impl.h"

#include "base/alloc.h"

#include <string.h>

void hth_kmeans_member(hth_kmeans_run *run)
{
    run->member = true;
}

bool hth_kmeans_ranged(const hth_kmeans_run *run)
{
    return run->passed == run->range;
}

hth_err hth_kmeans_range(hth_kmeans_run *run, size_t first, size_t n, bool again)
{
    if (first > run->n || n > run->n - first) {
        return hth_fail(HTH_ECORRUPT, "points %zu to %zu are not in a shard of %zu", first,
                        first + n, run->n);
    }
    bool whole =
        first % HTH_KMEANS_CHUNK == 0 && (n % HTH_KMEANS_CHUNK == 0 || first + n == run->n);
    if (run->phase == HTH_KMEANS_SEEDS && n > 0 && !whole) {
        return hth_fail(HTH_EINVAL, "points %zu to %zu are no whole chunks of %u", first, first + n,
                        HTH_KMEANS_CHUNK);
    }
    run->from = first;
    run->range = n;
    run->again = again;
    if (run->phase == HTH_KMEANS_LOOKS) {
        const float *x;
        HTH_TRY(kmeans_row(run, 0, &x));
        memcpy(run->origin, x, run->d * sizeof *x);
    }
    kmeans_begin_pass(run);
    return HTH_OK;
}

// Centroids are points: as many times are compared in double as with others.
hth_err hth_kmeans_trial(hth_kmeans_run *run, size_t *points)
{
    hth_kmeans_shard *shard = run->shards[0];
    const hth_kmeans_centroids to = {run->next, run->origin};
    hth_kmeans_piece piece = {.first = run->from, .n = *points < run->range ? *points : run->range};
    if (shard->x == NULL) {
        size_t rest = shard->points.most - run->from % shard->points.most;
        piece.n = piece.n < rest ? piece.n : rest;
    }
    HTH_TRY(kmeans_rows(run, 0, piece.first, piece.n, &piece.x));
    for (size_t c = 0; c < run->k; c++) {
        const float *x = piece.x + c % piece.n * run->d;
        for (size_t j = 0; j < run->d; j++) {
            run->next[c * run->d + j] = (double)x[j] + (double)(c / piece.n);
        }
    }
    shard->ops->begin(shard, &to, true);
    shard->ops->assign(shard, &piece);
    *points = piece.n;
    return HTH_OK;
}

// ---- parts

// What a pass leaves, by its phase: moments (2, d); sums of candidates (kmeans_seed.c); part_sums;
// part_far; the inertia.
typedef struct part_sums {
    double *sum;     // (k, d)
    uint64_t *count; // (k)
    uint64_t *changed;
} part_sums;

typedef struct part_far {
    double squared;
    uint64_t row, label;
} part_far;

typedef struct part_fars {
    uint64_t *n; // of at most 2 k
    part_far *far;
    float *x; // (n, d)
} part_fars;

size_t hth_kmeans_part_bytes(const hth_kmeans *what, size_t n, size_t d)
{
    size_t k = what->k, seeds = kmeans_seed_part_bytes(n, k);
    size_t moments = 2 * d * sizeof(double);
    size_t sums = sizeof(uint64_t) * (1 + k) + k * d * sizeof(double);
    size_t far = sizeof(uint64_t) + 2 * k * (sizeof(part_far) + d * sizeof(float));
    size_t most = sums > far ? sums : far;
    most = what->init == HTH_KMEANS_PLUS_PLUS && seeds > most ? seeds : most;
    return ((most > moments ? most : moments) + 7) / 8 * 8;
}

static part_sums part_sums_at(const hth_kmeans_run *run, void *part)
{
    uint64_t *word = part;
    return (part_sums){(double *)(void *)(word + 1 + run->k), word + 1, word};
}

static part_fars part_fars_at(const hth_kmeans_run *run, void *part)
{
    uint64_t *word = part;
    part_far *far = (part_far *)(void *)(word + 1);
    return (part_fars){word, far, (float *)(void *)(far + 2 * run->k)};
}

static void sums_write(hth_kmeans_run *run, void *part)
{
    part_sums to = part_sums_at(run, part);
    kmeans_collect(run);
    memcpy(to.sum, run->all.sum, run->k * run->d * sizeof *to.sum);
    memcpy(to.count, run->all.count, run->k * sizeof *to.count);
    *to.changed = run->all.changed + (run->again ? 1 : 0);
}

static hth_err fars_write(hth_kmeans_run *run, void *part)
{
    part_fars to = part_fars_at(run, part);
    *to.n = 0;
    kmeans_far_sort(run->far, run->n_far);
    for (size_t i = 0; i < run->n_far && run->far[i].row != SIZE_MAX; i++) {
        const float *x;
        HTH_TRY(kmeans_row(run, run->far[i].row, &x));
        memcpy(to.x + i * run->d, x, run->d * sizeof *x);
        to.far[i] = (part_far){run->far[i].squared, run->far[i].row, run->far[i].label};
        ++*to.n;
    }
    return HTH_OK;
}

hth_err hth_kmeans_part(hth_kmeans_run *run, void *part)
{
    switch (run->phase) {
    case HTH_KMEANS_LOOKS:
        memcpy(part, run->moments, 2 * run->d * sizeof(double));
        return HTH_OK;
    case HTH_KMEANS_SEEDS:
        kmeans_seed_part(run, part);
        return HTH_OK;
    case HTH_KMEANS_ITERATES:
        sums_write(run, part);
        return HTH_OK;
    case HTH_KMEANS_REFILLS:
        return fars_write(run, part);
    case HTH_KMEANS_ENDS:
    case HTH_KMEANS_DONE:
        break;
    }
    kmeans_ends(run);
    memcpy(part, &run->inertia, sizeof run->inertia);
    return HTH_OK;
}

static void sums_join(hth_kmeans_run *run, const void *const *parts, size_t n_parts)
{
    memset(run->all.sum, 0, run->k * run->d * sizeof *run->all.sum);
    memset(run->all.count, 0, run->k * sizeof *run->all.count);
    run->all.changed = 0;
    for (size_t i = 0; i < n_parts; i++) {
        part_sums from = part_sums_at(run, (void *)parts[i]);
        for (size_t j = 0; j < run->k * run->d; j++) {
            run->all.sum[j] += from.sum[j];
        }
        for (size_t c = 0; c < run->k; c++) {
            run->all.count[c] += from.count[c];
        }
        run->all.changed += *from.changed;
    }
}

// fars_take appends the points of a part; false: there can be no such points.
static bool fars_take(const hth_kmeans_run *run, const void *part, kmeans_far *far, size_t *n)
{
    part_fars from = part_fars_at(run, (void *)part);
    uint64_t count = *from.n;
    if (count > run->n_far) {
        return false;
    }
    for (size_t i = 0; i < count; i++, ++*n) {
        part_far point = from.far[i];
        if (point.row >= run->n || point.label >= run->k) {
            return false;
        }
        far[*n] = (kmeans_far){point.squared, (size_t)point.row, (uint32_t)point.label,
                               from.x + i * run->d};
    }
    return true;
}

static hth_err fars_join(hth_kmeans_run *run, const void *const *parts, size_t n_parts)
{
    size_t n = 0;
    bool good = true;
    kmeans_far *far = hth_calloc(n_parts * run->n_far, sizeof *far);
    if (far == NULL) {
        return hth_no_memory("K-means' empty clusters");
    }
    for (size_t i = 0; i < n_parts && good; i++) {
        good = fars_take(run, parts[i], far, &n);
    }
    kmeans_far_sort(far, n);
    n = n < run->n_far ? n : run->n_far;
    hth_err err = good ? kmeans_refill(run, far, n)
                       : hth_fail(HTH_ECORRUPT, "a member's part is of no points of this run");
    hth_free(far);
    return err;
}

static void numbers_join(double *to, size_t count, const void *const *parts, size_t n_parts)
{
    memset(to, 0, count * sizeof *to);
    for (size_t i = 0; i < n_parts; i++) {
        const double *from = parts[i];
        for (size_t j = 0; j < count; j++) {
            to[j] += from[j];
        }
    }
}

hth_err hth_kmeans_join(hth_kmeans_run *run, const void *const *parts, size_t n_parts)
{
    switch (run->phase) {
    case HTH_KMEANS_LOOKS:
        numbers_join(run->moments, 2 * run->d, parts, n_parts);
        break;
    case HTH_KMEANS_SEEDS:
        kmeans_seed_join(run, parts, n_parts);
        break;
    case HTH_KMEANS_ITERATES:
        sums_join(run, parts, n_parts);
        break;
    case HTH_KMEANS_REFILLS:
        HTH_TRY(fars_join(run, parts, n_parts));
        break;
    case HTH_KMEANS_ENDS:
    case HTH_KMEANS_DONE:
        numbers_join(&run->inertia, 1, parts, n_parts);
    }
    return kmeans_joined(run);
}

// ---- a state

typedef struct state_head {
    uint64_t phase, iterations, saved, replayed, converged, changed;
    double inertia, variance;
} state_head;

// The arrays after the head: centroids, sums (k, d each), the mean (d), counts (k), all of 8 bytes;
// then what k-means++ knows.
static size_t state_numbers(size_t k, size_t d)
{
    return 2 * k * d + d + k;
}

size_t hth_kmeans_state_bytes(const hth_kmeans *what, size_t n, size_t d)
{
    bool seeds = what->init == HTH_KMEANS_PLUS_PLUS;
    return sizeof(state_head) + state_numbers(what->k, d) * sizeof(double) +
           (seeds ? kmeans_seed_state_bytes(n, d, what->k) : 0);
}

void hth_kmeans_state_write(const hth_kmeans_run *run, void *state)
{
    size_t kd = run->k * run->d;
    double *at = (double *)(void *)((char *)state + sizeof(state_head));
    *(state_head *)state = (state_head){.phase = run->phase,
                                        .iterations = run->iterations,
                                        .saved = run->saved,
                                        .replayed = run->replayed,
                                        .converged = run->converged,
                                        .changed = run->all.changed,
                                        .inertia = run->inertia,
                                        .variance = run->variance};
    memcpy(at, run->centroids, kd * sizeof *at);
    memcpy(at + kd, run->all.sum, kd * sizeof *at);
    memcpy(at + 2 * kd, run->exact, run->d * sizeof *at);
    memcpy(at + 2 * kd + run->d, run->all.count, run->k * sizeof *at);
    if (run->phase == HTH_KMEANS_SEEDS) {
        kmeans_seed_write(run, at + state_numbers(run->k, run->d));
    }
}

static void state_arrays(hth_kmeans_run *run, const double *at)
{
    size_t kd = run->k * run->d;
    memcpy(run->centroids, at, kd * sizeof *at);
    memcpy(run->all.sum, at + kd, kd * sizeof *at);
    memcpy(run->exact, at + 2 * kd, run->d * sizeof *at);
    memcpy(run->all.count, at + 2 * kd + run->d, run->k * sizeof *at);
    for (size_t j = 0; j < run->d; j++) {
        run->mean[j] = (float)run->exact[j];
    }
}

hth_err hth_kmeans_state_read(hth_kmeans_run *run, const void *state)
{
    state_head head;
    memcpy(&head, state, sizeof head);
    bool seeds = run->what->init == HTH_KMEANS_PLUS_PLUS;
    if (head.phase > HTH_KMEANS_DONE || head.iterations > run->what->iterations ||
        head.replayed > run->k || (head.phase == HTH_KMEANS_SEEDS && !seeds)) {
        return hth_fail(HTH_ECORRUPT, "the state of another member is of no run like this");
    }
    run->phase = (hth_kmeans_phase)head.phase;
    run->iterations = (size_t)head.iterations;
    run->saved = head.saved != 0;
    run->replayed = (size_t)head.replayed;
    run->converged = head.converged != 0;
    run->all.changed = head.changed;
    run->inertia = head.inertia;
    run->variance = head.variance;
    const double *numbers = (const double *)(const void *)((const char *)state + sizeof head);
    state_arrays(run, numbers);
    run->from = run->range = run->passed = 0;
    kmeans_seed_close(run->seeds);
    run->seeds = NULL;
    if (run->phase == HTH_KMEANS_SEEDS) {
        return kmeans_seed_read(run, numbers + state_numbers(run->k, run->d));
    }
    size_t empty = kmeans_empty(run);
    return run->phase == HTH_KMEANS_REFILLS && empty > 0 ? kmeans_far_open(run, empty) : HTH_OK;
}
