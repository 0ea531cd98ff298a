// SPDX-License-Identifier: Apache-2.0
// Runs of several members, who compute a range of the points each: what one run finds, however the
// points are cut, with passes that are given up and computed again, and members that come later.
#include "base/test.h"

#include "kernels/kmeans.h"

#include <math.h>

#define N       9000 // three chunks
#define D       5
#define MEMBERS 3
#define MOST_K  40

typedef struct rig {
    float x[N * D], start[MOST_K * D];
    uint32_t labels[N]; // shared by all
    hth_kmeans what;
    hth_kmeans_shard *shard[MEMBERS];
    hth_kmeans_run *run[MEMBERS];
    void *part[MEMBERS], *state;
} rig;

static uint32_t random_state;

static float random_number(void) // [0, 1)
{
    random_state = random_state * 1664525U + 1013904223U;
    return (float)(random_state >> 8) * 0x1p-24F;
}

// The last `lost` of the k centroids begin where nobody is near.
static rig *rig_make(size_t k, size_t lost, hth_kmeans_init init)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    random_state = 5;
    for (size_t i = 0; i < N * D; i++) {
        r->x[i] = random_number();
    }
    memcpy(r->start, r->x, k * D * sizeof *r->start);
    for (size_t j = (k - lost) * D; j < k * D; j++) {
        r->start[j] += 1000;
    }
    r->what = (hth_kmeans){
        .k = k, .iterations = 7, .init = init, .seed = 3, .start = r->start, .tolerance = 0};
    return r;
}

static void member_open(rig *r, int member)
{
    hth_device cpu = {.props = {.name = "cpu:0", .n_threads = 1 + member}};
    hth_kmeans_shard like = {.x = r->x, .n = N, .d = D, .k = r->what.k, .labels = r->labels};
    assert_ok(hth_kmeans_open_shared(&cpu, &like, &r->shard[member]));
    assert_ok(hth_kmeans_begin(&r->what, &r->shard[member], 1, NULL, &r->run[member]));
    hth_kmeans_member(r->run[member]);
    r->part[member] = malloc(hth_kmeans_part_bytes(&r->what, N, D));
    assert_non_null(r->part[member]);
}

static void member_close(rig *r, int member)
{
    hth_kmeans_finish(r->run[member]);
    hth_kmeans_close(r->shard[member]);
    free(r->part[member]);
    r->run[member] = NULL;
    r->shard[member] = NULL;
    r->part[member] = NULL;
}

static void compute(rig *r, int member, size_t first, size_t n, size_t step, bool again)
{
    assert_ok(hth_kmeans_range(r->run[member], first, n, again));
    while (!hth_kmeans_ranged(r->run[member])) {
        assert_ok(hth_kmeans_go(r->run[member], step));
    }
    if (hth_kmeans_where(r->run[member]).phase == HTH_KMEANS_LOOKS && n > 0) {
        size_t points = step / 2;
        assert_ok(hth_kmeans_trial(r->run[member], &points));
        assert_true(points > 0 && points <= step / 2 && points <= n);
    }
    assert_ok(hth_kmeans_part(r->run[member], r->part[member]));
}

// A pass over points that are cut at cut[0], cut[1].
static void pass(rig *r, const size_t *cut, bool again)
{
    const void *parts[MEMBERS];
    size_t ends[MEMBERS] = {cut[0], cut[1], N}, first = 0, n_parts = 0;
    for (int i = 0; i < MEMBERS; i++) {
        size_t n = ends[i] - first;
        compute(r, i, first, n, 700, again);
        if (n > 0) {
            parts[n_parts++] = r->part[i];
        }
        first += n;
    }
    for (int i = 0; i < MEMBERS; i++) {
        assert_ok(hth_kmeans_join(r->run[i], parts, n_parts));
    }
}

// What one run finds.
static double alone(rig *r, double *centroids, uint32_t *labels, size_t *iterations)
{
    hth_device cpu = {.props = {.name = "cpu:0", .n_threads = 1}};
    hth_kmeans_result result = {.centroids = centroids};
    hth_kmeans_shard *shard;
    assert_ok(hth_kmeans_open(&cpu, r->x, N, D, r->what.k, labels, &shard));
    assert_ok(hth_kmeans_fit(&r->what, &shard, 1, &result));
    hth_kmeans_close(shard);
    *iterations = result.iterations;
    return result.inertia;
}

static void is_as_alone(rig *r)
{
    double *centroids = calloc(MOST_K * D, sizeof *centroids);
    uint32_t *labels = calloc(N, sizeof *labels);
    size_t iterations;
    double inertia = alone(r, centroids, labels, &iterations);
    for (int i = 0; i < MEMBERS; i++) {
        hth_kmeans_at at = hth_kmeans_where(r->run[i]), first = hth_kmeans_where(r->run[0]);
        assert_int_equal(at.phase, HTH_KMEANS_DONE);
        assert_int_equal(at.iterations, iterations);
        assert_true(fabs(at.inertia - inertia) <= 1e-12 * inertia);
        assert_memory_equal(at.centroids, first.centroids, r->what.k * D * sizeof(double));
        for (size_t j = 0; j < r->what.k * D; j++) {
            assert_true(fabs(at.centroids[j] - centroids[j]) <= 1e-12 * fabs(centroids[j]));
        }
    }
    assert_memory_equal(labels, r->labels, N * sizeof *labels);
    free(centroids);
    free(labels);
}

