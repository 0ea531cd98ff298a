// SPDX-License-Identifier: Apache-2.0
// An export that the client writes, of pieces that it fetches.
#include "client/content/fetch.h"

#include "base/hash.h"
#include "base/thread.h"
#include "client/atomic_file.h"
#include "client/export_format.h"
#include "client/safetensors.h"
#include "graph/graph.h"
#include "graph/onnx/onnx.h"

#include <jansson.h>

#include <string.h>

#define EXPORT_PIECE   ((size_t)512 << 10)
#define EXPORT_THREADS 4
#define EXPORT_SLOTS   8

typedef struct export_slot {
    uint8_t *bytes;
    size_t n;
    bool ready;
} export_slot;

typedef struct export_job {
    hearth *h;
    hth_content_made made;
    const hth_watch *watch;
    const char *shown;
    int fd;
    uint64_t written, moved, total;
    hth_id_sum *sum;      // of the object that is read
    size_t used;          // bytes of the present slot that were read
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t changed;
    export_slot slot[EXPORT_SLOTS]; // of piece p: p % EXPORT_SLOTS
    uint64_t read;                  // pieces that were read
    uint64_t fetched;               // .. that are fetched, or being
    int object;                     // of the next piece to be fetched
    uint64_t at;
    bool stop;
    hth_err err;
    char detail[1024];
} export_job;

static void export_fail(export_job *job, hth_err err) // under the lock
{
    if (job->err == HTH_OK) {
        job->err = err;
        strncpy(job->detail, hth_err_detail(), sizeof job->detail - 1);
    }
    job->stop = true;
    pthread_cond_broadcast(&job->changed);
}

// export_take chooses the next piece; false: there is none now. Under the lock.
static bool export_take(export_job *job, int *object, uint64_t *at, export_slot **slot)
{
    while (job->object < job->made.n && job->at == job->made.objects[job->object].bytes) {
        job->object++;
        job->at = 0;
    }
    if (job->object == job->made.n || job->fetched == job->read + EXPORT_SLOTS) {
        return false;
    }
    uint64_t left = job->made.objects[job->object].bytes - job->at;
    *slot = &job->slot[job->fetched++ % EXPORT_SLOTS];
    (*slot)->n = left < EXPORT_PIECE ? (size_t)left : EXPORT_PIECE;
    *object = job->object;
    *at = job->at;
    job->at += (*slot)->n;
    return true;
}

static void export_thread(void *arg)
{
    export_job *j = arg;
    int object;
    uint64_t at;
    export_slot *s;
    pthread_mutex_lock(&j->lock);
    while (!j->stop && j->object < j->made.n) {
        if (!export_take(j, &object, &at, &s)) {
            if (j->object < j->made.n) {
                pthread_cond_wait(&j->changed, &j->lock);
            }
            continue;
        }
        pthread_mutex_unlock(&j->lock);
        hth_err err = hth_content_piece(j->h, &j->made, object, at, s->bytes, s->n);
        pthread_mutex_lock(&j->lock);
        if (err != HTH_OK) {
            export_fail(j, err);
        }
        s->ready = true;
        pthread_cond_broadcast(&j->changed);
    }
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

// ---- reading

// export_slot_get waits for the piece that is read next.
static hth_err export_slot_get(export_job *job, export_slot **out)
{
    pthread_mutex_lock(&job->lock);
    export_slot *s = &job->slot[job->read % EXPORT_SLOTS];
    while (!s->ready && !job->stop) {
        pthread_cond_wait(&job->changed, &job->lock);
    }
    hth_err err = job->err == HTH_OK ? HTH_OK : hth_fail(job->err, "%s", job->detail);
    pthread_mutex_unlock(&job->lock);
    *out = s;
    return err;
}

static void export_slot_done(export_job *job, export_slot *slot)
{
    pthread_mutex_lock(&job->lock);
    slot->ready = false;
    job->read++;
    job->used = 0;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

static hth_err export_checked(export_job *job, const hth_content_object *object)
{
    hth_id id = hth_id_sum_end(job->sum);
    job->sum = NULL;
    return hth_id_equal(&id, &object->id)
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT, "tensor '%s': %s sent bytes that are not what its id says",
                          object->name, job->h->url);
}

// export_read is what a format reads with: objects in order, each from front to back.
static hth_err export_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    export_job *j = ctx;
    const hth_content_object *o = &j->made.objects[i];
    if (at == 0 && j->sum == NULL) {
        j->sum = hth_content_sum(o->dtype, &o->shape);
    }
    for (size_t done = 0; done < n;) {
        export_slot *s;
        HTH_TRY(export_slot_get(j, &s));
        size_t some = s->n - j->used < n - done ? s->n - j->used : n - done;
        memcpy((uint8_t *)dst + done, s->bytes + j->used, some);
        done += some;
        j->used += some;
        if (j->used == s->n) {
            export_slot_done(j, s);
        }
    }
    hth_id_sum_add(j->sum, dst, n);
    j->moved += n;
    return at + n == o->bytes ? export_checked(j, o) : HTH_OK;
}

