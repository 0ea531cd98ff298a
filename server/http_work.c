// SPDX-License-Identifier: Apache-2.0
// Tasks lie in one list: there are at most as many as connections, and each of them takes longer
// than to look through it. Owners are known by a hash of 8 bits: two that share one share a turn.
#include "server/http_work.h"

#include "base/alloc.h"
#include "base/thread.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#define WORK_THREADS 2
#define WORK_OWNERS  256
// Of tasks that have run: then the memory that they have freed goes back to the system, as soon as
// nothing waits.
#define WORK_TRIM_BYTES ((uint64_t)4 << 20)

struct hth_http_work {
    pthread_mutex_t lock; // of all that follows
    pthread_cond_t wake;
    hth_http_task *first;
    uint64_t clock; // the tag that was taken last
    uint64_t tag[WORK_OWNERS];
    uint64_t done; // cost since memory was given back
    bool closing;
    int n_threads;
    pthread_t thread[WORK_THREADS];
};

// work_take takes the task with the lowest tag out of the list, the oldest of several.
static hth_http_task *work_take(hth_http_work *w)
{
    hth_http_task **best = &w->first;
    for (hth_http_task **at = &w->first; *at != NULL; at = &(*at)->next) {
        best = (*at)->tag < (*best)->tag ? at : best;
    }
    hth_http_task *t = *best;
    *best = t->next;
    w->clock = t->tag > w->clock ? t->tag : w->clock;
    w->done += t->cost;
    return t;
}

static void work_main(void *arg)
{
    hth_http_work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (w->first != NULL) {
            hth_http_task *t = work_take(w);
            pthread_mutex_unlock(&w->lock);
            t->run(t);
        } else if (w->done >= WORK_TRIM_BYTES) {
            w->done = 0;
            pthread_mutex_unlock(&w->lock);
            malloc_trim(0);
        } else if (w->closing) {
            break;
        } else {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

hth_err hth_http_work_open(hth_http_work **out)
{
    hth_http_work *w = hth_calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for threads");
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    // One processor of two is left to the loop and the engine.
    int n = sysconf(_SC_NPROCESSORS_ONLN) > 2 ? WORK_THREADS : 1;
    hth_err err = HTH_OK;
    while (err == HTH_OK && w->n_threads < n) {
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

void hth_http_work_submit(hth_http_work *w, hth_http_task *t, const void *owner, uint64_t cost)
{
    uint64_t *tag = &w->tag[((uintptr_t)owner * 0x9e3779b97f4a7c15ull) >> 56];
    pthread_mutex_lock(&w->lock);
    t->cost = cost;
    t->tag = *tag = (*tag > w->clock ? *tag : w->clock) + cost;
    t->next = NULL;
    hth_http_task **at = &w->first;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = t;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void hth_http_work_close(hth_http_work *w)
{
    if (w == NULL) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++) {
        hth_thread_join(w->thread[i]);
    }
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    hth_free(w);
}