static size_t random_below(size_t n)
{
    return (size_t)(random_number() * (float)n);
}

// Of k-means++ in whole chunks.
static void random_cut(const rig *r, size_t cut[2])
{
    bool seeds = hth_kmeans_where(r->run[0]).phase == HTH_KMEANS_SEEDS;
    size_t grain = seeds ? HTH_KMEANS_CHUNK : 1;
    size_t a = random_below(N + 1) / grain * grain, b = random_below(N + 1) / grain * grain;
    cut[0] = a < b ? a : b;
    cut[1] = a < b ? b : a;
}

// Passes are cut elsewhere each time, some are given up in the middle, and the last member comes
// anew now and then, with the state of the first.
static void run_all(rig *r, uint32_t seed, bool trouble)
{
    size_t cut[2];
    for (int i = 0; i < MEMBERS; i++) {
        member_open(r, i);
    }
    random_state = seed;
    bool again = true; // labels are of nobody
    while (hth_kmeans_where(r->run[0]).phase != HTH_KMEANS_DONE) {
        random_cut(r, cut);
        if (trouble && random_below(3) == 0) {
            compute(r, 1, cut[0], cut[1] - cut[0], 1000, true);
            again = true;
            random_cut(r, cut);
        }
        if (trouble && random_below(4) == 0) {
            void *state = calloc(1, hth_kmeans_state_bytes(&r->what, N, D));
            hth_kmeans_state_write(r->run[0], state);
            member_close(r, MEMBERS - 1);
            member_open(r, MEMBERS - 1);
            assert_ok(hth_kmeans_state_read(r->run[MEMBERS - 1], state));
            free(state);
            again = true;
        }
        bool iterates = hth_kmeans_where(r->run[0]).phase == HTH_KMEANS_ITERATES;
        pass(r, cut, again);
        again = again && !iterates;
    }
}

static void rig_free(rig *r)
{
    for (int i = 0; i < MEMBERS; i++) {
        member_close(r, i);
    }
    free(r);
}

static void members_find_what_one_finds(void **state)
{
    for (int init = HTH_KMEANS_PLUS_PLUS; init <= HTH_KMEANS_GIVEN; init++) {
        for (uint32_t seed = 1; seed <= 4; seed++) {
            rig *r = rig_make(12, 0, (hth_kmeans_init)init);
            run_all(r, seed, seed % 2 == 0);
            is_as_alone(r);
            rig_free(r);
        }
    }
}

static void members_fill_empty_clusters(void **state)
{
    for (uint32_t seed = 1; seed <= 6; seed++) {
        rig *r = rig_make(MOST_K, 9, HTH_KMEANS_GIVEN);
        run_all(r, seed, seed % 2 == 0);
        is_as_alone(r);
        rig_free(r);
    }
}

// No label changes in the second assignment, which is no sign of the end if it was made before.
static void an_attempt_is_no_end(void **state)
{
    size_t cut[2] = {3000, 6000};
    rig *r = rig_make(4, 0, HTH_KMEANS_GIVEN);
    for (int i = 0; i < MEMBERS; i++) {
        member_open(r, i);
    }
    pass(r, cut, true);
    pass(r, cut, true);
    for (int i = 0; i < MEMBERS; i++) { // given up, all of it
        compute(r, i, (size_t)i * 3000, 3000, N, false);
    }
    pass(r, cut, true);
    assert_int_equal(hth_kmeans_where(r->run[0]).phase, HTH_KMEANS_ITERATES);
    for (int i = 0; i < MEMBERS; i++) {
        compute(r, i, (size_t)i * 3000, 3000, N, false);
    }
    pass(r, cut, false); // as if nobody knew
    assert_int_equal(hth_kmeans_where(r->run[0]).phase, HTH_KMEANS_ENDS);
    rig_free(r);
}

static void the_same_cuts_have_the_same_bits(void **state)
{
    double first[12 * D];
    for (int round = 0; round < 2; round++) {
        rig *r = rig_make(12, 0, HTH_KMEANS_PLUS_PLUS);
        run_all(r, 7, false);
        hth_kmeans_at at = hth_kmeans_where(r->run[0]);
        if (round == 0) {
            memcpy(first, at.centroids, sizeof first);
        }
        assert_memory_equal(first, at.centroids, sizeof first);
        rig_free(r);
    }
}

