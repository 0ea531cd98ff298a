// SPDX-License-Identifier: Apache-2.0
// An export that the client writes, of pieces that it fetches. What a killed one has left of the
// same file is used: each tensor's bytes are summed up, wherever they come from, so that what was
// another version's, or was never written, is noticed, and then all of it is fetched.
#include "client/content/fetch.h"

#include "base/hash.h"
#include "base/thread.h"
#include "client/content/export_write.h"
#include "client/content/send.h"
#include "client/content/partial_file.h"
#include "graph/graph.h"

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
    hth_partial_file file;
    uint64_t moved, done, total;
    hth_id_sum *sum;     // of the object that is read
    bool reuses, there;  // what is read next may be in the file; the last that was read is
    bool mixed, spoiled; // some of the object was; it was wrong
    size_t used;         // bytes of the present slot that were read
    pthread_t thread[EXPORT_THREADS];
    int n_threads;
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
    export_job *job = arg;
    int object;
    uint64_t at;
    export_slot *s;
    pthread_mutex_lock(&job->lock);
    while (!job->stop && job->object < job->made.n) {
        if (!export_take(job, &object, &at, &s)) {
            if (job->object < job->made.n) {
                pthread_cond_wait(&job->changed, &job->lock);
            }
            continue;
        }
        pthread_mutex_unlock(&job->lock);
        hth_err err = hth_content_piece(job->h, &job->made, object, at, s->bytes, s->n);
        pthread_mutex_lock(&job->lock);
        if (err != HTH_OK) {
            export_fail(job, err);
        }
        s->ready = true;
        pthread_cond_broadcast(&job->changed);
    }
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

// export_start has the threads fetch what begins at `at` of the i-th object.
static hth_err export_start(export_job *job, int i, uint64_t at)
{
    hth_err err = HTH_OK;
    job->object = i;
    job->at = at;
    while (job->n_threads < EXPORT_THREADS && err == HTH_OK) {
        err = hth_thread_start("hth-fetch", export_thread, job, &job->thread[job->n_threads]);
        job->n_threads += err == HTH_OK;
    }
    return job->n_threads > 0 ? HTH_OK : err;
}

static void export_stop(export_job *job)
{
    pthread_mutex_lock(&job->lock);
    job->stop = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    while (job->n_threads > 0) {
        hth_thread_join(job->thread[--job->n_threads]);
    }
    if (job->sum != NULL) {
        (void)hth_id_sum_end(job->sum);
        job->sum = NULL;
    }
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
    hth_err err = hth_err_restore(job->err, job->detail);
    pthread_mutex_unlock(&job->lock);
    *out = s;
    return err;
}

static void export_slot_done(export_job *job, export_slot *s)
{
    pthread_mutex_lock(&job->lock);
    s->ready = false;
    job->read++;
    job->used = 0;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

static hth_err export_fetched(export_job *job, void *dst, size_t n)
{
    for (size_t done = 0; done < n;) {
        export_slot *s;
        HTH_TRY(export_slot_get(job, &s));
        size_t some = s->n - job->used < n - done ? s->n - job->used : n - done;
        memcpy((uint8_t *)dst + done, s->bytes + job->used, some);
        done += some;
        job->used += some;
        if (job->used == s->n) {
            export_slot_done(job, s);
        }
    }
    job->moved += n;
    return HTH_OK;
}

static hth_err export_checked(export_job *job, const hth_content_object *o)
{
    hth_id id = hth_id_sum_end(job->sum);
    job->sum = NULL;
    job->spoiled = !hth_id_equal(&id, &o->id) && job->mixed;
    return hth_id_equal(&id, &o->id)
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT, "tensor '%s': %s sent bytes that are not what its id says",
                          o->name, job->h->url);
}

// export_read is what a format reads with: from what is there already as long as that goes.
static hth_err export_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    export_job *job = ctx;
    const hth_content_object *o = &job->made.objects[i];
    if (at == 0) {
        job->sum = hth_content_sum(o->dtype, &o->shape);
        job->mixed = false;
    }
    job->there = job->reuses && hth_partial_file_read(&job->file, dst, n);
    job->mixed = job->mixed || job->there;
    if (job->reuses && !job->there) {
        job->reuses = false;
        HTH_TRY(export_start(job, i, at));
    }
    if (!job->there) {
        HTH_TRY(export_fetched(job, dst, n));
    }
    hth_id_sum_add(job->sum, dst, n);
    job->done += n;
    return at + n == o->bytes ? export_checked(job, o) : HTH_OK;
}

