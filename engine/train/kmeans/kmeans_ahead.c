// SPDX-License-Identifier: Apache-2.0
#include "engine/train/kmeans/kmeans_ahead.h"

#include "base/alloc.h"
#include "base/thread.h"

struct hth_kmeans_ahead {
    hth_kmeans_blocks blocks;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started;       // the thread is there
    bool runs, fetches; // it is to fetch; it does so now
    bool ends;
    size_t used, next; // the block in use; the first one that is not there
};

static bool ahead_may(const hth_kmeans_ahead *ahead)
{
    return ahead->runs && ahead->next < ahead->blocks.n &&
           ahead->next < ahead->used + ahead->blocks.most;
}

static void ahead_main(void *ctx)
{
    hth_kmeans_ahead *ahead = ctx;
    pthread_mutex_lock(&ahead->lock);
    while (!ahead->ends) {
        if (!ahead_may(ahead)) {
            pthread_cond_wait(&ahead->changed, &ahead->lock);
            continue;
        }
        size_t block = ahead->next;
        ahead->fetches = true;
        pthread_mutex_unlock(&ahead->lock);
        hth_err err = ahead->blocks.fetch(ahead->blocks.ctx, block);
        pthread_mutex_lock(&ahead->lock);
        ahead->fetches = false;
        ahead->runs = ahead->runs && err == HTH_OK;
        ahead->next = err == HTH_OK ? block + 1 : block;
        pthread_cond_broadcast(&ahead->changed);
    }
    pthread_mutex_unlock(&ahead->lock);
}

hth_err hth_kmeans_ahead_open(const hth_kmeans_blocks *blocks, hth_kmeans_ahead **out)
{
    hth_kmeans_ahead *ahead = *out = hth_calloc(1, sizeof *ahead);
    if (ahead == NULL) {
        return hth_no_memory("reading ahead");
    }
    ahead->blocks = *blocks;
    pthread_mutex_init(&ahead->lock, NULL);
    pthread_cond_init(&ahead->changed, NULL);
    hth_err err = hth_thread_start("kmeans-ahead", ahead_main, ahead, &ahead->thread);
    ahead->started = err == HTH_OK;
    if (err != HTH_OK) {
        hth_kmeans_ahead_close(ahead);
        *out = NULL;
    }
    return err;
}

void hth_kmeans_ahead_close(hth_kmeans_ahead *ahead)
{
    if (ahead == NULL) {
        return;
    }
    if (ahead->started) {
        pthread_mutex_lock(&ahead->lock);
        ahead->ends = true;
        pthread_cond_broadcast(&ahead->changed);
        pthread_mutex_unlock(&ahead->lock);
        hth_thread_join(ahead->thread);
    }
    pthread_cond_destroy(&ahead->changed);
    pthread_mutex_destroy(&ahead->lock);
    hth_free(ahead);
}

void hth_kmeans_ahead_start(hth_kmeans_ahead *ahead, size_t block)
{
    pthread_mutex_lock(&ahead->lock);
    ahead->runs = true;
    ahead->used = block;
    ahead->next = block + 1;
    pthread_cond_broadcast(&ahead->changed);
    pthread_mutex_unlock(&ahead->lock);
}

void hth_kmeans_ahead_stop(hth_kmeans_ahead *ahead)
{
    pthread_mutex_lock(&ahead->lock);
    ahead->runs = false;
    while (ahead->fetches) {
        pthread_cond_wait(&ahead->changed, &ahead->lock);
    }
    pthread_mutex_unlock(&ahead->lock);
}

bool hth_kmeans_ahead_take(hth_kmeans_ahead *ahead, size_t block, bool waits)
{
    pthread_mutex_lock(&ahead->lock);
    if (ahead->runs && block > ahead->used) {
        ahead->used = block;
        pthread_cond_broadcast(&ahead->changed);
    }
    while (waits && ahead->runs && ahead->next <= block) {
        pthread_cond_wait(&ahead->changed, &ahead->lock);
    }
    bool there = ahead->runs && ahead->next > block;
    pthread_mutex_unlock(&ahead->lock);
    return there;
}
