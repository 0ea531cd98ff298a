// SPDX-License-Identifier: Apache-2.0
// K-means on the CPU, with every instruction set, against plain C; its threads, shards, starts,
// empty clusters, and what it refuses.
#include "base/test.h"

#include "base/isa.h"
#include "device/cpu/team.h"
#include "kernels/kernel.h"
#include "kernels/kmeans.h"
#include "kernels/ref/ref_kmeans.h"

#include <math.h>

#define MOST_SHARDS 3

typedef struct points {
    size_t n, d, k;
    float *x;
    uint32_t *labels;
    double *centroids; // of the last fit
    hth_kmeans_result result;
} points;

static uint32_t random_state;

static float random_number(void) // [0, 1)
{
    random_state = random_state * 1664525U + 1013904223U;
    return (float)(random_state >> 8) * 0x1p-24F;
}

// `blobs` clouds with centres in [0, 100) and a width of 1; 0: points anywhere in [0, 1).
static void points_make(points *p, size_t n, size_t d, size_t k, size_t blobs, uint32_t seed)
{
    *p = (points){.n = n, .d = d, .k = k};
    p->x = calloc(n * d, sizeof *p->x);
    p->labels = calloc(n, sizeof *p->labels);
    p->centroids = calloc(k * d, sizeof *p->centroids);
    assert_true(p->x != NULL && p->labels != NULL && p->centroids != NULL);
    p->result.centroids = p->centroids;
    random_state = seed;
    float *centre = calloc(blobs * d + 1, sizeof *centre);
    assert_non_null(centre);
    for (size_t j = 0; j < blobs * d; j++) {
        centre[j] = 100 * random_number();
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < d; j++) {
            float at = blobs > 0 ? centre[i % blobs * d + j] : 0;
            p->x[i * d + j] = at + random_number();
        }
    }
    free(centre);
}

static void points_free(points *p)
{
    free(p->x);
    free(p->labels);
    free(p->centroids);
}

static hth_device cpu(int n_threads)
{
    return (hth_device){.props = {.name = "cpu:0", .n_threads = n_threads}};
}

static const hth_kernel_ops plain_kernels = {.kmeans = &ref_kmeans};

static hth_device plain(void)
{
    return (hth_device){.props = {.name = "ref:0", .n_threads = 1}, .kernels = &plain_kernels};
}

// fit with the points divided at `cut`, which ends with n.
static hth_err fit(points *p, hth_device device, const hth_kmeans *what, const size_t *cut)
{
    hth_kmeans_shard *shards[MOST_SHARDS] = {NULL};
    size_t n_shards = 0, first = 0;
    hth_err err = HTH_OK;
    while (first < p->n && err == HTH_OK) {
        size_t last = cut != NULL ? cut[n_shards] : p->n;
        err = hth_kmeans_open(&device, p->x + first * p->d, last - first, p->d, p->k,
                              p->labels + first, &shards[n_shards++]);
        first = last;
    }
    if (err == HTH_OK) {
        err = hth_kmeans_fit(what, shards, n_shards, &p->result);
    }
    for (size_t m = 0; m < n_shards; m++) {
        hth_kmeans_close(shards[m]);
    }
    return err;
}

static hth_kmeans from(const points *p, const float *start, size_t iterations)
{
    return (hth_kmeans){
        .k = p->k, .iterations = iterations, .init = HTH_KMEANS_GIVEN, .start = start};
}

// same fits by plain C and compares: no label may differ.
static void same_as_plain(points *p, const hth_kmeans *what)
{
    points q = *p;
    size_t other = 0;
    q.labels = calloc(p->n, sizeof *q.labels);
    q.centroids = calloc(p->k * p->d, sizeof *q.centroids);
    assert_true(q.labels != NULL && q.centroids != NULL);
    q.result.centroids = q.centroids;
    assert_ok(fit(&q, plain(), what, NULL));
    assert_int_equal(p->result.iterations, q.result.iterations);
    assert_true(fabs(p->result.inertia - q.result.inertia) <= 1e-12 * q.result.inertia);
    for (size_t i = 0; i < p->n; i++) {
        other += p->labels[i] != q.labels[i] ? 1 : 0;
    }
    assert_int_equal(other, 0);
    free(q.labels);
    free(q.centroids);
}

