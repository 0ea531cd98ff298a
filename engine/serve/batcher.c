// SPDX-License-Identifier: Apache-2.0
// The queues: in, out, and what is predicted. Which requests make a run:
// batcher_choose.c; which flow is next: batcher_flow.c.
#include "engine/serve/batcher_choose_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

// The margin of predictions: its least, its most, and how fast it forgets the worst that was seen.
#define MARGIN_LEAST  2.0
#define MARGIN_MOST   8.0
#define MARGIN_FORGET 0.9999
#define MARGIN_ABOVE  1.2
// A part of the wait's timeout above which a wait teaches the margin: shorter ones say nothing.
#define MARGIN_PART 4
// For how long after a background slice others are expected; how much longer than the longest
// lately the next may be, and how fast that is forgotten; the part of a timeout that is left for
// one at most.
#define BACKGROUND_RECENT_NS 1000000000u
#define BACKGROUND_ABOVE     1.5
#define BACKGROUND_FORGET    16
#define BACKGROUND_PART      4
#define BACKGROUND_MOST_NS   100000000u // a longer one is none of those
// For how long, up to twice that, a stalled run is remembered; how much longer the next
// may be, and the part of a timeout that is left for waiting all the same. What took longer is no
// stall.
#define STALL_WINDOW_NS 30000000000u
#define STALL_ABOVE     1.5
#define STALL_PART      4
#define STALL_MOST_NS   100000000u
// Of the new measurement in the average of what a sample takes.
#define SAMPLE_WEIGHT 0.125
// A run that takes this many times the average is one that the system stalled.
#define SAMPLE_OUTLIER 8.0
// Until when to look again at what the sweep has to take.
#define SWEEP_NS 1000000u

void hth_batcher_init(hth_batcher *batcher, const hth_batch_oracle *oracle)
{
    *batcher = (hth_batcher){.oracle = *oracle, .margin = MARGIN_LEAST, .nobodys = {.weight = 1}};
}

static void queue_link(hth_batcher *batcher, hth_batch_queue *queue)
{
    queue->next = batcher->queues;
    batcher->queues = queue;
}

static void queue_unlink(hth_batcher *batcher, hth_batch_queue *queue)
{
    hth_batch_queue **at = &batcher->queues;
    while (*at != queue) {
        at = &(*at)->next;
    }
    *at = queue->next;
    queue->next = NULL;
    queue->waited_n = 0;
}

static void item_unlink(hth_batcher *batcher, hth_batch_item *item)
{
    hth_batch_queue *q = item->queue;
    *(item->prev != NULL ? &item->prev->next : &q->first) = item->next;
    *(item->next != NULL ? &item->next->prev : &q->last) = item->prev;
    item->prev = item->next = NULL;
    item->queue = NULL;
    assert(q->n > 0);
    q->n--;
    assert(batcher->n > 0);
    batcher->n--;
    assert(item->flow->n > 0);
    if (--item->flow->n == 0) {
        hth_batch_flow_unlink(batcher, item->flow);
    }
    if (q->n == 0) {
        queue_unlink(batcher, q);
    }
}

static bool item_before(const hth_batch_item *a, const hth_batch_item *b)
{
    return a->priority < b->priority ||
           (a->priority == b->priority && a->arrived_ns < b->arrived_ns);
}

// item_link puts an item after those of its priority that arrived before it, and marks those that
// it overtakes.
static void item_link(hth_batcher *batcher, hth_batch_queue *queue, hth_batch_item *item)
{
    hth_batch_item *before = queue->last;
    while (before != NULL && item_before(item, before)) {
        before->overtaken = true;
        before = before->prev;
    }
    item->queue = queue;
    item->prev = before;
    item->next = before != NULL ? before->next : queue->first;
    *(item->prev != NULL ? &item->prev->next : &queue->first) = item;
    *(item->next != NULL ? &item->next->prev : &queue->last) = item;
    if (queue->n++ == 0) {
        queue_link(batcher, queue);
    }
    if (item->flow->n++ == 0) {
        hth_batch_flow_link(batcher, item->flow);
    }
    batcher->n++;
    for (hth_batch_queue *other = batcher->queues; other != NULL; other = other->next) {
        for (hth_batch_item *o = other->last;
             other != queue && o != NULL && o->priority > item->priority; o = o->prev) {
            o->overtaken = true;
        }
    }
}

