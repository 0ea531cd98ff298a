// SPDX-License-Identifier: Apache-2.0
// Threads read objects, each one from front to back, and sum them up. Nothing is sent before its id
// is known, and SHA-256 of one object is one thread's work: that of a network's largest tensor may
// take as long as all others need on the link. So the small objects come first, and one of the
// threads begins with the largest. What is known is told as the number of leading objects of that
// order, in which they are sent; no object is ever held.
#include "client/content/hash.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define IDS_PIECE   ((size_t)1 << 20)
#define IDS_THREADS 4

struct hth_content_ids {
    hth_content_object *objects;
    int *order; // of objects: k stands for objects[order[k]] below
    int n;
    hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n);
    void *ctx;
    pthread_t thread[IDS_THREADS];
    int n_threads;
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t changed;
    bool *done;
    int next, last; // taken are those before `next`, and from `last` on
    int known;
    bool from_end; // a thread begins there
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

static hth_err ids_hash(hth_content_ids *ids, int k, void *piece, hth_id *out)
{
    int i = ids->order[k];
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

static void ids_found(hth_content_ids *ids, int k, const hth_id *id) // under the lock
{
    ids->objects[ids->order[k]].id = *id;
    ids->done[k] = true;
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
    bool from_end = ids->from_end;
    ids->from_end = false;
    if (piece == NULL) {
        ids_fail(ids, hth_no_memory("reading what is sent"));
    }
    while (!ids->stop && ids->next < ids->last) {
        int k = from_end ? --ids->last : ids->next++;
        pthread_mutex_unlock(&ids->lock);
        hth_err err = ids_hash(ids, k, piece, &id);
        pthread_mutex_lock(&ids->lock);
        if (err != HTH_OK) {
            ids_fail(ids, err);
        } else if (!ids->stop) { // else it was not read to its end
            ids_found(ids, k, &id);
        }
        pthread_cond_broadcast(&ids->changed);
    }
    pthread_cond_broadcast(&ids->changed);
    pthread_mutex_unlock(&ids->lock);
    hth_free(piece);
}

static int ids_smaller(const void *a, const void *b, void *objects)
{
    int i = *(const int *)a, j = *(const int *)b;
    uint64_t x = ((hth_content_object *)objects)[i].bytes,
             y = ((hth_content_object *)objects)[j].bytes;
    return x != y ? (x > y) - (x < y) : i - j;
}

static hth_err ids_start(hth_content_ids *ids)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int most = cores < IDS_THREADS ? (int)cores : IDS_THREADS;
    hth_err err = HTH_OK;
    ids->from_end = most > 1; // one alone goes from front to back
    while (ids->n_threads < most && ids->n_threads < ids->n && err == HTH_OK) {
        err = hth_thread_start("hth-hash", ids_thread, ids, &ids->thread[ids->n_threads]);
        ids->n_threads += err == HTH_OK;
    }
    return ids->n_threads > 0 || ids->n == 0 ? HTH_OK : err; // fewer will do
}

hth_err hth_content_ids_begin(hth_content_object *objects, int n,
                              hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n),
                              void *ctx, hth_content_ids **out)
{
    hth_content_ids *ids = hth_calloc(1, sizeof *ids);
    bool *done = hth_calloc((size_t)n + 1, sizeof *done);
    int *order = hth_calloc((size_t)n + 1, sizeof *order);
    *out = NULL;
    if (ids == NULL || done == NULL || order == NULL) {
        hth_free(ids);
        hth_free(done);
        hth_free(order);
        return hth_no_memory("%d objects", n);
    }
    for (int i = 0; i < n; i++) {
        order[i] = i;
    }
    qsort_r(order, (size_t)n, sizeof *order, ids_smaller, objects);
    *ids = (hth_content_ids){.objects = objects,
                             .order = order,
                             .n = n,
                             .last = n,
                             .read = read,
                             .ctx = ctx,
                             .done = done};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&ids->lock, NULL);
    pthread_cond_init(&ids->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    hth_err err = ids_start(ids);
    if (err != HTH_OK) {
        hth_content_ids_end(ids);
        return err;
    }
    *out = ids;
    return HTH_OK;
}

int hth_content_ids_at(const hth_content_ids *ids, int k)
{
    return ids->order[k];
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
    hth_free(ids->order);
    hth_free(ids);
}