static void every_shape_is_as_plain_c(void **state)
{
    static const struct {
        size_t n, d, k, blobs;
    } cases[] = {{1, 1, 1, 0},       {7, 3, 7, 0},       {33, 1, 2, 0},    {100, 5, 15, 0},
                 {3000, 17, 29, 40}, {5000, 100, 5, 0},  {999, 64, 13, 0}, {4000, 2, 200, 0},
                 {2100, 31, 14, 9},  {1500, 1030, 3, 3}, {640, 8, 300, 0}};
    static const char *const isa[] = {"avx512", "avx2", "sse2"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t j = 0; j < 3; j++) {
            points p;
            assert_ok(hth_isa_limit(isa[j]));
            points_make(&p, cases[i].n, cases[i].d, cases[i].k, cases[i].blobs, 7);
            hth_kmeans what = from(&p, p.x, 4);
            assert_ok(fit(&p, cpu(2), &what, NULL));
            same_as_plain(&p, &what);
            points_free(&p);
        }
    }
    assert_ok(hth_isa_limit(getenv("HEARTH_ISA")));
}

static void a_far_origin_costs_no_digits(void **state)
{
    points p;
    points_make(&p, 3000, 10, 20, 20, 3);
    for (size_t i = 0; i < p.n * p.d; i++) {
        p.x[i] += 100000;
    }
    hth_kmeans what = from(&p, p.x, 5);
    assert_ok(fit(&p, cpu(2), &what, NULL));
    same_as_plain(&p, &what);
    points_free(&p);
}

static void threads_do_not_change_a_bit(void **state)
{
    points p;
    points_make(&p, 9000, 20, 33, 0, 5);
    double *first = calloc(p.k * p.d, sizeof *first), inertia = 0;
    assert_non_null(first);
    for (int n = 1; n <= 4; n++) {
        hth_kmeans what = {.k = p.k, .iterations = 6, .seed = 2};
        assert_ok(fit(&p, cpu(n), &what, NULL));
        if (n == 1) {
            memcpy(first, p.centroids, p.k * p.d * sizeof *first);
            inertia = p.result.inertia;
        }
        assert_memory_equal(first, p.centroids, p.k * p.d * sizeof *first);
        assert_true(inertia == p.result.inertia);
    }
    free(first);
    points_free(&p);
}

// Shards, however they are cut, add up to what one has; so do the chances of seeds.
static void shards_add_up(void **state)
{
    static const size_t cuts[][MOST_SHARDS] = {{10, 11, 9000}, {3000, 6000, 9000}, {8999, 9000, 0}};
    points p;
    points_make(&p, 9000, 20, 33, 12, 5);
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_RANDOM; init++) {
        hth_kmeans what = {.k = p.k, .iterations = 6, .init = (hth_kmeans_init)init, .seed = 4};
        assert_ok(fit(&p, cpu(2), &what, NULL));
        double inertia = p.result.inertia;
        for (size_t i = 0; i < 3; i++) {
            assert_ok(fit(&p, cpu(2), &what, cuts[i]));
            assert_true(fabs(p.result.inertia - inertia) <= 1e-9 * inertia);
        }
    }
    points_free(&p);
}

static void plus_plus_finds_every_blob(void **state)
{
    points p;
    points_make(&p, 3000, 6, 30, 30, 11);
    for (uint64_t seed = 0; seed < 5; seed++) {
        hth_kmeans what = {.k = p.k, .iterations = 10, .seed = seed};
        assert_ok(fit(&p, cpu(2), &what, NULL));
        assert_true(p.result.converged);
        for (size_t i = p.k; i < p.n; i++) { // one label to a blob
            assert_int_equal(p.labels[i], p.labels[i % p.k]);
        }
        same_as_plain(&p, &what);
    }
    points_free(&p);
}

