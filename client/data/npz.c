// SPDX-License-Identifier: Apache-2.0
// Arrays of numpy: one file (x), a folder of them, or an archive of them (numpy.savez, with and
// without compression). Each is a stream that begins with numpy's header. An array in Fortran order
// is turned around in memory.
#include "client/data/data_impl.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/data/archive.h"

#include <string.h>

#define NPZ_FORTRAN ((uint64_t)4 << 30) // most of an array that is turned around

typedef struct npz_array {
    hth_stream stream;
    uint64_t start;  // of the elements in it
    uint8_t *turned; // row-major; NULL: it is so in the stream
} npz_array;

typedef struct npz_set {
    hth_file file[HTH_DATA_TENSORS]; // of a folder as many as arrays, else one
    char *shown[HTH_DATA_TENSORS];   // of the arrays
    int n_files, n_shown;
    npz_array array[HTH_DATA_TENSORS];
} npz_set;

// npz_turn reads an array in Fortran order.
static hth_err npz_turn(npz_array *array, const hearth_tensor *tensor)
{
    if (tensor->bytes > NPZ_FORTRAN) {
        return hth_fail(HTH_ETOOBIG,
                        "'%s' is in Fortran order; numpy.ascontiguousarray makes it one that may "
                        "have more than %llu bytes",
                        array->stream.shown, (unsigned long long)NPZ_FORTRAN);
    }
    array->turned = hth_alloc((size_t)tensor->bytes + 1);
    return array->turned != NULL
               ? hth_array_turn(&array->stream, array->start, tensor, array->turned)
               : hth_no_memory("a dataset");
}

// npz_array_open reads the header of an array and adds it; `bytes`: what there is of it in all.
static hth_err npz_array_open(hth_data *data, const char *name, uint64_t bytes)
{
    npz_set *s = data->of;
    npz_array *a = &s->array[data->n_tensors];
    hearth_tensor t;
    bool fortran;
    HTH_TRY(hth_array_head(&a->stream, bytes, &t, &fortran, &a->start));
    HTH_TRY(fortran ? npz_turn(a, &t) : HTH_OK);
    return hth_data_add(data, name, (int)t.dtype, t.rank, t.shape);
}

static hth_err npz_set_new(hth_data *data, npz_set **out)
{
    *out = data->of = hth_calloc(1, sizeof(npz_set));
    return *out != NULL ? HTH_OK : hth_no_memory("a dataset");
}

// npz_shown keeps a text for as long as the dataset is open.
static hth_err npz_shown(npz_set *set, char *text, const char **out)
{
    *out = text;
    if (text == NULL) {
        return hth_no_memory("a dataset");
    }
    set->shown[set->n_shown++] = text;
    return HTH_OK;
}

// ---- .npy

// npy_file opens one file as an array.
static hth_err npy_file(hth_data *data, char *path, const char *name)
{
    npz_set *s = data->of;
    const char *shown;
    HTH_TRY(npz_shown(s, path, &shown));
    hth_file *f = &s->file[s->n_files];
    HTH_TRY(hth_file_open(shown, shown, f));
    s->n_files++;
    hth_stream_init(&s->array[data->n_tensors].stream, f, shown, HTH_STREAM_STORED, 0, f->bytes);
    return npz_array_open(data, name, f->bytes);
}

static hth_err npy_folder(hth_data *data)
{
    char **names;
    size_t n;
    HTH_TRY(hth_data_names(data->path, &names, &n));
    hth_err err = HTH_OK;
    for (size_t i = 0; i < n && err == HTH_OK; i++) {
        char *dot = strrchr(names[i], '.');
        if (dot == NULL || strcmp(dot, ".npy") != 0) {
            continue;
        }
        if (data->n_tensors == HTH_DATA_TENSORS) {
            err = hth_fail(HTH_ETOOBIG, "it holds more than %d arrays", HTH_DATA_TENSORS);
            break;
        }
        char *path = hth_asprintf("%s/%s", data->path, names[i]);
        *dot = 0;
        err = npy_file(data, path, names[i]);
    }
    hth_data_names_free(names, n);
    return err;
}

static hth_err npy_open(hth_data *data, const hth_data_options *options)
{
    npz_set *s;
    HTH_TRY(npz_set_new(data, &s));
    return hth_data_is_folder(data->path) ? npy_folder(data)
                                          : npy_file(data, hth_strdup(data->path), "x");
}

// ---- .npz

// Arrays that were not given names are x and y, in this order.
static void npz_name(const hth_zip_member *member, int n, char out[HTH_ZIP_NAME])
{
    size_t k = strlen(member->name);
    memcpy(out, member->name, k + 1);
    if (k > 4 && strcmp(member->name + k - 4, ".npy") == 0) {
        out[k - 4] = 0;
    }
    if (n == 2 && strcmp(out, "arr_0") == 0) {
        strcpy(out, "x");
    } else if (n == 2 && strcmp(out, "arr_1") == 0) {
        strcpy(out, "y");
    }
}

static hth_err npz_members(hth_data *data, npz_set *set, const hth_zip_member *member, int n)
{
    char name[HTH_ZIP_NAME];
    const char *shown;
    for (int i = 0; i < n; i++) {
        npz_name(&member[i], n, name);
        HTH_TRY(npz_shown(set, hth_strdup(member[i].name), &shown));
        hth_array_member(&set->file[0], &member[i], shown, &set->array[i].stream);
        HTH_TRY(npz_array_open(data, name, member[i].bytes));
    }
    return HTH_OK;
}

static hth_err npz_open(hth_data *data, const hth_data_options *options)
{
    npz_set *s;
    hth_zip_member *m;
    int n;
    HTH_TRY(npz_set_new(data, &s));
    HTH_TRY(hth_file_open(data->path, data->path, &s->file[0]));
    s->n_files = 1;
    HTH_TRY(hth_zip_read(&s->file[0], data->path, HTH_DATA_TENSORS, &m, &n));
    hth_err err = npz_members(data, s, m, n);
    hth_free(m);
    return err;
}

// ---- both

static hth_err npz_read(hth_data *data, int i, uint64_t at, void *out, size_t n)
{
    npz_array *a = &((npz_set *)data->of)->array[i];
    if (a->turned != NULL) {
        memcpy(out, a->turned + at, n);
        return HTH_OK;
    }
    return hth_stream_read(&a->stream, a->start + at, out, n);
}

static void npz_close(hth_data *data)
{
    npz_set *s = data->of;
    if (s == NULL) {
        return;
    }
    for (int i = 0; i < HTH_DATA_TENSORS; i++) {
        hth_stream_fini(&s->array[i].stream);
        hth_free(s->array[i].turned);
    }
    for (int i = 0; i < s->n_files; i++) {
        hth_file_close(&s->file[i]);
    }
    for (int i = 0; i < s->n_shown; i++) {
        hth_free(s->shown[i]);
    }
    hth_free(s);
}

const hth_data_reader hth_data_npy = {"npy", npy_open, npz_read, npz_close};
const hth_data_reader hth_data_npz = {"npz", npz_open, npz_read, npz_close};
