// SPDX-License-Identifier: Apache-2.0
// IDX files, as MNIST comes in (yann.lecun.com/exdb/mnist): two zero bytes, a type, the number of
// dimensions, each as four bytes, and the elements; all of it big-endian. Images are x, labels y.
//
// The two are found by their usual names: they differ in "images" and "labels" (and "idx3" and
// "idx1"), and each may end in .gz. In a folder with several pairs the one that trains is meant.
#include "client/data/data_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/data/stream.h"
#include "client/dtype.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define IDX_NAME 256
#define IDX_TURN ((size_t)64 << 10) // bytes that are turned around at a time: whole elements

typedef struct idx_file {
    hth_file file;
    char *path;
    hth_stream stream;
    uint64_t start;
    size_t element; // bytes
} idx_file;

typedef struct idx_pair {
    idx_file of[2];
} idx_pair;

static const char *const idx_words[2] = {"images", "labels"};

static bool idx_ends(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);
    return n > k && strcasecmp(name + n - k, tail) == 0;
}

// What a name says the file is: 0 images, 1 labels, -1 neither.
static int idx_role(const char *name)
{
    if (strstr(name, idx_words[0]) != NULL) {
        return 0;
    }
    return strstr(name, idx_words[1]) != NULL ? 1 : -1;
}

bool hth_data_is_idx(const char *name)
{
    const char *idx = strstr(name, "idx");
    return (idx != NULL && idx[3] >= '1' && idx[3] <= '8' && idx_role(name) >= 0) ||
           idx_ends(name, ".idx") || idx_ends(name, ".idx.gz");
}

// idx_stem writes what both names of a pair have in common.
static void idx_stem(const char *name, char out[IDX_NAME])
{
    size_t at = 0;
    int role = idx_role(name);
    const char *word = role >= 0 ? strstr(name, idx_words[role]) : NULL;
    size_t n = strlen(name) - (idx_ends(name, ".gz") ? 3 : 0);
    for (const char *p = name; p < name + n && at + 1 < IDX_NAME; p++) {
        if (p == word) {
            out[at++] = '*';
            p += strlen(idx_words[role]) - 1;
        } else if (strncmp(p, "idx", 3) == 0 && p[3] >= '1' && p[3] <= '8') {
            p += 3;
        } else {
            out[at++] = *p;
        }
    }
    out[at] = 0;
}

// ---- which files

// idx_mate finds the other file of a pair in names; NULL: there is none.
static const char *idx_mate(char *const *names, size_t n, const char *name)
{
    char stem[IDX_NAME], other[IDX_NAME];
    int role = idx_role(name);
    idx_stem(name, stem);
    for (size_t i = 0; role >= 0 && i < n; i++) {
        idx_stem(names[i], other);
        if (idx_role(names[i]) == 1 - role && strcmp(stem, other) == 0) {
            return names[i];
        }
    }
    return NULL;
}

// idx_images finds the images of a folder: those of its only pair, or of the one that trains.
static hth_err idx_images(char *const *names, size_t n, const char **out)
{
    const char *first = NULL, *train = NULL;
    int pairs = 0;
    for (size_t i = 0; i < n; i++) {
        if (!hth_data_is_idx(names[i]) || idx_role(names[i]) != 0 ||
            idx_mate(names, n, names[i]) == NULL) {
            continue;
        }
        first = first != NULL ? first : names[i];
        train = strncmp(names[i], "train", 5) == 0 ? names[i] : train;
        pairs++;
    }
    *out = pairs == 1 ? first : train;
    if (pairs == 0) {
        return hth_fail(HTH_EINVAL, "the folder has no pair of IDX files: one named ..images.., "
                                    "one ..labels..");
    }
    if (*out == NULL) {
        return hth_fail(HTH_EINVAL,
                        "the folder has %d pairs of IDX files, and none is named train..; name one "
                        "of the files",
                        pairs);
    }
    return HTH_OK;
}

static hth_err idx_choose(hth_data *data, char *const *names, size_t n, const char *folder,
                          const char *name, idx_pair *p)
{
    const char *mate;
    if (name == NULL) {
        HTH_TRY(idx_images(names, n, &name));
    }
    if (idx_role(name) < 0) {
        return hth_fail(HTH_EINVAL, "its name has neither 'images' nor 'labels', by which its "
                                    "other half could be found");
    }
    mate = idx_mate(names, n, name);
    if (mate == NULL) {
        return hth_fail(HTH_ENOENT, "the file with the %s is missing next to '%s'",
                        idx_words[1 - idx_role(name)], name);
    }
    const char *pair[2];
    pair[idx_role(name)] = name;
    pair[idx_role(mate)] = mate;
    for (int k = 0; k < 2; k++) {
        p->of[k].path = hth_asprintf("%s/%s", folder, pair[k]);
        if (p->of[k].path == NULL) {
            return hth_no_memory("a dataset");
        }
    }
    return HTH_OK;
}

static hth_err idx_find(hth_data *data, idx_pair *pair)
{
    char **names, *folder;
    size_t n;
    const char *slash = strrchr(data->path, '/'), *name = NULL;
    bool whole = hth_data_is_folder(data->path);
    if (whole) {
        folder = hth_strdup(data->path);
    } else {
        folder =
            slash != NULL ? hth_strndup(data->path, (size_t)(slash - data->path)) : hth_strdup(".");
        name = slash != NULL ? slash + 1 : data->path;
    }
    if (folder == NULL) {
        return hth_no_memory("a dataset");
    }
    hth_err err = hth_data_names(*folder != 0 ? folder : "/", &names, &n);
    if (err == HTH_OK) {
        err = idx_choose(data, names, n, folder, name, pair);
        hth_data_names_free(names, n);
    }
    hth_free(folder);
    return err;
}

