// SPDX-License-Identifier: Apache-2.0
// Which objects are sent. Where their ids are found meanwhile (hash.h), the server is asked about
// them as they become known, a few MiB at a time, while threads send what it lacks of the earlier
// ones. The caller's thread asks and watches: it tells how far things are, and ends them.
#include "client/content/send_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "client/content/hash.h"

#include <string.h>

#define SEND_THREADS 4
#define SEND_SMALL   ((uint64_t)64 << 10)
#define SEND_HERE    ((uint64_t)1 << 20)
#define SEND_WAVE    ((uint64_t)4 << 20) // bytes of objects that the server is asked about at once
// An upload that nobody asks for expires, by default in an hour.
#define SEND_ALIVE_NS ((uint64_t)300 * 1000000000)

typedef struct send_all {
    hth_send_job job;
    pthread_t thread[SEND_THREADS];
    int n_threads;
    int asked; // objects of the order of sending of which the server has said how far they are
    uint64_t *there;   // .. what
    uint64_t here;     // bytes that come along with the commit
    uint64_t pieces;   // that are to be sent, about
    uint64_t alive_ns; // when all were asked for
} send_all;

// send_which is the k-th object that is sent.
static int send_which(const hth_content_source *source, int k)
{
    return source->ids != NULL ? hth_content_ids_at(source->ids, k) : k;
}

// send_some copies the objects from..to of the order of sending, for hth_free; NULL: no memory.
static hth_content_object *send_some(const hth_content_source *source, int from, int to)
{
    hth_content_object *some = hth_calloc((size_t)(to - from) + 1, sizeof *some);
    for (int k = from; some != NULL && k < to; k++) {
        some[k - from] = source->objects[send_which(source, k)];
    }
    return some;
}

// send_add lists an object to be sent; one whose content another one has is sent with that.
static void send_add(send_all *all, int k)
{
    hth_send_job *job = &all->job;
    int i = send_which(job->source, k);
    const hth_content_object *o = &job->source->objects[i];
    hth_send_object *to = &job->objects[job->n], *same;
    HASH_FIND(hh, job->by_id, &o->id, sizeof o->id, same);
    if (same != NULL) {
        return;
    }
    to->i = i;
    hth_send_found(to, o->bytes, all->there[k]);
    HASH_ADD_KEYPTR(hh, job->by_id, &o->id, sizeof o->id, to); // or it is sent twice
    job->total += o->bytes - to->there;
    all->pieces += o->bytes / HTH_SEND_PIECE + 1;
    job->n++;
}

// send_plan chooses of more objects, up to `known`, what comes along with the commit, and lists
// what has to be sent. Under the lock.
static void send_plan(send_all *all, int known)
{
    for (; all->asked < known; all->asked++) {
        hth_content_source *s = all->job.source;
        hth_content_object *o = &s->objects[send_which(s, all->asked)];
        bool whole = all->there[all->asked] == HTH_CONTENT_WHOLE;
        bool fits = o->bytes == 0 || all->here + o->bytes <= SEND_HERE;
        o->here = !whole && o->bytes <= SEND_SMALL && fits;
        all->here += o->here ? o->bytes : 0;
        if (!whole && !o->here) {
            send_add(all, all->asked);
        }
    }
    all->job.grows = all->asked < all->job.source->n;
    pthread_cond_broadcast(&all->job.changed);
}

// send_more starts as many threads as there is something to do for.
static hth_err send_more(send_all *all)
{
    hth_err err = HTH_OK;
    while (err == HTH_OK && all->n_threads < SEND_THREADS &&
           (uint64_t)all->n_threads < all->pieces) {
        pthread_mutex_lock(&all->job.lock);
        all->job.running++;
        pthread_mutex_unlock(&all->job.lock);
        err =
            hth_thread_start("hth-send", hth_send_thread, &all->job, &all->thread[all->n_threads]);
        all->n_threads += err == HTH_OK;
        if (err != HTH_OK) {
            pthread_mutex_lock(&all->job.lock);
            all->job.running--;
            pthread_mutex_unlock(&all->job.lock);
        }
    }
    return all->n_threads > 0 ? HTH_OK : err; // fewer will do
}

// ---- waves

// send_worth tells whether the server is to be asked about objects up to `known` now: for each of
// many small ones it would take long.
static bool send_worth(send_all *all, int known)
{
    uint64_t bytes = 0;
    for (int k = all->asked; k < known; k++) {
        bytes += all->job.source->objects[send_which(all->job.source, k)].bytes;
    }
    return known == all->job.source->n || bytes >= SEND_WAVE;
}

static hth_err send_wave(send_all *all, int known)
{
    hth_send_job *job = &all->job;
    hth_content_object *some = send_some(job->source, all->asked, known);
    if (some == NULL) {
        return hth_no_memory("sending content");
    }
    hth_err err = hth_send_have(job->h, some, known - all->asked, all->there + all->asked);
    hth_free(some);
    HTH_TRY(err);
    pthread_mutex_lock(&job->lock);
    send_plan(all, known);
    pthread_mutex_unlock(&job->lock);
    return send_more(all);
}

