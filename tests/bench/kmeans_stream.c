// SPDX-License-Identifier: Apache-2.0
// Points that each pass reads from a disk: iterations over a file that is in no cache, compared
// with plain reads of the same file, in turns.
//
// usage: kmeans_stream [FOLDER [MIB K THREADS]]
// Makes a file of random points in FOLDER, of 100 columns, and takes it away again. Prints MB/s of
// reading in order, of reading by THREADS at once, of an iteration, and of one over a file that is
// in memory; in the end their medians, and the iteration's share of the better way to read. Without
// a folder: a small file in the present one.
#define _DEFAULT_SOURCE // posix_fadvise
#include "base/alloc.h"
#include "base/clock.h"
#include "device/cpu/team.h"
#include "engine/train/kmeans/kmeans_source.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS 100
#define BLOCK   ((size_t)4 << 20)
#define PAGE    ((size_t)4096)
#define ROUNDS  9
#define WAYS    4

typedef struct bench {
    char path[400];
    size_t bytes, n, k;
    int threads;
    float *block; // of each thread
} bench;

static void check(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "%s: %s\n", what, hth_err_detail());
        exit(1);
    }
}

static void make_file(const bench *b)
{
    char head[200];
    FILE *f = fopen(b->path, "wb");
    uint32_t state = 7;
    check(f != NULL, b->path);
    int n = snprintf(head, sizeof head,
                     "{\"x\":{\"dtype\":\"F32\",\"shape\":[%zu,%d],\"data_offsets\":[0,%zu]}}",
                     b->n, COLUMNS, b->bytes);
    uint64_t length = (uint64_t)n;
    check(fwrite(&length, 8, 1, f) == 1 && fwrite(head, (size_t)n, 1, f) == 1, "write");
    for (size_t i = 0; i < BLOCK / sizeof(float); i++) {
        state = state * 1664525U + 1013904223U;
        b->block[i] = (float)(state >> 8) * 0x1p-24F;
    }
    for (size_t left = b->bytes; left > 0;) {
        size_t part = left < BLOCK ? left : BLOCK;
        check(fwrite(b->block, part, 1, f) == 1, "write");
        left -= part;
    }
    check(fflush(f) == 0 && fsync(fileno(f)) == 0 && fclose(f) == 0, "write");
}

// resident is how many of the file's pages are in memory.
static size_t resident(int fd, size_t bytes)
{
    size_t pages = (bytes + PAGE - 1) / PAGE, n = 0;
    unsigned char *in = hth_alloc(pages);
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    check(in != NULL && p != MAP_FAILED && mincore(p, bytes, in) == 0, "mincore");
    for (size_t i = 0; i < pages; i++) {
        n += in[i] & 1;
    }
    munmap(p, bytes);
    hth_free(in);
    return n;
}

