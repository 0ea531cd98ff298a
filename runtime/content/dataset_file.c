// SPDX-License-Identifier: Apache-2.0
// A safetensors file becomes a dataset of the store: read by range, never mapped.
#include "runtime/content/dataset_index.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/safetensors.h"

#include <string.h>

typedef struct dataset_range {
    const hth_file *file;
    const char *shown;
    uint64_t at;
} dataset_range;

static hth_err range_read(void *ctx, uint64_t at, void *dst, size_t n)
{
    const dataset_range *r = ctx;
    return hth_file_read(r->file, r->shown, r->at + at, dst, n);
}

static hth_err file_store(hth_store *store, hth_dataset_put put, const hth_file *file,
                          const char *shown, const hth_safetensors_entry *entry,
                          hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    hth_put_tensor *t = hth_calloc((size_t)put.n + 1, sizeof *t);
    dataset_range *r = hth_calloc((size_t)put.n + 1, sizeof *r);
    hth_err err = hth_no_memory("a dataset");
    if (t != NULL && r != NULL) {
        for (int i = 0; i < put.n; i++) {
            r[i] = (dataset_range){file, shown, entry[i].at};
            t[i] = (hth_put_tensor){.name = entry[i].name,
                                    .dtype = (hth_dtype)entry[i].dtype,
                                    .shape = {.rank = entry[i].rank},
                                    .bytes = (size_t)entry[i].bytes,
                                    .read = range_read,
                                    .read_ctx = &r[i]};
            memcpy(t[i].shape.dim, entry[i].shape, sizeof entry[i].shape);
        }
        put.tensors = t;
        err = hth_dataset_store(store, &put, progress, ctx, out);
    }
    hth_free(r);
    hth_free(t);
    return err;
}

hth_err hth_dataset_file(hth_store *store, const hth_dataset_put *put, int fd, const char *shown,
                         hth_progress_fn progress, void *ctx, hth_put_result *out, uint64_t *bytes)
{
    hth_file file;
    hth_safetensors_entry *entry;
    hth_dataset_put p = *put;
    memset(out, 0, sizeof *out);
    *bytes = 0;
    HTH_TRY(fd >= 0 ? hth_file_again(fd, shown, &file) : hth_file_open(shown, shown, &file));
    hth_err err = hth_safetensors_look(&file, shown, &entry, &p.n);
    if (err == HTH_OK) {
        for (int i = 0; i < p.n; i++) {
            *bytes += entry[i].bytes;
        }
        err = file_store(store, p, &file, shown, entry, progress, ctx, out);
        hth_safetensors_looked(entry, p.n);
    }
    hth_file_close(&file);
    return hth_err_prefix(err, "dataset %s", shown);
}
