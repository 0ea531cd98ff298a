// SPDX-License-Identifier: Apache-2.0
// Points of a file, block by block: read by all threads, and ahead where the clock says that
// reading takes long.
#include "engine/train/kmeans/kmeans_source.h"

#include "base/clock.h"
#include "base/test.h"
#include "device/cpu/team.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define N 50000
#define D 3

typedef struct rig {
    char path[100];
    float *x;
    hth_kmeans_source source;
    hth_kmeans_points points;
} rig;

static void rig_write(rig *r)
{
    char head[200];
    int fd = mkstemp(strcpy(r->path, "/tmp/hearth-points-XXXXXX"));
    assert_true(fd >= 0);
    uint64_t n = (uint64_t)snprintf(
        head, sizeof head, "{\"x\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}",
        N, D, N * D * sizeof(float));
    r->x = calloc(N * D, sizeof *r->x);
    assert_non_null(r->x);
    for (size_t i = 0; i < N * D; i++) {
        r->x[i] = (float)i;
    }
    assert_int_equal(write(fd, &n, 8), 8);
    assert_int_equal(write(fd, head, n), (ssize_t)n);
    assert_int_equal(write(fd, r->x, N * D * sizeof *r->x), N * D * sizeof *r->x);
    close(fd);
}

static void rig_open(rig *r, size_t most)
{
    const hth_kmeans_place place = {.name = r->path, .fd = -1};
    assert_ok(hth_kmeans_source_open(&place, &r->source));
    assert_ok(hth_kmeans_source_window(&r->source, most));
    assert_null(hth_kmeans_source_all(&r->source));
    r->points = hth_kmeans_source_points(&r->source);
    assert_int_equal(r->points.most % HTH_KMEANS_CHUNK, 0);
    assert_true(most == 0 || r->points.most * r->source.places <= most);
}

static void same_rows(const rig *r, size_t first, size_t count)
{
    const float *x;
    assert_ok(r->points.rows(r->points.ctx, first, count, &x));
    assert_memory_equal(x, r->x + first * D, count * D * sizeof *x);
}

// Points [first, last), in pieces as a run takes them, and now and then one that is anywhere.
static void same_pass(const rig *r, size_t first, size_t last, size_t step)
{
    for (size_t at = first, n; at < last; at += n) {
        n = r->points.most - at % r->points.most;
        n = n < step ? n : step;
        n = n < last - at ? n : last - at;
        same_rows(r, at, n);
        if (at / step % 3 == 1) {
            same_rows(r, at * 7 % N, 1);
            same_rows(r, at, n > 1 ? 1 : n); // the piece's block is still there
        }
    }
}

static atomic_ullong slow_ns;

static uint64_t slow_clock(void *ctx)
{
    slow_ns += 1000000000u; // every look at the clock comes a second later
    return slow_ns;
}

static void every_pass_reads_the_same(void **state)
{
    static const size_t most[] = {HTH_KMEANS_CHUNK, 2 * HTH_KMEANS_CHUNK, 3 * HTH_KMEANS_CHUNK,
                                  9 * HTH_KMEANS_CHUNK};
    rig r;
    hth_team_set(2);
    rig_write(&r);
    for (int slow = 0; slow < 2; slow++) {
        hth_clock_inject(slow ? slow_clock : NULL, NULL);
        for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
            rig_open(&r, most[i]);
            assert_int_equal(r.source.ahead != NULL, most[i] > HTH_KMEANS_CHUNK);
            same_pass(&r, 0, N, 1500);
            same_pass(&r, 0, N, N);
            same_pass(&r, 12345, 40001, 4096); // a member's, which ends early
            same_pass(&r, 100, 30000, 777);
            hth_kmeans_source_close(&r.source);
        }
    }
    hth_clock_inject(NULL, NULL);
    unlink(r.path);
    free(r.x);
}

// The thread that reads ahead meets the end of the file first; the sentence is the caller's.
static void a_file_that_is_cut_is_told_of(void **state)
{
    rig r;
    const float *x;
    hth_err err = HTH_OK;
    hth_team_set(2);
    rig_write(&r);
    hth_clock_inject(slow_clock, NULL);
    rig_open(&r, 2 * HTH_KMEANS_CHUNK);
    same_rows(&r, 0, 100);
    assert_int_equal(truncate(r.path, N * D * sizeof(float) / 2), 0);
    for (size_t at = 0; at < N && err == HTH_OK; at += HTH_KMEANS_CHUNK) {
        size_t n = N - at < HTH_KMEANS_CHUNK ? N - at : HTH_KMEANS_CHUNK;
        err = r.points.rows(r.points.ctx, at + 100 * (at == 0), n - 100 * (at == 0), &x);
    }
    assert_err(err, HTH_EIO, "changed while it was being read");
    assert_err(r.points.rows(r.points.ctx, 0, 100, &x), HTH_EIO, "changed while it was being read");
    hth_kmeans_source_close(&r.source);
    hth_clock_inject(NULL, NULL);
    unlink(r.path);
    free(r.x);
}

static hth_err open_once(const rig *r)
{
    const hth_kmeans_place place = {.name = r->path, .fd = -1};
    hth_kmeans_source source;
    hth_err err = hth_kmeans_source_open(&place, &source);
    if (err == HTH_OK) {
        err = hth_kmeans_source_window(&source, 2 * HTH_KMEANS_CHUNK);
    }
    hth_kmeans_source_close(&source);
    return err;
}

static void memory_that_runs_out_is_told_of(void **state)
{
    rig r;
    rig_write(&r);
    FAULT_LOOP(open_once(&r));
    unlink(r.path);
    free(r.x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_reads_the_same),
        cmocka_unit_test(a_file_that_is_cut_is_told_of),
        cmocka_unit_test(memory_that_runs_out_is_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
