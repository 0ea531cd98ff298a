// SPDX-License-Identifier: Apache-2.0
#include "server/dataset.h"

#include "base/alloc.h"
#include "base/err.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATASET_MAX_HEADER ((uint64_t)100 << 20) // the format's own limit

static const struct {
    const char *name;
    hth_dtype dtype;
} dataset_types[] = {{"F32", HTH_DT_F32},   {"F64", HTH_DT_F64}, {"F16", HTH_DT_F16},
                     {"BF16", HTH_DT_BF16}, {"I64", HTH_DT_I64}, {"I32", HTH_DT_I32},
                     {"I16", HTH_DT_I16},   {"I8", HTH_DT_I8},   {"U8", HTH_DT_U8},
                     {"BOOL", HTH_DT_BOOL}, {"U16", HTH_DT_U16}, {"U32", HTH_DT_U32},
                     {"U64", HTH_DT_U64}};

static hth_err dataset_shape(const char *name, const json_t *shape, hth_shape *out)
{
    size_t i;
    json_t *v;
    if (!json_is_array(shape) || json_array_size(shape) > HTH_MAX_RANK) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has no shape of at most %d dimensions", name,
                        HTH_MAX_RANK);
    }
    out->rank = (int)json_array_size(shape);
    json_array_foreach(shape, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0) {
            return hth_fail(HTH_EINVAL, "tensor '%s' has a dimension that is no size", name);
        }
        out->dim[i] = json_integer_value(v);
    }
    return HTH_OK;
}

static hth_err dataset_tensor(const char *name, const json_t *o, const char *data, size_t bytes,
                              hth_dataset_tensor *out)
{
    const char *type = json_string_value(json_object_get(o, "dtype"));
    const json_t *at = json_object_get(o, "data_offsets");
    hth_tensor *t = &out->t;
    bool known = false;
    for (size_t i = 0; type != NULL && i < sizeof dataset_types / sizeof *dataset_types; i++) {
        if (strcmp(type, dataset_types[i].name) == 0) {
            t->dtype = dataset_types[i].dtype;
            known = true;
        }
    }
    if (!known) {
        return hth_fail(HTH_EINVAL, "tensor '%s' has the unknown type '%.16s'", name,
                        type != NULL ? type : "");
    }
    HTH_TRY(dataset_shape(name, json_object_get(o, "shape"), &t->shape));
    HTH_TRY(hth_tensor_bytes(t->dtype, &t->shape, HTH_LAYOUT_PLAIN, &t->bytes));
    json_int_t from = json_integer_value(json_array_get(at, 0)),
               to = json_integer_value(json_array_get(at, 1));
    if (json_array_size(at) != 2 || from < 0 || to < from || (uint64_t)to > bytes ||
        (size_t)(to - from) != t->bytes) {
        return hth_fail(HTH_EINVAL, "tensor '%s' lies outside of the file, or its %zu bytes do not",
                        name, t->bytes);
    }
    t->data = (void *)(data + from);
    out->name = hth_strdup(name);
    return out->name != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for a dataset");
}

static hth_err dataset_header(hth_dataset *d, const json_t *head, const char *data, size_t bytes)
{
    const char *name;
    json_t *o;
    d->tensors = hth_calloc(json_object_size(head) + 1, sizeof *d->tensors);
    if (d->tensors == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a dataset");
    }
    json_object_foreach((json_t *)head, name, o)
    {
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        hth_dataset_tensor *t = &d->tensors[d->n_tensors];
        HTH_TRY(dataset_tensor(name, o, data, bytes, t));
        d->n_tensors++;
        if (t->t.shape.rank < 1) {
            return hth_fail(HTH_EINVAL, "tensor '%s' is a single value: where are its samples?",
                            name);
        }
        if (d->n_tensors > 1 && t->t.shape.dim[0] != d->n_samples) {
            return hth_fail(HTH_EINVAL, "'%s' has %lld samples, but '%s' has %lld",
                            d->tensors[0].name, (long long)d->n_samples, name,
                            (long long)t->t.shape.dim[0]);
        }
        d->n_samples = t->t.shape.dim[0];
    }
    return d->n_samples > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "there are no samples");
}

