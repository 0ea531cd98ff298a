// SPDX-License-Identifier: Apache-2.0
// Threads take the objects in order, each a whole one, and read it a piece at a time: no object is
// ever held. What is known is told as the number of leading objects: they are sent in that order.
#include "client/content/hash.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "graph/graph.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define IDS_PIECE   ((size_t)1 << 20)
#define IDS_THREADS 4

struct hth_content_ids {
    hth_content_object *objects;
    int n;
    hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n);
    void *ctx;
    pthread_t thread[IDS_THREADS];
    int n_threads;
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t changed;
    bool *done;
    int next, known;
    bool stop;
    hth_err err;
    char detail[1024];
};

static bool ids_stopped(hth_content_ids *ids)
{
    pthread_mutex_lock(&ids->lock);
    bool stop = ids->stop;
    pthread_mutex_unlock(&ids->lock);
    return stop;
}

static hth_err ids_hash(hth_content_ids *ids, int i, void *piece, hth_id *out)
{
    const hth_content_object *o = &ids->objects[i];
    hth_id_sum *sum = hth_content_sum(o->dtype, &o->shape);
    hth_err err = HTH_OK;
    for (uint64_t at = 0; at < o->bytes && err == HTH_OK && !ids_stopped(ids); at += IDS_PIECE) {
        size_t n = o->bytes - at < IDS_PIECE ? (size_t)(o->bytes - at) : IDS_PIECE;
        err = ids->read(ids->ctx, i, at, piece, n);
        if (err == HTH_OK) {
            hth_id_sum_add(sum, piece, n);
        }
    }
    *out = hth_id_sum_end(sum);
    return err;
}

static void ids_fail(hth_content_ids *ids, hth_err err) // under the lock
{
    if (ids->err == HTH_OK) {
        ids->err = err;
        strncpy(ids->detail, hth_err_detail(), sizeof ids->detail - 1);
    }
    ids->stop = true;
}

static void ids_found(hth_content_ids *ids, int i, const hth_id *id) // under the lock
{
    ids->objects[i].id = *id;
    ids->done[i] = true;
    while (ids->known < ids->n && ids->done[ids->known]) {
        ids->known++;
    }
}

static void ids_thread(void *arg)
{
    hth_content_ids *ids = arg;
    hth_id id;
    void *piece = hth_alloc(IDS_PIECE);
    pthread_mutex_lock(&ids->lock);
    if (piece == NULL) {
        ids_fail(ids, hth_no_memory("reading what is sent"));
    }
    while (!ids->stop && ids->next < ids->n) {
        int i = ids->next++;
        pthread_mutex_unlock(&ids->lock);
        hth_err err = ids_hash(ids, i, piece, &id);
        pthread_mutex_lock(&ids->lock);
        if (err != HTH_OK) {
            ids_fail(ids, err);
        } else if (!ids->stop) { // else it was not read to its end
            ids_found(ids, i, &id);
        }
        pthread_cond_broadcast(&ids->changed);
    }
    pthread_cond_broadcast(&ids->changed);
    pthread_mutex_unlock(&ids->lock);
    hth_free(piece);
}

hth_err hth_content_ids_begin(hth_content_object *objects, int n,
                              hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n),
                              void *ctx, hth_content_ids **out)
{
    hth_content_ids *ids = hth_calloc(1, sizeof *ids);
    bool *done = hth_calloc((size_t)n + 1, sizeof *done);
    *out = NULL;
    if (ids == NULL || done == NULL) {
        hth_free(ids);
        hth_free(done);
        return hth_no_memory("%d objects", n);
    }
    *ids = (hth_content_ids){.objects = objects, .n = n, .read = read, .ctx = ctx, .done = done};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&ids->lock, NULL);
    pthread_cond_init(&ids->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int most = cores < IDS_THREADS ? (int)cores : IDS_THREADS;
    hth_err err = HTH_OK;
    while (ids->n_threads < most && ids->n_threads < n && err == HTH_OK) {
        err = hth_thread_start("hth-hash", ids_thread, ids, &ids->thread[ids->n_threads]);
        ids->n_threads += err == HTH_OK;
    }
    if (ids->n_threads == 0 && n > 0) {
        hth_content_ids_end(ids);
        return err;
    }
    *out = ids;
    return HTH_OK;
}

hth_err hth_content_ids_wait(hth_content_ids *ids, int had, uint64_t ms, int *known)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + ms * 1000000u;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&ids->lock);
    while (ids->known <= had && ids->known < ids->n && !ids->stop &&
           pthread_cond_timedwait(&ids->changed, &ids->lock, &until) == 0) {
    }
    *known = ids->known;
    hth_err err = hth_err_restore(ids->err, ids->detail);
    pthread_mutex_unlock(&ids->lock);
    return err;
}

void hth_content_ids_end(hth_content_ids *ids)
{
    if (ids == NULL) {
        return;
    }
    pthread_mutex_lock(&ids->lock);
    ids->stop = true;
    pthread_mutex_unlock(&ids->lock);
    for (int k = 0; k < ids->n_threads; k++) {
        hth_thread_join(ids->thread[k]);
    }
    pthread_cond_destroy(&ids->changed);
    pthread_mutex_destroy(&ids->lock);
    hth_free(ids->done);
    hth_free(ids);
}
