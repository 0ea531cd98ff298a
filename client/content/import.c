// SPDX-License-Identifier: Apache-2.0
// The client reads the model file, and hashes its tensors on a few threads, each a piece at a time:
// it never holds one. A tensor that changes between its hash and its way to the server is refused
// there.
#include "client/content/send.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "graph/onnx/onnx.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define IMPORT_PIECE   ((size_t)1 << 20)
#define IMPORT_THREADS 4

typedef struct import_job {
    hth_onnx_file *file;
    hth_content_source source;
    atomic_int next;
    atomic_bool stop;
    pthread_mutex_t lock; // guards what follows
    hth_err err;
    char detail[1024];
} import_job;

static hth_err import_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    const import_job *j = ctx;
    return hth_onnx_tensor_read(j->file, i, at, dst, n);
}

static hth_err import_hash(import_job *job, int i, void *piece)
{
    const hth_onnx_tensor *t = hth_onnx_tensor_at(job->file, i);
    hth_id_sum *sum = hth_content_sum(t->dtype, &t->shape);
    hth_err err = HTH_OK;
    for (uint64_t at = 0; at < t->bytes && err == HTH_OK && !atomic_load(&job->stop);) {
        size_t n = t->bytes - at < IMPORT_PIECE ? (size_t)(t->bytes - at) : IMPORT_PIECE;
        err = import_read(job, i, at, piece, n);
        if (err == HTH_OK) {
            hth_id_sum_add(sum, piece, n);
        }
        at += n;
    }
    job->source.objects[i] = (hth_content_object){.name = t->name,
                                                  .id = hth_id_sum_end(sum),
                                                  .dtype = t->dtype,
                                                  .shape = t->shape,
                                                  .bytes = t->bytes};
    return err;
}

static void import_thread(void *arg)
{
    import_job *j = arg;
    void *piece = hth_alloc(IMPORT_PIECE);
    hth_err err = piece != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for an import");
    for (int i; err == HTH_OK && (i = atomic_fetch_add(&j->next, 1)) < j->source.n;) {
        err = import_hash(j, i, piece);
    }
    hth_free(piece);
    if (err != HTH_OK) {
        atomic_store(&j->stop, true);
        pthread_mutex_lock(&j->lock);
        if (j->err == HTH_OK) {
            j->err = err;
            strncpy(j->detail, hth_err_detail(), sizeof j->detail - 1);
        }
        pthread_mutex_unlock(&j->lock);
    }
}

static hth_err import_ids(import_job *job)
{
    pthread_t thread[IMPORT_THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int more = cores < IMPORT_THREADS ? (int)cores - 1 : IMPORT_THREADS - 1, started = 0;
    while (started < more && started < job->source.n - 1 &&
           hth_thread_start("hth-hash", import_thread, job, &thread[started]) == HTH_OK) {
        started++;
    }
    import_thread(job);
    for (int k = 0; k < started; k++) {
        hth_thread_join(thread[k]);
    }
    return job->err == HTH_OK ? HTH_OK : hth_fail(job->err, "%s", job->detail);
}

hth_err hth_content_import(hearth *handle, const char *path, hth_content_version *version,
                           const hth_watch *watch, hearth_import_report *out)
{
    import_job j = {.err = HTH_OK};
    HTH_TRY(hth_onnx_open(path, NULL, &j.file));
    int n = hth_onnx_n_tensors(j.file);
    j.source = (hth_content_source){.objects = hth_calloc((size_t)n, sizeof *j.source.objects),
                                    .n = n,
                                    .read = import_read,
                                    .ctx = &j};
    version->skeleton = hth_onnx_skeleton(j.file, &version->skeleton_bytes);
    pthread_mutex_init(&j.lock, NULL);
    hth_err err =
        j.source.objects != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for an import");
    err = err == HTH_OK ? import_ids(&j) : err;
    err = err == HTH_OK ? hth_content_send_version(handle, &j.source, version, watch, out) : err;
    pthread_mutex_destroy(&j.lock);
    hth_free(j.source.objects);
    hth_onnx_close(j.file);
    return err;
}