static bool is_point(const points *p, const double *centroid)
{
    for (size_t i = 0; i < p->n; i++) {
        size_t j = 0;
        while (j < p->d && (double)p->x[i * p->d + j] == centroid[j]) {
            j++;
        }
        if (j == p->d) {
            return true;
        }
    }
    return false;
}

// As many different points as there are: each is a centroid, whatever the seed.
static void starts_are_points(void **state)
{
    points p;
    points_make(&p, 40, 2, 40, 0, 1);
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_RANDOM; init++) {
        hth_kmeans what = {.k = p.k, .iterations = 3, .init = (hth_kmeans_init)init, .seed = 9};
        assert_ok(fit(&p, cpu(1), &what, NULL));
        assert_true(p.result.inertia == 0 && p.result.converged);
        for (size_t c = 0; c < p.k; c++) {
            assert_true(is_point(&p, p.centroids + c * p.d));
        }
    }
    points_free(&p);
}

static void seeds_differ_and_repeat(void **state)
{
    points p;
    points_make(&p, 2000, 3, 10, 0, 1);
    double inertia[3];
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_RANDOM; init++) {
        for (uint64_t i = 0; i < 3; i++) {
            hth_kmeans what = {
                .k = p.k, .iterations = 1, .init = (hth_kmeans_init)init, .seed = i % 2};
            assert_ok(fit(&p, cpu(2), &what, NULL));
            inertia[i] = p.result.inertia;
        }
        assert_true(inertia[0] == inertia[2] && inertia[0] != inertia[1]);
    }
    points_free(&p);
}

// Centroids 1 and 3 are nobody's nearest: they get the points that are farthest from centroid 0 (9
// and 8), and 0 the mean of what is left of it.
static void empty_clusters_get_the_farthest(void **state)
{
    static const float x[] = {0, 1, 2, 8, 9, 20}, start[] = {0, 1000, 20, -1000};
    static const double expected[] = {1, 9, 20, 8};
    points p;
    points_make(&p, 6, 1, 4, 0, 1);
    memcpy(p.x, x, sizeof x);
    hth_kmeans what = from(&p, start, 1);
    assert_ok(fit(&p, cpu(2), &what, NULL));
    for (size_t c = 0; c < p.k; c++) {
        assert_true(p.centroids[c] == expected[c]);
    }
    same_as_plain(&p, &what);
    points_free(&p);
}

// A cluster's last point stays where it is: 100 is farthest, and alone.
static void a_last_point_stays(void **state)
{
    static const float x[] = {0, 1, 3, 100}, start[] = {0, 60, 5000};
    static const double expected[] = {0.5, 100, 3};
    points p;
    points_make(&p, 4, 1, 3, 0, 1);
    memcpy(p.x, x, sizeof x);
    hth_kmeans what = from(&p, start, 1);
    assert_ok(fit(&p, cpu(2), &what, NULL));
    for (size_t c = 0; c < p.k; c++) {
        assert_true(p.centroids[c] == expected[c]);
    }
    points_free(&p);
}

static void equal_points_are_one_cluster(void **state)
{
    points p;
    points_make(&p, 50, 4, 5, 0, 1);
    for (size_t i = 0; i < p.n * p.d; i++) {
        p.x[i] = 3;
    }
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_RANDOM; init++) {
        hth_kmeans what = {.k = p.k, .iterations = 5, .init = (hth_kmeans_init)init};
        assert_ok(fit(&p, cpu(2), &what, NULL));
        assert_true(p.result.inertia == 0);
        for (size_t j = 0; j < p.k * p.d; j++) {
            assert_true(p.centroids[j] == 3);
        }
    }
    points_free(&p);
}