static hth_err export_write(void *ctx, const void *data, size_t n)
{
    export_job *j = ctx;
    HTH_TRY(hth_atomic_file_put(j->fd, j->shown, &(hth_atomic_file_piece){data, n}, 1));
    j->written += n;
    return j->watch->fn != NULL &&
                   j->watch->fn(j->watch->ctx, "downloading", j->moved, j->total) != 0
               ? hth_fail(HTH_ECANCELED, "canceled while %s was written", j->shown)
               : HTH_OK;
}

// ---- formats

static bool export_trained(const hth_content_made *made)
{
    json_t *meta = json_loads(made->meta, 0, NULL);
    bool trained = json_is_true(json_object_get(meta, "trained"));
    json_decref(meta);
    return trained;
}

static hth_err export_onnx(export_job *job)
{
    return hth_onnx_export_write(&(hth_onnx_export){.skeleton = job->made.skeleton,
                                                    .skeleton_bytes = job->made.skeleton_bytes,
                                                    .n_tensors = job->made.n,
                                                    .inference = export_trained(&job->made),
                                                    .read = export_read,
                                                    .write = export_write,
                                                    .ctx = job});
}

static hth_err export_head(export_job *job)
{
    char *head = NULL;
    size_t bytes;
    hearth_tensor *t = hth_calloc((size_t)job->made.n, sizeof *t);
    if (t == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for %d tensors", job->made.n);
    }
    for (int i = 0; i < job->made.n; i++) {
        const hth_content_object *o = &job->made.objects[i];
        t[i] = (hearth_tensor){.name = o->name,
                               .dtype = (hearth_dtype)o->dtype,
                               .rank = o->shape.rank,
                               .bytes = (size_t)o->bytes};
        memcpy(t[i].shape, o->shape.dim, sizeof t[i].shape);
    }
    hth_err err = hth_safetensors_head(t, job->made.n, &head, &bytes);
    err = err == HTH_OK ? export_write(job, head, bytes) : err;
    hth_free(head);
    hth_free(t);
    return err;
}

static hth_err export_safetensors(export_job *job)
{
    uint8_t *piece = hth_alloc(EXPORT_PIECE);
    hth_err err =
        piece != NULL ? export_head(job) : hth_fail(HTH_ENOMEM, "out of memory for an export");
    for (int i = 0; i < job->made.n && err == HTH_OK; i++) {
        uint64_t bytes = job->made.objects[i].bytes;
        for (uint64_t at = 0; at < bytes && err == HTH_OK; at += EXPORT_PIECE) {
            size_t n = bytes - at < EXPORT_PIECE ? (size_t)(bytes - at) : EXPORT_PIECE;
            err = export_read(job, i, at, piece, n);
            err = err == HTH_OK ? export_write(job, piece, n) : err;
        }
    }
    hth_free(piece);
    return err;
}

// export_run fetches on its threads while the caller's writes.
static hth_err export_run(export_job *job, hth_export_format format)
{
    pthread_t thread[EXPORT_THREADS];
    int started = 0;
    hth_err err = HTH_OK;
    while (started < EXPORT_THREADS && err == HTH_OK) {
        err = hth_thread_start("hth-fetch", export_thread, job, &thread[started]);
        started += err == HTH_OK;
    }
    err = started > 0 ? HTH_OK : err;
    if (err == HTH_OK) {
        err = format == HTH_EXPORT_ONNX ? export_onnx(job) : export_safetensors(job);
    }
    pthread_mutex_lock(&job->lock);
    job->stop = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    for (int i = 0; i < started; i++) {
        hth_thread_join(thread[i]);
    }
    if (job->sum != NULL) {
        (void)hth_id_sum_end(job->sum);
    }
    return err;
}

static hth_err export_file(export_job *job, hth_export_format format)
{
    hth_atomic_file w;
    uint8_t *bytes = hth_alloc(EXPORT_SLOTS * EXPORT_PIECE);
    if (bytes == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for an export");
    }
    for (int i = 0; i < EXPORT_SLOTS; i++) {
        job->slot[i].bytes = bytes + (size_t)i * EXPORT_PIECE;
    }
    hth_err err = hth_atomic_file_begin(job->shown, &w);
    if (err == HTH_OK) {
        job->fd = w.fd;
        err = export_run(job, format);
        hth_err end = hth_atomic_file_end(&w, err == HTH_OK);
        err = err != HTH_OK ? err : end;
    }
    hth_free(bytes);
    return err;
}

hth_err hth_content_export(hearth *handle, const char *model, const char *path,
                           const hth_watch *watch, hearth_export_report *out)
{
    export_job j = {.h = handle, .watch = watch, .shown = path, .fd = -1};
    hth_export_format format;
    HTH_TRY(hth_export_format_of(path, &format));
    hth_err err = hth_content_made_get(handle, model, &j.made);
    for (int i = 0; i < j.made.n; i++) {
        j.total += j.made.objects[i].bytes;
    }
    if (err == HTH_OK) {
        pthread_mutex_init(&j.lock, NULL);
        pthread_cond_init(&j.changed, NULL);
        err = export_file(&j, format);
        pthread_cond_destroy(&j.changed);
        pthread_mutex_destroy(&j.lock);
    }
    *out = (hearth_export_report){.bytes = j.written, .moved = j.moved};
    hth_content_made_fini(&j.made);
    return err;
}
