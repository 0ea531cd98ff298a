// SPDX-License-Identifier: Apache-2.0
#define _DEFAULT_SOURCE // madvise
#include "engine/train/kmeans/kmeans_source.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cpu/team.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Bytes of a block of a file, about: they are computed with while they are in the processor's
// cache. And of a mapped one.
#define SOURCE_BLOCK  ((size_t)4 << 20)
#define SOURCE_MAPPED ((size_t)16 << 20)
#define SOURCE_PLACES 4 // blocks in memory, at most
// A read that takes longer than so long for each byte did not find it in memory.
#define SOURCE_BYTE_NS 0.6

static size_t source_row(const hth_kmeans_source *source)
{
    return source->d * sizeof(float);
}

static bool source_mapped(const hth_kmeans_source *source)
{
    return source->x->view != NULL;
}

// ---- open

static hth_err source_shape(const hth_kmeans_source *source)
{
    const hth_tensor *t = &source->x->t;
    if (t->dtype != HTH_DT_F32) {
        return hth_fail(HTH_EINVAL, "tensor '%s' is %s: K-means reads FP32", source->x->name,
                        hth_dtype_name(t->dtype));
    }
    if (t->shape.rank != 2) {
        return hth_fail(HTH_EINVAL,
                        "tensor '%s' has %d dimensions: K-means reads points as [points, columns]",
                        source->x->name, t->shape.rank);
    }
    return t->shape.dim[1] > 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the points of tensor '%s' have no columns", source->x->name);
}

static hth_err source_find(hth_kmeans_source *source)
{
    const hth_dataset *set = &source->set;
    source->x = hth_dataset_find(set, "x");
    if (source->x == NULL && set->n_tensors == 1) {
        source->x = &set->tensors[0];
    }
    if (source->x == NULL) {
        return hth_fail(HTH_EINVAL, "there is no tensor 'x', and %d others", set->n_tensors);
    }
    HTH_TRY(source_shape(source));
    source->n = (size_t)source->x->t.shape.dim[0];
    source->d = (size_t)source->x->t.shape.dim[1];
    return HTH_OK;
}

hth_err hth_kmeans_source_open(const hth_kmeans_place *place, hth_kmeans_source *out)
{
    *out = (hth_kmeans_source){.n = 0};
    if (place->store != NULL) {
        HTH_TRY(hth_dataset_open_stored(place->store, place->name, place->tenant, &out->set));
    } else if (place->fd >= 0) {
        HTH_TRY(hth_dataset_open_fd(place->fd, place->name, &out->set));
    } else {
        HTH_TRY(hth_dataset_open(place->name, &out->set));
    }
    hth_err err = source_find(out);
    return place->own ? err : hth_err_prefix(err, "dataset %s", place->name);
}

void hth_kmeans_source_close(hth_kmeans_source *source)
{
    hth_kmeans_ahead_close(source->ahead);
    hth_free(source->window);
    hth_free(source->row);
    source->ahead = NULL;
    source->window = source->row = NULL;
    hth_dataset_close(&source->set);
}

// ---- blocks

typedef struct source_blocks {
    size_t points, places;
} source_blocks;

// source_cut cuts the points of a source with room for `most` (0: as many as it likes) into blocks;
// points 0: they are all at hand.
static source_blocks source_cut(const hth_kmeans_source *source, size_t most)
{
    size_t row = source_row(source), chunk = HTH_KMEANS_CHUNK;
    size_t all = (source->n + chunk - 1) / chunk, room = most / chunk;
    bool at_hand = source->x->t.data != NULL;
    if (at_hand && (most >= source->n || (most == 0 && !source_mapped(source)))) {
        return (source_blocks){.points = 0};
    }
    size_t bytes = source_mapped(source) ? SOURCE_MAPPED : SOURCE_BLOCK,
           block = bytes / row / chunk;
    if (most > 0 && block > room / 2) {
        block = room / 2;
    }
    block = block < all ? block : all;
    block = block > 0 ? block : 1;
    size_t places = (all + block - 1) / block;
    places = places < SOURCE_PLACES ? places : SOURCE_PLACES;
    if (most > 0 && places > room / block) {
        places = room > block ? room / block : 1;
    }
    return (source_blocks){block * chunk, places};
}