// Variance 2.5 of {0, 1, 3, 4}; the centroids move by 0.5 each, 0.5 squared and added.
static void tolerance_is_a_share_of_the_variance(void **state)
{
    static const float x[] = {0, 1, 3, 4}, start[] = {0, 4};
    points p;
    points_make(&p, 4, 1, 2, 0, 1);
    memcpy(p.x, x, sizeof x);
    hth_kmeans what = from(&p, start, 10);
    what.tolerance = 0.5 / 2.5;
    assert_ok(fit(&p, cpu(1), &what, NULL));
    assert_true(p.result.converged);
    assert_int_equal(p.result.iterations, 1);
    what.tolerance = 0.499 / 2.5;
    assert_ok(fit(&p, cpu(1), &what, NULL));
    assert_true(p.result.converged);
    assert_int_equal(p.result.iterations, 2); // no label changes
    what.iterations = 1;
    assert_ok(fit(&p, cpu(1), &what, NULL));
    assert_false(p.result.converged);
    points_free(&p);
}

static void bad_input_gets_a_sentence(void **state)
{
    points p;
    points_make(&p, 2000, 3, 4, 0, 1);
    hth_kmeans what = {.k = p.k, .iterations = 5};
    float start[12] = {[7] = NAN};
    p.x[1700 * 3 + 2] = NAN;
    assert_err(fit(&p, cpu(2), &what, NULL), HTH_EINVAL, "point 1700, column 2 is nan");
    p.x[1700 * 3 + 2] = -INFINITY;
    assert_err(fit(&p, cpu(2), &what, (size_t[]){1000, 2000}), HTH_EINVAL,
               "point 1700, column 2 is -inf: K-means needs finite numbers");
    p.x[1700 * 3 + 2] = 1e30F;
    assert_err(fit(&p, cpu(2), &what, NULL), HTH_EINVAL, "is 1e+30: with 3 columns at most 3.7");
    p.x[1700 * 3 + 2] = 0;
    hth_kmeans given = from(&p, start, 5);
    assert_err(fit(&p, cpu(2), &given, NULL), HTH_EINVAL, "start centroid 2, column 1 is nan");
    what.iterations = 0;
    assert_err(fit(&p, cpu(2), &what, NULL), HTH_EINVAL, "0 iterations");
    what.iterations = 5;
    what.tolerance = -1;
    assert_err(fit(&p, cpu(2), &what, NULL), HTH_EINVAL, "tolerance -1");
    what.tolerance = 0;
    p.k = 2001;
    assert_err(fit(&p, cpu(2), &what, NULL), HTH_EINVAL, "2001 centroids for 2000 points");
    p.k = 0;
    assert_err(fit(&p, cpu(2), &what, NULL), HTH_EINVAL, "0 centroids");
    p.k = 4;
    p.d = 0;
    assert_err(fit(&p, cpu(2), &what, NULL), HTH_EINVAL, "2000 points of 0 columns");
    p.d = 3;
    static const hth_kernel_ops none = {0};
    hth_device other = {.props = {.name = "cuda:0", .n_threads = 1}, .kernels = &none};
    assert_err(fit(&p, other, &what, NULL), HTH_ENOTSUP, "device cuda:0 has no K-means");
    points_free(&p);
}

// Points as from a file: in one window, which the next call overwrites.
typedef struct reader {
    const points *p;
    float *window;
    size_t fails; // reading fails at this point
} reader;

static hth_err reader_rows(void *ctx, size_t first, size_t count, const float **x)
{
    reader *r = ctx;
    size_t d = r->p->d;
    assert_true(count <= HTH_KMEANS_CHUNK && first + count <= r->p->n);
    if (r->fails >= first && r->fails < first + count) {
        return hth_fail(HTH_EIO, "point %zu cannot be read", r->fails);
    }
    memset(r->window, 0xFF, HTH_KMEANS_CHUNK * d * sizeof(float));
    memcpy(r->window, r->p->x + first * d, count * d * sizeof(float));
    *x = r->window;
    return HTH_OK;
}