// evict has the system forget the file's pages. Those that it reads ahead it keeps at first.
static void evict(const bench *b)
{
    int fd = open(b->path, O_RDONLY | O_CLOEXEC);
    check(fd >= 0, b->path);
    while (resident(fd, b->bytes) > b->bytes / PAGE / 100) {
        check(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    close(fd);
}

typedef struct reading {
    const bench *b;
    int fd;
} reading;

static void read_part(void *arg, int i, int n)
{
    const reading *r = arg;
    char *to = (char *)r->b->block + (size_t)i * BLOCK;
    for (size_t at = (size_t)i * BLOCK; at < r->b->bytes; at += (size_t)n * BLOCK) {
        check(pread(r->fd, to, BLOCK, (off_t)at) > 0, "read");
    }
}

static double read_all(const bench *b, int threads)
{
    evict(b);
    reading r = {b, open(b->path, O_RDONLY | O_CLOEXEC)};
    check(r.fd >= 0, b->path);
    uint64_t start_ns = hth_now_ns();
    hth_team_set(threads);
    hth_team_run(read_part, &r);
    double mb = (double)b->bytes * 1e3 / (double)(hth_now_ns() - start_ns);
    close(r.fd);
    return mb;
}

// A pass after the first look, in the same parts as a job's.
static double iterate(const bench *b, hth_kmeans_run *run, bool cold)
{
    if (cold) {
        evict(b);
    }
    size_t before = hth_kmeans_where(run).iterations;
    uint64_t start_ns = hth_now_ns();
    while (hth_kmeans_where(run).iterations == before) {
        check(hth_kmeans_go(run, 8192) == HTH_OK, "iteration");
    }
    return (double)b->bytes * 1e3 / (double)(hth_now_ns() - start_ns);
}

static int more(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *mb)
{
    qsort(mb, ROUNDS, sizeof *mb, more);
    return mb[ROUNDS / 2];
}

static void bench_run(const bench *b, hth_kmeans_run *run)
{
    while (hth_kmeans_where(run).phase != HTH_KMEANS_ITERATES) {
        check(hth_kmeans_go(run, 8192) == HTH_OK, "look");
    }
    double mb[WAYS][ROUNDS], middle[WAYS];
    for (int i = 0; i < ROUNDS; i++) {
        mb[0][i] = read_all(b, 1);
        mb[1][i] = read_all(b, b->threads);
        mb[2][i] = iterate(b, run, true);
        mb[3][i] = iterate(b, run, false);
        printf("%.0f %.0f %.0f %.0f\n", mb[0][i], mb[1][i], mb[2][i], mb[3][i]);
        fflush(stdout);
    }
    for (int way = 0; way < WAYS; way++) {
        middle[way] = median(mb[way]);
    }
    printf("median MB/s: %.0f %.0f %.0f %.0f; of reading: %.2f\n", middle[0], middle[1], middle[2],
           middle[3], middle[2] / (middle[0] > middle[1] ? middle[0] : middle[1]));
}

static void bench_file(const bench *b)
{
    hth_device device = {.props = {.name = "cpu:0", .n_threads = b->threads}};
    hth_kmeans what = {.k = b->k, .iterations = 2 * ROUNDS + 1, .init = HTH_KMEANS_RANDOM};
    hth_kmeans_place place = {.name = b->path, .fd = -1};
    hth_kmeans_source source;
    hth_kmeans_shard *shard = NULL;
    hth_kmeans_run *run = NULL;
    uint32_t *labels = hth_calloc(b->n, sizeof *labels);
    check(labels != NULL, "memory");
    check(hth_kmeans_source_open(&place, &source) == HTH_OK, "open");
    check(hth_kmeans_source_window(&source, 0) == HTH_OK, "window");
    hth_kmeans_points points = hth_kmeans_source_points(&source);
    check(hth_kmeans_open_points(&device, &points, b->n, COLUMNS, b->k, labels, &shard) == HTH_OK,
          "open");
    check(hth_kmeans_begin(&what, &shard, 1, NULL, &run) == HTH_OK, "begin");
    bench_run(b, run);
    hth_kmeans_finish(run);
    hth_kmeans_close(shard);
    hth_kmeans_source_close(&source);
    hth_free(labels);
}

int main(int argc, char **argv)
{
    bench b = {.k = 5, .threads = 2};
    size_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 32;
    b.k = argc > 3 ? strtoull(argv[3], NULL, 10) : b.k;
    b.threads = argc > 4 ? atoi(argv[4]) : b.threads;
    b.n = (mib << 20) / (COLUMNS * sizeof(float));
    b.bytes = b.n * COLUMNS * sizeof(float);
    b.block = hth_alloc((size_t)b.threads * BLOCK);
    check(b.block != NULL, "memory");
    snprintf(b.path, sizeof b.path, "%s/kmeans_stream.%d.safetensors", argc > 1 ? argv[1] : ".",
             (int)getpid());
    make_file(&b);
    bench_file(&b);
    unlink(b.path);
    hth_free(b.block);
    return 0;
}
