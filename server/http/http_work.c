// SPDX-License-Identifier: Apache-2.0
// Tasks lie in one list: there are at most as many as connections, and each of them takes longer
// than to look through it. Who has a turn is known by a hash of 8 bits: two that share one share a
// turn.
#include "server/http/http_work.h"

#include "base/alloc.h"
#include "base/thread.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>

#define WORK_THREADS 2
#define WORK_SHARES  256
// A task from which on its group has no other such at the same time: some 50 ms.
#define WORK_LONG_BYTES ((uint64_t)4 << 20)
// Of tasks that have run: then the memory that they have freed goes back to the system, as soon as
// nothing waits.
#define WORK_TRIM_BYTES ((uint64_t)4 << 20)

// What each was served, in bytes (one of a group: what waits as well), and what the one had who
// was taken last.
typedef struct work_share {
    uint64_t clock, had[WORK_SHARES];
} work_share;

struct hth_http_work {
    pthread_mutex_t lock; // of all that follows
    pthread_cond_t wake;
    hth_http_task *first;
    work_share groups, ones;
    bool long_runs[WORK_SHARES]; // of a group
    uint64_t done;               // cost since memory was given back
    bool closing;
    int n_threads;
    pthread_t thread[WORK_THREADS];
};

static size_t share_index(uint64_t who)
{
    return (who * 0x9e3779b97f4a7c15ull) >> 56;
}

static uint64_t *share_had(work_share *share, uint64_t who)
{
    return &share->had[share_index(who)];
}

// share_join has who was idle begin at what the last one had.
static void share_join(work_share *share, uint64_t who)
{
    uint64_t *had = share_had(share, who);
    *had = *had > share->clock ? *had : share->clock;
}

static bool task_is_long(const hth_http_task *task)
{
    return task->cost >= WORK_LONG_BYTES || task->most >= WORK_LONG_BYTES;
}

// work_before tells whether `a` comes before `b`.
static bool work_before(hth_http_work *work, const hth_http_task *a, const hth_http_task *b)
{
    uint64_t x = *share_had(&work->groups, a->group), y = *share_had(&work->groups, b->group);
    if (x == y && a->goes_on == b->goes_on) {
        x = a->tag;
        y = b->tag;
    }
    return x != y ? x < y : a->goes_on && !b->goes_on;
}

// work_take takes the next task out of the list, the oldest of several; NULL: none may run now.
static hth_http_task *work_take(hth_http_work *work)
{
    hth_http_task **best = NULL;
    for (hth_http_task **at = &work->first; *at != NULL; at = &(*at)->next) {
        bool may = !task_is_long(*at) || !work->long_runs[share_index((*at)->group)];
        best = may && (best == NULL || work_before(work, *at, *best)) ? at : best;
    }
    if (best == NULL) {
        return NULL;
    }
    hth_http_task *t = *best;
    uint64_t *group = share_had(&work->groups, t->group);
    *best = t->next;
    work->groups.clock = *group > work->groups.clock ? *group : work->groups.clock;
    *group += t->cost;
    work->ones.clock = t->tag > work->ones.clock ? t->tag : work->ones.clock;
    work->done += t->cost;
    return t;
}

// work_run runs a task that was taken; the lock is held before and after.
static void work_run(hth_http_work *work, hth_http_task *task)
{
    bool is_long = task_is_long(task);
    size_t group = share_index(task->group); // t may be gone then
    work->long_runs[group] = work->long_runs[group] || is_long;
    pthread_mutex_unlock(&work->lock);
    task->run(task);
    pthread_mutex_lock(&work->lock);
    if (is_long) {
        work->long_runs[group] = false;
        pthread_cond_signal(&work->wake); // one that waits for that may run
    }
}

static void work_main(void *arg)
{
    hth_http_work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        hth_http_task *t = work_take(w);
        if (t != NULL) {
            work_run(w, t);
        } else if (w->first == NULL && w->done >= WORK_TRIM_BYTES) {
            w->done = 0;
            pthread_mutex_unlock(&w->lock);
            malloc_trim(0);
            pthread_mutex_lock(&w->lock);
        } else if (w->first == NULL && w->closing) {
            break;
        } else {
            pthread_cond_wait(&w->wake, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

hth_err hth_http_work_open(hth_http_work **out)
{
    hth_http_work *w = hth_calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        return hth_no_memory("threads");
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    hth_err err = HTH_OK;
    while (err == HTH_OK && w->n_threads < WORK_THREADS) {
        err = hth_thread_start("hth-http-work", work_main, w, &w->thread[w->n_threads]);
        w->n_threads += err == HTH_OK;
    }
    if (w->n_threads == 0) {
        hth_http_work_close(w);
        return err;
    }
    *out = w;
    return HTH_OK;
}

void hth_http_work_submit(hth_http_work *work, hth_http_task *task)
{
    pthread_mutex_lock(&work->lock);
    task->next = NULL;
    share_join(&work->groups, task->group);
    share_join(&work->ones, task->one);
    task->tag = *share_had(&work->ones, task->one) += task->cost;
    hth_http_task **at = &work->first;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = task;
    pthread_cond_signal(&work->wake);
    pthread_mutex_unlock(&work->lock);
}

void hth_http_work_close(hth_http_work *work)
{
    if (work == NULL) {
        return;
    }
    pthread_mutex_lock(&work->lock);
    work->closing = true;
    pthread_cond_broadcast(&work->wake);
    pthread_mutex_unlock(&work->lock);
    for (int i = 0; i < work->n_threads; i++) {
        hth_thread_join(work->thread[i]);
    }
    pthread_cond_destroy(&work->wake);
    pthread_mutex_destroy(&work->lock);
    hth_free(work);
}