// ---- reading

static int idx_dtype(uint8_t type)
{
    switch (type) {
    case 0x08:
        return HEARTH_U8;
    case 0x09:
        return HEARTH_I8;
    case 0x0B:
        return HEARTH_I16;
    case 0x0C:
        return HEARTH_I32;
    case 0x0D:
        return HEARTH_F32;
    case 0x0E:
        return HEARTH_F64;
    default:
        return -1;
    }
}

static uint32_t idx_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static hth_err idx_size(idx_file *file, uint64_t bytes)
{
    uint64_t all = file->start + bytes, packed = file->file.bytes;
    bool stored = file->stream.kind == HTH_STREAM_STORED;
    if (stored ? all != packed : all / HTH_STREAM_RATIO > packed) {
        unsigned long long has = stored ? packed - file->start : packed;
        return hth_fail(HTH_ECORRUPT, "'%s' claims %llu bytes of elements, but the file has %llu%s",
                        file->path, (unsigned long long)bytes, has, stored ? "" : " compressed");
    }
    file->stream.bytes = all;
    return HTH_OK;
}

static hth_err idx_file_open(hth_data *data, idx_file *file, const char *name)
{
    uint8_t head[4 + 4 * HEARTH_MAX_RANK] = {0};
    int64_t shape[HEARTH_MAX_RANK] = {0};
    size_t got = 0;
    HTH_TRY(hth_file_open(file->path, file->path, &file->file));
    hth_stream_init(&file->stream, &file->file, file->path, HTH_STREAM_STORED, 0, file->file.bytes);
    HTH_TRY(hth_stream_some(&file->stream, head, 2, &got));
    if (got == 2 && head[0] == 0x1f && head[1] == 0x8b) {
        file->stream.kind = HTH_STREAM_GZIP;
        file->stream.bytes = UINT64_MAX;
    }
    HTH_TRY(hth_stream_some(&file->stream, head, sizeof head, &got));
    int dtype = idx_dtype(head[2]), rank = head[3];
    if (got < 4 || head[0] != 0 || head[1] != 0 || rank < 1 || rank > HEARTH_MAX_RANK ||
        got < 4 + 4 * (size_t)rank) {
        return hth_fail(HTH_ECORRUPT, "'%s' does not begin like an IDX file", file->path);
    }
    if (dtype < 0) {
        return hth_fail(HTH_ENOTSUP, "'%s' has elements of the unknown type 0x%02x", file->path,
                        head[2]);
    }
    for (int i = 0; i < rank; i++) {
        shape[i] = idx_u32(head + 4 + 4 * i);
    }
    file->start = 4 + 4 * (uint64_t)rank;
    file->element = hth_dtype_names_of(dtype)->bytes;
    HTH_TRY(hth_data_add(data, name, dtype, rank, shape));
    return idx_size(file, data->tensors[data->n_tensors - 1].bytes);
}

static hth_err idx_open(hth_data *data, const hth_data_options *options)
{
    idx_pair *p = data->of = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        return hth_no_memory("a dataset");
    }
    p->of[0].file.fd = p->of[1].file.fd = -1;
    HTH_TRY(idx_find(data, p));
    HTH_TRY(idx_file_open(data, &p->of[0], "x"));
    return idx_file_open(data, &p->of[1], "y");
}

// idx_turn reads elements of more than a byte: whole ones, of which [skip, skip + n) are wanted.
static hth_err idx_turn(idx_file *file, uint64_t at, uint8_t *out, size_t n)
{
    uint8_t some[IDX_TURN];
    size_t e = file->element;
    while (n > 0) {
        size_t skip = (size_t)(at % e), take = n < IDX_TURN - skip ? n : IDX_TURN - skip;
        size_t whole = (skip + take + e - 1) / e * e;
        HTH_TRY(hth_stream_read(&file->stream, file->start + at - skip, some, whole));
        for (size_t i = 0; i < whole; i += e) {
            for (size_t k = 0; k < e / 2; k++) {
                uint8_t b = some[i + k];
                some[i + k] = some[i + e - 1 - k];
                some[i + e - 1 - k] = b;
            }
        }
        memcpy(out, some + skip, take);
        out += take;
        at += take;
        n -= take;
    }
    return HTH_OK;
}

static hth_err idx_read(hth_data *data, int i, uint64_t at, void *out, size_t n)
{
    idx_file *f = &((idx_pair *)data->of)->of[i];
    return f->element == 1 ? hth_stream_read(&f->stream, f->start + at, out, n)
                           : idx_turn(f, at, out, n);
}

static void idx_close(hth_data *data)
{
    idx_pair *p = data->of;
    for (int i = 0; p != NULL && i < 2; i++) {
        hth_stream_fini(&p->of[i].stream);
        hth_file_close(&p->of[i].file);
        hth_free(p->of[i].path);
    }
    hth_free(p);
}

const hth_data_reader hth_data_idx = {"idx", idx_open, idx_read, idx_close};