// send_alive asks for all objects again, so that none expires while others are sent.
static void send_alive(send_all *all)
{
    uint64_t *there = hth_calloc((size_t)all->asked + 1, sizeof *there);
    hth_content_object *some = send_some(all->job.source, 0, all->asked);
    if (there != NULL && some != NULL) {
        (void)hth_send_have(all->job.h, some, all->asked, there);
    }
    hth_free(some);
    hth_free(there);
    all->alive_ns = hth_now_ns();
}

// send_look tells how far things are. HTH_ECANCELED: they are to end.
static hth_err send_look(send_all *all)
{
    hth_send_job *job = &all->job;
    pthread_mutex_lock(&job->lock);
    uint64_t done = job->done < job->total ? job->done : job->total, total = job->total;
    bool stop = job->stop;
    pthread_mutex_unlock(&job->lock);
    if (!stop && hth_now_ns() - all->alive_ns > SEND_ALIVE_NS) {
        send_alive(all);
    }
    return job->watch != NULL && job->watch->fn != NULL &&
                   job->watch->fn(job->watch->ctx, "uploading", done, total) != 0
               ? hth_fail(HTH_ECANCELED, "canceled")
               : HTH_OK;
}

static bool send_stopped(send_all *all)
{
    pthread_mutex_lock(&all->job.lock);
    bool stop = all->job.stop;
    pthread_mutex_unlock(&all->job.lock);
    return stop;
}

// send_waves lists all objects, as their ids become known.
static hth_err send_waves(send_all *all)
{
    hth_content_source *s = all->job.source;
    int known = s->ids == NULL ? s->n : 0, had;
    do {
        had = known;
        if (s->ids != NULL) {
            HTH_TRY(hth_content_ids_wait(s->ids, known, HTH_SEND_LOOK_MS, &known));
        }
        s->known = known;
        if (send_worth(all, known) || (known == had && known > all->asked)) { // or it takes long
            HTH_TRY(send_wave(all, known));
        }
        HTH_TRY(send_look(all));
    } while (all->asked < s->n && !send_stopped(all));
    return HTH_OK;
}

// send_run returns when all threads have ended.
static void send_run(send_all *all)
{
    hth_send_job *job = &all->job;
    hth_err err = send_waves(all);
    pthread_mutex_lock(&job->lock);
    job->grows = false;
    if (err != HTH_OK) {
        hth_send_fail(job, err);
    }
    while (job->running > 0) {
        hth_send_wait(job, HTH_SEND_LOOK_MS);
        pthread_mutex_unlock(&job->lock);
        err = send_look(all);
        pthread_mutex_lock(&job->lock);
        if (err != HTH_OK) {
            hth_send_fail(job, err);
        }
    }
    pthread_mutex_unlock(&job->lock);
    for (int k = 0; k < all->n_threads; k++) {
        hth_thread_join(all->thread[k]);
    }
}

void hth_content_discard_sent(hearth *handle, const hth_content_source *source)
{
    int n = source->known;
    hth_content_object *some = send_some(source, 0, n);
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Discard body = HEARTH__DISCARD__INIT;
    hearth_tensor section;
    uint64_t bytes;
    hth_reply r;
    body.objects = (uint32_t)n;
    q.body_case = HEARTH__REQUEST__BODY_DISCARD;
    q.discard = &body;
    if (some != NULL && hth_content_list(some, n, 0, &section, &bytes) == HTH_OK) {
        if (hth_exchange(handle, &q, &section, NULL, &r) == HTH_OK) {
            hth_reply_fini(&r);
        }
        hth_free(section.data);
    }
    hth_free(some);
}

static void send_init(hth_send_job *job)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

hth_err hth_content_send(hearth *handle, hth_content_source *source, const hth_watch *watch,
                         uint64_t *moved)
{
    size_t n = (size_t)source->n + 1;
    send_all all = {.job = {.h = handle, .source = source, .watch = watch, .grows = true},
                    .there = hth_calloc(n, sizeof *all.there),
                    .alive_ns = hth_now_ns()};
    hth_send_job *job = &all.job;
    job->objects = hth_calloc(n, sizeof *job->objects);
    hth_err err = HTH_OK;
    if (job->objects == NULL || all.there == NULL) {
        err = hth_no_memory("sending content");
    } else {
        send_init(job);
        send_run(&all);
        HASH_CLEAR(hh, job->by_id);
        *moved += job->moved;
        err = hth_err_restore(job->err, job->detail);
        pthread_cond_destroy(&job->changed);
        pthread_mutex_destroy(&job->lock);
    }
    hth_free(all.there);
    hth_free(job->objects);
    return err;
}