// run goes on by `step` points until `iterations` are done, or to the end.
static hth_err run(points *p, reader *r, const hth_kmeans *what, size_t step, size_t iterations,
                   const hth_kmeans_saved *saved)
{
    hth_device device = cpu(2);
    hth_kmeans_points from = {reader_rows, r, HTH_KMEANS_CHUNK};
    hth_kmeans_shard *shard;
    hth_kmeans_run *run = NULL;
    hth_kmeans_at at = {.phase = HTH_KMEANS_LOOKS};
    r->window = calloc(HTH_KMEANS_CHUNK * p->d, sizeof(float));
    assert_non_null(r->window);
    hth_err err = hth_kmeans_open_points(&device, &from, p->n, p->d, p->k, p->labels, &shard);
    if (err == HTH_OK) {
        err = hth_kmeans_begin(what, &shard, 1, saved, &run);
    }
    while (err == HTH_OK && at.phase != HTH_KMEANS_DONE && at.iterations < iterations) {
        err = hth_kmeans_go(run, step);
        at = hth_kmeans_where(run);
    }
    if (err == HTH_OK) {
        memcpy(p->centroids, at.centroids, p->k * p->d * sizeof *p->centroids);
        p->result.inertia = at.inertia;
        p->result.iterations = at.iterations;
    }
    hth_kmeans_finish(run);
    hth_kmeans_close(shard);
    free(r->window);
    return err;
}

// Whether points lie in memory, are read, and in which pieces: the same bits.
static void pieces_change_no_bit(void **state)
{
    static const size_t steps[] = {1000, 4096, 5000, SIZE_MAX};
    points p;
    points_make(&p, 20000, 7, 33, 12, 5);
    double *whole = calloc(p.k * p.d, sizeof *whole);
    assert_non_null(whole);
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_RANDOM; init++) {
        hth_kmeans what = {.k = p.k, .iterations = 5, .init = (hth_kmeans_init)init, .seed = 4};
        assert_ok(fit(&p, cpu(2), &what, NULL));
        double inertia = p.result.inertia;
        memcpy(whole, p.centroids, p.k * p.d * sizeof *whole);
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            assert_ok(
                run(&p, &(reader){.p = &p, .fails = SIZE_MAX}, &what, steps[i], SIZE_MAX, NULL));
            assert_memory_equal(whole, p.centroids, p.k * p.d * sizeof *whole);
            assert_true(p.result.inertia == inertia);
        }
    }
    free(whole);
    points_free(&p);
}

// Left after any iteration, and begun again by its centroids: the same bits.
static void a_run_goes_on(void **state)
{
    points p;
    points_make(&p, 9000, 5, 20, 0, 5);
    reader r = {.p = &p, .fails = SIZE_MAX};
    hth_kmeans what = {.k = p.k, .iterations = 6, .seed = 4};
    size_t bytes = p.k * p.d * sizeof(double);
    double *whole = malloc(bytes), *half = malloc(bytes);
    assert_true(whole != NULL && half != NULL);
    assert_ok(fit(&p, cpu(2), &what, NULL));
    double inertia = p.result.inertia;
    memcpy(whole, p.centroids, bytes);
    for (size_t i = 1; i <= 6; i++) {
        assert_ok(run(&p, &r, &what, 3000, i, NULL));
        memcpy(half, p.centroids, bytes);
        assert_ok(run(&p, &r, &what, 3000, SIZE_MAX, &(hth_kmeans_saved){half, i, 0, false}));
        assert_int_equal(p.result.iterations, 6);
        assert_memory_equal(whole, p.centroids, bytes);
        assert_true(p.result.inertia == inertia);
    }
    free(whole);
    free(half);
    points_free(&p);
}

