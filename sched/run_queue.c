// SPDX-License-Identifier: Apache-2.0
// Items are few (a handful on a device), so that all is decided by walks over one list.
#include "sched/run_queue.h"

#include <assert.h>
#include <stddef.h>

#define SLICE_MOST_NS 1000000000u

void hth_run_queue_add(hth_run_queue *queue, hth_run_item *item)
{
    assert(item->weight > 0);
    if (item->queued) {
        return;
    }
    double least = queue->at;
    if (item->credit_ns != HTH_RUN_CREDIT_ALL) {
        least -= (double)item->credit_ns / item->weight;
    }
    item->at = item->at > least ? item->at : least;
    item->queued = true;
    item->held_since_ns = 0;
    item->next = queue->first;
    queue->first = item;
}

void hth_run_queue_remove(hth_run_queue *queue, hth_run_item *item)
{
    hth_run_item **at = &queue->first;
    if (!item->queued) {
        return;
    }
    while (*at != item) {
        assert(*at != NULL); // a queued item is in the list
        at = &(*at)->next;
    }
    *at = item->next;
    item->next = NULL;
    item->queued = false;
}

void hth_run_queue_renew(hth_run_item *item)
{
    assert(!item->queued);
    item->at = 0;
}

void hth_run_queue_wake(hth_run_item *item)
{
    item->rests_until_ns = 0;
}

static bool item_rests(const hth_run_item *item, uint64_t now_ns)
{
    return now_ns < item->rests_until_ns;
}

// queue_forget takes from each item what it is owed beyond its credit.
static void queue_forget(const hth_run_queue *queue)
{
    double most = 0;
    for (const hth_run_item *i = queue->first; i != NULL; i = i->next) {
        most = i == queue->first || i->at > most ? i->at : most;
    }
    for (hth_run_item *i = queue->first; i != NULL; i = i->next) {
        if (i->credit_ns != HTH_RUN_CREDIT_ALL) {
            double least = most - (double)i->credit_ns / i->weight;
            i->at = i->at > least ? i->at : least;
        }
    }
}

// item_fairer orders by virtual time, then by who ran longest ago.
static bool item_fairer(const hth_run_item *a, const hth_run_item *b)
{
    return a->at != b->at ? a->at < b->at : a->ran < b->ran;
}

// queue_fair is the first by rule 1.
static hth_run_item *queue_fair(const hth_run_queue *queue, uint64_t now_ns)
{
    hth_run_item *best = NULL;
    for (hth_run_item *i = queue->first; i != NULL; i = i->next) {
        if (!item_rests(i, now_ns) && (best == NULL || item_fairer(i, best))) {
            best = i;
        }
    }
    return best;
}

// item_sooner orders by deadline; among equal ones any order will do, but it must be one.
static bool item_sooner(const hth_run_item *a, const hth_run_item *b)
{
    return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a < b;
}

// queue_sooner is the item with the first deadline after that of `last` (NULL: the first of all).
static hth_run_item *queue_sooner(const hth_run_queue *queue, const hth_run_item *last,
                                  uint64_t now_ns)
{
    hth_run_item *best = NULL;
    for (hth_run_item *i = queue->first; i != NULL; i = i->next) {
        if (i->deadline_ns != 0 && !item_rests(i, now_ns) &&
            (last == NULL || item_sooner(last, i)) && (best == NULL || item_sooner(i, best))) {
            best = i;
        }
    }
    return best;
}

// queue_bears says whether a slice of `item` makes nobody late who could be in time. If not,
// *urgent is the one with the earliest deadline that can be met.
static bool queue_bears(const hth_run_queue *queue, const hth_run_item *item, uint64_t now_ns,
                        hth_run_item **urgent)
{
    uint64_t done_ns = now_ns, slice_ns = item->slice_ns;
    *urgent = NULL;
    for (hth_run_item *i = queue_sooner(queue, NULL, now_ns); i != NULL;
         i = queue_sooner(queue, i, now_ns)) {
        if (done_ns + i->need_ns > i->deadline_ns) {
            continue; // lost
        }
        *urgent = *urgent == NULL ? i : *urgent;
        done_ns += i->need_ns;
        if (i == item) { // from here on the slice is part of what is done
            slice_ns -= slice_ns < i->need_ns ? slice_ns : i->need_ns;
        }
        if (done_ns + slice_ns > i->deadline_ns && *urgent != item) {
            return false;
        }
    }
    return true;
}

// item_insists: nothing holds it up, or not any longer.
static bool item_insists(const hth_run_item *item, uint64_t now_ns)
{
    return item->insists || (item->patience_ns > 0 && item->held_since_ns != 0 &&
                             now_ns - item->held_since_ns >= item->patience_ns);
}

static uint64_t queue_wake_ns(const hth_run_queue *queue)
{
    uint64_t wake_ns = HTH_RUN_NEVER;
    for (const hth_run_item *i = queue->first; i != NULL; i = i->next) {
        wake_ns = i->rests_until_ns < wake_ns ? i->rests_until_ns : wake_ns;
    }
    return wake_ns;
}

hth_run_item *hth_run_queue_next(hth_run_queue *queue, uint64_t now_ns, uint64_t *wake_ns)
{
    hth_run_item *urgent;
    *wake_ns = HTH_RUN_NEVER;
    queue_forget(queue);
    hth_run_item *fair = queue_fair(queue, now_ns);
    if (fair == NULL) {
        *wake_ns = queue_wake_ns(queue);
        return NULL;
    }
    if (item_insists(fair, now_ns) || queue_bears(queue, fair, now_ns, &urgent)) {
        return fair;
    }
    fair->held_since_ns = fair->held_since_ns != 0 ? fair->held_since_ns : now_ns;
    return urgent;
}

void hth_run_queue_ran(hth_run_queue *queue, hth_run_item *item, uint64_t took_ns, uint64_t now_ns)
{
    assert(item->weight > 0);
    uint64_t most_ns = item->most_ns > 0 ? item->most_ns : SLICE_MOST_NS;
    took_ns = took_ns < most_ns ? took_ns : most_ns;
    queue->at = item->at > queue->at ? item->at : queue->at;
    item->at += (double)took_ns / item->weight;
    item->ran = ++queue->slices;
    item->charged = 0;
    item->held_since_ns = 0;
    item->rests_until_ns = item->rests > 0 ? now_ns + took_ns * item->rests : 0;
}

// What is charged is bounded since the item's last slice, and not by how far it is ahead of the
// others: they move on, and it would never have its turn.
void hth_run_queue_charge(hth_run_queue *queue, hth_run_item *item, uint64_t took_ns,
                          uint64_t most_ns)
{
    assert(item->weight > 0);
    if (!item->queued && item->at < queue->at) { // one that wants nothing may be far behind
        item->at = queue->at;
        item->charged = 0;
    }
    double more = (double)took_ns / item->weight;
    double room = (double)most_ns / item->weight - item->charged;
    more = more < room ? more : room;
    if (more > 0) {
        item->at += more;
        item->charged += more;
    }
}