static hth_err export_write(void *ctx, const void *data, size_t n)
{
    export_job *job = ctx;
    if (!job->there) {
        HTH_TRY(hth_partial_file_write(&job->file, data, n));
    }
    job->there = false;
    return job->watch->fn != NULL &&
                   job->watch->fn(job->watch->ctx, "downloading", job->done, job->total) != 0
               ? hth_fail(HTH_ECANCELED, "canceled while %s was written", job->file.file.path)
               : HTH_OK;
}

// ---- the whole

static bool export_trained(const hth_content_made *made)
{
    json_t *meta = json_loads(made->meta, 0, NULL);
    bool trained = json_is_true(json_object_get(meta, "trained"));
    json_decref(meta);
    return trained;
}

static void export_begin(export_job *job, uint8_t *bytes)
{
    job->reuses = true;
    job->there = job->spoiled = job->stop = false;
    job->used = 0;
    job->read = job->fetched = job->done = 0;
    job->err = HTH_OK;
    for (int i = 0; i < EXPORT_SLOTS; i++) {
        job->slot[i] = (export_slot){.bytes = bytes + (size_t)i * EXPORT_PIECE};
    }
}

// export_run writes the file, on the caller's thread while others fetch.
static hth_err export_run(export_job *job, hth_export_format format, uint8_t *bytes)
{
    const hth_content_made *m = &job->made;
    const hth_export_source source = {.objects = m->objects,
                                      .n = m->n,
                                      .skeleton = m->skeleton,
                                      .skeleton_bytes = m->skeleton_bytes,
                                      .trained = export_trained(m),
                                      .read = export_read,
                                      .write = export_write,
                                      .ctx = job};
    export_begin(job, bytes);
    hth_err err = hth_export_write(&source, format);
    export_stop(job);
    if (err != HTH_OK && job->spoiled) {
        hth_partial_file_again(&job->file);
        export_begin(job, bytes);
        err = hth_export_write(&source, format);
        export_stop(job);
    }
    return err;
}

static hth_err export_file(export_job *job, const char *path, hth_export_format format)
{
    uint8_t *bytes = hth_alloc(EXPORT_SLOTS * EXPORT_PIECE);
    if (bytes == NULL) {
        return hth_no_memory("an export");
    }
    hth_err err = hth_partial_file_begin(path, &job->file);
    if (err == HTH_OK) {
        err = export_run(job, format, bytes);
        hth_partial_end end = err == HTH_OK ? HTH_PARTIAL_WHOLE : HTH_PARTIAL_REMOVED;
        bool lost = job->err != HTH_OK && hth_content_lost(job->err); // not our disk, which is full
        hth_err ended = hth_partial_file_end(&job->file, lost ? HTH_PARTIAL_LEFT : end);
        if (err == HTH_OK) {
            err = ended;
        }
    }
    hth_free(bytes);
    return err;
}

hth_err hth_content_export(hearth *handle, const char *model, const char *path,
                           const hth_watch *watch, hearth_export_report *out)
{
    export_job job = {.h = handle, .watch = watch};
    hth_export_format format;
    HTH_TRY(hth_export_format_of(path, &format));
    hth_err err = hth_content_made_get(handle, model, &job.made);
    for (int i = 0; i < job.made.n; i++) {
        job.total += job.made.objects[i].bytes;
    }
    if (err == HTH_OK) {
        pthread_mutex_init(&job.lock, NULL);
        pthread_cond_init(&job.changed, NULL);
        err = export_file(&job, path, format);
        pthread_cond_destroy(&job.changed);
        pthread_mutex_destroy(&job.lock);
    }
    *out = (hearth_export_report){.bytes = job.file.at, .moved = job.moved};
    hth_content_made_fini(&job.made);
    return err;
}