uint64_t hth_kmeans_source_bytes(const hth_kmeans_source *source, size_t most)
{
    source_blocks cut = source_cut(source, most);
    size_t points = cut.points * cut.places;
    if (source_mapped(source) && (most == 0 || points == 0)) {
        return 0; // pages that the system can take back
    }
    points = points > 0 && points < source->n ? points : source->n;
    return (uint64_t)points * source_row(source);
}

static hth_err source_fetch(void *ctx, size_t block);

static hth_err source_ahead(hth_kmeans_source *source)
{
    size_t blocks = (source->n + source->most - 1) / source->most;
    const hth_kmeans_blocks ahead = {source_fetch, source, blocks, source->places};
    return source->places > 1 ? hth_kmeans_ahead_open(&ahead, &source->ahead) : HTH_OK;
}

hth_err hth_kmeans_source_window(hth_kmeans_source *source, size_t most)
{
    source_blocks cut = source_cut(source, most);
    source->most = cut.points;
    source->places = cut.places;
    source->drops = most > 0;
    source->next = SIZE_MAX;
    if (source->most == 0) {
        return HTH_OK;
    }
    if (!source_mapped(source)) {
        size_t points = source->most * source->places, row = source_row(source);
        hth_dataset_tensor *x = (hth_dataset_tensor *)source->x; // source->set's
        hth_free(x->t.data); // a small one, which is read by blocks all the same
        x->t.data = NULL;
        points = points < source->n ? points : source->n;
        (void)posix_fadvise(source->set.file.fd, 0, 0, POSIX_FADV_SEQUENTIAL); // more is read ahead
        source->window = hth_alloc_large(points * row);
        source->row = hth_calloc(1, row);
        if (source->window == NULL || source->row == NULL) {
            return hth_no_memory("%zu points", points);
        }
    }
    return source_ahead(source);
}

// source_pass lets go of mapped pages in front of `at`.
static void source_pass(hth_kmeans_source *source, uint64_t at)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = at / page * page;
    char *base = source->x->t.data;
    source->passed = at < source->passed ? 0 : source->passed; // another pass has begun
    if (end > source->passed && ((uintptr_t)base & (page - 1)) == 0) {
        (void)madvise(base + source->passed, end - source->passed, MADV_DONTNEED);
        source->passed = end;
    }
}

// ---- reading

static float *source_place(const hth_kmeans_source *source, size_t block)
{
    return source->window + block % source->places * source->most * source->d;
}

static size_t source_block_bytes(const hth_kmeans_source *source, size_t block)
{
    size_t left = source->n - block * source->most;
    return (left < source->most ? left : source->most) * source_row(source);
}

// source_touch has the pages of a mapped block come.
static void source_touch(const hth_kmeans_source *source, size_t block)
{
    size_t bytes = source_block_bytes(source, block), page = (size_t)sysconf(_SC_PAGESIZE);
    const volatile char *at =
        (const char *)source->x->t.data + (uint64_t)block * source->most * source_row(source);
    for (size_t i = 0; i < bytes; i += page) {
        (void)at[i];
    }
}

// Bytes [from, to) of a block, of a file.
static hth_err source_read(const hth_kmeans_source *source, size_t block, size_t from, size_t to)
{
    uint64_t at = source->x->at + (uint64_t)block * source->most * source_row(source);
    return hth_file_read(&source->set.file, source->set.name, at + from,
                         (char *)source_place(source, block) + from, to - from);
}

// On the thread that reads ahead.
static hth_err source_fetch(void *ctx, size_t block)
{
    const hth_kmeans_source *source = ctx;
    if (source_mapped(source)) {
        source_touch(source, block);
        return HTH_OK;
    }
    return source_read(source, block, 0, source_block_bytes(source, block));
}

typedef struct source_part {
    const hth_kmeans_source *source;
    size_t block;
    atomic_int failed;
} source_part;

