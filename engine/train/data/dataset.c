// SPDX-License-Identifier: Apache-2.0
#include "engine/train/data/dataset.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/opener.h"
#include "client/safetensors.h"
#include "modelstore/hold.h"
#include "runtime/content/dataset_index.h"

#include <string.h>

// A tensor of at most so many bytes, whose samples have fewer than so many, is kept in memory: to
// read 256 bytes takes 2 us, to copy them 50 ns.
#define DATASET_KEPT_BYTES ((size_t)64 << 20)
#define DATASET_KEPT_ROW   4096

// dataset_tensors takes what the file's header says over; names are moved.
static hth_err dataset_tensors(hth_dataset *dataset, hth_safetensors_entry *entry, int n)
{
    for (int i = 0; i < n; i++) {
        hth_dataset_tensor *t = &dataset->tensors[dataset->n_tensors++];
        *t = (hth_dataset_tensor){.name = entry[i].name, .at = entry[i].at};
        entry[i].name = NULL;
        t->t = (hth_tensor){.dtype = (hth_dtype)entry[i].dtype, .bytes = (size_t)entry[i].bytes};
        t->t.shape.rank = entry[i].rank;
        memcpy(t->t.shape.dim, entry[i].shape, sizeof entry[i].shape);
        if (t->t.shape.rank < 1) {
            return hth_fail(HTH_EINVAL, "tensor '%s' is a single value, not a list of samples",
                            t->name);
        }
        if (i > 0 && t->t.shape.dim[0] != dataset->n_samples) {
            return hth_fail(HTH_EINVAL, "'%s' has %lld samples, but '%s' has %lld",
                            dataset->tensors[0].name, (long long)dataset->n_samples, t->name,
                            (long long)t->t.shape.dim[0]);
        }
        dataset->n_samples = t->t.shape.dim[0];
    }
    return dataset->n_samples > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "there are no samples");
}

// dataset_read reads the header. What stands in a file that is none is nobody's business.
static hth_err dataset_read(hth_dataset *dataset)
{
    hth_safetensors_entry *entry;
    int n;
    HTH_TRY(hth_safetensors_look(&dataset->file, dataset->name, &entry, &n));
    dataset->tensors = hth_calloc((size_t)n + 1, sizeof *dataset->tensors);
    hth_err err =
        dataset->tensors != NULL ? dataset_tensors(dataset, entry, n) : hth_no_memory("a dataset");
    hth_safetensors_looked(entry, n);
    return err;
}

// dataset_keep reads the tensors that are kept in memory.
static hth_err dataset_keep(hth_dataset *dataset)
{
    for (int i = 0; i < dataset->n_tensors; i++) {
        hth_tensor *t = &dataset->tensors[i].t;
        if (t->bytes > DATASET_KEPT_BYTES ||
            t->bytes / (size_t)dataset->n_samples >= DATASET_KEPT_ROW) {
            continue;
        }
        t->data = hth_alloc(t->bytes + 1);
        if (t->data == NULL) {
            return hth_no_memory("the %zu bytes of tensor '%s'", t->bytes,
                                 dataset->tensors[i].name);
        }
        HTH_TRY(hth_file_read(&dataset->file, dataset->name, dataset->tensors[i].at, t->data,
                              t->bytes));
    }
    return hth_file_unchanged(&dataset->file, dataset->name);
}

static hth_err dataset_fill(const char *path, int fd, hth_dataset *dataset)
{
    if (dataset->name == NULL) {
        return hth_no_memory("a dataset");
    }
    HTH_TRY(fd >= 0 ? hth_file_again(fd, path, &dataset->file)
                    : hth_open_data(path, &dataset->file));
    HTH_TRY(dataset_read(dataset));
    return dataset_keep(dataset);
}

// dataset_map takes the tensors of a version over. A name that is missing is not the version's.
static hth_err dataset_map(hth_store *store, const hth_manifest *manifest, hth_dataset *dataset)
{
    dataset->tensors = hth_calloc((size_t)manifest->n_tensors + 1, sizeof *dataset->tensors);
    if (dataset->tensors == NULL) {
        return hth_no_memory("a dataset");
    }
    HTH_TRY(hth_store_check(store, manifest));
    for (int i = 0; i < manifest->n_tensors; i++) {
        const hth_manifest_tensor *from = &manifest->tensors[i];
        hth_dataset_tensor *t = &dataset->tensors[dataset->n_tensors++];
        const void *data;
        t->t =
            (hth_tensor){.dtype = from->dtype, .shape = from->shape, .bytes = (size_t)from->bytes};
        t->name = hth_strdup(from->name);
        if (t->name == NULL) {
            return hth_no_memory("a dataset");
        }
        HTH_TRY(hth_store_view(store, from, &t->view));
        HTH_TRY(hth_const_map(t->view, &data));
        t->t.data = (void *)data;
        dataset->n_samples = from->shape.dim[0];
    }
    return HTH_OK;
}

hth_err hth_dataset_open_stored(hth_store *store, const char *name, const char *tenant,
                                hth_dataset *out)
{
    hth_manifest m;
    *out = (hth_dataset){.name = hth_strdup(name), .file = {.fd = -1}, .hold = -1};
    hth_err err = out->name != NULL ? HTH_OK : hth_no_memory("a dataset");
    if (err == HTH_OK) {
        err = hth_dataset_hold(store, name, tenant, &m, &out->hold);
    }
    if (err == HTH_OK) {
        err = dataset_map(store, &m, out);
        hth_manifest_fini(&m);
    }
    if (err != HTH_OK) {
        hth_dataset_close(out);
    }
    return err;
}

// dataset_open opens `path`, or (fd >= 0) what a descriptor stands for.
static hth_err dataset_open(const char *path, int fd, hth_dataset *out)
{
    *out = (hth_dataset){.name = hth_strdup(path), .file = {.fd = -1}, .hold = -1};
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
        hth_dataset_tensor *t = &dataset->tensors[i];
        hth_free(t->name);
        if (t->view == NULL) {
            hth_free(t->t.data);
        } else if (t->t.data != NULL) {
            hth_const_unmap(t->view);
        }
        hth_const_rele(t->view);
    }
    hth_free(dataset->tensors);
    if (dataset->name != NULL) { // it was opened
        hth_file_close(&dataset->file);
        hth_store_let_go(dataset->hold);
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
