// SPDX-License-Identifier: Apache-2.0
// A job that began when memory was short gets more when others have ended. It does so only while
// no job waits, because a waiting job, perhaps another tenant's, has the first claim on free
// memory. It also waits a little, because the next job often arrives just after one has ended. The
// job gives the memory back when a tenant without a running job needs it (train_preempt.c).
#include "engine/train/queue/train_fair.h"

#include "base/clock.h"
#include "engine/train/queue/train_entry_impl.h"

#include <stddef.h>

#define GROW_LOOK_NS  1000000000u  // from one look for a job to the next
#define GROW_CALM_NS  2000000000u  // for so long nobody has waited
#define GROW_AGAIN_NS 10000000000u // until the same job is asked again

static double grow_level(const hth_train_queue *queue, const hth_train_entry *entry)
{
    double weight = entry->tenant != NULL ? entry->tenant->limits.weight : 1;
    return hth_train_fair_standing(&queue->fair, entry->tenant).share / weight;
}

static bool grow_may(const hth_train_entry *entry, uint64_t now_ns)
{
    return entry->work != NULL && !entry->paused && entry->fair.state == HTH_FAIR_RUNS &&
           entry->leaving == HTH_TRAIN_STAYS && now_ns >= entry->more_ns;
}

// grow_next is the job to ask: the oldest of the tenant with the least.
static hth_train_entry *grow_next(const hth_train_queue *queue, uint64_t now_ns)
{
    hth_train_entry *next = NULL;
    for (hth_train_entry *e = queue->first; e != NULL; e = e->next) {
        bool less =
            grow_may(e, now_ns) && (next == NULL || grow_level(queue, e) < grow_level(queue, next));
        next = less ? e : next;
    }
    return next;
}

static void grow_poll(hth_train_queue *queue)
{
    hth_train_entry *e = queue->fair.grows;
    hth_err err;
    if (!hth_job_resized(e->work, &err)) {
        return;
    }
    queue->fair.grows = NULL;
    if (err == HTH_OK) {
        hth_train_fair_began(queue, e);
    }
}

void hth_train_grow_stop(hth_train_queue *queue, uint64_t now_ns)
{
    hth_train_entry *e = queue->fair.grows;
    queue->fair.waited_ns = now_ns;
    queue->fair.grows = NULL;
    if (e != NULL) {
        hth_job_keep_size(e->work);
        e->more_ns = now_ns;
    }
}

void hth_train_grow(hth_train_queue *queue, uint64_t now_ns)
{
    hth_train_fair *fair = &queue->fair;
    hth_train_entry *e;
    if (fair->grows != NULL) {
        grow_poll(queue);
        return;
    }
    if (now_ns < fair->grow_ns || now_ns < fair->waited_ns + GROW_CALM_NS) {
        return;
    }
    fair->grow_ns = now_ns + GROW_LOOK_NS;
    if (hth_train_queue_ahead(queue) != NULL) { // not planned yet
        hth_train_grow_stop(queue, now_ns);
        return;
    }
    while (fair->grows == NULL && (e = grow_next(queue, now_ns)) != NULL) {
        hth_err err = hth_job_more(e->work);
        e->more_ns = now_ns + (err == HTH_EBUSY ? GROW_LOOK_NS : GROW_AGAIN_NS);
        fair->grows = err == HTH_OK ? e : NULL;
    }
}