// background_slice_ns is how long the next background slice takes at most, as far as it is known.
static double background_slice_ns(const hth_batcher *batcher)
{
    return (double)batcher->slice_ns * BACKGROUND_ABOVE;
}

// background_reserve_ns is what admission leaves for it.
static double background_reserve_ns(const hth_batcher *batcher, uint64_t timeout_ns,
                                    uint64_t now_ns)
{
    bool going = batcher->background_end_ns != 0 &&
                 now_ns - batcher->background_end_ns < BACKGROUND_RECENT_NS;
    double ns = background_slice_ns(batcher);
    return going && ns * BACKGROUND_PART <= (double)timeout_ns ? ns : 0;
}

void hth_batcher_background(hth_batcher *batcher, uint64_t took_ns, uint64_t now_ns)
{
    batcher->background_ns += took_ns;
    batcher->background_end_ns = now_ns;
    if (took_ns > 0) {
        uint64_t slice_ns = took_ns < BACKGROUND_MOST_NS ? took_ns : BACKGROUND_MOST_NS;
        batcher->slice_ns -= batcher->slice_ns / BACKGROUND_FORGET;
        batcher->slice_ns = slice_ns > batcher->slice_ns ? slice_ns : batcher->slice_ns;
    }
}

static void stall_forget(hth_batcher *batcher, uint64_t now_ns)
{
    uint64_t age_ns = now_ns - batcher->stall_from_ns;
    if (age_ns >= STALL_WINDOW_NS) {
        batcher->stall_ns[1] = age_ns < 2 * STALL_WINDOW_NS ? batcher->stall_ns[0] : 0;
        batcher->stall_ns[0] = 0;
        batcher->stall_from_ns = now_ns;
    }
}

void hth_batcher_note_stall(hth_batcher *batcher, uint64_t expected_ns, uint64_t took_ns,
                            uint64_t now_ns)
{
    uint64_t ns = expected_ns > 0 && took_ns > expected_ns ? took_ns - expected_ns : 0;
    stall_forget(batcher, now_ns);
    batcher->stall_ns[0] =
        ns > batcher->stall_ns[0] && ns <= STALL_MOST_NS ? ns : batcher->stall_ns[0];
}

// wait_bound_ns is what an item may wait at most where wait_ns are predicted: a multiple, or longer
// by the longest stall lately; and `background_ns` more.
static double wait_bound_ns(const hth_batcher *batcher, uint64_t wait_ns, uint64_t timeout_ns,
                            double background_ns)
{
    uint64_t stall_ns =
        batcher->stall_ns[0] > batcher->stall_ns[1] ? batcher->stall_ns[0] : batcher->stall_ns[1];
    double most = (double)timeout_ns - (double)timeout_ns / STALL_PART;
    return fmax((double)wait_ns * batcher->margin + background_ns,
                (double)wait_ns + fmin((double)stall_ns * STALL_ABOVE + background_ns, most));
}

// item_ready says that the item has a program; else it waits for background work.
static bool item_ready(const hth_batcher *batcher, const hth_batch_item *item)
{
    return batcher->oracle.time_ns(batcher->oracle.ctx, item, item->samples) != HTH_BATCH_NONE;
}

uint64_t hth_batcher_slice_ns(const hth_batcher *batcher)
{
    return (uint64_t)background_slice_ns(batcher);
}

// An item is due as was predicted, plus the background work since; or, where more is before it by
// now or is known of it, so much later.
uint64_t hth_batcher_slack_ns(const hth_batcher *batcher, uint64_t now_ns)
{
    double slack = HUGE_VAL;
    for (const hth_batch_queue *q = batcher->queues; q != NULL; q = q->next) {
        double before = 0;
        bool known = q->sample_ns > 0; // else a first run tells
        for (const hth_batch_item *i = q->first; i != NULL; i = i->next) {
            double due = (double)i->admitted_ns +
                         wait_bound_ns(batcher, i->predicted_ns, i->timeout_ns, 0) +
                         (double)(batcher->background_ns - i->background_ns);
            due = fmax(due, (double)now_ns + before * batcher->margin);
            double own = known ? (double)i->expires_ns - due : 0;
            if (i->expires_ns != 0 && own < slack && item_ready(batcher, i)) {
                slack = fmax(own, 0);
            }
            before += hth_batch_item_ns(i);
        }
    }
    return slack < HUGE_VAL ? (uint64_t)slack : UINT64_MAX;
}