static hth_err dataset_read(hth_dataset *d)
{
    uint64_t head_bytes;
    json_error_t je;
    const char *map = d->map;
    if (d->map_bytes < 8) {
        return hth_fail(HTH_EINVAL, "no safetensors file: it has %zu bytes", d->map_bytes);
    }
    memcpy(&head_bytes, map, 8);
    if (head_bytes > DATASET_MAX_HEADER || head_bytes > d->map_bytes - 8) {
        return hth_fail(HTH_EINVAL, "no safetensors file: a header of %llu bytes",
                        (unsigned long long)head_bytes);
    }
    json_t *head = json_loadb(map + 8, head_bytes, JSON_REJECT_DUPLICATES, &je);
    hth_err err = json_is_object(head)
                      ? dataset_header(d, head, map + 8 + head_bytes, d->map_bytes - 8 - head_bytes)
                      : hth_fail(HTH_EINVAL, "no safetensors file: its header is no JSON: %s",
                                 hth_err_json(je.text));
    json_decref(head);
    return err;
}

hth_err hth_dataset_open(const char *path, hth_dataset *out)
{
    struct stat st;
    *out = (hth_dataset){.map = MAP_FAILED};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        hth_err err = hth_fail(HTH_ENOENT, "cannot read the dataset %s: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return err;
    }
    out->map_bytes = (size_t)st.st_size;
    if (out->map_bytes > 0) {
        out->map = mmap(NULL, out->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    close(fd);
    hth_err err = out->map != MAP_FAILED ? dataset_read(out)
                                         : hth_fail(HTH_EINVAL, "it is empty or cannot be mapped");
    if (err != HTH_OK) {
        hth_dataset_close(out);
        return hth_err_prefix(err, "dataset %s", path);
    }
    return HTH_OK;
}

void hth_dataset_close(hth_dataset *d)
{
    for (int i = 0; i < d->n_tensors; i++) {
        hth_free(d->tensors[i].name);
    }
    hth_free(d->tensors);
    if (d->map != NULL && d->map != MAP_FAILED) {
        munmap(d->map, d->map_bytes);
    }
    memset(d, 0, sizeof *d);
}

const hth_dataset_tensor *hth_dataset_find(const hth_dataset *d, const char *name)
{
    for (int i = 0; i < d->n_tensors; i++) {
        if (strcmp(d->tensors[i].name, name) == 0) {
            return &d->tensors[i];
        }
    }
    return NULL;
}

void hth_dataset_gather(const hth_dataset *d, const hth_dataset_tensor *t, const int64_t *rows,
                        int64_t n, void *out)
{
    size_t row = t->t.bytes / (size_t)d->n_samples;
    for (int64_t i = 0; i < n; i++) {
        memcpy((char *)out + (size_t)i * row, (const char *)t->t.data + (size_t)rows[i] * row, row);
    }
}

void hth_dataset_order(int64_t n, bool shuffle, uint64_t seed, int64_t epoch, int64_t *rows)
{
    uint64_t s = (seed + 1) * 0x9E3779B97F4A7C15u + (uint64_t)epoch * 0xD1B54A32D192ED03u;
    s = s != 0 ? s : 1;
    for (int64_t i = 0; i < n; i++) {
        rows[i] = i;
        if (!shuffle) {
            continue;
        }
        s ^= s >> 12;
        s ^= s << 25;
        s ^= s >> 27;
        int64_t j = (int64_t)(((s * 0x2545F4914F6CDD1Du) >> 32) * (uint64_t)(i + 1) >> 32);
        rows[i] = rows[j];
        rows[j] = i;
    }
}
