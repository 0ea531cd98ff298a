// SPDX-License-Identifier: Apache-2.0
// Exports: a version as a file. Tensors are read in pieces, so that a process does not grow by the
// model that it writes.
#include "runtime/catalog.h"

#include "base/alloc.h"
#include "base/file.h"
#include "client/atomic_file.h"
#include "client/content/export_write.h"
#include "runtime/content/content.h"
#include "runtime/content/dataset_index.h"
#include "runtime/model.h"

typedef struct export_job {
    hth_store *store;
    hth_manifest manifest;
    int fd;
    const char *shown;
    hth_progress_fn progress;
    void *ctx;
    uint64_t done, total;
    int open; // the tensor that is read, -1: none
    hth_store_bytes bytes;
} export_job;

static hth_err export_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    export_job *j = ctx;
    if (j->open != i) {
        hth_store_bytes_close(&j->bytes);
        j->open = -1;
        HTH_TRY(hth_store_bytes_open(j->store, &j->manifest.tensors[i], &j->bytes));
        j->open = i;
    }
    return hth_store_bytes_read(&j->bytes, at, dst, n);
}

static hth_err export_write(void *ctx, const void *data, size_t n)
{
    export_job *j = ctx;
    HTH_TRY(hth_atomic_file_put(j->fd, j->shown, &(hth_atomic_file_piece){data, n}, 1));
    j->done += n;
    return j->progress != NULL && j->progress(j->ctx, j->done, j->total) != 0
               ? hth_fail(HTH_ECANCELED, "canceled while %s was written", j->shown)
               : HTH_OK;
}

static hth_err export_to(export_job *job, hth_export_format format)
{
    const hth_manifest *m = &job->manifest;
    hth_content_object *objects;
    HTH_TRY(hth_content_objects(m, &objects));
    hth_err err = hth_export_write(&(hth_export_source){.objects = objects,
                                                        .n = m->n_tensors,
                                                        .skeleton = m->skeleton,
                                                        .skeleton_bytes = m->skeleton_bytes,
                                                        .trained = hth_model_trained(m),
                                                        .read = export_read,
                                                        .write = export_write,
                                                        .ctx = job},
                                   format);
    hth_store_bytes_close(&job->bytes);
    hth_free(objects);
    return err;
}

static hth_err export_to_path(export_job *job, hth_export_format format)
{
    hth_atomic_file w;
    HTH_TRY(hth_atomic_file_begin(job->shown, &w));
    job->fd = w.fd;
    hth_err err = export_to(job, format);
    hth_err end = hth_atomic_file_end(&w, err == HTH_OK);
    HTH_TRY(err);
    return end;
}

hth_err hth_catalog_export(hth_store *store, const char *model, const char *path, int fd,
                           hth_progress_fn progress, void *ctx)
{
    char name[201];
    int version;
    hth_export_format format;
    export_job j = {.store = store,
                    .fd = fd,
                    .shown = path,
                    .progress = progress,
                    .ctx = ctx,
                    .open = -1,
                    .bytes = {.fd = -1}};
    HTH_TRY(fd >= 0 ? hth_file_take_to_write(fd, path) : HTH_OK);
    HTH_TRY(hth_export_format_of(path, &format));
    HTH_TRY(hth_catalog_resolve(store, model, name, &version));
    HTH_TRY(hth_dataset_is_not(store, name));
    HTH_TRY(hth_store_get(store, name, version, &j.manifest));
    for (int i = 0; i < j.manifest.n_tensors; i++) {
        j.total += j.manifest.tensors[i].bytes;
    }
    hth_err err = hth_store_check(store, &j.manifest);
    if (err == HTH_OK) {
        err = fd >= 0 ? export_to(&j, format) : export_to_path(&j, format);
    }
    if (err == HTH_ETOOBIG) {
        hth_err_prefix(err, "'%s:%d'", name, j.manifest.version);
    }
    hth_manifest_fini(&j.manifest);
    return err;
}
