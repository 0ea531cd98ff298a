// SPDX-License-Identifier: Apache-2.0
// K-means of random points, or of a file's: how long the iterations take, and what they end with.
//
// usage: kmeans_bench [POINTS COLUMNS K ITERATIONS THREADS FILE START [TOLERANCE]]
// FILE has POINTS x COLUMNS floats, START K x COLUMNS. Fits once for each line of the standard
// input and answers "SECONDS CPU_SECONDS INERTIA ITERATIONS"; at its end writes START.labels
// (u32) and START.centroids (f64). Without arguments: 81,920 random points of 100 columns, 5, 64
// and 1,000 centroids, twice each.
#include "base/alloc.h"
#include "base/clock.h"
#include "base/isa.h"
#include "kernels/kmeans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct bench {
    size_t n, d, k, iterations;
    int threads;
    double tolerance;
    float *x, *start;
    double *centroids;
    uint32_t *labels;
} bench;

static void check(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "%s: %s\n", what, hth_err_detail());
        exit(1);
    }
}

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void bench_fit(const bench *b)
{
    hth_device device = {.props = {.name = "cpu:0", .n_threads = b->threads}};
    hth_kmeans what = {.k = b->k,
                       .iterations = b->iterations,
                       .tolerance = b->tolerance,
                       .init = HTH_KMEANS_GIVEN,
                       .start = b->start};
    hth_kmeans_result result = {.centroids = b->centroids};
    hth_kmeans_shard *shard = NULL;
    uint64_t began = hth_now_ns();
    double cpu = cpu_seconds();
    check(hth_kmeans_open(&device, b->x, b->n, b->d, b->k, b->labels, &shard) == HTH_OK, "open");
    check(hth_kmeans_fit(&what, &shard, 1, &result) == HTH_OK, "fit");
    hth_kmeans_close(shard);
    printf("%.4f %.4f %.9g %zu\n", (double)(hth_now_ns() - began) * 1e-9, cpu_seconds() - cpu,
           result.inertia, result.iterations);
    fflush(stdout);
}

static void bench_alloc(bench *b)
{
    b->x = hth_alloc_large(b->n * b->d * sizeof *b->x);
    b->start = hth_alloc(b->k * b->d * sizeof *b->start);
    b->centroids = hth_alloc(b->k * b->d * sizeof *b->centroids);
    b->labels = hth_alloc(b->n * sizeof *b->labels);
    check(b->x != NULL && b->start != NULL && b->centroids != NULL && b->labels != NULL, "memory");
}

static void bench_free(bench *b)
{
    hth_free(b->x);
    hth_free(b->start);
    hth_free(b->centroids);
    hth_free(b->labels);
}

static void bench_read(const char *path, float *to, size_t count)
{
    FILE *f = fopen(path, "rb");
    check(f != NULL && fread(to, sizeof *to, count, f) == count, path);
    fclose(f);
}

static void bench_write(const char *start, const char *end, const void *from, size_t bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", start, end);
    FILE *f = fopen(path, "wb");
    check(f != NULL && fwrite(from, 1, bytes, f) == bytes && fclose(f) == 0, path);
}

static void bench_file(const char *const *arg)
{
    bench b = {.n = strtoull(arg[0], NULL, 10),
               .d = strtoull(arg[1], NULL, 10),
               .k = strtoull(arg[2], NULL, 10),
               .iterations = strtoull(arg[3], NULL, 10),
               .threads = atoi(arg[4]),
               .tolerance = arg[7] != NULL ? atof(arg[7]) : 0};
    char line[16];
    bench_alloc(&b);
    bench_read(arg[5], b.x, b.n * b.d);
    bench_read(arg[6], b.start, b.k * b.d);
    while (fgets(line, sizeof line, stdin) != NULL) {
        bench_fit(&b);
    }
    bench_write(arg[6], "labels", b.labels, b.n * sizeof *b.labels);
    bench_write(arg[6], "centroids", b.centroids, b.k * b.d * sizeof *b.centroids);
    bench_free(&b);
}

static void bench_random(size_t k)
{
    bench b = {.n = 81920, .d = 100, .k = k, .iterations = 20, .threads = 2};
    uint32_t state = 1;
    bench_alloc(&b);
    for (size_t i = 0; i < b.n * b.d; i++) {
        state = state * 1664525U + 1013904223U;
        b.x[i] = (float)(state >> 8) * 0x1p-24F;
    }
    memcpy(b.start, b.x, k * b.d * sizeof *b.x);
    printf("%zu points x %zu, k = %zu: seconds, of all threads, inertia, iterations\n", b.n, b.d,
           k);
    bench_fit(&b);
    bench_fit(&b);
    bench_free(&b);
}

int main(int argc, char **argv)
{
    check(hth_isa_limit(getenv("HEARTH_ISA")) == HTH_OK, "HEARTH_ISA");
    if (argc == 8 || argc == 9) {
        bench_file((const char *const *)argv + 1);
        return 0;
    }
    bench_random(5);
    bench_random(64);
    bench_random(1000);
    return 0;
}