hth_err hth_batcher_add(hth_batcher *batcher, hth_batch_queue *queue, hth_batch_item *item,
                        uint64_t now_ns)
{
    const hth_batch_policy *p = &queue->policy;
    item->flow = item->flow != NULL ? item->flow : &batcher->nobodys;
    item->priority = item->priority != 0 ? item->priority : p->priority;
    item->timeout_ns = item->timeout_ns != 0 ? item->timeout_ns : p->timeout_ns;
    item->admitted_ns = now_ns;
    item->background_ns = batcher->background_ns;
    item->expires_ns = item->timeout_ns != 0 ? item->arrived_ns + item->timeout_ns : 0;
    if (p->max_queue > 0 && queue->n + queue->away >= (int)p->max_queue) {
        return hth_fail(HTH_EBUSY, "Exceeds maximum queue size");
    }
    if (item->timeout_ns != 0) {
        item->predicted_ns = hth_batcher_wait_ns(batcher, item->flow, item->priority, now_ns);
        stall_forget(batcher, now_ns);
        double predicted = wait_bound_ns(batcher, item->predicted_ns, item->timeout_ns,
                                         background_reserve_ns(batcher, item->timeout_ns, now_ns)) +
                           (double)(now_ns - item->arrived_ns);
        if (predicted > (double)item->timeout_ns) {
            return hth_fail(HTH_ETIMEDOUT,
                            "Request timeout expired: its turn would come in about %" PRIu64
                            " us, its timeout is %" PRIu64 " us",
                            (uint64_t)predicted / 1000, item->timeout_ns / 1000);
        }
    }
    item_link(batcher, queue, item);
    return HTH_OK;
}

void hth_batcher_requeue(hth_batcher *batcher, hth_batch_queue *queue, hth_batch_item *item)
{
    item->overtaken = true; // it waited for something else: no measure of predictions
    item_link(batcher, queue, item);
}

bool hth_batch_item_ended(const hth_batch_item *item, uint64_t now_ns)
{
    return (item->canceled != NULL && *item->canceled != 0) ||
           (item->expires_ns != 0 && now_ns >= item->expires_ns);
}

// margin_learn compares the wait of an item with its prediction; where tenants share, those that
// came later may have gone before it, and it says nothing.
static void margin_learn(hth_batcher *batcher, const hth_batch_item *item, uint64_t now_ns)
{
    uint64_t waited = now_ns - item->admitted_ns,
             background = batcher->background_ns - item->background_ns;
    waited -= background < waited ? background : waited;
    if (item->timeout_ns == 0 || item->overtaken || item->predicted_ns == 0 ||
        batcher->flows->next != NULL) {
        return;
    }
    batcher->margin = MARGIN_LEAST + (batcher->margin - MARGIN_LEAST) * MARGIN_FORGET;
    double ratio = (double)waited / (double)item->predicted_ns * MARGIN_ABOVE;
    if (waited > item->timeout_ns / MARGIN_PART && ratio > batcher->margin) {
        batcher->margin = ratio < MARGIN_MOST ? ratio : MARGIN_MOST;
    }
}

hth_batch_item *hth_batcher_sweep(hth_batcher *batcher, uint64_t now_ns)
{
    hth_batch_item *out = NULL, **last = &out;
    hth_batch_queue *next_queue;
    for (hth_batch_queue *q = batcher->queues; q != NULL; q = next_queue) {
        hth_batch_item *next;
        next_queue = q->next;
        for (hth_batch_item *i = q->first; i != NULL; i = next) {
            next = i->next;
            if (hth_batch_item_ended(i, now_ns)) {
                margin_learn(batcher, i, now_ns);
                item_unlink(batcher, i);
                *last = i;
                last = &i->next;
            }
        }
    }
    return out;
}

// item_next orders what is to be run next: by priority, then by what its tenant has had, then by
// arrival.
static bool item_next(const hth_batch_item *a, const hth_batch_item *b)
{
    return a->priority == b->priority && a->flow != b->flow && a->flow->at != b->flow->at
               ? a->flow->at < b->flow->at
               : item_before(a, b);
}

