// SPDX-License-Identifier: Apache-2.0
// Finds the reader of a dataset, and checks what all of them have to agree on.
#include "client/data/data_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/data/archive.h"
#include "client/dtype.h"

#include <jansson.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

hth_err hth_data_add(hth_data *data, const char *name, int dtype, int rank, const int64_t *shape)
{
    if (data->n_tensors == HTH_DATA_TENSORS) {
        return hth_fail(HTH_EINVAL, "it holds more than %d tensors", HTH_DATA_TENSORS);
    }
    for (int i = 0; i < data->n_tensors; i++) {
        if (strcmp(data->tensors[i].name, name) == 0) {
            return hth_fail(HTH_EINVAL, "two tensors are named '%.64s'", name);
        }
    }
    hth_data_tensor *t = &data->tensors[data->n_tensors];
    if (hth_dtype_bytes_of(dtype, rank, shape, &t->bytes) != HTH_OK) {
        return hth_err_prefix(HTH_EINVAL, "tensor '%.64s'", name);
    }
    t->dtype = (hearth_dtype)dtype;
    t->rank = rank;
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    t->name = hth_strdup(name);
    data->n_tensors += t->name != NULL;
    return t->name != NULL ? HTH_OK : hth_no_memory("a dataset");
}

// ---- folders

bool hth_data_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

void hth_data_names_free(char **names, size_t n)
{
    for (size_t i = 0; names != NULL && i < n; i++) {
        hth_free(names[i]);
    }
    hth_free(names);
}

static int names_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static hth_err names_read(DIR *dir, char ***names, size_t *n)
{
    size_t cap = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') {
            continue;
        }
        if (*n == cap) {
            cap = cap > 0 ? 2 * cap : 64;
            char **more = hth_realloc(*names, cap, sizeof *more);
            if (more == NULL) {
                return hth_no_memory("a dataset");
            }
            *names = more;
        }
        if (((*names)[*n] = hth_strdup(e->d_name)) == NULL) {
            return hth_no_memory("a dataset");
        }
        ++*n;
    }
    return HTH_OK;
}

hth_err hth_data_names(const char *folder, char ***names, size_t *n)
{
    *names = NULL;
    *n = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return hth_fail_errno(errno, "cannot read the folder '%s'", folder);
    }
    hth_err err = names_read(dir, names, n);
    closedir(dir);
    if (err != HTH_OK) {
        hth_data_names_free(*names, *n);
        *names = NULL;
        *n = 0;
        return err;
    }
    if (*n > 1) {
        qsort(*names, *n, sizeof **names, names_order);
    }
    return HTH_OK;
}

// ---- which reader

// A folder: IDX files, arrays, or a folder of images per class.
static hth_err data_folder(const char *path, const hth_data_reader **out)
{
    char **names;
    size_t n;
    HTH_TRY(hth_data_names(path, &names, &n));
    *out = n > 0 ? &hth_data_images : NULL;
    for (size_t i = 0; i < n; i++) {
        const char *dot = strrchr(names[i], '.');
        if (hth_data_is_idx(names[i])) {
            *out = &hth_data_idx;
            break;
        }
        *out = dot != NULL && strcmp(dot, ".npy") == 0 ? &hth_data_npy : *out;
    }
    hth_data_names_free(names, n);
    return *out != NULL ? HTH_OK : hth_fail(HTH_EINVAL, "the folder is empty");
}

static bool data_ends(const char *path, const char *tail)
{
    size_t n = strlen(path), k = strlen(tail);
    return n >= k && strcasecmp(path + n - k, tail) == 0;
}

static const hth_data_reader *data_begins(const char *path, const uint8_t head[8], size_t n)
{
    if (n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0) {
        return &hth_data_npy;
    }
    if (hth_archive_is(head, n)) {
        return &hth_data_npz;
    }
    if (data_ends(path, ".csv") || data_ends(path, ".tsv")) {
        return &hth_data_csv;
    }
    bool gzip = n >= 2 && head[0] == 0x1f && head[1] == 0x8b;
    if (gzip || (n >= 4 && head[0] == 0 && head[1] == 0 && head[2] >= 8 && head[2] <= 14 &&
                 head[3] >= 1 && head[3] <= HEARTH_MAX_RANK)) {
        return &hth_data_idx;
    }
    return data_ends(path, ".safetensors") || (n == 8 && head[6] == 0 && head[7] == 0)
               ? &hth_data_safetensors
               : NULL;
}

