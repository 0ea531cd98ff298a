// SPDX-License-Identifier: Apache-2.0
// The queues: in, out, and what is predicted. Which requests make a run:
// batcher_choose.c; whose turn it is: batcher_flow.c.
#include "engine/serve/batcher_choose_impl.h"

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
// For how long behind a piece of what is done aside others are expected; how much longer than the
// longest lately the next may be, and how fast that is forgotten; the part of a timeout that is
// left for one at most.
#define ASIDE_RECENT_NS 1000000000u
#define ASIDE_ABOVE     1.5
#define ASIDE_FORGET    16
#define ASIDE_PART      4
#define ASIDE_MOST_NS   100000000u // a longer one is none of those
// For how long, up to twice that, a run that was held up is remembered; how much longer the next
// may be, and the part of a timeout that is left for waiting all the same. What took longer is no
// hold-up.
#define STALL_WINDOW_NS 30000000000u
#define STALL_ABOVE     1.5
#define STALL_PART      4
#define STALL_MOST_NS   100000000u
// Of the new measurement in the average of what a sample takes.
#define SAMPLE_WEIGHT 0.125
// A run that takes this many times the average is one that the system held up.
#define SAMPLE_OUTLIER 8.0
// Until when to look again at what the sweep has to take.
#define SWEEP_NS 1000000u

void hth_batcher_init(hth_batcher *b, const hth_batch_oracle *oracle)
{
    *b = (hth_batcher){.oracle = *oracle, .margin = MARGIN_LEAST, .nobodys = {.weight = 1}};
}

static void queue_link(hth_batcher *b, hth_batch_queue *q)
{
    q->next = b->queues;
    b->queues = q;
}

static void queue_unlink(hth_batcher *b, hth_batch_queue *q)
{
    hth_batch_queue **at = &b->queues;
    while (*at != q) {
        at = &(*at)->next;
    }
    *at = q->next;
    q->next = NULL;
    q->waited_n = 0;
}

static void item_unlink(hth_batcher *b, hth_batch_item *i)
{
    hth_batch_queue *q = i->queue;
    *(i->prev != NULL ? &i->prev->next : &q->first) = i->next;
    *(i->next != NULL ? &i->next->prev : &q->last) = i->prev;
    i->prev = i->next = NULL;
    i->queue = NULL;
    q->n--;
    b->n--;
    if (--i->flow->n == 0) {
        hth_batch_flow_unlink(b, i->flow);
    }
    if (q->n == 0) {
        queue_unlink(b, q);
    }
}

static bool item_before(const hth_batch_item *a, const hth_batch_item *b)
{
    return a->priority < b->priority ||
           (a->priority == b->priority && a->arrived_ns < b->arrived_ns);
}

// item_link puts an item behind those of its priority that arrived before it, and marks those that
// it overtakes.
static void item_link(hth_batcher *b, hth_batch_queue *q, hth_batch_item *i)
{
    hth_batch_item *before = q->last;
    while (before != NULL && item_before(i, before)) {
        before->overtaken = true;
        before = before->prev;
    }
    i->queue = q;
    i->prev = before;
    i->next = before != NULL ? before->next : q->first;
    *(i->prev != NULL ? &i->prev->next : &q->first) = i;
    *(i->next != NULL ? &i->next->prev : &q->last) = i;
    if (q->n++ == 0) {
        queue_link(b, q);
    }
    if (i->flow->n++ == 0) {
        hth_batch_flow_link(b, i->flow);
    }
    b->n++;
    for (hth_batch_queue *other = b->queues; other != NULL; other = other->next) {
        for (hth_batch_item *o = other->last; other != q && o != NULL && o->priority > i->priority;
             o = o->prev) {
            o->overtaken = true;
        }
    }
}

// aside_next_ns is what the next piece of what is done aside takes at most, as far as it is known.
static double aside_next_ns(const hth_batcher *b)
{
    return (double)b->piece_ns * ASIDE_ABOVE;
}

// aside_reserve_ns is what a promise leaves for it.
static double aside_reserve_ns(const hth_batcher *b, uint64_t timeout_ns, uint64_t now_ns)
{
    bool going = b->aside_at_ns != 0 && now_ns - b->aside_at_ns < ASIDE_RECENT_NS;
    double ns = aside_next_ns(b);
    return going && ns * ASIDE_PART <= (double)timeout_ns ? ns : 0;
}

void hth_batcher_aside(hth_batcher *b, uint64_t took_ns, uint64_t now_ns)
{
    b->aside_ns += took_ns;
    b->aside_at_ns = now_ns;
    if (took_ns > 0) {
        uint64_t piece_ns = took_ns < ASIDE_MOST_NS ? took_ns : ASIDE_MOST_NS;
        b->piece_ns -= b->piece_ns / ASIDE_FORGET;
        b->piece_ns = piece_ns > b->piece_ns ? piece_ns : b->piece_ns;
    }
}

