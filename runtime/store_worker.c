// SPDX-License-Identifier: Apache-2.0
// A FIFO under a lock. Jobs are embedded in what they belong to, so that submitting cannot fail.
#include "runtime/store_worker.h"

#include "base/alloc.h"

#include <pthread.h>
#include <stdbool.h>

struct hth_store_worker {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    hth_store_task *first, **last;
    bool closing;
};

static void *jobs_main(void *arg)
{
    hth_store_worker *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->first == NULL && !q->closing) {
            pthread_cond_wait(&q->wake, &q->lock);
        }
        hth_store_task *j = q->first;
        if (j == NULL) {
            break;
        }
        q->first = j->next;
        if (q->first == NULL) {
            q->last = &q->first;
        }
        pthread_mutex_unlock(&q->lock);
        j->run(j);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

hth_err hth_store_worker_open(hth_store_worker **out)
{
    hth_store_worker *q = hth_calloc(1, sizeof *q);
    *out = NULL;
    if (q == NULL) {
        return hth_no_memory("the job queue");
    }
    q->last = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->wake, NULL);
    int e = pthread_create(&q->thread, NULL, jobs_main, q);
    if (e != 0) {
        hth_free(q);
        return hth_fail_errno(e, "cannot start the job thread");
    }
    *out = q;
    return HTH_OK;
}

void hth_store_worker_submit(hth_store_worker *worker, hth_store_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&worker->lock);
    *worker->last = task;
    worker->last = &task->next;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
}

void hth_store_worker_close(hth_store_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    pthread_mutex_lock(&worker->lock);
    worker->closing = true;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->wake);
    pthread_mutex_destroy(&worker->lock);
    hth_free(worker);
}