// item_may says that it can be chosen: it is left to the sweep, or passed over, else.
static bool item_may(hth_batcher *batcher, const hth_batch_item *item, uint64_t now_ns,
                     hth_batch_filter filter)
{
    if (hth_batch_item_ended(item, now_ns)) {
        return false;
    }
    bool may = !filter.ready || item_ready(batcher, item);
    batcher->passed = batcher->passed || !may;
    return may;
}

// queue_head is the first item, or with several flows that of the one that is next.
static hth_batch_item *queue_head(hth_batcher *batcher, const hth_batch_queue *queue,
                                  uint64_t now_ns, hth_batch_filter filter)
{
    hth_batch_item *i = queue->first, *best;
    while (i != NULL && !item_may(batcher, i, now_ns, filter)) {
        i = i->next;
    }
    best = i;
    if (i == NULL || batcher->flows->next == NULL) {
        return i;
    }
    while ((i = i->next) != NULL && i->priority == best->priority) {
        best = item_next(i, best) && item_may(batcher, i, now_ns, filter) ? i : best;
    }
    return best;
}

// head_next is the first item of those queues that were not looked at in this round.
static hth_batch_item *head_next(hth_batcher *batcher, uint64_t now_ns, hth_batch_filter filter)
{
    hth_batch_item *best = NULL;
    for (const hth_batch_queue *q = batcher->queues; q != NULL; q = q->next) {
        hth_batch_item *head =
            q->round != batcher->round ? queue_head(batcher, q, now_ns, filter) : NULL;
        if (head != NULL && (best == NULL || item_next(head, best))) {
            best = head;
        }
    }
    return best;
}

static hth_batch_item *batch_take(hth_batcher *batcher, const hth_batch_choice *choice,
                                  uint64_t now_ns)
{
    batcher->at = choice->item[0]->flow->at;
    for (int k = 0; k < choice->n; k++) {
        hth_batch_item *i = choice->item[k];
        margin_learn(batcher, i, now_ns);
        i->charged = hth_batch_item_ns(i);
        i->flow->at += i->charged / i->flow->weight;
        i->flow->owed = 0;
        item_unlink(batcher, i);
    }
    for (int k = 0; k + 1 < choice->n; k++) {
        choice->item[k]->next = choice->item[k + 1];
    }
    return choice->item[0];
}

hth_batch_item *hth_batcher_next(hth_batcher *batcher, uint64_t now_ns, hth_batch_filter filter,
                                 int64_t *bucket, uint64_t *wake_ns)
{
    hth_batch_item *head;
    *wake_ns = batcher->n > 0 ? now_ns + SWEEP_NS : UINT64_MAX;
    batcher->round++;
    batcher->passed = false;
    while ((head = head_next(batcher, now_ns, filter)) != NULL &&
           (filter.priority == 0 || head->priority <= filter.priority)) {
        hth_batch_choice choice;
        head->queue->round = batcher->round;
        hth_batch_choose(batcher, head, now_ns, filter, &choice);
        if (choice.n > 0) {
            *bucket = choice.bucket;
            return batch_take(batcher, &choice, now_ns);
        }
        *wake_ns = choice.wake_ns < *wake_ns ? choice.wake_ns : *wake_ns;
    }
    return NULL;
}

void hth_batcher_begin(hth_batcher *batcher, const hth_batch_queue *queue, int64_t samples,
                       uint64_t now_ns)
{
    batcher->busy_until_ns =
        now_ns + (uint64_t)((double)(samples > 0 ? samples : 1) * queue->sample_ns);
}

void hth_batcher_end(hth_batcher *batcher, hth_batch_queue *queue, int64_t samples,
                     uint64_t took_ns)
{
    double ns = (double)took_ns / (double)(samples > 0 ? samples : 1);
    batcher->busy_until_ns = 0;
    if (took_ns == 0) {
        return;
    }
    if (queue->sample_ns == 0) {
        queue->sample_ns = ns;
    } else {
        ns = ns < queue->sample_ns * SAMPLE_OUTLIER ? ns : queue->sample_ns * SAMPLE_OUTLIER;
        queue->sample_ns += (ns - queue->sample_ns) * SAMPLE_WEIGHT;
    }
}
