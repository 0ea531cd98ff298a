// SPDX-License-Identifier: Apache-2.0
#include "engine/train/dataset.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/opener.h"

#include <jansson.h>

#include <string.h>

#define DATASET_MAX_HEADER ((uint64_t)100 << 20) // the format's own limit
// A tensor of at most so many bytes, whose samples have fewer than so many, is kept in memory: to
// read 256 bytes takes 2 us, to copy them 50 ns.
#define DATASET_KEPT_BYTES ((size_t)64 << 20)
#define DATASET_KEPT_ROW   4096

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
            return hth_fail(HTH_EINVAL, "tensor '%s' has an invalid dimension", name);
        }
        out->dim[i] = json_integer_value(v);
    }
    return HTH_OK;
}

static hth_err dataset_tensor(const char *name, const json_t *o, uint64_t data, uint64_t bytes,
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
    out->at = data + (uint64_t)from;
    out->name = hth_strdup(name);
    return out->name != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "no memory for a dataset");
}

// dataset_header takes what the header says of the `bytes` of tensors at `data` of the file.
static hth_err dataset_header(hth_dataset *d, const json_t *head, uint64_t data, uint64_t bytes)
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
            return hth_fail(HTH_EINVAL, "tensor '%s' is a single value, not a list of samples",
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

static hth_err dataset_parse(hth_dataset *d, const char *text, size_t bytes)
{
    json_error_t je;
    json_t *head = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &je);
    uint64_t data = 8 + (uint64_t)bytes;
    hth_err err =
        json_is_object(head)
            ? dataset_header(d, head, data, d->file.bytes - data)
            : hth_fail(HTH_EINVAL, "not a safetensors file: its header is no JSON object");
    json_decref(head);
    return err;
}

// dataset_read reads the header. What stands in a file that is none is nobody's business.
static hth_err dataset_read(hth_dataset *d)
{
    uint64_t bytes;
    if (d->file.bytes == 0) {
        return hth_fail(HTH_EINVAL, "it is empty");
    }
    if (d->file.bytes < 8) {
        return hth_fail(HTH_EINVAL, "not a safetensors file: it has %llu bytes",
                        (unsigned long long)d->file.bytes);
    }
    HTH_TRY(hth_file_read(&d->file, d->name, 0, &bytes, 8));
    if (bytes > DATASET_MAX_HEADER || bytes > d->file.bytes - 8) {
        return hth_fail(HTH_EINVAL,
                        "not a safetensors file: it does not begin with its header "
                        "(safetensors.numpy.save_file({'x': x, 'y': y}, FILE) writes one)");
    }
    char *text = hth_alloc((size_t)bytes + 1);
    if (text == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for the header of a dataset");
    }
    hth_err err = hth_file_read(&d->file, d->name, 8, text, (size_t)bytes);
    err = err == HTH_OK ? dataset_parse(d, text, (size_t)bytes) : err;
    hth_free(text);
    return err;
}

// dataset_keep reads the tensors that are kept in memory.
static hth_err dataset_keep(hth_dataset *d)
{
    for (int i = 0; i < d->n_tensors; i++) {
        hth_tensor *t = &d->tensors[i].t;
        if (t->bytes > DATASET_KEPT_BYTES || t->bytes / (size_t)d->n_samples >= DATASET_KEPT_ROW) {
            continue;
        }
        t->data = hth_alloc(t->bytes + 1);
        if (t->data == NULL) {
            return hth_fail(HTH_ENOMEM, "no memory for the %zu bytes of tensor '%s'", t->bytes,
                            d->tensors[i].name);
        }
        HTH_TRY(hth_file_read(&d->file, d->name, d->tensors[i].at, t->data, t->bytes));
    }
    return hth_file_unchanged(&d->file, d->name);
}

static hth_err dataset_fill(const char *path, int fd, hth_dataset *d)
{
    if (d->name == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a dataset");
    }
    HTH_TRY(fd >= 0 ? hth_file_again(fd, path, &d->file) : hth_open_data(path, &d->file));
    HTH_TRY(dataset_read(d));
    return dataset_keep(d);
}

// dataset_open opens `path`, or (fd >= 0) what a descriptor stands for.
static hth_err dataset_open(const char *path, int fd, hth_dataset *out)
{
    *out = (hth_dataset){.name = hth_strdup(path), .file = {.fd = -1}};
    hth_err err = dataset_fill(path, fd, out);
    if (err != HTH_OK) {
        hth_dataset_close(out);
        return hth_err_prefix(err, "dataset %s", path);
    }
    return HTH_OK;
}

hth_err hth_dataset_open(const char *path, hth_dataset *out)
{
    return dataset_open(path, -1, out);
}

hth_err hth_dataset_open_fd(int fd, const char *name, hth_dataset *out)
{
    return dataset_open(name, fd, out);
}

void hth_dataset_close(hth_dataset *dataset)
{
    for (int i = 0; i < dataset->n_tensors; i++) {
        hth_free(dataset->tensors[i].name);
        hth_free(dataset->tensors[i].t.data);
    }
    hth_free(dataset->tensors);
    if (dataset->name != NULL) { // it was opened
        hth_file_close(&dataset->file);
    }
    hth_free(dataset->name);
    memset(dataset, 0, sizeof *dataset);
}

const hth_dataset_tensor *hth_dataset_find(const hth_dataset *dataset, const char *name)
{
    for (int i = 0; i < dataset->n_tensors; i++) {
        if (strcmp(dataset->tensors[i].name, name) == 0) {
            return &dataset->tensors[i];
        }
    }
    return NULL;
}

hth_err hth_dataset_gather(const hth_dataset *dataset, const hth_dataset_tensor *tensor,
                           const int64_t *rows, int64_t count, void *out)
{
    size_t row = tensor->t.bytes / (size_t)dataset->n_samples;
    for (int64_t i = 0, k; i < count; i = k) {
        for (k = i + 1; k < count && rows[k] == rows[k - 1] + 1; k++) {
        }
        char *to = (char *)out + (size_t)i * row;
        size_t from = (size_t)rows[i] * row, bytes = (size_t)(k - i) * row;
        if (tensor->t.data != NULL) {
            memcpy(to, (const char *)tensor->t.data + from, bytes);
        } else {
            HTH_TRY(hth_file_read(&dataset->file, dataset->name, tensor->at + from, to, bytes));
        }
    }
    return HTH_OK;
}

void hth_dataset_order(int64_t count, bool shuffle, uint64_t seed, int64_t epoch, int64_t *rows)
{
    uint64_t s = (seed + 1) * 0x9E3779B97F4A7C15u + (uint64_t)epoch * 0xD1B54A32D192ED03u;
    s = s != 0 ? s : 1;
    for (int64_t i = 0; i < count; i++) {
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