static void what_makes_no_sense_is_refused(void **state)
{
    rig *r = rig_make(MOST_K, 3, HTH_KMEANS_GIVEN);
    size_t cut[2] = {1, 2}, bytes = hth_kmeans_state_bytes(&r->what, N, D);
    uint64_t *words = calloc(1, bytes);
    for (int i = 0; i < MEMBERS; i++) {
        member_open(r, i);
    }
    assert_err(hth_kmeans_range(r->run[0], N, 1, false), HTH_ECORRUPT, "not in a shard of 9000");
    r->x[8999 * D + 1] = NAN;
    assert_ok(hth_kmeans_range(r->run[2], 8000, 1000, false));
    assert_err(hth_kmeans_go(r->run[2], N), HTH_EINVAL, "point 8999, column 1 is nan");
    r->x[8999 * D + 1] = 0;
    pass(r, cut, true);
    pass(r, cut, true);
    assert_int_equal(hth_kmeans_where(r->run[0]).phase, HTH_KMEANS_REFILLS);
    compute(r, 0, 0, N, N, true);
    const void *parts[1] = {r->part[0]};
    uint64_t *part = r->part[0];
    for (int word = 0; word < 4; word += word == 0 ? 2 : 1) { // how many, a row, a label
        uint64_t good = part[word];
        part[word] = UINT64_MAX;
        assert_err(hth_kmeans_join(r->run[0], parts, 1), HTH_ECORRUPT, "a member's part");
        part[word] = good;
    }
    rig *seeds = rig_make(4, 0, HTH_KMEANS_PLUS_PLUS);
    for (int i = 0; i < MEMBERS; i++) {
        member_open(seeds, i);
    }
    pass(seeds, cut, true);
    assert_err(hth_kmeans_range(seeds->run[0], 0, 100, false), HTH_EINVAL, "no whole chunks");
    assert_err(hth_kmeans_range(seeds->run[0], 100, N - 100, false), HTH_EINVAL,
               "points 100 to 9000 are no whole chunks of 4096");
    rig_free(seeds);
    words[0] = 77;
    assert_err(hth_kmeans_state_read(r->run[0], words), HTH_ECORRUPT, "of no run like this");
    free(words);
    rig_free(r);
}

// A label that somebody else has spoiled is no point that is far.
static void a_spoiled_label_is_of_no_centroid(void **state)
{
    rig *r = rig_make(MOST_K, 3, HTH_KMEANS_GIVEN);
    size_t cut[2] = {1, 2};
    for (int i = 0; i < MEMBERS; i++) {
        member_open(r, i);
    }
    pass(r, cut, true);
    pass(r, cut, true);
    assert_int_equal(hth_kmeans_where(r->run[0]).phase, HTH_KMEANS_REFILLS);
    for (size_t i = 0; i < N; i++) {
        r->labels[i] = i % 2 == 0 ? UINT32_MAX - 1 : MOST_K;
    }
    compute(r, 2, 0, N, N, true);
    assert_int_equal(*(uint64_t *)r->part[2], 0); // how many are far
    r->labels[70] = 1;
    compute(r, 2, 0, N, N, true);
    assert_int_equal(*(uint64_t *)r->part[2], 1);
    rig_free(r);
}

// A member alone, to the end of its first iteration.
static hth_err run_once(rig *r)
{
    hth_device cpu = {.props = {.name = "cpu:0", .n_threads = 1}};
    hth_kmeans_shard like = {.x = r->x, .n = N, .d = D, .k = MOST_K, .labels = r->labels};
    const void *part = r->part[0];
    hth_err err;
    HTH_TRY(hth_kmeans_open_shared(&cpu, &like, &r->shard[0]));
    HTH_GOTO(hth_kmeans_begin(&r->what, &r->shard[0], 1, NULL, &r->run[0]), done);
    hth_kmeans_member(r->run[0]);
    while (hth_kmeans_where(r->run[0]).iterations == 0) {
        HTH_GOTO(hth_kmeans_range(r->run[0], 0, N, true), done);
        HTH_GOTO(hth_kmeans_go(r->run[0], N), done);
        HTH_GOTO(hth_kmeans_part(r->run[0], r->part[0]), done);
        HTH_GOTO(hth_kmeans_join(r->run[0], &part, 1), done);
    }
done:
    hth_kmeans_finish(r->run[0]);
    hth_kmeans_close(r->shard[0]);
    r->run[0] = NULL;
    r->shard[0] = NULL;
    return err;
}

static void memory_that_runs_out_is_told_of(void **state)
{
    rig *r = rig_make(MOST_K, 9, HTH_KMEANS_GIVEN);
    r->part[0] = malloc(hth_kmeans_part_bytes(&r->what, N, D));
    assert_non_null(r->part[0]);
    FAULT_LOOP(run_once(r));
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_find_what_one_finds),
        cmocka_unit_test(members_fill_empty_clusters),
        cmocka_unit_test(an_attempt_is_no_end),
        cmocka_unit_test(the_same_cuts_have_the_same_bits),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(a_spoiled_label_is_of_no_centroid),
        cmocka_unit_test(memory_that_runs_out_is_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
