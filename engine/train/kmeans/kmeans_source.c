// SPDX-License-Identifier: Apache-2.0
#define _DEFAULT_SOURCE // madvise
#include "engine/train/kmeans/kmeans_source.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Bytes of a file that are read at a time, at most: they are computed with while they are in the
// processor's cache.
#define SOURCE_WINDOW ((size_t)4 << 20)

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
    return hth_err_prefix(source_find(out), "dataset %s", place->name);
}

void hth_kmeans_source_close(hth_kmeans_source *source)
{
    hth_free(source->window);
    source->window = NULL;
    hth_dataset_close(&source->set);
}

// ---- windows

// source_most is how many points a window of about `most` has, 0: all points need none.
static size_t source_most(const hth_kmeans_source *source, size_t most)
{
    bool at_hand = source->x->t.data != NULL;
    size_t file = SOURCE_WINDOW / source_row(source) + 1;
    if (!source_mapped(source) && (most > 0 || !at_hand)) {
        most = most > 0 && most < file ? most : file;
    }
    if (most == 0 || (at_hand && most >= source->n)) {
        return 0;
    }
    size_t chunks = most / HTH_KMEANS_CHUNK;
    size_t all = (source->n + HTH_KMEANS_CHUNK - 1) / HTH_KMEANS_CHUNK;
    chunks = chunks < 1 ? 1 : chunks;
    return (chunks < all ? chunks : all) * HTH_KMEANS_CHUNK;
}

uint64_t hth_kmeans_source_bytes(const hth_kmeans_source *source, size_t most)
{
    size_t points = source_most(source, most);
    if (points == 0 && source_mapped(source)) {
        return 0; // pages that the system can take back
    }
    points = points > 0 && points < source->n ? points : source->n;
    return (uint64_t)points * source_row(source);
}

hth_err hth_kmeans_source_window(hth_kmeans_source *source, size_t most)
{
    source->most = source_most(source, most);
    if (source->most == 0 || source_mapped(source)) {
        return HTH_OK;
    }
    hth_dataset_tensor *x = (hth_dataset_tensor *)source->x; // source->set's
    hth_free(x->t.data); // a small one, which is read by windows all the same
    x->t.data = NULL;
    size_t points = source->most < source->n ? source->most : source->n;
    (void)posix_fadvise(source->set.file.fd, 0, 0, POSIX_FADV_SEQUENTIAL); // more is read ahead
    source->window = hth_alloc_large(points * source_row(source));
    return source->window != NULL ? HTH_OK : hth_no_memory("a window of %zu points", points);
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

typedef struct source_part {
    const hth_kmeans_source *source;
    uint64_t at; // in the file
    size_t bytes;
    atomic_int failed;
} source_part;

static hth_err source_read(const hth_kmeans_source *source, uint64_t at, size_t from, size_t to)
{
    return hth_file_read(&source->set.file, source->set.name, at + from,
                         (char *)source->window + from, to - from);
}

static void source_read_part(void *arg, int i, int n)
{
    source_part *part = arg;
    size_t begin, end;
    hth_team_range(part->bytes, i, n, &begin, &end);
    if (source_read(part->source, part->at, begin, end) != HTH_OK) {
        part->failed = 1;
    }
}

// source_fill reads `bytes` to the window with the threads that compute with them. What failed on
// one of them is read again, to have its sentence here.
static hth_err source_fill(hth_kmeans_source *source, uint64_t at, size_t bytes)
{
    source_part part = {.source = source, .at = at, .bytes = bytes};
    hth_team_run(source_read_part, &part);
    return part.failed ? source_read(source, at, 0, bytes) : HTH_OK;
}

static hth_err source_rows(void *ctx, size_t first, size_t count, const float **x)
{
    hth_kmeans_source *source = ctx;
    size_t row = source_row(source);
    if (source_mapped(source)) {
        if (count > 1) {
            source_pass(source, (uint64_t)first * row);
        }
        *x = (const float *)source->x->t.data + first * source->d;
        return HTH_OK;
    }
    if (first == 0) {
        HTH_TRY(hth_file_unchanged(&source->set.file, source->set.name));
    }
    HTH_TRY(source_fill(source, source->x->at + first * row, count * row));
    *x = source->window;
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