static hth_err data_reader(const char *path, const hth_data_reader **out)
{
    hth_file f;
    uint8_t head[8];
    if (hth_data_is_folder(path)) {
        return data_folder(path, out);
    }
    HTH_TRY(hth_file_open(path, path, &f));
    size_t n = f.bytes < sizeof head ? (size_t)f.bytes : sizeof head;
    hth_err err = hth_file_read(&f, path, 0, head, n);
    hth_file_close(&f);
    HTH_TRY(err);
    if (n == 0) {
        return hth_fail(HTH_EINVAL, "the file is empty");
    }
    *out = data_begins(path, head, n);
    return *out != NULL
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the file is none of safetensors, .npy, .npz, .csv, .tsv and "
                                      "IDX; a dataset may also be a folder of images");
}

hth_err hth_data_format(const char *path, const char **format)
{
    const hth_data_reader *reader;
    HTH_TRY(data_reader(path, &reader));
    *format = reader->format;
    return HTH_OK;
}

hth_err hth_data_size(const char *text, hth_data_options *options)
{
    int used = 0;
    bool two = sscanf(text, "%5dx%5d%n", &options->height, &options->width, &used) == 2;
    return two && text[used] == 0 && options->height > 0 && options->width > 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'%.40s' is not a size: HxW, height and width in pixels",
                          text);
}

// ---- open, read, close

static hth_err data_check(hth_data *data)
{
    for (int i = 0; i < data->n_tensors; i++) {
        const hth_data_tensor *t = &data->tensors[i];
        if (t->rank < 1) {
            return hth_fail(HTH_EINVAL, "tensor '%s' is a single value, not a list of samples",
                            t->name);
        }
        if (t->shape[0] != data->tensors[0].shape[0]) {
            return hth_fail(HTH_EINVAL, "'%s' has %lld samples, but '%s' has %lld",
                            data->tensors[0].name, (long long)data->tensors[0].shape[0], t->name,
                            (long long)t->shape[0]);
        }
        if (t->bytes == 0) {
            return hth_fail(HTH_EINVAL, "tensor '%s' has no values", t->name);
        }
    }
    data->n_samples = data->n_tensors > 0 ? data->tensors[0].shape[0] : 0;
    return data->n_samples > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "there are no samples");
}

static hth_err data_fill(hth_data *data, const hth_data_options *options)
{
    HTH_TRY(data_reader(data->path, &data->reader));
    data->format = data->reader->format;
    if (options->label != NULL && data->reader != &hth_data_csv) {
        return hth_fail(HTH_EINVAL, "a label names a column of a CSV, and this is %s",
                        data->format);
    }
    if (options->height != 0 && data->reader != &hth_data_images) {
        return hth_fail(HTH_EINVAL, "a size is for images, and this is %s", data->format);
    }
    HTH_TRY(data->reader->open(data, options));
    return data_check(data);
}

hth_err hth_data_open(const char *path, const hth_data_options *options, hth_data **out)
{
    static const hth_data_options none;
    *out = NULL;
    hth_data *d = hth_calloc(1, sizeof *d);
    if (d == NULL || (d->path = hth_strdup(path)) == NULL) {
        hth_free(d);
        return hth_no_memory("a dataset");
    }
    hth_err err = data_fill(d, options != NULL ? options : &none);
    if (err != HTH_OK) {
        hth_data_close(d);
        return hth_err_prefix(err, "dataset %s", path);
    }
    *out = d;
    return HTH_OK;
}

hth_err hth_data_read(hth_data *data, int i, uint64_t at, void *out, size_t n)
{
    if (i < 0 || i >= data->n_tensors || at > data->tensors[i].bytes ||
        n > data->tensors[i].bytes - at) {
        return hth_fail(HTH_EINVAL, "dataset %s: bytes outside of a tensor", data->path);
    }
    hth_err err = n > 0 ? data->reader->read(data, i, at, out, n) : HTH_OK;
    return hth_err_prefix(err, "dataset %s", data->path);
}

void hth_data_close(hth_data *data)
{
    if (data == NULL) {
        return;
    }
    if (data->reader != NULL) {
        data->reader->close(data);
    }
    for (int i = 0; i < data->n_tensors; i++) {
        hth_free(data->tensors[i].name);
    }
    hth_data_names_free(data->classes, (size_t)data->n_classes);
    hth_free(data->path);
    hth_free(data);
}

char *hth_data_meta(const hth_data *data)
{
    json_t *doc =
        json_pack("{s:s, s:I}", "format", data->format, "samples", (json_int_t)data->n_samples);
    json_t *names = data->n_classes > 0 ? json_array() : NULL;
    for (int i = 0; i < data->n_classes; i++) {
        json_array_append_new(names, json_string(data->classes[i]));
    }
    if (names != NULL) {
        json_object_set_new(doc, "classes", names);
    }
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    char *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return out;
}