static void stall_forget(hth_batcher *b, uint64_t now_ns)
{
    uint64_t age_ns = now_ns - b->stall_from_ns;
    if (age_ns >= STALL_WINDOW_NS) {
        b->stall_ns[1] = age_ns < 2 * STALL_WINDOW_NS ? b->stall_ns[0] : 0;
        b->stall_ns[0] = 0;
        b->stall_from_ns = now_ns;
    }
}

void hth_batcher_held(hth_batcher *b, uint64_t expected_ns, uint64_t took_ns, uint64_t now_ns)
{
    uint64_t ns = expected_ns > 0 && took_ns > expected_ns ? took_ns - expected_ns : 0;
    stall_forget(b, now_ns);
    b->stall_ns[0] = ns > b->stall_ns[0] && ns <= STALL_MOST_NS ? ns : b->stall_ns[0];
}

// promise_ns is what an item may wait at most where wait_ns are predicted: a multiple, or longer by
// the longest hold-up lately; and `aside_ns` more.
static double promise_ns(const hth_batcher *b, uint64_t wait_ns, uint64_t timeout_ns,
                         double aside_ns)
{
    uint64_t stall_ns = b->stall_ns[0] > b->stall_ns[1] ? b->stall_ns[0] : b->stall_ns[1];
    double most = (double)timeout_ns - (double)timeout_ns / STALL_PART;
    return fmax((double)wait_ns * b->margin + aside_ns,
                (double)wait_ns + fmin((double)stall_ns * STALL_ABOVE + aside_ns, most));
}

// item_ready says that the item has a program; else it waits for what is done aside.
static bool item_ready(const hth_batcher *b, const hth_batch_item *i)
{
    return b->oracle.time_ns(b->oracle.ctx, i, i->samples) != HTH_BATCH_NONE;
}

// When an item comes to its turn: as was predicted, and what was done aside since; or, where more
// is before it by now or is known of it, so much later.
bool hth_batcher_spares(const hth_batcher *b, uint64_t now_ns)
{
    for (const hth_batch_queue *q = b->queues; q != NULL; q = q->next) {
        double before = 0;
        for (const hth_batch_item *i = q->first; i != NULL; i = i->next) {
            double due = (double)i->admitted_ns + promise_ns(b, i->predicted_ns, i->timeout_ns, 0) +
                         (double)(b->aside_ns - i->aside_ns);
            due = fmax(due, (double)now_ns + before * b->margin) + aside_next_ns(b);
            bool known = q->sample_ns > 0; // else a first run tells
            if (i->expires_ns != 0 && (!known || due > (double)i->expires_ns) && item_ready(b, i)) {
                return false;
            }
            before += hth_batch_item_ns(i);
        }
    }
    return true;
}

hth_err hth_batcher_add(hth_batcher *b, hth_batch_queue *q, hth_batch_item *i, uint64_t now_ns)
{
    const hth_batch_policy *p = &q->policy;
    i->flow = i->flow != NULL ? i->flow : &b->nobodys;
    i->priority = i->priority != 0 ? i->priority : p->priority;
    i->timeout_ns = i->timeout_ns != 0 ? i->timeout_ns : p->timeout_ns;
    i->admitted_ns = now_ns;
    i->aside_ns = b->aside_ns;
    i->expires_ns = i->timeout_ns != 0 ? i->arrived_ns + i->timeout_ns : 0;
    if (p->max_queue > 0 && q->n + q->away >= (int)p->max_queue) {
        return hth_fail(HTH_EBUSY, "Exceeds maximum queue size");
    }
    if (i->timeout_ns != 0) {
        i->predicted_ns = hth_batcher_wait_ns(b, i->flow, i->priority, now_ns);
        stall_forget(b, now_ns);
        double predicted = promise_ns(b, i->predicted_ns, i->timeout_ns,
                                      aside_reserve_ns(b, i->timeout_ns, now_ns)) +
                           (double)(now_ns - i->arrived_ns);
        if (predicted > (double)i->timeout_ns) {
            return hth_fail(HTH_ETIMEDOUT,
                            "Request timeout expired: its turn would come in about %" PRIu64
                            " us, its timeout is %" PRIu64 " us",
                            (uint64_t)predicted / 1000, i->timeout_ns / 1000);
        }
    }
    item_link(b, q, i);
    return HTH_OK;
}

void hth_batcher_again(hth_batcher *b, hth_batch_queue *q, hth_batch_item *i)
{
    i->overtaken = true; // it waited for something else: no measure of predictions
    item_link(b, q, i);
}

bool hth_batch_item_ended(const hth_batch_item *i, uint64_t now_ns)
{
    return (i->canceled != NULL && *i->canceled != 0) ||
           (i->expires_ns != 0 && now_ns >= i->expires_ns);
}