// The inertia of an iteration, from sums, is that of the centroids before it.
// What a run stands at that goes on is there before it has looked at a point: it may be left again.
static void a_run_begins_where_it_was(void **state)
{
    points p;
    points_make(&p, 50, 2, 3, 0, 5);
    hth_device device = cpu(1);
    const double centroids[] = {1, 2, 3, 4, 5, 6};
    const hth_kmeans_saved saved = {centroids, 4, 0, false};
    hth_kmeans what = {.k = p.k, .iterations = 6};
    hth_kmeans_shard *shard;
    hth_kmeans_run *run;
    assert_ok(hth_kmeans_open(&device, p.x, p.n, p.d, p.k, p.labels, &shard));
    assert_ok(hth_kmeans_begin(&what, &shard, 1, &saved, &run));
    hth_kmeans_at at = hth_kmeans_where(run);
    assert_int_equal(at.iterations, 4);
    assert_non_null(at.centroids);
    assert_memory_equal(at.centroids, centroids, sizeof centroids);
    hth_kmeans_finish(run);
    assert_ok(hth_kmeans_begin(&what, &shard, 1, NULL, &run));
    assert_null(hth_kmeans_where(run).centroids);
    hth_kmeans_finish(run);
    hth_kmeans_close(shard);
    points_free(&p);
}

static void inertia_follows_from_sums(void **state)
{
    points p;
    points_make(&p, 9000, 5, 20, 7, 5);
    reader r = {.p = &p, .fails = SIZE_MAX};
    for (size_t i = 1; i < 4; i++) {
        hth_kmeans what = {.k = p.k, .iterations = i, .seed = 4};
        assert_ok(fit(&p, cpu(2), &what, NULL));
        double inertia = p.result.inertia;
        what.iterations = i + 1;
        assert_ok(run(&p, &r, &what, SIZE_MAX, i + 1, NULL));
        assert_true(fabs(p.result.inertia - inertia) <= 1e-9 * inertia);
    }
    points_free(&p);
}

static void reading_that_fails_ends_it(void **state)
{
    points p;
    points_make(&p, 9000, 2, 4, 0, 5);
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_RANDOM; init++) {
        hth_kmeans what = {.k = p.k, .iterations = 2, .init = (hth_kmeans_init)init};
        assert_err(run(&p, &(reader){.p = &p, .fails = 8999}, &what, 5000, SIZE_MAX, NULL), HTH_EIO,
                   "point 8999 cannot be read");
    }
    points_free(&p);
}

static void memory_that_runs_out_is_said(void **state)
{
    static const float x[] = {0, 1, 2, 8, 9, 20}, start[] = {0, 1000, 20, -1000};
    points p;
    points_make(&p, 6, 1, 4, 0, 1);
    memcpy(p.x, x, sizeof x);
    hth_kmeans what = from(&p, start, 2), seeded = {.k = p.k, .iterations = 2};
    FAULT_LOOP(fit(&p, cpu(2), &what, NULL));
    FAULT_LOOP(fit(&p, cpu(2), &seeded, (size_t[]){1, 2, 6}));
    FAULT_LOOP(fit(&p, plain(), &what, NULL));
    points_free(&p);
}

// A run that is left while k-means++ chooses goes on with what was chosen, to the same bits.
static void seeds_go_on(void **state)
{
    points p;
    hth_device device = cpu(2);
    hth_kmeans_shard *shard;
    hth_kmeans_run *run;
    double chosen[33 * 20];
    points_make(&p, 9000, 20, 33, 0, 5);
    hth_kmeans what = {.k = p.k, .iterations = 3, .seed = 2};
    assert_ok(fit(&p, device, &what, NULL));
    for (size_t left = 1; left < p.k; left += 15) {
        hth_kmeans_saved saved = {.centroids = chosen};
        assert_ok(hth_kmeans_open(&device, p.x, p.n, p.d, p.k, p.labels, &shard));
        assert_ok(hth_kmeans_begin(&what, &shard, 1, NULL, &run));
        while (saved.seeded < left) {
            assert_ok(hth_kmeans_go(run, p.n));
            saved.seeded = hth_kmeans_where(run).seeded;
        }
        memcpy(chosen, hth_kmeans_where(run).centroids, sizeof chosen);
        hth_kmeans_finish(run);
        assert_ok(hth_kmeans_begin(&what, &shard, 1, &saved, &run));
        while (hth_kmeans_where(run).phase != HTH_KMEANS_DONE) {
            assert_ok(hth_kmeans_go(run, p.n));
        }
        assert_memory_equal(p.centroids, hth_kmeans_where(run).centroids, sizeof chosen);
        hth_kmeans_finish(run);
        hth_kmeans_close(shard);
    }
    points_free(&p);
}