static void source_read_part(void *arg, int i, int n)
{
    source_part *part = arg;
    size_t begin, end;
    hth_team_range(source_block_bytes(part->source, part->block), i, n, &begin, &end);
    if (source_read(part->source, part->block, begin, end) != HTH_OK) {
        part->failed = 1;
    }
}

// source_fill reads a block with the threads that compute with it, and what follows it ahead where
// that came from a disk. What failed on one of them is read again, to have its sentence here.
static hth_err source_fill(hth_kmeans_source *source, size_t block)
{
    source_part part = {.source = source, .block = block};
    size_t bytes = source_block_bytes(source, block);
    uint64_t start_ns = hth_now_ns();
    hth_team_run(source_read_part, &part);
    bool slow = (double)(hth_now_ns() - start_ns) > SOURCE_BYTE_NS * (double)bytes;
    if (part.failed) {
        return source_read(source, block, 0, bytes);
    }
    if (slow && source->ahead != NULL) {
        hth_kmeans_ahead_start(source->ahead, block);
    }
    return HTH_OK;
}

static hth_err source_take(hth_kmeans_source *source, size_t block, bool begins)
{
    if (begins) {
        HTH_TRY(hth_file_unchanged(&source->set.file, source->set.name));
    } else if (block == source->block) {
        return HTH_OK;
    }
    source->block = block;
    bool there = source->ahead != NULL && hth_kmeans_ahead_take(source->ahead, block, true);
    return there ? HTH_OK : source_fill(source, block);
}

// source_cold: the next mapped block is on the disk only.
static bool source_cold(const hth_kmeans_source *source, size_t block)
{
    uint64_t at = (uint64_t)(block + 1) * source->most * source_row(source);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char resident = 1;
    if ((block + 1) * source->most >= source->n) {
        return false;
    }
    char *address = (char *)source->x->t.data + at;
    (void)mincore(address - ((uintptr_t)address & (page - 1)), 1, &resident);
    return (resident & 1) == 0;
}

static void source_take_mapped(hth_kmeans_source *source, size_t block, bool begins)
{
    if (!begins && block == source->block) {
        return;
    }
    source->block = block;
    if (source->ahead != NULL && !hth_kmeans_ahead_take(source->ahead, block, false) &&
        source_cold(source, block)) {
        hth_kmeans_ahead_start(source->ahead, block);
    }
}

// A point of any block, for which the present one stays.
static hth_err source_one(hth_kmeans_source *source, size_t point, const float **x)
{
    size_t row = source_row(source);
    *x = source->row;
    return hth_file_read(&source->set.file, source->set.name, source->x->at + (uint64_t)point * row,
                         source->row, row);
}

static hth_err source_rows(void *ctx, size_t first, size_t count, const float **x)
{
    hth_kmeans_source *source = ctx;
    size_t block = first / source->most;
    bool mapped = source_mapped(source), begins = first != source->next;
    if (mapped) {
        *x = (const float *)source->x->t.data + first * source->d;
    }
    if (count == 1 && begins) { // one of a few, anywhere
        return mapped ? HTH_OK : source_one(source, first, x);
    }
    if (begins && source->ahead != NULL) { // another pass
        hth_kmeans_ahead_stop(source->ahead);
    }
    source->next = first + count;
    if (!mapped) {
        HTH_TRY(source_take(source, block, begins));
        *x = source_place(source, block) + (first - block * source->most) * source->d;
        return HTH_OK;
    }
    if (source->drops) {
        source_pass(source, (uint64_t)first * source_row(source));
    }
    source_take_mapped(source, block, begins);
    return HTH_OK;
}

hth_kmeans_points hth_kmeans_source_points(hth_kmeans_source *source)
{
    return (hth_kmeans_points){source_rows, source, source->most};
}

const float *hth_kmeans_source_all(const hth_kmeans_source *source)
{
    return source->most == 0 ? source->x->t.data : NULL;
}

hth_err hth_kmeans_source_copy(hth_kmeans_source *source, float *out)
{
    size_t bytes = source->n * source_row(source);
    if (source->x->t.data != NULL) {
        memcpy(out, source->x->t.data, bytes);
        return HTH_OK;
    }
    return hth_file_read(&source->set.file, source->set.name, source->x->at, out, bytes);
}