// margin_learn compares the wait of an item with its prediction; where tenants share, those that
// came later may have gone before it, and it says nothing.
static void margin_learn(hth_batcher *b, const hth_batch_item *i, uint64_t now_ns)
{
    uint64_t waited = now_ns - i->admitted_ns, aside = b->aside_ns - i->aside_ns;
    waited -= aside < waited ? aside : waited;
    if (i->timeout_ns == 0 || i->overtaken || i->predicted_ns == 0 || b->flows->next != NULL) {
        return;
    }
    b->margin = MARGIN_LEAST + (b->margin - MARGIN_LEAST) * MARGIN_FORGET;
    double ratio = (double)waited / (double)i->predicted_ns * MARGIN_ABOVE;
    if (waited > i->timeout_ns / MARGIN_PART && ratio > b->margin) {
        b->margin = ratio < MARGIN_MOST ? ratio : MARGIN_MOST;
    }
}

hth_batch_item *hth_batcher_sweep(hth_batcher *b, uint64_t now_ns)
{
    hth_batch_item *out = NULL, **last = &out;
    hth_batch_queue *next_queue;
    for (hth_batch_queue *q = b->queues; q != NULL; q = next_queue) {
        hth_batch_item *next;
        next_queue = q->next;
        for (hth_batch_item *i = q->first; i != NULL; i = next) {
            next = i->next;
            if (hth_batch_item_ended(i, now_ns)) {
                margin_learn(b, i, now_ns);
                item_unlink(b, i);
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
static bool item_may(hth_batcher *b, const hth_batch_item *i, uint64_t now_ns, hth_batch_ask ask)
{
    if (hth_batch_item_ended(i, now_ns)) {
        return false;
    }
    bool may = !ask.ready || item_ready(b, i);
    b->passed = b->passed || !may;
    return may;
}

// queue_head is the first item, or with several flows that of the one whose turn it is.
static hth_batch_item *queue_head(hth_batcher *b, const hth_batch_queue *q, uint64_t now_ns,
                                  hth_batch_ask ask)
{
    hth_batch_item *i = q->first, *best;
    while (i != NULL && !item_may(b, i, now_ns, ask)) {
        i = i->next;
    }
    best = i;
    if (i == NULL || b->flows->next == NULL) {
        return i;
    }
    while ((i = i->next) != NULL && i->priority == best->priority) {
        best = item_next(i, best) && item_may(b, i, now_ns, ask) ? i : best;
    }
    return best;
}

// head_next is the first item of those queues that were not looked at in this round.
static hth_batch_item *head_next(hth_batcher *b, uint64_t now_ns, hth_batch_ask ask)
{
    hth_batch_item *best = NULL;
    for (const hth_batch_queue *q = b->queues; q != NULL; q = q->next) {
        hth_batch_item *head = q->round != b->round ? queue_head(b, q, now_ns, ask) : NULL;
        if (head != NULL && (best == NULL || item_next(head, best))) {
            best = head;
        }
    }
    return best;
}

static hth_batch_item *batch_take(hth_batcher *b, const hth_batch_choice *c, uint64_t now_ns)
{
    b->at = c->item[0]->flow->at;
    for (int k = 0; k < c->n; k++) {
        hth_batch_item *i = c->item[k];
        margin_learn(b, i, now_ns);
        i->charged = hth_batch_item_ns(i);
        i->flow->at += i->charged / i->flow->weight;
        item_unlink(b, i);
    }
    for (int k = 0; k + 1 < c->n; k++) {
        c->item[k]->next = c->item[k + 1];
    }
    return c->item[0];
}

hth_batch_item *hth_batcher_next(hth_batcher *b, uint64_t now_ns, hth_batch_ask ask,
                                 int64_t *bucket, uint64_t *wake_ns)
{
    hth_batch_item *head;
    *wake_ns = b->n > 0 ? now_ns + SWEEP_NS : UINT64_MAX;
    b->round++;
    b->passed = false;
    while ((head = head_next(b, now_ns, ask)) != NULL &&
           (ask.priority == 0 || head->priority <= ask.priority)) {
        hth_batch_choice choice;
        head->queue->round = b->round;
        hth_batch_choose(b, head, now_ns, ask, &choice);
        if (choice.n > 0) {
            *bucket = choice.bucket;
            return batch_take(b, &choice, now_ns);
        }
        *wake_ns = choice.wake_ns < *wake_ns ? choice.wake_ns : *wake_ns;
    }
    return NULL;
}

void hth_batcher_begin(hth_batcher *b, const hth_batch_queue *q, int64_t samples, uint64_t now_ns)
{
    b->busy_until_ns = now_ns + (uint64_t)((double)(samples > 0 ? samples : 1) * q->sample_ns);
}

void hth_batcher_end(hth_batcher *b, hth_batch_queue *q, int64_t samples, uint64_t took_ns)
{
    double ns = (double)took_ns / (double)(samples > 0 ? samples : 1);
    b->busy_until_ns = 0;
    if (q->sample_ns == 0) {
        q->sample_ns = ns;
    } else {
        ns = ns < q->sample_ns * SAMPLE_OUTLIER ? ns : q->sample_ns * SAMPLE_OUTLIER;
        q->sample_ns += (ns - q->sample_ns) * SAMPLE_WEIGHT;
    }
}