// A run that goes on has all that was chosen before, also until it has followed it.
static void seeds_are_there_at_once(void **state)
{
    points p;
    hth_device device = cpu(2);
    hth_kmeans_shard *shard;
    hth_kmeans_run *run;
    double chosen[12 * 3];
    points_make(&p, 500, 3, 12, 0, 5);
    hth_kmeans what = {.k = p.k, .iterations = 1, .seed = 2};
    hth_kmeans_saved saved = {.centroids = chosen, .seeded = 5};
    assert_ok(hth_kmeans_open(&device, p.x, p.n, p.d, p.k, p.labels, &shard));
    assert_ok(hth_kmeans_begin(&what, &shard, 1, NULL, &run));
    while (hth_kmeans_where(run).seeded < saved.seeded) {
        assert_ok(hth_kmeans_go(run, p.n));
    }
    memcpy(chosen, hth_kmeans_where(run).centroids, sizeof chosen);
    hth_kmeans_finish(run);
    assert_ok(hth_kmeans_begin(&what, &shard, 1, &saved, &run));
    for (size_t pass = 0; pass < 1 + p.k; pass++) { // the first one looks
        hth_kmeans_at at = hth_kmeans_where(run);
        size_t seeded = pass <= 1 + saved.seeded ? saved.seeded : pass - 1;
        assert_int_equal(at.phase, pass == 0 ? HTH_KMEANS_LOOKS : HTH_KMEANS_SEEDS);
        assert_int_equal(at.seeded, seeded);
        assert_non_null(at.centroids);
        assert_memory_equal(at.centroids, chosen, saved.seeded * p.d * sizeof *chosen);
        assert_ok(hth_kmeans_go(run, p.n));
    }
    assert_int_equal(hth_kmeans_where(run).phase, HTH_KMEANS_ITERATES);
    assert_int_equal(hth_kmeans_where(run).seeded, 0);
    hth_kmeans_finish(run);
    hth_kmeans_close(shard);
    points_free(&p);
}

// A job's least budget: it has labels, and all else in proportion to the points is a hundredth.
static void memory_is_a_label_for_each_point(void **state)
{
    const size_t n = (size_t)1 << 24;
    hth_device device = cpu(2);
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_GIVEN; init++) {
        hth_kmeans what = {.k = 64, .init = (hth_kmeans_init)init};
        uint64_t more =
            hth_kmeans_bytes(&device, &what, 2 * n, 8) - hth_kmeans_bytes(&device, &what, n, 8);
        assert_true(more >= n * sizeof(uint32_t) && more < n * sizeof(uint32_t) * 1.01);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_as_plain_c),
        cmocka_unit_test(a_far_origin_costs_no_digits),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(shards_add_up),
        cmocka_unit_test(plus_plus_finds_every_blob),
        cmocka_unit_test(starts_are_points),
        cmocka_unit_test(seeds_differ_and_repeat),
        cmocka_unit_test(seeds_go_on),
        cmocka_unit_test(seeds_are_there_at_once),
        cmocka_unit_test(empty_clusters_get_the_farthest),
        cmocka_unit_test(a_last_point_stays),
        cmocka_unit_test(equal_points_are_one_cluster),
        cmocka_unit_test(tolerance_is_a_share_of_the_variance),
        cmocka_unit_test(bad_input_gets_a_sentence),
        cmocka_unit_test(pieces_change_no_bit),
        cmocka_unit_test(a_run_goes_on),
        cmocka_unit_test(a_run_begins_where_it_was),
        cmocka_unit_test(inertia_follows_from_sums),
        cmocka_unit_test(reading_that_fails_ends_it),
        cmocka_unit_test(memory_that_runs_out_is_said),
        cmocka_unit_test(memory_is_a_label_for_each_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
